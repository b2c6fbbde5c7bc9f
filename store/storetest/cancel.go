package storetest

import (
	"errors"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

var cancelTests = []namedTest{
	{"cancel deletes occurrences that are not held", testCancel},
	{"a cancelled held occurrence is never retried", testCancelHeld},
	{"cancel of several, and of none", testCancelMany},
	{"cancel includes redriven occurrences", testCancelOwn},
	{"a cancelled key starts over", testCancelAnew},
}

func (f *fixture) cancel(names ...job.Name) []store.CancelResult {
	f.Helper()
	results, err := f.store().Cancel(f.Context(), names, store.Asked{Now: epoch})
	f.must(err)
	if len(results) != len(names) {
		f.Fatalf("cancel answered %d results for %d", len(results), len(names))
	}
	return results
}

func testCancel(f *fixture) {
	f.put(newPut(name("k"), epoch, 0, time.Minute, time.Hour))
	f.put(newPut(name("other"), epoch, time.Hour))
	expect(f, "result", f.cancel(name("k"))[0], store.CancelResult{Found: true, Cancelled: 3})

	_, err := store.ReadJob(f.Context(), f.store(), name("k"))
	expect(f, "the job is gone", errors.Is(err, store.ErrNotFound), true)
	f.expectTimes("claimed", timestamps(f.claim(epoch.Add(24*time.Hour), 10), claimedTime), epoch.Add(time.Hour))
	expect(f, "the second time", f.cancel(name("k"))[0], store.CancelResult{})
}

func testCancelHeld(f *fixture) {
	for _, outcome := range []store.Outcome{store.Ack, store.Retry, store.Bury, store.Release, store.Miss} {
		f.put(newPut(name("k"), epoch, 0, time.Hour))
		held := f.claimOne(epoch)
		expect(f, "result", f.cancel(name("k"))[0], store.CancelResult{Found: true, Cancelled: 1, InFlight: 1})
		f.settle(settlement(held, outcome))
		expect(f, "claimed after all", len(f.claim(epoch.Add(24*time.Hour), 10)), 0)
	}
	// A claim whose lease has run out is not in flight.
	f.put(newPut(name("k"), epoch.Add(-lease), 0))
	f.claimOne(epoch.Add(-lease))
	expect(f, "result after the lease", f.cancel(name("k"))[0], store.CancelResult{Found: true, Cancelled: 1})
}

func testCancelMany(f *fixture) {
	f.put(newPut(name("a"), epoch, time.Hour))
	f.put(newPut(name("b"), epoch))
	results := f.cancel(name("a"), name("none"), name("b"))
	expect(f, "a", results[0], store.CancelResult{Found: true, Cancelled: 1})
	expect(f, "none", results[1], store.CancelResult{})
	expect(f, "b", results[2], store.CancelResult{Found: true})
	expect(f, "of none", len(f.cancel()), 0)
}

func testCancelOwn(f *fixture) {
	for _, held := range []bool{false, true} {
		buried := f.bury(name("k"), epoch)
		stays := f.bury(name("k"), epoch.Add(time.Millisecond))
		n, err := f.store().SettleDead(f.Context(), redrive(job.DefaultTenant, epoch, buried.ID))
		f.must(err)
		expect(f, "redriven", n, 1)
		f.cancel(name("unrelated"))
		want := store.CancelResult{Found: true, Cancelled: 1}
		var claimed store.Claimed
		if held {
			claimed = f.claimOne(epoch)
			want = store.CancelResult{Found: true, InFlight: 1}
		}
		expect(f, "result", f.cancel(name("k"))[0], want)
		if held {
			f.settle(settlement(claimed, store.Retry))
		}
		expect(f, "claimed after all", len(f.claim(epoch.Add(24*time.Hour), 10)), 0)

		dead := f.deadLetters(store.DeadLetterFilter{Key: "k"})
		if len(dead) != 1 || dead[0].ID != stays.ID {
			f.Errorf("a cancel left %d dead letters, want the one that was not redriven", len(dead))
		}
		_, err = f.store().SettleDead(f.Context(), discard(job.DefaultTenant, stays.ID))
		f.must(err)
	}
	// Without a job, a standalone occurrence is found by its key.
	buried := f.bury(name("k"), epoch)
	f.cancel(name("k"))
	_, err := f.store().SettleDead(f.Context(), redrive(job.DefaultTenant, epoch, buried.ID))
	f.must(err)
	expect(f, "result without a job", f.cancel(name("k"))[0], store.CancelResult{Found: true, Cancelled: 1})
}

func testCancelAnew(f *fixture) {
	f.put(newPut(name("k"), epoch, 0))
	held := f.claimOne(epoch)
	f.cancel(name("k"))
	later := epoch.Add(time.Minute)
	result := f.put(newPut(name("k"), later, 0))
	expect(f, "replaced", result.Replaced, "")
	expect(f, "created", f.job(name("k")).CreatedAt, later)
	f.settle(settlement(held, store.Ack))
	expect(f, "pending", len(f.pending(name("k"))), 1)
}
