package handlers

import (
	"cmp"
	"context"
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// How many of the tenants and destinations are told.
const (
	defaultBacklog = 20
	maxBacklog     = 1000
)

// getBacklog answers how much there is to fire, and whose it is.
func (a *api) getBacklog(c *gin.Context) error {
	query, err := readQuery(c.Request, "limit")
	if err != nil {
		return err
	}
	limit, err := numberParameter(query, "limit", defaultBacklog, maxBacklog)
	if err != nil {
		return err
	}
	view, err := a.recentBacklog(c.Request.Context())
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
	OldestDue     string               `json:"oldestDue,omitzero"`
	DeadLetters   int                  `json:"deadLetters"`
	Replicas      int                  `json:"replicas"`
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
	// AtLeast tells that there may be more of both.
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

// recent is what was last counted.
type recent struct {
	turn  chan struct{} // has an element while somebody counts or looks; it guards the rest
	view  backlogView
	until time.Time // to count anew then
}

// A backlog is counted anew when it is so old: so long, or so many times as long as the counting took.
const (
	backlogAge  = 2 * time.Second
	backlogRest = 10
)

// recentBacklog counts the backlog, unless that was done lately. However many ask, it is counted once at a time.
func (a *api) recentBacklog(ctx context.Context) (backlogView, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	select {
	case a.recent.turn <- struct{}{}:
		defer func() { <-a.recent.turn }()
	case <-ctx.Done():
		return backlogView{}, ctx.Err()
	}
	start := a.Now()
	if start.Before(a.recent.until) {
		return a.recent.view, nil
	}
	// Also if the client goes: else those that are less patient than it takes would have it begun again and again.
	ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), storeTime)
	defer cancel()
	view, err := a.readBacklog(ctx, a.now())
	if err != nil {
		return backlogView{}, err
	}
	end := a.Now()
	a.recent.view, a.recent.until = view, end.Add(max(backlogAge, backlogRest*end.Sub(start)))
	return view, nil
}

// readBacklog reads all that there is to tell of the backlog.
func (a *api) readBacklog(ctx context.Context, now time.Time) (backlogView, error) {
	total, err := a.Stock.Backlog(ctx, now)
	if err != nil {
		return backlogView{}, err
	}
	lanes, err := a.countLanes(ctx, now)
	if err != nil {
		return backlogView{}, err
	}
	settings, err := a.allSettings(ctx)
	if err != nil {
		return backlogView{}, err
	}
	replicas, err := a.Replicas(ctx, now)
	if err != nil {
		return backlogView{}, err
	}
	destinations, err := a.destinationBacklogs(ctx, now, lanes)
	if err != nil {
		return backlogView{}, err
	}
	view := backlogView{
		At:           job.FormatTime(now),
		Pending:      total.Pending,
		Due:          total.Due,
		OldestDue:    instantText(total.OldestDue),
		DeadLetters:  total.DeadLetters,
		Replicas:     max(replicas, 1), // this one, though it may not have told the store yet
		Destinations: destinations,
	}
	if rate := a.Rate() * float64(view.Replicas); rate > 0 {
		view.RatePerSecond = rate
		view.DrainSeconds = int(math.Ceil(float64(toFire(total.Due, lanes, settings)) / rate))
	}
	view.Priorities, view.Tenants = a.shareOut(lanes, settings)
	return view, nil
}

// toFire is how much of what is due, of which there is so much in all, will be fired: not what tenants have that are paused.
func toFire(due int, lanes []laneBacklog, settings map[string]job.TenantSettings) int {
	var paused, others share
	for i := range lanes {
		of := &others
		if settings[lanes[i].Tenant].Paused {
			of = &paused
		}
		of.add(lanes[i].share)
	}
	if others.AtLeast { // not all of it was counted
		return max(others.Due, due-paused.Due)
	}
	return others.Due
}

// shareOut tells how much of what the lanes have is whose: by priority, and by tenant, those with the most first.
func (a *api) shareOut(lanes []laneBacklog, settings map[string]job.TenantSettings) ([]priorityBacklog, []tenantBacklog) {
	priorities := []priorityBacklog{{Priority: job.PriorityHigh}, {Priority: job.PriorityNormal}, {Priority: job.PriorityLow}}
	tenants := map[string]*tenantBacklog{}
	for i := range lanes {
		l := &lanes[i]
		if l.Pending == 0 {
			continue
		}
		t, ok := tenants[l.Tenant]
		if !ok {
			s := settings[l.Tenant]
			t = &tenantBacklog{Name: l.Tenant, Priority: a.priorityOf(l.Tenant, s), Weight: s.EffectiveWeight(), Paused: s.Paused}
			tenants[l.Tenant] = t
		}
		if t.OldestDue == "" && l.Due > 0 { // of the tenant's lanes, the first has waited the longest
			t.OldestDue = instantText(l.oldest)
		}
		t.add(l.share)
		of := cmp.Or(l.Priority, t.Priority)
		priorities[slices.IndexFunc(priorities, func(p priorityBacklog) bool { return p.Priority == of })].add(l.share)
	}
	all := make([]tenantBacklog, 0, len(tenants))
	for _, t := range tenants {
		all = append(all, *t)
	}
	slices.SortFunc(all, func(a, b tenantBacklog) int {
		return cmp.Or(cmp.Compare(b.Due, a.Due), cmp.Compare(b.Pending, a.Pending), cmp.Compare(a.Name, b.Name))
	})
	return priorities, slices.Clone(all[:min(maxBacklog, len(all))]) // lest the rest be kept with them
}

// priorityOf is what jobs of a tenant have that have none of their own.
func (a *api) priorityOf(tenant string, s job.TenantSettings) job.Priority {
	p := s.Priority
	if a.PriorityOf != nil {
		p = a.PriorityOf(tenant)
	}
	return cmp.Or(p, job.PriorityNormal)
}

// laneBacklog is what a lane has.
type laneBacklog struct {
	job.Lane
	oldest time.Time // since when something of it has been due; zero if nothing was when the lanes were read
	share
}

// What counting lanes may cost, in entries of an index: in all; of each lane that is counted, at least; and what it costs to
// find a lane, however little it has.
const (
	mostEntries  = 200_000
	leastEntries = 1000
	laneEntries  = 10
)

// countLanes counts what lanes have, the longest due first, for as long as what they cost allows. Of the others it is only
// told that there is something.
func (a *api) countLanes(ctx context.Context, now time.Time) ([]laneBacklog, error) {
	dues, err := a.Stock.Lanes(ctx)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(dues, func(a, b store.LaneDue) int {
		return cmp.Or(a.DueAt.Compare(b.DueAt), job.CompareLanes(a.Lane, b.Lane))
	})
	all, lanes := make([]laneBacklog, len(dues)), make([]job.Lane, len(dues))
	for i, d := range dues {
		lanes[i] = d.Lane
		all[i] = laneBacklog{Lane: d.Lane, share: share{Pending: 1, AtLeast: true}}
		if !d.DueAt.After(now) {
			all[i].oldest, all[i].Due = d.DueAt, 1
		}
	}
	rest := all
	for left := mostEntries; len(rest) > 0 && left >= leastEntries; {
		n := min(len(rest), left/leastEntries)
		limit := left / n
		counts, err := a.Stock.CountLanes(ctx, now, lanes[:n], limit)
		if err != nil {
			return nil, err
		}
		for i, c := range counts {
			rest[i].share = share{Due: c.Due, Pending: c.Pending, AtLeast: c.Pending >= limit}
			left -= laneEntries + c.Pending
		}
		rest, lanes = rest[n:], lanes[n:]
	}
	return all, nil
}

// allSettings reads the settings of all tenants.
func (a *api) allSettings(ctx context.Context) (map[string]job.TenantSettings, error) {
	all := map[string]job.TenantSettings{}
	for filter := (store.TenantFilter{Limit: maxLimit}); ; {
		tenants, err := a.Tenants.Tenants(ctx, filter)
		if err != nil {
			return nil, err
		}
		for _, t := range tenants {
			all[t.Name] = t.Settings
		}
		if len(tenants) < filter.Limit {
			return all, nil
		}
		filter.After = tenants[len(tenants)-1].Name
	}
}
