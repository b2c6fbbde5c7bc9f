package intake

import "github.com/prometheus/client_golang/prometheus"

// Metrics are the metrics of all doors of a replica.
type Metrics struct {
	messages  *prometheus.CounterVec
	retries   *prometheus.CounterVec
	consuming *prometheus.GaugeVec
}

// NewMetrics makes the metrics, and registers them.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		messages: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "carillon_intake_messages_total",
			Help: "Messages of queues and topics with submissions that were applied, or refused and put aside.",
		}, []string{"source", "outcome"}),
		retries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "carillon_intake_retries_total",
			Help: "Times that messages had to wait for the store or for a limit.",
		}, []string{"source"}),
		consuming: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "carillon_intake_consuming",
			Help: "Whether this replica is connected to the queue or topic: 1 or 0.",
		}, []string{"source"}),
	}
	r.MustRegister(m.messages, m.retries, m.consuming)
	return m
}

// measured are the metrics of one door.
type measured struct {
	applied, refused, retries prometheus.Counter
	consuming                 prometheus.Gauge
}

func (m *Metrics) of(source string) measured {
	return measured{
		applied:   m.messages.WithLabelValues(source, "applied"),
		refused:   m.messages.WithLabelValues(source, "refused"),
		retries:   m.retries.WithLabelValues(source),
		consuming: m.consuming.WithLabelValues(source),
	}
}

func (m *measured) count(a Answer) {
	if a.Refused == nil {
		m.applied.Inc()
	} else {
		m.refused.Inc()
	}
}
