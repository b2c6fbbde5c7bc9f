package storetest

import (
	"errors"
	"strconv"
	"sync"
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
	{"cancel on a condition", testCancelIf},
	{"of racing changes and cancels of a version one wins", testCancelRace},
	{"a cancel of a version leaves a job that was put meanwhile", testCancelRacingPut},
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

// testCancelIf: a job that does not meet the condition stays, with all its occurrences, and others of the call go.
func testCancelIf(f *fixture) {
	cancel := func(condition store.Condition, names ...job.Name) []store.CancelResult {
		results, err := f.store().Cancel(f.Context(), names, store.Asked{Now: epoch, If: condition})
		f.must(err)
		return results
	}
	refused := store.CancelResult{Err: store.ErrPrecondition}
	buried := f.bury(name("own"), epoch)
	f.cancel(name("own"))
	n, err := f.store().SettleDead(f.Context(), redrive(job.DefaultTenant, epoch, buried.ID))
	f.must(err)
	expect(f, "redriven", n, 1)

	first, second := newPut(name("a"), epoch, time.Hour), newPut(name("a"), epoch.Add(time.Second), time.Hour)
	other := newPut(name("b"), epoch, time.Hour, 2*time.Hour)
	f.put(first)
	f.put(other)
	f.trigger(trigger(name("a"), epoch, 1))
	f.put(second)
	version := func(versions ...job.Revision) store.Condition { return store.Condition{Versions: versions} }
	old, present := first.Job.Version, second.Job.Version
	before, pending := f.job(name("a")), f.pending(name("a"))
	for what, condition := range map[string]store.Condition{
		"a version that was replaced": version(old), "the version of another job": version(other.Job.Version),
		"no such version": version("x"), "that there is none": {Absent: true},
	} {
		expectSame(f, what, cancel(condition, name("a")), []store.CancelResult{refused})
	}
	expectSame(f, "the job", f.job(name("a")), before)
	expectSame(f, "its pending occurrences", f.pending(name("a")), pending)

	f.pause(name("a"), epoch.Add(2*time.Second))
	expectSame(f, "the version before a pause", cancel(version(present), name("a")), []store.CancelResult{refused})
	paused := f.job(name("a")).Version
	expectSame(f, "the versions of two jobs", cancel(version(old, other.Job.Version), name("a"), name("b"), name("none")),
		[]store.CancelResult{refused, {Found: true, Cancelled: 2}, refused})
	expectSame(f, "the present version", cancel(version(old, paused), name("a")),
		[]store.CancelResult{{Found: true, Cancelled: 2}})
	expectSame(f, "the same again", cancel(version(old, paused), name("a")), []store.CancelResult{refused})

	expectSame(f, "that there is one, where only a redriven occurrence is", cancel(store.Condition{Present: true}, name("own")),
		[]store.CancelResult{refused})
	expect(f, "pending", len(f.pending(name("own"))), 1)
	f.put(newPut(name("c"), epoch, time.Hour))
	expectSame(f, "that there is one", cancel(store.Condition{Present: true}, name("c")),
		[]store.CancelResult{{Found: true, Cancelled: 1}})
	expectSame(f, "that there is none", cancel(store.Condition{Absent: true}, name("own"), name("none")),
		[]store.CancelResult{{Found: true, Cancelled: 1}, {}})
	expect(f, "claimed after all", len(f.claim(epoch.Add(24*time.Hour), 10)), 0)
}

// testCancelRace: of cancels, puts and amendments for one version, exactly one takes effect, completely.
func testCancelRace(f *fixture) {
	const changes = 9
	handles := []store.Store{f.handle(), f.handle()}
	p := newPut(name("k"), epoch, time.Hour)
	f.putOn(handles[0], p)
	only := store.Condition{Versions: []job.Revision{p.Job.Version}}
	errs, versions := make([]error, changes), make([]job.Revision, changes)
	var group sync.WaitGroup
	for i := range changes {
		s := handles[i/3%2]
		switch i % 3 {
		case 0:
			group.Go(func() {
				asked := store.Asked{Now: epoch, If: only}
				results, err := s.Cancel(f.Context(), []job.Name{name("k")}, asked)
				if errs[i] = err; err == nil {
					errs[i] = results[0].Err
				}
			})
		case 1:
			put := newPut(name("k"), epoch, 2*time.Hour)
			put.If, versions[i] = only, put.Job.Version
			group.Go(func() { errs[i] = s.Put(f.Context(), []store.Put{put})[0].Err })
		default:
			a := amendment(p.Job, p.Job.Version, epoch)
			versions[i] = a.Version
			group.Go(func() { errs[i] = s.Amend(f.Context(), a) })
		}
	}
	group.Wait()

	winners := 0
	var left job.Revision // empty if a cancel won
	for i, err := range errs {
		switch {
		case err == nil:
			winners++
			left = versions[i]
		case !errors.Is(err, store.ErrPrecondition) && !errors.Is(err, store.ErrNotFound):
			f.Errorf("change %d answers %v", i, err)
		}
	}
	expect(f, "changes that took effect", winners, 1)
	status, err := store.ReadJob(f.Context(), f.store(), name("k"))
	expect(f, "the job is gone", errors.Is(err, store.ErrNotFound), left == "")
	expect(f, "version", status.Version, left)
	want := 1
	if left == "" {
		want = 0
	}
	expect(f, "fired", len(f.drain(epoch.Add(3*time.Hour))), want)
}

// testCancelRacingPut: a put that races cancels of the version before it is never undone, and all answers are true.
func testCancelRacingPut(f *fixture) {
	const jobs = 8
	handles := []store.Store{f.handle(), f.handle()}
	var group sync.WaitGroup
	var after [jobs]store.Put
	var puts [jobs]store.PutResult
	var cancels [jobs]store.CancelResult
	for i := range jobs {
		n := name("k" + strconv.Itoa(i))
		before := newPut(n, epoch, time.Hour)
		after[i] = newPut(n, epoch.Add(time.Second), 2*time.Hour)
		f.putOn(handles[0], before)
		group.Go(func() { puts[i] = handles[i%2].Put(f.Context(), []store.Put{after[i]})[0] })
		group.Go(func() {
			asked := store.Asked{Now: epoch, If: store.Condition{Versions: []job.Revision{before.Job.Version}}}
			results, err := handles[(i+1)%2].Cancel(f.Context(), []job.Name{n}, asked)
			if cancels[i].Err = err; err == nil {
				cancels[i] = results[0]
			}
		})
	}
	group.Wait()
	for i := range jobs {
		f.must(puts[i].Err)
		expect(f, "version", f.job(after[i].Job.Name).Version, after[i].Job.Version)
		want := store.CancelResult{Err: store.ErrPrecondition}
		if puts[i].Replaced == "" {
			want = store.CancelResult{Found: true, Cancelled: 1}
		}
		expect(f, "the answer of the cancel", cancels[i], want)
	}
	expect(f, "fired", len(f.drain(epoch.Add(24*time.Hour))), jobs)
}
