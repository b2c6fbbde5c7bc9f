//go:build services

package postgres_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/postgres"
)

// TestCancelMeetsClaims: while others claim, a cancel or a replacement counts exactly the occurrences that they got up
// to that moment, and they get no more.
func TestCancelMeetsClaims(t *testing.T) {
	const jobs, each, claimers = 12, 15, 3
	for _, what := range []string{"cancel", "replace"} {
		t.Run(what, func(t *testing.T) {
			sc := newSchema(t, serverURL)
			s, other := sc.open(), sc.open()
			var puts []store.Put
			for i := range jobs {
				var after []time.Duration
				for k := range each { // they alternate in the order of claims
					after = append(after, time.Duration(k*jobs+i)*time.Millisecond)
				}
				puts = append(puts, newPut(fmt.Sprint("k", i), after...))
			}
			mustPut(t, s, puts...)
			now := epoch.Add(time.Minute)

			claimed := make([]map[job.Revision]int, claimers)
			var group sync.WaitGroup
			for i := range claimers {
				claimed[i] = map[job.Revision]int{}
				group.Go(func() {
					for more := true; more; {
						claim, err := other.Claim(t.Context(), store.ClaimParams{Now: now, Lease: lease, Quotas: []store.Quota{{Lane: job.DefaultLane, Limit: 3}}})
						if err != nil {
							t.Errorf("claim: %v", err)
							return
						}
						for _, c := range claim.Occurrences {
							claimed[i][c.Revision]++
						}
						more = claim.More()
					}
				})
			}
			held, gone := map[job.Revision]int{}, map[job.Revision]int{}
			for _, i := range rand.Perm(jobs) {
				revision := puts[i].Job.Revision
				if what == "replace" {
					p := newPut(puts[i].Job.Key, time.Hour)
					p.Now = now
					result := s.Put(t.Context(), []store.Put{p})[0]
					if result.Err != nil || result.Replaced != revision {
						t.Errorf("replaced %q: %v", result.Replaced, result.Err)
					}
					held[revision], gone[revision] = result.InFlight, each-result.InFlight
					continue
				}
				results, err := s.Cancel(t.Context(), []job.Name{puts[i].Job.Name}, store.Asked{Now: now})
				if err != nil {
					t.Fatal(err)
				}
				held[revision], gone[revision] = results[0].InFlight, results[0].Cancelled
			}
			group.Wait()
			for _, p := range puts {
				got := 0
				for i := range claimers {
					got += claimed[i][p.Job.Revision]
				}
				if r := p.Job.Revision; got != held[r] || held[r]+gone[r] != each {
					t.Errorf("of %d, %d were claimed; in flight are said to be %d, cancelled %d", each, got, held[r], gone[r])
				}
			}
		})
	}
}

// TestNobodyWaitsInACircle: calls that concurrently write the same rows, in any order, all succeed without a deadlock
// that the server has to break.
func TestNobodyWaitsInACircle(t *testing.T) {
	const jobs, each, rounds = 8, 6, 12
	sc := newSchema(t, serverURL)
	run(t, sc.admin, "CREATE DATABASE "+sc.name)
	t.Cleanup(func() { run(t, sc.admin, "DROP DATABASE "+sc.name) })
	sc.url = strings.Replace(sc.url, "/carillon?", "/"+sc.name+"?", 1)
	var handles []*postgres.Store
	for range 2 {
		s, err := postgres.Open(t.Context(), sc.url)
		if err != nil {
			t.Fatal(err)
		}
		handles = append(handles, s)
	}
	submission := func() (puts []store.Put) {
		for _, i := range rand.Perm(jobs) {
			var after []time.Duration
			for range each {
				after = append(after, time.Duration(rand.IntN(1000))*time.Millisecond)
			}
			puts = append(puts, newPut(fmt.Sprint("k", i), after...))
		}
		return puts
	}
	var names []job.Name
	for i := range jobs {
		names = append(names, name(fmt.Sprint("k", i)))
	}
	var group sync.WaitGroup
	repeat := func(what string, f func(s *postgres.Store) error) {
		for _, s := range handles {
			group.Go(func() {
				for range rounds {
					if err := f(s); err != nil {
						t.Errorf("%s: %v", what, err)
						return
					}
				}
			})
		}
	}
	now := epoch.Add(time.Minute)
	repeat("put", func(s *postgres.Store) error {
		for _, result := range s.Put(t.Context(), submission()) {
			if result.Err != nil {
				return result.Err
			}
		}
		return nil
	})
	repeat("cancel", func(s *postgres.Store) error {
		shuffled := make([]job.Name, 0, jobs)
		for _, i := range rand.Perm(jobs) {
			shuffled = append(shuffled, names[i])
		}
		_, err := s.Cancel(t.Context(), shuffled[:jobs/2], store.Asked{Now: now})
		return err
	})
	repeat("claim and settle", func(s *postgres.Store) error {
		claim, err := s.Claim(t.Context(), store.ClaimParams{Now: now, Lease: lease, Quotas: []store.Quota{{Lane: job.DefaultLane, Limit: jobs * each}}})
		if err != nil {
			return err
		}
		var settlements []store.Settlement
		for i, c := range claim.Occurrences {
			settlements = append(settlements, store.Settlement{
				ID: c.ID, Token: c.Token, Outcome: []store.Outcome{store.Ack, store.Retry, store.Miss, store.Bury, store.Release}[i%5],
				DueAt: now, At: now, Target: c.Target, Name: c.Name, Revision: c.Revision, KeepUntil: now.Add(time.Duration(rand.IntN(1e6)) * time.Hour / 1e3),
			})
		}
		rand.Shuffle(len(settlements), func(i, k int) { settlements[i], settlements[k] = settlements[k], settlements[i] })
		return s.Settle(t.Context(), settlements)
	})
	repeat("pause and resume", func(s *postgres.Store) error {
		n := names[rand.IntN(jobs)]
		for _, change := range []func() error{
			func() error { return s.Pause(t.Context(), n, job.NewRevision(now), now) },
			func() error { return s.Resume(t.Context(), n, job.NewRevision(now), now) },
		} {
			if err := change(); err != nil && err != store.ErrNotFound { //nolint:errorlint // it is returned unwrapped
				return err
			}
		}
		return nil
	})
	repeat("sweep", func(s *postgres.Store) error {
		_, err := s.Sweep(t.Context(), store.SweepParams{Now: epoch.Add(48 * time.Hour), Again: time.Hour, FailedBefore: now, Limit: 5})
		return err
	})
	group.Wait()
	// Each remaining occurrence has its job; otherwise a claim would report more.
	if claim := mustClaim(t, handles[0], now.Add(24*time.Hour), 1000); claim.More() {
		t.Error("something is left that can't be claimed")
	}
	for _, s := range handles {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	sc.awaitGone("datname", sc.name)
	if n := query[int](sc, "SELECT deadlocks FROM pg_stat_database WHERE datname = $1", sc.name); n != 0 {
		t.Errorf("the server had to break %d circles", n)
	}
}

// TestCancelMeetsNewJob: a job is put and triggered during a cancellation of its name, after the cancellation has found
// no job. The cancellation then comes before both, and deletes neither.
func TestCancelMeetsNewJob(t *testing.T) {
	sc := newSchema(t, serverURL)
	s := sc.open()
	mustPut(t, s, newPut("a", time.Hour))
	tx, err := sc.admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "SELECT FROM "+sc.table("jobs")+" FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	var results []store.CancelResult
	var cancelErr error
	var group sync.WaitGroup
	group.Go(func() {
		results, cancelErr = s.Cancel(t.Context(), []job.Name{name("a"), name("b")}, store.Asked{Now: epoch})
	})
	sc.awaitWaiting() // for a; b did not exist when it began
	group.Go(func() {
		mustPut(t, s, newPut("b", time.Hour))
		own := job.Target{Callback: job.Callback{Type: "http", Data: []byte("{}")}}
		if err := s.Trigger(t.Context(), job.Occurrence{ID: job.ID{1}, Name: name("b"), Timestamp: epoch, DueAt: epoch, Own: &own}); err != nil {
			t.Error(err)
		}
	})
	if err := tx.Commit(t.Context()); err != nil {
		t.Error(err)
	}
	group.Wait()
	if cancelErr != nil || !results[0].Found || results[0].Cancelled != 1 {
		t.Fatalf("cancel answers %+v, %v", results, cancelErr)
	}
	status, err := store.ReadJob(t.Context(), s, name("b"))
	if err != nil && err != store.ErrNotFound { //nolint:errorlint // it is returned unwrapped
		t.Fatal(err)
	}
	_, left, listErr := s.Occurrences(t.Context(), store.OccurrenceFilter{Name: name("b"), Revision: status.Revision, Limit: 1, Count: true})
	if listErr != nil {
		t.Fatal(listErr)
	}
	if results[1] != (store.CancelResult{}) || err != nil || left != 2 {
		t.Errorf("cancel answers %+v; the job: %v, and %d occurrences are left", results[1], err, left)
	}
}

// TestSuccessor: a job is cancelled and put again while another call waits for it. That call then either applies to the
// new job and succeeds, or does not find it and leaves it unchanged.
func TestSuccessor(t *testing.T) {
	for what, call := range map[string]func(s *postgres.Store) error{
		"pause": func(s *postgres.Store) error { return s.Pause(t.Context(), name("k"), job.NewRevision(epoch), epoch) },
		"trigger": func(s *postgres.Store) error {
			own := job.Target{Callback: job.Callback{Type: "http", Data: []byte("{}")}}
			return s.Trigger(t.Context(), job.Occurrence{ID: job.ID{1}, Name: name("k"), Timestamp: epoch, DueAt: epoch, Own: &own})
		},
	} {
		t.Run(what, func(t *testing.T) {
			sc := newSchema(t, serverURL)
			s := sc.open()
			mustPut(t, s, newPut("k", time.Hour))
			tx, err := sc.admin.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			jobs := sc.table("jobs")
			for _, statement := range []string{
				"CREATE TEMPORARY TABLE successor ON COMMIT DROP AS SELECT * FROM " + jobs,
				"DELETE FROM " + jobs,
				"INSERT INTO " + jobs + " SELECT * FROM successor",
			} {
				if _, err := tx.Exec(t.Context(), statement); err != nil {
					t.Fatal(err)
				}
			}
			var group sync.WaitGroup
			var callErr error
			group.Go(func() { callErr = call(s) })
			sc.awaitWaiting()
			if err := tx.Commit(t.Context()); err != nil {
				t.Error(err)
			}
			group.Wait()
			if callErr != nil && callErr != store.ErrNotFound { //nolint:errorlint // it is returned unwrapped
				t.Fatal(callErr)
			}
			status, err := store.ReadJob(t.Context(), s, name("k"))
			if err != nil {
				t.Fatal(err)
			}
			_, total, err := s.Occurrences(t.Context(), store.OccurrenceFilter{Name: name("k"), Limit: 1, Count: true})
			if err != nil {
				t.Fatal(err)
			}
			if done := !status.PausedAt.IsZero() || total > 0; done != (callErr == nil) {
				t.Errorf("it is done: %v, answered: %v", done, callErr)
			}
		})
	}
}

// awaitWaiting waits until one of the store's statements waits for a lock.
func (s schema) awaitWaiting() {
	s.Helper()
	for query[int](s, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE $1", "%"+s.name+"%") == 0 {
		if s.Context().Err() != nil {
			s.Fatal("nobody waits")
		}
		time.Sleep(pause)
	}
}

// TestCircleIsBroken: a transaction that the server ends because of a deadlock is repeated.
func TestCircleIsBroken(t *testing.T) {
	sc := newSchema(t, serverURL)
	s := sc.open()
	lock := "SELECT FROM " + sc.table("jobs") + " WHERE key = '%s' FOR UPDATE"
	for end := time.Now().Add(5 * time.Minute); ; {
		mustPut(t, s, newPut("a", 0), newPut("b", 0))
		tx, err := sc.admin.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, statement := range []string{
			"SET LOCAL deadlock_timeout = '1min'", "SET LOCAL lock_timeout = '10s'", // the store detects it first
			fmt.Sprintf(lock, "b"),
		} {
			if _, err := tx.Exec(t.Context(), statement); err != nil {
				t.Fatal(err)
			}
		}
		var results []store.CancelResult
		var group sync.WaitGroup
		group.Go(func() {
			results, err = s.Cancel(t.Context(), []job.Name{name("a"), name("b")}, store.Asked{Now: epoch})
		})
		sc.awaitWaiting()
		_, lockErr := tx.Exec(t.Context(), fmt.Sprintf(lock, "a"))
		if endErr := tx.Rollback(t.Context()); lockErr == nil {
			lockErr = endErr
		}
		group.Wait()
		if err != nil || !results[0].Found || !results[1].Found {
			t.Fatalf("cancel answers %+v, %v; the other %v", results, err, lockErr)
		}
		if lockErr == nil { // the store's transaction had the lock, and was ended
			return
		}
		// A transaction looks for a deadlock once, a second after it began to wait. On a busy machine there was none yet.
		if time.Now().After(end) {
			t.Fatalf("the server ended no transaction of the store: %v", lockErr)
		}
	}
}

// TestOddTexts: texts that no column can hold are kept as well as possible, and a search for them finds nothing.
func TestOddTexts(t *testing.T) {
	s := newSchema(t, serverURL).open()
	mustPut(t, s, newPut("k", 0))
	c := mustClaim(t, s, epoch, 1).Occurrences[0]
	err := s.Settle(t.Context(), []store.Settlement{{
		ID: c.ID, Token: c.Token, Outcome: store.Bury, At: epoch, Error: "a\x00b\xffc", Target: c.Target, Name: c.Name, Revision: c.Revision,
	}})
	if err != nil {
		t.Fatal(err)
	}
	dead, err := s.DeadLetters(t.Context(), store.DeadLetterFilter{Tenant: job.DefaultTenant, Limit: 10})
	if err != nil || len(dead) != 1 || dead[0].LastError != "a\uFFFDb\uFFFDc" {
		t.Errorf("dead letters are %+v, %v", dead, err)
	}
	for _, odd := range []string{"a\x00b", "\xff", "k\x00"} {
		if _, err := store.ReadJob(t.Context(), s, name(odd)); err != store.ErrNotFound { //nolint:errorlint // it is returned unwrapped
			t.Errorf("job %q: %v", odd, err)
		}
		if err := s.Pause(t.Context(), name(odd), job.NewRevision(epoch), epoch); err != store.ErrNotFound { //nolint:errorlint // as above
			t.Errorf("pause %q: %v", odd, err)
		}
		if results, err := s.Cancel(t.Context(), []job.Name{name(odd)}, store.Asked{Now: epoch}); err != nil || results[0].Found {
			t.Errorf("cancel %q: %+v, %v", odd, results, err)
		}
		if page, err := s.Jobs(t.Context(), store.JobFilter{Tenant: job.DefaultTenant, Prefix: odd, Limit: 10}); err != nil || len(page) != 0 {
			t.Errorf("jobs with prefix %q: %d, %v", odd, len(page), err)
		}
		if page, err := s.Jobs(t.Context(), store.JobFilter{Tenant: job.DefaultTenant, After: odd, Limit: 10}); err != nil {
			t.Errorf("jobs after %q: %d, %v", odd, len(page), err)
		}
	}
	last := strings.Repeat("\U0010FFFF", 63)
	mustPut(t, s, newPut(last, time.Hour))
	if page, err := s.Jobs(t.Context(), store.JobFilter{Tenant: job.DefaultTenant, Prefix: last[:8], Limit: 10}); err != nil || len(page) != 1 {
		t.Errorf("jobs with the last prefix: %d, %v", len(page), err)
	}
}
