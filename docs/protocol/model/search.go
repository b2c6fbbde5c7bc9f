package model

import (
	"fmt"
	"hash/maphash"
	"strings"
)

// Result is the result of a search.
type Result struct {
	// States is the number of different states that were reached.
	States int
	// Problem is a broken promise, and History the shortest way to it, a line for each step.
	Problem Problem
	History []string
}

// edge is the last step to a state: the state before it, and the move.
type edge struct {
	from uint64
	move uint8
}

// Moves of a call: its next step, in one of two ways, or an event.
const (
	stepFirst = iota
	stepSecond
	timePasses // its lease ends, or the time of its request is over
	moves
)

// Search tries every interleaving of a scenario's calls, with every possible stop of each call. It examines each state
// as if all calls stopped there, their leases ended, and one more replica finished the rest. It leaves out one rule, or
// none if that is zero. It ends at the first problem, or with an error if there are more states than the limit.
func Search(s Scenario, without Rule, limit int) (Result, error) {
	return walk(s, without, limit, nil)
}

// walk is [Search]. It shows each move, with the command that the call has sent.
func walk(s Scenario, without Rule, limit int, show func(before, after *World, call int, command Command)) (
	Result, error) {
	if !s.valid() {
		return Result{}, fmt.Errorf("scenario %v: these calls don't fit into one world", s)
	}
	seed := maphash.MakeSeed()
	start := *s.world()
	seen := map[uint64]edge{maphash.Comparable(seed, start): {}}
	var n World // of one move after the other, so that a move allocates none
	for frontier := []World{start}; len(frontier) > 0; {
		var next []World
		for i := range frontier {
			w := &frontier[i]
			if p := w.judge(without); p != None {
				return Result{len(seen), p, history(s, without, seen, seed, w, p)}, nil
			}
			from := maphash.Comparable(seed, *w)
			for call := range s.Calls {
				for move := range uint8(moves) {
					n = *w
					command, moved := n.move(call, move, without, nil)
					if !moved {
						continue
					}
					if show != nil {
						show(w, &n, call, command)
					}
					to := maphash.Comparable(seed, n)
					if _, known := seen[to]; !known {
						seen[to] = edge{from, uint8(call)*moves + move}
						next = append(next, n)
					}
				}
			}
			if len(seen) > limit {
				return Result{States: len(seen)}, fmt.Errorf("scenario %v has more than %d states", s, limit)
			}
		}
		frontier = next
	}
	return Result{States: len(seen)}, nil
}

// move makes one move of a call. It returns the command that the call has sent, and whether there is such a move.
func (w *World) move(call int, move uint8, without Rule, tell func(string, ...any)) (command Command, moved bool) {
	c := &w.call[call]
	if c.next == ended || w.truth.problem != None {
		return Command{}, false
	}
	t := &turn{w: w, c: c, i: call, off: without, choice: int(move), tell: tell}
	if move == timePasses {
		return Command{}, t.timePasses()
	}
	if move == stepSecond && (c.next != claimRead || !c.kind.claims() || c.n != 0) {
		return Command{}, false
	}
	if c.next == claimRead && c.kind.claims() && c.n == readOccurrences {
		t.choice = stepSecond
	}
	t.step()
	return t.command, true
}

// step makes the next step of the call.
func (t *turn) step() {
	switch k := t.c.kind; {
	case k.claims():
		t.claim()
	case k.puts():
		t.put()
	case k.cancels():
		t.cancel()
	case k == Amend, k == Pause, k == Resume:
		t.change()
	case k == Trigger:
		t.trigger()
	case k == Redrive:
		t.redrive()
	case k == Expand:
		t.expand()
	default:
		t.sweep()
	}
}

// timePasses ends the lease of a claim, or the time of a request.
func (t *turn) timePasses() bool {
	w, c := t.w, t.c
	if c.over {
		return false
	}
	switch k := c.kind; {
	case k.claims():
		if c.next == claimFind || c.next == claimStamp && c.back == 0 {
			return false
		}
		t.say("the lease ends")
		w.expire(t.i)
		w.truth.stalled = w.truth.stalled || c.next > settleRead
	case k == Expand:
		if c.next <= expandStamp {
			return false
		}
		t.say("the lease of the expansion ends")
		if w.job.expanding == t.token() {
			w.job.expanding = 0
			if w.job.expand == expandLater {
				w.job.expand = expandNow
			}
		}
	case k.puts():
		if c.next > putFlip && c.next != putInsert || c.done != 0 {
			return false
		}
		t.say("the time of the request is over: it is answered 503")
	case k == Trigger:
		t.say("the time of the request is over: it is answered 503")
	default:
		return false
	}
	c.over = true
	return true
}

// expire ends the lease of a claim. Occurrences that it has delivered and not settled may be delivered again.
func (w *World) expire(call int) {
	c := &w.call[call]
	for i := range w.slot {
		o := &w.slot[i]
		if o.there && o.held && int(o.token) == call+1 {
			o.held = false
		}
	}
	if c.kind != ClaimAck && c.kind != ClaimOne || c.next < claimFire {
		return
	}
	released := c.these
	if c.next > settleRead {
		released = c.back
	}
	for s := c.done &^ released; s != 0; s = s.without(s.first()) {
		w.excuse(s.first())
	}
}

// judge looks for a problem in a state, by finishing everything as if the calls stopped there.
func (w *World) judge(without Rule) Problem {
	if w.truth.problem != None {
		return w.truth.problem
	}
	end := *w
	allEnded, allAnswered := true, true
	for i := range end.call {
		if c := &end.call[i]; c.next != ended {
			allEnded = false
			allAnswered = allAnswered && !c.kind.puts() && !c.kind.cancels()
			if c.kind.claims() && !c.over {
				end.expire(i)
			}
		}
	}
	if allAnswered && end.truth.afterwards > end.truth.inFlight {
		return CountedShort
	}
	if allEnded {
		if p := end.atRest(); p != None {
			return p
		}
	}
	return end.finish(without)
}

// atRest judges a state in which all calls have ended.
func (w *World) atRest() Problem {
	j, r := &w.job, &w.truth
	if !j.exists() {
		return None
	}
	for i := range w.slot {
		if o := &w.slot[i]; !j.paused && o.there && !o.dead && o.later && o.isOf(j.revision) {
			return LeftBehind
		}
	}
	if r.replaced {
		return None
	}
	pending := w.matching(func(o *occurrence) bool {
		return !o.dead && o.revision == j.revision && (!j.recurs || o.revision == staged)
	})
	if j.recurs {
		return None
	}
	// The rest of the planned ones was delivered. After a stall, a failure may be uncounted.
	delivered := int(j.planned) - int(j.failed) - int(j.missed) - int(pending.count())
	if more := delivered - int(r.acked); more < 0 || more > 0 && !r.stalled {
		return WrongCounts
	}
	return None
}

// finish does all remaining work, as one more replica would, and judges the result.
func (w *World) finish(without Rule) Problem {
	j, r := &w.job, &w.truth
	t := &turn{w: w, off: without}
	for i := range w.slot {
		w.slot[i].held, w.slot[i].later = false, false
	}
	if j.exists() && j.recurs && !j.paused {
		if j.expand == expandNever {
			return Stopped
		}
		if o := &w.slot[slot1B]; !o.there || o.revision == staged {
			*o = occurrence{there: true, revision: j.revision}
		}
		j.recurs = false
	}
	for i := range w.slot {
		o := &w.slot[i]
		if !o.due() {
			continue
		}
		mine := o.revision == alone || j.exists() && o.isOf(j.revision)
		if !mine {
			*o = occurrence{}
			continue
		}
		if o.revision != alone && (j.paused || j.recurs && instantOf(i) >= int(j.cursor)) {
			continue
		}
		if o.revision == alone && (r.alone.has(i) || r.cancelled.has(int(r.triggerOf(i)))) {
			return AfterCancel
		}
		if o.revision == alone && r.refused.has(i) {
			return TriggerRefused
		}
		w.delivered(i, t)
		*o = occurrence{}
	}
	if r.problem != None {
		return r.problem
	}
	return w.complete()
}

// complete reports losses, once no work remains.
func (w *World) complete() Problem {
	j, r := &w.job, &w.truth
	for i := slotT; i < slots; i++ {
		if r.accepted.has(i) && !w.slot[i].there && r.fires[0][instantOf(i)] == 0 && !r.settled[0].has(instantOf(i)) {
			return TriggerLost
		}
	}
	if !j.exists() {
		return None
	}
	for i := range 2 {
		if !r.instants[j.revision].has(i) || r.fires[j.created][i] > 0 || r.settled[j.created].has(i) {
			continue
		}
		waits := w.matching(func(o *occurrence) bool { return o.dead || o.isOf(j.revision) })
		if waits&(one(i)|one(2+i)|one(4+i)) == 0 && (!j.recurs || i < int(j.cursor)) {
			return Lost
		}
	}
	return None
}

// history returns the lines of the way to a state.
func history(s Scenario, without Rule, seen map[uint64]edge, seed maphash.Seed, last *World, p Problem) []string {
	var lines []string
	start := *s.world()
	var back []uint8
	for at, to := maphash.Comparable(seed, start), maphash.Comparable(seed, *last); to != at; to = seen[to].from {
		back = append(back, seen[to].move)
	}
	w := start
	for i := len(back) - 1; i >= 0; i-- {
		call, move := int(back[i]/moves), back[i]%moves
		name := fmt.Sprintf("%s (call %d)", w.call[call].kind, call+1)
		var said []string
		w.move(call, move, without, func(format string, values ...any) {
			said = append(said, fmt.Sprintf(format, values...))
		})
		if len(said) > 0 {
			lines = append(lines, name+" "+strings.Join(said, "; "))
		}
	}
	return append(lines, "So "+p.String()+".")
}
