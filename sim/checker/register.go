package checker

import (
	"time"

	"github.com/anishathalye/porcupine"
)

// job is the state of a key, as far as the model has it.
type jobState struct {
	exists bool
	n      int
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
		if o.Kind == Trigger || o.Kind == Redrive || o.Kind == Get && o.Status != 200 && o.Status != 404 {
			continue
		}
		if !o.succeeded() && o.Status != 404 && o.Status != 412 && !o.maybe() {
			continue // it was refused, for a reason that says nothing about the job
		}
		call(o, o, k.latest(o))
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
		Step: func(state, input, _ any) []any { return next(state.(jobState), input.(*Op)) },
	}
	m := model.ToModel()
	if result, _ := porcupine.CheckOperationsVerbose(m, ops, 10*time.Second); result == porcupine.Illegal {
		k.report("one order of changes", k.Ended, "no order of the operations explains all answers and the final state")
	}
}

// next returns the states in which an operation may leave a job; none if its answer contradicts the state.
func next(s jobState, o *Op) []any {
	if !o.succeeded() && o.Status != 404 && o.Status != 412 { // unknown
		if after := effect(s, o); after != s {
			return []any{s, after}
		}
		return []any{s}
	}
	switch o.Kind {
	case Put:
		return []any{effect(s, o)}
	case Create:
		if o.Status == 412 {
			return when(s.exists, s)
		}
		return []any{effect(s, o)} // a finished job counts as none
	case Cancel:
		if o.Status == 404 {
			return when(!s.exists, s)
		}
		return []any{jobState{}} // without a job, it may have found triggered occurrences
	case Get:
		if o.Status == 404 {
			return when(!s.exists, s)
		}
		return when(s.exists && s.n == o.Shown.N, s)
	case Amend:
		if o.Status == 412 {
			return []any{s}
		}
	default:
	}
	if o.Status == 404 {
		return when(!s.exists, s)
	}
	return when(s.exists, effect(s, o))
}

// effect returns the state after an operation that takes effect.
func effect(s jobState, o *Op) jobState {
	switch o.Kind {
	case Put, Create:
		return jobState{true, o.N}
	case Amend:
		if s.exists {
			s.n = o.N
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
