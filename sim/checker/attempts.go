package checker

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// abandoned is the number of claims beyond a job's most attempts after which an occurrence is given up unfired.
const abandoned = 3

// attempts: the attempts at an occurrence have growing numbers, and each number is used for one attempt only, unless
// history tells that it did not count. Numbers beyond the most of the job, and numbers that are left out, belong to
// attempts without an outcome, and these need a fault. A dead letter fires only if it is redriven, and then begins
// again; the occurrence of a job that was submitted again begins again too.
func (k *keyed) attempts() {
	most := k.mostAttempts()
	for i, d := range k.sent {
		before, own := k.lastBefore(i)
		why := k.misnumbered(d, before, most)
		if why != "" && own != before {
			why = k.misnumbered(d, own, most)
		}
		if why != "" {
			k.report("attempts are counted", d.Begun, "%s", why)
		}
	}
}

// lastBefore returns the last delivery of an occurrence before that with this index, and the last one that is not of
// another dead letter, as far as is known; nil if there is none.
func (k *keyed) lastBefore(i int) (last, own *Delivery) {
	for _, e := range slices.Backward(k.sent[:i]) {
		if e.ID != k.sent[i].ID {
			continue
		}
		last = cmp.Or(last, e)
		if !k.twins(e, k.sent[i]) {
			return last, e
		}
	}
	return last, nil
}

// misnumbered returns why an attempt can't have its number, of at most so many, after another attempt or none; empty if
// it can.
func (k *keyed) misnumbered(d, before *Delivery, most int) string {
	from, number, begins := d.Instant.Add(-k.reach()), 0, true
	if before != nil {
		from, number = before.Begun, before.Attempt
		begins = k.redrivenSince(before, d.Begun) || k.madeAnew(d.Instant, from.Add(-k.Lease), d.Begun)
	}
	dead := before != nil && k.outcome(before) == "buried" && !k.unwritten(before)
	if dead {
		number = 0
	}
	switch {
	case dead && !begins:
		return fmt.Sprintf("instant %s was fired, though it was a dead letter since attempt %d", k.clock(d.Instant),
			before.Attempt)
	case d.Attempt <= number && !begins && !k.mayBeReleased(before) && !k.stoodStill(d):
		return fmt.Sprintf("attempt %d at instant %s follows attempt %d, which counted", d.Attempt, k.clock(d.Instant),
			number)
	case d.Attempt > number+1 && !k.mayClaimInVain(from, d.Begun):
		return fmt.Sprintf("attempt %d at instant %s follows attempt %d, and no fault kept one from being sent",
			d.Attempt, k.clock(d.Instant), number)
	case most > 0 && (d.Attempt > most+abandoned ||
		d.Attempt > most && !k.mayClaimInVain(d.Instant.Add(-k.reach()), d.Begun)):
		return fmt.Sprintf("attempt %d at instant %s was made, of %d at most", d.Attempt, k.clock(d.Instant), most)
	}
	return ""
}

// outcome returns the outcome of an attempt by history; empty if it tells none. If a job was cancelled and put again,
// attempts may have one number, and nearly one time by the clocks of two replicas. If their outcomes differ, none is
// certain.
func (k *keyed) outcome(d *Delivery) (outcome string) {
	for _, r := range k.Final.Recorded {
		if !r.isOf(k.key, d) {
			continue
		}
		if outcome != "" && outcome != r.Outcome {
			return ""
		}
		outcome = r.Outcome
	}
	return outcome
}

// isOf reports whether an entry of history is that of an attempt at an occurrence of a key, by its number and its time.
func (r *Recorded) isOf(key string, d *Delivery) bool {
	return r.Key == key && r.DeliveryID == d.ID && r.Attempt == d.Attempt && r.At.Sub(d.Local).Abs() < time.Second
}

// mostAttempts returns the most attempts that some job of the key allows; 0 if that is unknown.
func (k *keyed) mostAttempts() (most int) {
	for _, o := range k.policies() {
		if o.Attempts == 0 {
			return 0
		}
		most = max(most, o.Attempts)
	}
	return most
}

// policies returns the operations that may have given the key's job a retry policy.
func (k *keyed) policies() (all []*Op) {
	for _, o := range k.ops {
		if (o.puts() || o.Kind == Amend && o.Attempts > 0) && o.maybe() {
			all = append(all, o)
		}
	}
	return all
}

// mayClaimInVain reports whether a fault may have kept a claim of some replica in a time from its outcome: a crash, a
// time in which it stood still, or a trouble with the store.
func (k *keyed) mayClaimInVain(from, to time.Time) bool {
	return slices.ContainsFunc(k.Troubles, func(t Trouble) bool {
		return t.storeOrReplica() && t.From.Before(to) && t.To.Add(k.Settles).After(from)
	})
}

// mayBeReleased reports whether an attempt may not count, since history tells so, or may have lost the entry.
func (k *keyed) mayBeReleased(d *Delivery) bool {
	if k.released(attempt{d.ID, d.Attempt}, nil) > 0 {
		return true
	}
	told := slices.ContainsFunc(k.Final.Recorded, func(r Recorded) bool { return r.isOf(k.key, d) })
	return !told && !d.Told && k.mayLack(d)
}

// madeAnew reports whether an occurrence may have been made again in a time: by a put that has its instant, after
// something that may have ended the former one.
func (k *keyed) madeAnew(at, from, to time.Time) bool {
	return slices.ContainsFunc(k.ops, func(put *Op) bool {
		return put.puts() && put.maybe() && put.Schedule.Has(at) && put.Invoked.Before(to) &&
			k.latest(put).After(from) && (k.firedAnew(at, from, put) || slices.ContainsFunc(k.ops, func(o *Op) bool {
			ends := o.Kind == Cancel || o.puts()
			return o != put && ends && o.maybe() && o.Invoked.Before(k.latest(put)) && k.latest(o).After(from)
		}))
	})
}
