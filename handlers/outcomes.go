package handlers

import (
	"context"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// outcomes count how a job's occurrences have ended. One that is settled during the count may be in none of them, or be
// taken for delivered.
type outcomes struct {
	Delivered int `json:"delivered"`
	Failed    int `json:"failed"`
	Missed    int `json:"missed"`
}

// lastOutcome is how the latest instant ended that has.
type lastOutcome struct {
	Outcome string `json:"outcome"`
	Instant string `json:"instant"`
	At      string `json:"at,omitzero"`
	Error   string `json:"error,omitzero"`
}

// firstPage is a page of a job's pending occurrences.
type firstPage struct {
	occurrences []job.Occurrence
	known       bool // it is the first one; else nothing is known of that
	whole       bool // it has all of them
}

// countOwn counts the pending occurrences of a name that stand on their own, and are none of its job's.
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

// late are the instants up to now that are pending of the job's schedule; ok is false if the page does not tell all of
// them.
func (p *firstPage) late(now time.Time) (instants []time.Time, ok bool) {
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

// tellOutcomes adds how the job's occurrences have ended, as far as that is known. So many of them are pending.
func (d *definition) tellOutcomes(j *job.Job, pending int, first firstPage, now time.Time) {
	if j.Planned == 0 {
		return
	}
	d.Outcomes = &outcomes{Delivered: max(0, j.Planned-pending-j.Failed-j.Missed), Failed: j.Failed, Missed: j.Missed}
	late, known := first.late(now)
	if !known {
		return
	}
	var delivered time.Time
	if d.Outcomes.Delivered > 0 {
		delivered, _ = j.Settled(now, late)
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
