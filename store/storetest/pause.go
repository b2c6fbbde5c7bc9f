package storetest

import (
	"errors"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

var pauseTests = []namedTest{
	{"a paused job's occurrences are put back", testPause},
	{"a paused backlog costs other jobs nothing", testPauseBacklog},
	{"an early claim of a paused job's occurrences", testPauseEarly},
	{"a paused backlog does not hold up a claimer with one slot", testPauseBacklogOneByOne},
	{"a paused job whose schedule ends", testPauseEnds},
	{"a finished paused job is put again", testPauseAnew},
	{"resume on a clock that is behind", testResumeBehind},
	{"a standalone occurrence ignores a pause", testPauseOwn},
	{"a held occurrence is settled during a pause", testPauseHeld},
	{"a stale claim is put back during a pause", testPauseStale},
	{"pause twice, and of no job", testPauseTwice},
	{"a replacement stays paused", testPauseReplaced},
	{"cancel while paused", testPauseCancelled},
	{"sweep while paused", testPauseSwept},
	{"resume brings forward", testResume},
	{"resume again, and of no job", testResumeAgain},
	{"pause and resume racing claims", testPauseRace},
	{"resume racing a claim that puts back", testResumeRace},
}

// pause pauses an existing job, and returns its new version.
func (f *fixture) pause(n job.Name, now time.Time) job.Revision {
	f.Helper()
	version := job.NewRevision(now)
	f.must(f.store().Pause(f.Context(), n, version, now))
	return version
}

// resume resumes an existing job, and returns its new version, which changes only if it was paused.
func (f *fixture) resume(n job.Name, now time.Time) job.Revision {
	f.Helper()
	version := job.NewRevision(now)
	f.must(f.store().Resume(f.Context(), n, version, now))
	return version
}

func testPause(f *fixture) {
	p := newPut(name("k"), epoch, 0, time.Millisecond, time.Hour)
	f.put(p)
	f.put(newPut(name("other"), epoch, time.Millisecond))
	now := epoch.Add(time.Second)
	version := f.pause(name("k"), now)

	got := f.job(name("k"))
	expect(f, "paused", got.PausedAt, now)
	expect(f, "version", got.Version, version)
	expect(f, "updated", got.UpdatedAt, now)
	expect(f, "revision", got.Revision, p.Job.Revision)
	expect(f, "live", got.Live(), true)
	listed := f.jobs(store.JobFilter{Prefix: "k"})[0]
	expect(f, "listed as paused", listed.PausedAt, now)
	expect(f, "listed version", listed.Version, version)

	claim := f.tryClaim(now, 10)
	expect(f, "claimed", len(claim.Occurrences), 1)
	expect(f, "claimed of", claim.Occurrences[0].Name, name("other"))
	expect(f, "more", claim.More(), true)
	expect(f, "claimed at the same time", len(f.tryClaim(now, 10).Occurrences), 0)
	expect(f, "more at the same time", f.tryClaim(now, 10).More(), false)

	// The occurrences are unchanged, but due one lease later or more.
	for i, o := range f.pending(name("k")) {
		expect(f, "id", o.ID, p.Occurrences[i].ID)
		expect(f, "held", o.Held(now), false)
		expect(f, "token", o.Token, "")
		expect(f, "scheduled is unset", o.ScheduledAt.IsZero(), true)
		expect(f, "attempt", o.Attempt, 0)
		expect(f, "timestamp", o.Timestamp, p.Occurrences[i].Timestamp)
		if i == 2 {
			expect(f, "due time of one that was not due", o.DueAt, epoch.Add(time.Hour))
		} else if o.DueAt.Before(now.Add(lease)) || o.DueAt.After(now.Add(2*lease)) {
			f.Errorf("put back to %s after the pause", o.DueAt.Sub(now))
		}
	}
	// The longer the pause, the later they are examined again.
	now = epoch.Add(24 * time.Hour)
	expect(f, "claimed a day later", len(f.claim(now, 10)), 1) // the other job's, whose lease has ended
	for _, o := range f.pending(name("k")) {
		expect(f, "attempt", o.Attempt, 0)
		if o.DueAt.Before(now.Add(5 * time.Minute)) {
			f.Errorf("put back by %s after a day's pause", o.DueAt.Sub(now))
		}
	}
}

func testPauseBacklog(f *fixture) {
	const backlog, limit = 200, 50
	var after []time.Duration
	for i := range backlog {
		after = append(after, time.Duration(i)*time.Millisecond)
	}
	f.put(newPut(name("paused"), epoch, after...))
	f.put(newPut(name("other"), epoch, time.Second))
	f.pause(name("paused"), epoch)
	now := epoch.Add(2 * time.Second)

	claims, claimed := 0, 0
	for more := true; more; claims++ {
		claim := f.tryClaim(now, limit)
		for _, c := range claim.Occurrences {
			expect(f, "claimed of", c.Name, name("other"))
			claimed++
		}
		more = claim.More()
	}
	expect(f, "claimed", claimed, 1)
	if most := backlog/limit + 2; claims > most {
		f.Errorf("it took %d claims to get past the backlog, want at most %d", claims, most)
	}
	expect(f, "claims until it is looked at again", f.nextDue().Before(now.Add(lease)), false)
	spread := map[time.Time]bool{}
	for _, o := range f.pending(name("paused")) {
		spread[o.DueAt] = true
	}
	if len(spread) < backlog/2 {
		f.Errorf("%d are due again at only %d times", backlog, len(spread))
	}
}

func testPauseOwn(f *fixture) {
	buried := f.bury(name("k"), epoch)
	f.put(newPut(name("k"), epoch, time.Second))
	f.pause(name("k"), epoch)
	expect(f, "redriven", f.redrive(buried.ID), 1)
	c := f.claimOne(epoch.Add(time.Minute))
	expect(f, "claimed", c.ID, buried.ID)
	f.settle(settlement(c, store.Retry))
	expect(f, "claimed again", f.claimOne(epoch.Add(time.Hour)).ID, buried.ID)
}

func testPauseHeld(f *fixture) {
	f.put(newPut(name("k"), epoch, 0, time.Millisecond, 2*time.Millisecond, 3*time.Millisecond, 4*time.Millisecond))
	held := f.claim(epoch.Add(time.Second), 10)
	f.pause(name("k"), epoch.Add(time.Second))
	outcomes := []store.Outcome{store.Ack, store.Retry, store.Bury, store.Release, store.Miss}
	for i, outcome := range outcomes {
		f.settle(settlement(held[i], outcome)) // due again an hour after the epoch
	}
	expect(f, "dead letters", len(f.deadLetters(store.DeadLetterFilter{})), 1)
	expect(f, "missed", f.job(name("k")).Missed, 1)
	expect(f, "claimed", len(f.claim(epoch.Add(time.Hour), 10)), 0)
	pending := f.pending(name("k"))
	if len(pending) != 2 {
		f.Fatalf("%d are pending, want those retried and released", len(pending))
	}
	for i, o := range pending {
		expect(f, "put back", o.DueAt.Before(epoch.Add(time.Hour+lease)), false)
		expect(f, "attempt", o.Attempt, 1-i)
		expect(f, "last error", o.LastError, "it failed")
	}
	now := epoch.Add(2 * time.Hour)
	f.resume(name("k"), now)
	again := f.claim(now, 10)
	if len(again) != 2 {
		f.Fatalf("claimed %d after the pause, want 2", len(again))
	}
	for _, c := range again {
		expect(f, "reclaimed", c.Reclaimed, false)
		expect(f, "attempts after the pause", c.Attempt, map[job.ID]int{held[1].ID: 2, held[3].ID: 1}[c.ID])
	}
}

func testPauseStale(f *fixture) {
	f.put(newPut(name("k"), epoch, 0))
	stale := f.claimOne(epoch)
	f.pause(name("k"), epoch)
	now := epoch.Add(lease)
	expect(f, "claimed", len(f.claim(now, 10)), 0)
	o := f.pending(name("k"))[0]
	expect(f, "attempt", o.Attempt, 1)
	expect(f, "held", o.Held(now), false)
	f.settle(settlement(stale, store.Ack))
	expect(f, "left after a stale ack", len(f.pending(name("k"))), 1)
	f.resume(name("k"), now)
	expect(f, "attempt after the pause", f.claimOne(now).Attempt, 2)
}

func testPauseTwice(f *fixture) {
	f.put(newPut(name("k"), epoch, time.Hour))
	version := f.pause(name("k"), epoch.Add(time.Minute))
	once := f.job(name("k"))
	expect(f, "version", once.Version, version)
	f.pause(name("k"), epoch.Add(2*time.Minute))
	expectSame(f, "the job", f.job(name("k")), once)

	for _, n := range []job.Name{name("none"), {Tenant: "other", Key: "k"}} {
		err := f.store().Pause(f.Context(), n, job.NewRevision(epoch), epoch)
		expect(f, "an unknown job is not found", errors.Is(err, store.ErrNotFound), true)
	}
}

func testPauseReplaced(f *fixture) {
	f.put(newPut(name("k"), epoch, time.Hour))
	version := f.pause(name("k"), epoch)
	p := newPut(name("k"), epoch.Add(time.Minute), 0)
	p.If = store.Condition{Versions: []job.Revision{version}}
	expect(f, "answered as paused", f.put(p).Paused, true)
	got := f.job(name("k"))
	expect(f, "paused", got.PausedAt, epoch)
	expect(f, "version", got.Version, p.Job.Version)
	now := epoch.Add(time.Hour)
	expect(f, "claimed", len(f.claim(now, 10)), 0)
	f.resume(name("k"), now)
	expect(f, "claimed after the pause", f.claimOne(now).ID, p.Occurrences[0].ID)

	// A put's own PausedAt is ignored.
	for range 2 {
		p = newPut(name("new"), now, 0)
		p.Job.PausedAt = now
		expect(f, "answered as paused", f.put(p).Paused, false)
		expect(f, "a put job is not paused", f.job(name("new")).PausedAt.IsZero(), true)
		expect(f, "claimed", f.claimOne(now).ID, p.Occurrences[0].ID)
	}
}

func testPauseCancelled(f *fixture) {
	f.put(newPut(name("k"), epoch, 0, time.Second, time.Hour))
	f.claimOne(epoch)
	f.pause(name("k"), epoch)
	now := epoch.Add(time.Second)
	expect(f, "claimed", len(f.claim(now, 10)), 0) // the second was put back
	f.trigger(trigger(name("k"), now, 1))
	expect(f, "result", f.cancel(name("k"))[0], store.CancelResult{Found: true, Cancelled: 3, InFlight: 1})

	f.put(newPut(name("k"), now, 0))
	expect(f, "paused when put anew", f.job(name("k")).PausedAt.IsZero(), true)
	expect(f, "claimed when put anew", f.claimOne(now).Timestamp, now)
}

func testPauseSwept(f *fixture) {
	for _, p := range []store.Put{newPut(name("pending"), epoch, time.Hour), newPut(name("finished"), epoch)} {
		p.Job.ExpiresAt = epoch
		f.put(p)
		f.pause(p.Job.Name, epoch)
		expect(f, "live", f.job(p.Job.Name).Live(), len(p.Occurrences) > 0)
	}
	expect(f, "swept", f.sweep(store.SweepParams{Now: epoch.Add(2 * time.Hour)}), store.Swept{Jobs: 1})
	expect(f, "left", keys(f.jobs(store.JobFilter{})), `["pending"]`)
}

func testResume(f *fixture) {
	p := newPut(name("k"), epoch, 0, time.Second, time.Minute, time.Hour)
	f.put(p)
	f.put(newPut(name("other"), epoch, 30*time.Minute))
	held := f.claimOne(epoch)
	f.pause(name("k"), epoch)
	expect(f, "claimed", len(f.claim(epoch.Add(time.Second), 10)), 0)

	now := epoch.Add(lease - time.Millisecond) // the third is not due yet, and the first is still held
	version := f.resume(name("k"), now)
	got := f.job(name("k"))
	expect(f, "paused", got.PausedAt.IsZero(), true)
	expect(f, "version", got.Version, version)
	expect(f, "updated", got.UpdatedAt, now)
	expect(f, "revision", got.Revision, p.Job.Revision)
	pending := f.pending(name("k"))
	expect(f, "due time of the held one", pending[0].DueAt, held.DueAt)
	expect(f, "due time after its instant", pending[1].DueAt.After(now), false)
	expect(f, "due time before its instant", pending[2].DueAt, epoch.Add(time.Minute))
	expect(f, "due time before its instant", pending[3].DueAt, epoch.Add(time.Hour))

	c := f.claimOne(now)
	expect(f, "claimed", c.ID, p.Occurrences[1].ID)
	expect(f, "attempt", c.Attempt, 1)
	f.settle(settlement(held, store.Ack), settlement(c, store.Ack))
	f.expectTimes("claimed later", timestamps(f.claim(epoch.Add(2*time.Hour), 10), claimedTime),
		epoch.Add(time.Minute), epoch.Add(30*time.Minute), epoch.Add(time.Hour))
}

func testResumeAgain(f *fixture) {
	p := newPut(name("k"), epoch, 0, time.Hour)
	f.put(p)
	f.resume(name("k"), epoch)
	expect(f, "version of a job that was not paused", f.job(name("k")).Version, p.Job.Version)
	f.pause(name("k"), epoch)
	version := f.resume(name("k"), epoch)

	// As if the first resume had been interrupted: an occurrence whose instant has passed is still due later.
	s := settlement(f.claimOne(epoch), store.Release)
	s.DueAt = epoch.Add(time.Hour)
	f.settle(s)
	now := epoch.Add(time.Minute)
	f.resume(name("k"), now)
	expect(f, "version of the first resume", f.job(name("k")).Version, version)
	expect(f, "claimed", f.claimOne(now).Timestamp, epoch)
	expect(f, "due time before its instant", f.pending(name("k"))[1].DueAt, epoch.Add(time.Hour))

	for _, n := range []job.Name{name("none"), {Tenant: "other", Key: "k"}} {
		err := f.store().Resume(f.Context(), n, job.NewRevision(epoch), epoch)
		expect(f, "an unknown job is not found", errors.Is(err, store.ErrNotFound), true)
	}
}

// testPauseEarly: an occurrence that is put back before its instant is not found again and again until then, and fires
// on time if the job is resumed by then.
func testPauseEarly(f *fixture) {
	f.put(newPut(name("k"), epoch, time.Second))
	f.pause(name("k"), epoch)
	const early = 500 * time.Millisecond
	claim := func(after time.Duration) store.Claim {
		claim, err := f.store().Claim(f.Context(), earlyParams(epoch.Add(after), early, 10))
		f.must(err)
		return claim
	}
	got := claim(900 * time.Millisecond)
	expect(f, "claimed", len(got.Occurrences), 0)
	expect(f, "more", got.More(), true)
	expect(f, "more, when it was put back", claim(900*time.Millisecond).More(), false)
	f.resume(name("k"), epoch.Add(950*time.Millisecond))
	expect(f, "claimed once it is resumed", len(claim(1001*time.Millisecond).Occurrences), 1)
}

// testPauseBacklogOneByOne: a claimer with room for one occurrence gets past many paused ones at once.
func testPauseBacklogOneByOne(f *fixture) {
	var after []time.Duration
	for i := range 200 {
		after = append(after, time.Duration(i)*time.Millisecond)
	}
	f.put(newPut(name("paused"), epoch, after...))
	f.put(newPut(name("other"), epoch, time.Second, 2*time.Second))
	f.pause(name("paused"), epoch)
	now := epoch.Add(2 * time.Second)
	for claims, claimed := 0, 0; claimed < 2; claims++ {
		claim := f.tryClaim(now, 1)
		for _, c := range claim.Occurrences {
			expect(f, "claimed of", c.Name, name("other"))
			claimed++
		}
		if !claim.More() && claimed < 2 || claims > 4 {
			f.Fatalf("after %d claims, %d occurrences of the other job were claimed, want 2", claims, claimed)
		}
	}
}

// testPauseEnds: a job whose schedule has ended has nothing more to expand, so its pause does not keep it.
func testPauseEnds(f *fixture) {
	f.put(newRecurring(name("k"), epoch, "@every 1s"))
	ends := epoch.Add(time.Hour)
	j, token := f.claimJob(ends)
	a := advanceOf(j, token, ends)
	a.ExpandAt, a.ExpiresAt = time.Time{}, epoch.Add(2*time.Hour)
	f.advance(a)
	expect(f, "cursor", f.job(name("k")).Cursor.IsZero(), true)
	for _, c := range f.claim(epoch.Add(24*time.Hour), 1000) {
		f.settle(settlement(c, store.Ack))
	}
	now := epoch.Add(3 * time.Hour)
	f.pause(name("k"), now)
	expect(f, "live", f.job(name("k")).Live(), false)
	f.resume(name("k"), now)
	expect(f, "to be expanded once it is resumed", len(f.claimJobs(now, 10).Jobs), 0)
	f.pause(name("k"), now)
	expect(f, "swept", f.sweep(store.SweepParams{Now: now}), store.Swept{Jobs: 1})
}

// testPauseAnew: a job that has finished, and whose retention has passed, leaves nothing to its replacement.
func testPauseAnew(f *fixture) {
	f.put(newPut(name("k"), epoch))
	f.pause(name("k"), epoch)
	now := epoch.Add(time.Hour)
	p := newRecurring(name("k"), now, "@every 1s")
	p.StartsOver = true
	result := f.put(p)
	expect(f, "answered as paused", result.Paused, false)
	expect(f, "replaced", result.Replaced != "", true)
	got := f.job(name("k"))
	expect(f, "paused", got.PausedAt.IsZero(), true)
	expect(f, "created", got.CreatedAt, now)
	expect(f, "to be expanded", got.ExpandAt, p.Job.ExpandAt)
	expect(f, "claimed", len(f.claim(now.Add(time.Second), 10)), 1)
}

// testResumeBehind: a claim on a clock that is ahead, or at the very instant, has put back an occurrence whose instant
// is still ahead for the resuming client. It fires on time regardless.
func testResumeBehind(f *fixture) {
	f.put(newPut(name("k"), epoch, time.Second, time.Hour))
	f.pause(name("k"), epoch)
	expect(f, "claimed", len(f.claim(epoch.Add(time.Second), 10)), 0)
	f.resume(name("k"), epoch.Add(time.Second-time.Millisecond))
	expect(f, "claimed before its instant", len(f.claim(epoch.Add(time.Second-time.Millisecond), 10)), 0)
	expect(f, "next due", f.nextDue(), epoch.Add(time.Second))
	f.expectTimes("claimed", timestamps(f.claim(epoch.Add(time.Second), 10), claimedTime), epoch.Add(time.Second))
	expect(f, "due time of one that was not put back", f.pending(name("k"))[1].DueAt, epoch.Add(time.Hour))
}
