// Package instrumented measures a store from outside: the duration and the failures of each of its methods.
package instrumented

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/carillon-scheduler/carillon/store"
)

// New wraps a store with metrics and registers them. It panics if the registerer already has metrics of these names,
// since that is an error in the program.
func New(inner store.Store, registerer prometheus.Registerer) store.Store {
	m := &measured{inner: inner}
	duration := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "carillon_store_duration_seconds",
		Help:    "Duration of calls to the store, by operation.",
		Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
	}, []string{"op"})
	failed := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "carillon_store_errors_total",
		Help: "Failed calls to the store, by operation.",
	}, []string{"op"})
	for _, o := range []struct {
		of   *operation
		name string
	}{
		{&m.put, "put"},
		{&m.cancel, "cancel"},
		{&m.amend, "amend"},
		{&m.pause, "pause"},
		{&m.resume, "resume"},
		{&m.trigger, "trigger"},
		{&m.jobs, "jobs"},
		{&m.occurrences, "occurrences"},
		{&m.deadLetters, "dead_letters"},
		{&m.settleDead, "settle_dead"},
		{&m.claim, "claim"},
		{&m.dueLanes, "due_lanes"},
		{&m.claimJobs, "claim_jobs"},
		{&m.advance, "advance"},
		{&m.settle, "settle"},
		{&m.sweep, "sweep"},
		{&m.now, "now"},
		{&m.count, "count"},
		{&m.sample, "sample"},
		{&m.records, "records"},
		{&m.writeRecords, "write_records"},
		{&m.exports, "export"},
		{&m.imports, "import"},
	} {
		*o.of = operation{duration.WithLabelValues(o.name), failed.WithLabelValues(o.name)}
	}
	registerer.MustRegister(duration, failed)
	return m
}

// measured is a store with its metrics.
type measured struct {
	inner store.Store

	put, cancel, amend, pause, resume, trigger, jobs       operation
	occurrences, deadLetters, settleDead, claim, claimJobs operation
	dueLanes                                               operation
	advance, settle, sweep, now, exports                   operation
	imports, count, sample, records, writeRecords          operation
}

// operation has the metrics of one method.
type operation struct {
	duration prometheus.Observer
	failed   prometheus.Counter
}

// done records the end of a call that began at start.
func (o *operation) done(ctx context.Context, start time.Time, err error) {
	o.duration.Observe(time.Since(start).Seconds())
	if isFault(ctx, err) {
		o.failed.Inc()
	}
}

// isFault reports whether an error is the store's. A regular result such as a missing job is not; neither is the
// cancellation by the caller, since a client that hangs up would otherwise count as a store failure.
func isFault(ctx context.Context, err error) bool {
	return err != nil && !errors.Is(ctx.Err(), context.Canceled) &&
		!errors.Is(err, store.ErrNotFound) &&
		!errors.Is(err, store.ErrPrecondition) && !errors.Is(err, store.ErrSuperseded) &&
		!errors.Is(err, store.ErrConflict)
}

// Warnings returns the inner store's warnings, or none if that store reports none.
func (s *measured) Warnings(ctx context.Context) []string {
	w, ok := s.inner.(store.Warner)
	if !ok {
		return nil
	}
	return w.Warnings(ctx)
}

// Close implements [store.Store].
func (s *measured) Close() error { return s.inner.Close() }
