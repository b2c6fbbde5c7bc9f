package postgres

import (
	"bytes"
	"math"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Columns in the order in which jobRow and occurrenceRow read them. An occurrence's columns come after its job's name,
// which only a standalone occurrence stores itself.
const (
	jobColumnsSQL = `j.tenant, j.key, j.revision, j.version, j.created_at, j.updated_at, j.expires_at, j.paused_at,
		j.cursor_at, j.expand_at, j.missed, j.planned, j.failed, j.trouble, j.callback_type, ` + nextSQL

	occurrenceColumnsSQL = `o.lane, o.revision, o.id, o.position, o.step, o.subscriber, o.timestamp, o.due_at,
		o.scheduled_at, o.token, o.attempt, o.last_error, o.failed_at`

	// The id of a job's first pending occurrence.
	nextSQL = `(SELECT o.id FROM carillon.occurrences o WHERE o.revision = j.revision ORDER BY o.id LIMIT 1)`

	liveSQL = `(j.expand_at IS NOT NULL OR j.paused_at IS NOT NULL AND j.cursor_at IS NOT NULL
		OR EXISTS (SELECT 1 FROM carillon.occurrences o WHERE o.revision = j.revision))`
)

// jobRow is the destination of a row of jobColumnsSQL.
type jobRow struct {
	status                    store.JobStatus
	revision                  pgtype.UUID
	created, updated, expires int64
	paused, cursor, expand    *int64
	next                      pgtype.UUID
	trouble                   string
}

func (r *jobRow) fields() []any {
	s := &r.status
	return []any{&s.Tenant, &s.Key, &r.revision, &s.Version, &r.created, &r.updated, &r.expires, &r.paused, &r.cursor,
		&r.expand, &s.Missed, &s.Planned, &s.Failed, &r.trouble, &s.Callback.Type, &r.next}
}

// scan reads jobColumnsSQL and the further selected columns.
func (r *jobRow) scan(row pgx.Row, more ...any) (store.JobStatus, error) {
	*r = jobRow{}
	err := row.Scan(append(r.fields(), more...)...)
	s := &r.status
	s.Revision = revisionFrom(r.revision)
	s.CreatedAt, s.UpdatedAt = time.UnixMilli(r.created).UTC(), time.UnixMilli(r.updated).UTC()
	s.ExpiresAt = time.UnixMilli(r.expires).UTC()
	s.PausedAt, s.Cursor, s.ExpandAt = fromMillis(r.paused), fromMillis(r.cursor), fromMillis(r.expand)
	s.Next = job.InstantOf(r.next.Bytes)
	if err == nil {
		s.Trouble, err = job.DecodeTrouble(r.trouble)
	}
	return r.status, err
}

// scanListed reads jobColumnsSQL and, for a whole job, the callback's data, the options and the schedule.
func (r *jobRow) scanListed(row pgx.Row, whole bool) (status store.JobStatus, err error) {
	if !whole {
		return r.scan(row)
	}
	var data, options, schedule []byte
	if status, err = r.scan(row, &data, &options, &schedule); err != nil {
		return status, err
	}
	status.Callback.Data = data
	if status.Options, err = job.DecodeOptions(options); err != nil {
		return status, err
	}
	status.Schedule, err = job.DecodeSchedule(schedule)
	return status, err
}

// occurrenceRow is the destination of a row of a name and occurrenceColumnsSQL.
type occurrenceRow struct {
	tenant, key, lane            string
	revision                     pgtype.UUID
	id                           [16]byte
	position, attempt            int32
	step                         *int32
	subscriber, token, lastError *string
	timestamp                    int64
	due, scheduled, failed       *int64
}

// scan reads a name, occurrenceColumnsSQL and the further selected columns.
func (r *occurrenceRow) scan(row pgx.Row, more ...any) (job.Occurrence, error) {
	*r = occurrenceRow{}
	err := row.Scan(append([]any{&r.tenant, &r.key, &r.lane, &r.revision, &r.id, &r.position, &r.step, &r.subscriber,
		&r.timestamp, &r.due, &r.scheduled, &r.token, &r.attempt, &r.lastError, &r.failed}, more...)...)
	o := job.Occurrence{
		ID:          r.id,
		Name:        job.Name{Tenant: r.tenant, Key: r.key},
		Priority:    priorityIn(r.lane),
		Revision:    revisionFrom(r.revision),
		Position:    int(r.position),
		Timestamp:   time.UnixMilli(r.timestamp).UTC(),
		DueAt:       fromMillis(r.due),
		ScheduledAt: fromMillis(r.scheduled),
		Token:       orEmpty(r.token),
		Attempt:     int(r.attempt),
		LastError:   orEmpty(r.lastError),
		FailedAt:    fromMillis(r.failed),
	}
	if r.step != nil {
		o.Part = &job.Part{Step: int(*r.step), Subscriber: orEmpty(r.subscriber)}
	}
	return o, err
}

// hintOf returns the hint for a row's physical position. It is never zero, since positions in a page begin at one.
func hintOf(at pgtype.TID) store.Hint {
	return store.Hint(at.BlockNumber)<<16 | store.Hint(at.OffsetNumber)
}

// positionOf is the inverse of [hintOf].
func positionOf(h store.Hint) pgtype.TID {
	return pgtype.TID{BlockNumber: uint32(h >> 16 & math.MaxUint32), OffsetNumber: uint16(h & math.MaxUint16), Valid: true}
}

// own is the revision under which standalone occurrences and dead letters are stored. No job has it, since its time is
// the last possible one.
var own = pgtype.UUID{Bytes: [16]byte(bytes.Repeat([]byte{0xFF}, 16)), Valid: true}

// revisionOf returns a job's revision as it is stored. An empty or invalid one gives NULL, which equals none.
func revisionOf(r job.Revision) pgtype.UUID {
	id, err := job.ParseID(string(r))
	return pgtype.UUID{Bytes: id, Valid: err == nil}
}

// keptUnder returns the revision under which an occurrence is stored. An empty revision stands for a standalone
// occurrence.
func keptUnder(r job.Revision) pgtype.UUID {
	if r == "" {
		return own
	}
	return revisionOf(r)
}

// compareKept orders occurrences by their primary key, which is the order of row locks.
func compareKept(aRevision, bRevision job.Revision, aID, bID job.ID) int {
	switch {
	case aRevision == bRevision:
		return aID.Compare(bID)
	case aRevision == "":
		return 1
	case bRevision == "":
		return -1
	default:
		return strings.Compare(string(aRevision), string(bRevision))
	}
}

// revisionFrom returns an occurrence's or a job's revision, from its stored form.
func revisionFrom(u pgtype.UUID) job.Revision {
	if u == own {
		return ""
	}
	return job.Revision(job.ID(u.Bytes).String())
}

// priorityIn returns the priority of a lane's occurrences.
func priorityIn(lane string) job.Priority {
	l, err := job.ParseLane(lane)
	if err != nil {
		return job.PriorityDefault // can't happen: this store wrote the lane
	}
	return l.Priority
}

func orEmpty(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// targetReader decodes the targets of many rows. Consecutive rows are often of one job.
type targetReader struct {
	encoded []byte
	options job.Options
	err     error
}

// read decodes a target from its columns. An error means that the options can't be decoded; the callback is valid then.
func (r *targetReader) read(callbackType *string, callbackData, options []byte) (job.Target, error) {
	if !bytes.Equal(options, r.encoded) || options == nil {
		r.encoded = options
		r.options, r.err = job.DecodeOptions(options)
	}
	return job.Target{Callback: job.Callback{Type: orEmpty(callbackType), Data: callbackData}, Options: r.options}, r.err
}
