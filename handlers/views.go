package handlers

import (
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// The states of a job.
const (
	stateScheduled = "scheduled" // it has occurrences to fire
	statePaused    = "paused"    // it has occurrences to fire, but is paused
	stateFinished  = "finished"  // it has none
)

func jobState(live, paused bool) string {
	switch {
	case !live:
		return stateFinished
	case paused:
		return statePaused
	default:
		return stateScheduled
	}
}

func statusState(s store.JobStatus) string { return jobState(s.Live(), !s.PausedAt.IsZero()) }

// definition is a job in the form of the answer: its submission, state and outcomes. The callback is added by
// withCallback.
type definition struct {
	Key         string       `json:"key"`
	Revision    job.Revision `json:"revision"`
	Version     job.Revision `json:"version"`
	State       string       `json:"state"`
	PausedAt    string       `json:"pausedAt,omitzero"`
	job.Draft                // all fields that are not named here
	Retry       job.Retry    `json:"retry"`
	CreatedAt   string       `json:"createdAt"`
	UpdatedAt   string       `json:"updatedAt"`
	Missed      int          `json:"missed,omitzero"`
	Outcomes    *outcomes    `json:"outcomes,omitzero"`
	LastOutcome *lastOutcome `json:"lastOutcome,omitzero"`
	Retrying    *retrying    `json:"retrying,omitzero"`
	NextInstant string       `json:"nextInstant,omitzero"`
	Pending     int          `json:"pending"`
	Occurrences []occurrence `json:"occurrences"`
	NextCursor  string       `json:"nextCursor,omitzero"`
}

func jobView(s store.JobStatus, pending int) definition {
	view := definition{
		Key:         s.Key,
		Revision:    s.Revision,
		Version:     s.Version,
		State:       statusState(s),
		PausedAt:    instantText(s.PausedAt),
		Draft:       s.Draft(),
		Retry:       s.Options.Retry.WithDefaults(),
		CreatedAt:   job.FormatTime(s.CreatedAt),
		UpdatedAt:   job.FormatTime(s.UpdatedAt),
		Missed:      s.Missed,
		Pending:     pending,
		Occurrences: []occurrence{},
	}
	view.Callback = nil
	return view
}

// nextOf returns the earliest scheduled instant in a first page of occurrences; zero if there is none. Triggered and
// redriven occurrences are not scheduled.
func nextOf(first []job.Occurrence) time.Time {
	for i := range first {
		if first[i].Revision != "" {
			return first[i].Timestamp
		}
	}
	return time.Time{}
}

// part is the part of a sequence that an occurrence belongs to; empty if it belongs to none.
type part struct {
	Step       *int   `json:"step,omitzero"`
	Subscriber string `json:"subscriber,omitzero"`
}

func partView(p *job.Part) part {
	if p == nil {
		return part{}
	}
	return part{&p.Step, p.Subscriber}
}

// occurrence is a pending occurrence in the form of the answer.
type occurrence struct {
	ID         string `json:"id"`
	DeliveryID string `json:"deliveryId"`
	Timestamp  string `json:"timestamp"`
	part
	State       string `json:"state"`
	DueAt       string `json:"dueAt"`
	ScheduledAt string `json:"scheduledAt,omitzero"`
	Attempt     int    `json:"attempt"`
	LastError   string `json:"lastError,omitzero"`
}

func occurrenceView(o job.Occurrence, now time.Time) occurrence {
	state := "scheduled"
	switch {
	case o.Held(now):
		state = "claimed"
	case o.Attempt > 0:
		state = "retrying"
	}
	return occurrence{
		ID:          o.ID.String(),
		DeliveryID:  o.DeliveryID().String(),
		Timestamp:   job.FormatTime(o.Timestamp),
		part:        partView(o.Part),
		State:       state,
		DueAt:       job.FormatTime(o.DueAt),
		ScheduledAt: instantText(o.ScheduledAt),
		Attempt:     o.Attempt,
		LastError:   o.LastError,
	}
}

// summary is a job in a list.
type summary struct {
	Key          string       `json:"key"`
	Revision     job.Revision `json:"revision"`
	Version      job.Revision `json:"version"`
	State        string       `json:"state"`
	NextInstant  string       `json:"nextInstant,omitzero"`
	CallbackType string       `json:"callbackType"`
	CreatedAt    string       `json:"createdAt"`
	UpdatedAt    string       `json:"updatedAt"`
}

func summaryView(s store.JobStatus) summary {
	return summary{
		Key:          s.Key,
		Revision:     s.Revision,
		Version:      s.Version,
		State:        statusState(s),
		NextInstant:  instantText(s.Next),
		CallbackType: s.Callback.Type,
		CreatedAt:    job.FormatTime(s.CreatedAt),
		UpdatedAt:    job.FormatTime(s.UpdatedAt),
	}
}

// accepted is the answer to an accepted submission.
type accepted struct {
	Key         string       `json:"key"`
	Revision    job.Revision `json:"revision"`
	Version     job.Revision `json:"version"`
	State       string       `json:"state"`
	Occurrences int          `json:"occurrences"`
	Skipped     int          `json:"skipped"`
	Settled     int          `json:"settled,omitzero"`
	Missed      int          `json:"missed,omitzero"`
	NextInstant string       `json:"nextInstant,omitzero"`
	InFlight    *int         `json:"inFlight,omitzero"`
	Crowded     []crowded    `json:"crowded,omitempty"`
}

func acceptedView(o *outcome) accepted {
	v := accepted{
		Key:         o.key,
		Revision:    o.revision,
		Version:     o.version,
		State:       jobState(o.live, o.paused),
		Occurrences: o.occurrences,
		Skipped:     o.skipped,
		Settled:     o.settled,
		Missed:      o.missed,
		NextInstant: instantText(o.next),
		Crowded:     crowdedViews(o.crowded),
	}
	if !o.created && !o.amended {
		inFlight := o.inFlight // a copy, so that the outcome stays on the stack
		v.InFlight = &inFlight
	}
	return v
}
