package store

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

// Records is the side of a store that keeps small documents which are rarely written and never claimed, in named
// collections: tenants' settings and replicas' heartbeats, for example. Stores do not interpret them; typed packages
// above the stores do.
type Records interface {
	// Records lists live records of a collection in the order of the bytes of their keys. A record that exists throughout
	// is on exactly one page. A page with fewer records than the limit is the last one.
	Records(ctx context.Context, filter RecordFilter) ([]Record, error)

	// WriteRecords makes changes, each atomically, and answers for each in order: nil, [ErrPrecondition] if its condition
	// does not hold, [ErrTooLarge], or an error that wraps [ErrUnavailable]. Keys may repeat: their changes are then made
	// one after the other. A failed change does not keep the others from being made.
	//
	// Repeating the last change of a record answers nil and changes nothing. Deleting a record that does not exist
	// answers nil, whatever the condition. See [RecordChange.Judge].
	WriteRecords(ctx context.Context, changes []RecordChange) []error
}

// Record is a small document with a version.
type Record struct {
	Key string
	// Version is that of the change which wrote the record.
	Version job.Revision
	Body    []byte
	// ExpiresAt is when the record ceases to exist; zero if it does not expire.
	ExpiresAt time.Time
}

// Bounds of records, in bytes. The names of collections and the keys are valid UTF-8, not empty and without control
// characters.
const (
	MaxRecordKey  = 512
	MaxRecordBody = 64 << 10
)

// RecordFilter selects a page of a collection: the live records whose keys have the prefix and sort after After, and,
// if Keys is not empty, only those that have one of its keys.
type RecordFilter struct {
	Collection string
	Prefix     string
	After      string
	// Keys are distinct.
	Keys []string
	// Limit is at least 1.
	Limit int
	// Now decides which records have expired: those whose ExpiresAt is not later. They are not listed, even if no sweep
	// has removed them yet.
	Now time.Time
}

// Wanted are those among Keys that have the prefix and sort after After, in order.
func (f *RecordFilter) Wanted() []string {
	wanted := slices.DeleteFunc(slices.Clone(f.Keys), func(key string) bool {
		return key <= f.After || !strings.HasPrefix(key, f.Prefix)
	})
	slices.Sort(wanted)
	return wanted
}

// RecordChange writes or deletes one record.
type RecordChange struct {
	Collection string
	Key        string
	// Version is fresh: no other change of the record has it.
	Version job.Revision
	// Body replaces the record's body; nil deletes the record. A record may be empty.
	Body []byte
	// ExpiresAt is when the record ceases to exist; zero if it does not expire.
	ExpiresAt time.Time
	// If is the condition under which the change is made; the zero value always holds.
	If RecordCondition
	// Now decides whether the present record has expired and so counts as absent.
	Now time.Time
}

// Check answers [ErrTooLarge] to a change that exceeds the bounds.
func (c *RecordChange) Check() error {
	if len(c.Key) > MaxRecordKey || len(c.Body) > MaxRecordBody {
		return ErrTooLarge
	}
	return nil
}

// Judge decides whether a change is made, given the version of the present record; empty if there is none that is live.
// If the change is not made, err is the answer to it: nil if there is nothing to do.
func (c *RecordChange) Judge(present job.Revision) (write bool, err error) {
	switch {
	case c.Check() != nil:
		return false, c.Check()
	case present == c.Version, present == "" && c.Body == nil:
		return false, nil
	case !c.If.Holds(present):
		return false, ErrPrecondition
	default:
		return true, nil
	}
}

// RecordCondition is a condition on the present record. At most one field is set.
type RecordCondition struct {
	Absent  bool         // there must be no record
	Version job.Revision // there must be a record of this version
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
