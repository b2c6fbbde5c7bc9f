package handlers

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/carillon-scheduler/carillon/history"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// putAll puts, in one call, the jobs of all attempts that are ready to put.
func (a *api) putAll(ctx context.Context, attempts []*attempt) {
	ctx, cancel := a.withinLead(ctx, attempts)
	defer cancel()
	now := a.now()
	puts := make([]store.Put, 0, len(attempts))
	putting := make([]*attempt, 0, len(attempts))
	for _, t := range attempts {
		if t.state == read || t.state == done {
			continue
		}
		put, err := guarded(func() (store.Put, error) { return a.newPut(t, now) })
		switch {
		case err == nil:
			puts, putting = append(puts, put), append(putting, t)
		case t.state == create && t.job.Schedule.Recurs() && t.condition.Always():
			t.neverFires = err // unless the job already has the same schedule, with its last instants
			t.advance(changed, nil)
		default:
			t.advance(failed, err)
		}
	}
	if len(puts) == 0 {
		return
	}
	var wakes wakes
	var changes, missed []*history.Entry
	for i, result := range a.meetAndPut(ctx, puts) {
		t := putting[i]
		if result.Err == nil || errors.Is(result.Err, store.ErrUnavailable) { // which may have taken effect
			wakes.add(job.Lane{Tenant: t.job.Tenant, Priority: t.job.Options.Priority}, t.expected.next)
		}
		if result.Err == nil {
			a.accept(ctx, t, &puts[i], result)
			changes = a.appendChange(changes, t, &puts[i], result.Replaced)
			missed = appendMissed(missed, t.missed, now)
		}
		t.advance(t.written(result.Err))
	}
	a.record(ctx, changes...) // all at once: a batch has many
	a.recordMissed(missed)
	for _, w := range wakes {
		a.Wake(w.Lane, w.DueAt)
	}
}

// withinLead ends ctx before an instant can fire that the puts did not consider: one beyond the horizon of a recurring
// schedule that replaces another job.
func (a *api) withinLead(ctx context.Context, attempts []*attempt) (context.Context, context.CancelFunc) {
	for _, t := range attempts {
		if t.state == replace && t.job.Schedule.Recurs() && a.Expansion.Lead() < store.Within {
			return context.WithTimeout(ctx, a.Expansion.Lead()-a.now().Sub(t.at))
		}
	}
	return context.WithCancel(ctx)
}

// newPut returns the put of an attempt's state, under a fresh revision, and the expected outcome.
func (a *api) newPut(t *attempt, now time.Time) (store.Put, error) {
	j := t.job // a copy: each put begins the schedule again
	j.Revision = a.stamp()
	j.Version = j.Revision
	j.CreatedAt, j.UpdatedAt = now, now // if the job exists, the store keeps its creation time
	put := store.Put{Newer: t.newer, Now: now}
	begun, err := a.begin(t, &j, &put)
	if err != nil {
		return store.Put{}, err
	}
	put.Job, put.Occurrences, put.Carried, t.missed = j, begun.Occurrences, begun.Carried, begun.Missed
	n := len(begun.Occurrences) + len(begun.Carried)
	t.expected = outcome{
		key: j.Key, revision: j.Revision, version: j.Version, missed: j.Missed, occurrences: n,
		live: n > 0 || !j.ExpandAt.IsZero(), skipped: begun.Skipped, settled: begun.Settled,
	}
	last := now
	see := func(o *job.Occurrence) { // steps with negative distances are not in order of time
		if t.expected.next.IsZero() || o.Timestamp.Before(t.expected.next) {
			t.expected.next = o.Timestamp
		}
		if until := o.DueAt.Add(time.Duration(j.Options.ExpectBy)); until.After(last) {
			last = until
		}
	}
	for i := range begun.Occurrences {
		see(&begun.Occurrences[i])
	}
	for i := range begun.Carried {
		see(&begun.Carried[i].As)
	}
	if put.Job.ExpiresAt = last.Add(a.Retain); !j.ExpandAt.IsZero() {
		put.Job.ExpiresAt = never
	}
	return put, nil
}

// never is the expiry of a job whose schedule continues. The expansion that ends the schedule sets the real one.
var never = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)

// begin starts the schedule of an attempt's job, and sets the condition of its put.
func (a *api) begin(t *attempt, j *job.Job, put *store.Put) (job.Beginning, error) {
	switch t.state {
	case create:
		put.If = store.Condition{Absent: true}
	case revive:
		put.If, put.StartsOver = store.Condition{Versions: []job.Revision{t.present.Version}}, true
	case replace:
		put.From = store.Replaced{Version: t.present.Version, Cursor: t.present.Cursor}
		of := job.Predecessor{Job: &t.present.Job, Pending: t.pending, Until: a.soon(t.at)}
		return j.BeginInstead(of, t.at, cmp.Or(t.past, job.PastSkip), a.Expansion)
	default: // direct
		put.If = t.condition
	}
	return j.Begin(t.at, cmp.Or(t.past, job.PastFire), a.Expansion)
}

// accept sets the outcome of a successful put.
func (a *api) accept(ctx context.Context, t *attempt, put *store.Put, result store.PutResult) {
	o := t.outcome
	*o = t.expected
	t.stored = &put.Job
	o.created = result.Replaced == "" || t.state == revive
	o.inFlight, o.paused = result.InFlight, result.Paused
	o.crowded = a.crowdedBy(put)
	settled := len(put.Carried) - result.Carried // since the job was read
	if settled == 0 {
		return
	}
	o.settled += settled
	o.occurrences -= settled
	o.live = o.occurrences > 0 || !put.Job.ExpandAt.IsZero()
	// The job is stored, so a failure to read its next instant must not fail the request.
	filter := store.OccurrenceFilter{Name: put.Job.Name, Revision: put.Job.Revision, Limit: defaultLimit}
	first, _, err := a.Store.Occurrences(ctx, filter)
	if o.next = nextOf(first); err != nil {
		o.next = time.Time{}
	}
}

// wakes are the earliest stored instants, by lane.
type wakes []store.LaneDue

func (w *wakes) add(lane job.Lane, at time.Time) {
	if at.IsZero() {
		return
	}
	for i := range *w {
		if known := &(*w)[i]; known.Lane == lane {
			if at.Before(known.DueAt) {
				known.DueAt = at
			}
			return
		}
	}
	*w = append(*w, store.LaneDue{Lane: lane, DueAt: at})
}
