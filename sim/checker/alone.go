package checker

import (
	"slices"
	"time"
)

// loose reports whether a delivery is of an occurrence that stands on its own: one that a trigger may have made, or a
// dead letter that may have been redriven.
func (k *keyed) loose(d *Delivery) bool {
	return k.triggered()[d.ID] || !k.scheduled(d.Instant) || k.mayBeTriggered(d.Instant, 15*time.Second, false) ||
		slices.ContainsFunc(k.ops, func(o *Op) bool {
			return o.mayRedrive() && o.Invoked.Before(d.Begun) && k.failedBefore(d.ID, o)
		})
}

// failedBefore reports whether an attempt at an occurrence had failed before the last moment at which an operation may
// have taken effect, so that it may have been a dead letter, which was not deleted before that.
func (k *keyed) failedBefore(id string, o *Op) bool {
	return slices.ContainsFunc(k.sent, func(d *Delivery) bool {
		return d.ID == id && k.mayFail(d) && d.Begun.Before(k.latest(o)) && !k.endedBy(d, o, Discard)
	})
}

// twins reports whether two deliveries with one id may be of different dead letters: each has the payload of another
// job, and a redrive may have found one of either.
func (k *keyed) twins(d, e *Delivery) bool {
	failed := func(n int, before time.Time) bool {
		return slices.ContainsFunc(k.sent, func(f *Delivery) bool {
			return f.ID == d.ID && f.N == n && k.mayFail(f) && f.Begun.Before(before)
		})
	}
	return d.ID == e.ID && d.N != e.N && slices.ContainsFunc(k.ops, func(o *Op) bool {
		return o.mayRedrive() && o.Invoked.Before(e.Begun) && failed(d.N, k.latest(o)) && failed(e.N, k.latest(o))
	})
}

// standAlone: an instant that no put has was triggered; and an occurrence that was triggered or redriven, and
// acknowledged, is taken, or is a dead letter, or may have been cancelled.
func (k *keyed) standAlone() {
	triggered := k.triggered()
	for _, d := range k.sent {
		if !k.scheduled(d.Instant) && !triggered[d.ID] && !k.mayBeTriggered(d.Instant, 15*time.Second, false) {
			k.report("nothing fires unasked", d.Begun, "instant %s was fired, which no job has, and no trigger has made",
				k.clock(d.Instant))
		}
	}
	if len(k.Final.Unread) > 0 {
		return
	}
	for _, o := range k.ops {
		if !o.succeeded() || o.Returned.After(k.Due) || k.mayCancelSince(o.Invoked) {
			continue
		}
		if o.Kind == Trigger && o.DeliveryID != "" && !k.endedSince(o.DeliveryID, o.Invoked) {
			k.report("nothing lost", o.Returned, "the triggered delivery %s was not taken, and is no dead letter", o.DeliveryID)
		}
		if ended := k.redriven(o); ended < o.Redriven {
			k.report("nothing lost", o.Returned, "%d dead letters were redriven, and %d of them were taken, or are dead "+
				"letters again", o.Redriven, ended)
		}
	}
}

// redriven returns the most of the dead letters that a redrive may have found, and that have ended since.
func (k *keyed) redriven(o *Op) (ended int) {
	ids := map[string]bool{}
	for _, d := range k.sent {
		if !ids[d.ID] && k.failedBefore(d.ID, o) && k.endedSince(d.ID, o.Invoked) {
			ids[d.ID] = true
			ended += k.lettersOf(d, o)
		}
	}
	return ended
}

// endedSince reports whether an occurrence was taken after a time, or is a dead letter, or may have been a deleted one.
func (k *keyed) endedSince(id string, after time.Time) bool {
	return slices.ContainsFunc(k.sent, func(d *Delivery) bool { return d.ID == id && d.Took && d.Ended.After(after) }) ||
		slices.ContainsFunc(k.Final.Dead[k.key], func(d Dead) bool { return d.DeliveryID == id }) ||
		k.mayBeDeletedSince(after, func(d *Delivery) bool { return d.ID == id })
}

// mayCancelSince reports whether a cancellation since a time may have found an occurrence.
func (k *keyed) mayCancelSince(from time.Time) bool {
	return slices.ContainsFunc(k.ops, func(o *Op) bool {
		return o.Kind == Cancel && o.maybe() && k.latest(o).After(from) && (!o.succeeded() || o.Cancelled+o.InFlight > 0)
	})
}

// lettersOf returns how many dead letters an occurrence may have had at a redrive: one for each job that has it.
func (k *keyed) lettersOf(d *Delivery, redrive *Op) (n int) {
	for _, o := range k.ops {
		if o.puts() && o.maybe() && o.Schedule.Has(d.Instant) &&
			o.Invoked.Before(k.latest(redrive)) {
			n++
		}
	}
	return max(n, 1)
}
