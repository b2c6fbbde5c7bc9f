package storetest

import (
	"context"
	"errors"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

var backlogTests = []namedTest{
	{"backlog counts what is to fire", testBacklog},
	{"backlog of what was settled", testBacklogSettled},
	{"backlog of a paused job", testBacklogPaused},
	{"backlog of dead letters", testBacklogDead},
	{"backlog leaves out what is replaced or cancelled", testBacklogGone},
	{"backlog in no time", testBacklogEnded},
}

// expectBacklog expects the backlog at a time to be as given, with times compared as instants.
func (f *fixture) expectBacklog(what string, now time.Time, want store.Backlog) {
	f.Helper()
	got, err := f.second().Backlog(f.Context(), now)
	f.must(err)
	if !got.OldestDue.Equal(want.OldestDue) || got.OldestDue.IsZero() != want.OldestDue.IsZero() {
		f.Errorf("%s: the oldest has been due since %s, want %s", what, got.OldestDue, want.OldestDue)
	}
	got.OldestDue, want.OldestDue = time.Time{}, time.Time{}
	expect(f, what, got, want)
}

func testBacklog(f *fixture) {
	f.expectBacklog("nothing", epoch, store.Backlog{})
	f.put(newPut(name("a"), epoch, time.Second, time.Minute, time.Hour))
	f.put(newPut(name("b"), epoch, 2*time.Second))
	f.expectBacklog("fresh", epoch.Add(time.Second-time.Millisecond), store.Backlog{Pending: 4})
	f.expectBacklog("the first is due", epoch.Add(time.Second), store.Backlog{Pending: 4, Due: 1, OldestDue: epoch.Add(time.Second)})
	f.expectBacklog("another too", epoch.Add(3*time.Second), store.Backlog{Pending: 4, Due: 2, OldestDue: epoch.Add(time.Second)})

	now := epoch.Add(3 * time.Second)
	expect(f, "claimed", len(f.claim(now, 1)), 1)
	f.expectBacklog("one is held", now, store.Backlog{Pending: 4, Due: 1, OldestDue: epoch.Add(2 * time.Second)})
	expect(f, "claimed", len(f.claim(now, 10)), 1)
	f.expectBacklog("both are held", now, store.Backlog{Pending: 4})
	end := now.Add(lease)
	f.expectBacklog("the leases have ended", end, store.Backlog{Pending: 4, Due: 3, OldestDue: epoch.Add(time.Minute)})

	f.trigger(trigger(name("a"), epoch, 1))
	f.expectBacklog("one that stands on its own", epoch, store.Backlog{Pending: 5, Due: 1, OldestDue: epoch})
}

func testBacklogSettled(f *fixture) {
	f.put(newPut(name("k"), epoch, 0, time.Millisecond, 2*time.Millisecond, 3*time.Millisecond, 4*time.Millisecond))
	now := epoch.Add(time.Second)
	held := f.claim(now, 10)
	if len(held) != 5 {
		f.Fatalf("claimed %d, want 5", len(held))
	}
	f.settle(settlement(held[0], store.Ack))
	f.expectBacklog("one is delivered", now, store.Backlog{Pending: 4})
	f.settle(settlement(held[1], store.Miss))
	f.expectBacklog("one is missed", now, store.Backlog{Pending: 3})
	f.settle(settlement(held[2], store.Bury))
	f.expectBacklog("one is buried", now, store.Backlog{Pending: 2, DeadLetters: 1})
	retried, released := settlement(held[3], store.Retry), settlement(held[4], store.Release)
	retried.DueAt, released.DueAt = now.Add(time.Second), now.Add(2*time.Second)
	f.settle(retried, released)
	f.expectBacklog("one is retried and one released", now, store.Backlog{Pending: 2, DeadLetters: 1})
	f.expectBacklog("the retry is due", now.Add(time.Second),
		store.Backlog{Pending: 2, Due: 1, OldestDue: now.Add(time.Second), DeadLetters: 1})
	f.drain(now.Add(time.Minute))
	f.expectBacklog("the rest is delivered", now.Add(time.Hour), store.Backlog{DeadLetters: 1})
}

func testBacklogPaused(f *fixture) {
	f.put(newPut(name("k"), epoch, 0, time.Second))
	f.pause(name("k"), epoch)
	now := epoch.Add(time.Second)
	f.expectBacklog("nobody has put it back yet", now, store.Backlog{Pending: 2, Due: 2, OldestDue: epoch})
	expect(f, "claimed", len(f.claim(now, 10)), 0)
	f.expectBacklog("it is put back", now, store.Backlog{Pending: 2})
	f.resume(name("k"), now)
	f.expectBacklog("it is resumed", now, store.Backlog{Pending: 2, Due: 2, OldestDue: now})
}

func testBacklogDead(f *fixture) {
	first := f.bury(name("a"), epoch)
	f.bury(name("b"), epoch)
	f.expectBacklog("dead letters", epoch.Add(time.Hour), store.Backlog{DeadLetters: 2})
	now := epoch.Add(2 * time.Hour)
	_, err := f.store().SettleDead(f.Context(), redrive(job.DefaultTenant, now, first.ID))
	f.must(err)
	f.expectBacklog("one is redriven", now, store.Backlog{Pending: 1, Due: 1, OldestDue: now, DeadLetters: 1})
}

func testBacklogGone(f *fixture) {
	f.put(newPut(name("a"), epoch, 0, time.Hour))
	f.put(newPut(name("b"), epoch, 0, time.Hour))
	f.put(newPut(name("a"), epoch, time.Minute))
	f.expectBacklog("one is replaced", epoch, store.Backlog{Pending: 3, Due: 1, OldestDue: epoch})
	f.cancel(name("b"))
	f.expectBacklog("the other is cancelled", epoch, store.Backlog{Pending: 1})
}

func testBacklogEnded(f *fixture) {
	ended, cancel := context.WithCancel(f.Context())
	cancel()
	_, err := f.store().Backlog(ended, epoch)
	expect(f, "it is unavailable", errors.Is(err, store.ErrUnavailable), true)
}
