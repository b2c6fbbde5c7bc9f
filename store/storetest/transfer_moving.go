package storetest

import (
	"cmp"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

var movingTests = []namedTest{
	{"a moved store continues as before", testMovedGoesOn},
	{"a moved crontab keeps its ticks", testMovedTicks},
	{"moved jobs can be changed", testMovedChanges},
	{"an occurrence that does not match its job never fires", testMovedOrphan},
}

// moved imports the store's content into another store.
func (f *fixture) moved() *fixture {
	f.Helper()
	g := f.another()
	g.importAll(f.export(20), 20)
	return g
}

// testMovedGoesOn: the store and its copy behave in the same way at the same times.
func testMovedGoesOn(f *fixture) {
	f.fill()
	g := f.moved()
	compare := func(after time.Duration) {
		f.Helper()
		now := epoch.Add(after)
		what := "after " + after.String()
		wantJobs, gotJobs := f.expandAll(now), g.expandAll(now)
		expectEach(f, what+": expanded", gotJobs, wantJobs)
		want, got := f.fireAll(now), g.fireAll(now)
		expectEach(f, what+": claimed", got, want)
	}
	// Before and after the ends of the held leases, and at later instants and retries.
	for _, after := range []time.Duration{0, 10 * time.Second, 59 * time.Second, time.Minute, 2 * time.Minute,
		10 * time.Minute, time.Hour, 2 * time.Hour} {
		compare(after)
	}
	for _, key := range []string{"retried", "acked", "paused"} {
		for _, s := range []*fixture{f, g} {
			s.must(s.store().Resume(s.Context(), name(key), job.Revision("resumed-"+key), epoch.Add(3*time.Hour)))
		}
	}
	compare(3 * time.Hour)
	got, want := g.look(), f.look()
	expectEach(f, "job in the end", got.jobs, want.jobs)
	expectEach(f, "dead letter in the end", got.dead, want.dead)
	expect(f, "pending in the end", len(got.pending), len(want.pending))
}

// expandAll expands all due jobs, and returns them in the order of their names.
func (f *fixture) expandAll(now time.Time) (all []job.Job) {
	f.Helper()
	for more := true; more; {
		claimed := f.claimJobs(now, 5)
		for _, j := range claimed.Jobs {
			f.advance(advanceOf(j, claimed.Token, now))
		}
		all, more = append(all, claimed.Jobs...), claimed.More
	}
	slices.SortFunc(all, func(a, b job.Job) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Key, b.Key))
	})
	return all
}

// fireAll claims and acknowledges all due occurrences, and returns them in the order of the ids, without the claims'
// tokens.
func (f *fixture) fireAll(now time.Time) (all []store.Claimed) {
	f.Helper()
	for more := true; more; {
		claim := f.tryClaim(now, 20)
		var acks []store.Settlement
		for i := range claim.Occurrences {
			c := &claim.Occurrences[i]
			acks = append(acks, settlement(*c, store.Ack))
			c.Token, c.Hint = "", 0
		}
		f.settle(acks...)
		all, more = append(all, claim.Occurrences...), claim.More()
	}
	slices.SortFunc(all, func(a, b store.Claimed) int { return a.ID.Compare(b.ID) })
	return all
}

// testMovedTicks: a recurring job that is moved several times fires each tick once, whichever store it is in at the
// time.
func testMovedTicks(f *fixture) {
	keys := []string{"a", "b"}
	for i, key := range keys {
		f.put(newRecurring(name(key), epoch.Add(time.Duration(i)*3*time.Second), "@every 10s"))
	}
	var fired []store.Claimed
	now := epoch
	for range 3 {
		for range 9 { // for longer than the horizon of an expansion
			now = now.Add(7 * time.Second)
			f.expandAll(now)
			fired = append(fired, f.fireAll(now)...)
		}
		f = f.moved()
	}
	fired = append(fired, f.drain(now.Add(time.Hour))...)
	for i, key := range keys {
		cursor := f.job(name(key)).Cursor
		expect(f, "expanded to the end", cursor.After(now), true)
		expectFired(f, "over all moves", name(key), fired,
			ticks(epoch.Add(time.Duration(i)*3*time.Second), 10*time.Second, cursor))
		expect(f, "missed", f.job(name(key)).Missed, 0)
	}
}

// testMovedChanges: clients continue to use moved jobs as if they had been put here.
func testMovedChanges(f *fixture) {
	f.fill()
	g := f.moved()
	list, due := g.job(name("list")), g.job(name("due"))

	// It includes the triggered occurrence and the held one.
	expect(f, "cancelled", g.cancel(name("list"))[0], f.cancel(name("list"))[0])
	g.must(g.store().Amend(f.Context(), amendment(due.Job, due.Version, epoch)))
	replacement := newPut(name("🔔"), epoch, time.Minute)
	replacement.If = store.Condition{Versions: []job.Revision{g.job(name("🔔")).Version}}
	expect(f, "in flight of the replaced job", g.put(replacement).InFlight, f.put(replacement).InFlight)
	dead := g.deadLetters(store.DeadLetterFilter{Key: "buried"})
	expect(f, "dead letters", len(dead), 1)
	expect(f, "redriven", g.redrive(dead[0].ID), 1)
	n, err := g.store().SettleDead(f.Context(),
		discard(job.DefaultTenant, g.deadLetters(store.DeadLetterFilter{Key: "named"})[0].ID))
	g.must(err)
	expect(f, "deleted dead letters", n, 1)

	expect(f, "swept before it expires", g.sweep(store.SweepParams{Now: epoch.Add(-time.Second)}), store.Swept{})
	g.sweep(store.SweepParams{Now: epoch.Add(24 * time.Hour)})
	for _, status := range g.look().jobs {
		if status.Key == "finished" {
			f.Error("a finished job that was moved is not swept when it expires")
		}
	}
	for _, c := range g.drain(epoch) {
		if c.Name == name("list") || c.Revision == list.Revision {
			f.Errorf("%s of a cancelled job fires", c.ID)
		}
	}
}

// testMovedOrphan: an export that was made while its jobs changed may have occurrences that do not match the exported
// jobs. They never fire.
func testMovedOrphan(f *fixture) {
	old, replaced := newPut(name("k"), epoch, 0), newPut(name("k"), epoch, time.Second)
	gone := newPut(name("gone"), epoch, 0)
	recurring := newRecurring(name("tick"), epoch, "@every 10s")
	records := []store.Document{{Job: &replaced.Job}, {Job: &recurring.Job}}
	for _, p := range []store.Put{old, replaced, gone, recurring} {
		for i := range p.Occurrences {
			records = append(records, store.Document{Occurrence: &p.Occurrences[i]})
		}
	}
	long, err := recurring.Job.Expand(epoch, job.Expansion{Horizon: time.Minute})
	f.must(err)
	for i := range long.Occurrences {
		records = append(records, store.Document{Occurrence: &long.Occurrences[i]})
	}
	f.importAll(records, 3)
	fired := f.drain(epoch)
	expectFired(f, "of the job that was replaced", name("k"), fired, []time.Time{epoch.Add(time.Second)})
	expectFired(f, "of no job", name("gone"), fired, nil)
	expectFired(f, "up to the cursor", name("tick"), fired, ticks(epoch, 10*time.Second, recurring.Job.Cursor))

	now := recurring.Job.ExpandAt
	j, token := f.claimJob(now)
	f.advance(advanceOf(j, token, now))
	fired = append(fired, f.drain(epoch.Add(24*time.Hour))...)
	expectFired(f, "in all", name("tick"), fired, ticks(epoch, 10*time.Second, f.job(name("tick")).Cursor))
}
