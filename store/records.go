package store

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

// Records is the side of a store that keeps small documents in named collections. These are rarely written and never
// claimed: tenants' settings and replicas' heartbeats, for example. Stores do not interpret them; typed packages above
// the stores do.
type Records interface {
	// Records returns a page of a collection's live records, in the order of the bytes of their keys. A record that
	// exists throughout the listing is on exactly one page. A page with fewer records than the limit is the last one.
	Records(ctx context.Context, filter RecordFilter) ([]Record, error)

	// WriteRecords makes changes, each atomically, and returns one result for each, in order: nil; [ErrPrecondition] if
	// the change's condition does not hold; [ErrTooLarge]; or an error that wraps [ErrUnavailable]. Keys may repeat:
	// their changes are then made in order. A failed change does not prevent the others.
	//
	// Repeating the last change of a record returns nil and changes nothing. Deleting a record that does not exist
	// returns nil, whatever the condition. See [RecordChange.Judge].
	WriteRecords(ctx context.Context, changes []RecordChange) []error
}

// Record is a small document with a version.
type Record struct {
	Key string
	// Version is that of the change that wrote the record.
	Version job.Revision
	Body    []byte
	// ExpiresAt is the time from which the record no longer exists; zero if it does not expire.
	ExpiresAt time.Time
}

// Bounds of records, in bytes. The names of collections and the keys are valid UTF-8, not empty and without control
// characters.
const (
	MaxRecordKey  = 512
	MaxRecordBody = 64 << 10
)

// RecordFilter selects a page of a collection: live records whose keys have the prefix and sort after After. If Keys is
// not empty, only records with one of those keys are selected.
type RecordFilter struct {
	Collection string
	Prefix     string
	After      string
	// Keys are distinct.
	Keys []string
	// Limit is at least 1.
	Limit int
	// Now is the time at which expiry is judged: a record whose ExpiresAt is not later has expired. Expired records are
	// not listed, even before a sweep removes them.
	Now time.Time
}

// Wanted returns, in order, the Keys that have the prefix and sort after After.
func (f *RecordFilter) Wanted() []string {
	wanted := slices.DeleteFunc(slices.Clone(f.Keys), func(key string) bool {
		return key <= f.After || !strings.HasPrefix(key, f.Prefix)
	})
	slices.Sort(wanted)
	return wanted
}

// CopyRecords copies a collection from one store to another, and returns the numbers of copies and of records that
// are there already, which stay as they are. It may be repeated.
func CopyRecords(ctx context.Context, from, to Records, collection string) (copied, there int, err error) {
	now := time.Now()
	filter := RecordFilter{Collection: collection, Limit: 100, Now: now}
	for {
		page, err := from.Records(ctx, filter)
		if err != nil || len(page) == 0 {
			return copied, there, err
		}
		changes := make([]RecordChange, len(page))
		for i, r := range page {
			changes[i] = RecordChange{
				Collection: collection, Key: r.Key, Version: job.NewRevision(now), Body: r.Body, ExpiresAt: r.ExpiresAt,
				If: RecordCondition{Absent: true}, Now: now,
			}
		}
		for _, err := range to.WriteRecords(ctx, changes) {
			switch {
			case err == nil:
				copied++
			case errors.Is(err, ErrPrecondition):
				there++
			default:
				return copied, there, err
			}
		}
		filter.After = page[len(page)-1].Key
	}
}

// RecordChange writes or deletes one record.
type RecordChange struct {
	Collection string
	Key        string
	// Version is a fresh one, which no other change of the record has.
	Version job.Revision
	// Body replaces the record's body; nil deletes the record. An empty body that is not nil is valid.
	Body []byte
	// ExpiresAt is the time from which the record no longer exists; zero if it does not expire.
	ExpiresAt time.Time
	// If is the condition for the change; the zero value always holds.
	If RecordCondition
	// Now is the time at which the present record's expiry is judged. An expired record counts as absent.
	Now time.Time
}

// Check returns [ErrTooLarge] if the change exceeds the bounds.
func (c *RecordChange) Check() error {
	if len(c.Key) > MaxRecordKey || len(c.Body) > MaxRecordBody {
		return ErrTooLarge
	}
	return nil
}

// Judge decides whether to make a change, given the version of the live record, which is empty if there is none. If
// write is false, err is the result of the change; it is nil if there is nothing to do.
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

// Holds reports whether the condition holds for a record with the given version, which is empty if there is no such
// record.
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
