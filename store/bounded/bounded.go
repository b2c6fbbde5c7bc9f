// Package bounded delays the error of a failed mutation until the mutation can no longer take effect. A client that
// receives the error may then continue: the failed request can't undo its next one.
package bounded

import (
	"context"
	"errors"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Jobs wraps inner so that every mutation is bounded: it has a deadline, and an error that leaves its outcome unknown
// is returned only after that deadline, or when the context is cancelled, since the caller has gone then.
func Jobs(inner store.Jobs) store.Jobs { return &jobs{inner} }

// inner embeds the store under a field name that differs from all its methods' names.
type inner interface{ store.Jobs }

type jobs struct{ inner }

// Records wraps inner so that every mutation is bounded, as with [Jobs].
func Records(inner store.Records) store.Records { return &records{inner} }

type records struct{ inner store.Records }

// certain runs a mutation and waits until its outcome is final.
func certain(ctx context.Context, mutate func(context.Context) error) error {
	ctx, cancel := within(ctx)
	defer cancel()
	err := mutate(ctx)
	wait(ctx, err)
	return err
}

// within gives the context of a mutation its deadline.
func within(ctx context.Context) (context.Context, context.CancelFunc) {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= store.Within {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, store.Within)
}

// wait returns when a mutation that failed with err can no longer take effect.
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
