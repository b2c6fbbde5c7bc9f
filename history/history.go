// Package history keeps what happened: every attempt at a delivery, and every change of a job. [Writer] takes entries
// beside the work and never delays it; [Reader] finds them again, also those of jobs that are gone.
//
// # How it is kept
//
// Entries are written in batches, as records of a store. There are three collections:
//
//   - history-recent has the entries of the run that a replica is writing, as they came, a few hundred in a record.
//   - history has the entries of runs that are complete, sorted by job, several hundred in a record: a segment.
//   - history-runs has one record for each complete run. It tells the time that the run covers, and at which job each
//     of its segments begins.
//
// A run is about an hour of one replica, or 65,536 entries if they come sooner. When it is complete, its writer sorts
// what it has kept of it in memory, writes the segments, then the record of the run, and then deletes the recent
// records. So a reader of one job reads the runs' records, one segment of each run, and what is recent; nothing is ever
// read back to be merged. A replica that dies leaves its recent records as they are. All records expire by themselves.
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

// Kind is what an entry tells of.
type Kind uint8

// The outcomes of attempts, and the changes of jobs. Their numbers are stored, so they stay.
const (
	// Delivered is an attempt that the receiver has taken.
	Delivered Kind = iota
	// Retried is one that failed, and counts; another follows.
	Retried
	// Released is one that failed and does not count: the fault was not the job's. Another follows.
	Released
	// Buried is the last one: the occurrence is a dead letter. It may have been buried without being sent.
	Buried
	// Missed is none: the occurrence came too late by its job's deadline or catch-up rule, and was dropped.
	Missed

	// Created is a job that was submitted and was not there before.
	Created
	// Replaced is a job that was submitted in place of another.
	Replaced
	// Patched is a job whose callback or options were changed, and whose schedule was left alone.
	Patched
	// Paused is a job that was paused.
	Paused
	// Resumed is a job that was resumed.
	Resumed
	// Triggered is an occurrence that was asked for beside the schedule.
	Triggered
	// Cancelled is a job that was deleted.
	Cancelled
	// Redriven is a dead letter that was made due again.
	Redriven
	// Discarded is a dead letter that was deleted by a client.
	Discarded

	// Unknown is an attempt whose replica has not told its end: it died, it stood still, or it lost the store for longer
	// than the lease. The receiver may have taken it. Another attempt follows.
	Unknown

	kinds // how many there are
)

var kindNames = [kinds]string{
	Delivered: "delivered", Retried: "retried", Released: "released", Buried: "buried", Missed: "missed",
	Created: "created", Replaced: "replaced", Patched: "patched", Paused: "paused", Resumed: "resumed",
	Triggered: "triggered", Cancelled: "cancelled", Redriven: "redriven", Discarded: "discarded", Unknown: "unknown",
}

// String is the kind's name in the API.
func (k Kind) String() string {
	if k >= kinds {
		return fmt.Sprintf("kind %d", uint8(k))
	}
	return kindNames[k]
}

// Attempt tells whether it is the outcome of an occurrence, not a change of a job.
func (k Kind) Attempt() bool { return k <= Missed || k == Unknown }

// Kinds are all kinds.
func Kinds() []Kind {
	all := make([]Kind, kinds)
	for i := range all {
		all[i] = Kind(i)
	}
	return all
}

// MaxError bounds the bytes of an entry's Error. Longer ones are cut.
const MaxError = 200

// Entry is one line of history. Those that are read have times of whole milliseconds.
type Entry struct {
	Name job.Name
	Kind Kind
	// At is when the attempt was sent; when the change was made, or the occurrence was given up unsent; or when an unknown
	// attempt was noticed.
	At time.Time

	// Instant, Position and Subscriber tell which occurrence it is about, see [Entry.About]. Instant is zero if it is
	// about none.
	Instant    time.Time
	Position   int
	Subscriber string

	// Count is the number of instants that a missed entry stands for, if it is more than one. It is not kept: Error has
	// it.
	Count int

	// The rest is of attempts. Attempt counts from 1.
	Attempt int
	// Claimed is when the replica claimed the occurrence; zero if that is unknown.
	Claimed time.Time
	// Took is how long it was from At to the answer, in steps of 100 µs; zero if nothing was sent.
	Took time.Duration
	// Destination is the callback's, as [callbacks.Registry] names it.
	Destination string
	// Status is the one that the receiver refused with; zero if it answered none, or took the delivery.
	Status int
	// Error is why it failed, if no status tells that. Longer ones than MaxError are cut when they are kept.
	Error string
	// Next is when the next attempt is due; zero if there is none.
	Next time.Time
	// Replica is the id of the one that made the attempt, or noticed an unknown one.
	Replica string
	// Trace is the id of the attempt's trace; zero if there is none.
	Trace [16]byte

	// The rest is of changes. By is the id of who asked, and Request the request's; either may be unknown.
	By, Request string
	// From is the revision that was replaced.
	From job.Revision
	// Fields are the parts of the job that differ from what was replaced or patched.
	Fields []string
}

// About sets the job and the occurrence that the entry is about.
func (e *Entry) About(o *job.Occurrence) {
	e.Name, e.Instant, e.Position = o.Name, o.Timestamp, o.Position
	if o.Part != nil {
		e.Subscriber = o.Part.Subscriber
	}
}

// DeliveryID is the id of the occurrence's delivery. It is computed: it is long, and does not compress. It is zero if
// the entry is about no occurrence.
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

// Place is the entry's.
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

// class tells the entries apart that are kept in segments of their own: what was delivered is most of all, and those
// who look for anything else need not read it.
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

// CutError is an error's text as it is kept: at most MaxError bytes.
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

// none tells whether nothing was dropped.
func (g Gap) none() bool { return g.From.IsZero() }

// with is the gap that covers both.
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

// sortKey is a job's place among all in a run: by tenant, then by key. Neither has a NUL.
func sortKey(n job.Name) string { return n.Tenant + "\x00" + n.Key }

// sortByJob sorts entries as segments have them: by job, the newest of one job first.
func sortByJob(rows []*Entry) {
	slices.SortFunc(rows, func(a, b *Entry) int {
		if a.Name.Tenant != b.Name.Tenant { // all that is compared at once would be computed first
			return strings.Compare(a.Name.Tenant, b.Name.Tenant)
		}
		if a.Name.Key != b.Name.Key {
			return strings.Compare(a.Name.Key, b.Name.Key)
		}
		return b.At.Compare(a.At)
	})
}
