package checker

import (
	"slices"
	"time"
)

// patience is the time within which an occurrence that is due fires if nothing keeps replicas from it: clocks differ by
// up to 2 s, and a poll takes 1 s.
const patience = 5 * time.Second

// onlyLatest: of a job that catches up the latest tick, a tick that is claimed more than a lease after its due time,
// and that was not attempted before, fires only if it is the newest of the crontab's ticks up to that claim, besides
// those that a spread may still move ahead of it. When it was claimed is not known: at the earliest, a callback's time
// before it was sent.
func (k *keyed) onlyLatest() {
	seen := map[string]bool{}
	for _, d := range k.sent {
		first := !seen[d.ID]
		seen[d.ID] = true
		all := k.defining(d.N)
		if len(all) == 0 || all[0].CatchUp != "latest" || !first || d.Attempt > 1 || k.loose(d) || k.stepped(d) ||
			k.stoodStill(d) {
			continue
		}
		claimed := d.Local.Add(-k.CallbackTimeout - time.Second)
		_, due := k.dueBy(all[0], d.Instant)
		newer, more := all[0].Schedule.next(d.Instant)
		if claimed.Sub(due) > k.Lease && more && !newer.After(claimed.Add(-all[0].Schedule.Spread)) {
			k.report("only the latest is caught up", d.Begun, "tick %s was fired %s late, though tick %s had passed",
				k.clock(d.Instant), d.Local.Sub(d.Instant), k.clock(newer))
		}
	}
}

// droppedForCause: an instant of an acknowledged job that nothing may have ended is dropped as too late only if
// something kept all replicas from it, until its deadline was over, or, for a tick, from its instant on or for some
// time before: ticks that were not in the store when they passed may be dropped at once. With "latest", a newer tick
// must have passed too when a replica came to it. So the last tick of a crontab is never dropped.
func (k *keyed) droppedForCause() {
	for _, o := range k.ops {
		from, stands := k.stands(o)
		if !stands || k.maySupersede(o) {
			continue
		}
		for _, at := range o.Schedule.Between(from, k.Due) {
			over, drops := k.tooLate(o, at)
			if !drops || k.taken(at) || k.isDead(at) || k.mayBeDeleted(at) || k.passedBefore(o, at) {
				continue
			}
			if why := k.needlessly(o, at, over); why != "" {
				k.report("nothing is dropped without a cause", at, "instant %s of payload %d was dropped, %s",
					k.clock(at), o.N, why)
			}
		}
	}
}

// needlessly returns why an instant of a put need not have been dropped, which is too late after a time; empty if there
// may be a cause.
func (k *keyed) needlessly(o *Op, at, over time.Time) string {
	newer, more := o.Schedule.next(at)
	latest := o.Deadline == 0 && o.CatchUp == "latest"
	passed := newer.Add(o.Schedule.Spread) // then nothing moves that tick any further
	switch {
	case latest && !more:
		return "and it is the last tick, which is always caught up"
	case latest && newer.Sub(at) >= patience && !k.kept(o, passed.Add(-patience), passed):
		return "and nothing kept replicas from it just before the next tick had passed, " + k.clock(passed)
	case over.Sub(k.latestDue(at, k.Ended)) >= patience && !k.kept(o, at, over):
		return "and nothing kept replicas from it until " + k.clock(over)
	}
	return ""
}

// kept reports whether something may have kept the replicas from an occurrence of a put's job in a time, or some time
// before: a fault or its consequences, a pause of the job, an operator's settings for its tenant, receivers that fail
// or take their time, or deliveries that have all slots.
func (k *keyed) kept(o *Op, from, to time.Time) bool {
	const slow = 200 * time.Millisecond
	return from.Before(k.Begun.Add(k.Lease)) || slices.ContainsFunc(k.causes(o.Tenant, k.resumed()), func(c span) bool {
		return c.from.Before(to) && c.to.After(from)
	}) || slices.ContainsFunc(k.Troubles, func(t Trouble) bool {
		return t.From.Before(to) && t.To.Add(healthy).After(from)
	}) || slices.ContainsFunc(k.sent, func(d *Delivery) bool {
		return d.Begun.Before(to) && d.Ended.After(from.Add(-k.Lease)) && (!d.Took || d.Ended.Sub(d.Begun) > slow)
	}) || k.mostUnderWay(from, to, everyone) >= k.Slots
}

// resumed returns the time after the answer to a resume in which a tick may count as passed: the clock of the replica
// that expands the job may be ahead, and an expansion that another pause has cut off is waited for.
func (k *keyed) resumed() time.Duration {
	after, pauses := k.spread()+k.Prompt, 0
	for _, o := range k.ops {
		if o.Kind == Pause && o.maybe() {
			pauses++
		}
	}
	if pauses > 1 {
		after += k.Lease
	}
	return after
}

// mostUnderWay returns the largest number of some deliveries that are under way at a time.
func (h *History) mostUnderWay(from, to time.Time, of func(*Delivery) bool) (most int) {
	most = h.underWay(from, of)
	for i := range h.Deliveries {
		if at := h.Deliveries[i].Begun; at.After(from) && at.Before(to) {
			most = max(most, h.underWay(at, of))
		}
	}
	return most
}
