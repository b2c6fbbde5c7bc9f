package checker

import (
	"slices"
	"time"
)

// uncounted reports whether an instant of a put may have been dropped as too late without being counted: its job drops
// late occurrences, and a replica may have died, stood still, or lost the store while it wrote that.
func (k *keyed) uncounted(o *Op, at time.Time) bool {
	over, drops := k.tooLate(o, at)
	if !k.CountsApart || !drops {
		return false
	}
	from, until := over.Add(-wrong-o.Schedule.Spread), k.keptFrom(o, at, over).Add(k.Lease)
	return slices.ContainsFunc(k.Troubles, func(t Trouble) bool {
		switch t.What {
		case "receivers", "step", "drift", "stop":
			return false
		default:
			return t.From.Before(until) && t.To.After(from)
		}
	})
}

// tooLate returns the time after which a put's job may drop an instant, if there is one: after its deadline, or, for a
// tick that was not attempted, after a lease since its due time, unless the job catches up all ticks.
func (k *keyed) tooLate(o *Op, at time.Time) (over time.Time, drops bool) {
	attempted := slices.ContainsFunc(k.sent, func(d *Delivery) bool { return d.Instant.Equal(at) })
	switch {
	case o.Deadline > 0:
		return at.Add(o.Deadline), true
	case o.Schedule.Every > 0 && o.CatchUp != "all" && !attempted:
		_, due := k.dueBy(o, at)
		return due.Add(k.Lease), true
	default:
		return over, false
	}
}

// span is a time in which something may keep replicas from occurrences.
type span struct{ from, to time.Time }

// keptFrom returns the time until which something may have kept replicas from an instant that is too late after a time:
// pauses of its job, the settings of operators for its tenant, and faults, one after the other.
func (k *keyed) keptFrom(o *Op, at, over time.Time) time.Time {
	causes := k.causes(o.Tenant, settled)
	for _, t := range k.Troubles {
		causes = append(causes, span{t.From, t.To})
	}
	until := over
	for range causes {
		for _, c := range causes {
			if c.to.After(until) && c.from.Before(until) && c.to.After(at) {
				until = c.to
			}
		}
	}
	return until
}

// causes returns the pauses of the job, each with some time after its end, and the times in which operators' settings
// may hold its tenant up.
func (k *keyed) causes(tenant string, resumed time.Duration) (all []span) {
	for i := range k.Ops {
		p := &k.Ops[i]
		ends, after := p.Kind, settled
		switch {
		case p.Kind == Pause && p.Key == k.key:
			ends, after = Resume, resumed
		case p.Kind == Settings && p.Tenant == tenant && (p.Paused || p.Most > 0):
		default:
			continue
		}
		cause := span{p.Invoked, k.Ended}
		for j := range k.Ops {
			if e := &k.Ops[j]; e != p && e.Kind == ends && e.Tenant == p.Tenant && (e.Kind == Settings || e.Key == k.key) &&
				e.succeeded() && e.Invoked.After(k.latest(p)) && e.Returned.Add(after).Before(cause.to) {
				cause.to = e.Returned.Add(after)
			}
		}
		all = append(all, cause)
	}
	return all
}
