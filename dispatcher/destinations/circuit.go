package destinations

import (
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

// Verdict is what a callback has shown of its destination.
type Verdict uint8

const (
	// Well is that the destination has done what it can, or has refused no more than this callback.
	Well Verdict = iota
	// PartFailed is that it has answered that something is wrong, maybe only with the part of it that was called.
	PartFailed
	// Failed is that nothing came back, or nothing that would be about a part.
	Failed
)

// circuit is closed until its destination, or a part of that, has failed again and again. Then it is open, and only
// single callbacks go there, to probe it. The zero value is closed.
type circuit struct {
	failures int       // in a row
	opened   time.Time // zero while it is closed
	probe    time.Duration
	probeAt  time.Time // when the next probe may be
	probing  bool
	scout    scout
	used     time.Time // of a part: when it failed last, or was called while it was open
}

// scout is the callback that makes the next probe. It comes for that sooner than its own retry policy would have it,
// and that costs it no attempt before its own time.
type scout struct {
	id  job.ID
	own time.Time
}

func (c *circuit) open() bool { return !c.opened.IsZero() }

// lets tells whether it lets a callback through: any while it is closed, else one at its time, as far as clocks are
// exact.
func (c *circuit) lets(now time.Time) bool {
	return !c.open() || !c.probing && !now.Before(c.probeAt.Add(-c.probe/100))
}

// begin notes that a callback was let through, and tells whether it is a probe.
func (c *circuit) begin() (probe bool) {
	probe = c.open() && !c.probing
	c.probing = c.probing || probe
	return probe
}

// fail notes a failure. It tells whether that has opened the circuit, or was the probe's.
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

// done notes what a callback has shown. What comes back closes the circuits that were open since nothing did. An answer
// that something is wrong is about the part that was called; of those in a row that are of one part, no more than half
// as many as open a circuit are taken for the whole destination's.
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
		if len(d.answers) == 0 && d.circuit.open() { // it did not answer, and now it does
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

// Again tells in how long a callback that has failed is to come again, which its own retry policy would have after own.
// It is the time of the next probe if the callback has opened a circuit, or probed one in vain: so what is well again
// is found to be, however long those that wait for it still have to wait. Free tells that its own time has not come
// yet, and so this was no attempt of its own. To be called after Done.
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
