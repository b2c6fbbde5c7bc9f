package storetest

import (
	"fmt"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

var settleTests = []namedTest{
	{"ack deletes", testAck},
	{"retry makes due again", testRetry},
	{"release gives back unfired", testRelease},
	{"settling twice is settling once", testSettleTwice},
	{"settling twice in one call", testSettleTwiceAtOnce},
	{"a stale claim settles nothing", testFencing},
	{"a wrong hint changes no outcome", testHints},
	{"settle a mixed batch", testSettleMixed},
	{"retry and release keep the job", testSettleKeeps},
}

func testAck(f *fixture) {
	f.put(newPut(name("k"), epoch, 0, time.Hour))
	f.settle(settlement(f.claimOne(epoch), store.Ack))
	f.expectTimes("pending", timestamps(f.pending(name("k")), occurrenceTime), epoch.Add(time.Hour))
	f.settle(settlement(f.claimOne(epoch.Add(time.Hour)), store.Ack))
	expect(f, "live", f.job(name("k")).Live(), false)
	expect(f, "dead letters", len(f.deadLetters(store.DeadLetterFilter{})), 0)
}

func testHints(f *fixture) {
	f.put(newPut(name("k"), epoch, 0, time.Millisecond, time.Second))
	claims := f.claim(epoch.Add(time.Second), 10)
	first, second, third := settlement(claims[0], store.Ack), settlement(claims[1], store.Ack), settlement(claims[2], store.Ack)
	other := third.Hint
	third.Token = "another claim's"
	f.settle(third)
	expect(f, "pending after the ack of another claim", len(f.pending(name("k"))), 3)
	first.Hint = other
	f.settle(first)
	var left []job.ID
	for _, o := range f.pending(name("k")) {
		left = append(left, o.ID)
	}
	slices.SortFunc(left, job.ID.Compare)
	want := []job.ID{second.ID, third.ID}
	slices.SortFunc(want, job.ID.Compare)
	expect(f, "pending after an ack with another's hint", fmt.Sprint(left), fmt.Sprint(want))
	second.Hint = first.Hint + 1<<40 // beyond the end of the stored data
	f.settle(second)
	expect(f, "pending after an ack with a hint at nothing", len(f.pending(name("k"))), 1)
}

func testRetry(f *fixture) {
	f.put(newPut(name("k"), epoch, 0))
	s := settlement(f.claimOne(epoch), store.Retry)
	f.settle(s)
	o := f.pending(name("k"))[0]
	expect(f, "due", o.DueAt, s.DueAt)
	expect(f, "timestamp", o.Timestamp, epoch)
	expect(f, "attempt", o.Attempt, 1)
	expect(f, "last error", o.LastError, "it failed")
	expect(f, "held", o.Held(epoch), false)
	expect(f, "scheduled is unset", o.ScheduledAt.IsZero(), true)
	expect(f, "claimed before", len(f.claim(s.DueAt.Add(-time.Millisecond), 10)), 0)
	c := f.claimOne(s.DueAt)
	expect(f, "attempt of the second claim", c.Attempt, 2)
	expect(f, "last error of the second claim", c.LastError, "it failed")
}

func testRelease(f *fixture) {
	f.put(newPut(name("k"), epoch, 0))
	s := settlement(f.claimOne(epoch), store.Release)
	f.settle(s)
	o := f.pending(name("k"))[0]
	expect(f, "due", o.DueAt, s.DueAt)
	expect(f, "attempt", o.Attempt, 0)
	expect(f, "last error", o.LastError, "it failed")
	expect(f, "scheduled is unset", o.ScheduledAt.IsZero(), true)

	c := f.claimOne(s.DueAt)
	expect(f, "attempt of the second claim", c.Attempt, 1)
	expect(f, "reclaimed", c.Reclaimed, false)
	s = settlement(c, store.Release)
	s.Error = ""
	f.settle(s)
	expect(f, "last error when none is given", f.pending(name("k"))[0].LastError, "it failed")
}

func testSettleTwice(f *fixture) {
	for _, outcome := range []store.Outcome{store.Ack, store.Retry, store.Bury, store.Release, store.Miss} {
		n := name("k" + string(rune('0'+int(outcome))))
		f.put(newPut(n, epoch, 0))
		s := settlement(f.claimOne(epoch), outcome)
		f.settle(s)
		once, onceDead := f.pending(n), f.deadLetters(store.DeadLetterFilter{Key: n.Key})
		s.DueAt, s.Error = s.DueAt.Add(time.Hour), "again"
		f.settle(s, s)
		twice, twiceDead := f.pending(n), f.deadLetters(store.DeadLetterFilter{Key: n.Key})
		expect(f, "pending", len(twice), len(once))
		expect(f, "dead letters", len(twiceDead), len(onceDead))
		for i := range once {
			expect(f, "due", twice[i].DueAt, once[i].DueAt)
			expect(f, "attempt", twice[i].Attempt, once[i].Attempt)
			expect(f, "last error", twice[i].LastError, once[i].LastError)
		}
	}
	f.settle()
}

// testSettleTwiceAtOnce: a settlement may come twice in one call, for a job's occurrence and for a standalone one.
func testSettleTwiceAtOnce(f *fixture) {
	for i, outcome := range []store.Outcome{store.Ack, store.Retry, store.Bury, store.Release, store.Miss} {
		n := name(fmt.Sprint("k", i))
		f.put(newPut(n, epoch, 0, time.Hour))
		f.trigger(trigger(n, epoch, 1))
		var settlements []store.Settlement
		for _, c := range f.claim(epoch, 10) {
			settlements = append(settlements, settlement(c, outcome), settlement(c, outcome))
		}
		expect(f, "settlements", len(settlements), 4)
		f.settle(settlements...)
		left, dead := 1, 0
		switch outcome {
		case store.Retry, store.Release:
			left = 3
		case store.Bury:
			dead = 2
		case store.Ack, store.Miss:
		}
		pending := f.pending(n)
		expect(f, "pending", len(pending), left)
		expect(f, "dead letters", len(f.deadLetters(store.DeadLetterFilter{Key: n.Key})), dead)
		for _, o := range pending {
			expect(f, "attempt", o.Attempt, map[bool]int{true: 1}[outcome == store.Retry && o.Timestamp.Equal(epoch)])
		}
		counts := f.job(n)
		expect(f, "failed", counts.Failed, map[store.Outcome]int{store.Bury: 1}[outcome])
		expect(f, "missed", counts.Missed, map[store.Outcome]int{store.Miss: 1}[outcome])
		f.cancel(n)
	}
}

// testFencing: after an occurrence was claimed again, the first claim's settlements change nothing.
func testFencing(f *fixture) {
	for i, outcome := range []store.Outcome{store.Ack, store.Retry, store.Bury, store.Release, store.Miss} {
		n := name("k" + string(rune('0'+i)))
		f.put(newPut(n, epoch, 0))
		stale := f.claimOne(epoch)
		now := epoch.Add(lease)
		held := f.claimOne(now)
		f.settle(settlement(stale, outcome))

		pending := f.pending(n)
		if len(pending) != 1 {
			f.Fatalf("a stale settlement left %d occurrences", len(pending))
		}
		expect(f, "token", pending[0].Token, held.Token)
		expect(f, "due", pending[0].DueAt, held.DueAt)
		expect(f, "attempt", pending[0].Attempt, 2)
		expect(f, "last error", pending[0].LastError, "")
		expect(f, "dead letters", len(f.deadLetters(store.DeadLetterFilter{})), 0)

		f.settle(settlement(held, store.Ack))
		expect(f, "left after the right settlement", len(f.pending(n)), 0)
	}
	// A claim whose lease has run out, but whose occurrence nobody took over, may still be settled.
	f.put(newPut(name("late"), epoch, 0))
	f.settle(settlement(f.claimOne(epoch), store.Ack))
	expect(f, "left after a late ack", len(f.claim(epoch.Add(24*time.Hour), 10)), 0)
}

func testSettleMixed(f *fixture) {
	for i := range 20 {
		f.put(newPut(name("k"+string(rune('a'+i))), epoch, 0))
	}
	var settlements []store.Settlement
	for i, c := range append(f.claim(epoch, 8), f.claim(epoch, 12)...) {
		settlements = append(settlements, settlement(c,
			[]store.Outcome{store.Ack, store.Retry, store.Bury, store.Release}[i%4]))
	}
	unknown := settlements[0]
	unknown.ID = job.OccurrenceID(name("unknown"), "", epoch, 0, "")
	f.settle(append(settlements, unknown)...)

	attempts := map[int]int{}
	for _, c := range f.claim(epoch.Add(time.Hour), 100) {
		attempts[c.Attempt]++
	}
	expect(f, "retried", attempts[2], 5)
	expect(f, "released", attempts[1], 5)
	expect(f, "buried", len(f.deadLetters(store.DeadLetterFilter{})), 5)
}

func testSettleKeeps(f *fixture) {
	for _, outcome := range []store.Outcome{store.Retry, store.Release} {
		p := newPut(name("k"), epoch, 0)
		f.put(p)
		c := f.claimOne(epoch)
		s := settlement(c, outcome)
		s.DueAt, s.KeepUntil = epoch.Add(time.Second), epoch.Add(24*time.Hour)
		f.settle(s)
		expect(f, "expires", f.job(name("k")).ExpiresAt, epoch.Add(24*time.Hour))
		s = settlement(f.claimOne(epoch.Add(time.Second)), outcome)
		s.KeepUntil = epoch.Add(time.Minute)
		f.settle(s)
		expect(f, "expires, never sooner", f.job(name("k")).ExpiresAt, epoch.Add(24*time.Hour))
		f.cancel(name("k"))
	}
}
