package bounded_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/bounded"
)

// failing is a store whose mutations fail at once.
type failing struct {
	store.Store
	err error
}

func (f failing) Put(context.Context, []store.Put) []store.PutResult {
	return []store.PutResult{{}, {Err: f.err}}
}

func (f failing) Cancel(context.Context, []job.Name, store.Asked) ([]store.CancelResult, error) {
	return nil, f.err
}
func (f failing) Amend(context.Context, store.Amendment) error { return f.err }
func (f failing) Pause(context.Context, job.Name, job.Revision, time.Time) error {
	return f.err
}

func (f failing) Resume(context.Context, job.Name, job.Revision, time.Time) error {
	return f.err
}
func (f failing) Trigger(context.Context, job.Occurrence) error                 { return f.err }
func (f failing) SettleDead(context.Context, store.DeadSettlement) (int, error) { return 0, f.err }

func (f failing) WriteRecords(context.Context, []store.RecordChange) []error {
	return []error{nil, f.err}
}
func (f failing) Jobs(context.Context, store.JobFilter) ([]store.JobStatus, error) { return nil, f.err }

// TestUnknownOutcomesAreAnsweredWhenTheyAreFinal makes every mutation of a store.
func TestUnknownOutcomesAreAnsweredWhenTheyAreFinal(t *testing.T) {
	lost := fmt.Errorf("%w: the answer was lost", store.ErrUnavailable)
	for name, do := range map[string]func(ctx context.Context, s store.Jobs, r store.Records) error{
		"put": func(ctx context.Context, s store.Jobs, _ store.Records) error {
			return s.Put(ctx, make([]store.Put, 2))[1].Err
		},
		"cancel": func(ctx context.Context, s store.Jobs, _ store.Records) error {
			_, err := s.Cancel(ctx, nil, store.Asked{})
			return err
		},
		"amend": func(ctx context.Context, s store.Jobs, _ store.Records) error { return s.Amend(ctx, store.Amendment{}) },
		"pause": func(ctx context.Context, s store.Jobs, _ store.Records) error {
			return s.Pause(ctx, job.Name{}, "", time.Time{})
		},
		"resume": func(ctx context.Context, s store.Jobs, _ store.Records) error {
			return s.Resume(ctx, job.Name{}, "", time.Time{})
		},
		"trigger": func(ctx context.Context, s store.Jobs, _ store.Records) error {
			return s.Trigger(ctx, job.Occurrence{})
		},
		"settle dead letters": func(ctx context.Context, s store.Jobs, _ store.Records) error {
			_, err := s.SettleDead(ctx, store.DeadSettlement{})
			return err
		},
		"write records": func(ctx context.Context, _ store.Jobs, r store.Records) error {
			return r.WriteRecords(ctx, make([]store.RecordChange, 2))[1]
		},
	} {
		for _, test := range []struct {
			err       error
			limit     time.Duration // time limit of the caller; zero for none
			cancelled bool          // cancelled by the caller, like a server whose client has gone
			after     time.Duration
		}{
			{err: lost, after: store.Within},
			{err: lost, limit: 10 * time.Second, after: 10 * time.Second},
			{err: lost, limit: time.Hour, after: store.Within},
			{err: lost, cancelled: true},
			{err: fmt.Errorf("%w: it refuses writes", store.ErrNotDone)},
			{err: store.ErrPrecondition},
			{err: errors.New("a fault of its own")},
			{},
		} {
			t.Run(fmt.Sprintf("%s, %v, %s, %t", name, test.err, test.limit, test.cancelled), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := failing{err: test.err}
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					if test.limit > 0 {
						ctx, cancel = context.WithTimeout(ctx, test.limit)
						defer cancel()
					}
					if test.cancelled {
						cancel()
					}
					begin := time.Now()
					if err := do(ctx, bounded.Jobs(s), bounded.Records(s)); !errors.Is(err, test.err) {
						t.Errorf("answered %v", err)
					}
					if took := time.Since(begin); took != test.after {
						t.Errorf("answered after %s, want %s", took, test.after)
					}
				})
			})
		}
	}
}

// TestReadsAreNotHeldUp reads while the store is down.
func TestReadsAreNotHeldUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		if _, err := bounded.Jobs(failing{err: store.ErrUnavailable}).Jobs(t.Context(), store.JobFilter{}); !errors.Is(err, store.ErrUnavailable) {
			t.Error(err)
		}
		if took := time.Since(begin); took != 0 {
			t.Errorf("answered after %s", took)
		}
	})
}
