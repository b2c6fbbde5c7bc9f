package handlers

import (
	"cmp"
	"context"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// The numbers of listed tenants and destinations in an answer.
const (
	defaultBacklog = 20
	maxBacklog     = 1000
)

// getBacklog answers with the pending and due occurrences by priority, tenant and destination, and the time to drain
// them.
func (a *api) getBacklog(c *gin.Context) error {
	query, err := readQuery(c.Request, "limit")
	if err != nil {
		return err
	}
	limit, err := numberParameter(query, "limit", defaultBacklog, maxBacklog)
	if err != nil {
		return err
	}
	view, err := a.recentBacklog(c.Request.Context(), who(c).Scope)
	if err != nil {
		return err
	}
	view.Tenants = view.Tenants[:min(limit, len(view.Tenants))]
	view.Destinations = view.Destinations[:min(limit, len(view.Destinations))]
	return writeJSON(c, http.StatusOK, view)
}

// backlogView is the backlog as it is answered.
type backlogView struct {
	At            string               `json:"at"`
	Pending       int                  `json:"pending"`
	Due           int                  `json:"due"`
	AtLeast       bool                 `json:"atLeast,omitzero"` // only of some tenants
	OldestDue     string               `json:"oldestDue,omitzero"`
	DeadLetters   *int                 `json:"deadLetters,omitzero"` // this and the next three: all tenants only
	Replicas      *int                 `json:"replicas,omitzero"`
	RatePerSecond float64              `json:"ratePerSecond,omitzero"`
	DrainSeconds  int                  `json:"drainSeconds,omitzero"`
	Priorities    []priorityBacklog    `json:"priorities"`
	Tenants       []tenantBacklog      `json:"tenants"`
	Destinations  []destinationBacklog `json:"destinations"`
}

// share is a part of the backlog.
type share struct {
	Due     int `json:"due"`
	Pending int `json:"pending"`
	// AtLeast reports that both numbers may be higher.
	AtLeast bool `json:"atLeast,omitzero"`
}

func (s *share) add(more share) {
	s.Due += more.Due
	s.Pending += more.Pending
	s.AtLeast = s.AtLeast || more.AtLeast
}

type priorityBacklog struct {
	Priority job.Priority `json:"priority"`
	share
}

type tenantBacklog struct {
	Name      string       `json:"name"`
	Priority  job.Priority `json:"priority"`
	Weight    float64      `json:"weight"`
	Paused    bool         `json:"paused"`
	OldestDue string       `json:"oldestDue,omitzero"`
	share
}

// recent are the last counts of the backlog.
type recent struct {
	turn chan struct{} // has an element while a goroutine counts or reads a count; it guards the other field
	// views are keyed by the counted tenants.
	views map[string]recentView
}

// recentView is a count that is valid until a time.
type recentView struct {
	backlogView
	until time.Time
}

// mostViews bounds the counts that are kept.
const mostViews = 100

// A backlog is counted again at this age, or at this multiple of the counting's duration if that is longer.
const (
	backlogAge  = 2 * time.Second
	backlogRest = 10
)

// recentBacklog counts the backlog of a scope's tenants, unless a recent count is valid. Only one request counts at a
// time.
func (a *api) recentBacklog(ctx context.Context, scope access.Scope) (backlogView, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	select {
	case a.recent.turn <- struct{}{}:
		defer func() { <-a.recent.turn }()
	case <-ctx.Done():
		return backlogView{}, ctx.Err()
	}
	start, of := a.Now(), strings.Join(scope.Tenants, ",")
	if last := a.recent.views[of]; start.Before(last.until) {
		return last.backlogView, nil
	}
	// Counting continues when the client disconnects: otherwise impatient clients would start it again and again.
	ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), storeTime)
	defer cancel()
	view, err := a.readBacklog(ctx, a.now(), scope)
	if err != nil {
		return backlogView{}, err
	}
	if len(a.recent.views) >= mostViews || a.recent.views == nil {
		a.recent.views = make(map[string]recentView)
	}
	end := a.Now()
	a.recent.views[of] = recentView{view, end.Add(max(backlogAge, backlogRest*end.Sub(start)))}
	return view, nil
}

// readBacklog reads the whole backlog of a scope's tenants. It reads numbers that are not kept by tenant only if the
// scope has all tenants.
func (a *api) readBacklog(ctx context.Context, now time.Time, scope access.Scope) (backlogView, error) {
	lanes, all, err := a.countLanes(ctx, now, scope)
	if err != nil {
		return backlogView{}, err
	}
	tenants, err := a.tenantsOf(ctx, lanes)
	if err != nil {
		return backlogView{}, err
	}
	destinations, err := a.destinationBacklogs(ctx, now, lanes, all, scope)
	if err != nil {
		return backlogView{}, err
	}
	view := backlogView{At: job.FormatTime(now), Destinations: destinations}
	view.Priorities, view.Tenants = a.shareOut(ctx, lanes, all, tenants)
	if len(lanes) > 0 { // the first has waited the longest
		view.OldestDue = instantText(lanes[0].oldest)
	}
	if !scope.All() {
		var sum share
		for i := range lanes {
			sum.add(lanes[i].share)
		}
		view.Due, view.Pending, view.AtLeast = sum.Due, sum.Pending, sum.AtLeast || !all
		return view, nil
	}
	total, err := store.CountAll(ctx, a.Inspector, now)
	if err != nil {
		return backlogView{}, err
	}
	replicas, err := a.Replicas(ctx, now)
	if err != nil {
		return backlogView{}, err
	}
	replicas = max(replicas, 1) // this one, even before its first heartbeat
	view.Due, view.Pending, view.DeadLetters, view.Replicas = total.Due, total.Pending, &total.DeadLetters, &replicas
	if rate := a.Rate() * float64(replicas); rate > 0 {
		view.RatePerSecond = rate
		view.DrainSeconds = int(math.Ceil(float64(toFire(total.Due, lanes, all, tenants)) / rate))
	}
	return view, nil
}

// toFire returns the number of due occurrences that will be fired: all except those of paused tenants. Due is the
// number of due occurrences in the whole store.
func toFire(due int, lanes []laneBacklog, all bool, tenants map[string]job.Tenant) int {
	var paused, others share
	for i := range lanes {
		of := &others
		if tenants[lanes[i].Tenant].Settings.Paused {
			of = &paused
		}
		of.add(lanes[i].share)
	}
	if others.AtLeast || !all { // not all of it was counted
		return max(others.Due, due-paused.Due)
	}
	return others.Due
}

// shareOut splits the occurrences of lanes by priority and by tenant; the tenants with the most occurrences come first.
// If lanes are missing, a priority may have more.
func (a *api) shareOut(
	ctx context.Context, lanes []laneBacklog, all bool, known map[string]job.Tenant,
) ([]priorityBacklog, []tenantBacklog) {
	priorities := []priorityBacklog{
		{Priority: job.PriorityHigh}, {Priority: job.PriorityNormal}, {Priority: job.PriorityLow},
	}
	for i := range priorities {
		priorities[i].AtLeast = !all
	}
	var names []job.Tenant
	for _, name := range slices.Sorted(maps.Keys(known)) {
		names = append(names, known[name])
	}
	tenants := map[string]*tenantBacklog{}
	for i, p := range a.prioritiesOf(ctx, names) {
		t := names[i]
		tenants[t.Name] = &tenantBacklog{
			Name: t.Name, Priority: p, Weight: t.Settings.EffectiveWeight(), Paused: t.Settings.Paused,
		}
	}
	for i := range lanes {
		l := &lanes[i]
		t := tenants[l.Tenant]
		if t.OldestDue == "" && l.Due > 0 { // of the tenant's lanes, the first has waited the longest
			t.OldestDue = instantText(l.oldest)
		}
		t.add(l.share)
		of := cmp.Or(l.Priority, t.Priority)
		priorities[slices.IndexFunc(priorities, func(p priorityBacklog) bool { return p.Priority == of })].add(l.share)
	}
	listed := make([]tenantBacklog, 0, len(tenants))
	for _, t := range tenants {
		if t.Pending > 0 {
			listed = append(listed, *t)
		}
	}
	slices.SortFunc(listed, func(a, b tenantBacklog) int {
		return cmp.Or(cmp.Compare(b.Due, a.Due), cmp.Compare(b.Pending, a.Pending), cmp.Compare(a.Name, b.Name))
	})
	return priorities, slices.Clone(listed[:min(maxBacklog, len(listed))]) // a clone, so that the rest can be freed
}

// laneBacklog is the backlog of a lane.
type laneBacklog struct {
	job.Lane
	oldest time.Time // the dueAt of its first due occurrence when the lanes were read; zero if none was due
	share
}

// The cost of counting lanes, in index entries: the maximum in all, the minimum for each counted lane, and the cost of
// finding a lane.
const (
	mostEntries  = 200_000
	leastEntries = 1000
	laneEntries  = 10
)

// mostLanes bounds the counted lanes, and duePages the pages of due times that are read to find them.
const (
	mostLanes = 10_000
	duePages  = 20
)

// findLanes finds lanes that have pending occurrences, the longest due first. If there are too many occurrences to read
// all due times, it appends the lanes of known tenants, which may be empty. It reports whether these are all lanes with
// occurrences.
func (a *api) findLanes(ctx context.Context, now time.Time) (found []laneBacklog, all bool, err error) {
	known := map[job.Lane]bool{}
	p := store.DueParams{Until: never, Limit: mostLanes}
	for range duePages {
		page, err := a.Inspector.DueLanes(ctx, p)
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
			has := laneBacklog{Lane: l.Lane, share: share{Pending: 1, AtLeast: true}}
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
	tenants, err := a.tenants.List(ctx, "", most+1)
	if err != nil {
		return nil, false, err
	}
	for _, t := range tenants[:min(most, len(tenants))] {
		for _, p := range priorities {
			if l := (job.Lane{Tenant: t.Name, Priority: p}); !known[l] {
				found = append(found, laneBacklog{Lane: l})
			}
		}
	}
	return found, len(tenants) <= most, nil
}

// lanesOf returns the lanes that tenants can have.
func lanesOf(tenants []string) (all []laneBacklog) {
	for _, tenant := range tenants {
		for _, p := range []job.Priority{job.PriorityDefault, job.PriorityHigh, job.PriorityNormal, job.PriorityLow} {
			all = append(all, laneBacklog{Lane: job.Lane{Tenant: tenant, Priority: p}})
		}
	}
	return all
}

// countLanes counts the occurrences of a scope's lanes, the longest due first, until the cost is used up. It leaves out
// empty lanes. Of the remaining lanes it knows at most that they are not empty. Whole reports whether all lanes were
// counted.
func (a *api) countLanes(
	ctx context.Context, now time.Time, scope access.Scope,
) (all []laneBacklog, whole bool, err error) {
	if scope.All() {
		if all, whole, err = a.findLanes(ctx, now); err == nil {
			all, whole, err = a.countEach(ctx, now, all, whole)
		}
		return all, whole, err
	}
	if all, whole, err = a.countEach(ctx, now, lanesOf(scope.Tenants), true); err != nil {
		return nil, false, err
	}
	for i := range all {
		if all[i].Due == 0 {
			continue
		}
		first, err := a.Inspector.Sample(ctx, all[i].Lane, time.Time{}, 1)
		if err != nil {
			return nil, false, err
		}
		if len(first) > 0 && !first[0].DueAt.After(now) {
			all[i].oldest = first[0].DueAt
		}
	}
	slices.SortFunc(all, func(a, b laneBacklog) int {
		if a.oldest.IsZero() != b.oldest.IsZero() {
			return a.oldest.Compare(b.oldest) * -1 // lanes without due occurrences come last
		}
		return cmp.Or(a.oldest.Compare(b.oldest), job.CompareLanes(a.Lane, b.Lane))
	})
	return all, whole, nil
}

// countEach counts the occurrences of lanes, in their order, and leaves out those that have none.
func (a *api) countEach(
	ctx context.Context, now time.Time, all []laneBacklog, whole bool,
) (counted []laneBacklog, _ bool, err error) {
	rest := all
	for left := mostEntries; len(rest) > 0 && left >= leastEntries; {
		n := min(len(rest), left/leastEntries)
		limit := left / n
		lanes := make([]job.Lane, n)
		for i := range lanes {
			lanes[i] = rest[i].Lane
		}
		counts, err := a.Inspector.Count(ctx, now, lanes, limit)
		if err != nil {
			return nil, false, err
		}
		for i, c := range counts {
			rest[i].share = share{Due: c.Due, Pending: c.Pending, AtLeast: c.Pending >= limit}
			left -= laneEntries + c.Pending
		}
		rest = rest[n:]
	}
	empty := func(l laneBacklog) bool { return l.Pending == 0 }
	whole = whole && !slices.ContainsFunc(rest, empty)
	return slices.DeleteFunc(all, empty), whole, nil
}

// tenantsOf reads the tenants of lanes, by name. A tenant that the store does not know has no settings.
func (a *api) tenantsOf(ctx context.Context, lanes []laneBacklog) (map[string]job.Tenant, error) {
	all := map[string]job.Tenant{}
	for i := range lanes {
		all[lanes[i].Tenant] = job.Tenant{Name: lanes[i].Tenant}
	}
	for names := range slices.Chunk(slices.Collect(maps.Keys(all)), maxLimit) {
		found, err := a.tenants.Named(ctx, names)
		if err != nil {
			return nil, err
		}
		for _, t := range found {
			all[t.Name] = t
		}
	}
	return all, nil
}
