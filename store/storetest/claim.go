package storetest

import (
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

var claimTests = []namedTest{
	{"claim takes due occurrences in order", testClaimOrder},
	{"claim stamps", testClaimStamps},
	{"claim is exclusive for one lease", testClaimLease},
	{"claim early", testClaimEarly},
	{"claim at the due time, not at the instant", testClaimSpread},
	{"claim returns the present callback", testClaimPresent},
	{"racing claimers get each occurrence once", testClaimRace},
	{"next due", testNextDue},
}

func testClaimOrder(f *fixture) {
	f.put(newPut(name("later"), epoch, 3*time.Second))
	f.put(newPut(name("a"), epoch, 2*time.Second, time.Second))
	f.put(newPut(name("future"), epoch, time.Hour))
	f.put(newPut(name("first"), epoch, 0))
	now := epoch.Add(3 * time.Second)

	var order []time.Duration
	for _, want := range []struct {
		limit, n int
		more     bool
	}{{3, 3, true}, {3, 1, false}, {3, 0, false}} {
		claim, err := f.store().Claim(f.Context(), claimParams(now, want.limit))
		f.must(err)
		expect(f, "claimed", len(claim.Occurrences), want.n)
		expect(f, "more", claim.More(), want.more)
		for _, c := range claim.Occurrences {
			order = append(order, c.Timestamp.Sub(epoch))
		}
	}
	for i, d := range order {
		expect(f, "order", d, time.Duration(i)*time.Second)
	}
}

func testClaimStamps(f *fixture) {
	p := newPut(name("k"), epoch, 0)
	p.Job.Options.Retry.MaxAttempts = 3
	p.Job.Options.Trace = traced
	f.put(p)
	now := epoch.Add(5 * time.Second)
	c := f.claimOne(now)
	expect(f, "id", c.ID, p.Occurrences[0].ID)
	expect(f, "name", c.Name, p.Job.Name)
	expect(f, "revision", c.Revision, p.Job.Revision)
	expect(f, "timestamp", c.Timestamp, epoch)
	expect(f, "scheduled", c.ScheduledAt, now)
	expect(f, "due", c.DueAt, now.Add(lease))
	expect(f, "attempt", c.Attempt, 1)
	expect(f, "token is set", c.Token != "", true)
	expect(f, "callback type", c.Callback.Type, p.Job.Callback.Type)
	expect(f, "callback data", string(c.Callback.Data), string(p.Job.Callback.Data))
	expectOptions(f, "options", c.Options, p.Job.Options)
	expect(f, "reclaimed", c.Reclaimed, false)

	stored := f.pending(name("k"))[0]
	expect(f, "stored token", stored.Token, c.Token)
	expect(f, "stored scheduled", stored.ScheduledAt, now)
	expect(f, "stored due", stored.DueAt, now.Add(lease))
	expect(f, "stored attempt", stored.Attempt, 1)
	expect(f, "held", stored.Held(now), true)
	expect(f, "held at the lease's end", stored.Held(now.Add(lease)), false)
}

func testClaimLease(f *fixture) {
	f.put(newPut(name("k"), epoch, 0))
	first := f.claimOne(epoch)
	expect(f, "claimed just before the lease ends", len(f.claim(epoch.Add(lease-time.Millisecond), 10)), 0)
	second := f.claimOne(epoch.Add(lease))
	expect(f, "id", second.ID, first.ID)
	expect(f, "attempt", second.Attempt, 2)
	expect(f, "reclaimed", second.Reclaimed, true)
	expect(f, "a fresh token", second.Token != first.Token, true)

	f.settle(settlement(second, store.Retry))
	third := f.claimOne(epoch.Add(time.Hour))
	expect(f, "reclaimed after it was settled", third.Reclaimed, false)
	expect(f, "attempt after it was settled", third.Attempt, 3)
}

func testClaimEarly(f *fixture) {
	f.put(newPut(name("k"), epoch, 5*time.Second, 6*time.Second))
	claim, err := f.store().Claim(f.Context(), earlyParams(epoch, 5*time.Second, 10))
	f.must(err)
	f.expectTimes("claimed early", timestamps(claim.Occurrences, claimedTime), epoch.Add(5*time.Second))
	expect(f, "the lease runs from now", claim.Occurrences[0].DueAt, epoch.Add(lease))
}

// testClaimSpread: each store keeps the due times that occurrences are put with, from a put and from an expansion.
func testClaimSpread(f *fixture) {
	list := newPut(name("list"), epoch, 0, time.Hour)
	list.Occurrences[0].DueAt = epoch.Add(30 * time.Second)
	list.Occurrences[1].DueAt = epoch.Add(time.Hour + time.Millisecond)
	f.put(list)
	j := newRecurring(name("tick"), epoch, "@hourly").Job
	j.Cursor, j.Options.Spread = time.Time{}, job.Duration(24*time.Hour)
	tick := begin(j, epoch)
	f.put(tick)
	now := tick.Job.ExpandAt
	claimed := f.claimJobs(now, 1)
	a := advanceOf(claimed.Jobs[0], claimed.Token, now)
	f.advance(a)

	expect(f, "claimed at the instant", len(f.claim(epoch.Add(30*time.Second-time.Millisecond), 10)), 0)
	first := f.claimOne(epoch.Add(30 * time.Second))
	expect(f, "timestamp", first.Timestamp, epoch)
	want := slices.Concat(tick.Occurrences, a.Occurrences)
	expect(f, "expanded", len(a.Occurrences) > 0, true)
	for i, o := range f.pending(name("tick")) {
		expect(f, "tick", o.Timestamp, want[i].Timestamp)
		expect(f, "due time of a tick", o.DueAt, want[i].DueAt)
	}
	expect(f, "lanes due before that", len(f.dueLanes(store.LaneDue{DueAt: epoch.Add(2 * time.Minute)}, epoch.Add(time.Hour), 10)), 0)
	expect(f, "claimed at the second instant", len(f.claim(epoch.Add(time.Hour), 10)), 1) // the first, whose lease has ended
	expect(f, "claimed when it is due", len(f.claim(epoch.Add(time.Hour+time.Millisecond), 10)), 1)
}

func testClaimPresent(f *fixture) {
	p := newPut(name("k"), epoch, 0)
	f.put(p)
	f.settle(settlement(f.claimOne(epoch), store.Release))
	p = newPut(name("k"), epoch.Add(time.Second), time.Hour)
	p.Job.Callback.Data = []byte(`{"payload":"new"}`)
	f.put(p)
	expect(f, "callback data", string(f.claimOne(epoch.Add(24*time.Hour)).Callback.Data), `{"payload":"new"}`)
}

// testClaimRace: independent claimers on several handles get every occurrence of a backlog exactly once.
func testClaimRace(f *fixture) {
	const jobs, each, claimers = 30, 10, 8
	handles := []store.Store{f.handle(), f.handle()}
	for i := range jobs {
		var after []time.Duration
		for k := range each {
			after = append(after, time.Duration(i*each+k)*time.Millisecond)
		}
		f.put(newPut(name("k"+strconv.Itoa(i)), epoch, after...))
	}
	now := epoch.Add(time.Minute)
	claimed := make([][]store.Claimed, claimers)
	var group sync.WaitGroup
	for i := range claimers {
		group.Go(func() {
			for {
				claim, err := handles[i%2].Claim(f.Context(), claimParams(now, 7))
				if err != nil {
					f.Errorf("claim: %v", err)
					return
				}
				claimed[i] = append(claimed[i], claim.Occurrences...)
				if !claim.More() {
					return
				}
			}
		})
	}
	group.Wait()
	seen := map[job.ID]int{}
	for _, own := range claimed {
		for _, c := range own {
			seen[c.ID]++
			expect(f, "attempt", c.Attempt, 1)
		}
	}
	expect(f, "distinct occurrences claimed", len(seen), jobs*each)
	for id, n := range seen {
		expect(f, "claims of "+id.String(), n, 1)
	}
}

func testNextDue(f *fixture) {
	expect(f, "of an empty store", f.nextDue().IsZero(), true)
	f.put(newPut(name("b"), epoch, 2*time.Hour))
	f.put(newPut(name("a"), epoch, time.Minute, time.Hour))
	expect(f, "of two jobs", f.nextDue(), epoch.Add(time.Minute))
	c := f.claimOne(epoch.Add(time.Minute))
	expect(f, "while one is held", f.nextDue(), epoch.Add(time.Minute+lease))
	f.settle(settlement(c, store.Ack))
	expect(f, "after one was delivered", f.nextDue(), epoch.Add(time.Hour))
	f.settle(settlement(f.claimOne(epoch.Add(time.Hour)), store.Bury))
	expect(f, "after one was buried", f.nextDue(), epoch.Add(2*time.Hour))
	f.cancel(name("b"))
	expect(f, "after all are gone", f.nextDue().IsZero(), true)
}
