package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// A call whose context ends at any point returns ErrUnavailable. A mutation returns ErrNotDone if it has changed
// nothing.
func TestContextEndsMeanwhile(t *testing.T) {
	rounds := 30
	if testing.Short() {
		rounds = 10 // at which the race detector sees calls end early, midway and after all
	}
	s, _ := open(t)
	var names []job.Name // most do not exist, so that nothing has to be written
	for i := range 500 {
		names = append(names, job.Name{Tenant: job.DefaultTenant, Key: fmt.Sprint("k", i)})
	}
	var puts []store.Put
	for i := range 200 {
		puts = append(puts, put(fmt.Sprint("other ", i), 3))
	}
	for _, r := range s.Put(t.Context(), puts) {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	var claimed store.Claim
	for _, c := range []struct {
		name   string
		mutate bool
		do     func(ctx context.Context) error
	}{
		{"put", true, func(ctx context.Context) error { return s.Put(ctx, []store.Put{put("k0", 40)})[0].Err }},
		{"cancel", true, func(ctx context.Context) error {
			_, err := s.Cancel(ctx, names, store.Asked{Now: epoch})
			return err
		}},
		{"pause", true, func(ctx context.Context) error { return s.Pause(ctx, puts[0].Job.Name, job.NewRevision(epoch), epoch) }},
		{"resume", false, func(ctx context.Context) error { return s.Resume(ctx, puts[0].Job.Name, job.NewRevision(epoch), epoch) }},
		{"claim", false, func(ctx context.Context) (err error) {
			claimed, err = s.Claim(ctx, store.ClaimParams{Now: epoch.Add(time.Hour), Lease: time.Millisecond,
				Quotas: []store.Quota{{Lane: job.DefaultLane, Limit: 50}}})
			return err
		}},
		{"settle", false, func(ctx context.Context) error {
			var settlements []store.Settlement
			for _, o := range claimed.Occurrences {
				settlements = append(settlements, store.Settlement{ID: o.ID, Token: o.Token, Outcome: store.Release, DueAt: epoch})
			}
			return s.Settle(ctx, settlements)
		}},
	} {
		took := duration(t, c.do)
		for i := range rounds {
			ctx, cancel := context.WithCancel(t.Context())
			var group sync.WaitGroup
			group.Go(func() {
				for end := time.Now().Add(took * time.Duration(i*3) / time.Duration(rounds*2)); time.Now().Before(end); { // a timer is too coarse
				}
				cancel()
			})
			err := c.do(ctx)
			group.Wait()
			if err == nil || errors.Is(err, store.ErrNotFound) {
				continue
			}
			if want := map[bool]error{true: store.ErrNotDone, false: store.ErrUnavailable}[c.mutate]; !errors.Is(err, want) {
				t.Errorf("%s answers %v", c.name, err)
				break
			}
		}
	}
}

// duration returns the median duration of several calls.
func duration(t *testing.T, do func(ctx context.Context) error) time.Duration {
	t.Helper()
	var all []time.Duration
	for range 9 {
		began := time.Now()
		if err := do(t.Context()); err != nil && !errors.Is(err, store.ErrNotFound) {
			t.Fatal(err)
		}
		all = append(all, time.Since(began))
	}
	slices.Sort(all)
	return all[len(all)/2]
}
