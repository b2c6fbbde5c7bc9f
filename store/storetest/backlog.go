package storetest

import (
	"context"
	"errors"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

var backlogTests = []namedTest{
	{"backlog counts the occurrences to fire", testBacklog},
	{"backlog after settlements", testBacklogSettled},
	{"backlog of a paused job", testBacklogPaused},
	{"backlog of dead letters", testBacklogDead},
	{"backlog leaves out replaced and cancelled jobs", testBacklogGone},
	{"backlog with an ended context", testBacklogEnded},
}

// backlog has the counts of the whole store, and the first due time; zero if nothing is due.
type backlog struct {
	Pending, Due int
	OldestDue    time.Time
	DeadLetters  int
}

// expectBacklog expects the backlog at a time to be as given, with times compared as instants.
func (f *fixture) expectBacklog(what string, now time.Time, want backlog) {
	f.Helper()
	got, err := store.CountAll(f.Context(), f.second(), now)
	f.must(err)
	expect(f, what, got, store.Count{Pending: want.Pending, Due: want.Due, DeadLetters: want.DeadLetters})
	page, err := f.second().DueLanes(f.Context(), store.DueParams{Until: now, Limit: 1})
	f.must(err)
	var oldest time.Time
	for _, l := range page.Lanes {
		oldest = l.DueAt
	}
	if !oldest.Equal(want.OldestDue) || oldest.IsZero() != want.OldestDue.IsZero() {
		f.Errorf("%s: the oldest has been due since %s, want %s", what, oldest, want.OldestDue)
	}
}

func testBacklog(f *fixture) {
	f.expectBacklog("nothing", epoch, backlog{})
	f.put(newPut(name("a"), epoch, time.Second, time.Minute, time.Hour))
	f.put(newPut(name("b"), epoch, 2*time.Second))
	f.expectBacklog("fresh", epoch.Add(time.Second-time.Millisecond), backlog{Pending: 4})
	f.expectBacklog("the first is due", epoch.Add(time.Second),
		backlog{Pending: 4, Due: 1, OldestDue: epoch.Add(time.Second)})
	f.expectBacklog("another too", epoch.Add(3*time.Second),
		backlog{Pending: 4, Due: 2, OldestDue: epoch.Add(time.Second)})

	now := epoch.Add(3 * time.Second)
	expect(f, "claimed", len(f.claim(now, 1)), 1)
	f.expectBacklog("one is held", now, backlog{Pending: 4, Due: 1, OldestDue: epoch.Add(2 * time.Second)})
	expect(f, "claimed", len(f.claim(now, 10)), 1)
	f.expectBacklog("both are held", now, backlog{Pending: 4})
	end := now.Add(lease)
	f.expectBacklog("the leases have ended", end, backlog{Pending: 4, Due: 3, OldestDue: epoch.Add(time.Minute)})

	f.trigger(trigger(name("a"), epoch, 1))
	f.expectBacklog("one that stands on its own", epoch, backlog{Pending: 5, Due: 1, OldestDue: epoch})
}

func testBacklogSettled(f *fixture) {
	f.put(newPut(name("k"), epoch, 0, time.Millisecond, 2*time.Millisecond, 3*time.Millisecond, 4*time.Millisecond))
	now := epoch.Add(time.Second)
	held := f.claim(now, 10)
	if len(held) != 5 {
		f.Fatalf("claimed %d, want 5", len(held))
	}
	f.settle(settlement(held[0], store.Ack))
	f.expectBacklog("one is delivered", now, backlog{Pending: 4})
	f.settle(settlement(held[1], store.Miss))
	f.expectBacklog("one is missed", now, backlog{Pending: 3})
	f.settle(settlement(held[2], store.Bury))
	f.expectBacklog("one is buried", now, backlog{Pending: 2, DeadLetters: 1})
	retried, released := settlement(held[3], store.Retry), settlement(held[4], store.Release)
	retried.DueAt, released.DueAt = now.Add(time.Second), now.Add(2*time.Second)
	f.settle(retried, released)
	f.expectBacklog("one is retried and one released", now, backlog{Pending: 2, DeadLetters: 1})
	f.expectBacklog("the retry is due", now.Add(time.Second),
		backlog{Pending: 2, Due: 1, OldestDue: now.Add(time.Second), DeadLetters: 1})
	f.drain(now.Add(time.Minute))
	f.expectBacklog("the rest is delivered", now.Add(time.Hour), backlog{DeadLetters: 1})
}

func testBacklogPaused(f *fixture) {
	f.put(newPut(name("k"), epoch, 0, time.Second))
	f.pause(name("k"), epoch)
	now := epoch.Add(time.Second)
	f.expectBacklog("nobody has put it back yet", now, backlog{Pending: 2, Due: 2, OldestDue: epoch})
	expect(f, "claimed", len(f.claim(now, 10)), 0)
	f.expectBacklog("it is put back", now, backlog{Pending: 2})
	f.resume(name("k"), now)
	f.expectBacklog("it is resumed", now, backlog{Pending: 2, Due: 2, OldestDue: now})
}

func testBacklogDead(f *fixture) {
	first := f.bury(name("a"), epoch)
	f.bury(name("b"), epoch)
	f.expectBacklog("dead letters", epoch.Add(time.Hour), backlog{DeadLetters: 2})
	now := epoch.Add(2 * time.Hour)
	_, err := f.store().SettleDead(f.Context(), redrive(job.DefaultTenant, now, first.ID))
	f.must(err)
	f.expectBacklog("one is redriven", now, backlog{Pending: 1, Due: 1, OldestDue: now, DeadLetters: 1})
}

func testBacklogGone(f *fixture) {
	f.put(newPut(name("a"), epoch, 0, time.Hour))
	f.put(newPut(name("b"), epoch, 0, time.Hour))
	f.put(newPut(name("a"), epoch, time.Minute))
	f.expectBacklog("one is replaced", epoch, backlog{Pending: 3, Due: 1, OldestDue: epoch})
	f.cancel(name("b"))
	f.expectBacklog("the other is cancelled", epoch, backlog{Pending: 1})
}

func testBacklogEnded(f *fixture) {
	ended, cancel := context.WithCancel(f.Context())
	cancel()
	_, err := store.CountAll(ended, f.store(), epoch)
	expect(f, "it is unavailable", errors.Is(err, store.ErrUnavailable), true)
}
