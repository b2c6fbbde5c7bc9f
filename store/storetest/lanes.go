package storetest

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

var laneTests = []namedTest{
	{"lanes are listed with their first due time", testLanes},
	{"lanes are listed by due time", testDueLanes},
	{"lanes of one due time are on several pages", testDueLanesAtOnce},
	{"a lane is listed with its first due time, however many occurrences it has", testDueLanesDense},
	{"a lane is listed again when its due time changes", testDueLanesMove},
	{"listing lanes with an ended context", testDueLanesEnded},
	{"a claim takes up to its quota from each lane", testQuotas},
	{"a quota is narrowed to a range of due times", testQuotaRange},
	{"a claim returns the next due time of a lane", testQuotaNext},
	{"a lane's backlog delays no other lane", testQuotaApart},
	{"paused jobs of one lane are put back without the others", testQuotaPaused},
	{"an occurrence keeps its priority", testPriorityKept},
	{"a job's new priority is that of its new occurrences", testPriorityChanges},
}

var (
	acme     = job.Lane{Tenant: "acme"}
	acmeHigh = job.Lane{Tenant: "acme", Priority: job.PriorityHigh}
	acmeLow  = job.Lane{Tenant: "acme", Priority: job.PriorityLow}
	// lookalikes are lanes whose names have the same beginning, and whose order depends on the characters after it.
	lookalikes = []job.Lane{
		job.DefaultLane, acme, acmeHigh, acmeLow, {Tenant: "acme", Priority: job.PriorityNormal}, {Tenant: "acme-eu"},
		{Tenant: "acme.eu"}, {Tenant: "acme0"}, {Tenant: "Acme"}, {Tenant: "a"}, {Tenant: "Z_z", Priority: job.PriorityLow},
	}
)

// in returns a submission to a lane.
func in(l job.Lane, key string, now time.Time, after ...time.Duration) store.Put {
	p := newPut(job.Name{Tenant: l.Tenant, Key: key}, now, after...)
	p.Job.Options.Priority = l.Priority
	return begin(p.Job, now)
}

// lanes returns all lanes with pending occurrences, by their texts, with the first due time as an offset from the
// epoch.
func (f *fixture) lanes() map[string]time.Duration {
	f.Helper()
	due := map[string]time.Duration{}
	for _, l := range f.dueLanes(store.LaneDue{}, epoch.Add(100*365*24*time.Hour), 3) {
		noteFirst(due, l)
	}
	return due
}

func noteFirst(all map[string]time.Duration, l store.LaneDue) {
	at, known := all[l.Lane.String()]
	if first := l.DueAt.Sub(epoch); !known || first < at {
		all[l.Lane.String()] = first
	}
}

// dueLanes returns the lanes of all pages from a place on.
func (f *fixture) dueLanes(after store.LaneDue, until time.Time, limit int) (all []store.LaneDue) {
	f.Helper()
	for pages := 0; ; pages++ {
		page, err := f.store().DueLanes(f.Context(), store.DueParams{After: after, Until: until, Limit: limit})
		f.must(err)
		told := map[job.Lane]bool{}
		for i, l := range page.Lanes {
			if told[l.Lane] || i > 0 && l.DueAt.Before(page.Lanes[i-1].DueAt) || l.Compare(after) <= 0 || l.DueAt.After(until) {
				f.Errorf("a page after %v and up to %s is %v", after, until, page.Lanes)
			}
			told[l.Lane] = true
		}
		all = append(all, page.Lanes...)
		if page.Next == (store.LaneDue{}) {
			return all
		}
		if len(page.Lanes) > limit || page.Next.Compare(after) <= 0 || pages > 1000 {
			f.Fatalf("page %d after %v has %d lanes of %d, and the next is after %v", pages, after, len(page.Lanes), limit,
				page.Next)
		}
		after = page.Next
	}
}

// expectDue expects exactly these lanes in a span, with due times as offsets from the epoch, for every size of the
// pages.
func (f *fixture) expectDue(what string, after store.LaneDue, until time.Duration, want map[string]time.Duration) {
	f.Helper()
	for _, limit := range []int{1, 2, 7, 1000} {
		got := map[string]time.Duration{}
		for _, l := range f.dueLanes(after, epoch.Add(until), limit) {
			noteFirst(got, l)
		}
		expectSame(f, what, got, want)
	}
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
			left.Next = time.Time{} // it has no meaning
		}
	}
	return claim
}

// claimedKeys returns the keys of the claimed occurrences, in order.
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

func testDueLanes(f *fixture) {
	f.expectDue("lanes of an empty store", store.LaneDue{}, time.Hour, map[string]time.Duration{})
	all := map[string]time.Duration{}
	between := func(from, to time.Duration) map[string]time.Duration {
		some := map[string]time.Duration{}
		for lane, at := range all {
			if at >= from && at <= to {
				some[lane] = at
			}
		}
		return some
	}
	for i, l := range lookalikes {
		at := time.Duration(i-2) * time.Minute
		f.put(in(l, "k"+l.Priority.Code(), epoch, at))
		all[l.String()] = at
	}
	f.expectDue("all", store.LaneDue{}, 20*time.Minute, all)
	f.expectDue("due lanes", store.LaneDue{}, 0, between(-time.Hour, 0))
	f.expectDue("due lanes a millisecond before", store.LaneDue{}, -time.Millisecond, between(-time.Hour, -time.Minute))
	f.expectDue("lanes due from a time on", store.LaneDue{DueAt: epoch.Add(time.Minute)}, 5*time.Minute,
		between(time.Minute, 5*time.Minute))
	f.expectDue("lanes due a millisecond later", store.LaneDue{DueAt: epoch.Add(time.Minute + time.Millisecond)},
		5*time.Minute, between(2*time.Minute, 5*time.Minute))
	f.expectDue("lanes after one of them", store.LaneDue{Lane: lookalikes[3], DueAt: epoch.Add(time.Minute)},
		5*time.Minute, between(2*time.Minute, 5*time.Minute))
	f.expectDue("nothing", store.LaneDue{DueAt: epoch.Add(time.Hour)}, 2*time.Hour, between(1, 0))
}

func testDueLanesAtOnce(f *fixture) {
	want := map[string]time.Duration{}
	for _, l := range lookalikes {
		f.put(in(l, "k"+l.Priority.Code(), epoch, time.Second))
		want[l.String()] = time.Second
	}
	f.expectDue("lanes of one time", store.LaneDue{}, time.Second, want)
	f.expectDue("lanes of one time, from then on", store.LaneDue{DueAt: epoch.Add(time.Second)}, time.Second, want)
	// Lanes with the same due time sort by their bytes, so a position stays valid after its lane is gone.
	place := store.LaneDue{Lane: job.Lane{Tenant: "acme-middle"}, DueAt: epoch.Add(time.Second)}
	for _, l := range lookalikes {
		if job.CompareLanes(l, place.Lane) <= 0 {
			delete(want, l.String())
		}
	}
	if len(want) < 2 || len(want) > len(lookalikes)-2 {
		f.Fatalf("%d lanes come after %v", len(want), place)
	}
	f.expectDue("lanes of one time after a place", place, time.Minute, want)
}

func testDueLanesDense(f *fixture) {
	var after []time.Duration
	for i := range 40 {
		after = append(after, time.Duration(i/4)*time.Second+time.Duration(i%4)*time.Millisecond)
	}
	f.put(in(acme, "many", epoch, after...))
	for i := range 30 {
		f.put(in(acme, "at once"+strconv.Itoa(i), epoch, 3*time.Second))
	}
	f.put(in(acmeLow, "last", epoch, 9*time.Second))
	f.expectDue("all", store.LaneDue{}, time.Minute, map[string]time.Duration{"acme": 0, "acme!l": 9 * time.Second})
	f.expectDue("up to before the last", store.LaneDue{}, 8*time.Second, map[string]time.Duration{"acme": 0})
	// The lane that has something due before After may be listed too.
	for _, limit := range []int{1, 5, 1000} {
		told := map[string]time.Duration{}
		for _, l := range f.dueLanes(store.LaneDue{DueAt: epoch.Add(4 * time.Second)}, epoch.Add(time.Minute), limit) {
			noteFirst(told, l)
		}
		expect(f, "the lane whose first is in the span", told["acme!l"], 9*time.Second)
	}
}

// testDueLanesMove: the reported due time of a lane is right after each claim, settlement, put-back, resume and
// deletion of its occurrences.
func testDueLanesMove(f *fixture) {
	expect := func(what string, want ...time.Duration) {
		f.Helper()
		lanes := map[string]time.Duration{}
		for i, at := range want {
			if at >= 0 {
				lanes[[]job.Lane{acme, acmeHigh}[i].String()] = at
			}
		}
		f.expectDue(what, store.LaneDue{}, 100*time.Hour, lanes)
	}
	const none = -1
	f.put(in(acme, "k", epoch, time.Second, 3*time.Hour))
	f.put(in(acmeHigh, "high", epoch, 2*time.Second))
	expect("submitted", time.Second, 2*time.Second)
	now := epoch.Add(time.Minute)
	claim := f.claimOf(now, store.Quota{Lane: acme, Limit: 5}, store.Quota{Lane: acmeHigh, Limit: 5})
	held := time.Minute + lease
	expect("claimed", held, held)
	early := settlement(claim.Occurrences[0], store.Release)
	early.DueAt = now.Add(time.Millisecond)
	f.settle(early, settlement(claim.Occurrences[1], store.Ack))
	expect("released before the lease's end, and delivered", time.Minute+time.Millisecond, none)
	claim = f.claimOf(now.Add(time.Second), store.Quota{Lane: acme, Limit: 5})
	f.settle(settlement(claim.Occurrences[0], store.Bury))
	expect("buried", 3*time.Hour)
	_, err := f.store().SettleDead(f.Context(), redrive("acme", epoch.Add(time.Hour), claim.Occurrences[0].ID))
	f.must(err)
	expect("redriven", time.Hour)
	claim = f.claimOf(epoch.Add(time.Hour), store.Quota{Lane: acme, Limit: 5})
	f.settle(settlement(claim.Occurrences[0], store.Ack))
	expect("delivered", 3*time.Hour)

	n := job.Name{Tenant: "acme", Key: "k"}
	f.must(f.store().Pause(f.Context(), n, job.NewRevision(epoch), epoch.Add(2*time.Hour)))
	now = epoch.Add(4 * time.Hour)
	for more := true; more; {
		more = f.claimOf(now, store.Quota{Lane: acme, Limit: 5}).More()
	}
	for _, l := range f.dueLanes(store.LaneDue{}, now, 5) {
		f.Errorf("%v is told, though it was put back", l)
	}
	f.must(f.store().Resume(f.Context(), n, job.NewRevision(epoch), now))
	expect("resumed", 4*time.Hour)
	f.put(in(acmeHigh, "k", epoch, 5*time.Hour))
	expect("replaced, of another priority", none, 5*time.Hour)
	f.trigger(trigger(n, epoch.Add(6*time.Hour), 1))
	expect("triggered", 6*time.Hour, 5*time.Hour)
	f.cancel(n)
	expect("cancelled", none, none)
}

func testDueLanesEnded(f *fixture) {
	ended, cancel := context.WithCancel(f.Context())
	cancel()
	_, err := f.store().DueLanes(ended, store.DueParams{Until: epoch, Limit: 1})
	expect(f, "listing the due lanes is unavailable", errors.Is(err, store.ErrUnavailable), true)
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
	expectSame(f, "claimed", claimedKeys(claim),
		[]string{"acme!l 0l", "acme!l 1l", "acme 0", "acme 1", "acme 2", "a 0", "a 1", "a 2", "a 3", "a 4"})
	expectSame(f, "left", claim.Quotas, []store.QuotaLeft{{Found: 2, More: true}, {}, {Found: 3, More: true},
		{Found: 5, Next: now.Add(lease)}})
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
	expect(f, "pending after the acknowledgement", len(f.pending(claim.Occurrences[4].Name)), 0)
}

func testQuotaRange(f *fixture) {
	for i := range 6 {
		f.put(in(acme, strconv.Itoa(i), epoch, time.Duration(i)*time.Second))
	}
	at := func(seconds int) time.Time { return epoch.Add(time.Duration(seconds) * time.Second) }
	claim := f.claimOf(at(4), store.Quota{Lane: acme, Until: at(1), Limit: 1},
		store.Quota{Lane: acme, After: at(1), Limit: 2})
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
	expect(f, "next, of an empty lane", f.claimOf(epoch, store.Quota{Lane: acmeLow, Limit: 1}).Quotas[0],
		store.QuotaLeft{})
	claim := f.claimOf(epoch, all)
	expect(f, "left after the first", claim.Quotas[0], store.QuotaLeft{Found: 1, Next: epoch.Add(time.Second)})
	f.settle(settlement(claim.Occurrences[0], store.Ack))
	claim = f.claimOf(epoch.Add(time.Second), all)
	expect(f, "left after the second, which is held", claim.Quotas[0],
		store.QuotaLeft{Found: 1, Next: epoch.Add(time.Second + lease)})
	f.settle(settlement(claim.Occurrences[0], store.Ack))
	expect(f, "left when nothing is due", f.claimOf(epoch.Add(time.Minute), all).Quotas[0],
		store.QuotaLeft{Next: epoch.Add(time.Hour)})
	f.claimOf(epoch.Add(time.Hour), all)
	early := store.ClaimParams{Now: epoch.Add(2*time.Hour - lease/2), Early: lease / 2, Lease: lease,
		Quotas: []store.Quota{{Lane: acmeHigh, Limit: 1}}}
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
	claim := f.claimOf(epoch.Add(time.Minute), store.Quota{Lane: job.DefaultLane, Limit: 5},
		store.Quota{Lane: acmeHigh, Limit: 5}, store.Quota{Lane: acme, Limit: 1})
	expect(f, "claimed", len(claim.Occurrences), 3)
	expectSame(f, "the first two", claimedKeys(claim)[:2], []string{"default last", "acme!h late"})
}

func testQuotaPaused(f *fixture) {
	for i := range 4 {
		f.put(in(acme, "paused"+strconv.Itoa(i), epoch, time.Minute))
		f.must(f.store().Pause(f.Context(), job.Name{Tenant: "acme", Key: "paused" + strconv.Itoa(i)}, job.NewRevision(epoch),
			epoch))
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

// testPriorityKept: an occurrence stays in its lane through all changes.
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
			redriven, err := f.store().SettleDead(f.Context(), redrive(l.Tenant, epoch.Add(2*time.Hour), ids...))
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
	expect(f, "claimed of the old lane", len(f.claimOf(epoch.Add(time.Hour),
		store.Quota{Lane: acme, Limit: 5}).Occurrences), 0)
	expect(f, "claimed of the new one", len(f.claimOf(epoch.Add(time.Hour),
		store.Quota{Lane: acmeHigh, Limit: 5}).Occurrences), 1)
}
