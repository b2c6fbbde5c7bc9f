package checker

import (
	"slices"
	"time"
)

// bounds are those of a count.
type bounds struct{ least, most int }

// add counts one more: in both bounds if it is certain, in the upper one if it is possible.
func (b *bounds) add(certain, possible bool) {
	if certain {
		b.least++
	}
	if possible {
		b.most++
	}
}

// tally bounds the counts of a job.
type tally struct{ planned, delivered, failed bounds }

// counts: the counts of the final reading add up with the deliveries that receivers saw.
func (k *keyed) counts() {
	j, there := k.Final.Jobs[k.key]
	if !there {
		return
	}
	if j.Held > 0 {
		k.report("nothing is held", k.Ended, "%d occurrences are still held", j.Held)
	}
	if !slices.ContainsFunc(k.defining(j.N), (*Op).maybe) {
		k.report("no mixture", k.Ended, "the job has payload %d, which no successful operation gave it", j.N)
	}
	put, alone := k.countedPut()
	if put == nil || j.State != "finished" || !j.Counted {
		return
	}
	t := k.tally(put, alone)
	compare := func(what string, n int, of bounds) {
		if n < of.least || n > of.most {
			k.report("counts add up", k.Ended, "%s are %d, and must be %d to %d: %d delivered, %d failed, %d missed",
				what, n, of.least, of.most, j.Delivered, j.Failed, j.Missed)
		}
	}
	compare("all occurrences", j.Delivered+j.Failed+j.Missed, t.planned)
	compare("the delivered ones", j.Delivered, t.delivered)
	compare("the failed ones", j.Failed, t.failed)
	if at, outcome := k.lastOutcome(put); outcome != "" && (j.Last.Outcome != outcome || !j.Last.Instant.Equal(at)) {
		k.report("the last outcome is told", k.Ended, "the last outcome is %q at %s, and must be %q at %s",
			j.Last.Outcome, k.clock(j.Last.Instant), outcome, k.clock(at))
	}
}

// lastOutcome returns the latest instant of a put's finished job, and its outcome; no outcome if it is in doubt: the
// instant was at hand when the job was put, its end may not be counted, or a replica does not know that it was taken.
func (k *keyed) lastOutcome(put *Op) (at time.Time, outcome string) {
	instants := put.Schedule.Between(put.Returned.Add(max(put.Ahead, k.reach())), k.Ended)
	if len(instants) == 0 {
		return at, ""
	}
	at = slices.MaxFunc(instants, time.Time.Compare)
	switch {
	case (k.isDead(at) || k.buried(at)) && !k.uncountedFailure(at):
		return at, "failed"
	case k.isDead(at), k.mayBeDeleted(at) && !k.toldFor(at), k.uncounted(put, at), k.passedBefore(put, at):
		return at, ""
	case k.toldFor(at):
		return at, "delivered"
	case !k.taken(at):
		return at, "missed"
	}
	return at, ""
}

// countedPut returns the put that certainly made the job of the final reading, if its counts can be known: all other
// changes of its schedule were over before, and its instants were still ahead, or it is alone: there were none. Nothing
// was redriven.
func (k *keyed) countedPut() (put *Op, alone bool) {
	for _, o := range k.ops {
		if o.puts() && o.succeeded() && (put == nil || o.Invoked.After(put.Invoked)) {
			put = o
		}
	}
	if put == nil || !put.Schedule.To.IsZero() || k.mayKeep(put) {
		return nil, false
	}
	alone = true
	for _, o := range k.ops {
		switch {
		case o == put || !o.maybe():
		case o.mayRedrive():
			return nil, false
		case o.puts() || o.Kind == Cancel:
			if !k.latest(o).Before(put.Invoked) {
				return nil, false
			}
			alone = false
		}
	}
	if !alone {
		ahead := put.Returned.Add(max(put.Ahead, k.reach()))
		if slices.ContainsFunc(put.Schedule.Instants, func(at time.Time) bool { return !at.After(ahead) }) {
			return nil, false
		}
	}
	return put, alone
}

// tally bounds the counts that a put's job must have. Of a recurring job, those ticks are in doubt that were at hand
// when it was put, and, unless it is alone, those of the job before that may have been pending then.
func (k *keyed) tally(put *Op, alone bool) (t tally) {
	from, until := put.Invoked.Add(-max(put.Behind, wrong)), put.Returned.Add(max(put.Ahead, k.reach()))
	instants := put.Schedule.Instants
	if put.Schedule.Every > 0 {
		if !alone {
			from = k.Begun
		}
		instants = put.Schedule.Between(from, put.Schedule.End)
	}
	for _, at := range instants {
		certain := put.Schedule.Every == 0 || at.After(until)
		if !certain && k.deliveredBefore(at, put) {
			continue
		}
		dead, uncounted := k.isDead(at) || k.buried(at), k.uncountedFailure(at)
		t.planned.add(certain, true)
		if !dead && k.mayBeDeleted(at) && !k.toldFor(at) {
			t.failed.most++
			t.delivered.most++
			continue
		}
		t.failed.add(certain && dead && !uncounted, dead)
		t.delivered.add(certain && !dead && k.toldFor(at), !dead && k.taken(at) || dead && uncounted || k.uncounted(put, at))
	}
	if put.Schedule.Every == 0 {
		t.planned.least -= put.Skipped + put.Settled
		t.planned.most -= put.Skipped + put.Settled
		t.delivered.least -= put.Settled
		t.failed.least -= put.Settled
	}
	return t
}

// deliveredBefore reports whether an instant was delivered, and that was recorded, before a put. If it was sent again
// after the put, its record had been lost, and it counts for the put's job.
func (k *keyed) deliveredBefore(at time.Time, put *Op) bool {
	return slices.ContainsFunc(k.sent, func(d *Delivery) bool {
		return d.Told && d.Instant.Equal(at) && k.written(d).Before(put.Invoked) &&
			!slices.ContainsFunc(k.sent, func(e *Delivery) bool { return e.ID == d.ID && e.Begun.After(put.Invoked) })
	})
}

// toldFor reports whether a replica was told that a receiver took an instant, and has recorded that.
func (k *keyed) toldFor(at time.Time) bool {
	return slices.ContainsFunc(k.sent, func(d *Delivery) bool { return d.Told && d.Instant.Equal(at) && !k.unwritten(d) })
}

// uncountedFailure reports whether a failure of an instant may not be counted: the store counts it by a write of its
// own, and a fault may have come before that.
func (k *keyed) uncountedFailure(at time.Time) bool {
	var last *Delivery
	for _, d := range k.sent {
		if d.Instant.Equal(at) {
			last = d
		}
	}
	sent := last != nil && slices.ContainsFunc(k.Final.Dead[k.key], func(d Dead) bool {
		return d.DeliveryID == last.ID && d.Attempt == last.Attempt
	})
	return k.CountsApart && (!sent && !k.buried(at) || k.unwritten(last))
}
