package service

import (
	"crypto/rand"
	"flag"
	"io"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/carillon-scheduler/carillon/access/limits"
	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
	"github.com/carillon-scheduler/carillon/history"
	"github.com/carillon-scheduler/carillon/history/otlp"
	"github.com/carillon-scheduler/carillon/store"
)

// History configures the retention and the content of history.
type History struct {
	history.Policy        // of tenants without one of their own; Keep 0 keeps none of any tenant
	Sink           string // the URL of a collector; empty for none
}

// Flags declares the options.
func (h *History) Flags(f *flag.FlagSet) {
	h.Keep = 24 * time.Hour
	f.Var(h, "history",
		"`DURATION`: How long the history of attempts and of changes of jobs is kept; 0 keeps none. \"failures\" leaves out "+
			"deliveries and keeps the rest for 24h, and \"failures:7d\" keeps it for a week. See docs/history.md.")
	f.StringVar(&h.Sink, "history-sink", "",
		"`URL`: OpenTelemetry collector that gets all entries of history as logs, by OTLP over HTTP, whatever --history "+
			"keeps. (none)")
}

// Set implements [flag.Value].
func (h *History) Set(s string) (err error) {
	h.Policy, err = history.ParsePolicy(s)
	return err
}

// recorder keeps entries of history, and is to be closed.
type recorder interface {
	Record(entries ...*history.Entry)
	io.Closer
}

// recorders are all that get entries of history.
type recorders []recorder

// Record gives the entries to all. None of them changes an entry.
func (all recorders) Record(entries ...*history.Entry) {
	for _, r := range all {
		r.Record(entries...)
	}
}

// open returns the recorders of history entries: none if no history is kept and there is no sink.
func (h *History) open(
	records store.Records, own *limits.Own, reach time.Duration, registry prometheus.Registerer, log *slog.Logger,
) (all recorders, err error) {
	sink, err := h.openSink(registry, log)
	if err != nil {
		return nil, err
	}
	if sink != nil {
		all = append(all, sink)
	}
	if h.Keep > 0 {
		all = append(all, history.NewWriter(history.Config{
			Records: records, Policy: h.Policy, Reach: reach, Logger: log, Registerer: registry,
			PolicyOf: func(tenant string) history.Policy { return own.History(tenant, h.Policy) },
		}))
	}
	return all, nil
}

// openSink makes the sink; nil if there is none. Headers are configured by the environment variables of OpenTelemetry,
// as those of traces.
func (h *History) openSink(registry prometheus.Registerer, log *slog.Logger) (*otlp.Sink, error) {
	name := "OTEL_EXPORTER_OTLP_LOGS_HEADERS"
	if env(name) == "" {
		name = "OTEL_EXPORTER_OTLP_HEADERS"
	}
	headers, err := otlp.ParseHeaders(env(name))
	if err != nil {
		return nil, cli.Usagef("%s: %w", name, err)
	}
	sink, err := otlp.New(otlp.Config{
		URL: h.Sink, Headers: headers, Version: moduleVersion(), Instance: rand.Text(), Logger: log, Registerer: registry,
	})
	if err != nil {
		return nil, cli.Usagef("--history-sink: %w", err)
	}
	return sink, nil
}
