package checker

import (
	"fmt"
	"slices"
)

// sum bounds the counts of an answer to a cancellation by prefix, of all its keys together.
type sum struct {
	answer *Op
	jobs   bounds
	// ahead are the occurrences that it certainly found, and left those that it can have cancelled at most, unless that is
	// open. fired are former occurrences that fired after the answer, so it found them in flight.
	ahead, left, fired int
	open               bool
}

// prefixes: the counts of a cancellation by prefix are the sums of those of its keys, of which none is known alone. A
// key beyond the scope of the caller's key adds nothing.
func (h *History) prefixes(keys map[string]*keyed) (found []Violation) {
	sums := map[int]*sum{}
	var order []*sum
	for i := range h.Ops {
		o := &h.Ops[i]
		if o.Prefix == "" || !o.succeeded() {
			continue
		}
		s := sums[o.ID-o.Part]
		if s == nil {
			s = &sum{answer: o}
			sums[o.ID-o.Part], order = s, append(order, s)
		}
		if h.refusal(o) == 0 {
			k := keys[o.Key]
			s.add(k, k.ops[slices.IndexFunc(k.ops, func(c *Op) bool { return c.ID == o.ID })])
		}
	}
	for _, s := range order {
		for _, v := range s.broken() {
			v.Key, v.At = s.answer.Key, s.answer.Returned
			found = append(found, v)
		}
	}
	return found
}

// add adds the counts of one key.
func (s *sum) add(k *keyed, c *Op) {
	s.jobs.add(k.certainly(c), k.mayBeThere(c))
	ahead, left, known := k.cancellable(c)
	if !k.spares(c) {
		s.ahead += ahead
	}
	s.left += left
	s.open = s.open || !known && k.mayHavePending(c)
	for _, d := range k.formerAfter(c) { // each fires once, or breaks another rule
		if !k.spares(c) && !k.endedBeside(c) && !k.endedBefore(d.N, c) {
			s.fired++
		}
	}
}

// broken returns the rules that the counts of an answer break.
func (s *sum) broken() (found []Violation) {
	const rule = "counts of a cancellation"
	report := func(rule, format string, args ...any) {
		text := fmt.Sprintf("the cancellation of all %s* names ", s.answer.Prefix) + fmt.Sprintf(format, args...)
		found = append(found, Violation{Rule: rule, Text: text})
	}
	a := s.answer
	if a.Found < s.jobs.least || a.Found > s.jobs.most {
		report(rule, "%d jobs, and there were %d to %d", a.Found, s.jobs.least, s.jobs.most)
	}
	if a.Cancelled+a.InFlight < s.ahead {
		report(rule, "%d cancelled and %d in flight, and %d instants were ahead", a.Cancelled, a.InFlight, s.ahead)
	}
	if !s.open && a.Cancelled > s.left {
		report(rule, "%d cancelled, and at most %d occurrences were left that were not under way", a.Cancelled, s.left)
	}
	if a.InFlight < s.fired {
		report("an end is an end", "%d in flight, and %d former occurrences fired after it", a.InFlight, s.fired)
	}
	return found
}

// certainly reports whether the job was certainly there when a part of a cancellation by prefix came to it, and was its
// to cancel: it was put, and nothing may have ended or changed it meanwhile.
func (k *keyed) certainly(c *Op) bool {
	return !k.spares(c) && slices.ContainsFunc(k.ops, func(put *Op) bool {
		return put.puts() && put.succeeded() && put.Returned.Before(c.Invoked) &&
			!slices.ContainsFunc(k.ops, func(o *Op) bool {
				return o != c && o.Kind == Cancel && o.maybe() && o.Invoked.Before(c.Returned) &&
					!k.latest(o).Before(put.Invoked)
			})
	})
}

// mayBeThere reports whether there may have been a job when a cancellation came.
func (k *keyed) mayBeThere(c *Op) bool {
	return slices.ContainsFunc(k.ops, func(o *Op) bool { return o.puts() && o.maybe() && o.Invoked.Before(c.Returned) })
}

// mayHavePending reports whether there may have been occurrences when a cancellation came: those of a job, and those
// that were triggered or redriven.
func (k *keyed) mayHavePending(c *Op) bool {
	return slices.ContainsFunc(k.ops, func(o *Op) bool {
		makes := o.puts() || o.Kind == Trigger || o.mayRedrive()
		return makes && o.maybe() && o.Invoked.Before(c.Returned)
	})
}

// spares reports whether a cancellation by prefix may have left the job as it was: another client may have made it or
// changed it meanwhile. It looks for jobs once, and a later change is not undone. The answer does not tell. On a store
// whose own clock was set back, an earlier change may count as a later one.
func (k *keyed) spares(c *Op) bool {
	from := c.Invoked
	if k.ClockBound == 0 && slices.ContainsFunc(k.Troubles, func(t Trouble) bool { return t.What == "step" }) {
		from = from.Add(-k.Within)
	}
	return c.Prefix != "" && slices.ContainsFunc(k.ops, func(o *Op) bool {
		changes := o.puts() || o.Kind == Amend || o.Kind == Pause || o.Kind == Resume
		return changes && o.maybe() && o.Invoked.Before(c.Returned) && !k.latest(o).Before(from)
	})
}

// unanswered returns an operation that may have had an effect or none.
func (o *Op) unanswered() *Op {
	unknown := *o
	unknown.Status, unknown.Unchanged = 0, false
	return &unknown
}
