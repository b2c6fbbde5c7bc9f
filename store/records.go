package store

import (
	"context"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

// Records is the side of a store that keeps whatever is rarely written and never claimed: small documents in named
// collections, such as tenants' settings and replicas' heartbeats. Typed packages above the stores say what they mean;
// no store knows.
type Records interface {
	// Records lists live records of a collection in the order of the bytes of their keys. A record that exists throughout
	// is on exactly one page.
	Records(ctx context.Context, filter RecordFilter) ([]Record, error)

	// WriteRecords makes changes, each atomically, and answers for each in order: nil, [ErrPrecondition] if its condition
	// does not hold, [ErrTooLarge], or an error that wraps [ErrUnavailable]. Keys may repeat: their changes are then made
	// one after the other. Making a change again that was made is nil too, and changes nothing; a deletion of what is not
	// there is nil, whatever its condition.
	WriteRecords(ctx context.Context, changes []RecordChange) []error
}

// Record is a small document with a version.
type Record struct {
	Key string
	// Version is that of the change which wrote it.
	Version job.Revision
	Body    []byte
	// ExpiresAt is when it ceases to exist; zero if it does not by itself.
	ExpiresAt time.Time
}

// Bounds of records, in bytes. Collections and keys are valid UTF-8 without control characters.
const (
	MaxRecordKey  = 512
	MaxRecordBody = 64 << 10
)

// RecordFilter selects a page of a collection: the records whose keys have the prefix and sort after After, and, if there
// are Keys, only those that have one of them.
type RecordFilter struct {
	Collection string
	Prefix     string
	After      string
	// Keys are distinct.
	Keys []string
	// Limit is at least 1.
	Limit int
	// Now decides which records have expired: those whose ExpiresAt is not later. They are not listed, whether or not a
	// sweep has removed them.
	Now time.Time
}

// RecordChange writes or deletes one record.
type RecordChange struct {
	Collection string
	Key        string
	// Version is fresh: no other change of the record has it.
	Version job.Revision
	// Body replaces the record's; nil deletes the record.
	Body      []byte
	ExpiresAt time.Time
	// If is the condition under which the change is made; the zero value always holds.
	If RecordCondition
	// Now decides whether the present record has expired and so counts as absent.
	Now time.Time
}

// RecordCondition is what must be so of the present record. At most one field is set.
type RecordCondition struct {
	Absent  bool         // there must be none
	Version job.Revision // there must be one with this version
}

// Holds tells whether the condition holds of a record's present version; empty if there is no such record.
func (c RecordCondition) Holds(present job.Revision) bool {
	switch {
	case c.Absent:
		return present == ""
	case c.Version != "":
		return present == c.Version
	default:
		return true
	}
}
