package destinations

import (
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

// Verdict is the state of its destination that a callback has shown.
type Verdict uint8

const (
	// Well tells that the destination works: it took the callback, or refused only this one.
	Well Verdict = iota
	// PartFailed tells that the destination answered with an error, maybe only of the part that was called.
	PartFailed
	// Failed tells that the destination did not answer, or answered with an error of the whole.
	Failed
)

// circuit is closed until its destination, or a part of it, has failed several times in a row. While it is open, single
// callbacks probe the destination. The zero value is closed.
type circuit struct {
	failures int       // in a row
	opened   time.Time // zero while it is closed
	probe    time.Duration
	probeAt  time.Time // when the next probe may be
	probing  bool
	scout    scout
	used     time.Time // of a part: when it failed last, or was called while it was open
}

// scout is the callback that makes the next probe. It comes sooner than its own retry policy says, and an attempt
// before that time is not counted.
type scout struct {
	id  job.ID
	own time.Time
}

func (c *circuit) open() bool { return !c.opened.IsZero() }

// lets tells whether it lets a callback through: any while it is closed, else one at the time of the probe, give or
// take a hundredth.
func (c *circuit) lets(now time.Time) bool {
	return !c.open() || !c.probing && !now.Before(c.probeAt.Add(-c.probe/100))
}

// begin notes that a callback was let through. It tells whether that is a probe.
func (c *circuit) begin() (probe bool) {
	probe = c.open() && !c.probing
	c.probing = c.probing || probe
	return probe
}

// fail notes a failure. It tells whether that opened the circuit, or was the probe's.
func (c *circuit) fail(probe bool, p *Policy, now time.Time) (leads bool) {
	c.failures++
	switch {
	case c.open() && probe:
		c.probe = min(2*c.probe, p.LongestProbe)
	case !c.open() && c.failures >= p.Failures:
		c.opened, c.probe = now, p.Probe
	default: // a few failures, or one that was under way when the circuit opened
		return false
	}
	c.probeAt = now.Add(c.probe)
	return true
}

// done notes a callback's verdict. Any answer closes a circuit that opened for want of answers. An answer with an error
// counts for the part that was called, and for the whole destination up to half as many as open a circuit.
func (d *destination) done(p *Pass, v Verdict, now time.Time) {
	part := d.parts[p.part]
	switch v {
	case Well:
		d.circuit = circuit{}
		clear(d.answers)
		delete(d.parts, p.part)
	case PartFailed:
		if part == nil {
			part = &circuit{}
			d.parts[p.part] = part
		}
		part.used = now
		if part.fail(p.probesPart, d.policy, now) {
			p.leads = part
		}
		if len(d.answers) == 0 && d.circuit.open() { // it did not answer before
			d.circuit = circuit{}
		}
		d.answers[p.part]++
		if (d.circuit.open() || d.answers[p.part] <= d.policy.Failures/2) && d.circuit.fail(p.probe, d.policy, now) {
			p.leads = &d.circuit
		}
	case Failed:
		if part != nil && p.probesPart && part.fail(true, d.policy, now) {
			p.leads = part
		}
		if d.circuit.fail(p.probe, d.policy, now) {
			p.leads = &d.circuit
		}
	}
}

// Again answers the pause before the next attempt of a callback that has failed; own is the pause by its own retry
// policy. A callback that opened a circuit, or probed one in vain, comes again for the next probe: so a destination
// that works again is noticed, however long the deferred callbacks still have to wait. Free tells that the callback
// came before its own time, so the attempt is not counted. Again is called after Done.
func (p *Pass) Again(id job.ID, own time.Duration) (after time.Duration, free bool) {
	p.set.lock.Lock()
	defer p.set.lock.Unlock()
	c, now := p.leads, p.set.now()
	if c == nil || !c.open() {
		return own, false
	}
	if free = c.scout.id == id && now.Before(c.scout.own); !free {
		c.scout = scout{id, now.Add(own)}
	}
	return max(0, c.probeAt.Sub(now)), free
}
