package checker

import (
	"slices"
	"time"
)

// known is the time after which all replicas know of a job, two polls, and aside that after which a replica that died,
// stopped or stands still has claimed nothing more, by clocks that agree.
const known, aside = 3 * time.Second, time.Second

// takenOver: an occurrence is not late because replicas have died, stopped or stood still before it was due. Up to
// three replicas all claim it; from four on, another one takes the dead one's turn over. One must have had no fault. In
// an early window nothing is late.
func (k *keyed) takenOver() {
	seen := map[string]bool{}
	for _, d := range k.sent {
		first := !seen[d.ID]
		seen[d.ID] = true
		late := d.Begun.Sub(k.latestDue(d.Instant, d.Begun)) - k.spread()
		due := d.Instant.Add(-k.Early)
		if first && k.TakesOver > 0 && late > k.TakesOver && k.plain(d, due) && k.survived(d, due) {
			k.report("a dead replica's turn is taken over", d.Begun, "instant %s was fired %s late, though a replica was well",
				k.clock(d.Instant), late)
		}
	}
}

// plain reports whether a delivery, which was due at a time at the earliest, is of a job that all replicas knew, and
// that nobody changed meanwhile, at a receiver that has been well; and neither its tenant nor the replicas had too much
// to do.
func (k *keyed) plain(d *Delivery, due time.Time) bool {
	return due.After(k.Begun.Add(k.Lease)) &&
		k.mostUnderWay(due.Add(-patience), d.Begun, everyone) <= k.Slots/4 &&
		!slices.ContainsFunc(k.ops, func(o *Op) bool {
			return !o.reads() && o.Invoked.Before(d.Begun) && k.latest(o).After(due.Add(-known))
		}) &&
		!slices.ContainsFunc(k.Ops, func(o Op) bool {
			return o.Kind == Settings && o.Tenant == d.Tenant && o.Invoked.Before(d.Begun)
		}) &&
		!slices.ContainsFunc(k.Deliveries, func(e Delivery) bool {
			same := e.Key == d.Key || e.To != "" && e.To == d.To
			return same && e.Begun.Before(d.Begun) && e.Ended.After(due.Add(-healthy)) &&
				(!e.Took || e.Ended.Sub(e.Begun) > 200*time.Millisecond)
		})
}

// survived reports whether, of the replicas, some had no fault, and the others died, stopped or stood still, and began
// to do so long enough before it was due.
func (k *keyed) survived(d *Delivery, due time.Time) bool {
	from, gone := due.Add(-healthy), map[int]bool{}
	for _, t := range k.Troubles {
		if t.What == "receivers" || !t.From.Before(d.Begun) || !t.To.After(from) {
			continue
		}
		since := t.From.Add(aside + k.spread())
		if t.What == "stall" {
			since = since.Add(k.Counted)
		}
		alone := t.What == "crash" || t.What == "stop" || t.What == "stall"
		if !alone || t.Replica < 0 || since.After(due) {
			return false
		}
		gone[t.Replica] = true
	}
	return len(gone) > 0 && len(gone) < k.Replicas
}
