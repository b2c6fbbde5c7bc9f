package checker

import (
	"slices"
	"time"
)

// Moved is the time to which an answer says that an instant is moved.
type Moved struct{ Instant, To time.Time }

// move is all that the time follows from by which a key's occurrence is moved: its instant, in Unix milliseconds, and
// the spread of its job. All steps of a sequence are moved by the same time, and have no instant here.
type move struct {
	spread  time.Duration
	steps   bool
	instant int64
}

// moves are the times by which occurrences of a key are moved, as far as answers have told them.
type moves map[move]time.Duration

// moveOf returns the move of an instant of a schedule.
func (s Schedule) moveOf(at time.Time) move {
	if s.Steps {
		return move{s.Spread, true, 0}
	}
	return move{s.Spread, false, at.UnixMilli()}
}

// reads reports whether an operation changes nothing.
func (o *Op) reads() bool { return o.Kind == Get || o.Kind == Preview }

// reach is the time before their instants in which occurrences may be claimed, by a clock that is wrong or in the early
// window: an instant further ahead has not fired.
func (h *History) reach() time.Duration { return wrong + h.Early }

// moved: all answers move an instant by the same time, which follows from the key, the instant and the spread. It is
// less than the spread, and never negative. A reading tells it of occurrences that no replica can have claimed yet.
func (k *keyed) moved() {
	const rule = "a moved time is one"
	k.moves = moves{}
	for _, o := range k.ops {
		for _, m := range o.Moved {
			s, certain := k.toldOf(o, m.Instant)
			if !certain {
				continue
			}
			by, of := m.To.Sub(m.Instant), s.moveOf(m.Instant)
			if by < 0 || by >= max(s.Spread, 1) {
				k.report(rule, o.Returned, "a %s moves instant %s by %s, with a spread of %s", o.Kind, k.clock(m.Instant), by,
					s.Spread)
			}
			if before, known := k.moves[of]; known && before != by {
				k.report(rule, o.Returned, "a %s moves instant %s by %s, and an earlier answer by %s, with the same spread of %s",
					o.Kind, k.clock(m.Instant), by, before, s.Spread)
			}
			k.moves[of] = by
		}
	}
}

// toldOf returns the schedule to which an instant in an answer belongs. It is not certain if occurrences of several
// schedules may have stayed when one replaced the other, or if a claim may have made one due again, or a resume, which
// makes all due at their instants.
func (k *keyed) toldOf(o *Op, at time.Time) (s Schedule, certain bool) {
	if o.Kind == Preview {
		return o.Schedule, true
	}
	if !k.unclaimed(o, at) || k.resumedBefore(o) {
		return s, false
	}
	for _, put := range k.ops {
		if !put.mayHave(at) || !put.Invoked.Before(o.Returned) {
			continue
		}
		if certain && put.Schedule.moveOf(at) != s.moveOf(at) {
			return s, false
		}
		s, certain = put.Schedule, true
	}
	return s, certain
}

// unclaimed reports whether an instant was so far ahead at an answer that no replica can have claimed it.
func (k *keyed) unclaimed(o *Op, at time.Time) bool { return o.Returned.Add(k.reach()).Before(at) }

// resumedBefore reports whether the job may have been resumed before an answer.
func (k *keyed) resumedBefore(o *Op) bool {
	return slices.ContainsFunc(k.ops, func(r *Op) bool {
		return r.Kind == Resume && r.maybe() && r.Invoked.Before(o.Returned)
	})
}

// mayHave reports whether an operation may have given a job an instant.
func (o *Op) mayHave(at time.Time) bool { return o.puts() && o.maybe() && o.Schedule.Has(at) }

// dueBy bounds the time at which an instant of a put is due at first: it is moved by less than the spread.
func (k *keyed) dueBy(o *Op, at time.Time) (earliest, latest time.Time) {
	if by, known := k.moves[o.Schedule.moveOf(at)]; known {
		return at.Add(by), at.Add(by)
	}
	return at, at.Add(max(o.Schedule.Spread-time.Millisecond, 0))
}

// soonest returns the earliest time at which a delivery's instant may be due at first: by the job of its payload, or by
// any job, if that was amended.
func (k *keyed) soonest(d *Delivery) (due time.Time) {
	all := k.defining(d.N)
	amended := len(all) > 0 && all[0].Kind == Amend
	for _, o := range k.ops {
		if o.mayHave(d.Instant) && (amended || o.N == d.N) {
			if earliest, _ := k.dueBy(o, d.Instant); due.IsZero() || earliest.Before(due) {
				due = earliest
			}
		}
	}
	if due.IsZero() {
		return d.Instant
	}
	return due
}

// latestDue returns the latest time at which an instant may be due at first, by the jobs that may have had it before a
// time: an occurrence that stays when its job is replaced fires no sooner than before.
func (k *keyed) latestDue(at, before time.Time) time.Time {
	due := at
	for _, o := range k.ops {
		if o.mayHave(at) && o.Invoked.Before(before) {
			if _, latest := k.dueBy(o, at); latest.After(due) {
				due = latest
			}
		}
	}
	return due
}

// neverSooner: an occurrence fires no sooner than the latest reading said that no replica can have claimed it before,
// unless the job was changed since. It may have stayed when another spread replaced its own.
func (k *keyed) neverSooner() {
	for _, o := range k.ops {
		if o.Kind != Get {
			continue
		}
		for _, m := range o.Moved {
			if !k.unclaimed(o, m.Instant) {
				continue
			}
			for _, d := range k.sent {
				if d.Instant.Equal(m.Instant) && d.Begun.After(o.Returned) && d.Local.Before(m.To.Add(-k.Early)) &&
					!k.loose(d) && !k.stepped(d) && !k.changedBetween(o.Invoked, d.Begun) {
					k.report("never early", d.Begun, "instant %s was fired at %s by the replica's clock, and was due at %s when "+
						"it was read at %s", k.clock(d.Instant), k.clock(d.Local), k.clock(m.To), k.clock(o.Returned))
				}
			}
		}
	}
}
