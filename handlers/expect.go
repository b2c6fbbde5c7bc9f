package handlers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/events"
	"github.com/carillon-scheduler/carillon/explain"
	"github.com/carillon-scheduler/carillon/explain/facts"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/checkins"
)

// forService returns a context in which the caller reaches the service's own jobs, which no key's prefix covers. The
// handler has checked that the job they belong to is in the caller's scope.
func forService(ctx context.Context) context.Context {
	who := *callerOf(ctx)
	who.Scope = access.Everything()
	return context.WithValue(ctx, callerKey{}, &who)
}

// watchAll submits the jobs that watch the stored ones with an expectBy. They go the way of all submissions, so they
// keep their pending occurrences as their jobs do. If a watch can't be stored, the attempt fails, and the client
// repeats it.
func (a *api) watchAll(ctx context.Context, attempts []*attempt) {
	var watches, of []*attempt
	for _, t := range attempts {
		if t.outcome.err != nil || t.stored == nil || t.stored.Options.ExpectBy == 0 {
			continue
		}
		watch, some, err := events.Watch(t.stored, t.at)
		if err != nil {
			t.outcome.err = err
			continue
		}
		if !some {
			a.unwatch(ctx, t.job.Name, t.newer)
			continue
		}
		s := &submission{job: watch, past: t.past, newer: t.newer}
		if s.past == job.PastDefault && t.outcome.created { // an earlier watch of the same name makes no difference
			s.past = job.PastFire
		}
		watches, of = append(watches, a.newAttempt(s, &outcome{}, t.at)), append(of, t)
	}
	if len(watches) == 0 {
		return
	}
	a.run(forService(ctx), append([]*attempt(nil), watches...))
	for i, w := range watches {
		if err := w.outcome.err; err != nil && !errors.Is(err, store.ErrSuperseded) {
			of[i].outcome.err = fmt.Errorf("store the watch for its check-ins: %w", err)
		}
	}
}

// unwatch cancels the watch of a job. If that fails, the watch ends by itself when it fires.
func (a *api) unwatch(ctx context.Context, of job.Name, newer store.Span) {
	watch := []job.Name{events.WatchName(of)}
	if _, err := a.Store.Cancel(forService(ctx), watch, store.Asked{Now: a.now(), Newer: newer}); err != nil {
		a.Logger.Debug("a watch was not cancelled", "job", of.String(), "error", err)
	}
}

// unwatchAll cancels the watches of the jobs in the caller's scope whose keys begin with a prefix: a first page of
// them. Those that are left end by themselves when they fire.
func (a *api) unwatchAll(ctx context.Context, newer store.Span, tenant, prefix string) {
	prefix, some := longer(prefix, callerOf(ctx).Scope.KeyPrefix)
	if !some {
		return
	}
	ctx = forService(ctx)
	watches := events.WatchName(job.Name{Tenant: tenant, Key: prefix}).Key
	page, err := a.Store.Jobs(ctx, store.JobFilter{Tenant: tenant, Prefix: watches, Limit: sliceSize})
	if err != nil || len(page) == 0 {
		return
	}
	names := make([]job.Name, len(page))
	for i := range page {
		names[i] = page[i].Name
	}
	if _, err := a.Store.Cancel(ctx, names, store.Asked{Now: a.now(), Newer: newer}); err != nil {
		a.Logger.Debug("watches were not cancelled", "prefix", prefix, "error", err)
	}
}

// checkInDraft is a submitted check-in.
type checkInDraft struct {
	At *string `json:"at,omitzero"`
}

// Check implements [job.Checker].
func (d checkInDraft) Check(invalid *job.Invalid) {
	if d.At == nil {
		return
	}
	if _, err := job.ParseInstant(*d.At); err != nil {
		invalid.Add("/at", fmt.Sprintf("%q %v", *d.At, err))
	}
}

// checkedIn is the answer to a check-in.
type checkedIn struct {
	Key       string `json:"key"`
	At        string `json:"at,omitzero"`
	Cancelled bool   `json:"cancelled"`
}

var errExpectsNothing = &statusError{http.StatusConflict, "this job expects no check-ins: it has no expectBy"}

// checkIn records the check-in of a job for an instant.
func (a *api) checkIn(c *gin.Context) error {
	key, err := keyInPath(c)
	if err != nil {
		return err
	}
	if _, err := readQuery(c.Request); err != nil {
		return err
	}
	if err := refuseConditions(c.Request); err != nil {
		return err
	}
	at, err := a.readCheckIn(c)
	if err != nil {
		return err
	}
	ctx, cancel, _ := a.inTime(c.Request)
	defer cancel()
	now := a.now()
	status, err := a.readableJob(ctx, job.Name{Tenant: who(c).tenant, Key: key}, now)
	if err != nil {
		return err
	}
	if status.Options.ExpectBy == 0 {
		return errExpectsNothing
	}
	answer := checkedIn{Key: key}
	at, open, err := a.expected(ctx, status.Name, at, now)
	if err != nil {
		return err
	}
	if !open && !at.IsZero() {
		if err := a.refuseNoInstant(ctx, status.Name, at, now); err != nil {
			return err
		}
	}
	answer.At = instantText(at)
	until := at.Add(time.Duration(status.Options.ExpectBy))
	if answer.Cancelled = open && !now.After(until); answer.Cancelled {
		if err := events.CheckIn(ctx, a.Records, status.Name, at, until, now); err != nil {
			return err
		}
	}
	return writeJSON(c, http.StatusOK, answer)
}

// refuseNoInstant refuses a check-in for a time that is no instant of the job, and never was, as far as is known. One
// that was checked in before is left alone, since a check-in may be repeated.
func (a *api) refuseNoInstant(ctx context.Context, of job.Name, at, now time.Time) error {
	if come, err := checkins.Has(ctx, a.Records, of, at, now); come || err != nil {
		return err
	}
	question, err := a.facts.Gather(ctx, of, facts.At, at)
	if err != nil {
		return err
	}
	answer := explain.Explain(question)
	if answer.Code != explain.NoSuchInstant && answer.Code != explain.SkippedByClockChange {
		return nil
	}
	detail := job.FormatTime(at) + " is no instant of this job"
	for i, nearest := range answer.Nearest {
		detail += []string{"; the nearest ones are ", " and "}[min(i, 1)] + job.FormatTime(nearest)
	}
	return &statusError{http.StatusConflict, detail}
}

// readCheckIn reads the instant that a check-in is for; zero if it names none.
func (a *api) readCheckIn(c *gin.Context) (time.Time, error) {
	body, err := a.readBody(c)
	if err != nil || len(bytes.TrimSpace(body)) == 0 {
		return time.Time{}, err
	}
	if _, err := mediaType(c.Request, "application/json"); err != nil {
		return time.Time{}, err
	}
	draft, err := job.Parse[checkInDraft](body)
	if err != nil || draft.At == nil {
		return time.Time{}, err
	}
	return job.ParseInstant(*draft.At)
}

// expected returns the instant whose check-in is expected: the given one, or the latest one up to now. Open is false if
// it is not expected any more, or never was.
func (a *api) expected(ctx context.Context, of job.Name, at, now time.Time) (_ time.Time, open bool, err error) {
	ctx = forService(ctx)
	watch, err := store.ReadJob(ctx, a.Store, events.WatchName(of))
	if errors.Is(err, store.ErrNotFound) {
		return at, false, nil
	}
	if err != nil {
		return at, false, err
	}
	until := at
	if at.IsZero() {
		until = now
	}
	pending, err := a.pendingUntil(ctx, &watch.Job, until)
	if err != nil {
		return at, false, err
	}
	latest := at
	for i := range pending { // in the order of their instants
		o := &pending[i]
		if o.Revision != "" && !o.Timestamp.After(until) && (at.IsZero() || o.Timestamp.Equal(at)) {
			latest, open = o.Timestamp, true
		}
	}
	return latest, open, nil
}
