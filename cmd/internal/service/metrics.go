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

// newRegistry makes the registry of one service, with the metrics of the process and the build. Each part of the
// service adds its own.
func newRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	v, revision, goVersion := build()
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "carillon_build_info",
		Help:        "1, with the build as labels.",
		ConstLabels: prometheus.Labels{"version": v, "goversion": goVersion, "revision": revision},
	})
	info.Set(1)
	r.MustRegister(info, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// showReady adds a metric for the readiness of the dispatcher. Unlike /readyz, it does not query the store: many
// scrapes must not burden a store in trouble.
func showReady(r prometheus.Registerer, d *dispatcher.Dispatcher) {
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "carillon_ready",
		Help: "1 if this replica is ready, see /readyz, else 0.",
	}, func() float64 {
		if d.Ready() != nil {
			return 0
		}
		return 1
	}))
}

// showSecrets adds metrics for the number of secrets and their state.
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
		gauge("carillon_secrets_age_seconds", "Time since this replica last found its secrets to be those in the store.",
			func(so secrets.Status) float64 { return time.Since(so.Checked).Seconds() }),
	)
}

// metricsHandler serves the metrics of a registry. It logs and leaves out metrics that can't be gathered.
func metricsHandler(r *prometheus.Registry, log *slog.Logger) http.Handler {
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{
		ErrorLog:      slog.NewLogLogger(log.Handler(), slog.LevelError),
		ErrorHandling: promhttp.ContinueOnError,
		// For scrapers that request it: only this format has exemplars.
		EnableOpenMetrics: true,
	})
}
