package checker

import (
	"slices"
	"time"
)

// healthy is the time without a fault after which nothing may be late any more: a lease, and the longest pauses after
// failures.
const healthy = 60 * time.Second

// punctual: an instant that is due while its replicas have been healthy for some time fires in time. The acts of other
// tenants are no cause for lateness, except that their deliveries under way are waited for.
func (k *keyed) punctual() {
	seen := map[string]bool{}
	for _, d := range k.sent {
		first := !seen[d.ID]
		seen[d.ID] = true
		due := k.latestDue(d.Instant, d.Begun)
		late, most := d.Begun.Sub(due), patience
		if !first || late < patience || k.loose(d) || !k.scheduled(d.Instant) {
			continue
		}
		if k.underWay(due, everyone) >= k.Slots {
			most += 2 * k.CallbackTimeout
		}
		if late > most && !k.atLimit(d) && !k.disturbed(due.Add(-healthy), d.Begun) {
			k.report("no lateness without a cause", d.Begun, "instant %s was fired %s late", k.clock(d.Instant), late)
		}
	}
}

// everyone stands for the deliveries of all tenants.
func everyone(*Delivery) bool { return true }

// underWay returns the number of some deliveries that are under way at a time.
func (h *History) underWay(at time.Time, of func(*Delivery) bool) (n int) {
	for i := range h.Deliveries {
		if d := &h.Deliveries[i]; !d.Begun.After(at) && d.Ended.After(at) && of(d) {
			n++
		}
	}
	return n
}

// atLimit reports whether a delivery may have waited until shortly before for others of its tenant, which an operator
// has limited.
func (h *History) atLimit(d *Delivery) bool {
	ofTenant := func(e *Delivery) bool { return e.Tenant == d.Tenant }
	return slices.ContainsFunc(h.Ops, func(o Op) bool {
		lifted := func(p Op) bool {
			return p.Kind == Settings && p.Tenant == o.Tenant && p.Most != o.Most && p.succeeded() &&
				p.Invoked.After(o.Returned) && p.Returned.Add(settled).Before(d.Instant)
		}
		return o.Kind == Settings && o.Tenant == d.Tenant && o.Most > 0 && o.maybe() && o.Invoked.Before(d.Begun) &&
			!slices.ContainsFunc(h.Ops, lifted) && h.mostUnderWay(d.Begun.Add(-patience), d.Begun, ofTenant) >= o.Most
	})
}

// disturbed reports whether anything but plain deliveries happened to a job in a time: a change of it or of its tenant,
// a fault, or a delivery that its receiver did not take at once.
func (k *keyed) disturbed(from, to time.Time) bool {
	within := func(begun, ended time.Time) bool { return begun.Before(to) && ended.After(from) }
	tenant := ""
	if len(k.ops) > 0 {
		tenant = k.ops[0].Tenant
	}
	return slices.ContainsFunc(k.ops, func(o *Op) bool { return !o.reads() && within(o.Invoked, k.latest(o)) }) ||
		slices.ContainsFunc(k.Ops, func(o Op) bool {
			return o.Kind == Settings && o.Tenant == tenant && within(o.Invoked, k.latest(&o).Add(settled))
		}) ||
		slices.ContainsFunc(k.Troubles, func(t Trouble) bool { return t.What != "receivers" && within(t.From, t.To) }) ||
		slices.ContainsFunc(k.sent, func(d *Delivery) bool {
			return within(d.Begun, d.Ended) && (!d.Took || d.Ended.Sub(d.Begun) > 200*time.Millisecond)
		})
}

// dropped: an occurrence does not fire when its deadline is over, and a tick that no replica could claim for longer
// than a lease does not fire if its job says so. An occurrence that was claimed in time may still be sent for the
// time of a callback.
func (k *keyed) dropped() {
	for _, d := range k.sent {
		all := k.defining(d.N)
		if len(all) == 0 || all[0].Kind == Amend || k.loose(d) || k.stepped(d) {
			continue
		}
		var most time.Duration
		var why string
		switch o := all[0]; {
		case o.Deadline > 0:
			most, why = o.Deadline, "its deadline"
		case o.CatchUp == "none" && o.Schedule.Every > 0 && d.Attempt == 1:
			_, due := k.dueBy(o, d.Instant)
			most, why = k.Lease+due.Sub(d.Instant), "the time for late ticks"
		default:
			continue
		}
		if late := d.Local.Sub(d.Instant); late > most+k.CallbackTimeout+time.Second {
			k.report("too late is dropped", d.Begun, "instant %s was fired %s after it, beyond %s of %s",
				k.clock(d.Instant), late, why, most)
		}
	}
}

// wrongClock: a replica whose clock is further off than it may be claims nothing, so it sends nothing once the
// occurrences that it had claimed before are sent. It learns of that within the time of a callback, if it reaches the
// store.
func (k *keyed) wrongClock() {
	for _, d := range k.sent {
		off := d.Local.Sub(d.Begun).Abs()
		if k.ClockBound == 0 || off <= k.ClockBound+time.Second {
			continue
		}
		since := d.Begun.Add(-k.CallbackTimeout - time.Second)
		set, beside := false, false
		for _, t := range k.Troubles {
			switch {
			case !t.concerns(d.Replica) || !t.From.Before(d.Begun) || !t.To.After(since.Add(-k.Lease)):
			case t.What != "step" && t.What != "drift" && t.What != "receivers":
				beside = true
			case t.Replica == d.Replica && t.From.After(since):
				beside = true // it was set again
			case t.Replica == d.Replica:
				set = true
			}
		}
		if set && !beside {
			k.report("a wrong clock stops claiming", d.Begun, "instant %s was fired by replica %d, whose clock was off by %s",
				k.clock(d.Instant), d.Replica, off)
		}
	}
}

// stepped reports whether the clock of a delivery's replica was set shortly before.
func (k *keyed) stepped(d *Delivery) bool {
	return slices.ContainsFunc(k.Troubles, func(t Trouble) bool {
		return (t.What == "step" || t.What == "drift") && t.Replica == d.Replica &&
			t.From.Before(d.Begun) && t.To.After(d.Begun.Add(-k.Lease))
	})
}
