package storetest

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

var expanderTests = []namedTest{
	{"put of a recurring job", testPutRecurring},
	{"claim jobs in the order in which they are due", testClaimJobsOrder},
	{"claim jobs for one lease", testClaimJobsLease},
	{"claim jobs skips jobs that are not to be expanded", testClaimJobsNone},
	{"advance inserts and moves the cursor", testAdvance},
	{"a schedule ends", testExpandEnds},
	{"a job to be expanded is live", testExpandLive},
	{"pause and resume of a recurring job", testExpandPaused},
}

// far is the expiry of a job whose end is unknown.
var far = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)

// newRecurring returns a submission of a crontab at now.
func newRecurring(n job.Name, now time.Time, crontab string) store.Put {
	return newEnding(n, now, crontab, time.Time{})
}

// newEnding returns a submission of a crontab that ends.
func newEnding(n job.Name, now time.Time, crontab string, end time.Time) store.Put {
	j := newPut(n, now).Job
	j.Schedule.EndAt = end
	var err error
	if j.Schedule.Crontab, err = job.ParseCrontab(crontab); err != nil {
		panic(err)
	}
	j.ExpiresAt = far
	return begin(j, now)
}

func (f *fixture) claimJobs(now time.Time, limit int) store.ClaimedJobs {
	f.Helper()
	claimed, err := f.store().ClaimJobs(f.Context(), store.ClaimJobsParams{Now: now, Lease: lease, Limit: limit})
	f.must(err)
	return claimed
}

// claimJob claims at now and expects exactly one job.
func (f *fixture) claimJob(now time.Time) (j job.Job, token string) {
	f.Helper()
	claimed := f.claimJobs(now, 10)
	if len(claimed.Jobs) != 1 {
		f.Fatalf("claimed %d jobs at %s, want 1", len(claimed.Jobs), job.FormatTime(now))
	}
	return claimed.Jobs[0], claimed.Token
}

func (f *fixture) advance(advances ...store.Advance) {
	f.Helper()
	f.must(f.store().Advance(f.Context(), advances))
}

// advanceOf returns the advance of a claimed job at now. A job whose schedule ends expires a day later.
func advanceOf(j job.Job, token string, now time.Time) store.Advance {
	x, err := j.Expand(now, expansion)
	if err != nil {
		panic(err)
	}
	a := store.Advance{
		Name: j.Name, Revision: j.Revision, From: j.Cursor, Token: token,
		Occurrences: x.Occurrences, Cursor: x.Cursor, ExpandAt: x.ExpandAt, Missed: x.Missed, Trouble: x.Trouble,
	}
	if x.ExpandAt.IsZero() {
		a.ExpiresAt = now.Add(24 * time.Hour)
	}
	return a
}

// ticks returns the instants of a period that are after one time and up to another.
func ticks(from time.Time, period time.Duration, upTo time.Time) (all []time.Time) {
	for at := from.Add(period); !at.After(upTo); at = at.Add(period) {
		all = append(all, at)
	}
	return all
}

// expectFired expects the claimed occurrences of a job to be exactly these.
func expectFired(t testing.TB, what string, n job.Name, all []store.Claimed, want []time.Time) {
	t.Helper()
	fired := map[time.Time]int{}
	for _, c := range all {
		if c.Name == n {
			fired[c.Timestamp]++
		}
	}
	for _, at := range want {
		if fired[at] != 1 {
			t.Errorf("%s: %s fired %d times at %s, want once", what, n, fired[at], job.FormatTime(at))
		}
		delete(fired, at)
	}
	for at, times := range fired {
		t.Errorf("%s: %s fired %d times at %s, want never", what, n, times, job.FormatTime(at))
	}
}

func testPutRecurring(f *fixture) {
	p := newEnding(name("k"), epoch, "@every 10s", epoch.Add(time.Hour))
	p.Job.Options.CatchUp, p.Job.Options.Deadline = job.CatchUpAll, job.Duration(time.Hour)
	f.put(p)
	got := f.job(name("k"))
	expect(f, "cursor", got.Cursor, p.Job.Cursor)
	expect(f, "expand", got.ExpandAt, p.Job.ExpandAt)
	expect(f, "expires", got.ExpiresAt, far)
	expect(f, "live", got.Live(), true)
	expect(f, "schedule", string(got.Schedule.Encode()), string(p.Job.Schedule.Encode()))
	expectOptions(f, "options", got.Options, p.Job.Options)
	f.expectTimes("pending", timestamps(f.pending(name("k")), occurrenceTime), ticks(epoch, 10*time.Second, got.Cursor)...)
	expectOptions(f, "claimed options", f.claimOne(epoch.Add(10*time.Second)).Options, p.Job.Options)

	listed := f.jobs(store.JobFilter{})[0]
	expect(f, "listed cursor", listed.Cursor, got.Cursor)
	expect(f, "listed as live", listed.Live(), true)

	// Either kind replaces the other.
	f.put(newPut(name("k"), epoch, time.Hour))
	got = f.job(name("k"))
	expect(f, "recurs when replaced by instants", !got.Cursor.IsZero() || !got.ExpandAt.IsZero(), false)
	expect(f, "jobs to expand", len(f.claimJobs(epoch.Add(time.Hour), 10).Jobs), 0)
	p = newRecurring(name("k"), epoch, "@every 5s")
	f.put(p)
	got = f.job(name("k"))
	expect(f, "cursor of the replacement", got.Cursor, p.Job.Cursor)
	expect(f, "expand of the replacement", got.ExpandAt, p.Job.ExpandAt)
}

func testClaimJobsOrder(f *fixture) {
	puts := map[string]store.Put{}
	for i, key := range []string{"b", "c", "a"} {
		puts[key] = newRecurring(name(key), epoch.Add(time.Duration(i)*time.Second), "@every 10s")
	}
	for _, key := range []string{"a", "b", "c"} {
		f.put(puts[key])
	}
	first := puts["b"].Job.ExpandAt
	expect(f, "claimed before any is due", len(f.claimJobs(first.Add(-time.Millisecond), 10).Jobs), 0)
	expect(f, "claimed when one is due", len(f.claimJobs(first, 10).Jobs), 1)
	f.put(puts["b"]) // this undoes the claim

	now := epoch.Add(time.Minute)
	order := ""
	tokens := map[string]bool{}
	for _, want := range []struct {
		n    int
		more bool
	}{{2, true}, {1, false}, {0, false}} {
		claimed := f.claimJobs(now, 2)
		expect(f, "claimed", len(claimed.Jobs), want.n)
		expect(f, "more", claimed.More, want.more)
		for _, j := range claimed.Jobs {
			tokens[claimed.Token] = true
			order += j.Key
			p := puts[j.Key].Job
			expect(f, "name", j.Name, p.Name)
			expect(f, "revision", j.Revision, p.Revision)
			expect(f, "version", j.Version, p.Version)
			expect(f, "cursor", j.Cursor, p.Cursor)
			expect(f, "created", j.CreatedAt, p.CreatedAt)
			expect(f, "schedule", string(j.Schedule.Encode()), string(p.Schedule.Encode()))
			expectOptions(f, "options", j.Options, p.Options)
		}
	}
	expect(f, "order", order, "bca")
	expect(f, "tokens of two claims", len(tokens), 2)
	expect(f, "the empty token", tokens[""], false)
}

func testClaimJobsLease(f *fixture) {
	f.put(newRecurring(name("k"), epoch, "@every 10s"))
	now := f.job(name("k")).ExpandAt
	stale, staleToken := f.claimJob(now)
	expect(f, "claimed just before the lease ends", len(f.claimJobs(now.Add(lease-time.Millisecond), 10).Jobs), 0)

	now = now.Add(lease)
	taken, token := f.claimJob(now)
	expect(f, "cursor", taken.Cursor, stale.Cursor)
	expect(f, "a fresh token", token != staleToken, true)
	a := advanceOf(taken, token, now)
	f.advance(a)
	expect(f, "claimed before the next is due", len(f.claimJobs(a.ExpandAt.Add(-time.Millisecond), 10).Jobs), 0)
	next, _ := f.claimJob(a.ExpandAt)
	expect(f, "cursor of the next", next.Cursor, a.Cursor)
}

func testClaimJobsNone(f *fixture) {
	f.put(newPut(name("instants"), epoch, 0, time.Hour))
	f.put(newPut(name("finished"), epoch))
	f.put(newRecurring(name("paused"), epoch, "@every 10s"))
	f.pause(name("paused"), epoch)
	f.put(newRecurring(name("cancelled"), epoch, "@every 10s"))
	f.cancel(name("cancelled"))
	// The submission of this job has made all of its occurrences.
	f.put(newEnding(name("ended"), epoch, "@every 10s", epoch.Add(15*time.Second)))
	expect(f, "the end", f.job(name("ended")).ExpandAt.IsZero(), true)
	claimed := f.claimJobs(epoch.Add(24*time.Hour), 10)
	expect(f, "claimed", len(claimed.Jobs), 0)
	expect(f, "more", claimed.More, false)
}

func testAdvance(f *fixture) {
	var puts []store.Put
	for _, key := range []string{"a", "b"} {
		puts = append(puts, newRecurring(name(key), epoch, "@every 10s"))
		f.put(puts[len(puts)-1])
	}
	now := epoch.Add(time.Minute) // the cursor is four ticks behind; the catch-up covers the latest tick
	claimed := f.claimJobs(now, 10)
	// Both are due at the same time, and may come in any order.
	slices.SortFunc(claimed.Jobs, func(a, b job.Job) int { return cmp.Compare(a.Key, b.Key) })
	var advances []store.Advance
	for _, j := range claimed.Jobs {
		advances = append(advances, advanceOf(j, claimed.Token, now))
	}
	expect(f, "advances", len(advances), 2)
	f.advance(advances...)
	f.advance() // no jobs
	for i, a := range advances {
		got := f.job(a.Name)
		expect(f, "cursor", got.Cursor, a.Cursor)
		expect(f, "expand", got.ExpandAt, a.ExpandAt)
		expect(f, "expires", got.ExpiresAt, far)
		expect(f, "missed", got.Missed, 3)
		expect(f, "revision", got.Revision, puts[i].Job.Revision)
		expect(f, "version", got.Version, puts[i].Job.Version)
		expect(f, "schedule", string(got.Schedule.Encode()), string(puts[i].Job.Schedule.Encode()))
		var ids []job.ID
		for _, o := range append(puts[i].Occurrences, a.Occurrences...) {
			ids = append(ids, o.ID)
		}
		var pending []job.ID
		for _, o := range f.pending(a.Name) {
			pending = append(pending, o.ID)
			expect(f, "due", o.DueAt, o.Timestamp)
		}
		expectSame(f, "pending", pending, ids)
	}
	// And once more, from that time on.
	now = advances[0].ExpandAt
	claimed = f.claimJobs(now, 1)
	a := advanceOf(claimed.Jobs[0], claimed.Token, now)
	a.Missed = 2
	f.advance(a)
	expect(f, "missed in all", f.job(a.Name).Missed, 5)
	var want []time.Time
	for _, at := range ticks(epoch, 10*time.Second, a.Cursor) {
		if late := at.Sub(epoch); late <= 20*time.Second || late >= time.Minute {
			want = append(want, at)
		}
	}
	expectFired(f, "in the end", a.Name, f.drain(epoch), want)
}

func testExpandEnds(f *fixture) {
	end := epoch.Add(45 * time.Second)
	f.put(newEnding(name("k"), epoch, "@every 10s", end))
	var a store.Advance
	for rounds := 0; ; rounds++ {
		now := f.job(name("k")).ExpandAt
		if now.IsZero() {
			break
		}
		if rounds == 10 {
			f.Fatal("the schedule does not end")
		}
		j, token := f.claimJob(now)
		a = advanceOf(j, token, now)
		f.advance(a)
	}
	got := f.job(name("k"))
	expect(f, "cursor", f.job(name("k")).Cursor.IsZero(), true)
	expect(f, "expires", got.ExpiresAt, a.ExpiresAt)
	expect(f, "live while an occurrence is left", got.Live(), true)
	expect(f, "claimed after the end", len(f.claimJobs(far, 10).Jobs), 0)

	expectFired(f, "in all", name("k"), f.drain(epoch), ticks(epoch, 10*time.Second, end))
	expect(f, "live in the end", f.job(name("k")).Live(), false)
	expect(f, "swept before it expires", f.sweep(store.SweepParams{Now: a.ExpiresAt.Add(-time.Millisecond)}),
		store.Swept{})
	expect(f, "swept", f.sweep(store.SweepParams{Now: a.ExpiresAt}), store.Swept{Jobs: 1})
}

// testExpandLive: a job between two occurrences, neither of which is in the store, has not finished.
func testExpandLive(f *fixture) {
	p := newRecurring(name("k"), epoch, "@every 10s")
	p.Job.ExpiresAt = epoch
	f.put(p)
	now := epoch.Add(time.Hour)
	expect(f, "fired", len(f.drain(now)), len(p.Occurrences))
	expect(f, "live", f.job(name("k")).Live(), true)
	expect(f, "swept", f.sweep(store.SweepParams{Now: now}), store.Swept{})
	f.claimJob(now)
	expect(f, "live while it is claimed", f.job(name("k")).Live(), true)
	expect(f, "swept while it is claimed", f.sweep(store.SweepParams{Now: now.Add(2 * time.Hour)}), store.Swept{})
	expect(f, "cancelled", f.cancel(name("k"))[0], store.CancelResult{Found: true})
}

func testExpandPaused(f *fixture) {
	p := newRecurring(name("k"), epoch, "@every 10s")
	p.Job.ExpiresAt = epoch
	f.put(p)
	expect(f, "fired", len(f.drain(epoch)), len(p.Occurrences))
	f.pause(name("k"), epoch)
	got := f.job(name("k"))
	expect(f, "live", got.Live(), true)
	expect(f, "cursor", got.Cursor, p.Job.Cursor)
	now := epoch.Add(time.Hour)
	expect(f, "claimed", len(f.claimJobs(now, 10).Jobs), 0)
	expect(f, "swept", f.sweep(store.SweepParams{Now: now}), store.Swept{})
	expect(f, "listed as live", f.jobs(store.JobFilter{})[0].Live(), true)

	f.resume(name("k"), now)
	expect(f, "expand", f.job(name("k")).ExpandAt, now)
	j, token := f.claimJob(now)
	expect(f, "claimed cursor", j.Cursor, p.Job.Cursor)
	a := advanceOf(j, token, now)
	f.advance(a)
	expect(f, "cursor after the pause", f.job(name("k")).Cursor, a.Cursor)

	// A replacement stays paused.
	f.pause(name("k"), now)
	p = newRecurring(name("k"), now, "@every 5s")
	f.put(p)
	expect(f, "cursor of the replacement", f.job(name("k")).Cursor, p.Job.Cursor)
	expect(f, "live, of the replacement", f.job(name("k")).Live(), true)
	expect(f, "claimed of the replacement", len(f.claimJobs(now.Add(time.Hour), 10).Jobs), 0)
	f.resume(name("k"), now.Add(time.Hour))
	f.claimJob(now.Add(time.Hour))

	// A job that does not recur has nothing to expand.
	f.pause(name("k"), now)
	f.put(newPut(name("k"), now, time.Hour))
	f.resume(name("k"), now.Add(time.Hour))
	expect(f, "claimed of instants", len(f.claimJobs(now.Add(2*time.Hour), 10).Jobs), 0)
}
