package checker

import (
	"slices"
	"time"
)

// letters: the answer to a redrive or a deletion of dead letters counts those that were there, as far as the attempts
// and history tell, and none that was deleted or redriven before and has not failed since. A letter that was deleted is
// not shown in the end.
func (k *keyed) letters() {
	if k.mayBeUnsent() { // a dead letter may have had no attempt that a receiver saw
		return
	}
	for _, o := range k.ops {
		if o.Kind != Redrive && o.Kind != Discard || !o.succeeded() {
			continue
		}
		if of := k.lettersAt(o); o.Redriven+o.Deleted < of.least || o.Redriven+o.Deleted > of.most {
			k.report("dead letters are counted", o.Returned, "the %s names %d, and there were %d to %d",
				o.Kind, o.Redriven+o.Deleted, of.least, of.most)
		}
	}
	end := &Op{Invoked: k.Ended}
	for _, letter := range k.Final.Dead[k.key] {
		attempts := k.attemptsAt(letter.DeliveryID)
		gone := func(d *Delivery) bool { return !k.mayFail(d) || k.endedBy(d, end, Discard) }
		if len(attempts) > 0 && !slices.ContainsFunc(attempts, func(d *Delivery) bool { return !gone(d) }) {
			k.report("a deleted letter is gone", k.Ended, "the dead letter of instant %s is shown, though it was deleted",
				k.clock(letter.Instant))
		}
	}
}

// lettersAt bounds the number of the key's dead letters that a redrive or a deletion found.
func (k *keyed) lettersAt(o *Op) (n bounds) {
	seen := map[string]bool{}
	for _, d := range k.sent {
		if seen[d.ID] {
			continue
		}
		seen[d.ID] = true
		failed := 0
		var last *Delivery
		for _, e := range k.attemptsAt(d.ID) {
			if e.Begun.Before(k.latest(o)) {
				last = e
			}
			if k.mayFail(e) && e.Begun.Before(k.latest(o)) && !k.endedBy(e, o, Redrive, Discard) {
				failed++
			}
		}
		n.most += min(failed, k.lettersOf(d, o))
		n.add(last != nil && k.certainlyDead(last, o), false)
	}
	return n
}

// certainlyDead reports whether an attempt, the last one at its occurrence, left a dead letter for certain, and nothing
// else may have redriven or deleted it when a redrive or a deletion came. An occurrence that fails after its job was
// cancelled or replaced leaves none.
func (k *keyed) certainlyDead(d *Delivery, o *Op) bool {
	return k.outcome(d) == "buried" && !k.unwritten(d) && k.written(d).Before(o.Invoked) &&
		!slices.ContainsFunc(k.ops, func(p *Op) bool {
			until := o.Returned
			switch {
			case p == o:
				return false
			case p.puts() || p.Kind == Cancel:
				until = k.written(d)
			case !p.mayRedrive() && !p.mayDiscard():
				return false
			}
			return p.maybe() && k.latest(p).After(k.claimedBefore(d)) && p.Invoked.Before(until)
		})
}

// mayFail reports whether an attempt may count as failed.
func (k *keyed) mayFail(d *Delivery) bool { return !d.Told || k.tooLateFor(d) }

// attemptsAt returns all attempts at an occurrence.
func (k *keyed) attemptsAt(id string) (all []*Delivery) {
	for _, d := range k.sent {
		if d.ID == id {
			all = append(all, d)
		}
	}
	return all
}

// mayDiscard reports whether an operation may have deleted a dead letter.
func (o *Op) mayDiscard() bool {
	return o.Kind == Discard && o.maybe() && (o.Deleted > 0 || !o.succeeded())
}

// endedBy reports whether the dead letter that an attempt may have left was certainly there no more when an operation
// came: one of some kinds, which was acknowledged before that, came after the attempt's outcome was written.
func (k *keyed) endedBy(d *Delivery, o *Op, kinds ...Kind) bool {
	return !k.mayBeUnsent() && slices.ContainsFunc(k.ops, func(p *Op) bool {
		return slices.Contains(kinds, p.Kind) && p.succeeded() && p.Returned.Before(o.Invoked) &&
			k.written(d).Before(p.Invoked)
	})
}

// mayBeDeleted reports whether the dead letter of an instant may have been deleted.
func (k *keyed) mayBeDeleted(at time.Time) bool {
	return k.mayBeDeletedSince(time.Time{}, func(d *Delivery) bool { return d.Instant.Equal(at) })
}

// mayBeDeletedSince reports whether a dead letter that one of some attempts after a time left may have been deleted.
func (k *keyed) mayBeDeletedSince(after time.Time, of func(*Delivery) bool) bool {
	return slices.ContainsFunc(k.ops, func(o *Op) bool {
		return o.mayDiscard() && k.latest(o).After(after) &&
			(k.mayBeUnsent() || slices.ContainsFunc(k.sent, func(d *Delivery) bool {
				return of(d) && k.mayBury(d) && d.Begun.After(after) && d.Begun.Before(k.latest(o))
			}))
	})
}

// mayBury reports whether an attempt may have left a dead letter: history tells that, or may not know.
func (k *keyed) mayBury(d *Delivery) bool {
	outcome := k.outcome(d)
	return k.mayFail(d) && (outcome == "buried" || outcome == "unknown" || outcome == "" || k.unwritten(d))
}

// buried reports whether history tells that the last attempt at an instant left a dead letter, which may have been
// deleted since.
func (k *keyed) buried(at time.Time) bool {
	var last *Delivery
	for _, d := range k.sent {
		if d.Instant.Equal(at) {
			last = d
		}
	}
	return last != nil && k.outcome(last) == "buried" && k.mayBeDeleted(at)
}
