//go:build services

package postgres_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// TestCancelWaitsForPut: a cancellation does not return ErrNotFound while a job of that name is being put. Otherwise a
// job submitted before would appear after that answer.
func TestCancelWaitsForPut(t *testing.T) {
	for _, server := range []string{serverURL, pgbouncerURL} {
		for _, end := range []string{"COMMIT", "ROLLBACK"} {
			t.Run(server+" "+end, func(t *testing.T) {
				sc := newSchema(t, server)
				s := sc.open()
				mustPut(t, s, newPut("like it", time.Hour))
				put, err := sc.admin.Acquire(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer put.Release()
				do := func(sql string) {
					t.Helper()
					if _, err := put.Exec(t.Context(), sql); err != nil {
						t.Fatal(err)
					}
				}
				jobs := sc.table("jobs")
				do("BEGIN")
				do("INSERT INTO " + jobs + ` (tenant, key, revision, version, created_at, updated_at, expires_at, missed, callback_type,
					callback_data, schedule) SELECT tenant, 'in flight', gen_random_uuid(), version, created_at, updated_at, expires_at, missed,
					callback_type, callback_data, schedule FROM ` + jobs)
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				answers := make(chan store.CancelResult, 1)
				go func() {
					results, err := s.Cancel(ctx, []job.Name{name("in flight")}, store.Asked{Now: epoch})
					if err != nil {
						t.Errorf("cancel: %v", err)
						results = make([]store.CancelResult, 1)
					}
					answers <- results[0]
				}()
				waits := func() bool {
					return query[int](sc, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND strpos(query, $1) > 0", sc.name) > 0
				}
				for !waits() && ctx.Err() == nil {
					select {
					case got := <-answers:
						t.Fatalf("cancel answers %+v while the job is being put", got)
					default:
					}
				}
				do(end)
				if got := <-answers; got.Found != (end == "COMMIT") {
					t.Errorf("cancel answers %+v after %s", got, end)
				}
				if n := query[int](sc, "SELECT count(*) FROM "+jobs); n != 1 {
					t.Errorf("there are %d jobs, want the other one", n)
				}
			})
		}
	}
}

// TestClockHardlyKnown: an imprecise reading of the server's clock, from a late answer, causes no refusal of a change
// that is in time.
func TestClockHardlyKnown(t *testing.T) {
	sc := newSchema(t, serverURL)
	sc.open() // makes the tables
	r := newRelay(t, sc.url)
	r.slow(500 * time.Millisecond)
	sc.url = with(t, r.url, "pool_max_conns", "1")
	s := sc.open()
	r.slow(0)
	for _, within := range []time.Duration{400 * time.Millisecond, store.Within} {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		err := s.Put(ctx, []store.Put{newPut("k", time.Hour)})[0].Err
		tooBusy := within < store.Within && errors.Is(err, context.DeadlineExceeded) // the machine was, in the first time
		if err != nil && !tooBusy {
			t.Errorf("put within %s: %v", within, err)
		}
		cancel()
	}
}
