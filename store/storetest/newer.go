package storetest

import (
	"errors"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

var newerTests = []namedTest{
	{"a put leaves a job that came after it", testPutSuperseded},
	{"a put leaves a change that came after it", testPutSupersededByChange},
	{"a put among others leaves a job that came after it", testPutSupersededMany},
	{"a cancel leaves a job that came after it", testCancelSuperseded},
}

// submitted returns the span of the versions that come after a submission at a time.
func submitted(at time.Time) store.Span {
	return store.Span{After: job.NewRevision(at), Until: job.NewRevision(at.Add(store.Within))}
}

func testPutSuperseded(f *fixture) {
	there := newPut(name("k"), epoch.Add(time.Second), time.Hour)
	f.put(there)
	before := f.job(name("k"))
	for _, c := range []struct {
		what  string
		newer store.Span
		cond  store.Condition
		from  store.Replaced
		want  error
	}{
		{"taken later", submitted(epoch), store.Condition{}, store.Replaced{}, store.ErrSuperseded},
		{"taken later, and there should be none", submitted(epoch), store.Condition{Absent: true}, store.Replaced{},
			store.ErrSuperseded},
		{"taken later, and there is one as there should be", submitted(epoch), store.Condition{Present: true},
			store.Replaced{}, store.ErrSuperseded},
		{"taken later, and another was meant", submitted(epoch),
			store.Condition{Versions: []job.Revision{job.NewRevision(epoch)}}, store.Replaced{}, store.ErrSuperseded},
		{"taken later, though it was meant", submitted(epoch), store.Condition{}, store.Replaced{Version: there.Job.Version},
			store.ErrSuperseded},
		{"the last of the span", store.Span{After: job.NewRevision(epoch), Until: there.Job.Version}, store.Condition{},
			store.Replaced{}, store.ErrSuperseded},
		{"taken before, and another was meant", submitted(epoch.Add(2 * time.Second)), store.Condition{Absent: true},
			store.Replaced{}, store.ErrPrecondition},
	} {
		p := newPut(name("k"), epoch, 2*time.Hour)
		p.Newer, p.If, p.From = c.newer, c.cond, c.from
		result := f.store().Put(f.Context(), []store.Put{p})[0]
		if !errors.Is(result.Err, c.want) {
			f.Errorf("%s: put answers %v, want %v", c.what, result.Err, c.want)
		}
		expectSame(f, c.what+": the job", f.job(name("k")), before)
		f.expectTimes(c.what+": pending", timestamps(f.pending(name("k")), occurrenceTime), there.Job.Schedule.Instants...)
	}
	for _, c := range []struct {
		what  string
		newer func(present job.Revision) store.Span
	}{
		{"taken before", func(job.Revision) store.Span { return submitted(epoch.Add(2 * time.Second)) }},
		{"taken by a clock far ahead", func(job.Revision) store.Span { return submitted(epoch.Add(-time.Hour)) }},
		{"the one that the span comes after", func(present job.Revision) store.Span {
			return store.Span{After: present, Until: job.NewRevision(epoch.Add(time.Hour))}
		}},
	} {
		present := f.job(name("k"))
		p := newPut(name("k"), epoch.Add(time.Second), 2*time.Hour)
		p.Newer = c.newer(present.Version)
		expect(f, c.what+": replaced", f.put(p).Replaced, present.Revision)
	}
	p := newPut(name("new"), epoch, 3*time.Hour)
	p.Newer = submitted(epoch)
	expect(f, "replaced, of none", f.put(p).Replaced, "")
	f.expectTimes("all that can be claimed", timestamps(f.drain(epoch.Add(24*time.Hour)), claimedTime),
		epoch.Add(time.Second+2*time.Hour), epoch.Add(3*time.Hour))
}

// testPutSupersededByChange: any change of the job by a client counts, not only a replacement.
func testPutSupersededByChange(f *fixture) {
	later := epoch.Add(10 * time.Second)
	for _, c := range []struct {
		what   string
		change func(n job.Name)
	}{
		{"amended", func(n job.Name) {
			present := f.job(n)
			f.must(f.store().Amend(f.Context(), amendment(present.Job, present.Version, later)))
		}},
		{"paused", func(n job.Name) { f.pause(n, later) }},
		{"paused and resumed", func(n job.Name) { f.pause(n, later); f.resume(n, later) }},
	} {
		n := name(c.what)
		f.put(newPut(n, epoch, time.Hour))
		c.change(n)
		before := f.job(n)
		p := newPut(n, epoch.Add(time.Second), 2*time.Hour)
		p.Newer = submitted(epoch.Add(time.Second))
		result := f.store().Put(f.Context(), []store.Put{p})[0]
		expect(f, c.what+": superseded", errors.Is(result.Err, store.ErrSuperseded), true)
		expectSame(f, c.what+": the job", f.job(n), before)
	}
}

func testPutSupersededMany(f *fixture) {
	f.put(newPut(name("old"), epoch.Add(-time.Hour), 2*time.Hour))
	newer := newPut(name("newer"), epoch.Add(time.Second), time.Hour)
	f.put(newer)
	var puts []store.Put
	for _, key := range []string{"old", "newer", "new"} {
		p := newPut(name(key), epoch, 2*time.Hour)
		p.Newer = submitted(epoch)
		puts = append(puts, p)
	}
	results := f.store().Put(f.Context(), puts)
	f.must(results[0].Err)
	expect(f, "superseded", errors.Is(results[1].Err, store.ErrSuperseded), true)
	f.must(results[2].Err)
	expect(f, "revision of the newer", f.job(name("newer")).Revision, newer.Job.Revision)
	f.expectTimes("all that can be claimed", timestamps(f.drain(epoch.Add(24*time.Hour)), claimedTime),
		epoch.Add(2*time.Hour), epoch.Add(time.Second+time.Hour), epoch.Add(2*time.Hour))
}

func testCancelSuperseded(f *fixture) {
	later := epoch.Add(time.Second)
	f.put(newPut(name("old"), epoch.Add(-time.Second), time.Hour))
	f.put(newPut(name("newer"), later, time.Hour))
	f.trigger(trigger(name("newer"), epoch, 1))
	f.put(newPut(name("paused"), epoch.Add(-time.Second), time.Hour))
	f.pause(name("paused"), later)
	before, pending, paused := f.job(name("newer")), f.pending(name("newer")), f.job(name("paused"))

	cancel := func(newer store.Span) []store.CancelResult {
		names := []job.Name{name("old"), name("newer"), name("none"), name("paused")}
		results, err := f.store().Cancel(f.Context(), names, store.Asked{Now: epoch, Newer: newer})
		f.must(err)
		return results
	}
	expectSame(f, "results", cancel(submitted(epoch)), []store.CancelResult{
		{Found: true, Cancelled: 1}, {Err: store.ErrSuperseded}, {}, {Err: store.ErrSuperseded},
	})
	expectSame(f, "the newer job", f.job(name("newer")), before)
	expectSame(f, "its pending occurrences", f.pending(name("newer")), pending)
	expectSame(f, "the job paused later", f.job(name("paused")), paused)

	expectSame(f, "results of a later one", cancel(submitted(later.Add(time.Second))), []store.CancelResult{
		{}, {Found: true, Cancelled: 2}, {}, {Found: true, Cancelled: 1},
	})
	// A standalone occurrence without a job has no version, so it counts as earlier.
	buried := f.bury(name("own"), later)
	f.cancel(name("own"))
	_, err := f.store().SettleDead(f.Context(), redrive(job.DefaultTenant, later, buried.ID))
	f.must(err)
	results, err := f.store().Cancel(f.Context(), []job.Name{name("own")},
		store.Asked{Now: epoch, Newer: submitted(epoch)})
	f.must(err)
	expectSame(f, "results without a job", results, []store.CancelResult{{Found: true, Cancelled: 1}})
	expect(f, "claimed after all", len(f.claim(epoch.Add(24*time.Hour), 10)), 0)
}
