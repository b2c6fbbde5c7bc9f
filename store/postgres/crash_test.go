//go:build services

package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// TestAnsweredIsDurable: an acknowledged put survives a crash, even if the server is configured not to wait for its
// disk.
func TestAnsweredIsDurable(t *testing.T) {
	sc := newSchema(t, serverURL)
	configure := func(settings ...string) {
		t.Helper()
		for _, setting := range settings {
			run(t, sc.admin, "ALTER SYSTEM "+setting)
		}
		run(t, sc.admin, "SELECT pg_reload_conf()")
	}
	t.Cleanup(func() { configure("RESET synchronous_commit", "RESET wal_writer_delay") })
	configure("SET synchronous_commit = off", "SET wal_writer_delay = '10s'")
	t.Cleanup(func() { control(t, "start") })
	s := sc.open()
	mustPut(t, s, newPut("first", 0), newPut("second", 0, time.Hour))
	claim := mustClaim(t, s, epoch, 1)
	if err := s.Settle(t.Context(), acks(claim.Occurrences)); err != nil {
		t.Fatal(err)
	}
	control(t, "kill")
	control(t, "start")
	eventually(t, "read", func(ctx context.Context) error { _, err := store.ReadJob(ctx, s, name("second")); return err })
	if got := mustClaim(t, s, epoch.Add(2*time.Hour), 10).Occurrences; len(got) != 2 {
		t.Errorf("%d occurrences are left after the crash, want 2", len(got))
	}
}

// TestCrashUnderLoad: the server crashes and restarts while jobs are put, claimed and settled. Nothing acknowledged is
// undone: each acknowledged job is claimed, by one claim at a time, and an acknowledged delivery is never claimed
// again.
func TestCrashUnderLoad(t *testing.T) {
	const workers, batch = 3, 20
	sc := newSchema(t, serverURL)
	s := sc.open()
	t.Cleanup(func() { control(t, "start") })

	var mu sync.Mutex
	put, claims, acked := map[job.ID]bool{}, map[job.ID]int{}, map[job.ID]bool{}
	stop := make(chan struct{})
	loop := func(f func(ctx context.Context, round int) error) {
		for round := 0; ; round++ {
			select {
			case <-stop:
				return
			default:
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			if err := f(ctx, round); err != nil && !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("%v", err)
			}
			cancel()
		}
	}
	// claimed records a claim. It returns the claim's settlements, and a function to call once they are acknowledged.
	claimed := func(occurrences []store.Claimed) func() {
		mu.Lock()
		defer mu.Unlock()
		for _, c := range occurrences {
			if acked[c.ID] {
				t.Errorf("%s was claimed after it was acknowledged", c.ID)
			}
			claims[c.ID]++
		}
		return func() {
			mu.Lock()
			defer mu.Unlock()
			for _, c := range occurrences {
				acked[c.ID] = true
			}
		}
	}
	var group sync.WaitGroup
	for w := range workers {
		group.Go(func() {
			loop(func(ctx context.Context, round int) error {
				var puts []store.Put
				for i := range batch {
					puts = append(puts, newPut(fmt.Sprintf("k-%d-%d-%d", w, round, i), 0))
				}
				var err error
				for i, result := range s.Put(ctx, puts) {
					if err = result.Err; err == nil {
						mu.Lock()
						put[puts[i].Occurrences[0].ID] = true
						mu.Unlock()
					}
				}
				return err
			})
		})
		group.Go(func() {
			loop(func(ctx context.Context, _ int) error {
				claim, err := s.Claim(ctx, store.ClaimParams{Now: epoch, Lease: lease, Quotas: []store.Quota{{Lane: job.DefaultLane, Limit: batch}}})
				if err != nil {
					return err
				}
				settled := claimed(claim.Occurrences)
				if err := s.Settle(ctx, acks(claim.Occurrences)); err != nil {
					return err
				}
				settled()
				return nil
			})
		})
	}
	settledMore := func(n int) {
		t.Helper()
		mu.Lock()
		goal := len(acked) + n
		mu.Unlock()
		for deadline := time.Now().Add(5 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
			mu.Lock()
			reached := len(acked) >= goal
			mu.Unlock()
			if reached {
				return
			}
			if time.Now().After(deadline) {
				t.Error("nothing more is delivered")
				return
			}
		}
	}
	for _, action := range []string{"kill", "restart", "kill"} {
		settledMore(10 * batch)
		control(t, action)
		control(t, "start")
	}
	settledMore(10 * batch)
	close(stop)
	group.Wait()

	for id, n := range claims {
		if n != 1 {
			t.Errorf("%s was claimed %d times within one lease", id, n)
		}
	}
	// An occurrence whose settlement or claim was never acknowledged is claimed after its lease has ended.
	seen := maps.Clone(claims)
	clear(claims)
	for now := epoch.Add(lease); ; {
		claim := mustClaim(t, s, now, 500)
		settled := claimed(claim.Occurrences)
		if err := s.Settle(t.Context(), acks(claim.Occurrences)); err != nil {
			t.Fatal(err)
		}
		settled()
		if !claim.More() {
			break
		}
	}
	for id := range put {
		if seen[id]+claims[id] == 0 {
			t.Errorf("%s was put and is lost", id)
		}
	}
}
