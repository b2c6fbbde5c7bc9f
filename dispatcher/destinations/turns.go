package destinations

import (
	"math/rand/v2"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

// Whose tells whose a callback is. What a destination gives back comes again in turn, and turns are shared between
// priorities, and between the tenants of one priority, by their weights: however much of one is parked, another's has
// its turn soon.
type Whose struct {
	Tenant   string
	Priority job.Priority
	// Share is the weight of the priority, and Weight that of the tenant beside others of the same priority. Zero is 1.
	Share, Weight float64
}

// turns are when those that a destination has given back come again.
type turns struct {
	lines      map[lineOf]*line
	priorities map[job.Priority]*lines
	owed       map[*line]struct{} // those of which some have come at their turns in vain, and not yet again
	missed     int                // in a row, of those that were expected
	swept      time.Time
	each       time.Duration // between two turns, as it was last
}

func newTurns() turns {
	return turns{lines: make(map[lineOf]*line), priorities: make(map[job.Priority]*lines), owed: make(map[*line]struct{})}
}

// lineOf names those whose turns come one after the other.
type lineOf struct {
	tenant   string
	priority job.Priority
}

// line has turns ahead.
type line struct {
	weight float64
	last   time.Time // of its turns
	free   time.Time // from when on it has had no more than its part
	until  time.Time // nobody of it has come if this has passed: they may have been cancelled
	// expected are the times at which those come again that came in vain, and lacked is what they did not find.
	expected []time.Time
	lacked   room

	unordered parked // those whose turns would be too far ahead
}

// room is what callbacks need at a destination.
type room uint8

const (
	slot      room = 1 << iota
	slotOfOwn      // of as many as a callback asks for by itself
	pace
)

// lines are those of one priority.
type lines struct {
	share  float64
	weight float64 // of all of them
}

// sweepInterval is how often lines without turns ahead are dropped, so that the others have more.
const sweepInterval = 50 * time.Millisecond

// grace is how late those may come that have turns.
const grace = time.Second

// Room is kept for at most so many lines, and at least for so long for one that does not come, as claims take their
// time. When so many in a row have not come, most likely all have been cancelled, or other replicas claim them: then
// none is kept any more for those that are expected.
const (
	mostOwed   = 500
	leastKept  = 50 * time.Millisecond
	mostMissed = 3
)

// pause is what decides when one that is given back comes again.
type pause struct {
	of    Whose
	again bool          // it comes again already
	lacks room          // that it can be let in to; zero if that is not all that it waits for
	each  time.Duration // between two turns
	least time.Duration // until the first of them
	ahead time.Duration // how long before their turns those that come again are placed
	// longest is the longest that is waited, unless more wait than will have had their turns by then.
	longest time.Duration
}

// muchLonger is how many times the longest pause the longest backlog is waited for.
const muchLonger = 10

// next is when one that is given back is to come again: when those of its line that were given back before it have had
// their turns, and others' theirs, at one after each interval, so that the destination is busy all the time and nothing
// is claimed in vain.
//
// One that has come in vain, because another was before it, does not wait for all of them once more, unless there are
// many of its kind. It comes when there is likely to be room, which is kept for it from those that have had more.
// Otherwise those would have all of it that are many, since one of them is always there first.
//
// Of a backlog so long that its turn would come after the longest pause, nobody knows the order: they come about as
// fast as they are sent.
func (t *turns) next(p pause, now time.Time) time.Duration {
	t.each = p.each
	if now.Sub(t.swept) >= sweepInterval {
		t.sweep(now)
	}
	l, part := t.line(p.of)
	step := time.Duration(float64(p.each) / part)
	l.until = latest(l.until, now.Add(p.least+2*step+grace))
	first := now.Add(p.least)
	at := latest(first, l.last.Add(step))
	if ofTurn := p.again || at.Equal(first); ofTurn && p.lacks != 0 && (len(l.expected) > 0 || len(t.owed) < mostOwed) {
		turn, waiting := first.Add(p.each*time.Duration(t.owedBefore(l))), len(l.expected)
		if waiting > 0 {
			turn = latest(turn, l.expected[waiting-1].Add(step))
		}
		if turn.Sub(now) <= max(p.least, p.longest) && (waiting == 0 || turn.Sub(first) < p.ahead) {
			l.expected, l.lacked, l.last = append(l.expected, turn), p.lacks, latest(l.last, turn)
			t.owed[l] = struct{}{}
			return turn.Sub(now)
		}
	}
	if at.Sub(now) > max(p.least, p.longest) {
		most := max(p.least, p.longest, min(time.Duration(l.unordered.count(now))*step, muchLonger*p.longest))
		after := most/2 + rand.N(most/2)
		l.unordered.add(now.Add(after))
		return after
	}
	l.last = at
	return at.Sub(now)
}

// owedBefore counts the lines that are owed room before another.
func (t *turns) owedBefore(l *line) (n int) {
	for other := range t.owed {
		if other != l && !other.free.After(l.free) {
			n++
		}
	}
	return n
}

// miss forgets those that were expected, and are so late that they will not come.
func (t *turns) miss(now time.Time) {
	for l := range t.owed {
		for len(l.expected) > 0 && now.Sub(l.expected[0]) > max(leastKept, min(t.each, grace)) {
			l.expected = l.expected[1:]
			t.missed++
		}
		if len(l.expected) == 0 {
			delete(t.owed, l)
		}
	}
	if t.missed >= mostMissed {
		t.expectNone()
	}
}

// expectNone forgets who was expected.
func (t *turns) expectNone() {
	for l := range t.owed {
		l.expected = nil
	}
	clear(t.owed)
	t.missed = 0
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// come notes that one has come, again or for the first time.
func (t *turns) come(of Whose, again bool, each time.Duration, now time.Time) {
	if len(t.lines) == 0 {
		return
	}
	if now.Sub(t.swept) >= sweepInterval {
		t.sweep(now)
	}
	l, part := t.line(of)
	l.until = latest(l.until, now.Add(2*time.Duration(float64(each)/part)+grace))
	if again && len(l.expected) > 0 && !l.expected[0].After(now) {
		if l.expected, t.missed = l.expected[1:], 0; len(l.expected) == 0 {
			delete(t.owed, l)
		}
	}
}

// kept is how much room of some kinds is kept from one that comes, for others that have had less: for the next of each
// line, and for all that are expected until there is likely to be more room.
func (t *turns) kept(of Whose, kinds room, more time.Time) (n int) {
	l, known := t.lines[lineOf{of.Tenant, of.Priority}]
	if !known {
		return 0
	}
	for other := range t.owed {
		if other == l || other.lacked&kinds == 0 || !other.free.Before(l.free) {
			continue
		}
		n++
		for _, at := range other.expected[1:] {
			if !at.After(more) {
				n++
			}
		}
	}
	return n
}

// charge notes that one has been let in.
func (t *turns) charge(of Whose, each time.Duration, now time.Time) {
	if len(t.lines) == 0 {
		return
	}
	l, part := t.line(of)
	if part < 1 {
		step := time.Duration(float64(each) / part)
		l.free = latest(l.free, now).Add(step)
		if most := now.Add(2 * step); l.free.After(most) { // others left it more, or its part was less when it had that
			l.free = most
		}
	}
}

// line answers the line of one, and which part of all turns it has.
func (t *turns) line(of Whose) (*line, float64) {
	name := lineOf{of.Tenant, of.Priority}
	l, known := t.lines[name]
	if !known {
		l = &line{unordered: make(parked)}
		t.lines[name] = l
	}
	p, known := t.priorities[of.Priority]
	if !known {
		p = &lines{}
		t.priorities[of.Priority] = p
	}
	p.share = orOne(of.Share)
	p.weight += orOne(of.Weight) - l.weight
	l.weight = orOne(of.Weight)
	var all float64
	for _, other := range t.priorities {
		all += other.share
	}
	return l, p.share / all * l.weight / p.weight
}

func orOne(weight float64) float64 {
	if weight <= 0 {
		return 1
	}
	return weight
}

// sweep drops the lines that have no turns ahead, and have had no more than their parts.
func (t *turns) sweep(now time.Time) {
	t.swept = now
	t.miss(now)
	for _, p := range t.priorities {
		p.weight = 0
	}
	for name, l := range t.lines {
		ahead := l.last.After(now) || l.unordered.count(now) > 0
		if ahead && l.until.After(now) || len(l.expected) > 0 || l.free.After(now) {
			t.priorities[name.priority].weight += l.weight
		} else {
			delete(t.lines, name)
		}
	}
	for priority, p := range t.priorities {
		if p.weight == 0 {
			delete(t.priorities, priority)
		}
	}
}

// forget drops all turns.
func (t *turns) forget() {
	t.expectNone()
	clear(t.lines)
	clear(t.priorities)
}

// parked counts those that were given back and have not come again, by the second in which they are to.
type parked map[int64]int

// epoch is what seconds are counted from, by the monotonic clock.
var epoch = time.Now()

func second(t time.Time) int64 { return int64(t.Sub(epoch) / time.Second) }

func (k parked) add(until time.Time) { k[second(until)]++ }

// count is how many there are. What has come again is among them no more, or once again.
func (k parked) count(now time.Time) (n int) {
	for at, of := range k {
		if at < second(now) {
			delete(k, at)
		} else {
			n += of
		}
	}
	return n
}
