package forecast

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

// Query asks for the occurrences that fall due in consecutive steps.
type Query struct {
	// From is not before the plan's time. Steps of the length Step follow it.
	From  time.Time
	Step  time.Duration // whole milliseconds
	Steps int
	// Has reports whether to count a tenant's occurrences. Nil counts all.
	Has func(tenant string) bool
	// Top is the largest number of tenants, and of destinations, that a step lists.
	Top int
	// Waiting are the occurrences that are due before From already.
	Waiting []Waiting
	// Capacity is the capacity of the replicas. With a PerSecond of zero, nothing is simulated, and Left is always zero.
	Capacity
}

// Waiting is a number of occurrences of one flow that are due already.
type Waiting struct {
	Flow
	N int
}

// Report is the answer to a [Query].
type Report struct {
	Steps []Step
	// Total counts the occurrences that fall due in all steps.
	Total int
	// Paused counts the occurrences of paused jobs and tenants in that time, which do not fire. No other number has
	// them.
	Paused int
	// Unknown counts the jobs that are missing because this machine can't compute their instants.
	Unknown int
	// Incomplete reports that a bound was reached, so that jobs are missing.
	Incomplete bool
	// Unmatched are the destinations in Limits and Down that nothing is due for, sorted.
	Unmatched []string
}

// Step has the occurrences that fall due in one step.
type Step struct {
	From  time.Time
	Count int
	// Tenants, Destinations and Priorities have the parts of Count, the largest first.
	Tenants, Destinations, Priorities []Part
	// Left counts the occurrences that wait at the step's end, of this and of earlier steps.
	Left int
	// DrainedAt is the time from which no occurrence waits. It is zero if none had to wait, or if some wait until the end
	// of the simulation, which covers twice the time of the steps.
	DrainedAt time.Time
}

// Part is a part of a number.
type Part struct {
	Name  string
	Count int
	// DrainedAt is the DrainedAt of the step, for the occurrences of this destination.
	DrainedAt time.Time
}

// The drain of a step is computed in parts of it. There are at most mostPeriods in all, of at least shortestPeriod.
const (
	mostPeriods    = 5000
	shortestPeriod = time.Second
)

// periodsPerStep returns the number of parts of a step.
func periodsPerStep(step time.Duration, steps int) int {
	for _, n := range []int{60, 30, 20, 15, 12, 10, 6, 5, 4, 3, 2} {
		whole := step%(time.Duration(n)*time.Millisecond) == 0
		if whole && n*steps <= mostPeriods && step/time.Duration(n) >= shortestPeriod {
			return n
		}
	}
	return 1
}

// MostSteps is the largest number of steps of a query.
const MostSteps = 1000

// Report answers a query.
func (p *Plan) Report(q *Query) Report {
	each := periodsPerStep(q.Step, q.Steps)
	has := q.Has
	if has == nil {
		has = func(string) bool { return true }
	}
	c := p.Count(q.From, q.Step/time.Duration(each), each*q.Steps, has)
	var before []Arrivals
	for _, w := range q.Waiting {
		before = append(before, Arrivals{c.flow(w.Flow), w.N})
	}
	fired := Firing{Left: make([]int, len(c.Periods))}
	if q.PerSecond > 0 {
		fired = Simulate(&c, before, q.Capacity, len(c.Periods))
	}
	r := Report{Unknown: c.Unknown, Incomplete: c.Incomplete, Steps: make([]Step, q.Steps)}
	known := make(map[string]bool)
	for _, w := range q.Waiting {
		known[w.Destination] = true
	}
	for i := range r.Steps {
		s := &r.Steps[i]
		s.From = q.From.Add(time.Duration(i) * q.Step)
		periods := span{i * each, (i + 1) * each}
		tenants, destinations, priorities := map[string]int{}, map[string]int{}, map[string]int{}
		for _, arrivals := range c.Periods[periods.from:periods.until] {
			for _, a := range arrivals {
				f, t := &c.Flows[a.Flow], q.Tenant(c.Flows[a.Flow].Tenant)
				if f.Paused || t.Paused {
					r.Paused += a.N
					continue
				}
				s.Count += a.N
				tenants[f.Tenant] += a.N
				destinations[f.Destination] += a.N
				priorities[string(cmp.Or(f.Priority, t.Priority, job.PriorityNormal))] += a.N
			}
		}
		s.Tenants, s.Destinations = parts(tenants, q.Top), parts(destinations, q.Top)
		s.Priorities = parts(priorities, len(priorities))
		for name := range destinations {
			known[name] = true
		}
		for k := range s.Destinations {
			s.Destinations[k].DrainedAt = periods.last(fired.DrainedOf[s.Destinations[k].Name])
		}
		s.Left, s.DrainedAt = fired.Left[periods.until-1], periods.last(fired.Drained)
		r.Total += s.Count
	}
	r.Unmatched = q.unmatched(known)
	return r
}

// unmatched returns the destinations that are assumed to be limited or down, and are not known.
func (c *Capacity) unmatched(known map[string]bool) []string {
	names := make(map[string]bool)
	for name := range c.Limits {
		names[name] = !known[name]
	}
	for _, d := range c.Down {
		names[d.Destination] = !known[d.Destination]
	}
	maps.DeleteFunc(names, func(_ string, is bool) bool { return !is })
	return slices.Sorted(maps.Keys(names))
}

// flow returns the index of a flow, which is added if it is not among the flows.
func (c *Counts) flow(f Flow) int {
	if i := slices.Index(c.Flows, f); i >= 0 {
		return i
	}
	c.Flows = append(slices.Clone(c.Flows), f)
	return len(c.Flows) - 1
}

// span is a range of periods.
type span struct{ from, until int }

// last returns the last time of the span's periods; zero if there is none.
func (s span) last(drained []time.Time) (at time.Time) {
	if drained == nil {
		return at
	}
	for _, t := range drained[s.from:s.until] {
		if !t.IsZero() {
			at = t
		}
	}
	return at
}

// parts lists the largest parts.
func parts(of map[string]int, top int) []Part {
	all := make([]Part, 0, len(of))
	for _, name := range slices.Sorted(maps.Keys(of)) {
		all = append(all, Part{Name: name, Count: of[name]})
	}
	slices.SortStableFunc(all, func(a, b Part) int { return b.Count - a.Count })
	return all[:min(top, len(all))]
}
