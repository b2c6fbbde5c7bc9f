package storetest

import (
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

var amendTests = []namedTest{
	{"amend changes the callback and leaves the instants", testAmend},
	{"amend is for one version", testAmendVersions},
	{"amend leaves a recurring schedule alone", testAmendRecurring},
	{"one of racing changes of a version wins", testAmendRace},
}

// amendment returns a change of a job's callback and options.
func amendment(j job.Job, of job.Revision, now time.Time) store.Amendment {
	a := store.Amendment{
		Name: j.Name, Of: of, Version: job.NewRevision(now),
		Callback: job.Callback{Type: "rabbitmq", Data: []byte(`{ "queue":"q", "payload":"amended" }`)},
		Options:  j.Options,
		Now:      now,
	}
	a.Options.Deadline = job.Duration(48 * time.Hour)
	a.Options.Trace = traced
	return a
}

func testAmend(f *fixture) {
	p := newPut(name("k"), epoch, 0, time.Hour, 2*time.Hour)
	p.Job.Options.Retry.MaxAttempts = 7
	f.put(p)
	f.put(newPut(name("other"), epoch, time.Hour))
	held := f.claimOne(epoch)
	before, pending := f.job(name("k")), f.pending(name("k"))

	a := amendment(p.Job, p.Job.Version, epoch.Add(time.Minute))
	f.must(f.store().Amend(f.Context(), a))
	want := before
	want.Version, want.UpdatedAt, want.Callback, want.Options = a.Version, a.Now, a.Callback, a.Options
	expectSame(f, "the job", f.job(name("k")), want)
	expectSame(f, "pending", f.pending(name("k")), pending)

	f.settle(settlement(held, store.Retry)) // due again in an hour, like the second one and the other job's
	for _, c := range f.claim(epoch.Add(time.Hour), 10) {
		if c.Name == name("other") {
			expect(f, "callback of the other job", c.Callback.Type, "http")
			continue
		}
		expect(f, "revision", c.Revision, p.Job.Revision)
		expect(f, "callback type", c.Callback.Type, a.Callback.Type)
		expect(f, "callback data", string(c.Callback.Data), string(a.Callback.Data))
		expectOptions(f, "options", c.Options, a.Options)
		pending = pending[1:]
	}
	expect(f, "left to claim of the amended job", len(pending), 1)

	a = amendment(p.Job, a.Version, epoch.Add(time.Hour))
	a.Options = job.Options{}
	f.must(f.store().Amend(f.Context(), a))
	expectOptions(f, "options after they were unset", f.job(name("k")).Options, job.Options{})
}

func testAmendVersions(f *fixture) {
	amend := func(what string, a store.Amendment, want error) {
		f.Helper()
		if err := f.store().Amend(f.Context(), a); !errors.Is(err, want) {
			f.Errorf("%s: amend answers %v, want %v", what, err, want)
		}
	}
	p := newPut(name("k"), epoch, time.Hour)
	amend("of no job", amendment(p.Job, p.Job.Version, epoch), store.ErrNotFound)
	f.put(p)
	theirs := p.Job
	theirs.Tenant = "other"
	amend("of another tenant", amendment(theirs, p.Job.Version, epoch), store.ErrNotFound)
	before := f.job(name("k"))
	amend("of another version", amendment(p.Job, job.NewRevision(epoch), epoch), store.ErrPrecondition)
	expectSame(f, "the job after a refusal", f.job(name("k")), before)

	first := amendment(p.Job, p.Job.Version, epoch)
	amend("of the present version", first, nil)
	amend("of the version before", amendment(p.Job, p.Job.Version, epoch), store.ErrPrecondition)
	expect(f, "version", f.job(name("k")).Version, first.Version)

	again := newPut(name("k"), epoch, 2*time.Hour)
	again.If = store.Condition{Versions: []job.Revision{p.Job.Version}}
	result := f.store().Put(f.Context(), []store.Put{again})[0]
	expect(f, "a put for the version before is refused", errors.Is(result.Err, store.ErrPrecondition), true)
	again.If.Versions = append(again.If.Versions, first.Version)
	expect(f, "a put for the present version replaces", f.put(again).Replaced, p.Job.Revision)
	amend("of a version that was replaced", amendment(p.Job, first.Version, epoch), store.ErrPrecondition)

	paused := f.pause(name("k"), epoch)
	amend("of the version before the pause", amendment(p.Job, again.Job.Version, epoch), store.ErrPrecondition)
	amend("of the paused one", amendment(p.Job, paused, epoch), nil)
	expect(f, "paused", f.job(name("k")).PausedAt, epoch)

	last := f.job(name("k")).Version
	f.cancel(name("k"))
	amend("of a cancelled job", amendment(p.Job, last, epoch), store.ErrNotFound)
}

func testAmendRecurring(f *fixture) {
	p := newRecurring(name("k"), epoch, "@every 10s")
	f.put(p)
	before := f.job(name("k"))
	now := before.ExpandAt
	claimed := f.claimJobs(now, 10)
	a := amendment(p.Job, p.Job.Version, now)
	f.must(f.store().Amend(f.Context(), a))
	f.advance(advanceOf(claimed.Jobs[0], claimed.Token, now)) // the claim is older than the amendment

	after := f.job(name("k"))
	expect(f, "the cursor moved", after.Cursor.After(before.Cursor), true)
	expect(f, "version", after.Version, a.Version)
	expectOptions(f, "options", after.Options, a.Options)
	fired := f.drain(epoch)
	expect(f, "fired", len(fired), int(after.Cursor.Sub(epoch)/(10*time.Second)))
	for _, c := range fired {
		expect(f, "callback data", string(c.Callback.Data), string(a.Callback.Data))
	}
}

// testAmendRace: of amendments and puts for one version, exactly one takes effect, completely.
func testAmendRace(f *fixture) {
	const changes = 12
	handles := []store.Store{f.handle(), f.handle()}
	p := newPut(name("k"), epoch, time.Hour)
	f.putOn(handles[0], p)
	data := make(map[job.Revision]string) // by version
	revision := make(map[job.Revision]job.Revision)
	errs := make([]error, changes)
	var group sync.WaitGroup
	for i := range changes {
		if i%2 == 0 {
			a := amendment(p.Job, p.Job.Version, epoch)
			a.Callback.Data = []byte(strconv.Itoa(i))
			data[a.Version], revision[a.Version] = string(a.Callback.Data), p.Job.Revision
			group.Go(func() { errs[i] = handles[i/2%2].Amend(f.Context(), a) })
			continue
		}
		put := newPut(name("k"), epoch, 2*time.Hour)
		put.Job.Callback.Data = []byte(strconv.Itoa(i))
		put.If = store.Condition{Versions: []job.Revision{p.Job.Version}}
		data[put.Job.Version], revision[put.Job.Version] = string(put.Job.Callback.Data), put.Job.Revision
		group.Go(func() { errs[i] = handles[i/2%2].Put(f.Context(), []store.Put{put})[0].Err })
	}
	group.Wait()

	winners := 0
	for _, err := range errs {
		if err == nil {
			winners++
		} else if !errors.Is(err, store.ErrPrecondition) {
			f.Errorf("a change answers %v", err)
		}
	}
	expect(f, "changes that took effect", winners, 1)
	got := f.job(name("k"))
	expect(f, "callback data", string(got.Callback.Data), data[got.Version])
	expect(f, "revision", got.Revision, revision[got.Version])
	fired := f.drain(epoch.Add(time.Hour))
	expect(f, "fired", len(fired), 1)
	for _, c := range fired {
		expect(f, "revision of the fired occurrence", c.Revision, revision[got.Version])
		expect(f, "callback data of the fired occurrence", string(c.Callback.Data), data[got.Version])
	}
}
