package checker

import (
	"cmp"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// jobState is the state of a key, as far as the model has it.
type jobState struct {
	exists bool
	n      int
	put    *Op // that has made the schedule
	by     *Op // that has made the payload
}

// wrong is how far the clocks of replicas that claim may be wrong: an instant further ahead has not fired by any.
const wrong = 6 * time.Second

// ahead returns the number of instants of a job that were ahead when an operation was answered, for all replicas that
// claim, and for the replica that put them, which skips the instants that have passed by its own clock, however wrong.
// Reach is that of the history.
func (s jobState) ahead(o *Op, reach time.Duration) int {
	if !s.exists || s.put == nil {
		return 0
	}
	fast := max(o.Ahead+reach, s.put.Ahead)
	return len(s.put.Schedule.Between(o.Returned.Add(fast), o.Returned.Add(24*time.Hour)))
}

// register: the operations on a key have an order that explains all answers: each takes effect at one moment between
// its request and its answer, or, without an answer, within its time or never.
func (k *keyed) register() {
	var ops []porcupine.Operation
	call := func(o *Op, input any, until time.Time) {
		ops = append(ops, porcupine.Operation{
			ClientId: len(ops), Input: input, Call: o.Invoked.UnixNano(), Output: nil, Return: until.UnixNano(),
		})
	}
	for _, o := range k.ops {
		if slices.Contains([]Kind{Trigger, Redrive, Discard, Preview}, o.Kind) ||
			o.Kind == Get && o.Status != 200 && o.Status != 404 {
			continue
		}
		if !o.succeeded() && o.Status != 404 && o.Status != 412 && !o.maybe() {
			continue // it was refused, for a reason that says nothing about the job
		}
		if until := k.latest(o); k.spares(o) {
			call(o, o.unanswered(), until)
		} else {
			call(o, o, until)
		}
	}
	if final, there := k.Final.Jobs[k.key]; len(ops) > 0 && len(k.Final.Unread) == 0 {
		o := &Op{Kind: Get, Key: k.key, Status: 404, Invoked: k.Ended, Returned: k.Ended}
		if there {
			o.Status, o.Shown = 200, final
		}
		call(o, o, k.Ended)
	}
	model := porcupine.NondeterministicModel{
		Init: func() []any { return []any{jobState{}} },
		Step: func(state, input, _ any) []any { return next(state.(jobState), input.(*Op), k.reach()) },
	}
	m := model.ToModel()
	switch result, _ := porcupine.CheckOperationsVerbose(m, ops, cmp.Or(k.Patience, 10*time.Second)); result {
	case porcupine.Illegal:
		k.report("one order of changes", k.Ended, "no order of the operations explains all answers and the final state")
	case porcupine.Unknown:
		k.undecided = true
	case porcupine.Ok:
	}
}

// overtaken is the time after which a change certainly counts as later than a request that has arrived: replicas know
// the store's clock to within less.
const overtaken = 2 * time.Second

// late reports whether an operation comes too late to change a job: a request that was delayed on its replica does not
// undo a change that was made meanwhile, if it finds that change. After a cancellation it finds none.
func (s jobState) late(o *Op) bool {
	return s.by != nil && !o.Arrived.IsZero() && slices.Contains([]Kind{Put, Replace, Amend, Cancel}, o.Kind) &&
		s.by.Invoked.After(o.Arrived.Add(overtaken))
}

// has reports whether a job is as an operation makes it: by the same patch, or a recurring one by the same put. Then
// the operation may change nothing, and a delayed request may follow it.
func (s jobState) has(o *Op) bool {
	return s.exists && s.n == o.N && (o.Kind == Amend || o.Kind == Replace || o.Schedule.Every > 0 && s.put.N == o.N)
}

// meets reports whether a job may have the version that an operation is conditional on.
func (s jobState) meets(o *Op) bool { return o.Match == 0 || s.n == o.Match }

// next returns the states in which an operation may leave a job; none if its answer contradicts the state.
func next(s jobState, o *Op, reach time.Duration) []any {
	if !o.succeeded() && o.Status != 404 && o.Status != 412 { // unknown
		if after := effect(s, o); after != s {
			return []any{s, after}
		}
		return []any{s}
	}
	switch {
	case o.Status == 412 && o.Match != 0: // any change of the job is a cause, one that leaves its payload too
		return []any{s}
	case o.succeeded() && !s.meets(o):
		return nil
	}
	switch o.Kind {
	case Put:
		return append(when(!s.late(o), effect(s, o)), when(s.has(o), s)...)
	case Create:
		if o.Status == 412 {
			return when(s.exists, s)
		}
		return when(s.ahead(o, reach) == 0, effect(s, o)) // a finished job counts as none
	case Cancel:
		if o.Status == 404 {
			return when(!s.exists, s)
		}
		// It counts all that was ahead. Without a job, it may have found triggered occurrences.
		counted := s.ahead(o, reach) <= o.Cancelled+o.InFlight || s.put.Schedule.Every > 0
		return when(counted && !s.late(o), jobState{})
	case Get:
		if o.Status == 404 {
			return when(!s.exists, s)
		}
		return when(s.exists && s.n == o.Shown.N, s)
	default:
	}
	if o.Status == 404 {
		return when(!s.exists, s)
	}
	patches := o.Kind == Amend || o.Kind == Replace
	return append(when(s.exists && !s.late(o), effect(s, o)), when(patches && s.has(o), s)...)
}

// effect returns the state after an operation that takes effect, if it still may.
func effect(s jobState, o *Op) jobState {
	if s.late(o) || !s.meets(o) {
		return s
	}
	switch o.Kind {
	case Put, Create:
		return jobState{true, o.N, o, o}
	case Replace:
		switch {
		case !s.exists:
		case s.put != nil && s.put.Schedule.same(o.Schedule): // it keeps the occurrences
			s.n, s.by = o.N, o
		default:
			return jobState{true, o.N, o, o}
		}
	case Amend:
		if s.exists {
			s.n, s.by = o.N, o
		}
	case Cancel:
		return jobState{}
	default:
	}
	return s
}

func when(ok bool, s jobState) []any {
	if ok {
		return []any{s}
	}
	return nil
}
