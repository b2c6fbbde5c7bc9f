package handlers

import (
	"cmp"
	"context"
	"errors"
	"math"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/carillon-scheduler/carillon/explain"
	"github.com/carillon-scheduler/carillon/history"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
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

// The values of the parameter "at" besides instants.
const (
	explainedNext = "next"
	explainedLast = "last"
)

// explainJob answers why an instant of a job fired or did not, or what it waits for. The job may be gone.
func (a *api) explainJob(c *gin.Context) error {
	key, err := keyInPath(c)
	if err != nil {
		return err
	}
	query, err := readQuery(c.Request, "at")
	if err != nil {
		return err
	}
	which, at, err := explainParameter(query)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Request.Context(), storeTime)
	defer cancel()
	g, err := a.gather(ctx, job.Name{Tenant: who(c).tenant, Key: key}, which, at)
	if err != nil {
		return err
	}
	answer := explain.Explain(&g.Question)
	return writeJSON(c, http.StatusOK, explanationView(&g.Question, &answer))
}

// explainParameter reads the requested instant: "next", "last", or a time.
func explainParameter(query url.Values) (which string, at time.Time, err error) {
	text := cmp.Or(query.Get("at"), explainedNext)
	if query.Has("at") && query.Get("at") == "" {
		text = ""
	}
	if text == explainedNext || text == explainedLast {
		return text, time.Time{}, nil
	}
	if at, err = job.ParseInstant(text); err != nil {
		return "", time.Time{}, &parameterError{"at", "is neither next nor last, and as an instant it " + err.Error()}
	}
	return "", at, nil
}

// gather reads the facts about an instant. The reads are not one snapshot, so it reads again if the job has changed
// meanwhile: an occurrence that a replacement has removed would seem to be delivered.
func (a *api) gather(ctx context.Context, name job.Name, which string, at time.Time) (*gathering, error) {
	for tries := 3; ; tries-- {
		g := &gathering{api: a, Question: explain.Question{Name: name, At: at, Now: a.now()}}
		if err := g.gather(ctx, which); err != nil {
			return nil, err
		}
		status, err := store.ReadJob(ctx, a.Store, name)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return nil, err
		}
		if tries == 1 || g.isOf(&status.Job) {
			return g, nil
		}
	}
}

// isOf reports whether the facts are those of a job, which is zero if there is none.
func (g *gathering) isOf(j *job.Job) bool {
	read := g.Job
	if read == nil {
		read = &job.Job{}
	}
	return read.Version == j.Version && read.Missed == j.Missed && read.Failed == j.Failed && read.Cursor.Equal(j.Cursor)
}

// gathering reads the facts of one explanation. Each of its reads is bounded.
type gathering struct {
	*api
	explain.Question
	live bool
}

// gather reads everything about the instant that is asked for.
func (g *gathering) gather(ctx context.Context, which string) error {
	status, err := store.ReadJob(ctx, g.Store, g.Name)
	switch {
	case err == nil:
		g.Job, g.live = &status.Job, status.Live()
	case !errors.Is(err, store.ErrNotFound):
		return err
	}
	if which == "" && g.Job != nil {
		g.At = g.Job.Nominal(g.At)
	}
	if which != "" {
		if err := g.find(ctx, which); err != nil {
			return err
		}
	}
	for _, read := range []func(context.Context) error{
		g.readPending, g.readDead, g.readHistory, g.readTenant, g.readReplicas, g.readQueue,
	} {
		if err := read(ctx); err != nil {
			return err
		}
	}
	g.readDestination()
	g.tellKept()
	g.Retain = g.api.Retain
	return nil
}

// tellKept tells which history of the tenant there is.
func (g *gathering) tellKept() {
	usual := g.HistoryPolicy
	if usual == (history.Policy{}) {
		usual.Keep = math.MaxInt64
	}
	own := g.OwnLimits.History(g.Name.Tenant, usual)
	g.Kept.On, g.Kept.Failures = g.History != nil && own.Keep > 0, own.Failures
	if own.Keep != math.MaxInt64 {
		g.Kept.For = own.Keep
	}
}

// find finds the next or the last instant. If none is left, the next one is the last.
func (g *gathering) find(ctx context.Context, which string) error {
	pending, _, err := g.Store.Occurrences(ctx, store.OccurrenceFilter{
		Name: g.Name, Revision: g.revision(), Limit: mostExplained,
	})
	if err != nil {
		return err
	}
	if which == explainedNext {
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
	reading, err := g.api.readHistory(ctx, history.Filter{Tenant: g.Name.Tenant, Key: g.Name.Key, Kinds: attempts})
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
	found, _, err := g.Store.Occurrences(ctx, store.OccurrenceFilter{
		Name: g.Name, Revision: g.revision(), After: g.beforeAll(), Limit: mostExplained + 1,
	})
	g.Pending = g.ofInstant(found)
	return err
}

func (g *gathering) readDead(ctx context.Context) error {
	if g.At.IsZero() {
		return nil
	}
	found, err := g.Store.DeadLetters(ctx, store.DeadLetterFilter{
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
	reading, err := g.api.readHistory(ctx, filter)
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
	t, err := g.tenants.Tenant(ctx, g.Name.Tenant)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	g.Tenant = t.Settings
	return err
}

func (g *gathering) readReplicas(ctx context.Context) (err error) {
	g.Replicas, err = g.api.Replicas(ctx, g.Now)
	return err
}

// readDestination finds the state of the job's destination, as this replica sees it.
func (g *gathering) readDestination() {
	if g.Job == nil {
		return
	}
	name := g.Callbacks.Destination(g.Job.Callback)
	for _, d := range g.Destinations() {
		if d.Name == name {
			g.Destination = explain.Destination{
				Name: name, Failures: d.Failures, DownSince: d.OpenSince.Truncate(time.Millisecond),
			}
		}
	}
}

// readQueue counts what is before the first occurrence that is due, and the share of its lane. It tells the numbers
// only to callers who may see the whole tenant, or all tenants.
func (g *gathering) readQueue(ctx context.Context) error {
	i := slices.IndexFunc(g.Pending, func(o job.Occurrence) bool { return o.Token == "" && !o.DueAt.After(g.Now) })
	if i < 0 {
		return nil
	}
	o := &g.Pending[i]
	counts, err := g.Inspector.Count(ctx, o.DueAt.Add(-time.Millisecond), []job.Lane{o.Lane()}, mostAhead)
	if err != nil {
		return err
	}
	scope := callerOf(ctx).Scope
	g.Queue = &explain.Queue{
		Known: scope.All() && scope.KeyPrefix == "", Ahead: counts[0].Due, AtLeast: counts[0].Due >= mostAhead, Share: 1,
		PerSecond: g.Rate() * float64(max(1, g.Replicas)),
	}
	if g.Queue.Ahead > 0 {
		g.Queue.Share, err = g.share(ctx, o.Lane())
	}
	return err
}

// share returns the part of all slots that a lane gets among those with due occurrences.
func (g *gathering) share(ctx context.Context, own job.Lane) (float64, error) {
	page, err := g.Inspector.DueLanes(ctx, store.DueParams{Until: g.Now, Limit: mostWaitLanes})
	if err != nil {
		return 0, err
	}
	lanes, names := make([]job.Lane, 0, len(page.Lanes)+1), make([]string, 0, len(page.Lanes)+1)
	for _, l := range page.Lanes {
		lanes, names = append(lanes, l.Lane), append(names, l.Lane.Tenant)
	}
	lanes, names = append(lanes, own), append(names, own.Tenant)
	known, err := g.tenants.ByName(ctx, names)
	if err != nil {
		return 0, err
	}
	all := make([]job.Tenant, 0, len(known))
	for _, t := range known {
		all = append(all, t)
	}
	priorities := make(map[string]job.Priority, len(all))
	for i, p := range g.prioritiesOf(ctx, all) {
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
			Lane: l, Priority: priority, PriorityWeight: g.Forecast.Policy.Weight(priority),
			TenantWeight: settings.EffectiveWeight(),
		})
	}
	last := len(waiters) - 1
	return explain.Share(waiters[last], waiters[:last]), nil
}

// explanation is an explanation in the form of the answer.
type explanation struct {
	Key        string               `json:"key"`
	Tenant     string               `json:"tenant"`
	At         string               `json:"at,omitzero"`
	FiresAt    string               `json:"firesAt,omitzero"`
	Code       explain.Code         `json:"code"`
	Summary    string               `json:"summary"`
	Facts      []explainedFact      `json:"facts"`
	Occurrence *explainedOccurrence `json:"occurrence,omitzero"`
	Nearest    []string             `json:"nearest,omitempty"`
	AsOf       string               `json:"asOf"`
}

// explainedOccurrence is the occurrence that an explanation is about.
type explainedOccurrence struct {
	ID         string `json:"id"`
	DeliveryID string `json:"deliveryId"`
	part
	State explain.State `json:"state"`
}

// explainedFact is one fact of an explanation.
type explainedFact struct {
	Code        explain.Code `json:"code"`
	Text        string       `json:"text"`
	At          string       `json:"at,omitzero"`
	Since       string       `json:"since,omitzero"`
	Until       string       `json:"until,omitzero"`
	Next        string       `json:"next,omitzero"`
	By          string       `json:"by,omitzero"`
	RequestID   string       `json:"requestId,omitzero"`
	Attempt     int          `json:"attempt,omitzero"`
	Status      int          `json:"status,omitzero"`
	Error       string       `json:"error,omitzero"`
	Destination string       `json:"destination,omitzero"`
	Replica     string       `json:"replica,omitzero"`
	Count       int          `json:"count,omitzero"`
}

func explanationView(q *explain.Question, answer *explain.Answer) explanation {
	view := explanation{
		Key: q.Name.Key, Tenant: q.Name.Tenant, At: instantText(answer.At), FiresAt: instantText(answer.FiresAt),
		Code: answer.Code, Summary: answer.Summary, AsOf: job.FormatTime(q.Now),
	}
	for _, at := range answer.Nearest {
		view.Nearest = append(view.Nearest, job.FormatTime(at))
	}
	if o := answer.Occurrence; o != nil {
		view.Occurrence = &explainedOccurrence{o.ID.String(), o.DeliveryID().String(), partView(o.Part), answer.State}
	}
	for i := range answer.Facts {
		f := &answer.Facts[i]
		view.Facts = append(view.Facts, explainedFact{
			Code: f.Code, Text: f.Text, At: instantText(f.At), Since: instantText(f.Since), Until: instantText(f.Until),
			Next: instantText(f.Next), By: f.By, RequestID: f.Request, Attempt: f.Attempt, Status: f.Status, Error: f.Error,
			Destination: f.Destination, Replica: f.Replica, Count: f.Count,
		})
	}
	return view
}
