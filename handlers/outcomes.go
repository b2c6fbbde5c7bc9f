package handlers

import (
	"context"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// outcomes count a job's occurrences by their ends. An occurrence that is settled during the count may be missing, or
// may be counted as delivered.
type outcomes struct {
	Delivered int `json:"delivered"`
	Failed    int `json:"failed"`
	Missed    int `json:"missed"`
}

// lastOutcome is the outcome of the latest instant that has ended.
type lastOutcome struct {
	Outcome string `json:"outcome"`
	Instant string `json:"instant"`
	At      string `json:"at,omitzero"`
	Error   string `json:"error,omitzero"`
}

// retrying is the last failed attempt at the latest instant that is tried again.
type retrying struct {
	Instant     string `json:"instant"`
	Attempt     int    `json:"attempt"`
	Error       string `json:"error"`
	NextAttempt string `json:"nextAttempt,omitzero"`
}

// firstPage is a page of a job's pending occurrences.
type firstPage struct {
	occurrences []job.Occurrence
	known       bool // the first page was read; else the other fields mean nothing
	whole       bool // it has all pending occurrences
}

// countOwn counts the pending occurrences of a name that are triggered or redriven, and so are not of its job's
// schedule.
func (a *api) countOwn(ctx context.Context, name job.Name, first firstPage) (n int, err error) {
	if !first.known || !first.whole {
		_, n, err = a.Store.Occurrences(ctx, store.OccurrenceFilter{Name: name, Limit: 1, Count: true})
		return n, err
	}
	for i := range first.occurrences {
		if first.occurrences[i].Revision == "" {
			n++
		}
	}
	return n, nil
}

// fallenDue returns the pending instants of the job's schedule up to now; ok is false if the page does not have all of
// them.
func (p *firstPage) fallenDue(now time.Time) (instants []time.Time, ok bool) {
	for i := range p.occurrences {
		o := &p.occurrences[i]
		if o.Timestamp.After(now) {
			return instants, p.known
		}
		if o.Revision != "" {
			instants = append(instants, o.Timestamp)
		}
	}
	return instants, p.known && p.whole
}

// tellOutcomes adds the outcomes of the job's occurrences, as far as they are known. Pending is the number of pending
// ones.
func (d *definition) tellOutcomes(j *job.Job, pending int, first firstPage, now time.Time) {
	if j.Planned == 0 {
		return
	}
	d.Outcomes = &outcomes{Delivered: max(0, j.Planned-pending-j.Failed-j.Missed), Failed: j.Failed, Missed: j.Missed}
	due, known := first.fallenDue(now)
	if !known {
		return
	}
	var delivered time.Time
	if d.Outcomes.Delivered > 0 {
		delivered, _ = j.Settled(now, due)
	}
	switch t := j.Trouble; {
	case !t.IsZero() && !delivered.After(t.Instant):
		kind := "failed"
		if t.Missed {
			kind = "missed"
		}
		d.LastOutcome = &lastOutcome{Outcome: kind, Instant: job.FormatTime(t.Instant), At: instantText(t.At), Error: t.Error}
	case !delivered.IsZero():
		d.LastOutcome = &lastOutcome{Outcome: "delivered", Instant: job.FormatTime(delivered)}
	}
}

// tellRetrying adds the latest of a page of pending occurrences whose last attempt has failed. The next one comes
// before the due time, by the early window.
func (d *definition) tellRetrying(page []job.Occurrence, now time.Time, early time.Duration) {
	for i := range slices.Backward(page) {
		o := &page[i]
		failed, next := o.Attempt, job.FormatTime(o.DueAt.Add(-early))
		if o.Held(now) { // the next attempt is under way, and the error is that of the one before
			failed, next = failed-1, ""
		}
		if failed == 0 || o.LastError == "" {
			continue
		}
		d.Retrying = &retrying{job.FormatTime(o.Timestamp), failed, o.LastError, next}
		return
	}
}
