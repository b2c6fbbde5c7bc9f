package service

import (
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/carillon-scheduler/carillon/dispatcher"
	"github.com/carillon-scheduler/carillon/secrets"
)

// newRegistry makes the registry of one service, with what it shows of the process and the build. Each part of the
// service adds its own.
func newRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	v, revision, goVersion := build()
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "carillon_build_info",
		Help:        "1, with what was built as labels.",
		ConstLabels: prometheus.Labels{"version": v, "goversion": goVersion, "revision": revision},
	})
	info.Set(1)
	r.MustRegister(info, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// showReady has the registry show whether the dispatcher is ready. Unlike /readyz it does not ask the store at that
// moment: many may look at the metrics of a store that is in trouble.
func showReady(r prometheus.Registerer, d *dispatcher.Dispatcher) {
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "carillon_ready",
		Help: "1 if this replica does its work, as /readyz tells, else 0.",
	}, func() float64 {
		if d.Ready() != nil {
			return 0
		}
		return 1
	}))
}

// showSecrets has the registry show how many secrets there are, and whether they can be used.
func showSecrets(r prometheus.Registerer, s *secrets.Secrets) {
	gauge := func(name, help string, value func(secrets.Status) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help},
			func() float64 { return value(s.Status()) })
	}
	r.MustRegister(
		gauge("carillon_secrets", "Named secrets and signing secrets in the store.",
			func(so secrets.Status) float64 { return float64(so.Named + so.Signing) }),
		gauge("carillon_secrets_unreadable", "Secrets that this replica can't decrypt.",
			func(so secrets.Status) float64 { return float64(so.Unreadable) }),
		gauge("carillon_secrets_age_seconds", "Time since this replica last knew its secrets to be those of the store.",
			func(so secrets.Status) float64 { return time.Since(so.Checked).Seconds() }),
	)
}

// metricsHandler serves what a registry has. What can't be gathered is logged, and left out.
func metricsHandler(r *prometheus.Registry, log *slog.Logger) http.Handler {
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{
		ErrorLog:      slog.NewLogLogger(log.Handler(), slog.LevelError),
		ErrorHandling: promhttp.ContinueOnError,
		// For the scrapers that ask for it: exemplars are in no other format.
		EnableOpenMetrics: true,
	})
}
