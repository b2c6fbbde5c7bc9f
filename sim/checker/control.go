package checker

import (
	"slices"
	"time"
)

// paused: after a pause is answered, nothing fires by the job's schedule until it is resumed, except the occurrences
// that were held then, each once.
func (k *keyed) paused() {
	for _, p := range k.ops {
		if p.Kind != Pause || !p.succeeded() {
			continue
		}
		until := k.Ended.Add(time.Hour)
		for _, o := range k.ops {
			if (o.Kind == Resume || o.Kind == Cancel) && o.maybe() && !k.latest(o).Before(p.Invoked) && o.Invoked.Before(until) {
				until = o.Invoked
			}
		}
		fired := map[string]bool{}
		for _, d := range k.sent {
			if !d.Begun.After(p.Returned) || !d.Begun.Before(until) || k.loose(d) {
				continue
			}
			if d.Begun.After(p.Returned.Add(k.Lease)) || fired[d.ID] {
				k.report("a paused job does not fire", d.Begun, "instant %s was fired after the pause was answered at %s",
					k.clock(d.Instant), k.clock(p.Returned))
			}
			fired[d.ID] = true
		}
	}
}

// cancelled: the counts of a cancellation's answer add up with the deliveries that receivers saw: each instant that
// was still ahead is counted, and an occurrence that was under way is not counted as cancelled. The counts of a
// cancellation by prefix are those of all its keys together.
func (k *keyed) cancelled() {
	for _, c := range k.ops {
		if c.Kind != Cancel || !c.succeeded() || c.Prefix != "" {
			continue
		}
		ahead, left, known := k.cancellable(c)
		if c.Cancelled+c.InFlight < ahead {
			k.report("counts of a cancellation", c.Returned, "%d instants were ahead, and the answer names %d cancelled "+
				"and %d in flight", ahead, c.Cancelled, c.InFlight)
		}
		if known && c.Cancelled > left {
			k.report("counts of a cancellation", c.Returned, "at most %d occurrences were left that were not under way, "+
				"and the answer names %d cancelled", left, c.Cancelled)
		}
	}
}

// cancellable returns how many occurrences were ahead for certain when a cancellation came, and, if known, how many
// there were at most that were not under way.
func (k *keyed) cancellable(c *Op) (ahead, left int, known bool) {
	put := k.onlyPutBefore(c)
	if put == nil || put.Schedule.Every > 0 || len(put.Schedule.Instants) == 0 {
		return 0, 0, false
	}
	from := c.Returned.Add(max(0, c.Ahead) + 2*time.Second)
	if skipped := put.Returned.Add(put.Ahead); skipped.After(from) { // those that had passed by the clock of its replica
		from = skipped
	}
	for _, at := range put.Schedule.Between(from, k.Ended.Add(time.Hour)) {
		if !k.sentBefore(at, c.Returned) { // by a clock that is ahead
			ahead++
		}
	}
	held := map[time.Time]bool{}
	for _, d := range k.sent {
		if d.N == put.N && d.Begun.Before(c.Invoked) && d.Ended.After(c.Returned) && put.Schedule.Has(d.Instant) {
			held[d.Instant] = true
		}
	}
	left = len(put.Schedule.Instants) - put.Skipped - len(held)
	return ahead, left, k.calmBetween(c.Invoked.Add(-k.Lease), c.Returned)
}

// sentBefore reports whether an instant was sent before a time.
func (k *keyed) sentBefore(at, before time.Time) bool {
	return slices.ContainsFunc(k.sent, func(d *Delivery) bool { return d.Instant.Equal(at) && d.Begun.Before(before) })
}

// onlyPutBefore returns the put that made the job that a cancellation found; nil if anything else may have changed the
// occurrences that there were to cancel.
func (k *keyed) onlyPutBefore(c *Op) (put *Op) {
	for _, o := range k.ops {
		if o.puts() && o.succeeded() && o.Returned.Before(c.Invoked) {
			put = o // they are in the order of their invocations
		}
	}
	if put != nil && k.mayKeep(put) {
		return nil
	}
	for _, o := range k.ops {
		if o == c || o == put || !o.maybe() || o.Invoked.After(c.Returned) {
			continue
		}
		alone := o.Kind == Trigger || o.Kind == Redrive
		changes := o.puts() || o.Kind == Cancel
		if put == nil || alone || changes && !k.latest(o).Before(put.Invoked) {
			return nil
		}
	}
	return put
}
