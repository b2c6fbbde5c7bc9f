package handlers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/carillon-scheduler/carillon/history"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// patchTypes are the media types of a patch. Both mean a JSON merge patch (RFC 7396).
var patchTypes = []string{"application/merge-patch+json", "application/json"}

// patchJob changes a job by a merge patch of its submission. The patch is applied to the version that was read. If the
// job has changed since, patchJob starts over.
func (a *api) patchJob(c *gin.Context) error {
	key, err := keyInPath(c)
	if err != nil {
		return err
	}
	match, err := onlyMatch(c.Request)
	if err != nil {
		return err
	}
	patch, err := a.readPatch(c)
	if err != nil {
		return err
	}
	name := job.Name{Tenant: who(c).tenant, Key: key}
	ctx, cancel, newer := a.inTime(c.Request)
	defer cancel()
	for range maxRounds {
		present, err := a.readableJob(ctx, name, a.now())
		if err != nil {
			return err
		}
		if newer.Has(present.Version) {
			return store.ErrSuperseded
		}
		if !match.Holds(present.Version) {
			return store.ErrPrecondition
		}
		view, err := a.patch(ctx, present, patch, newer, traceOf(c.Request))
		switch {
		case err == nil:
			setETag(c, view.Version)
			return writeJSON(c, http.StatusOK, view)
		case !errors.Is(err, store.ErrPrecondition) && !errors.Is(err, store.ErrNotFound):
			return err
		}
	}
	return tooFast(name)
}

// onlyMatch reads If-Match, and refuses If-None-Match and a query.
func onlyMatch(r *http.Request) (store.Condition, error) {
	if _, err := readQuery(r); err != nil {
		return store.Condition{}, err
	}
	if err := refuseHeaders(r, "If-None-Match"); err != nil {
		return store.Condition{}, err
	}
	if match := r.Header.Values("If-Match"); len(match) > 0 {
		return matchCondition(match)
	}
	return store.Condition{}, nil
}

func (a *api) readPatch(c *gin.Context) ([]byte, error) {
	if _, err := mediaType(c.Request, patchTypes...); err != nil {
		c.Header("Accept-Patch", strings.Join(patchTypes, ", "))
		return nil, err
	}
	patch, err := a.readBody(c)
	// By the RFC, null removes the job. DELETE is for that.
	if err == nil && jsontext.Value(patch).Kind() == jsontext.KindNull {
		err = job.InvalidField("", "must be an object")
	}
	return patch, err
}

// patch changes the job if its version is still the present one. Otherwise it returns ErrPrecondition or ErrNotFound.
// An unchanged schedule keeps its occurrences.
func (a *api) patch(
	ctx context.Context, present store.JobStatus, patch []byte, newer store.Span, trace job.Trace,
) (accepted, error) {
	draft, err := present.Patch(patch)
	if err != nil {
		return accepted{}, err
	}
	if draft.Key != present.Key {
		return accepted{}, job.InvalidField("/key", fmt.Sprintf("must stay %q: a job can't change its key", present.Key))
	}
	s, err := a.check(ctx, callerOf(ctx), draft)
	if err != nil {
		return accepted{}, err
	}
	s.job.Options.Trace = trace
	if s.job.SameTimes(&present.Job) {
		o, err := a.amend(ctx, present, s.job)
		return acceptedView(&o), err
	}
	s.job.Schedule.GoOn(&present.Schedule)
	s.condition, s.newer = store.Condition{Versions: []job.Revision{present.Version}}, newer
	s.before = &present.Job
	o := a.submit(ctx, []*submission{s})[0]
	return acceptedView(&o), o.err
}

// amend changes the job except its schedule. Without any change, it writes nothing.
func (a *api) amend(ctx context.Context, present store.JobStatus, changed job.Job) (outcome, error) {
	changed.Options.Recurrence = present.Options.Recurrence
	// Read this before the change: after it, an error would hide the change.
	filter := store.OccurrenceFilter{Name: present.Name, Revision: present.Revision, Limit: defaultLimit, Count: true}
	first, pending, err := a.Store.Occurrences(ctx, filter)
	if err != nil {
		return outcome{}, err
	}
	o := outcome{
		key: present.Key, revision: present.Revision, version: present.Version, missed: present.Missed,
		live: present.Live(), occurrences: pending, paused: !present.PausedAt.IsZero(), amended: true,
	}
	o.next = nextOf(first)
	if same(&present.Job, &changed) {
		return o, nil
	}
	now := a.now()
	o.version = a.stamp()
	err = a.Store.Amend(ctx, store.Amendment{
		Name:     present.Name,
		Of:       present.Version,
		Version:  o.version,
		Callback: changed.Callback,
		Options:  changed.Options,
		Now:      now,
	})
	if err == nil && a.History != nil {
		parts := differences(&present.Job, &changed)
		a.record(ctx, &history.Entry{Kind: history.Patched, Name: present.Name, Fields: parts})
	}
	return o, err
}

// same reports whether two jobs have the same callback and options.
func same(a, b *job.Job) bool {
	return a.Callback.Type == b.Callback.Type && bytes.Equal(a.Callback.Data, b.Callback.Data) && a.Options.Same(b.Options)
}
