package storetest

import (
	"slices"
	"strconv"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

var laneTests = []namedTest{
	{"lanes are told with what is due first in each", testLanes},
	{"a claim takes of each lane up to its quota", testQuotas},
	{"a quota is narrowed to a range of due times", testQuotaRange},
	{"a claim tells when the next of a lane is due", testQuotaNext},
	{"a lane's backlog is in no other's way", testQuotaApart},
	{"paused jobs of one lane are put back without the others", testQuotaPaused},
	{"an occurrence keeps its priority", testPriorityKept},
	{"a job's new priority is that of its new occurrences", testPriorityChanges},
}

var (
	acme     = job.Lane{Tenant: "acme"}
	acmeHigh = job.Lane{Tenant: "acme", Priority: job.PriorityHigh}
	acmeLow  = job.Lane{Tenant: "acme", Priority: job.PriorityLow}
	// lookalikes are lanes whose names begin alike, and sort in different ways with and without what follows them.
	lookalikes = []job.Lane{
		job.DefaultLane, acme, acmeHigh, acmeLow, {Tenant: "acme", Priority: job.PriorityNormal}, {Tenant: "acme-eu"}, {Tenant: "acme.eu"},
		{Tenant: "acme0"}, {Tenant: "Acme"}, {Tenant: "a"}, {Tenant: "Z_z", Priority: job.PriorityLow},
	}
)

// in is a submission to a lane.
func in(l job.Lane, key string, now time.Time, after ...time.Duration) store.Put {
	p := newPut(job.Name{Tenant: l.Tenant, Key: key}, now, after...)
	p.Job.Options.Priority = l.Priority
	return begin(p.Job, now)
}

// lanes are all that are told, by their texts, with how long after the epoch their first is due.
func (f *fixture) lanes() map[string]time.Duration {
	f.Helper()
	found, err := f.store().Lanes(f.Context())
	f.must(err)
	all := map[string]time.Duration{}
	for _, l := range found {
		if _, twice := all[l.Lane.String()]; twice {
			f.Errorf("lane %s is told twice", l.Lane)
		}
		all[l.Lane.String()] = l.DueAt.Sub(epoch)
	}
	return all
}

// claimOf claims by quotas.
func (f *fixture) claimOf(now time.Time, quotas ...store.Quota) store.Claim {
	f.Helper()
	claim, err := f.store().Claim(f.Context(), store.ClaimParams{Now: now, Lease: lease, Quotas: quotas})
	f.must(err)
	if len(claim.Quotas) != len(quotas) {
		f.Fatalf("%d quotas were answered for %d", len(claim.Quotas), len(quotas))
	}
	for i := range claim.Quotas {
		if left := &claim.Quotas[i]; left.More {
			left.Next = time.Time{} // it means nothing
		}
	}
	return claim
}

// claimedKeys are what was claimed, in order.
func claimedKeys(c store.Claim) []string {
	var all []string
	for _, o := range c.Occurrences {
		all = append(all, o.Lane().String()+" "+o.Name.Key)
	}
	return all
}

func testLanes(f *fixture) {
	expectSame(f, "lanes of an empty store", f.lanes(), map[string]time.Duration{})
	want := map[string]time.Duration{}
	for i, l := range lookalikes {
		at := time.Duration(i+1) * time.Minute
		f.put(in(l, "first"+l.String(), epoch, at, at+time.Hour))
		f.put(in(l, "second"+l.String(), epoch, at+time.Second))
		want[l.String()] = at
	}
	expectSame(f, "lanes", f.lanes(), want)

	c := f.claimOf(epoch.Add(3*time.Minute), store.Quota{Lane: acmeHigh, Limit: 1})
	want[acmeHigh.String()] = 3*time.Minute + time.Second
	expectSame(f, "lanes while one is held", f.lanes(), want)
	f.settle(settlement(c.Occurrences[0], store.Bury))
	expectSame(f, "lanes with a dead letter", f.lanes(), want)
	for _, key := range []string{"first", "second"} {
		f.cancel(job.Name{Tenant: "acme-eu", Key: key + "acme-eu"})
	}
	delete(want, "acme-eu")
	expectSame(f, "lanes of which one is empty", f.lanes(), want)
}

func testQuotas(f *fixture) {
	for i := range 5 {
		for _, l := range lookalikes {
			f.put(in(l, strconv.Itoa(i)+l.Priority.Code(), epoch, time.Duration(i)*time.Second))
		}
	}
	now := epoch.Add(time.Minute)
	claim := f.claimOf(now, store.Quota{Lane: acmeLow, Limit: 2}, store.Quota{Lane: job.Lane{Tenant: "nobody"}, Limit: 3},
		store.Quota{Lane: acme, Limit: 3}, store.Quota{Lane: job.Lane{Tenant: "a"}, Limit: 9})
	expectSame(f, "claimed", claimedKeys(claim), []string{"acme!l 0l", "acme!l 1l", "acme 0", "acme 1", "acme 2", "a 0", "a 1", "a 2", "a 3", "a 4"})
	expectSame(f, "left", claim.Quotas, []store.QuotaLeft{{Found: 2, More: true}, {}, {Found: 3, More: true}, {Found: 5, Next: now.Add(lease)}})
	expect(f, "more", claim.More(), true)
	claim = f.claimOf(now, store.Quota{Lane: acme, Limit: 10}, store.Quota{Lane: acmeLow, Limit: 10})
	expectSame(f, "claimed next", claimedKeys(claim), []string{"acme 3", "acme 4", "acme!l 2l", "acme!l 3l", "acme!l 4l"})
	expect(f, "more", claim.More(), false)
	tokens := map[string]bool{}
	for _, o := range claim.Occurrences {
		tokens[o.Token] = true
		expect(f, "attempt", o.Attempt, 1)
		expect(f, "due", o.DueAt, now.Add(lease))
	}
	f.settle(settlement(claim.Occurrences[0], store.Ack), settlement(claim.Occurrences[4], store.Ack))
	expect(f, "pending of what was acknowledged", len(f.pending(claim.Occurrences[4].Name)), 0)
}

func testQuotaRange(f *fixture) {
	for i := range 6 {
		f.put(in(acme, strconv.Itoa(i), epoch, time.Duration(i)*time.Second))
	}
	at := func(seconds int) time.Time { return epoch.Add(time.Duration(seconds) * time.Second) }
	claim := f.claimOf(at(4), store.Quota{Lane: acme, Until: at(1), Limit: 1}, store.Quota{Lane: acme, After: at(1), Limit: 2})
	expectSame(f, "claimed", claimedKeys(claim), []string{"acme 0", "acme 2", "acme 3"})
	expectSame(f, "left", claim.Quotas, []store.QuotaLeft{{Found: 1, More: true}, {Found: 2, More: true}})
	claim = f.claimOf(at(4), store.Quota{Lane: acme, After: at(1), Until: at(3), Limit: 5})
	expect(f, "claimed where nothing is left", len(claim.Occurrences), 0)
	claim = f.claimOf(at(4), store.Quota{Lane: acme, Until: at(9), Limit: 5})
	expectSame(f, "claimed, and no more than is due", claimedKeys(claim), []string{"acme 1", "acme 4"})
}

func testQuotaNext(f *fixture) {
	f.put(in(acme, "k", epoch, 0, time.Second, time.Hour))
	f.put(in(acmeHigh, "high", epoch, 2*time.Hour))
	all := store.Quota{Lane: acme, Limit: 10}
	expect(f, "next, of an empty lane", f.claimOf(epoch, store.Quota{Lane: acmeLow, Limit: 1}).Quotas[0], store.QuotaLeft{})
	claim := f.claimOf(epoch, all)
	expect(f, "left after the first", claim.Quotas[0], store.QuotaLeft{Found: 1, Next: epoch.Add(time.Second)})
	f.settle(settlement(claim.Occurrences[0], store.Ack))
	claim = f.claimOf(epoch.Add(time.Second), all)
	expect(f, "left after the second, which is held", claim.Quotas[0], store.QuotaLeft{Found: 1, Next: epoch.Add(time.Second + lease)})
	f.settle(settlement(claim.Occurrences[0], store.Ack))
	expect(f, "left when nothing is due", f.claimOf(epoch.Add(time.Minute), all).Quotas[0], store.QuotaLeft{Next: epoch.Add(time.Hour)})
	f.claimOf(epoch.Add(time.Hour), all)
	early := store.ClaimParams{Now: epoch.Add(2*time.Hour - lease/2), Early: lease / 2, Lease: lease, Quotas: []store.Quota{{Lane: acmeHigh, Limit: 1}}}
	got, err := f.store().Claim(f.Context(), early)
	f.must(err)
	expectSame(f, "claimed early", claimedKeys(got), []string{"acme!h high"})
}

func testQuotaApart(f *fixture) {
	for i := range 60 {
		f.put(in(acme, strconv.Itoa(i), epoch, 0))
	}
	f.put(in(acmeHigh, "late", epoch, time.Second))
	f.put(in(job.DefaultLane, "last", epoch, 2*time.Second))
	claim := f.claimOf(epoch.Add(time.Minute), store.Quota{Lane: job.DefaultLane, Limit: 5}, store.Quota{Lane: acmeHigh, Limit: 5}, store.Quota{Lane: acme, Limit: 1})
	expect(f, "claimed", len(claim.Occurrences), 3)
	expectSame(f, "the first two", claimedKeys(claim)[:2], []string{"default last", "acme!h late"})
}

func testQuotaPaused(f *fixture) {
	for i := range 4 {
		f.put(in(acme, "paused"+strconv.Itoa(i), epoch, time.Minute))
		f.must(f.store().Pause(f.Context(), job.Name{Tenant: "acme", Key: "paused" + strconv.Itoa(i)}, job.NewRevision(epoch), epoch))
	}
	f.put(in(acme, "k", epoch, 2*time.Minute))
	f.put(in(acmeLow, "low", epoch, 2*time.Minute))
	now := epoch.Add(3 * time.Minute)
	both := []store.Quota{{Lane: acmeLow, Limit: 2}, {Lane: acme, Limit: 2}}
	var got []string
	for range 5 {
		claim := f.claimOf(now, both...)
		got = append(got, claimedKeys(claim)...)
		expect(f, "more of the lane that has no paused job", claim.Quotas[0].More, false)
		if !claim.More() {
			break
		}
	}
	slices.Sort(got)
	expectSame(f, "claimed in the end", got, []string{"acme k", "acme!l low"})
}

// testPriorityKept: whatever becomes of an occurrence, it stays in its lane.
func testPriorityKept(f *fixture) {
	for _, l := range []job.Lane{acme, acmeHigh, acmeLow, {Tenant: "acme", Priority: job.PriorityNormal}} {
		f := f.another()
		n := job.Name{Tenant: l.Tenant, Key: "k"}
		f.put(in(l, "k", epoch, 0))
		quota := store.Quota{Lane: l, Limit: 10}
		one := func(what string, now time.Time) store.Claimed {
			f.Helper()
			claim := f.claimOf(now, quota)
			if len(claim.Occurrences) != 1 {
				f.Fatalf("%s: claimed %d of lane %s", what, len(claim.Occurrences), l)
			}
			expect(f, "priority "+what, claim.Occurrences[0].Priority, l.Priority)
			return claim.Occurrences[0]
		}
		f.settle(settlement(one("at first", epoch), store.Retry))
		expect(f, "priority as it is listed", f.pending(n)[0].Priority, l.Priority)
		f.settle(settlement(one("of a retry", epoch.Add(time.Hour)), store.Bury))
		dead := f.deadLetters(store.DeadLetterFilter{Tenant: l.Tenant})
		expect(f, "dead letters", len(dead), 1)
		expect(f, "priority of a dead letter", dead[0].Priority, l.Priority)

		records, _, err := f.store().Export(f.Context(), "", 10)
		f.must(err)
		other := f.another()
		_, err = other.store().Import(f.Context(), records)
		f.must(err)
		for place := store.Place(""); ; {
			records, next, err := f.store().Export(f.Context(), place, 10)
			f.must(err)
			if len(records) == 0 {
				break
			}
			_, err = other.store().Import(f.Context(), records)
			f.must(err)
			place = next
		}
		for _, f := range []*fixture{f, other} {
			ids := []job.ID{dead[0].ID}
			redriven, err := f.store().Redrive(f.Context(), l.Tenant, ids, epoch.Add(2*time.Hour))
			f.must(err)
			expect(f, "redriven", redriven, 1)
			expectSame(f, "lanes after a redrive", f.lanes(), map[string]time.Duration{l.String(): 2 * time.Hour})
		}
		f.settle(settlement(one("of a redrive", epoch.Add(2*time.Hour)), store.Ack))
		expectSame(f, "lanes after a delivery", f.lanes(), map[string]time.Duration{})

		o := trigger(n, epoch.Add(3*time.Hour), 7)
		o.Priority = l.Priority
		f.trigger(o)
		one("of a trigger", epoch.Add(3*time.Hour))
	}
}

func testPriorityChanges(f *fixture) {
	f.put(in(acme, "k", epoch, time.Minute, time.Hour))
	f.put(in(acmeHigh, "k", epoch, time.Minute))
	expectSame(f, "lanes", f.lanes(), map[string]time.Duration{acmeHigh.String(): time.Minute})
	expect(f, "claimed of the old lane", len(f.claimOf(epoch.Add(time.Hour), store.Quota{Lane: acme, Limit: 5}).Occurrences), 0)
	expect(f, "claimed of the new one", len(f.claimOf(epoch.Add(time.Hour), store.Quota{Lane: acmeHigh, Limit: 5}).Occurrences), 1)
}
