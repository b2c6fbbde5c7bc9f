package destinations

import (
	"math/rand/v2"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

// Whose tells whose a callback is. What a destination gives back comes again in turn, and turns are shared between priorities, and
// between the tenants of one priority, by their weights: however much of one is parked, another's has its turn soon.
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
	swept      time.Time
	each       time.Duration // between two turns, as it was last
	again      time.Time     // the last turn of one that came again
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
}

// lines are those of one priority.
type lines struct {
	share  float64
	weight float64 // of all of them
}

// sweepInterval is how often lines without turns ahead are dropped, so that the others have more.
const sweepInterval = 50 * time.Millisecond

// grace is how late those may come that have turns.
const grace = time.Second

// pause is what decides when one that is given back comes again.
type pause struct {
	of    Whose
	again bool          // it comes again already
	each  time.Duration // between two turns
	least time.Duration // until the first of them
	ahead time.Duration // how long before their turns those that come again are placed
	// longest is the longest that is waited, but for what must wait for more parked ones than have had their turns by then.
	longest time.Duration
	parked  int
}

// muchLonger is how many times the longest pause the longest backlog is waited for.
const muchLonger = 10

// next is when one that is given back is to come again: when those of its line that were given back before it have had their turns,
// and others' theirs, at one after each interval, so that the destination is busy all the time and nothing is claimed in vain. One
// that has come in vain, because another was before it, does not wait for all of them once more, unless there are many of its kind.
// Of a backlog so long that its turn would come after the longest pause, nobody knows the order: they come about as fast as they are
// sent.
func (t *turns) next(p pause, now time.Time) time.Duration {
	t.each = p.each
	if now.Sub(t.swept) >= sweepInterval {
		t.sweep(now)
	}
	first := now.Add(p.least)
	if p.again {
		if at := latest(first, t.again.Add(p.each)); at.Sub(first) < p.ahead {
			t.again = at
			return at.Sub(now)
		}
	}
	l, part := t.line(p.of)
	step := time.Duration(float64(p.each) / part)
	l.until = latest(l.until, now.Add(p.least+2*step+grace))
	at := latest(first, l.last.Add(step))
	if others := step - p.each; others > 0 && at.Equal(first) {
		at = at.Add(rand.N(others)) // lest all lines that begin now have their turns at the same times
	}
	if at.Sub(now) > max(p.least, p.longest) {
		long := max(p.least, p.longest, min(time.Duration(p.parked)*p.each, muchLonger*p.longest))
		return long/2 + rand.N(long/2)
	}
	l.last = at
	return at.Sub(now)
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// mayBegin tells whether one that comes, of those that may begin one after each interval, is to be let in while others have turns
// too: not if its line has had its part already. For a line keeps the turns that it had when it was alone, so more come than can be let
// in, and those would be first that are many.
func (t *turns) mayBegin(of Whose, each time.Duration, now time.Time) bool {
	if len(t.lines) == 0 {
		return true
	}
	if now.Sub(t.swept) >= sweepInterval {
		t.sweep(now)
	}
	l, part := t.line(of)
	step := time.Duration(float64(each) / part)
	l.until = latest(l.until, now.Add(2*step+grace))
	if part == 1 {
		return true
	}
	if most := now.Add(2 * step); l.free.After(most) { // its part was less when it had that
		l.free = most
	}
	return !l.free.After(now.Add(step))
}

// charge notes that one has been let in.
func (t *turns) charge(of Whose, each time.Duration, now time.Time) {
	if len(t.lines) == 0 {
		return
	}
	if l, part := t.line(of); part < 1 {
		l.free = latest(l.free, now).Add(time.Duration(float64(each) / part))
	}
}

// line answers the line of one, and which part of all turns it has.
func (t *turns) line(of Whose) (*line, float64) {
	name := lineOf{of.Tenant, of.Priority}
	l, known := t.lines[name]
	if !known {
		l = &line{}
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

// sweep drops the lines that have no turns ahead.
func (t *turns) sweep(now time.Time) {
	t.swept = now
	for _, p := range t.priorities {
		p.weight = 0
	}
	for name, l := range t.lines {
		if l.last.After(now) && l.until.After(now) {
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
	t.again = time.Time{}
	clear(t.lines)
	clear(t.priorities)
}

// parked counts those that were given back and have not come again, by the second in which they are to.
type parked map[int64]int

func (k parked) add(until time.Time) { k[until.Unix()]++ }

// count is how many there are. What has come again is among them no more, or once again.
func (k parked) count(now time.Time) (n int) {
	for second, of := range k {
		if second < now.Unix() {
			delete(k, second)
		} else {
			n += of
		}
	}
	return n
}
