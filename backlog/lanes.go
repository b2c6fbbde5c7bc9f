package backlog

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// lane is the backlog of a lane.
type lane struct {
	job.Lane
	oldest time.Time // the dueAt of its first due occurrence when the lanes were read; zero if none was due
	Share
}

// The cost of counting lanes, in index entries: the maximum in all, the minimum for each counted lane, and the cost of
// finding a lane.
const (
	mostEntries  = 200_000
	leastEntries = 1000
	laneEntries  = 10
)

// mostLanes bounds the counted lanes, duePages the pages of due times that are read to find them, and mostFirsts the
// lanes whose first occurrence is read because it is on none of these pages.
const (
	mostLanes  = 10_000
	duePages   = 2
	mostFirsts = 1000
)

// ever is after all due times.
var ever = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)

// findLanes finds lanes that have pending occurrences, the longest due first. If there are too many occurrences to read
// all due times, it appends the lanes of known tenants, which may be empty. It reports whether these are all lanes with
// occurrences.
func (r *Reader) findLanes(ctx context.Context, now time.Time) (found []lane, all bool, err error) {
	known := map[job.Lane]bool{}
	p := store.DueParams{Until: ever, Limit: mostLanes}
	for range duePages {
		page, err := r.Inspector.DueLanes(ctx, p)
		if err != nil {
			return nil, false, err
		}
		for _, l := range page.Lanes {
			if known[l.Lane] {
				continue
			}
			if len(found) == mostLanes {
				return found, false, nil
			}
			known[l.Lane] = true
			has := lane{Lane: l.Lane, Share: Share{Pending: 1, AtLeast: true}}
			if !l.DueAt.After(now) {
				has.oldest, has.Due = l.DueAt, 1
			}
			found = append(found, has)
		}
		if p.After = page.Next; p.After == (store.LaneDue{}) {
			return found, true, nil
		}
	}
	priorities := []job.Priority{job.PriorityDefault, job.PriorityHigh, job.PriorityNormal, job.PriorityLow}
	most := (mostLanes - len(found)) / len(priorities)
	tenants, err := r.Tenants.List(ctx, "", most+1)
	if err != nil {
		return nil, false, err
	}
	for _, t := range tenants[:min(most, len(tenants))] {
		for _, p := range priorities {
			if l := (job.Lane{Tenant: t.Name, Priority: p}); !known[l] {
				found = append(found, lane{Lane: l})
			}
		}
	}
	return found, len(tenants) <= most, nil
}

// lanesOf returns the lanes that tenants can have.
func lanesOf(tenants []string) (all []lane) {
	for _, tenant := range tenants {
		for _, p := range []job.Priority{job.PriorityDefault, job.PriorityHigh, job.PriorityNormal, job.PriorityLow} {
			all = append(all, lane{Lane: job.Lane{Tenant: tenant, Priority: p}})
		}
	}
	return all
}

// countLanes counts the occurrences of a scope's lanes, the longest due first, until the cost is used up. It leaves out
// empty lanes. Of the remaining lanes it knows at most that they are not empty. Whole reports whether all lanes were
// counted.
func (r *Reader) countLanes(
	ctx context.Context, now time.Time, scope access.Scope,
) (all []lane, whole bool, err error) {
	if scope.All() {
		all, whole, err = r.findLanes(ctx, now)
	} else {
		all, whole = lanesOf(scope.Tenants), true
	}
	if err == nil {
		all, whole, err = r.countEach(ctx, now, all, whole)
	}
	if err == nil {
		err = r.findOldest(ctx, now, all)
	}
	if err != nil {
		return nil, false, err
	}
	slices.SortFunc(all, func(a, b lane) int {
		if a.oldest.IsZero() != b.oldest.IsZero() {
			return a.oldest.Compare(b.oldest) * -1 // lanes without due occurrences come last
		}
		return cmp.Or(a.oldest.Compare(b.oldest), job.CompareLanes(a.Lane, b.Lane))
	})
	return all, whole, nil
}

// findOldest finds the oldest due times of lanes whose first occurrences no page of due times has shown, up to a number
// of lanes.
func (r *Reader) findOldest(ctx context.Context, now time.Time, all []lane) error {
	left := mostFirsts
	for i := range all {
		if all[i].Due == 0 || !all[i].oldest.IsZero() || left == 0 {
			continue
		}
		left--
		first, err := r.Inspector.Sample(ctx, all[i].Lane, time.Time{}, 1)
		if err != nil {
			return err
		}
		if len(first) > 0 && !first[0].DueAt.After(now) {
			all[i].oldest = first[0].DueAt
		}
	}
	return nil
}

// countEach counts the occurrences of lanes, in their order, and leaves out those that have none.
func (r *Reader) countEach(
	ctx context.Context, now time.Time, all []lane, whole bool,
) (counted []lane, _ bool, err error) {
	rest := all
	for left := mostEntries; len(rest) > 0 && left >= leastEntries; {
		n := min(len(rest), left/leastEntries)
		limit := left / n
		lanes := make([]job.Lane, n)
		for i := range lanes {
			lanes[i] = rest[i].Lane
		}
		counts, err := r.Inspector.Count(ctx, now, lanes, limit)
		if err != nil {
			return nil, false, err
		}
		for i, c := range counts {
			rest[i].Share = Share{Due: c.Due, Pending: c.Pending, AtLeast: c.Pending >= limit}
			left -= laneEntries + c.Pending
		}
		rest = rest[n:]
	}
	empty := func(l lane) bool { return l.Pending == 0 }
	whole = whole && !slices.ContainsFunc(rest, empty)
	return slices.DeleteFunc(all, empty), whole, nil
}
