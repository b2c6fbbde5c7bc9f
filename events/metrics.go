package events

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/carillon-scheduler/carillon/job"
)

// metrics count events.
type metrics struct {
	told                          *prometheus.CounterVec
	summarized, dropped, unheeded prometheus.Counter
}

func newMetrics(r prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &metrics{
		told: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "carillon_events_total", Help: "Events that were stored to be delivered to tenants, by type.",
		}, []string{"type"}),
		summarized: counter("carillon_events_summarized_total",
			"Events beyond their tenants' numbers per minute, which only summaries count."),
		dropped: counter("carillon_events_dropped_total",
			"Events that were dropped because the store was too slow or away."),
		unheeded: counter("carillon_expectations_missed_total", "Check-ins of jobs with expectBy that did not come in time."),
	}
	for _, t := range append(job.EventTypes(), job.EventSummary) {
		m.told.WithLabelValues(string(t))
	}
	if r != nil {
		r.MustRegister(m.told, m.summarized, m.dropped, m.unheeded)
	}
	return m
}
