// Package backlog counts the occurrences that wait in a store, and divides them by priority, tenant and destination.
// Its cost is bounded: it reads indexes, samples large backlogs, and uses recent counts.
package backlog

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/tenants"
)

// most is the maximum number of listed tenants.
const most = 1000

// Config has the sources of a Reader. Its funcs are called concurrently; none may be nil.
type Config struct {
	Inspector store.Inspector
	Tenants   *tenants.Tenants
	// DestinationOf returns the destination of a callback.
	DestinationOf func(job.Callback) string
	// Destinations returns the destinations that this replica knows, with their states.
	Destinations func() []DestinationState
	// PrioritiesOf returns the default priorities of tenants' jobs, in the order of the tenants.
	PrioritiesOf func(ctx context.Context, tenants []job.Tenant) []job.Priority
	// Rate returns the occurrences per second that this replica has settled lately; 0 if unknown.
	Rate func() float64
	// Replicas returns the number of replicas that may be claiming at a time.
	Replicas func(ctx context.Context, now time.Time) (int, error)
	// Now is the clock.
	Now func() time.Time
}

// Reader reads the backlog of a store. It is safe for concurrent use.
type Reader struct {
	Config
	turn chan struct{} // has an element while a goroutine counts or reads a count; it guards the other field
	// recent are the last counts, by the counted tenants.
	recent map[string]count
}

// NewReader returns a reader that has counted nothing yet.
func NewReader(config Config) *Reader { return &Reader{Config: config, turn: make(chan struct{}, 1)} }

// Backlog is the backlog of some tenants or of all, in the form of the API.
type Backlog struct {
	At            string          `json:"at"`
	Pending       int             `json:"pending"`
	Due           int             `json:"due"`
	AtLeast       bool            `json:"atLeast,omitzero"` // only of some tenants
	OldestDue     string          `json:"oldestDue,omitzero"`
	DeadLetters   *int            `json:"deadLetters,omitzero"` // this and the next three: all tenants only
	Replicas      *int            `json:"replicas,omitzero"`
	RatePerSecond float64         `json:"ratePerSecond,omitzero"`
	DrainSeconds  int             `json:"drainSeconds,omitzero"`
	Priorities    []OfPriority    `json:"priorities"`
	Tenants       []OfTenant      `json:"tenants"`
	Destinations  []OfDestination `json:"destinations"`
}

// Share is a part of the backlog.
type Share struct {
	Due     int `json:"due"`
	Pending int `json:"pending"`
	// AtLeast reports that both numbers may be higher.
	AtLeast bool `json:"atLeast,omitzero"`
}

func (s *Share) add(more Share) {
	s.Due += more.Due
	s.Pending += more.Pending
	s.AtLeast = s.AtLeast || more.AtLeast
}

// OfPriority is the backlog of one priority.
type OfPriority struct {
	Priority job.Priority `json:"priority"`
	Share
}

// OfTenant is the backlog of one tenant.
type OfTenant struct {
	Name      string       `json:"name"`
	Priority  job.Priority `json:"priority"`
	Weight    float64      `json:"weight"`
	Paused    bool         `json:"paused"`
	OldestDue string       `json:"oldestDue,omitzero"`
	Share
}

// count is a backlog that is valid until a time.
type count struct {
	Backlog
	until time.Time
}

// mostCounts bounds the counts that are kept.
const mostCounts = 100

// A backlog is counted again at this age, or at this multiple of the counting's duration if that is longer. So people
// who look at it take at most a fiftieth of one processor, however large it is.
const (
	backlogAge  = 2 * time.Second
	backlogRest = 50
)

// Recent counts the backlog of a scope's tenants, unless a recent count is valid. Only one call counts at a time.
func (r *Reader) Recent(ctx context.Context, scope access.Scope) (Backlog, error) {
	ctx, cancel := context.WithTimeout(ctx, store.Within)
	defer cancel()
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return Backlog{}, ctx.Err()
	}
	start, of := r.Now(), strings.Join(scope.Tenants, ",")
	if last := r.recent[of]; start.Before(last.until) {
		return last.Backlog, nil
	}
	// Counting continues when the client disconnects: otherwise impatient clients would start it again and again.
	ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), store.Within)
	defer cancel()
	read, err := r.read(ctx, start.UTC().Truncate(time.Millisecond), scope)
	if err != nil {
		return Backlog{}, err
	}
	if len(r.recent) >= mostCounts || r.recent == nil {
		r.recent = make(map[string]count)
	}
	end := r.Now()
	r.recent[of] = count{read, end.Add(max(backlogAge, backlogRest*end.Sub(start)))}
	return read, nil
}

// read reads the whole backlog of a scope's tenants. It reads numbers that are not kept by tenant only if the
// scope has all tenants.
func (r *Reader) read(ctx context.Context, now time.Time, scope access.Scope) (Backlog, error) {
	lanes, all, err := r.countLanes(ctx, now, scope)
	if err != nil {
		return Backlog{}, err
	}
	tenants, err := r.tenantsOf(ctx, lanes)
	if err != nil {
		return Backlog{}, err
	}
	destinations, err := r.destinations(ctx, now, lanes, all, scope)
	if err != nil {
		return Backlog{}, err
	}
	view := Backlog{At: job.FormatTime(now), Destinations: destinations}
	view.Priorities, view.Tenants = r.shareOut(ctx, lanes, all, tenants)
	if len(lanes) > 0 { // the first has waited the longest
		view.OldestDue = timeText(lanes[0].oldest)
	}
	if !scope.All() {
		var sum Share
		for i := range lanes {
			sum.add(lanes[i].Share)
		}
		view.Due, view.Pending, view.AtLeast = sum.Due, sum.Pending, sum.AtLeast || !all
		return view, nil
	}
	total, err := store.CountAll(ctx, r.Inspector, now)
	if err != nil {
		return Backlog{}, err
	}
	replicas, err := r.Replicas(ctx, now)
	if err != nil {
		return Backlog{}, err
	}
	replicas = max(replicas, 1) // this one, even before its first heartbeat
	view.Due, view.Pending, view.DeadLetters, view.Replicas = total.Due, total.Pending, &total.DeadLetters, &replicas
	if rate := r.Rate() * float64(replicas); rate > 0 {
		view.RatePerSecond = rate
		view.DrainSeconds = int(math.Ceil(float64(toFire(total.Due, lanes, all, tenants)) / rate))
	}
	return view, nil
}

// toFire returns the number of due occurrences that will be fired: all except those of paused tenants. Due is the
// number of due occurrences in the whole store.
func toFire(due int, lanes []lane, all bool, tenants map[string]job.Tenant) int {
	var paused, others Share
	for i := range lanes {
		of := &others
		if tenants[lanes[i].Tenant].Settings.Paused {
			of = &paused
		}
		of.add(lanes[i].Share)
	}
	if others.AtLeast || !all { // not all of it was counted
		return max(others.Due, due-paused.Due)
	}
	return others.Due
}

// shareOut splits the occurrences of lanes by priority and by tenant; the tenants with the most occurrences come first.
// If lanes are missing, a priority may have more.
func (r *Reader) shareOut(
	ctx context.Context, lanes []lane, all bool, known map[string]job.Tenant,
) ([]OfPriority, []OfTenant) {
	priorities := []OfPriority{
		{Priority: job.PriorityHigh}, {Priority: job.PriorityNormal}, {Priority: job.PriorityLow},
	}
	for i := range priorities {
		priorities[i].AtLeast = !all
	}
	var names []job.Tenant
	for _, name := range slices.Sorted(maps.Keys(known)) {
		names = append(names, known[name])
	}
	tenants := map[string]*OfTenant{}
	for i, p := range r.PrioritiesOf(ctx, names) {
		t := names[i]
		tenants[t.Name] = &OfTenant{
			Name: t.Name, Priority: p, Weight: t.Settings.EffectiveWeight(), Paused: t.Settings.Paused,
		}
	}
	for i := range lanes {
		l := &lanes[i]
		t := tenants[l.Tenant]
		if t.OldestDue == "" && l.Due > 0 { // of the tenant's lanes, the first has waited the longest
			t.OldestDue = timeText(l.oldest)
		}
		t.add(l.Share)
		of := cmp.Or(l.Priority, t.Priority)
		priorities[slices.IndexFunc(priorities, func(p OfPriority) bool { return p.Priority == of })].add(l.Share)
	}
	listed := make([]OfTenant, 0, len(tenants))
	for _, t := range tenants {
		if t.Pending > 0 {
			listed = append(listed, *t)
		}
	}
	slices.SortFunc(listed, func(a, b OfTenant) int {
		return cmp.Or(cmp.Compare(b.Due, a.Due), cmp.Compare(b.Pending, a.Pending), cmp.Compare(a.Name, b.Name))
	})
	return priorities, slices.Clone(listed[:min(most, len(listed))]) // a clone, so that the rest can be freed
}

// tenantsOf reads the tenants of lanes, by name.
func (r *Reader) tenantsOf(ctx context.Context, lanes []lane) (map[string]job.Tenant, error) {
	names := make([]string, len(lanes))
	for i := range lanes {
		names[i] = lanes[i].Tenant
	}
	return r.Tenants.ByName(ctx, names)
}

// timeText formats a time; it returns "" for the zero time.
func timeText(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return job.FormatTime(t)
}
