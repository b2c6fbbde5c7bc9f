//go:build services

package redis_test

import (
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

func pause(t *testing.T, s store.Store, name job.Name, now time.Time) {
	t.Helper()
	if err := s.Pause(t.Context(), name, job.NewRevision(now), now); err != nil {
		t.Error(err) // it may be called on any goroutine
	}
}

func resume(t *testing.T, s store.Store, name job.Name, now time.Time) {
	t.Helper()
	if err := s.Resume(t.Context(), name, job.NewRevision(now), now); err != nil {
		t.Error(err)
	}
}

// TestPausedBacklogByOne: a claim of one occurrence sets aside as many paused ones as one script may, and no more.
func TestPausedBacklogByOne(t *testing.T) {
	const n, most = 3500, 1000
	server := newServer(t)
	s := open(t, server.url)
	paused, other := put("paused", n), put("other", 0)
	other.Job.Schedule.Instants = []time.Time{epoch.Add(time.Hour)}
	beginning, err := other.Job.Begin(epoch, job.PastFire, job.Expansion{})
	if err != nil {
		t.Fatal(err)
	}
	other.Occurrences = beginning.Occurrences
	mustPut(t, s, paused, other)
	pause(t, s, paused.Job.Name, epoch)
	now := epoch.Add(time.Hour)
	due := func() int64 {
		left, _ := server.must("zcount", "carillon:{0}:pending:default", "-inf", now.UnixMilli()).(int64)
		return left
	}
	for i := range n/most + 1 {
		before := due()
		c := claim(t, s, now, 1)
		if gone := before - due(); gone > most || i < n/most && gone != most || !c.More() {
			t.Errorf("claim %d has put back %d, more: %v", i, gone, c.More())
		}
		if len(c.Occurrences) != 0 {
			t.Errorf("claim %d has claimed %s", i, c.Occurrences[0].Name)
		}
	}
	if c := claim(t, s, now, 1); len(c.Occurrences) != 1 || c.Occurrences[0].Name != other.Job.Name {
		t.Errorf("after those, %d were claimed", len(c.Occurrences))
	}
}

// TestResumeBeforeTheInstants: very many occurrences that were put back before their instants become due at their instants.
func TestResumeBeforeTheInstants(t *testing.T) {
	const n = 2500
	server := newServer(t)
	s := open(t, server.url)
	p := put("k", n)
	mustPut(t, s, p)
	early := epoch.Add(-time.Minute)
	pause(t, s, p.Job.Name, early)
	for more := true; more; { // claims by a clock that is ahead
		c := claim(t, s, epoch.Add(time.Minute), 10)
		if more = c.More(); len(c.Occurrences) > 0 {
			t.Fatalf("claimed %d", len(c.Occurrences))
		}
	}
	if due := server.must("zcount", "carillon:{0}:pending:default", "-inf", epoch.Add(time.Minute).UnixMilli()); due != int64(0) {
		t.Fatalf("%v are still due", due)
	}
	resume(t, s, p.Job.Name, early)
	page, total, err := s.Occurrences(t.Context(), store.OccurrenceFilter{Name: p.Job.Name, Revision: p.Job.Revision, Limit: n, Count: true})
	if err != nil || total != n {
		t.Fatalf("%d are pending, %v", total, err)
	}
	for _, o := range page {
		if !o.DueAt.Equal(o.Timestamp) {
			t.Fatalf("one that is meant for %s is due at %s", job.FormatTime(o.Timestamp), job.FormatTime(o.DueAt))
		}
	}
}

// TestResumeBeforePutBack: a claim has set an occurrence aside and not yet put it back. A resume makes it due at the
// very time at which the claim would end. The claim then leaves it.
func TestResumeBeforePutBack(t *testing.T) {
	server := newServer(t)
	between := newRelay(t, server)
	s, other := open(t, between.url), open(t, server.url)
	p := put("k", 1)
	mustPut(t, s, p)
	claim(t, s, epoch.Add(-time.Hour), 1) // so that the server knows the script
	pause(t, s, p.Job.Name, epoch)
	ends := epoch.Add(lease)
	between.after(func() { resume(t, other, p.Job.Name, ends) })
	if c := claim(t, s, epoch, 1); len(c.Occurrences) != 0 {
		t.Fatal("it was claimed while its job was paused")
	}
	if c := claim(t, s, ends, 1); len(c.Occurrences) != 1 {
		due, err := nextDue(t, s)
		t.Errorf("after the resumption it is due at %s, want %s, %v", job.FormatTime(due), job.FormatTime(ends), err)
	}
}

// TestPauseAmidExpansion: a job is paused and resumed while its expansion is made in parts. That expansion has no
// effect, and the next one makes each instant fire once.
func TestPauseAmidExpansion(t *testing.T) {
	const ticks, part = 2500, 1000
	server := newServer(t)
	between := newRelay(t, server)
	s, other := open(t, between.url), open(t, server.url)
	expansion := job.Expansion{Horizon: 10 * time.Second, CatchUpLimit: 2 * ticks}
	p := recurring(t, "k", expansion)
	mustPut(t, s, p)
	now := p.Job.Cursor.Add(ticks * time.Second)
	first := advanceOf(t, s, now, expansion)
	stale := first
	stale.Token = job.NewToken()
	if err := s.Advance(t.Context(), []store.Advance{stale}); err != nil { // so that the server knows the script
		t.Fatal(err)
	}
	between.after(func() {
		pause(t, other, p.Job.Name, now)
		resume(t, other, p.Job.Name, now)
	})
	if err := s.Advance(t.Context(), []store.Advance{first}); err != nil {
		t.Fatal(err)
	}
	status, err := store.ReadJob(t.Context(), s, p.Job.Name)
	if err != nil || !status.Cursor.Equal(first.From) || !status.ExpandAt.Equal(now) {
		t.Errorf("the cursor is %s, want %s, to be expanded at %s, %v", status.Cursor, first.From, status.ExpandAt, err)
	}
	_, total, err := s.Occurrences(t.Context(), store.OccurrenceFilter{Name: p.Job.Name, Revision: p.Job.Revision, Limit: 1, Count: true})
	if want := len(p.Occurrences) + part; err != nil || total != want {
		t.Errorf("%d are pending, want the first part, %d, %v", total, want, err)
	}
	fired := map[time.Time]int{}
	fire(t, s, now, fired)
	if len(fired) != len(p.Occurrences) {
		t.Errorf("%d fired before the next expansion, want %d", len(fired), len(p.Occurrences))
	}
	second := advanceOf(t, s, now, expansion)
	if err := s.Advance(t.Context(), []store.Advance{second}); err != nil {
		t.Fatal(err)
	}
	fire(t, s, second.Cursor.Add(time.Second), fired)
	for at := p.Occurrences[0].Timestamp; !at.After(second.Cursor); at = at.Add(time.Second) {
		if fired[at] != 1 {
			t.Errorf("%s fired %d times", job.FormatTime(at), fired[at])
		}
		delete(fired, at)
	}
	if len(fired) > 0 {
		t.Errorf("%d more fired", len(fired))
	}
}
