package sim

import "slices"

// Minimise returns a smaller plan that still fails: it leaves out faults and operations, as many at a time as it can.
// It calls fails at most the given number of times.
func Minimise(p *Plan, tries int, fails func(*Plan) bool) *Plan {
	attempt := func(change func(*Plan)) bool {
		if tries == 0 {
			return false
		}
		tries--
		smaller := *p
		smaller.Ops, smaller.Faults = slices.Clone(p.Ops), slices.Clone(p.Faults)
		if change(&smaller); !fails(&smaller) {
			return false
		}
		p = &smaller
		return true
	}
	attempt(func(p *Plan) { p.Faults = nil })
	for size := max(len(p.Faults), len(p.Ops)); size > 0; size /= 2 {
		for i := 0; i < len(p.Faults); {
			if !attempt(func(p *Plan) { p.Faults = slices.Delete(p.Faults, i, min(i+size, len(p.Faults))) }) {
				i += size
			}
		}
		for i := 0; i < len(p.Ops); {
			if !attempt(func(p *Plan) { p.Ops = slices.Delete(p.Ops, i, min(i+size, len(p.Ops))) }) {
				i += size
			}
		}
	}
	attempt(func(p *Plan) { p.Early = 0 })
	attempt(func(p *Plan) { p.Interleaved = false })
	attempt(func(p *Plan) { p.Skew = make([]Span, len(p.Skew)) })
	return p
}
