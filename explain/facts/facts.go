// Package facts gathers the facts of explanations, for package explain: from the jobs and occurrences of a store, from
// history, and from the state of a replica. Each of its reads is bounded.
package facts

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/explain"
	"github.com/carillon-scheduler/carillon/history"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/tenants"
)

// Bounds of one explanation: occurrences and dead letters of the instant, entries of history about it, the newest
// changes of the job, occurrences counted before it, and lanes with due occurrences.
const (
	mostExplained = 100
	mostTold      = 1000
	mostChanges   = 1000
	mostAhead     = 10_000
	mostWaitLanes = 1000
)

// Which selects an instant of a job.
type Which int

// The instants that can be asked for.
const (
	// At is a given instant.
	At Which = iota
	// Next is the next instant, or the last one if none is left.
	Next
	// Last is the latest instant up to now.
	Last
)

// Config has the sources of a Reader. Its funcs are called concurrently; none may be nil.
type Config struct {
	// Jobs and Inspector are sides of the same store.
	Jobs      store.Jobs
	Inspector store.Inspector
	Tenants   *tenants.Tenants
	// History reads history.
	History func(context.Context, history.Filter) (*history.Reading, error)
	// Kept returns which history of a tenant is kept.
	Kept func(tenant string) explain.Kept
	// Destination returns the state of a callback's destination, as this replica sees it; zero if it is unknown.
	Destination func(job.Callback) explain.Destination
	// PrioritiesOf returns the default priorities of tenants' jobs, in the order of the tenants.
	PrioritiesOf func(ctx context.Context, tenants []job.Tenant) []job.Priority
	// Weight returns the weight of a priority.
	Weight func(job.Priority) float64
	// Rate returns the occurrences per second that this replica has settled lately; 0 if unknown.
	Rate func() float64
	// Replicas returns the number of replicas that may be claiming at a time.
	Replicas func(ctx context.Context, now time.Time) (int, error)
	// Retain is the time for which a finished job stays readable.
	Retain time.Duration
	// Now is the clock.
	Now func() time.Time
}

// Reader gathers facts. It is safe for concurrent use.
type Reader struct{ config Config }

// NewReader returns a Reader.
func NewReader(config Config) *Reader { return &Reader{config} }

// Gather reads the facts about an instant of a job. At is the instant if it is a given one. The job may be gone.
//
// The caller decides whether the answer may contain the numbers of the question's queue.
func (r *Reader) Gather(ctx context.Context, name job.Name, which Which, at time.Time) (*explain.Question, error) {
	// The reads are not one snapshot, so it reads again if the job has changed meanwhile: an occurrence that a
	// replacement has removed would seem to be delivered.
	for tries := 3; ; tries-- {
		g := &gathering{
			from:     &r.config,
			Question: explain.Question{Name: name, At: at, Now: r.config.Now(), Retain: r.config.Retain},
		}
		if err := g.gather(ctx, which); err != nil {
			return nil, err
		}
		status, err := store.ReadJob(ctx, r.config.Jobs, name)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return nil, err
		}
		if tries == 1 || g.isOf(&status.Job) {
			return &g.Question, nil
		}
	}
}

// gathering reads the facts of one explanation.
type gathering struct {
	from *Config
	explain.Question
	live bool
}

// isOf reports whether the facts are those of a job, which is zero if there is none.
func (g *gathering) isOf(j *job.Job) bool {
	read := g.Job
	if read == nil {
		read = &job.Job{}
	}
	return read.Version == j.Version && read.Missed == j.Missed && read.Failed == j.Failed && read.Cursor.Equal(j.Cursor)
}

// gather reads everything about the instant that is asked for.
func (g *gathering) gather(ctx context.Context, which Which) error {
	status, err := store.ReadJob(ctx, g.from.Jobs, g.Name)
	switch {
	case err == nil:
		g.Job, g.live = &status.Job, status.Live()
		g.Destination = g.from.Destination(g.Job.Callback)
	case !errors.Is(err, store.ErrNotFound):
		return err
	}
	if which == At && g.Job != nil {
		g.At = g.Job.Nominal(g.At)
	}
	if which != At {
		if err := g.find(ctx, which); err != nil {
			return err
		}
	}
	g.Kept = g.from.Kept(g.Name.Tenant)
	for _, read := range []func(context.Context) error{
		g.readPending, g.readDead, g.readHistory, g.readTenant, g.readReplicas, g.readQueue,
	} {
		if err := read(ctx); err != nil {
			return err
		}
	}
	return nil
}

// find finds the next or the last instant. If none is left, the next one is the last.
func (g *gathering) find(ctx context.Context, which Which) error {
	pending, _, err := g.from.Jobs.Occurrences(ctx, store.OccurrenceFilter{
		Name: g.Name, Revision: g.revision(), Limit: mostExplained,
	})
	if err != nil {
		return err
	}
	if which == Next {
		switch {
		case len(pending) > 0:
			g.At = pending[0].Timestamp
			return nil
		case g.live:
			after := g.Now
			if g.Job.Cursor.After(after) {
				after = g.Job.Cursor
			}
			if around, err := g.Job.Schedule.Around(after); err == nil {
				g.At = around.After
			}
			return nil
		case g.Job == nil:
			return g.findLast(ctx, nil)
		}
		g.Finished = true
	}
	return g.findLast(ctx, pending)
}

// findLast finds the latest instant up to now, given the first pending occurrences.
func (g *gathering) findLast(ctx context.Context, pending []job.Occurrence) error {
	latest := func(at time.Time) {
		if at.After(g.At) && !at.After(g.Now) {
			g.At = at
		}
	}
	for i := range pending {
		latest(pending[i].Timestamp)
	}
	if g.Job != nil {
		latest(g.Job.Trouble.Instant)
		around, err := g.Job.Schedule.Around(g.Now)
		switch since := g.Job.Revision.Time(); {
		case err != nil:
		case around.Is && g.Now.After(since):
			latest(g.Now)
		case !g.Job.Schedule.Recurs() || around.Before.After(since):
			latest(around.Before)
		}
	}
	var attempts []history.Kind
	for _, k := range history.Kinds() {
		if k.Attempt() {
			attempts = append(attempts, k)
		}
	}
	reading, err := g.from.History(ctx, history.Filter{Tenant: g.Name.Tenant, Key: g.Name.Key, Kinds: attempts})
	if err != nil {
		return err
	}
	for e, err := range reading.All(ctx) {
		if err != nil {
			return err
		}
		latest(e.Instant)
		break
	}
	return nil
}

func (g *gathering) revision() job.Revision {
	if g.Job == nil {
		return ""
	}
	return g.Job.Revision
}

// beforeAll returns the id after which those of the instant begin.
func (g *gathering) beforeAll() job.ID {
	if g.At.UnixMilli() <= 0 {
		return job.ID{}
	}
	return job.LastID(g.At.Add(-time.Millisecond))
}

// ofInstant returns the occurrences of the instant among some that begin with it.
func (g *gathering) ofInstant(found []job.Occurrence) []job.Occurrence {
	n := slices.IndexFunc(found, func(o job.Occurrence) bool { return !o.Timestamp.Equal(g.At) })
	if n < 0 {
		n = len(found)
	}
	if n > mostExplained {
		n, g.More = mostExplained, true
	}
	return found[:n]
}

func (g *gathering) readPending(ctx context.Context) error {
	if g.At.IsZero() {
		return nil
	}
	found, _, err := g.from.Jobs.Occurrences(ctx, store.OccurrenceFilter{
		Name: g.Name, Revision: g.revision(), After: g.beforeAll(), Limit: mostExplained + 1,
	})
	g.Pending = g.ofInstant(found)
	return err
}

func (g *gathering) readDead(ctx context.Context) error {
	if g.At.IsZero() {
		return nil
	}
	found, err := g.from.Jobs.DeadLetters(ctx, store.DeadLetterFilter{
		Tenant: g.Name.Tenant, Key: g.Name.Key, After: g.beforeAll(), Limit: mostExplained + 1, Brief: true,
	})
	g.Dead = g.ofInstant(found)
	return err
}

// readHistory reads the changes of the job and the entries about the instant.
func (g *gathering) readHistory(ctx context.Context) error {
	filter := history.Filter{Tenant: g.Name.Tenant, Key: g.Name.Key, About: g.At}
	if g.At.IsZero() {
		filter.About = g.Now // only changes are about no instant
	}
	reading, err := g.from.History(ctx, filter)
	if err != nil {
		return err
	}
	g.Kept.Gap = reading.Gap
	changes, told := 0, 0
	for e, err := range reading.All(ctx) {
		if err != nil {
			return err
		}
		of, most := &told, mostTold
		if e.Instant.IsZero() {
			of, most = &changes, mostChanges
		}
		if *of++; *of <= most {
			g.Entries = append(g.Entries, e)
		}
	}
	g.More = g.More || told > mostTold
	return nil
}

func (g *gathering) readTenant(ctx context.Context) error {
	t, err := g.from.Tenants.Tenant(ctx, g.Name.Tenant)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	g.Tenant = t.Settings
	return err
}

func (g *gathering) readReplicas(ctx context.Context) (err error) {
	g.Replicas, err = g.from.Replicas(ctx, g.Now)
	return err
}

// readQueue counts the occurrences before the first one that is due, and computes the share of its lane.
func (g *gathering) readQueue(ctx context.Context) error {
	i := slices.IndexFunc(g.Pending, func(o job.Occurrence) bool { return o.Token == "" && !o.DueAt.After(g.Now) })
	if i < 0 {
		return nil
	}
	o := &g.Pending[i]
	counts, err := g.from.Inspector.Count(ctx, o.DueAt.Add(-time.Millisecond), []job.Lane{o.Lane()}, mostAhead)
	if err != nil {
		return err
	}
	g.Queue = &explain.Queue{
		Ahead: counts[0].Due, AtLeast: counts[0].Due >= mostAhead, Share: 1,
		PerSecond: g.from.Rate() * float64(max(1, g.Replicas)),
	}
	if g.Queue.Ahead > 0 {
		g.Queue.Share, err = g.share(ctx, o.Lane())
	}
	return err
}

// share returns the part of all slots that a lane gets among those with due occurrences.
func (g *gathering) share(ctx context.Context, own job.Lane) (float64, error) {
	page, err := g.from.Inspector.DueLanes(ctx, store.DueParams{Until: g.Now, Limit: mostWaitLanes})
	if err != nil {
		return 0, err
	}
	lanes, names := make([]job.Lane, 0, len(page.Lanes)+1), make([]string, 0, len(page.Lanes)+1)
	for _, l := range page.Lanes {
		lanes, names = append(lanes, l.Lane), append(names, l.Lane.Tenant)
	}
	lanes, names = append(lanes, own), append(names, own.Tenant)
	known, err := g.from.Tenants.ByName(ctx, names)
	if err != nil {
		return 0, err
	}
	all := make([]job.Tenant, 0, len(known))
	for _, t := range known {
		all = append(all, t)
	}
	priorities := make(map[string]job.Priority, len(all))
	for i, p := range g.from.PrioritiesOf(ctx, all) {
		priorities[all[i].Name] = p
	}
	waiters := make([]explain.Waiter, 0, len(lanes))
	for _, l := range lanes {
		settings := known[l.Tenant].Settings
		if settings.Paused && l != own {
			continue
		}
		priority := cmp.Or(l.Priority, priorities[l.Tenant])
		waiters = append(waiters, explain.Waiter{
			Lane: l, Priority: priority, PriorityWeight: g.from.Weight(priority),
			TenantWeight: settings.EffectiveWeight(),
		})
	}
	last := len(waiters) - 1
	return explain.Share(waiters[last], waiters[:last]), nil
}
