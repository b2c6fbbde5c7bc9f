package handlers

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/carillon-scheduler/carillon/history"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// pauseJob stops a job from firing by its schedule.
func (a *api) pauseJob(c *gin.Context) error { return a.control(c, history.Paused, a.Store.Pause) }

// resumeJob undoes a pause.
func (a *api) resumeJob(c *gin.Context) error {
	resume := func(ctx context.Context, name job.Name, version job.Revision, now time.Time) error {
		if err := a.Store.Resume(ctx, name, version, now); err != nil {
			return err
		}
		a.wakeTenant(name.Tenant, now)
		a.WakeExpander()
		return nil
	}
	return a.control(c, history.Resumed, resume)
}

// controlled is the state of a job after it was paused or resumed.
type controlled struct {
	Key      string       `json:"key"`
	Version  job.Revision `json:"version"`
	State    string       `json:"state"`
	PausedAt string       `json:"pausedAt,omitzero"`
}

// control changes one job, and answers with its new state.
func (a *api) control(
	c *gin.Context, kind history.Kind, change func(context.Context, job.Name, job.Revision, time.Time) error,
) error {
	name, err := a.commanded(c)
	if err != nil {
		return err
	}
	ctx, cancel, _ := a.inTime(c.Request)
	defer cancel()
	now := a.now()
	before, err := a.readableJob(ctx, name, now)
	if err != nil {
		return err
	}
	version := a.stamp()
	if err := change(ctx, name, version, now); err != nil {
		return err
	}
	// Again, since a job that had the state already keeps its version. A job that was cancelled since has changed before.
	status, err := store.ReadJob(ctx, a.Store, name)
	if errors.Is(err, store.ErrNotFound) {
		status, err = controlledBefore(before, kind, version, now), nil
	}
	if err != nil {
		return err
	}
	if status.Version == version {
		a.record(ctx, &history.Entry{Kind: kind, Name: name})
	}
	setETag(c, status.Version)
	return writeJSON(c, http.StatusOK, controlled{
		Key:      name.Key,
		Version:  status.Version,
		State:    statusState(status),
		PausedAt: instantText(status.PausedAt),
	})
}

// controlledBefore returns the state of a job after its pause or resume, from the state before.
func controlledBefore(s store.JobStatus, kind history.Kind, version job.Revision, now time.Time) store.JobStatus {
	if pauses := kind == history.Paused; s.PausedAt.IsZero() == pauses {
		s.Version, s.PausedAt = version, time.Time{}
		if pauses {
			s.PausedAt = now
		}
	}
	return s
}

// commanded reads a request that has a job in its path and nothing else.
func (a *api) commanded(c *gin.Context) (job.Name, error) {
	key, err := keyInPath(c)
	if err != nil {
		return job.Name{}, err
	}
	if _, err := readQuery(c.Request); err != nil {
		return job.Name{}, err
	}
	if err := refuseConditions(c.Request); err != nil {
		return job.Name{}, err
	}
	return job.Name{Tenant: who(c).tenant, Key: key}, a.refuseBody(c)
}

// triggered has the id of the triggered occurrence.
type triggered struct {
	ID         string `json:"id"`
	DeliveryID string `json:"deliveryId"`
	Timestamp  string `json:"timestamp"`
}

// triggerJob fires one more occurrence of a job now. It is independent of the schedule and of a pause.
func (a *api) triggerJob(c *gin.Context) error {
	name, err := a.commanded(c)
	if err != nil {
		return err
	}
	ctx, cancel, _ := a.inTime(c.Request)
	defer cancel()
	now := a.now()
	status, err := a.readableJob(ctx, name, now)
	if err != nil {
		return err
	}
	origin := InsideOf(c.Request.Context()).item(0)
	at, position := origin.trigger(now)
	o := job.Occurrence{
		Name:      name,
		Priority:  status.Options.Priority,
		Position:  position,
		Timestamp: at,
		DueAt:     latest(now, at),
		Own:       &job.Target{Callback: status.Callback, Options: status.Options.Alone(nil)},
	}
	o.Own.Options.Trace = traceOf(c.Request)
	o.ID = job.OccurrenceID(name, o.Revision, at, position, "")
	if !origin.Repeated || !a.hasEnded(ctx, &o) {
		if err := a.Store.Trigger(ctx, o); err != nil {
			return err
		}
		triggering := &history.Entry{Kind: history.Triggered}
		triggering.About(&o)
		a.record(ctx, triggering)
		a.Wake(o.Lane(), o.DueAt)
	}
	return writeJSON(c, http.StatusAccepted, triggered{o.ID.String(), o.DeliveryID().String(), job.FormatTime(at)})
}

// hasEnded reports whether history has the end of an occurrence, which a submission may have triggered before. If
// history can't be read, it has none: an occurrence that comes twice is better than one that never comes.
func (a *api) hasEnded(ctx context.Context, o *job.Occurrence) bool {
	reading, err := a.readHistory(ctx, history.Filter{
		Tenant: o.Name.Tenant, Key: o.Name.Key, About: o.Timestamp, Since: o.Timestamp.Add(-time.Minute), // clocks differ
		Kinds: []history.Kind{history.Delivered, history.Buried},
	})
	if err != nil {
		return false
	}
	for e, err := range reading.All(ctx) {
		if err != nil {
			return false
		}
		if e.Position == o.Position {
			return true
		}
	}
	return false
}
