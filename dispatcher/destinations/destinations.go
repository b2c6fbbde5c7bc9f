// Package destinations keeps callbacks from crowding what they are sent to, and what is slow or down from holding slots that
// others could use: each destination, such as a host or a queue, has a limit of callbacks under way, a rate if there is to be
// one, and a circuit that opens when it fails again and again.
//
// All of it is of one replica: with three, a destination sees up to three times its limits.
package destinations

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Policy is what destinations are treated by.
type Policy struct {
	// InFlight is how many callbacks of one destination may be under way at once; at least 1.
	InFlight int
	// Patience is how long a callback that has been claimed may wait for its turn. If it is likely to be longer, it is given back.
	Patience time.Duration
	// Failures is how many in a row open the circuit; at least 1.
	Failures int
	// Probe is how long an open circuit waits before it lets one callback through, at first; each that fails doubles it, up to
	// LongestProbe. What is given back is not claimed again before the next probe.
	Probe, LongestProbe time.Duration
}

// Validate checks the policy. The error names the option at fault and what would be right.
func (p *Policy) Validate() error {
	switch {
	case p.InFlight < 1:
		return fmt.Errorf("destination-max-in-flight is %d; it must be at least 1", p.InFlight)
	case p.Patience < 0:
		return fmt.Errorf("destination-patience is %s; it must not be negative", p.Patience)
	case p.Failures < 1:
		return fmt.Errorf("circuit-failures is %d; it must be at least 1", p.Failures)
	case p.Probe < time.Millisecond || p.LongestProbe < p.Probe:
		return fmt.Errorf("circuit-probe is %s and circuit-longest-probe %s; the one must be at least 1ms, and the other no shorter", p.Probe, p.LongestProbe)
	}
	return nil
}

// Limits are what one callback asks for beside the policy. Zero asks for nothing.
type Limits struct {
	InFlight int     // at most so many of its destination are under way
	Rate     float64 // at most so many begin in a second
}

// Busy is why a callback can't be sent now.
type Busy struct {
	Reason string
	// After is when to try again.
	After time.Duration
}

func (b *Busy) Error() string { return b.Reason }

// Set is all destinations of a replica. Its methods are safe for concurrent use.
type Set struct {
	policy Policy
	lock   sync.Mutex
	all    map[string]*destination
}

// destination is what is known of one. The set's lock guards it.
type destination struct {
	name     string
	inFlight int
	waiting  []*waiter     // in the order in which they came
	took     time.Duration // about how long a callback takes
	used     time.Time

	failures int       // in a row
	opened   time.Time // zero while the circuit is closed
	probe    time.Duration
	probeAt  time.Time // when the next probe may be
	probing  bool

	pace   *rate.Limiter // nil until a rate is asked for
	parked parked
}

// waiter is a callback that waits for its turn.
type waiter struct {
	limit int
	turn  chan struct{} // closed when it has come
}

// New makes a set.
func New(p Policy) *Set { return &Set{policy: p, all: make(map[string]*destination)} }

// Pass is the permission to send a callback. Done must be called once it was sent.
type Pass struct {
	set   *Set
	to    *destination
	begun time.Time
	probe bool
}

// Enter waits until a callback may be sent, but not for long: the error is a [*Busy] if it is not to be sent now, or that of the
// context.
func (s *Set) Enter(ctx context.Context, name string, l Limits) (*Pass, error) {
	now := time.Now()
	s.lock.Lock()
	d, known := s.all[name]
	if !known {
		d = &destination{name: name}
		s.all[name] = d
	}
	d.used = now
	probe, busy := d.ask(s.policy, now)
	if busy == nil && !probe {
		busy = d.reserve(s.policy, l.Rate, now)
	}
	if busy != nil {
		s.lock.Unlock()
		return nil, busy
	}
	limit := s.policy.InFlight
	if l.InFlight > 0 {
		limit = min(limit, l.InFlight)
	}
	if d.inFlight < limit && len(d.waiting) == 0 || probe {
		d.inFlight++
		s.lock.Unlock()
		return &Pass{s, d, now, probe}, nil
	}
	if wait := d.took * time.Duration(len(d.waiting)+1) / time.Duration(limit); wait > s.policy.Patience {
		busy := d.full(s.policy, limit, now)
		s.lock.Unlock()
		return nil, busy
	}
	w := &waiter{limit, make(chan struct{})}
	d.waiting = append(d.waiting, w)
	s.lock.Unlock()
	return s.await(ctx, d, w)
}

// await waits for a turn.
func (s *Set) await(ctx context.Context, d *destination, w *waiter) (*Pass, error) {
	patience := time.NewTimer(s.policy.Patience)
	defer patience.Stop()
	select {
	case <-w.turn:
		return &Pass{set: s, to: d, begun: time.Now()}, nil
	case <-patience.C:
	case <-ctx.Done():
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	select {
	case <-w.turn: // it has come just now
		return &Pass{set: s, to: d, begun: time.Now()}, nil
	default:
	}
	d.waiting = slices.DeleteFunc(d.waiting, func(other *waiter) bool { return other == w })
	d.admit() // who came behind it may have a higher limit
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return nil, d.full(s.policy, w.limit, time.Now())
}

// Done tells how the callback went: that the destination failed, or that it did what it can.
func (p *Pass) Done(failed bool) {
	now := time.Now()
	p.set.lock.Lock()
	defer p.set.lock.Unlock()
	d := p.to
	d.inFlight--
	d.used = now
	const weight = 8 // of what was known before
	d.took += (now.Sub(p.begun) - d.took) / weight
	if p.probe {
		d.probing = false
	}
	if failed {
		d.failed(p.set.policy, p.probe, now)
	} else {
		d.failures, d.opened, d.probe = 0, time.Time{}, 0
	}
	d.admit()
}

// admit gives their turns to those that wait, as far as their limits allow.
func (d *destination) admit() {
	for len(d.waiting) > 0 && d.inFlight < d.waiting[0].limit {
		d.inFlight++
		close(d.waiting[0].turn)
		d.waiting = d.waiting[1:]
	}
}

// failed notes a failure, of a probe or of another callback.
func (d *destination) failed(p Policy, probe bool, now time.Time) {
	d.failures++
	switch {
	case !d.opened.IsZero() && probe:
		d.probe = min(2*d.probe, p.LongestProbe)
	case d.opened.IsZero() && d.failures >= p.Failures:
		d.opened, d.probe = now, p.Probe
	default: // one that was under way when the circuit opened, or a few failures
		return
	}
	d.probeAt = now.Add(d.probe)
}

// ask asks the circuit: whether a callback may be sent, and whether it is a probe.
func (d *destination) ask(p Policy, now time.Time) (probe bool, busy error) {
	switch {
	case d.opened.IsZero():
		return false, nil
	case !d.probing && !now.Before(d.probeAt):
		d.probing = true
		return true, nil
	default:
		after := max(d.probeAt.Sub(now), d.probe)
		return false, &Busy{
			fmt.Sprintf("%s has failed %d times in a row; it is tried again every %s", d.name, d.failures, d.probe),
			d.parked.until(p, after, now),
		}
	}
}

// reserve asks for a place in the destination's pace.
func (d *destination) reserve(p Policy, perSecond float64, now time.Time) error {
	if perSecond <= 0 {
		return nil
	}
	if d.pace == nil {
		d.pace = rate.NewLimiter(rate.Limit(perSecond), max(1, int(perSecond/10))) // a tenth of a second at once
	} else if d.pace.Limit() != rate.Limit(perSecond) {
		d.pace.SetLimitAt(now, rate.Limit(perSecond))
	}
	if d.pace.AllowN(now, 1) {
		return nil
	}
	wait := time.Duration(float64(d.parked.count(now)+1) / perSecond * float64(time.Second))
	return &Busy{fmt.Sprintf("%s is at its rate of %v/s", d.name, perSecond), d.parked.until(p, wait, now)}
}

// full is the answer to one that would have to wait too long.
func (d *destination) full(p Policy, limit int, now time.Time) error {
	wait := d.took * time.Duration(d.parked.count(now)+len(d.waiting)+1) / time.Duration(limit)
	return &Busy{fmt.Sprintf("%s has %d callbacks under way, which is its limit", d.name, limit), d.parked.until(p, wait, now)}
}

// parked counts what was given back lately, about as much as waits in the store.
type parked struct {
	since          time.Time
	before, lately int // in the interval before, and in this one
}

// window is for how long what was given back counts.
const window = 10 * time.Second

func (k *parked) count(now time.Time) int {
	switch age := now.Sub(k.since); {
	case age > 2*window:
		k.since, k.before, k.lately = now, 0, 0
	case age > window:
		k.since, k.before, k.lately = k.since.Add(window), k.lately, 0
	}
	return max(k.before, k.lately)
}

// until counts one that is given back, and answers when to try it again: not before it can be its turn, nor before the next
// probe would be. Who gives back many spreads them.
func (k *parked) until(p Policy, wait time.Duration, now time.Time) time.Duration {
	k.count(now)
	k.lately++
	return min(max(wait, p.Probe), max(p.LongestProbe, p.Probe))
}

// Forget drops what has not been used for long. A circuit that is open is kept.
func (s *Set) Forget(before time.Time) {
	s.lock.Lock()
	defer s.lock.Unlock()
	for name, d := range s.all {
		if d.inFlight == 0 && len(d.waiting) == 0 && d.opened.IsZero() && d.used.Before(before) {
			delete(s.all, name)
		}
	}
}

// State is what is known of a destination.
type State struct {
	Name     string
	InFlight int
	// Parked is about how many were given back and wait.
	Parked int
	// Failures is how many in a row have failed; Open is since when the circuit is open, zero while it is closed.
	Failures int
	Open     time.Time
	// Took is about how long a callback takes.
	Took time.Duration
}

// States are all destinations that are in use, by name.
func (s *Set) States() (all []State) {
	now := time.Now()
	s.lock.Lock()
	defer s.lock.Unlock()
	for _, d := range s.all {
		all = append(all, State{d.name, d.inFlight, d.parked.count(now), d.failures, d.opened, d.took})
	}
	slices.SortFunc(all, func(a, b State) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return all
}

// IsBusy tells whether an error is a [*Busy], and when to try again.
func IsBusy(err error) (after time.Duration, ok bool) {
	busy, ok := errors.AsType[*Busy](err)
	if !ok {
		return 0, false
	}
	return busy.After, true
}
