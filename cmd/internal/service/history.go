package service

import (
	"flag"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/carillon-scheduler/carillon/access/limits"
	"github.com/carillon-scheduler/carillon/history"
	"github.com/carillon-scheduler/carillon/store"
)

// History configures the retention and the content of history.
type History struct {
	history.Policy // of tenants without one of their own; Keep 0 keeps none of any tenant
}

// Flags declares the options.
func (h *History) Flags(f *flag.FlagSet) {
	h.Keep = 24 * time.Hour
	f.Var(h, "history",
		"`DURATION`: How long the history of attempts and of changes of jobs is kept; 0 keeps none. \"failures\" leaves out "+
			"deliveries and keeps the rest for 24h, and \"failures:7d\" keeps it for a week. See docs/history.md.")
}

// Set implements [flag.Value].
func (h *History) Set(s string) (err error) {
	h.Policy, err = history.ParsePolicy(s)
	return err
}

// writer returns the writer of history; nil if none is kept.
func (h *History) writer(
	records store.Records, own *limits.Own, reach time.Duration, registry prometheus.Registerer, log *slog.Logger,
) *history.Writer {
	if h.Keep == 0 {
		return nil
	}
	return history.NewWriter(history.Config{
		Records: records, Policy: h.Policy, Reach: reach, Logger: log, Registerer: registry,
		PolicyOf: func(tenant string) history.Policy { return own.History(tenant, h.Policy) },
	})
}
