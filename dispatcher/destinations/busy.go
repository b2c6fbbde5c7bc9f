package destinations

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/time/rate"
)

// Busy is why a callback can't be sent now.
type Busy struct {
	Reason string
	// After is when to try again. Who gives back many has spread them already.
	After time.Duration
}

func (b *Busy) Error() string { return b.Reason }

// IsBusy tells whether an error is a [*Busy], and when to try again.
func IsBusy(err error) (after time.Duration, ok bool) {
	busy, ok := errors.AsType[*Busy](err)
	if !ok {
		return 0, false
	}
	return busy.After, true
}

// down gives back one while a circuit is open: spread over the time from the next probe to the one after.
func (d *destination) down(c *circuit, now time.Time) error {
	name := d.name
	if c != &d.circuit {
		name = "what is called at " + d.name
	}
	after := max(c.probe, c.probeAt.Sub(now)+rand.N(c.probe))
	return d.busy(fmt.Sprintf("%s has failed %d times in a row; it is tried again every %s", name, c.failures, c.probe), now, after)
}

// busy gives back one for a time.
func (d *destination) busy(reason string, now time.Time, after time.Duration) error {
	d.parked.count(now) // forgets those that have come
	d.parked.add(now.Add(after))
	return &Busy{reason, after}
}

// reserve asks for a place in the destination's pace.
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
	// Whoever comes a little before its turn has it: its place is taken all the same.
	if room := 1 + int((d.policy.Patience-delay)/each); delay <= d.policy.Patience && d.turns.kept(l.Of, pace, now.Add(each)) < room {
		return nil
	}
	r.CancelAt(now)
	p := pause{of: l.Of, again: l.Again, lacks: pace, each: each, least: max(d.policy.Patience, delay), ahead: each}
	return d.back(fmt.Sprintf("%s is at its rate of %v/s", d.name, l.Rate), p, now)
}

// interval is the time between two at a rate.
func interval(perSecond float64) time.Duration {
	return time.Duration(float64(time.Second) / perSecond)
}

// full gives back one that would have to wait too long.
func (d *destination) full(l Limits, now time.Time) error {
	limit := d.limit(l.InFlight, now)
	reason := fmt.Sprintf("%s has %d callbacks under way, and may have %d", d.name, d.underWay.Len(), limit)
	p := pause{of: l.Of, again: l.Again, lacks: slot, each: d.each(limit, now), least: max(d.policy.Patience, d.next(now)), ahead: d.takes(now)}
	if d.underWay.Len() < limit {
		reason = fmt.Sprintf("%s keeps room for others, which have had less", d.name)
	}
	if d.underWay.Len() < d.limit(0, now) {
		p.lacks = slotOfOwn
	}
	return d.back(reason, p, now)
}

// crowded gives back one because of others that are slow.
func (d *destination) crowded(l Limits, now time.Time) error {
	reason := fmt.Sprintf("%s is slow, like others, which have %d callbacks under way together", d.name, d.policy.InFlight)
	return d.back(reason, pause{of: l.Of, each: d.each(d.limit(l.InFlight, now), now), least: d.policy.Probe}, now)
}

// back gives back one until its turn.
func (d *destination) back(reason string, p pause, now time.Time) error {
	p.longest = d.policy.LongestProbe
	return d.busy(reason, now, d.turns.next(p, now))
}

// next is how long it is until one of those under way is likely to end. When that is overdue, it is as long again as it
// has been; if none has ever ended, three times as long, since none may ever.
func (d *destination) next(now time.Time) time.Duration {
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
