package storetest

import (
	"errors"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

var triggerTests = []namedTest{
	{"trigger fires beside the schedule", testTrigger},
	{"trigger fires while paused, and after a replacement", testTriggerPaused},
	{"two triggers at one time, and one twice", testTriggerTwice},
	{"a trigger that is repeated", testTriggerRepeated},
	{"trigger of no job", testTriggerUnknown},
	{"a triggered occurrence is cancelled with its job", testTriggerCancel},
	{"trigger racing a cancel", testTriggerRace},
}

// trigger returns a standalone occurrence that is due at now.
func trigger(n job.Name, now time.Time, position int) job.Occurrence {
	return job.Occurrence{
		ID: job.OccurrenceID(n, "", now, position, ""), Name: n, Position: position, Timestamp: now, DueAt: now,
		Own: &job.Target{
			Callback: job.Callback{Type: "http", Data: []byte(`{ "payload":"triggered" }`)},
			Options:  job.Options{Retry: job.Retry{MaxAttempts: 4}, Trace: traced},
		},
	}
}

func (f *fixture) trigger(o job.Occurrence) {
	f.Helper()
	f.must(f.store().Trigger(f.Context(), o))
}

func testTrigger(f *fixture) {
	f.put(newPut(name("k"), epoch, time.Hour))
	before, scheduled := f.job(name("k")), f.pending(name("k"))
	o := trigger(name("k"), epoch, 9)
	f.trigger(o)
	expectSame(f, "the job", f.job(name("k")), before)
	expect(f, "next due", f.nextDue(), epoch)

	pending := f.pending(name("k"))
	expect(f, "pending", len(pending), 2)
	expect(f, "listed", pending[0].ID, o.ID)
	expect(f, "listed revision", pending[0].Revision, "")
	expect(f, "listed position", pending[0].Position, 9)
	expect(f, "listed attempt", pending[0].Attempt, 0)
	expectSame(f, "jobs listed", f.jobs(store.JobFilter{Standalone: true}), f.jobs(store.JobFilter{}))

	c := f.claimOne(epoch)
	expect(f, "claimed", c.ID, o.ID)
	expect(f, "delivery id", c.DeliveryID(), o.DeliveryID())
	expect(f, "attempt", c.Attempt, 1)
	expect(f, "timestamp", c.Timestamp, epoch)
	expect(f, "callback type", c.Callback.Type, "http")
	expect(f, "callback data", string(c.Callback.Data), string(o.Own.Callback.Data))
	expectOptions(f, "options", c.Options, o.Own.Options)
	f.settle(settlement(c, store.Retry))
	c = f.claim(epoch.Add(time.Hour), 1)[0]
	expect(f, "claimed again", c.ID, o.ID)
	f.settle(settlement(c, store.Ack))
	expectSame(f, "left", f.pending(name("k")), scheduled)

	f.put(newPut(name("finished"), epoch))
	f.trigger(trigger(name("finished"), epoch, 1))
	expect(f, "a trigger keeps a job alive", f.job(name("finished")).Live(), false)
}

func testTriggerPaused(f *fixture) {
	f.put(newPut(name("k"), epoch, 0))
	f.pause(name("k"), epoch)
	o := trigger(name("k"), epoch, 1)
	f.trigger(o)
	expect(f, "claimed while paused", f.claimOne(epoch).ID, o.ID)

	later := epoch.Add(lease)
	f.trigger(trigger(name("k"), later, 2))
	f.put(newPut(name("k"), later, 0))
	fired := f.claim(later, 10)
	expect(f, "claimed after a replacement", len(fired), 2) // and the first one is claimed again
	for _, c := range fired {
		expect(f, "revision", c.Revision, "")
	}
}

func testTriggerTwice(f *fixture) {
	f.put(newPut(name("k"), epoch, 0))
	first, second := trigger(name("k"), epoch, 1), trigger(name("k"), epoch, 2)
	for _, o := range []job.Occurrence{first, second, first} {
		f.trigger(o)
	}
	ids, deliveries := map[job.ID]bool{}, map[job.ID]bool{}
	fired := f.drain(epoch)
	for _, c := range fired {
		ids[c.ID], deliveries[c.DeliveryID()] = true, true
	}
	expect(f, "fired", len(fired), 3)
	expect(f, "distinct ids", len(ids), 3)
	expect(f, "distinct delivery ids", len(deliveries), 3)
}

// testTriggerRepeated: a trigger leaves an occurrence with its id as it is.
func testTriggerRepeated(f *fixture) {
	f.put(newPut(name("k"), epoch, time.Hour))
	o := trigger(name("k"), epoch, 1)
	f.trigger(o)
	c := f.claimOne(epoch)
	f.trigger(o)
	expect(f, "claimed while it is held", len(f.claim(epoch, 10)), 0)

	again := settlement(c, store.Retry)
	again.DueAt = epoch.Add(time.Minute)
	f.settle(again)
	f.trigger(o)
	expect(f, "claimed before its retry", len(f.claim(epoch, 10)), 0)
	c = f.claimOne(epoch.Add(time.Minute))
	expect(f, "attempt", c.Attempt, 2)

	f.settle(settlement(c, store.Bury))
	f.trigger(o)
	expect(f, "claimed when it is dead", len(f.claim(epoch.Add(time.Minute), 10)), 0)
	expect(f, "dead letters", len(f.deadLetters(store.DeadLetterFilter{})), 1)
	expect(f, "pending", len(f.pending(name("k"))), 1)
}

func testTriggerUnknown(f *fixture) {
	f.put(newPut(job.Name{Tenant: "other", Key: "k"}, epoch))
	f.put(newPut(name("cancelled"), epoch))
	f.cancel(name("cancelled"))
	for _, n := range []job.Name{name("k"), name("cancelled")} {
		err := f.store().Trigger(f.Context(), trigger(n, epoch, 1))
		expect(f, "not found", errors.Is(err, store.ErrNotFound), true)
	}
	expect(f, "fired", len(f.drain(epoch)), 0)
}

func testTriggerCancel(f *fixture) {
	f.put(newPut(name("k"), epoch, time.Hour))
	f.trigger(trigger(name("k"), epoch, 1))
	held := f.claimOne(epoch)
	f.trigger(trigger(name("k"), epoch, 2))
	expect(f, "result", f.cancel(name("k"))[0], store.CancelResult{Found: true, Cancelled: 2, InFlight: 1})
	f.settle(settlement(held, store.Retry))
	expect(f, "fired", len(f.drain(epoch)), 0)
}

// testTriggerRace: a trigger concurrent with a cancel is cancelled or refused, and never fires after both.
func testTriggerRace(f *fixture) {
	handles := []store.Store{f.handle(), f.handle()}
	for range 20 {
		f.putOn(handles[0], newPut(name("k"), epoch, time.Hour))
		var triggerErr, cancelErr error
		var results []store.CancelResult
		var group sync.WaitGroup
		group.Go(func() { triggerErr = handles[0].Trigger(f.Context(), trigger(name("k"), epoch, 1)) })
		group.Go(func() {
			results, cancelErr = handles[1].Cancel(f.Context(), []job.Name{name("k")}, store.Asked{Now: epoch})
		})
		group.Wait()
		f.must(cancelErr)
		if triggerErr == nil {
			expect(f, "cancelled with the trigger", results[0].Cancelled, 2)
		} else if !errors.Is(triggerErr, store.ErrNotFound) {
			f.Errorf("trigger answers %v", triggerErr)
		}
		expect(f, "found", results[0].Found, true)
		expect(f, "pending", len(f.pending(name("k"))), 0)
		expect(f, "claimed after both", len(f.claim(epoch.Add(2*time.Hour), 10)), 0)
	}
}
