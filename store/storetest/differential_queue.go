package storetest

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// claim claims from both stores until no more is due in the same quotas, so that the order of occurrences with the same
// due time does not matter.
func (d *differential) claim() {
	p := store.ClaimParams{Now: d.now, Early: oneOf(d, "early", 0, 0, 500*time.Millisecond), Lease: lease}
	before := d.pendingNow()
	for _, l := range someOf(d, "lanes", 3, everyLane) {
		p.Quotas = append(p.Quotas, store.Quota{Lane: l, Limit: draw(d, "limit", rapid.IntRange(1, 4))})
	}
	vague := d.notePutBacks(before, p)
	if q := &p.Quotas[0]; !vague { // otherwise an occurrence may be on different sides of a bound in the two stores
		q.Until = oneOf(d, "until", time.Time{}, d.now.Add(-5*time.Second))
		q.After = oneOf(d, "after", time.Time{}, time.Time{}, d.now.Add(-time.Minute))
	}
	want, wantLeft := d.claimAll(d.reference, p, before)
	got, gotLeft := d.claimAll(d.store(), p, before)
	same(d, "the number claimed", len(got), len(want))
	for i := range want {
		d.tokens[claimToken{got[i].ID, got[i].Token}] = want[i].Token
		same(d, "a claimed occurrence", d.showClaimed(got[i]), d.showClaimed(want[i]))
		d.claims = append(d.claims, claimed{want[i], got[i]})
	}
	for i := range wantLeft {
		if !vague {
			same(d, fmt.Sprintf("when the next of lane %s becomes due", p.Quotas[i].Lane), gotLeft[i].Next, wantLeft[i].Next)
		}
	}
	d.claims = d.claims[max(0, len(d.claims)-20):]
}

// pendingNow returns the reference's pending occurrences, by id.
func (d *differential) pendingNow() map[job.ID]job.Occurrence {
	d.Helper()
	all := map[job.ID]job.Occurrence{}
	for _, r := range d.contents(d.reference, 1000) {
		if r.Occurrence != nil && r.Occurrence.FailedAt.IsZero() {
			all[r.Occurrence.ID] = *r.Occurrence
		}
	}
	return all
}

// notePutBacks notes the occurrences that a claim may put back: from then on, their due times are not compared. It
// reports whether the lanes of the claim have any such occurrence.
func (d *differential) notePutBacks(pending map[job.ID]job.Occurrence, p store.ClaimParams) (vague bool) {
	for id, o := range pending {
		if !slices.ContainsFunc(p.Quotas, func(q store.Quota) bool { return q.Lane == o.Lane() }) {
			continue
		}
		if j, there := d.present(o.Name); there && o.Revision != "" && !j.PausedAt.IsZero() && !o.DueAt.After(p.Due()) {
			d.vagueDue[id] = true
		}
		vague = vague || d.vagueDue[id]
	}
	return vague
}

// claimAll claims until no more is due, and returns the claimed occurrences in the order of the ids, and the remainder
// of the last claim.
func (d *differential) claimAll(s store.Store, p store.ClaimParams, before map[job.ID]job.Occurrence) (
	all []store.Claimed, left []store.QuotaLeft,
) {
	d.Helper()
	last := make([]time.Time, len(p.Quotas))
	for round := 0; ; round++ {
		if round == 1000 {
			d.Fatalf("a claim says that more is due, again and again")
		}
		claim, err := s.Claim(d.ctx, p)
		if err != nil {
			d.Fatal(err)
		}
		rest := claim.Occurrences
		for i, q := range claim.Quotas {
			if q.Found > p.Quotas[i].Limit || q.Found > len(rest) {
				d.Fatalf("a claim of at most %d has found %d, and answers %d", p.Quotas[i].Limit, q.Found, len(claim.Occurrences))
			}
			for _, c := range rest[:q.Found] {
				due := before[c.ID].DueAt
				same(d, "the lane of a claimed occurrence", c.Lane(), p.Quotas[i].Lane)
				if !d.vagueDue[c.ID] && due.Before(last[i]) {
					d.Fatalf("%s, due at %s, was claimed after one that was due at %s", c.ID, due, last[i])
				} else if !d.vagueDue[c.ID] {
					last[i] = due
				}
			}
			rest = rest[q.Found:]
		}
		same(d, "the number that belongs to no quota", len(rest), 0)
		all = append(all, claim.Occurrences...)
		if !claim.More() {
			slices.SortFunc(all, func(a, b store.Claimed) int { return a.ID.Compare(b.ID) })
			return all, claim.Quotas
		}
	}
}

func (d *differential) showClaimed(c store.Claimed) string {
	return fmt.Sprintf("%s callback=%s %s options=%s reclaimed=%t fault=%v", d.showOccurrence(c.Occurrence),
		c.Callback.Type, c.Callback.Data, c.Options.Encode(), c.Reclaimed, c.Fault)
}

// settle ends claims, including those that others have ended or replaced.
func (d *differential) settle() {
	if len(d.claims) == 0 {
		d.Skip("nothing was claimed")
	}
	var ofReference, ofStore []store.Settlement
	pending := d.pendingNow()
	claims := d.claims
	if draw(d, "of those that were claimed again", rapid.Bool()) {
		if stale := d.claimedAgain(pending); len(stale) > 0 {
			claims = stale
		}
	}
	for _, c := range someOf(d, "claims", 4, claims) {
		t := settlement(c.reference, oneOf(d, "outcome",
			store.Ack, store.Retry, store.Bury, store.Bury, store.Release, store.Miss))
		t.DueAt, t.At = d.now.Add(oneOf(d, "again after", 0, time.Second, time.Hour)), d.now
		t.Error = oneOf(d, "error", "", "it failed")
		t.KeepUntil = d.now.Add(oneOf(d, "keep", time.Second, 24*time.Hour))
		theirs := t
		theirs.Token, theirs.Hint = c.store.Token, c.store.Hint
		if again := t.Outcome == store.Retry || t.Outcome == store.Release; again && pending[t.ID].Token != t.Token {
			d.vagueExpiry[t.Name] = true
		}
		for range draw(d, "times", rapid.IntRange(1, 2)) {
			ofReference, ofStore = append(ofReference, t), append(ofStore, theirs)
		}
	}
	if err := d.reference.Settle(d.ctx, ofReference); err != nil {
		d.Fatal(err)
	}
	if err := d.store().Settle(d.ctx, ofStore); err != nil {
		d.Fatal(err)
	}
}

// claimedAgain returns the claims of pending occurrences that are now held by another claim or by none.
func (d *differential) claimedAgain(pending map[job.ID]job.Occurrence) (stale []claimed) {
	for _, c := range d.claims {
		if o, there := pending[c.reference.ID]; there && o.Token != c.reference.Token {
			stale = append(stale, c)
		}
	}
	return stale
}

// claimJobs claims all jobs that are due for expansion.
func (d *differential) claimJobs() {
	limit := draw(d, "limit", rapid.IntRange(1, 3))
	want, tokens := d.claimAllJobs(d.reference, limit)
	got, theirs := d.claimAllJobs(d.store(), limit)
	same(d, "the number of jobs claimed", len(got), len(want))
	for i := range want {
		same(d, "a claimed job", d.showJob(got[i]), d.showJob(want[i]))
		d.expansions = append(d.expansions, expanding{job: want[i], reference: tokens[i], store: theirs[i]})
	}
	d.expansions = d.expansions[max(0, len(d.expansions)-8):]
}

// claimAllJobs claims jobs until no more are due, and returns them in the order of their names, each with the token of
// its claim.
func (d *differential) claimAllJobs(s store.Store, limit int) (jobs []job.Job, tokens []string) {
	d.Helper()
	byName := map[job.Name]string{}
	for more := true; more; {
		claim, err := s.ClaimJobs(d.ctx, store.ClaimJobsParams{Now: d.now, Lease: lease, Limit: limit})
		if err != nil {
			d.Fatal(err)
		}
		if len(claim.Jobs) > limit || len(claim.Unreadable) > 0 || len(jobs) > len(everyName) {
			d.Fatalf("a claim of at most %d jobs answers %+v", limit, claim)
		}
		for _, j := range claim.Jobs {
			j.Callback.Data = nil
			jobs, byName[j.Name] = append(jobs, j), claim.Token
		}
		more = claim.More
	}
	slices.SortFunc(jobs, func(a, b job.Job) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Key, b.Key))
	})
	for _, j := range jobs {
		tokens = append(tokens, byName[j.Name])
	}
	return jobs, tokens
}

// advance ends claims of jobs, in time or late, and again.
func (d *differential) advance() {
	if len(d.expansions) == 0 {
		d.Skip("no job was claimed")
	}
	var ofReference, ofStore []store.Advance
	var indexes, again []int
	for i, e := range d.expansions {
		indexes = append(indexes, i)
		if slices.ContainsFunc(d.expansions[i+1:], func(later expanding) bool { return later.job.Name == e.job.Name }) {
			again = append(again, i)
		}
	}
	if len(again) > 0 && draw(d, "of those that were claimed again", rapid.Bool()) {
		indexes = again
	}
	for _, i := range someOf(d, "jobs", 2, indexes) {
		e := &d.expansions[i]
		if e.advance == nil {
			a := advanceOf(e.job, e.reference, d.now)
			e.advance = &a
		}
		theirs := *e.advance
		theirs.Token = e.store
		ofReference, ofStore = append(ofReference, *e.advance), append(ofStore, theirs)
		for _, o := range e.advance.Occurrences {
			d.known[o.DeliveryID()] = knownOccurrence{o.ID, o.Revision}
		}
	}
	if err := d.reference.Advance(d.ctx, ofReference); err != nil {
		d.Fatal(err)
	}
	if err := d.store().Advance(d.ctx, ofStore); err != nil {
		d.Fatal(err)
	}
}

// sweep sweeps both until there is no more to sweep.
func (d *differential) sweep() {
	if len(d.vagueExpiry) > 0 {
		d.Skip("a job may be kept longer by one than by the other")
	}
	p := store.SweepParams{Now: d.now, Again: time.Minute, Limit: draw(d, "limit", rapid.IntRange(1, 3))}
	if draw(d, "dead letters too", rapid.Bool()) {
		p.FailedBefore = d.now.Add(-time.Second)
	}
	want, got := both(d, "sweep", func(s store.Store) (all store.Swept, err error) {
		for more := true; more && err == nil; {
			var swept store.Swept
			swept, err = s.Sweep(d.ctx, p)
			all.Jobs += swept.Jobs
			all.DeadLetters += swept.DeadLetters // but not Records: a store may have removed expired ones before
			more = swept.More
		}
		return all, err
	})
	same(d, "swept", got, want)
}

// look compares the reports about lanes.
func (d *differential) look() {
	want, got := both(d, "the backlog", func(s store.Store) (store.Count, error) {
		return store.CountAll(d.ctx, s, d.now)
	})
	lanes, limit := someOf(d, "lanes", 3, everyLane), draw(d, "limit", rapid.IntRange(1, 5))
	wantCounts, gotCounts := both(d, "counts", func(s store.Store) ([]store.Count, error) {
		return s.Count(d.ctx, d.now, lanes, limit)
	})
	if len(d.vagueDue) > 0 { // the due occurrences may differ then
		want.Due, got.Due = 0, 0
		for i := range lanes {
			wantCounts[i].Due, gotCounts[i].Due = 0, 0
		}
	}
	same(d, "the backlog", got, want)
	same(d, "the counts", gotCounts, wantCounts)
	if len(d.vagueDue) == 0 {
		d.dueLanes()
	}
}

// dueLanes compares the store's lanes in a span of time with the reference's.
func (d *differential) dueLanes() {
	from := d.now.Add(oneOf(d, "from", -time.Hour, -time.Second, 0, 30*time.Second))
	p := store.DueParams{
		After: store.LaneDue{DueAt: from}, Until: from.Add(oneOf(d, "for", 0, time.Second, time.Hour)),
		Limit: draw(d, "at once", rapid.IntRange(1, 3)),
	}
	if draw(d, "from the beginning", rapid.Bool()) {
		p.After = store.LaneDue{}
	}
	first, due := map[job.Lane]time.Time{}, map[store.LaneDue]bool{}
	for _, o := range d.pendingNow() {
		due[store.LaneDue{Lane: o.Lane(), DueAt: o.DueAt}] = true
		if at, there := first[o.Lane()]; !there || o.DueAt.Before(at) {
			first[o.Lane()] = o.DueAt
		}
	}
	told := map[job.Lane]time.Time{}
	s := d.store()
	for more := true; more; {
		page, err := s.DueLanes(d.ctx, p)
		if err != nil {
			d.Fatal(err)
		}
		for _, l := range page.Lanes {
			if l.DueAt.After(p.Until) || l.Compare(p.After) <= 0 || !due[l] {
				d.Fatalf("%+v is told to become due after %+v and until %s", l, p.After, p.Until)
			}
			if at, there := told[l.Lane]; !there || l.DueAt.Before(at) {
				told[l.Lane] = l.DueAt
			}
		}
		p.After, more = page.Next, page.Next != store.LaneDue{}
	}
	for l, at := range first {
		if at.Before(from) || at.After(p.Until) {
			continue
		}
		same(d, fmt.Sprintf("when lane %s is told to become due", l), told[l], at)
	}
}
