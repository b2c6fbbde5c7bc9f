package forecast

import (
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

// Counts are the occurrences of a plan that fall due in consecutive periods of one width, by flow. A period has the
// instants from its beginning to before its end.
type Counts struct {
	From  time.Time
	Width time.Duration
	Flows []Flow
	// Periods has the periods that have any occurrences at the indexes of the others too: it has one entry for each
	// period. The entries of one period have different flows, in their order.
	Periods [][]Arrivals
	// Unknown is the number of jobs that are missing because this machine lacks their zones.
	Unknown int
	// Incomplete reports that counting was too much work, so that some recurring jobs are missing.
	Incomplete bool
}

// Arrivals are occurrences of one flow.
type Arrivals struct {
	Flow int // an index of Flows
	N    int
}

// mostWork bounds the steps of counting recurring schedules: about ten seconds.
const mostWork = 50_000_000

// Count counts the occurrences from a time on, which is not before the plan's, in a number of periods. Has reports
// whether to count a tenant's. The cost follows the number of different crontabs, each with the instants that it has in
// that time, at most one for each period of an @every. Jobs with a spread are counted one by one.
func (p *Plan) Count(from time.Time, width time.Duration, periods int, has func(tenant string) bool) Counts {
	c := Counts{From: from, Width: width, Flows: p.flows, Periods: make([][]Arrivals, periods)}
	// A number for each flow in each period would be too much: most have few.
	sums := make([]map[int32]int, periods)
	of := func(f *Flow) bool { return has(f.Tenant) }
	c.Unknown, c.Incomplete = p.tally(from, width, periods, of, func(period int, flow int32, n int) {
		if sums[period] == nil {
			sums[period] = make(map[int32]int)
		}
		sums[period][flow] += n
	})
	for period, of := range sums {
		for flow, n := range of {
			c.Periods[period] = append(c.Periods[period], Arrivals{int(flow), n})
		}
		slices.SortFunc(c.Periods[period], func(a, b Arrivals) int { return a.Flow - b.Flow })
	}
	return c
}

// tally counts the occurrences of some flows in periods. It calls add maybe several times for a period and a flow.
func (p *Plan) tally(
	from time.Time, width time.Duration, periods int, of func(*Flow) bool, add func(period int, flow int32, n int),
) (unknown int, incomplete bool) {
	unknown = p.Unknown
	tooMuch := false // work
	until := from.Add(time.Duration(periods) * width)
	counted := make([]bool, len(p.flows))
	for i := range p.flows {
		counted[i] = of(&p.flows[i])
	}
	for flow, instants := range p.once {
		first, _ := slices.BinarySearch(instants, from.UnixMilli())
		for _, at := range instants[first:] {
			if period := (at - from.UnixMilli()) / width.Milliseconds(); !counted[flow] || period >= int64(periods) {
				break
			} else {
				add(int(period), index(flow), 1)
			}
		}
	}
	work := 0
	for rules := p.rules; len(rules) > 0 && !tooMuch; {
		same := 1
		for same < len(rules) && rules[same].recurring == rules[0].recurring {
			same++
		}
		some := slices.DeleteFunc(slices.Clone(rules[:same]), func(r rule) bool { return !counted[r.flow] })
		rules = rules[same:]
		if len(some) == 0 {
			continue
		}
		steps, err := p.recurring[some[0].recurring].Tally(from, until, width, func(period, n int) {
			for _, r := range some {
				add(period, r.flow, n*int(r.jobs))
			}
		})
		if err != nil {
			for _, r := range some {
				unknown += int(r.jobs)
			}
		}
		work += steps
		tooMuch = tooMuch || work > mostWork
	}
	for i := range p.moved {
		m := &p.moved[i]
		if !counted[m.flow] || tooMuch {
			continue
		}
		options := job.Options{Spread: m.spread}
		begin := from.Add(-time.Duration(m.spread))
		if m.from.After(begin) {
			begin = m.from
		}
		err := m.recurring.Each(begin, until, func(at time.Time) bool {
			work++
			due := options.FiresAt(&job.Occurrence{Name: m.name, Timestamp: at})
			if !due.Before(from) && due.Before(until) {
				add(int(due.Sub(from)/width), m.flow, 1)
			}
			return work <= mostWork
		})
		if err != nil {
			unknown++
		}
		tooMuch = tooMuch || work > mostWork
	}
	return unknown, p.Incomplete || tooMuch
}
