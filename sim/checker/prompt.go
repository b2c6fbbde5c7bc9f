package checker

import (
	"slices"
	"time"
)

// prompt: where nothing else disturbs, a tenant's few deliveries at receivers that answer at once begin at their
// instants, moved by their spreads, less the early window, or at once after their job was submitted: whatever backlog
// other tenants have, at whichever receivers, and whichever replica the client has asked.
func (k *keyed) prompt() {
	seen := map[string]bool{}
	for _, d := range k.sent {
		first := !seen[d.ID]
		seen[d.ID] = true
		puts := k.defining(d.N)
		if k.Prompt == 0 || !first || len(puts) == 0 || !puts[0].succeeded() || puts[0].Kind == Amend || k.loose(d) {
			continue
		}
		due := k.latestDue(d.Instant, d.Begun).Add(-k.Early)
		if told := puts[0].Returned; told.After(due) {
			due = told
		}
		late := d.Begun.Sub(due)
		if late > k.Prompt && late > k.Prompt+k.spread() && k.few(d, due) && !k.meddled(puts[0], due, d.Begun) {
			k.report("few deliveries are prompt", d.Begun,
				"instant %s of tenant %q was fired %s late, at receivers that are well",
				k.clock(d.Instant), d.Tenant, late)
		}
	}
}

// spread returns how far apart the replicas' clocks were at most.
func (h *History) spread() time.Duration {
	ahead, behind := time.Duration(0), time.Duration(0)
	for i := range h.Ops {
		ahead, behind = max(ahead, h.Ops[i].Ahead), max(behind, h.Ops[i].Behind)
	}
	for i := range h.Deliveries {
		off := h.Deliveries[i].Local.Sub(h.Deliveries[i].Begun)
		ahead, behind = max(ahead, off), max(behind, -off)
	}
	return ahead + behind
}

// few reports whether a delivery's tenant has no more due at about that time than one replica has slots for, and its
// receivers have taken all of its deliveries at once so far.
func (h *History) few(d *Delivery, due time.Time) bool {
	const about = 2 * time.Second
	n := 0
	for i := range h.Deliveries {
		e := &h.Deliveries[i]
		if e.Tenant != d.Tenant || e.Begun.After(d.Begun) {
			continue
		}
		if !e.Took || e.Ended.Sub(e.Begun) > 200*time.Millisecond {
			return false
		}
		if due.Sub(e.Instant).Abs() < about || e.Begun.After(due.Add(-about)) {
			n++
		}
	}
	return n <= h.Slots/4
}

// meddled reports whether anything but slow receivers may have made a delivery late: a fault of the world or its
// beginning, another change of the job, or one of its tenant.
func (k *keyed) meddled(put *Op, due, sent time.Time) bool {
	from := due.Add(-healthy)
	return due.Before(k.Begun.Add(k.Lease)) ||
		slices.ContainsFunc(k.Troubles, func(t Trouble) bool {
			return t.What != "receivers" && t.From.Before(sent) && t.To.After(from)
		}) ||
		slices.ContainsFunc(k.ops, func(o *Op) bool {
			return o != put && !o.reads() && o.Invoked.Before(sent) && k.latest(o).After(from)
		}) ||
		slices.ContainsFunc(k.Ops, func(o Op) bool {
			return o.Kind == Settings && o.Tenant == put.Tenant && o.Invoked.Before(sent)
		})
}
