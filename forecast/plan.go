// Package forecast projects the numbers of occurrences that fall due, and the times at which they will have been fired.
//
// A [Plan] has the future of all jobs of a store, read from their definitions: instants as they were submitted, and
// recurring schedules as rules, which are projected without expanding them into the store. A [Query] counts the plan's
// occurrences in steps of time, and plays them through the dispatcher's policy on a virtual clock.
package forecast

import (
	"context"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Definitions is the side of a store that a plan is read from: see [store.Transfer].
type Definitions interface {
	Export(ctx context.Context, after store.Place, limit int) ([]store.Document, store.Place, error)
}

// Bounds limit the size of a plan.
type Bounds struct {
	// Jobs is the largest number of definitions to read.
	Jobs int
	// Instants is the largest number of single instants to keep, 8 bytes each.
	Instants int
}

// Flow has the properties that occurrences are counted and limited by.
type Flow struct {
	job.Lane
	Destination string
	// Limits are the limits of the job for its destination.
	Limits job.DestinationLimits
	// Paused reports that the job is paused: its occurrences do not fire.
	Paused bool
}

// Plan is the future of all jobs of a store, as it was at one time. It does not change once it is made, and is safe for
// concurrent use. It takes 8 bytes for each single instant ahead. Recurring jobs take about 200 bytes for each crontab
// that differs from all others, and 16 bytes for each flow of it.
type Plan struct {
	// At is the time at which reading the definitions began. The plan has the instants at At or later.
	At time.Time
	// Took is the duration of reading them.
	Took time.Duration
	// Jobs is the number of definitions read.
	Jobs int
	// Unknown is the number of jobs among them whose instants this machine can't compute, since it lacks their zone.
	Unknown int
	// Incomplete reports that a bound was reached, so that some jobs are missing.
	Incomplete bool

	flows     []Flow
	once      [][]int64 // by flow: due times in Unix milliseconds, ascending
	recurring []job.Recurring
	rules     []rule
	moved     []movedRule
}

// rule is a number of jobs with the same instants and the same flow.
type rule struct {
	recurring, flow int32
	jobs            int32
}

// movedRule is a recurring job with a spread: its occurrences are moved by its name.
type movedRule struct {
	recurring job.Recurring
	from      time.Time // no instant before this can be pending
	name      job.Name
	spread    job.Duration
	flow      int32
}

// pageSize is the number of definitions read in one call.
const pageSize = 1000

// Read makes the plan of a store at now. Destination names the destination of a callback. Now is rounded up to whole
// milliseconds. The cost is that of reading all definitions with their callbacks once, in pages.
func Read(
	ctx context.Context, from Definitions, destination func(job.Callback) string, now time.Time, most Bounds,
) (*Plan, error) {
	r := reader{
		Plan:  Plan{At: job.CeilMilli(now)},
		flows: make(map[Flow]int32), known: make(map[job.Recurring]int32), rules: make(map[[2]int32]int32),
		destination: destination, left: most.Instants,
	}
	for place := store.Place(""); ; {
		page, next, err := from.Export(ctx, place, pageSize)
		if err != nil {
			return nil, err
		}
		for _, d := range page {
			if d.Job == nil { // all jobs come first
				return r.end(), nil
			}
			if r.Jobs == most.Jobs || r.left < 0 {
				r.Incomplete = true
				return r.end(), nil
			}
			r.Jobs++
			r.add(d.Job)
		}
		if place = next; len(page) == 0 {
			return r.end(), nil
		}
	}
}

// reader makes a plan.
type reader struct {
	Plan
	flows       map[Flow]int32
	known       map[job.Recurring]int32
	rules       map[[2]int32]int32 // by recurring schedule and flow: the number of jobs
	destination func(job.Callback) string
	left        int // instants
}

func (r *reader) add(j *job.Job) {
	if job.Reserved(j.Key) { // they follow from other jobs
		return
	}
	from := r.At.Add(-time.Duration(j.Options.Spread))
	if j.CreatedAt.After(from) {
		from = j.CreatedAt // so that it has no instants before
	}
	if recurring, ok := j.Schedule.Recurring(from); ok {
		flow := r.flow(j)
		if j.Options.Spread != 0 {
			r.moved = append(r.moved, movedRule{recurring, from, j.Name, j.Options.Spread, flow})
			return
		}
		place, known := r.known[recurring]
		if !known {
			place = index(len(r.recurring))
			r.known[recurring], r.recurring = place, append(r.recurring, recurring)
		}
		r.rules[[2]int32{place, flow}]++
		return
	}
	flow := int32(-1)
	err := j.PlannedFrom(r.At, func(at time.Time, n int) {
		if flow < 0 {
			flow = r.flow(j)
		}
		for range min(n, r.left+1) {
			r.once[flow] = append(r.once[flow], at.UnixMilli())
		}
		r.left -= n
	})
	if err != nil {
		r.Unknown++
	}
}

// flow returns the index of a job's flow.
func (r *reader) flow(j *job.Job) int32 {
	f := Flow{
		Lane: job.Lane{Tenant: j.Tenant, Priority: j.Options.Priority}, Destination: r.destination(j.Callback),
		Limits: j.Options.Destination, Paused: !j.PausedAt.IsZero(),
	}
	place, known := r.flows[f]
	if !known {
		place = index(len(r.Plan.flows))
		r.flows[f], r.Plan.flows, r.once = place, append(r.Plan.flows, f), append(r.once, nil)
	}
	return place
}

// index converts a length that [Bounds.Jobs] bounds.
func index(n int) int32 { return int32(n) } //nolint:gosec // there are fewer jobs

func (r *reader) end() *Plan {
	for key, jobs := range r.rules {
		r.Plan.rules = append(r.Plan.rules, rule{recurring: key[0], flow: key[1], jobs: jobs})
	}
	slices.SortFunc(r.Plan.rules, func(a, b rule) int { return int(a.recurring - b.recurring) })
	for _, instants := range r.once {
		slices.Sort(instants)
	}
	p := r.Plan // without the maps
	return &p
}

// Tenants returns the names of the tenants that have jobs in the plan, in no order.
func (p *Plan) Tenants() (names []string) {
	known := make(map[string]bool)
	for i := range p.flows {
		if name := p.flows[i].Tenant; !known[name] {
			known[name] = true
			names = append(names, name)
		}
	}
	return names
}
