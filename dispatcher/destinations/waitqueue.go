package destinations

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

// waitQueue decides when the deferred callbacks of a destination return. They wait in the store. The queue knows the
// number of turns of each flow, but not the callbacks that have them. This is the state machine of one callback:
//
//	                                 admitted
//	           ┌──────────┐  (its flow is charged for it)   ┌──────────┐
//	 arrived   │          ├────────────────────────────────►│ underWay │
//	──────────►│ arriving │                                 └──────────┘
//	 ┌────────►│          │ refused
//	 │         └──────────┴───┬────────────────┬──────────────────────────────┐
//	 │                        │ its turn is    │ it missed its turn           │ its turn is
//	 │                        │ near           │ for want of room             │ too far ahead
//	 │                        ▼                ▼                              ▼
//	 │                  ┌──────────┐     ┌──────────┐ expired          ┌───────────┐
//	 │                  │  queued  │     │ reserved ├────────► gone    │ unordered │
//	 │                  └─────┬────┘     └─────┬────┘                  └─────┬─────┘
//	 │     arrived, in turn   │                │ arrived, has its slot       │ arrived, at random
//	 └────────────────────────┴────────────────┴─────────────────────────────┘
//
// [waitQueue.on] takes the events arrived, admitted and refused. With time, reservations expire and flows are forgotten
// ([waitQueue.sweep]).
//
//   - queued: the turns of a flow follow each other at the flow's part of the destination's pace. So the destination is
//     always busy, and few claimed callbacks are deferred again.
//   - reserved: a delivery that misses its turn gets a reserved slot, which is kept from flows that have had more.
//     Otherwise the flow with the most callbacks would take all slots, since one of its callbacks is always there
//     first.
//   - unordered: if a turn would come after the longest pause, the callback returns at a random time. Such callbacks
//     return at about the rate at which they are sent.
type waitQueue struct {
	flows     map[flowID]*flow
	classes   map[job.Priority]*class
	reserving map[*flow]struct{} // the flows with reservations
	expired   int                // reservations in a row that expired unused
	swept     time.Time
	interval  time.Duration // between two turns at the destination, as of the last refusal
}

func newWaitQueue() waitQueue {
	return waitQueue{
		flows: make(map[flowID]*flow), classes: make(map[job.Priority]*class), reserving: make(map[*flow]struct{}),
	}
}

// state is the state of a callback.
type state uint8

const (
	arriving state = iota
	underWay
	queued
	reserved
	unordered
)

// event is an event of a callback.
type event uint8

const (
	arrived  event = iota // for the first time, or again
	admitted              // it is sent now
	refused               // it is deferred
)

// after has the state after an event, except after refused, where [waitQueue.refuse] decides.
var after = [...]state{arrived: arriving, admitted: underWay}

// Flow is the tenant and the priority of a callback. The flows of a destination share its turns by their weights,
// between priorities and between the tenants of one priority, however many callbacks of one flow wait.
type Flow struct {
	Tenant   string
	Priority job.Priority
	// PriorityWeight is the weight of the priority. TenantWeight is that of the tenant among those of the same priority.
	// Zero is 1.
	PriorityWeight, TenantWeight float64
}

// request describes a callback at an event.
type request struct {
	flow     Flow
	again    bool          // it has been deferred before
	interval time.Duration // between two turns at the destination

	// After refused:
	lacks    room          // the missing kind of room; zero if room alone would not admit it
	earliest time.Duration // the time until there may be room
	window   time.Duration // the time after that in which one flow's reservations may lie
	longest  time.Duration // the longest pause, unless the unordered callbacks need longer for their turns
}

// room is a set of the kinds of room that callbacks need at a destination.
type room uint8

const (
	slot      room = 1 << iota
	slotOfOwn      // a slot within the callback's own limit
	pace
)

// flowID names a flow.
type flowID struct {
	tenant   string
	priority job.Priority
}

// flow is the state of a flow with turns ahead.
type flow struct {
	weight   float64
	lastTurn time.Time
	// served is the time up to which the flow has used its part of the destination. Of two flows, the one with the earlier
	// time has had less.
	served time.Time
	// abandoned is the time at which the flow is forgotten although it has turns ahead, since none of its callbacks has
	// returned: they may have been cancelled.
	abandoned    time.Time
	reservations []time.Time // the times from which room is kept, in order
	lacks        room        // the kind of that room
	unordered    bySecond
}

// class has the flows of one priority.
type class struct {
	weight float64
	flows  float64 // the sum of their weights
}

const (
	// queueSweepInterval is the interval at which flows without turns ahead are forgotten, so that the others have more.
	queueSweepInterval = 50 * time.Millisecond
	// grace is the longest delay with which a callback may come for its turn.
	grace = time.Second
	// maxReserving is the largest number of flows with reservations.
	maxReserving = 500
	// minReserved is the shortest time for which a reservation holds: claims take time.
	minReserved = 50 * time.Millisecond
	// maxExpired is the number of reservations in a row that may expire. After that, all reservations are dropped: most
	// likely the callbacks were cancelled, or other replicas claim them.
	maxExpired = 3
	// maxBacklogPauses bounds the wait of an unordered callback, as a multiple of the longest pause.
	maxBacklogPauses = 10
)

// on is the transition function: it returns the state of a callback after an event and, if it waits, the wait.
func (q *waitQueue) on(e event, r request, now time.Time) (next state, wait time.Duration) {
	if e == refused {
		q.interval = r.interval
	} else if len(q.flows) == 0 { // nothing waits, so there is nothing to share
		return after[e], 0
	}
	if now.Sub(q.swept) >= queueSweepInterval {
		q.sweep(now)
	}
	f, part := q.flow(r.flow)
	step := time.Duration(float64(r.interval) / part) // the time between two turns of the flow
	switch e {
	case arrived:
		f.abandoned = latest(f.abandoned, now.Add(2*step+grace))
		if r.again {
			q.claimReservation(f, now)
		}
	case admitted:
		if part < 1 {
			// At most two steps ahead: others left it more, or its part was smaller at that time.
			f.served = earliest(latest(f.served, now).Add(step), now.Add(2*step))
		}
	case refused:
		return q.refuse(f, r, step, now)
	}
	return after[e], 0
}

// refuse gives a callback a reservation, the next turn of its flow, or a random time.
func (q *waitQueue) refuse(f *flow, r request, step time.Duration, now time.Time) (next state, wait time.Duration) {
	f.abandoned = latest(f.abandoned, now.Add(r.earliest+2*step+grace))
	first, longest := now.Add(r.earliest), max(r.earliest, r.longest)
	turn := latest(first, f.lastTurn.Add(step))
	if r.again || turn.Equal(first) {
		if at, ok := q.reserve(f, r, step, now); ok {
			return reserved, at.Sub(now)
		}
	}
	if turn.Sub(now) > longest {
		most := max(longest, min(time.Duration(f.unordered.count(now))*step, maxBacklogPauses*r.longest))
		wait = most/2 + rand.N(most/2)
		f.unordered.add(now.Add(wait))
		return unordered, wait
	}
	f.lastTurn = turn
	return queued, turn.Sub(now)
}

// reserve keeps room for a callback, after the reservations of flows that have had less, and after those of its own
// flow.
func (q *waitQueue) reserve(f *flow, r request, step time.Duration, now time.Time) (at time.Time, ok bool) {
	n := len(f.reservations)
	if r.lacks == 0 || n == 0 && len(q.reserving) >= maxReserving {
		return time.Time{}, false
	}
	first := now.Add(r.earliest)
	at = first
	for other := range q.reserving {
		if other != f && !other.served.After(f.served) {
			at = at.Add(r.interval)
		}
	}
	if n > 0 {
		at = latest(at, f.reservations[n-1].Add(step))
	}
	if at.Sub(now) > max(r.earliest, r.longest) || n > 0 && at.Sub(first) >= r.window {
		return time.Time{}, false
	}
	f.reservations, f.lacks, f.lastTurn = append(f.reservations, at), r.lacks, latest(f.lastTurn, at)
	q.reserving[f] = struct{}{}
	return at, true
}

// claimReservation ends the first reservation of a flow once its time has come, since its callback has come for it.
func (q *waitQueue) claimReservation(f *flow, now time.Time) {
	if len(f.reservations) > 0 && !f.reservations[0].After(now) {
		q.expired = 0
		q.dropReservation(f)
	}
}

func (q *waitQueue) dropReservation(f *flow) {
	if f.reservations = f.reservations[1:]; len(f.reservations) == 0 {
		delete(q.reserving, f)
	}
}

// keptFrom counts the places, of some kinds of room, that are kept from a flow for flows that have had less. They are
// the next reservation of each, and the reservations that begin before there is likely to be more room.
func (q *waitQueue) keptFrom(of Flow, kinds room, more time.Time) (n int) {
	f, known := q.flows[flowID{of.Tenant, of.Priority}]
	if !known {
		return 0
	}
	for other := range q.reserving {
		if other == f || other.lacks&kinds == 0 || !other.served.Before(f.served) {
			continue
		}
		n++
		for _, at := range other.reservations[1:] {
			if !at.After(more) {
				n++
			}
		}
	}
	return n
}

// flow finds or makes a flow, and returns its part of all turns.
func (q *waitQueue) flow(of Flow) (f *flow, part float64) {
	id := flowID{of.Tenant, of.Priority}
	f, known := q.flows[id]
	if !known {
		f = &flow{}
		q.flows[id] = f
	}
	c, known := q.classes[of.Priority]
	if !known {
		c = &class{}
		q.classes[of.Priority] = c
	}
	c.weight = orOne(of.PriorityWeight)
	c.flows += orOne(of.TenantWeight) - f.weight
	f.weight = orOne(of.TenantWeight)
	var all float64
	for _, other := range q.classes {
		all += other.weight
	}
	return f, c.weight / all * f.weight / c.flows
}

// sweep drops expired reservations, and forgets the flows that have no turns ahead and have had no more than their
// parts.
func (q *waitQueue) sweep(now time.Time) {
	q.swept = now
	q.expire(now)
	for _, c := range q.classes {
		c.flows = 0
	}
	for id, f := range q.flows {
		ahead := f.lastTurn.After(now) || f.unordered.count(now) > 0
		if ahead && f.abandoned.After(now) || len(f.reservations) > 0 || f.served.After(now) {
			q.classes[id.priority].flows += f.weight
		} else {
			delete(q.flows, id)
		}
	}
	for priority, c := range q.classes {
		if c.flows == 0 {
			delete(q.classes, priority)
		}
	}
}

// expire drops reservations whose callbacks have not come in time.
func (q *waitQueue) expire(now time.Time) {
	for f := range q.reserving {
		for len(f.reservations) > 0 && now.Sub(f.reservations[0]) > max(minReserved, min(q.interval, grace)) {
			q.dropReservation(f)
			q.expired++
		}
	}
	if q.expired >= maxExpired {
		q.dropReservations()
	}
}

func (q *waitQueue) dropReservations() {
	for f := range q.reserving {
		f.reservations = nil
	}
	clear(q.reserving)
	q.expired = 0
}

// forget drops all turns.
func (q *waitQueue) forget() {
	q.dropReservations()
	clear(q.flows)
	clear(q.classes)
}

func orOne(weight float64) float64 {
	if weight <= 0 {
		return 1
	}
	return weight
}

func earliest(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// bySecond counts callbacks by the second in which they return. Its seconds are those of the monotonic clock since the
// first return that was added, so they do not depend on the time at which the program started. The zero value is empty.
type bySecond struct {
	epoch   time.Time
	returns map[int64]int
}

func (b *bySecond) second(t time.Time) int64 { return int64(math.Floor(t.Sub(b.epoch).Seconds())) }

func (b *bySecond) add(until time.Time) {
	if b.returns == nil {
		b.epoch, b.returns = until, make(map[int64]int)
	}
	b.returns[b.second(until)]++
}

// count returns the number of callbacks that have not returned yet, and forgets those that have.
func (b *bySecond) count(now time.Time) (n int) {
	for at, of := range b.returns {
		if at < b.second(now) {
			delete(b.returns, at)
		} else {
			n += of
		}
	}
	return n
}
