package checker

import (
	"fmt"
	"slices"
	"time"
)

// settled is the time within which replicas that reach the store apply the changes of operators.
const settled = 6 * time.Second

// counted is the time within which the jobs that other replicas have admitted count for a quota.
const counted = 11 * time.Second

// operators checks the changes of operators: tenants' pauses, limits and quotas.
func (h *History) operators() (found []Violation) {
	for i := range h.Ops {
		o := &h.Ops[i]
		found = append(found, h.refused(o)...)
		if !o.succeeded() {
			continue
		}
		switch o.Kind {
		case Settings:
			if o.Paused {
				found = append(found, h.pausedTenant(o)...)
			}
			if o.Most > 0 {
				found = append(found, h.limited(o)...)
			}
		case Quota:
			found = append(found, h.quota(o)...)
		default:
		}
	}
	return found
}

// calmBetween reports whether no replica had a fault in a time.
func (h *History) calmBetween(from, to time.Time) bool {
	return !slices.ContainsFunc(h.Troubles, func(t Trouble) bool { return t.From.Before(to) && t.To.After(from) })
}

// changedAgain returns the time of the next change after an operation that differs from it; a change at the same time
// ends it at once.
func (h *History) changedAgain(o *Op, differs func(p *Op) bool) time.Time {
	until := h.Ended.Add(time.Hour)
	for i := range h.Ops {
		p := &h.Ops[i]
		over := p.Invoked.Add(h.Link + h.Within)
		if p != o && p.Kind == o.Kind && p.Tenant == o.Tenant && differs(p) && p.maybe() &&
			over.After(o.Invoked) && p.Invoked.Before(until) {
			until = p.Invoked
		}
	}
	return until
}

// pausedTenant: nothing of a paused tenant fires, once all replicas know.
func (h *History) pausedTenant(o *Op) (found []Violation) {
	until := h.changedAgain(o, func(p *Op) bool { return p.Paused != o.Paused })
	from := o.Returned.Add(settled + h.CallbackTimeout)
	for i := range h.Deliveries {
		d := &h.Deliveries[i]
		if d.Tenant != o.Tenant || !d.Begun.After(from) || !d.Begun.Before(until) ||
			!h.calmBetween(o.Invoked.Add(-healthy), d.Begun) {
			continue
		}
		found = append(found, Violation{
			Rule: "a paused tenant does not fire", Key: d.Key, At: d.Begun,
			Text: fmt.Sprintf("instant %s was fired %s after the pause of its tenant was answered",
				d.Instant.Sub(h.Begun), d.Begun.Sub(o.Returned)),
		})
	}
	return found
}

// limited: once a replica knows of a tenant's limit, it begins a delivery only while fewer are under way. A fault may
// have kept it from reading the settings, or have it read them later; sick receivers are no excuse.
func (h *History) limited(o *Op) (found []Violation) {
	until := h.changedAgain(o, func(p *Op) bool { return p.Most != o.Most })
	from := o.Returned.Add(settled + h.CallbackTimeout)
	for i := range h.Deliveries {
		d := &h.Deliveries[i]
		if d.Tenant != o.Tenant || !d.Begun.After(from) || !d.Begun.Before(until) ||
			h.troubled(d.Replica, o.Invoked.Add(-healthy), d.Begun) {
			continue
		}
		here := func(e *Delivery) bool { // an end after that of the history is unknown
			return e == d || e.Replica == d.Replica && e.Tenant == d.Tenant && !e.Ended.After(h.Ended)
		}
		if n := h.underWay(d.Begun, here); n > o.Most {
			found = append(found, Violation{
				Rule: "a tenant keeps its limit", Key: d.Key, At: d.Begun,
				Text: fmt.Sprintf("instant %s was fired while replica %d had %d other deliveries of its tenant under way, "+
					"which may have %d in all", d.Instant.Sub(h.Begun), d.Replica, n-1, o.Most),
			})
		}
	}
	return found
}

// troubled reports whether a replica may have had a fault in a time, other than sick receivers.
func (h *History) troubled(replica int, from, to time.Time) bool {
	return slices.ContainsFunc(h.Troubles, func(t Trouble) bool {
		return t.What != "receivers" && t.concerns(replica) && t.From.Before(to) && t.To.After(from)
	})
}

// quota: once all replicas know of a quota, no job is made beyond it.
func (h *History) quota(q *Op) (found []Violation) {
	until := h.changedAgain(q, func(p *Op) bool { return p.Jobs != q.Jobs })
	for i := range h.Ops {
		o := &h.Ops[i]
		if o.Tenant != q.Tenant || o.Status != 201 || !o.puts() ||
			!o.Invoked.After(q.Returned.Add(settled)) || o.Invoked.After(until) ||
			!h.calmBetween(q.Invoked.Add(-healthy), o.Returned) || h.cancelledBeside(o) {
			continue
		}
		if n := h.jobsBefore(o); n >= q.Jobs {
			found = append(found, Violation{
				Rule: "quotas", Key: o.Key, At: o.Returned,
				Text: fmt.Sprintf("a job was made while the tenant had %d others, and may have %d in all", n, q.Jobs),
			})
		}
	}
	return found
}

// refused: a quota refuses no job for which it has room. A submission counts while it is under way, even if it changes
// nothing in the end, and so do former submissions of the same key: a cancellation makes room only some time later. One
// that is under way while a replica counts may count twice until the next count.
func (h *History) refused(o *Op) (found []Violation) {
	if o.Status != 403 || !o.puts() {
		return nil
	}
	others, least := map[string]int{}, 0
	for i := range h.Ops {
		switch p := &h.Ops[i]; {
		case p == o || p.Tenant != o.Tenant || !p.Invoked.Before(o.Returned):
		case !p.maybe() && p.Returned.Add(time.Second).Before(o.Invoked):
		case p.Kind == Quota && (least == 0 || p.Jobs < least):
			least = p.Jobs
		case p.puts():
			others[p.Key] = max(others[p.Key], 1)
			if h.twice(p, o) {
				others[p.Key] = 2
			}
		}
	}
	n := 0
	for _, counted := range others {
		n += counted
	}
	if n < least {
		found = append(found, Violation{
			Rule: "quotas", Key: o.Key, At: o.Returned,
			Text: fmt.Sprintf("a job was refused while the tenant had %d others at most, and may have %d in all",
				n, least),
		})
	}
	return found
}

// twice reports whether a submission may count twice when another one is refused: its replica may have counted while it
// was under way, and the next count comes within twenty times the duration of that one, which a fault makes longer.
func (h *History) twice(p, refused *Op) bool {
	const next = 16 * time.Second // no count takes longer than 0.8 s without a fault
	return p.Replica == refused.Replica && (p.Returned.Add(next).After(refused.Invoked) ||
		!h.calmBetween(p.Invoked, p.Returned.Add(next)))
}

// cancelledBeside reports whether the job was cancelled while an operation was under way, which may have begun as a
// replacement, and so without a quota.
func (h *History) cancelledBeside(o *Op) bool {
	return slices.ContainsFunc(h.Ops, func(c Op) bool {
		return c.Kind == Cancel && c.Key == o.Key && c.maybe() && c.Invoked.Before(o.Returned) &&
			(c.Invoked.Add(h.Link+h.Within).After(o.Invoked) || h.latest(&c).After(o.Invoked))
	})
}

// jobsBefore returns the number of other jobs that counted for the tenant of an operation, for certain: those that its
// own replica has made at once, and those of others after some time.
func (h *History) jobsBefore(o *Op) int {
	has := map[string]bool{}
	for i := range h.Ops {
		p := &h.Ops[i]
		after := counted
		if p.Replica == o.Replica && p.Status == 201 {
			after = 0
		}
		if p.Tenant == o.Tenant && p.Key != o.Key && p.puts() && p.succeeded() &&
			p.Returned.Add(after).Before(o.Invoked) {
			has[p.Key] = true
		}
	}
	for i := range h.Ops { // a cancellation at any time may have come last
		if p := &h.Ops[i]; p.Kind == Cancel && p.maybe() && p.Invoked.Before(o.Returned) {
			delete(has, p.Key)
		}
	}
	return len(has)
}
