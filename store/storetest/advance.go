package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

var staleAdvanceTests = []namedTest{
	{"a stale advance changes nothing", testAdvanceStale},
	{"a stale advance among others", testAdvanceMixed},
	{"advancing twice is advancing once", testAdvanceTwice},
	{"an interrupted advance", testAdvanceBroken},
	{"racing expanders: every tick once", testExpandRace},
	{"put during an expansion", testAdvancePut},
	{"cancel during an expansion", testAdvanceCancel},
	{"pause during an expansion", testAdvancePause},
}

// claimedAdvance puts a recurring job, claims it when it is due, and returns its advance.
func (f *fixture) claimedAdvance(n job.Name) (a store.Advance, now time.Time) {
	f.Helper()
	p := newRecurring(n, epoch, "@every 10s")
	p.Job.Options.CatchUp = job.CatchUpAll // so that each tick fires, however late it is expanded
	f.put(p)
	now = p.Job.ExpandAt
	j, token := f.claimJob(now)
	return advanceOf(j, token, now), now
}

func testAdvanceStale(f *fixture) {
	for _, c := range []struct {
		name      string
		meanwhile func(n job.Name, a *store.Advance, now time.Time)
	}{
		{"another token", func(_ job.Name, a *store.Advance, _ time.Time) { a.Token = job.NewToken() }},
		{"another revision", func(_ job.Name, a *store.Advance, _ time.Time) { a.Revision = job.NewRevision(epoch) }},
		{"another cursor", func(_ job.Name, a *store.Advance, _ time.Time) { a.From = a.From.Add(-10 * time.Second) }},
		{"claimed again", func(_ job.Name, _ *store.Advance, now time.Time) { f.claimJob(now.Add(lease)) }},
		{"paused", func(n job.Name, _ *store.Advance, now time.Time) { f.pause(n, now) }},
		{"paused and resumed", func(n job.Name, _ *store.Advance, now time.Time) {
			f.pause(n, now)
			f.resume(n, now)
			f.claimJob(now.Add(lease)) // a store may wait for the lease's end
		}},
		{"resumed, and not yet claimed", func(n job.Name, _ *store.Advance, now time.Time) {
			f.pause(n, now)
			f.resume(n, now.Add(24*time.Hour))
		}},
		{"cancelled", func(n job.Name, _ *store.Advance, _ time.Time) { f.cancel(n) }},
		{"replaced", func(n job.Name, _ *store.Advance, now time.Time) {
			f.put(newRecurring(n, now.Add(time.Hour), "@every 10s"))
		}},
		{"replaced by instants", func(n job.Name, _ *store.Advance, now time.Time) { f.put(newPut(n, now, time.Hour)) }},
		{"cancelled and put anew", func(n job.Name, _ *store.Advance, now time.Time) {
			f.cancel(n)
			f.put(newRecurring(n, now.Add(time.Hour), "@every 10s"))
		}},
	} {
		n := name(c.name)
		a, now := f.claimedAdvance(n)
		a.Missed = 3
		c.meanwhile(n, &a, now)
		before, beforeErr := store.ReadJob(f.Context(), f.store(), n)
		pending := f.pending(n)
		f.advance(a)
		after, afterErr := store.ReadJob(f.Context(), f.store(), n)
		expectSame(f, c.name+": the job", after, before)
		expect(f, c.name+": exists", afterErr == nil, beforeErr == nil)
		expectSame(f, c.name+": pending", f.pending(n), pending)

		stale := map[job.ID]bool{}
		for _, o := range a.Occurrences {
			stale[o.ID] = true
		}
		fired := f.drain(epoch)
		if beforeErr == nil {
			f.resume(n, epoch.Add(24*time.Hour)) // a paused job must not hide them
			fired = append(fired, f.drain(epoch.Add(24*time.Hour))...)
		}
		for _, fire := range fired {
			expect(f, c.name+": fires an occurrence of the stale advance", stale[fire.ID], false)
		}
		f.cancel(n)
	}
}

func testAdvanceMixed(f *fixture) {
	for _, key := range []string{"a", "b", "c"} {
		f.put(newRecurring(name(key), epoch, "@every 10s"))
	}
	now := f.job(name("a")).ExpandAt
	claimed := f.claimJobs(now, 10)
	advances := make(map[string]store.Advance)
	var all []store.Advance
	for _, j := range claimed.Jobs {
		advances[j.Key] = advanceOf(j, claimed.Token, now)
		all = append(all, advances[j.Key])
	}
	expect(f, "advances", len(all), 3)
	f.cancel(name("b"))
	f.advance(all...)
	fired := f.drain(epoch)
	for _, key := range []string{"a", "c"} {
		expect(f, "cursor of "+key, f.job(name(key)).Cursor, advances[key].Cursor)
		expectFired(f, "in all", name(key), fired, ticks(epoch, 10*time.Second, advances[key].Cursor))
	}
	expectFired(f, "of the cancelled one", name("b"), fired, nil)
}

func testAdvanceTwice(f *fixture) {
	a, _ := f.claimedAdvance(name("k"))
	a.Missed = 3
	f.advance(a)
	once, pending := f.job(name("k")), f.pending(name("k"))
	f.advance(a)
	expectSame(f, "the job", f.job(name("k")), once)
	expectSame(f, "pending", f.pending(name("k")), pending)

	expectFired(f, "in all", name("k"), f.drain(epoch), ticks(epoch, 10*time.Second, a.Cursor))
	f.advance(a)
	expectSame(f, "pending after all was delivered", f.pending(name("k")), nil)
	expect(f, "fired after all was delivered", len(f.drain(epoch)), 0)

	// An advance that does not move the cursor: there are no more instants.
	j, token := f.claimJob(a.ExpandAt)
	end := store.Advance{Name: j.Name, Revision: j.Revision, From: j.Cursor, Token: token, Cursor: j.Cursor,
		ExpiresAt: far, Missed: 1}
	f.advance(end)
	f.advance(end)
	expect(f, "missed", f.job(name("k")).Missed, 4)
	expect(f, "live", f.job(name("k")).Live(), false)
}

// testAdvanceBroken: an advance that is interrupted at any time has moved the cursor or not. If not, none of its
// occurrences fires and none is lost: the next expansion makes them again.
func testAdvanceBroken(f *fixture) {
	s := f.handle()
	within := []time.Duration{0, 50 * time.Microsecond}
	for last := within[1]; last < 60*time.Millisecond; last *= 2 {
		within = append(within, last*2)
	}
	for i, d := range within {
		n := name(fmt.Sprint("k", i))
		a, now := f.claimedAdvance(n)
		from, to := a.From, a.From.Add(time.Second*80)
		a.Cursor, a.ExpandAt = to, far
		j := f.job(n).Job
		long, err := j.Expand(now, job.Expansion{Horizon: to.Sub(now)})
		f.must(err)
		a.Occurrences = long.Occurrences

		ctx, cancel := context.WithTimeout(f.Context(), d)
		err = s.Advance(ctx, []store.Advance{a})
		cancel()
		if err != nil && !errors.Is(err, store.ErrUnavailable) {
			f.Errorf("broken off after %s: %v", d, err)
		}
		fired := f.drain(epoch.Add(time.Hour))
		// Read the cursor after that: the server may execute a command a moment after the store has given up.
		cursor := f.job(n).Cursor
		if cursor != to && (err == nil || cursor != from) {
			f.Errorf("broken off after %s with %v: the cursor is %s", d, err, cursor.Sub(epoch))
		}
		if cursor != to {
			expectFired(f, "after it was broken off", n, fired, ticks(epoch, 10*time.Second, cursor))
			if again := f.claimJobs(now.Add(lease), 10); len(again.Jobs) > 0 {
				a.Token = again.Token
				f.advance(a)
			}
			expect(f, "cursor when done again", f.job(n).Cursor, to)
		}
		fired = append(fired, f.drain(epoch.Add(24*time.Hour))...)
		expectFired(f, "when done again", n, fired, ticks(epoch, 10*time.Second, to))
	}
}

// testExpandRace runs expanders and claimers on several handles. One of them dies in the middle and returns too late.
func testExpandRace(f *fixture) {
	const jobs, expanders, claimers, steps, dies, returns = 3, 3, 2, 20, 3, 9
	const jobLease = 15 * time.Second
	handles := []store.Store{f.handle(), f.handle()}
	for i := range jobs {
		p := newRecurring(name(fmt.Sprint(i)), epoch, "@every 1s")
		p.Job.Options.CatchUp = job.CatchUpAll
		f.putOn(handles[0], p)
	}
	expand := func(s store.Store, now time.Time, advance func([]store.Advance)) {
		for more := true; more; {
			claimed, err := s.ClaimJobs(f.Context(), store.ClaimJobsParams{Now: now, Lease: jobLease, Limit: 2})
			if err != nil {
				f.Errorf("claim jobs: %v", err)
				return
			}
			var advances []store.Advance
			for _, j := range claimed.Jobs {
				advances = append(advances, advanceOf(j, claimed.Token, now))
			}
			advance(advances)
			more = claimed.More
		}
	}
	var mu sync.Mutex
	var fired []store.Claimed
	var stale []store.Advance
	fire := func(s store.Store, now time.Time) {
		for more := true; more; {
			claim, err := s.Claim(f.Context(), claimParams(now, 10))
			if err != nil {
				f.Errorf("claim: %v", err)
				return
			}
			var acks []store.Settlement
			for _, c := range claim.Occurrences {
				acks = append(acks, settlement(c, store.Ack))
			}
			if err := s.Settle(f.Context(), acks); err != nil {
				f.Errorf("settle: %v", err)
			}
			mu.Lock()
			fired, more = append(fired, claim.Occurrences...), claim.More()
			mu.Unlock()
		}
	}
	for step := range steps {
		now := epoch.Add(time.Duration(step) * 7 * time.Second)
		if step == dies {
			expand(handles[0], now.Add(expansion.Horizon), func(a []store.Advance) { stale = append(stale, a...) })
			expect(f, "jobs that are claimed by one that dies", len(stale), jobs)
		}
		var group sync.WaitGroup
		for i := range expanders {
			s := handles[i%2]
			group.Go(func() {
				expand(s, now, func(advances []store.Advance) {
					if err := s.Advance(f.Context(), advances); err != nil {
						f.Errorf("advance: %v", err)
					}
				})
			})
		}
		for i := range claimers {
			group.Go(func() { fire(handles[i%2], now) })
		}
		group.Wait()
		if step == returns {
			f.must(handles[0].Advance(f.Context(), stale))
		}
	}
	f.main = handles[0]
	fired = append(fired, f.drain(epoch.Add(time.Hour))...)
	for i := range jobs {
		n := name(fmt.Sprint(i))
		cursor := f.job(n).Cursor
		expect(f, "expanded to the last step", cursor.After(epoch.Add(steps*7*time.Second)), true)
		expectFired(f, "in all", n, fired, ticks(epoch, time.Second, cursor))
	}
}

// race runs an advance and another call at the same time, on two handles.
func (f *fixture) race(a store.Advance, other func(s store.Store) error) {
	f.Helper()
	var advanceErr, otherErr error
	one, two := f.store(), f.second()
	var group sync.WaitGroup
	group.Go(func() { advanceErr = one.Advance(f.Context(), []store.Advance{a}) })
	group.Go(func() { otherErr = other(two) })
	group.Wait()
	f.must(advanceErr)
	f.must(otherErr)
}

const advanceRaces = 12

func testAdvancePut(f *fixture) {
	for range advanceRaces {
		a, now := f.claimedAdvance(name("k"))
		p := newRecurring(name("k"), now.Add(3*time.Second), "@every 10s")
		f.race(a, func(s store.Store) error { return s.Put(f.Context(), []store.Put{p})[0].Err })
		expect(f, "cursor", f.job(name("k")).Cursor, p.Job.Cursor)
		fired := f.drain(epoch)
		expectFired(f, "after both", name("k"), fired, ticks(now.Add(3*time.Second), 10*time.Second, p.Job.Cursor))
		f.cancel(name("k"))
	}
}

func testAdvanceCancel(f *fixture) {
	for range advanceRaces {
		a, _ := f.claimedAdvance(name("k"))
		f.race(a, func(s store.Store) error {
			results, err := s.Cancel(f.Context(), []job.Name{name("k")}, store.Asked{Now: epoch})
			if err == nil {
				expect(f, "found", results[0].Found, true)
			}
			return err
		})
		expect(f, "fired after both", len(f.drain(epoch)), 0)
		expect(f, "claimed after both", len(f.claimJobs(epoch.Add(24*time.Hour), 10).Jobs), 0)
	}
}

func testAdvancePause(f *fixture) {
	for range advanceRaces {
		a, now := f.claimedAdvance(name("k"))
		f.race(a, func(s store.Store) error { return s.Pause(f.Context(), name("k"), job.NewRevision(now), now) })
		got := f.job(name("k"))
		if got.Cursor != a.From && got.Cursor != a.Cursor {
			f.Errorf("after both the cursor is %s", got.Cursor.Sub(epoch))
		}
		expect(f, "claimed while paused", len(f.claimJobs(now.Add(24*time.Hour), 10).Jobs), 0)
		f.resume(name("k"), now)
		now = now.Add(lease) // a store may wait for the lease's end of the interrupted expansion
		j, token := f.claimJob(now)
		f.advance(advanceOf(j, token, now))
		expectFired(f, "in all", name("k"), f.drain(epoch), ticks(epoch, 10*time.Second, f.job(name("k")).Cursor))
		f.cancel(name("k"))
	}
}
