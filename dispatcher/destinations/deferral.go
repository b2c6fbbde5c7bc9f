package destinations

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/time/rate"

	"github.com/carillon-scheduler/carillon/job"
)

// Deferral is the reason that a callback can't be sent now, and the pause before the next try.
type Deferral struct {
	Reason string
	// After is the pause. The pauses of many callbacks are already spread.
	After time.Duration
}

func (d *Deferral) Error() string { return d.Reason }

// IsDeferral reports whether an error is a [*Deferral], and returns its pause.
func IsDeferral(err error) (after time.Duration, ok bool) {
	deferral, ok := errors.AsType[*Deferral](err)
	if !ok {
		return 0, false
	}
	return deferral.After, true
}

// circuitOpen defers a callback while a circuit is open: to a random time between the next probe and the one after it.
func (d *destination) circuitOpen(c *circuit, now time.Time) error {
	name := d.name
	if c != &d.circuit {
		name = "the called part of " + d.name
	}
	after := max(c.probe, c.probeAt.Sub(now)+rand.N(c.probe))
	reason := fmt.Sprintf("%s has failed %d"+job.FailedInARow+"%s", name, c.failures, c.probe)
	return d.park(reason, now, after)
}

// reserve takes a place in the destination's rate, or defers the callback.
func (d *destination) reserve(l Limits, now time.Time) error {
	if l.Rate <= 0 {
		return nil
	}
	if d.pace == nil {
		d.pace = rate.NewLimiter(rate.Limit(l.Rate), 1)
	} else if d.pace.Limit() != rate.Limit(l.Rate) {
		d.pace.SetLimitAt(now, rate.Limit(l.Rate))
	}
	each, r := interval(l.Rate), d.pace.ReserveN(now, 1)
	delay := r.DelayFrom(now)
	// A callback that returns a little before its turn may begin: its place is taken in any case.
	room := 1 + int((d.policy.Patience-delay)/each)
	if delay <= d.policy.Patience && d.queue.keptFrom(l.Flow, pace, now.Add(each)) < room {
		return nil
	}
	r.CancelAt(now)
	return d.refuse(fmt.Sprintf("%s is at its rate of %v/s", d.name, l.Rate), request{
		flow: l.Flow, again: l.Again, interval: each,
		lacks: pace, earliest: max(d.policy.Patience, delay), window: each,
	}, now)
}

// interval returns the time between two callbacks at a rate.
func interval(perSecond float64) time.Duration {
	return time.Duration(float64(time.Second) / perSecond)
}

// atLimit defers a callback that would have to wait too long.
func (d *destination) atLimit(l Limits, now time.Time) error {
	limit := d.limit(l.InFlight, now)
	reason := fmt.Sprintf("%s has %d callbacks under way, and may have %d", d.name, d.underWay.Len(), limit)
	if d.underWay.Len() < limit {
		reason = fmt.Sprintf("%s keeps room for others, which have had less", d.name)
	}
	lacks := slot
	if d.underWay.Len() < d.limit(0, now) {
		lacks = slotOfOwn
	}
	return d.refuse(reason, request{
		flow: l.Flow, again: l.Again, interval: d.interval(limit, now),
		lacks: lacks, earliest: max(d.policy.Patience, d.untilNextEnd(now)), window: d.takes(now),
	}, now)
}

// crowdedOut defers a callback because other slow destinations use the slots.
func (d *destination) crowdedOut(l Limits, now time.Time) error {
	return d.refuse(
		fmt.Sprintf("%s is slow, like others, which have %d callbacks under way together", d.name, d.policy.InFlight),
		request{flow: l.Flow, interval: d.interval(d.limit(l.InFlight, now), now), earliest: d.policy.Probe}, now)
}

// waitsFor has the text of an error for each state of a deferred callback.
var waitsFor = [...]string{
	queued:    job.WaitsForTurn,
	reserved:  job.SlotReserved,
	unordered: job.NoTurns,
}

// refuse defers a callback until its turn.
func (d *destination) refuse(reason string, r request, now time.Time) error {
	r.longest = d.policy.LongestProbe
	next, wait := d.queue.on(refused, r, now)
	return d.park(reason+"; "+waitsFor[next], now, wait)
}

// park counts a callback as parked for a time.
func (d *destination) park(reason string, now time.Time, after time.Duration) error {
	d.parked.count(now) // forgets those that have returned
	d.parked.add(now.Add(after))
	return &Deferral{reason, after}
}

// untilNextEnd returns the likely time until one of the callbacks under way ends. If that end is overdue, it is the
// time for which it has been overdue; if none has ever ended, three times the age of the oldest callback, since none
// may ever end.
func (d *destination) untilNextEnd(now time.Time) time.Duration {
	oldest := d.underWay.Front()
	if oldest == nil {
		return 0
	}
	age := now.Sub(oldest.Value.(*Pass).begun)
	switch {
	case age < d.took:
		return d.took - age
	case d.took > 0:
		return min(age-d.took, now.Sub(d.ended), d.policy.Probe)
	case age < d.policy.SlowAfter:
		return d.policy.SlowAfter - age
	default:
		return min(3*age, d.policy.Probe)
	}
}
