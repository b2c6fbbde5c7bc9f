//go:build services

package redis_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// TestBounded: a job with very many occurrences is put, replaced and cancelled by many short scripts.
func TestBounded(t *testing.T) {
	const n, most = 5000, 1000
	server := newServer(t)
	s := open(t, server.url)
	count := func(what string, f func()) {
		t.Helper()
		before := server.scripts()
		f()
		if ran := server.scripts() - before; ran < n/most {
			t.Errorf("%s of %d occurrences took %d scripts", what, n, ran)
		}
	}
	first, second := put("k", n), put("k", n)
	count("a put", func() { mustPut(t, s, first) })
	held := claim(t, s, epoch.Add(time.Hour), 1300)
	if len(held.Occurrences) != most || !held.More() {
		t.Errorf("claimed %d at once", len(held.Occurrences))
	}
	count("a replacement", func() {
		second.Now = epoch.Add(time.Hour)
		r := mustPut(t, s, second)[0]
		if r.Replaced != first.Job.Revision || r.InFlight != most {
			t.Errorf("the replacement answers %+v", r)
		}
	})
	if err := s.Settle(t.Context(), acks(held.Occurrences)); err != nil {
		t.Fatal(err)
	}
	_, total, err := s.Occurrences(t.Context(), store.OccurrenceFilter{Name: second.Job.Name, Revision: second.Job.Revision, Limit: 1, Count: true})
	if err != nil || total != n {
		t.Errorf("%d are pending after the replacement, %v", total, err)
	}
	refused := put("k", n)
	refused.If = store.Condition{Absent: true}
	if r := s.Put(t.Context(), []store.Put{refused})[0]; !errors.Is(r.Err, store.ErrPrecondition) {
		t.Errorf("repeating a put returned %v", r.Err)
	}
	name := second.Job.Name
	if err := s.Pause(t.Context(), name, job.NewRevision(epoch), epoch); err != nil {
		t.Fatal(err)
	}
	now := epoch.Add(2 * time.Hour)
	for range 3 * n / most { // all are put back with a much later due time
		claim(t, s, now, most)
	}
	count("a resumption", func() {
		if err := s.Resume(t.Context(), name, job.NewRevision(now), now); err != nil {
			t.Fatal(err)
		}
	})
	if due := server.must("zcount", "carillon:{0}:pending:default", "-inf", now.UnixMilli()); due != int64(n) {
		t.Errorf("%v are due after the resumption", due)
	}
	count("a cancellation", func() {
		results, err := s.Cancel(t.Context(), []job.Name{name}, store.Asked{Now: epoch})
		if want := (store.CancelResult{Found: true, Cancelled: n}); err != nil || results[0] != want {
			t.Errorf("cancel answers %+v, %v", results, err)
		}
	})
	nothingLeft(t, server)
}

// nothingLeft expects that a store without jobs has no keys but its own.
func nothingLeft(t *testing.T, server *server) {
	t.Helper()
	keys, err := server.direct.Keys(t.Context(), "*").Result()
	if err != nil || len(keys) != 1 {
		t.Errorf("left are %v, %v", keys, err)
	}
}

// TestCancelOwn: so are very many standalone occurrences.
func TestCancelOwn(t *testing.T) {
	const n = 2500
	server := newServer(t)
	s := open(t, server.url)
	p := put("k", n)
	mustPut(t, s, p)
	var ids []job.ID
	for len(ids) < n {
		c := claim(t, s, epoch.Add(time.Hour), n)
		settlements := acks(c.Occurrences)
		for i := range settlements {
			settlements[i].Outcome, settlements[i].At, settlements[i].Target = store.Bury, epoch, c.Occurrences[i].Target
			ids = append(ids, settlements[i].ID)
		}
		if err := s.Settle(t.Context(), settlements); err != nil {
			t.Fatal(err)
		}
	}
	if redriven, err := s.SettleDead(t.Context(), store.DeadSettlement{Tenant: job.DefaultTenant, IDs: ids, Outcome: store.Redrive, Now: epoch}); err != nil || redriven != n {
		t.Fatalf("redriven %d, %v", redriven, err)
	}
	results, err := s.Cancel(t.Context(), []job.Name{p.Job.Name}, store.Asked{Now: epoch})
	if want := (store.CancelResult{Found: true, Cancelled: n}); err != nil || results[0] != want {
		t.Errorf("cancel answers %+v, %v", results, err)
	}
	nothingLeft(t, server)
}

// TestOrphans: occurrences of a put that was interrupted before its flip never fire, and are dropped after an hour.
// They do fire if the flip comes after all.
func TestOrphans(t *testing.T) {
	const n = 10
	server := newServer(t)
	s := open(t, server.url)
	p := put("k", n)
	mustPut(t, s, p)
	const jobs, field = "carillon:{0}:jobs", job.DefaultTenant + "\x00k"
	state := server.must("hget", jobs, field)
	sampled := func(what, callback string) {
		t.Helper()
		found, err := s.Sample(t.Context(), job.DefaultLane, epoch, 2*n)
		if err != nil || len(found) != n || found[0].Callback.Type != callback || found[n-1].Callback.Type != callback {
			t.Errorf("sampled of a job that is %s: %+v, %v", what, found, err)
		}
	}
	sampled("there", p.Job.Callback.Type)
	server.must("hset", jobs, field, "another"+strings.TrimPrefix(fmt.Sprint(state), string(p.Job.Revision)))
	sampled("another", "")
	server.must("hdel", jobs, field) // as before the flip
	sampled("gone", "")

	now := epoch.Add(time.Minute)
	c := claim(t, s, now, 2*n)
	if len(c.Occurrences) != 0 || !c.More() {
		t.Errorf("claimed %d orphans, more: %v", len(c.Occurrences), c.More())
	}
	due, err := nextDue(t, s)
	if want, _ := store.PutBack(p.Job.Revision, store.ClaimParams{Now: now}); err != nil || !due.Equal(want) {
		t.Errorf("they are due at %s, want %s, %v", due, want, err)
	}
	server.must("hset", jobs, field, state)
	c = claim(t, s, due, 2*n)
	if len(c.Occurrences) != n || c.Occurrences[0].Attempt != 1 {
		t.Errorf("claimed %d after the flip", len(c.Occurrences))
	}

	server.must("hdel", jobs, field)
	if c = claim(t, s, epoch.Add(2*time.Hour), 2*n); len(c.Occurrences) != 0 {
		t.Errorf("claimed %d orphans", len(c.Occurrences))
	}
	for _, key := range []string{"occurrences", "pending:default", "lanes", "members", "attempts"} {
		if exists := server.must("exists", "carillon:{0}:"+key); exists != int64(0) {
			t.Errorf("old orphans are left in %s", key)
		}
	}
}

// TestBrokenExpansion: an expansion was interrupted before it moved the cursor. Its occurrences do not fire until it is
// repeated, and then once.
func TestBrokenExpansion(t *testing.T) {
	const ticks = 2500
	server := newServer(t)
	s := open(t, server.url)
	expansion := job.Expansion{Horizon: 10 * time.Second, CatchUpLimit: ticks}
	p := recurring(t, "k", expansion)
	mustPut(t, s, p)

	now := p.Job.Cursor.Add(ticks * time.Second)
	first := advanceOf(t, s, now, expansion)
	if len(first.Occurrences) <= 2*1000 {
		t.Fatalf("%d occurrences are one script's work", len(first.Occurrences))
	}
	const jobs, field = "carillon:{0}:jobs", job.DefaultTenant + "\x00k"
	state := server.must("hget", jobs, field)
	before := server.scripts()
	if err := s.Advance(t.Context(), []store.Advance{first}); err != nil {
		t.Fatal(err)
	}
	if ran := server.scripts() - before; ran < 3 {
		t.Errorf("the expansion took %d scripts", ran)
	}
	server.must("hset", jobs, field, state) // as if it had been interrupted
	fired := map[time.Time]int{}
	fire(t, s, now, fired)
	if len(fired) != len(p.Occurrences) {
		t.Errorf("%d occurrences fired before the cursor was moved, want %d", len(fired), len(p.Occurrences))
	}
	server.must("zadd", "carillon:{0}:expansion", now.Add(lease).UnixMilli(), field)
	now = now.Add(lease)
	second := advanceOf(t, s, now, expansion)
	if err := s.Advance(t.Context(), []store.Advance{first, second}); err != nil { // the first one is too late
		t.Fatal(err)
	}
	fire(t, s, now.Add(time.Second), fired)
	for at := p.Occurrences[0].Timestamp; !at.After(now); at = at.Add(time.Second) {
		if fired[at] != 1 {
			t.Errorf("%s fired %d times", job.FormatTime(at), fired[at])
		}
		delete(fired, at)
	}
	if len(fired) > 1 {
		t.Errorf("%d more fired", len(fired))
	}
}

// recurring returns a submission of a job that fires each second, and catches up on all missed instants.
func recurring(t *testing.T, key string, expansion job.Expansion) store.Put {
	t.Helper()
	p := put(key, 0)
	var err error
	if p.Job.Schedule.Crontab, err = job.ParseCrontab("@every 1s"); err != nil {
		t.Fatal(err)
	}
	p.Job.Options.CatchUp = job.CatchUpAll
	beginning, err := p.Job.Begin(epoch, job.PastDefault, expansion)
	if err != nil {
		t.Fatal(err)
	}
	p.Occurrences = beginning.Occurrences
	return p
}

// advanceOf claims the one job that is to be expanded at now, and returns its advance.
func advanceOf(t *testing.T, s store.Store, now time.Time, expansion job.Expansion) store.Advance {
	t.Helper()
	claimed, err := s.ClaimJobs(t.Context(), store.ClaimJobsParams{Now: now, Lease: lease, Limit: 10})
	if err != nil || len(claimed.Jobs) != 1 {
		t.Fatalf("claimed %d jobs, %v", len(claimed.Jobs), err)
	}
	j := claimed.Jobs[0]
	x, err := j.Expand(now, expansion)
	if err != nil {
		t.Fatal(err)
	}
	return store.Advance{
		Name: j.Name, Revision: j.Revision, From: j.Cursor, Token: claimed.Token, Occurrences: x.Occurrences,
		Cursor: x.Cursor, ExpandAt: x.ExpandAt, Missed: x.Missed,
	}
}

// fire claims and delivers all due occurrences at now, and counts the deliveries of each instant.
func fire(t *testing.T, s store.Store, now time.Time, fired map[time.Time]int) {
	t.Helper()
	for more := true; more; {
		c := claim(t, s, now, 1000)
		for _, o := range c.Occurrences {
			fired[o.Timestamp]++
		}
		if err := s.Settle(t.Context(), acks(c.Occurrences)); err != nil {
			t.Fatal(err)
		}
		more = c.More()
	}
}
