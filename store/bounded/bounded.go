// Package bounded delays the answer of a failed mutation until it can't take effect any more. A client that is told of
// a failure may then go on: its next request is not undone by the failed one.
package bounded

import (
	"context"
	"errors"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Jobs is the inner one with every mutation bounded: it has a deadline, and a failure that leaves its outcome unknown
// is answered when that is over, or when the context is cancelled, since nobody waits for the answer then.
func Jobs(inner store.Jobs) store.Jobs { return &jobs{inner} }

// inner is the store, under a name that is none of its methods'.
type inner interface{ store.Jobs }

type jobs struct{ inner }

// Records is the inner one with every mutation bounded, as by [Jobs].
func Records(inner store.Records) store.Records { return &records{inner} }

type records struct{ inner store.Records }

// certain does a mutation, and waits until its outcome can change no more.
func certain(ctx context.Context, mutate func(context.Context) error) error {
	ctx, cancel := within(ctx)
	defer cancel()
	err := mutate(ctx)
	wait(ctx, err)
	return err
}

// within gives a mutation the deadline that it must have.
func within(ctx context.Context) (context.Context, context.CancelFunc) {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= store.Within {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, store.Within)
}

// wait returns when a mutation that ended with an error can't take effect any more.
func wait(ctx context.Context, err error) {
	if errors.Is(err, store.ErrUnavailable) && !errors.Is(err, store.ErrNotDone) {
		<-ctx.Done()
	}
}

// Put implements [store.Jobs].
func (j *jobs) Put(ctx context.Context, puts []store.Put) []store.PutResult {
	ctx, cancel := within(ctx)
	defer cancel()
	results := j.inner.Put(ctx, puts)
	for i := range results {
		wait(ctx, results[i].Err)
	}
	return results
}

// Cancel implements [store.Jobs].
func (j *jobs) Cancel(
	ctx context.Context, names []job.Name, asked store.Asked,
) (results []store.CancelResult, err error) {
	err = certain(ctx, func(ctx context.Context) (err error) {
		results, err = j.inner.Cancel(ctx, names, asked)
		return err
	})
	return results, err
}

// Amend implements [store.Jobs].
func (j *jobs) Amend(ctx context.Context, a store.Amendment) error {
	return certain(ctx, func(ctx context.Context) error { return j.inner.Amend(ctx, a) })
}

// Pause implements [store.Jobs].
func (j *jobs) Pause(ctx context.Context, name job.Name, version job.Revision, now time.Time) error {
	return certain(ctx, func(ctx context.Context) error { return j.inner.Pause(ctx, name, version, now) })
}

// Resume implements [store.Jobs].
func (j *jobs) Resume(ctx context.Context, name job.Name, version job.Revision, now time.Time) error {
	return certain(ctx, func(ctx context.Context) error { return j.inner.Resume(ctx, name, version, now) })
}

// Trigger implements [store.Jobs].
func (j *jobs) Trigger(ctx context.Context, o job.Occurrence) error {
	return certain(ctx, func(ctx context.Context) error { return j.inner.Trigger(ctx, o) })
}

// SettleDead implements [store.Jobs].
func (j *jobs) SettleDead(ctx context.Context, d store.DeadSettlement) (n int, err error) {
	err = certain(ctx, func(ctx context.Context) (err error) {
		n, err = j.inner.SettleDead(ctx, d)
		return err
	})
	return n, err
}

// Records implements [store.Records].
func (r *records) Records(ctx context.Context, filter store.RecordFilter) ([]store.Record, error) {
	return r.inner.Records(ctx, filter)
}

// WriteRecords implements [store.Records].
func (r *records) WriteRecords(ctx context.Context, changes []store.RecordChange) []error {
	ctx, cancel := within(ctx)
	defer cancel()
	answers := r.inner.WriteRecords(ctx, changes)
	for _, err := range answers {
		wait(ctx, err)
	}
	return answers
}
