// Package history records every attempt at a delivery, and every change of a job. [Writer] takes entries without
// delaying the work; [Reader] finds them, also those of deleted jobs.
//
// # How it is kept
//
// Entries are written in batches, as records of a store. There are three collections:
//
//   - history-recent has the entries of the run that a replica is writing, as they came, a few hundred in a record.
//   - history has the entries of runs that are complete, sorted by job, several hundred in a record: a segment.
//   - history-runs has one record for each complete run, with the time that the run covers and the job at which each of
//     its segments begins.
//
// A run is about an hour of one replica, or 65,536 entries if they come sooner. When a run is complete, its writer
// sorts the entries, which it still has in memory, writes the segments and then the record of the run, and deletes the
// recent records. So a reader of one job reads the runs' records, one segment of each run, and the recent records;
// nothing is read back to be merged. A replica that dies leaves its recent records in the store. All records expire by
// themselves.
package history

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

// The collections of records.
const (
	recentCollection  = "history-recent"
	segmentCollection = "history"
	runCollection     = "history-runs"
)

// Kind is the outcome or the change that an entry records.
type Kind uint8

// The outcomes of attempts, and the changes of jobs. Their numbers are stored, and must not change.
const (
	// Delivered is a successful attempt.
	Delivered Kind = iota
	// Retried is a failed attempt that counts. Another follows.
	Retried
	// Released is a failed attempt that does not count, since the fault was not the job's. Another follows.
	Released
	// Buried is the last attempt: the occurrence is now a dead letter. It may have been buried without being sent.
	Buried
	// Missed is an occurrence without an attempt, dropped by its job's deadline or catch-up rule.
	Missed

	// Created is a new job.
	Created
	// Replaced is a submission in place of an existing job.
	Replaced
	// Patched is a change of a job's callback or options, but not of its schedule.
	Patched
	// Paused is the pause of a job.
	Paused
	// Resumed is the end of a job's pause.
	Resumed
	// Triggered is an occurrence that a client requested, beside the schedule.
	Triggered
	// Cancelled is the deletion of a job.
	Cancelled
	// Redriven is a redrive: a dead letter became due again.
	Redriven
	// Discarded is the deletion of a dead letter by a client.
	Discarded

	// Unknown is an attempt without a known outcome: its replica died, stalled, or lost the store for longer than the
	// lease. The delivery may have succeeded. Another attempt follows.
	Unknown

	kinds // the number of kinds
)

var kindNames = [kinds]string{
	Delivered: "delivered", Retried: "retried", Released: "released", Buried: "buried", Missed: "missed",
	Created: "created", Replaced: "replaced", Patched: "patched", Paused: "paused", Resumed: "resumed",
	Triggered: "triggered", Cancelled: "cancelled", Redriven: "redriven", Discarded: "discarded", Unknown: "unknown",
}

// String returns the kind's name in the API.
func (k Kind) String() string {
	if k >= kinds {
		return fmt.Sprintf("kind %d", uint8(k))
	}
	return kindNames[k]
}

// Attempt reports whether the kind is the outcome of an occurrence, not a change of a job.
func (k Kind) Attempt() bool { return k <= Missed || k == Unknown }

// Kinds returns all kinds.
func Kinds() []Kind {
	all := make([]Kind, kinds)
	for i := range all {
		all[i] = Kind(i)
	}
	return all
}

// MaxError bounds the bytes of an entry's Error. Longer texts are cut.
const MaxError = 200

// Entry is one line of history. A Reader returns times in whole milliseconds.
type Entry struct {
	Name job.Name
	Kind Kind
	// At is the time at which the attempt was sent, the change was made, the unsent occurrence was given up, or the
	// unknown attempt was noticed.
	At time.Time

	// Instant, Position and Subscriber identify the occurrence that the entry is about, see [Entry.About]. Instant is zero
	// if it is about none.
	Instant    time.Time
	Position   int
	Subscriber string

	// Count is the number of instants that a missed entry stands for, if it is more than one. It is not stored; Error
	// contains it.
	Count int

	// The following fields are of attempts. Attempt counts from 1.
	Attempt int
	// Claimed is the time of the claim; zero if it is unknown.
	Claimed time.Time
	// Took is the time from At to the answer, stored in units of 100 µs; zero if nothing was sent.
	Took time.Duration
	// Destination is the callback's, as [callbacks.Registry] names it.
	Destination string
	// Status is the status by which the receiver refused the delivery; zero if there was none.
	Status int
	// Error is the cause of a failure, unless Status says it. It is cut to MaxError when it is stored.
	Error string
	// Next is the due time of the next attempt; zero if there is none.
	Next time.Time
	// Replica is the id of the replica that made the attempt, or noticed an unknown one.
	Replica string
	// Trace is the id of the attempt's trace; zero if there is none.
	Trace [16]byte

	// The following fields are of changes. By is the id of the principal, and Request that of the request; either may be
	// unknown.
	By, Request string
	// From is the replaced revision.
	From job.Revision
	// Fields are the names of the parts of the job that changed.
	Fields []string
}

// About sets the job and the occurrence that the entry is about.
func (e *Entry) About(o *job.Occurrence) {
	e.Name, e.Instant, e.Position = o.Name, o.Timestamp, o.Position
	if o.Part != nil {
		e.Subscriber = o.Part.Subscriber
	}
}

// DeliveryID returns the id of the occurrence's delivery; zero if the entry is about no occurrence. It is computed and
// not stored, since it does not compress.
func (e *Entry) DeliveryID() job.ID {
	if e.Instant.IsZero() {
		return job.ID{}
	}
	return job.DeliveryID(e.Name, e.Instant, e.Position, e.Subscriber)
}

// Place is the place of an entry among all, which are in order of time. It is a cursor: see [Filter.Before].
type Place struct {
	At         time.Time
	Name       job.Name
	Instant    time.Time
	Position   int
	Subscriber string
	Attempt    int
	Kind       Kind
	Request    string
}

// Place returns the entry's place.
func (e *Entry) Place() Place {
	return Place{e.At, e.Name, e.Instant, e.Position, e.Subscriber, e.Attempt, e.Kind, e.Request}
}

// Compare orders places: the older first.
func (p Place) Compare(q Place) int {
	return cmp.Or(p.At.Compare(q.At),
		strings.Compare(p.Name.Tenant, q.Name.Tenant), strings.Compare(p.Name.Key, q.Name.Key),
		p.Instant.Compare(q.Instant), cmp.Compare(p.Position, q.Position), strings.Compare(p.Subscriber, q.Subscriber),
		cmp.Compare(p.Attempt, q.Attempt), cmp.Compare(p.Kind, q.Kind), strings.Compare(p.Request, q.Request))
}

// class divides entries into segments: deliveries have segments of their own. They are most of the entries, and readers
// that want others need not read them.
type class uint8

const (
	deliveries class = iota
	others
	classes
)

func classOf(k Kind) class {
	if k == Delivered {
		return deliveries
	}
	return others
}

// CutError cuts an error's text to MaxError bytes.
func CutError(text string) string {
	if len(text) > MaxError {
		return strings.ToValidUTF8(text[:MaxError-len("…")], "") + "…"
	}
	return text
}

// Gap is a time within which entries may be missing. The zero value is none.
type Gap struct {
	From, Until time.Time
}

// none reports whether there is no gap.
func (g Gap) none() bool { return g.From.IsZero() }

// with returns the gap that covers both.
func (g Gap) with(h Gap) Gap {
	switch {
	case g.none():
		return h
	case h.none():
		return g
	}
	if h.From.Before(g.From) {
		g.From = h.From
	}
	if h.Until.After(g.Until) {
		g.Until = h.Until
	}
	return g
}

// sortKey returns a text by which jobs sort in a run: by tenant, then by key. Neither contains a NUL.
func sortKey(n job.Name) string { return n.Tenant + "\x00" + n.Key }

// sortByJob sorts entries in the order of segments: by job, and the newest of a job first.
func sortByJob(rows []*Entry) {
	slices.SortFunc(rows, func(a, b *Entry) int {
		if a.Name.Tenant != b.Name.Tenant { // cmp.Or would compute all keys first
			return strings.Compare(a.Name.Tenant, b.Name.Tenant)
		}
		if a.Name.Key != b.Name.Key {
			return strings.Compare(a.Name.Key, b.Name.Key)
		}
		return b.At.Compare(a.At)
	})
}
