package destinations

import (
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

// Verdict is the state of the destination that a callback has shown.
type Verdict uint8

const (
	// Well means that the destination works: it took the callback, or refused only this one.
	Well Verdict = iota
	// PartFailed means that the destination answered with an error, which may concern only the part that was called.
	PartFailed
	// Failed means that the destination did not answer, or answered with an error about the whole.
	Failed
)

// circuit is closed until its destination, or a part of it, has failed several times in a row. While it is open, single
// callbacks probe the destination. The zero value is closed.
type circuit struct {
	failures int       // in a row
	opened   time.Time // zero while it is closed
	probe    time.Duration
	probeAt  time.Time // the earliest time of the next probe
	probing  bool
	scout    scout
	used     time.Time // of a part: the last failure, or the last call while it was open
}

// scout is the callback that makes the next probe. It returns before the time of its own retry policy, and an attempt
// before that time is not counted.
type scout struct {
	id  job.ID
	own time.Time
}

func (c *circuit) open() bool { return !c.opened.IsZero() }

// lets reports whether the circuit admits a callback: any while it is closed, else one at the time of the probe, with a
// tolerance of a hundredth.
func (c *circuit) lets(now time.Time) bool {
	return !c.open() || !c.probing && !now.Before(c.probeAt.Add(-c.probe/100))
}

// begin notes that a callback was admitted, and reports whether it is a probe.
func (c *circuit) begin() (probe bool) {
	probe = c.open() && !c.probing
	c.probing = c.probing || probe
	return probe
}

// fail notes a failure, and reports whether it opened the circuit, or was a probe's.
func (c *circuit) fail(probe bool, p *Policy, now time.Time) (leads bool) {
	c.failures++
	switch {
	case c.open() && probe:
		c.probe = min(2*c.probe, p.LongestProbe)
	case !c.open() && c.failures >= p.Failures:
		c.opened, c.probe = now, p.Probe
	default: // too few failures, or the callback was under way when the circuit opened
		return false
	}
	c.probeAt = now.Add(c.probe)
	return true
}

// done notes a callback's verdict. Any answer closes a circuit that opened because there were no answers. An answer
// with an error counts for the part that was called. For the whole destination, such answers count up to half the
// number that opens a circuit.
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

// Again returns the pause before the next attempt of a callback that has failed; own is the pause by its own retry
// policy. A callback that opened a circuit, or whose probe failed, makes the next probe. So a recovered destination is
// noticed, however long the parked callbacks still have to wait. Free reports that the callback returns before its own
// time, so that the attempt is not counted. Call Again after Done.
func (p *Pass) Again(id job.ID, own time.Duration) (after time.Duration, free bool) {
	now := p.set.now()
	p.set.lock.Lock()
	defer p.set.lock.Unlock()
	c := p.leads
	if c == nil || !c.open() {
		return own, false
	}
	if free = c.scout.id == id && now.Before(c.scout.own); !free {
		c.scout = scout{id, now.Add(own)}
	}
	return max(0, c.probeAt.Sub(now)), free
}
