package checker

import (
	"slices"
	"time"
)

// Retry bounds the pauses between the attempts at an occurrence; zero is unknown.
type Retry struct {
	// Initial bounds the first pause. Each further bound is Factor times the one before, up to Max.
	Initial, Max time.Duration
	Factor       float64
}

// bound returns the longest pause after the attempt of a number.
func (r Retry) bound(number int) time.Duration {
	bound := r.Initial
	for range number - 1 {
		bound = min(time.Duration(float64(bound)*r.Factor), r.Max)
	}
	return min(bound, r.Max)
}

// pauses: a failed attempt is followed by the next one no sooner than its receiver asked, by the clocks of the
// replicas, and, if nothing disturbs, no later than the bound of its job's pauses, or that time.
func (k *keyed) pauses() {
	const poll = 2 * time.Second // with four replicas or more, another one may have the turn
	last := map[string]*Delivery{}
	for _, d := range k.sent {
		before := last[d.ID]
		last[d.ID] = d
		if before == nil || k.outcome(before) != "retried" || k.tooLateFor(before) ||
			k.changedBetween(before.Begun, d.Begun) {
			continue
		}
		if pause := d.Local.Sub(before.Local); pause < before.Asked && !k.stepped(before) && !k.stepped(d) {
			k.report("pauses keep their bounds", d.Begun, "instant %s was sent again %s after attempt %d, whose receiver asked "+
				"for %s", k.clock(d.Instant), pause, before.Attempt, before.Asked)
		}
		most, known := k.longestPause(before)
		pause := d.Begun.Sub(before.Ended)
		if known && pause > most && pause > most+k.Prompt+poll+k.spread() && !k.delayed(before, d) {
			k.report("pauses keep their bounds", d.Begun, "instant %s was sent again %s after attempt %d, and its pause "+
				"is %s at most", k.clock(d.Instant), pause, before.Attempt, most)
		}
	}
}

// changedBetween reports whether a client may have changed the job or its occurrences in a time.
func (k *keyed) changedBetween(from, to time.Time) bool {
	return slices.ContainsFunc(k.ops, func(o *Op) bool {
		return !o.reads() && o.Kind != Trigger && o.maybe() && o.Invoked.Before(to) && k.latest(o).After(from)
	})
}

// longestPause returns the longest pause after an attempt, of all jobs that the key may have had, or by its receiver.
func (k *keyed) longestPause(d *Delivery) (most time.Duration, known bool) {
	for _, o := range k.policies() {
		if o.Retry.Initial == 0 {
			return 0, false
		}
		most = max(most, o.Retry.bound(d.Attempt))
	}
	return max(most, d.Asked), k.Prompt > 0 && most > 0
}

// delayed reports whether anything but its pause may have delayed the attempt after another one: a fault, a pause of
// its job, settings of its tenant, deliveries that have the slots of its receiver, or failures in a row at that.
func (k *keyed) delayed(before, d *Delivery) bool {
	from := before.Begun.Add(-k.Lease)
	overlaps := func(begun, ended time.Time) bool { return begun.Before(d.Begun) && ended.After(from) }
	return from.Before(k.Begun) || k.mayBeDown(d.To, d.Begun) ||
		k.mostUnderWay(before.Begun, d.Begun, everyone) >= k.Slots/2 ||
		slices.ContainsFunc(k.Troubles, func(t Trouble) bool { return t.What != "receivers" && overlaps(t.From, t.To) }) ||
		slices.ContainsFunc(k.causes(d.Tenant, settled), func(c span) bool { return overlaps(c.from, c.to) })
}

// mayBeDown reports whether a replica may take a receiver for down, since it has failed several times in a row there.
func (h *History) mayBeDown(receiver string, before time.Time) bool {
	const several = 10
	inARow := map[int]int{}
	for i := range h.Deliveries {
		d := &h.Deliveries[i]
		if d.To != receiver || !d.Begun.Before(before) {
			continue
		}
		if inARow[d.Replica]++; d.Told {
			inARow[d.Replica] = 0
		}
		if inARow[d.Replica] >= several {
			return true
		}
	}
	return false
}
