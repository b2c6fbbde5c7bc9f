// Package destinations protects receivers from too many callbacks, and the replica's slots from slow receivers. Each
// destination, such as a host or a queue, has a limit of callbacks under way, a rate if its jobs ask for one, and a
// circuit that opens when callbacks fail again and again. Each part of it, such as a path, has a circuit too. A
// callback that can't be sent now is deferred. Its occurrence is then parked: it waits in the store, and returns when
// its turn is likely to come (waitqueue.go).
//
// Limits are those of one replica: with three replicas, a destination gets up to three times as many.
package destinations

import (
	"container/list"
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Set is all destinations of a replica. Its methods are safe for concurrent use.
type Set struct {
	policy Policy
	now    func() time.Time
	lock   sync.Mutex
	all    map[string]*destination
	active map[*destination]struct{} // those with callbacks under way
}

// New makes a set. Now is [time.Now], or another clock with a monotonic reading: the set never uses the wall clock.
// It is not called while other callbacks wait for that.
func New(p Policy, now func() time.Time) *Set {
	return &Set{policy: p, now: now, all: make(map[string]*destination), active: make(map[*destination]struct{})}
}

// destination is the state of one destination. The set's lock guards it.
type destination struct {
	name     string
	policy   *Policy
	underWay list.List     // of *Pass, oldest first
	waiting  []*waiter     // in order of arrival
	took     time.Duration // the average duration of a callback; zero until one has ended
	ended    time.Time     // when the last callback ended
	used     time.Time

	circuit circuit
	parts   map[string]*circuit // those that have failed since their last success
	answers map[string]int      // by part: failures in a row that were answers, see [PartFailed]

	pace   *rate.Limiter // nil until a rate is asked for
	begun  time.Time     // when the last callback was admitted
	queue  waitQueue     // gives deferred callbacks their turns
	parked bySecond      // the parked callbacks, by the second of their return
}

// Pass is the permission to send a callback. Call Done after sending it, or Cancel if it was not sent.
type Pass struct {
	set   *Set
	to    *destination
	part  string
	place *list.Element
	begun time.Time
	// probe and probesPart are set if the callback probes an open circuit. Leads is the circuit that it has opened, or
	// whose probe it was and failed.
	probe, probesPart bool
	leads             *circuit
}

// waiter is a claimed callback that waits for a moment.
type waiter struct {
	own  int // its job's own limit; zero for none
	part string
	pass chan *Pass // has room for one
}

// Enter waits until a callback may be sent, at most for the policy's Patience. The error is a [*Deferral] if it can't
// be sent now, or the context's.
func (s *Set) Enter(ctx context.Context, name string, l Limits) (*Pass, error) {
	pass, w, err := s.enter(name, l)
	if w == nil {
		return pass, err
	}
	patience := time.NewTimer(s.policy.Patience)
	defer patience.Stop()
	select {
	case pass := <-w.pass:
		return pass, nil
	case <-patience.C:
	case <-ctx.Done():
	}
	now := s.now()
	s.lock.Lock()
	defer s.lock.Unlock()
	d := s.all[name] // it is kept while a callback waits
	select {
	case pass := <-w.pass: // it was admitted just now
		return pass, nil
	default:
	}
	d.waiting = slices.DeleteFunc(d.waiting, func(other *waiter) bool { return other == w })
	d.admitWaiting(s, now) // a callback behind it may have a higher limit
	switch err := ctx.Err(); {
	case err != nil:
		return nil, err
	case d.circuit.open():
		return nil, d.circuitOpen(&d.circuit, now)
	default:
		return nil, d.atLimit(l, now)
	}
}

// enter admits a callback, lets it wait, or defers it.
func (s *Set) enter(name string, l Limits) (*Pass, *waiter, error) {
	now := s.now()
	s.lock.Lock()
	defer s.lock.Unlock()
	d, known := s.all[name]
	if !known {
		d = &destination{
			name: name, policy: &s.policy, parts: make(map[string]*circuit), answers: make(map[string]int),
			queue: newWaitQueue(),
		}
		s.all[name] = d
	}
	d.used = now
	part := d.parts[l.Part]
	switch {
	case !d.circuit.lets(now):
		return nil, nil, d.circuitOpen(&d.circuit, now)
	case part != nil && !part.lets(now):
		part.used = now
		return nil, nil, d.circuitOpen(part, now)
	case d.circuit.open():
		return d.begin(s, l.Part, now), nil, nil
	}
	limit := d.limit(l.InFlight, now)
	slowest := s.policy.InFlight
	if d.underWay.Len() == 0 {
		slowest += s.policy.FirstInFlight
	}
	if d.slow(now) && s.slow(now) >= slowest {
		return nil, nil, d.crowdedOut(l, now)
	}
	each := max(1, d.interval(limit, now))
	room := limit - d.underWay.Len() // a waiting callback has no room, or it would have begun
	mayBegin := room > 0
	if !mayBegin {
		room = int(s.policy.Patience/each) - len(d.waiting)
		if d.slow(now) && d.underWay.Len()+len(d.waiting) >= s.policy.InFlight { // a waiting callback keeps its slot
			room = 0
		}
	}
	if l.Rate > 0 {
		each = max(each, interval(l.Rate))
	}
	r := request{flow: l.Flow, again: l.Again, interval: each}
	d.queue.on(arrived, r, now)
	kinds := slot
	if l.InFlight > 0 {
		kinds |= slotOfOwn
	}
	if room <= d.queue.keptFrom(l.Flow, kinds, now.Add(d.untilNextEnd(now))) {
		return nil, nil, d.atLimit(l, now)
	}
	if err := d.reserve(l, now); err != nil {
		return nil, nil, err
	}
	d.queue.on(admitted, r, now)
	if mayBegin {
		return d.begin(s, l.Part, now), nil, nil
	}
	w := &waiter{l.InFlight, l.Part, make(chan *Pass, 1)}
	d.waiting = append(d.waiting, w)
	return nil, w, nil
}

// begin admits one callback.
func (d *destination) begin(s *Set, part string, now time.Time) *Pass {
	if d.underWay.Len() == 0 && now.Sub(d.begun) > 2*d.queue.interval+d.policy.Patience {
		d.queue.forget() // none came for its turn: the callbacks may have been cancelled
	}
	d.begun = now
	p := &Pass{set: s, to: d, part: part, begun: now, probe: d.circuit.begin()}
	if c := d.parts[part]; c != nil {
		p.probesPart = c.begin()
	}
	p.place = d.underWay.PushBack(p)
	s.active[d] = struct{}{}
	return p
}

// slow returns the number of callbacks under way to slow destinations.
func (s *Set) slow(now time.Time) (n int) {
	for d := range s.active {
		if d.slow(now) {
			n += d.underWay.Len()
		}
	}
	return n
}

// limit returns the largest number of callbacks under way now, for a job with a limit of its own; zero for none.
func (d *destination) limit(own int, now time.Time) int {
	limit := d.policy.InFlight
	if d.slow(now) {
		limit = min(limit, d.policy.SlowInFlight)
	}
	if own > 0 {
		limit = min(limit, own)
	}
	return limit
}

// slow reports whether callbacks take long. A destination that has not answered yet counts as slow.
func (d *destination) slow(now time.Time) bool {
	return d.took == 0 || d.takes(now) > d.policy.SlowAfter
}

// takes returns the average duration of a callback, or the time since one ended or since the oldest under way began, if
// that is longer.
func (d *destination) takes(now time.Time) time.Duration {
	oldest := d.underWay.Front()
	if oldest == nil {
		return d.took
	}
	since := oldest.Value.(*Pass).begun
	if d.ended.After(since) {
		since = d.ended
	}
	return max(d.took, now.Sub(since))
}

// interval returns the average time until one more callback can begin while the limit is reached.
func (d *destination) interval(limit int, now time.Time) time.Duration {
	return d.takes(now) / time.Duration(limit)
}

// Done ends the permission of a callback that was sent.
func (p *Pass) Done(v Verdict) {
	now := p.set.now()
	p.set.lock.Lock()
	defer p.set.lock.Unlock()
	d := p.to
	d.ended = now
	took := max(1, now.Sub(p.begun))
	if d.took == 0 {
		d.took = took
	}
	const weight = 8 // of the earlier callbacks in the average
	d.took += (took - d.took) / weight
	d.done(p, v, now)
	p.leave(now)
}

// Cancel ends the permission of a callback that was not sent.
func (p *Pass) Cancel() {
	now := p.set.now()
	p.set.lock.Lock()
	defer p.set.lock.Unlock()
	p.leave(now)
}

// leave makes room for another callback.
func (p *Pass) leave(now time.Time) {
	d := p.to
	d.underWay.Remove(p.place)
	d.used = now
	if d.underWay.Len() == 0 {
		delete(p.set.active, d)
	}
	if p.probe {
		d.circuit.probing = false
	}
	if c := d.parts[p.part]; c != nil && p.probesPart {
		c.probing = false
	}
	d.admitWaiting(p.set, now)
}

// admitWaiting admits waiting callbacks, as far as their limits allow. Most have no limit of their own.
func (d *destination) admitWaiting(s *Set, now time.Time) {
	if d.circuit.open() { // they are deferred when their patience ends
		return
	}
	for len(d.waiting) > 0 && d.underWay.Len() < d.limit(d.waiting[0].own, now) {
		d.waiting[0].pass <- d.begin(s, d.waiting[0].part, now)
		d.waiting = d.waiting[1:]
	}
	if len(d.waiting) == 0 || d.waiting[0].own == 0 {
		return
	}
	d.waiting = slices.DeleteFunc(d.waiting, func(w *waiter) bool { // also those behind one with a limit of its own
		if d.underWay.Len() >= d.limit(w.own, now) {
			return false
		}
		w.pass <- d.begin(s, w.part, now)
		return true
	})
}
