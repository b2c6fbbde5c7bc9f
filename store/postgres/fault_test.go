//go:build services

package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// control runs an action on the server: stop, start, restart or kill.
func control(t testing.TB, action string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	if out, err := exec.CommandContext(ctx, environment(t, "CARILLON_TEST_POSTGRES_CTL"), action).CombinedOutput(); err != nil {
		t.Fatalf("%s the server: %v\n%s", action, err, out)
	}
}

// eventually calls f until it succeeds; each error before that must be transient.
func eventually(t *testing.T, what string, f func(ctx context.Context) error) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		err := f(ctx)
		cancel()
		if err == nil {
			return
		}
		if !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s: %v", what, err)
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("%s: still %v", what, err)
			return
		}
	}
}

// TestServerAway: while the server is stopped every call returns ErrUnavailable, and after its restart the calls
// succeed.
func TestServerAway(t *testing.T) {
	for _, server := range []string{serverURL, pgbouncerURL} {
		t.Run(server, func(t *testing.T) {
			s := newSchema(t, server).open()
			mustPut(t, s, newPut("k", 0, time.Second, time.Hour))
			held := mustClaim(t, s, epoch, 10).Occurrences
			t.Cleanup(func() { control(t, "start") })
			control(t, "stop")
			for _, call := range calls(s, held) {
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
				if err := call.do(ctx); !errors.Is(err, store.ErrUnavailable) {
					t.Errorf("%s without the server: %v", call.name, err)
				}
				cancel()
			}
			control(t, "start")
			for _, call := range calls(s, held) {
				eventually(t, call.name, call.do)
			}
		})
	}
}

// TestConnectionsLost: the loss of all idle connections at once costs one call at most.
func TestConnectionsLost(t *testing.T) {
	sc := newSchema(t, serverURL)
	sc.url = with(t, sc.url, "application_name", sc.name)
	s := sc.open()
	var group sync.WaitGroup
	for i := range 5 { // so that there are some connections
		group.Go(func() {
			for range 20 {
				mustPut(t, s, newPut(fmt.Sprint(i), 0))
			}
		})
	}
	group.Wait()
	if n := query[int](sc, "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = $1", sc.name); n < 2 {
		t.Fatalf("%d connections were ended, want several", n)
	}
	if err := s.Put(t.Context(), []store.Put{newPut("k", 0)})[0].Err; err != nil && !errors.Is(err, store.ErrUnavailable) {
		t.Error(err)
	}
	for range 20 {
		mustPut(t, s, newPut("k", 0))
	}
}

// TestServerVanishes: the server's machine vanishes, and another one gets its address. The old connections are silent.
// That costs a call its time limit at most once, not once for each connection; idle connections cost nothing.
func TestServerVanishes(t *testing.T) {
	const conns = 20
	for _, c := range []struct {
		name  string
		idle  time.Duration
		first time.Duration // time limit of the first call, which may fail
	}{
		{"busy", 0, time.Second},
		{"idle", 1500 * time.Millisecond, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			sc := newSchema(t, serverURL)
			r := newRelay(t, sc.url)
			sc.url = with(t, with(t, r.url, "application_name", sc.name), "pool_min_conns", fmt.Sprint(conns))
			sc.url = with(t, sc.url, "pool_max_conns", fmt.Sprint(conns))
			s := sc.open()
			for query[int](sc, "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1", sc.name) < conns {
				if t.Context().Err() != nil {
					t.Fatal("there are not as many connections as there should be")
				}
				time.Sleep(pause)
			}
			time.Sleep(c.idle)
			if c.first > 0 {
				var group sync.WaitGroup
				for range 4 * conns { // so that none is idle for long
					group.Go(func() { mustClaim(t, s, epoch, 1) })
				}
				group.Wait()
			}
			r.silence()
			defer r.redirect(t, environment(t, serverURL)) // ends the connections, so that closing the store does not wait
			if c.first > 0 {
				ctx, cancel := context.WithTimeout(t.Context(), c.first)
				if _, err := s.DueLanes(ctx, store.DueParams{Until: epoch, Limit: 1}); !errors.Is(err, store.ErrUnavailable) {
					t.Errorf("a server that is gone answers %v", err)
				}
				cancel()
			}
			ctx, cancel := context.WithTimeout(t.Context(), (conns-2)*time.Second) // less than one for each connection would take
			defer cancel()
			if _, err := s.DueLanes(ctx, store.DueParams{Until: epoch, Limit: 1}); err != nil {
				t.Errorf("the new server is not reached: %v", err)
			}
		})
	}
}

// TestPoolerComesLater: an operator may put a pooler between the store and the server, and remove it again.
func TestPoolerComesLater(t *testing.T) {
	sc := newSchema(t, serverURL)
	r := newRelay(t, sc.url)
	sc.url = r.url
	s := sc.open()
	for _, server := range []string{serverURL, pgbouncerURL, serverURL} {
		r.redirect(t, environment(t, server))
		eventually(t, "put", func(ctx context.Context) error { return s.Put(ctx, []store.Put{newPut("k", 0)})[0].Err })
		var group sync.WaitGroup
		for w := range 4 { // so that the pooler's connections are shared
			group.Go(func() {
				for range 20 {
					mustPut(t, s, newPut(fmt.Sprint("k", w), 0))
					mustClaim(t, s, epoch, 5)
				}
			})
		}
		group.Wait()
	}
}

// TestPutGivesUp: a put whose context ended while it waited does not take effect later.
func TestPutGivesUp(t *testing.T) {
	for _, c := range []struct {
		server string
		end    func(ctx context.Context) (context.Context, context.CancelFunc)
	}{
		{serverURL, soonOver},
		{serverURL, soonCancelled},
		{pgbouncerURL, soonOver},
		{pgbouncerURL, soonCancelled},
	} {
		t.Run(c.server, func(t *testing.T) {
			sc := newSchema(t, c.server)
			s := sc.open()
			first := newPut("k", time.Hour)
			mustPut(t, s, first)
			tx, err := sc.admin.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(t.Context(), "SELECT FROM "+sc.table("jobs")+" FOR UPDATE"); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := c.end(t.Context())
			defer cancel()
			if err := s.Put(ctx, []store.Put{newPut("k", 0)})[0].Err; !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("put answers %v", err)
			}
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			third := newPut("other", time.Hour)
			mustPut(t, s, third)
			status, err := store.ReadJob(t.Context(), s, name("k"))
			if err != nil || status.Revision != first.Job.Revision {
				t.Errorf("the job has revision %q, want that of the first put, %q; %v", status.Revision, first.Job.Revision, err)
			}
			if n := query[int](sc, "SELECT count(*) FROM "+sc.table("occurrences")); n != 2 {
				t.Errorf("%d occurrences are there, want 2", n)
			}
		})
	}
}

// TestTransactionTimeout: a time limit set by the server itself, as later versions support, is a transient fault.
func TestTransactionTimeout(t *testing.T) {
	sc := newSchema(t, serverURL)
	r := newRelay(t, sc.url)
	sc.url = r.url
	s := sc.open()
	mustPut(t, s, newPut("k", time.Hour))
	tx, err := sc.admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "SELECT FROM "+sc.table("jobs")+" FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	r.rewrite("C57014", "C25P04")                                         // the code of the other time limit, which every version has
	for within, told := 300*time.Millisecond, false; !told; within *= 2 { // until the server answers in time
		ctx, cancel := context.WithTimeout(t.Context(), within)
		err = s.Put(ctx, []store.Put{newPut("k", 0)})[0].Err
		cancel()
		if !errors.Is(err, store.ErrUnavailable) || within > time.Minute {
			t.Fatalf("put answers %v", err)
		}
		told = strings.Contains(err.Error(), "25P04")
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func soonOver(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, 300*time.Millisecond)
}

func soonCancelled(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	time.AfterFunc(300*time.Millisecond, cancel)
	return ctx, cancel
}

type call struct {
	name string
	do   func(ctx context.Context) error
}

// calls has one call of each method that asks the server.
func calls(s store.Store, held []store.Claimed) []call {
	n := name("k")
	return []call{
		{"put", func(ctx context.Context) error { return s.Put(ctx, []store.Put{newPut("new", time.Hour)})[0].Err }},
		{"now", func(ctx context.Context) error { _, err := s.Now(ctx); return err }},
		{"next due", func(ctx context.Context) error {
			_, err := s.DueLanes(ctx, store.DueParams{Until: epoch, Limit: 1})
			return err
		}},
		{"job", func(ctx context.Context) error { _, err := store.ReadJob(ctx, s, n); return err }},
		{"jobs", func(ctx context.Context) error {
			_, err := s.Jobs(ctx, store.JobFilter{Tenant: n.Tenant, Limit: 1})
			return err
		}},
		{"occurrences", func(ctx context.Context) error {
			_, _, err := s.Occurrences(ctx, store.OccurrenceFilter{Name: n, Limit: 1})
			return err
		}},
		{"pause", func(ctx context.Context) error { return s.Pause(ctx, n, job.NewRevision(epoch), epoch) }},
		{"resume", func(ctx context.Context) error { return s.Resume(ctx, n, job.NewRevision(epoch), epoch) }},
		{"claim", func(ctx context.Context) error {
			_, err := s.Claim(ctx, store.ClaimParams{Now: epoch, Lease: lease, Quotas: []store.Quota{{Lane: job.DefaultLane, Limit: 1}}})
			return err
		}},
		{"claim jobs", func(ctx context.Context) error {
			_, err := s.ClaimJobs(ctx, store.ClaimJobsParams{Now: epoch, Lease: lease, Limit: 1})
			return err
		}},
		{"settle", func(ctx context.Context) error { return s.Settle(ctx, acks(held)) }},
		{"sweep", func(ctx context.Context) error {
			_, err := s.Sweep(ctx, store.SweepParams{Now: epoch, Again: time.Hour, Limit: 1})
			return err
		}},
		{"cancel", func(ctx context.Context) error {
			_, err := s.Cancel(ctx, []job.Name{n}, store.Asked{Now: epoch})
			return err
		}},
	}
}

// TestReadOnly: a server that takes no writes is unavailable. Connections to it are given up, so that the next ones may
// reach a server that does.
func TestReadOnly(t *testing.T) {
	sc := newSchema(t, serverURL)
	s := sc.open()
	mustPut(t, s, newPut("k", 0))
	put := func(ctx context.Context) error { return s.Put(ctx, []store.Put{newPut("k", 0)})[0].Err }
	readOnly := func(setting string) {
		t.Helper()
		run(t, sc.admin, "ALTER SYSTEM "+setting)
		run(t, sc.admin, "SELECT pg_reload_conf()")
	}
	t.Cleanup(func() { readOnly("RESET default_transaction_read_only") })
	readOnly("SET default_transaction_read_only = on")
	var err error
	for deadline := time.Now().Add(5 * time.Minute); err == nil && time.Now().Before(deadline); { // until the store notices
		err = put(t.Context())
	}
	for range 5 {
		if !errors.Is(err, store.ErrUnavailable) {
			t.Fatalf("put on a read-only server: %v", err)
		}
		err = put(t.Context())
	}
	if !strings.Contains(fmt.Sprint(err), "read only") && !strings.Contains(fmt.Sprint(err), "read-only") {
		t.Errorf("the error does not say why: %v", err)
	}
	if _, err := sc.opener()(); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("open on a read-only server: %v", err)
	}
	readOnly("RESET default_transaction_read_only")
	eventually(t, "put", put)
}
