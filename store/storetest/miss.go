package storetest

import (
	"time"

	"github.com/carillon-scheduler/carillon/store"
)

var missTests = []namedTest{
	{"miss deletes and counts", testMiss},
	{"miss of many of one job", testMissMany},
	{"a stale miss counts nothing", testMissStale},
	{"miss counts for its own revision only", testMissRevision},
	{"a replacement resets the missed count", testMissReset},
}

func testMiss(f *fixture) {
	f.put(newPut(name("k"), epoch, 0, time.Hour))
	f.put(newPut(name("other"), epoch, time.Hour))
	before := f.job(name("k"))
	s := settlement(f.claimOne(epoch), store.Miss)
	f.settle(s)
	got := f.job(name("k"))
	expect(f, "missed", got.Missed, 1)
	expect(f, "missed of another job", f.job(name("other")).Missed, 0)
	expect(f, "listed as missed", f.jobs(store.JobFilter{Prefix: "k"})[0].Missed, 1)
	expect(f, "version", got.Version, before.Version)
	expect(f, "updated", got.UpdatedAt, before.UpdatedAt)
	f.expectTimes("pending", timestamps(f.pending(name("k")), occurrenceTime), epoch.Add(time.Hour))
	expect(f, "dead letters", len(f.deadLetters(store.DeadLetterFilter{})), 0)

	f.settle(s)
	expect(f, "missed when settled twice", f.job(name("k")).Missed, 1)
	fired := f.claim(epoch.Add(time.Hour), 10)
	expect(f, "claimed", len(fired), 2)
	for _, c := range fired {
		f.settle(settlement(c, store.Miss))
	}
	expect(f, "missed in the end", f.job(name("k")).Missed, 2)
	expect(f, "live in the end", f.job(name("k")).Live(), false)
}

func testMissMany(f *fixture) {
	var after []time.Duration
	for i := range 20 {
		after = append(after, time.Duration(i)*time.Millisecond)
	}
	f.put(newPut(name("a"), epoch, after...))
	f.put(newPut(name("b"), epoch, after...))
	var settlements []store.Settlement
	for i, c := range f.claim(epoch.Add(time.Second), 100) {
		settlements = append(settlements, settlement(c,
			[]store.Outcome{store.Miss, store.Ack, store.Miss, store.Retry}[i/2%4]))
	}
	f.settle(settlements...)
	expect(f, "missed in all", f.job(name("a")).Missed+f.job(name("b")).Missed, 20)
	expect(f, "pending in all", len(f.pending(name("a")))+len(f.pending(name("b"))), 10)
}

func testMissStale(f *fixture) {
	f.put(newPut(name("k"), epoch, 0))
	stale := f.claimOne(epoch)
	held := f.claimOne(epoch.Add(lease))
	f.settle(settlement(stale, store.Miss))
	expect(f, "missed", f.job(name("k")).Missed, 0)
	expect(f, "token", f.pending(name("k"))[0].Token, held.Token)
	f.settle(settlement(held, store.Ack))
	f.settle(settlement(held, store.Miss))
	expect(f, "missed after an ack", f.job(name("k")).Missed, 0)
}

func testMissRevision(f *fixture) {
	f.put(newPut(name("k"), epoch, 0))
	held := f.claimOne(epoch)
	f.put(newPut(name("k"), epoch, time.Hour))
	f.settle(settlement(held, store.Miss))
	expect(f, "missed of a replaced revision", f.job(name("k")).Missed, 0)

	f.trigger(trigger(name("k"), epoch, 1))
	f.settle(settlement(f.claimOne(epoch), store.Miss))
	expect(f, "missed of one that stands on its own", f.job(name("k")).Missed, 0)
	expect(f, "left", len(f.pending(name("k"))), 1)

	held = f.claimOne(epoch.Add(time.Hour))
	f.cancel(name("k"))
	f.put(newPut(name("k"), epoch, 2*time.Hour))
	f.settle(settlement(held, store.Miss))
	expect(f, "missed of a cancelled revision", f.job(name("k")).Missed, 0)
}

func testMissReset(f *fixture) {
	p := newPut(name("k"), epoch, 0)
	p.Job.Missed = 3 // were past their deadline when they were submitted
	f.put(p)
	expect(f, "missed at the submission", f.job(name("k")).Missed, 3)
	f.settle(settlement(f.claimOne(epoch), store.Miss))
	expect(f, "missed in all", f.job(name("k")).Missed, 4)
	f.must(f.store().Amend(f.Context(), amendment(p.Job, p.Job.Version, epoch)))
	expect(f, "missed after an amendment", f.job(name("k")).Missed, 4)
	f.pause(name("k"), epoch)
	f.resume(name("k"), epoch)
	expect(f, "missed after a pause", f.job(name("k")).Missed, 4)
	p = newPut(name("k"), epoch, time.Hour)
	p.Job.Missed = 1
	f.put(p)
	expect(f, "missed after a replacement", f.job(name("k")).Missed, 1)
}
