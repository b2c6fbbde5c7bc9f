package postgres

import (
	"bytes"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Columns in the order that jobRow and occurrenceRow read them.
const (
	jobColumnsSQL = `j.tenant, j.key, j.revision, j.version, j.created_at, j.updated_at, j.expires_at, j.paused_at, j.cursor_at,
		j.expand_at, j.missed, j.callback_type, ` + liveSQL

	occurrenceColumnsSQL = `o.id, o.tenant, o.key, o.revision, o.position, o.step, o.subscriber, o.timestamp, o.due_at,
		o.scheduled_at, o.token, o.attempt, o.last_error, o.failed_at`

	liveSQL = `(j.expand_at IS NOT NULL OR j.paused_at IS NOT NULL AND j.cursor_at IS NOT NULL
		OR EXISTS (SELECT 1 FROM carillon.occurrences o WHERE o.revision = j.revision AND o.revision <> ''))`
)

// jobRow is where a row of jobColumnsSQL is read into.
type jobRow struct {
	status                    store.JobStatus
	created, updated, expires int64
	paused, cursor, expand    *int64
}

func (r *jobRow) fields() []any {
	s := &r.status
	return []any{&s.Tenant, &s.Key, &s.Revision, &s.Version, &r.created, &r.updated, &r.expires, &r.paused, &r.cursor,
		&r.expand, &s.Missed, &s.Callback.Type, &s.Live}
}

// scan reads jobColumnsSQL and whatever more was selected.
func (r *jobRow) scan(row pgx.Row, more ...any) (store.JobStatus, error) {
	*r = jobRow{}
	err := row.Scan(append(r.fields(), more...)...)
	s := &r.status
	s.CreatedAt, s.UpdatedAt = time.UnixMilli(r.created).UTC(), time.UnixMilli(r.updated).UTC()
	s.ExpiresAt = time.UnixMilli(r.expires).UTC()
	s.PausedAt, s.Cursor, s.ExpandAt = fromMillis(r.paused), fromMillis(r.cursor), fromMillis(r.expand)
	return r.status, err
}

// occurrenceRow is where a row of occurrenceColumnsSQL is read into.
type occurrenceRow struct {
	id                           [16]byte
	tenant, key, revision        string
	position, attempt            int32
	step                         *int32
	subscriber, token, lastError *string
	timestamp                    int64
	due, scheduled, failed       *int64
}

// scan reads occurrenceColumnsSQL and whatever more was selected.
func (r *occurrenceRow) scan(row pgx.Row, more ...any) (job.Occurrence, error) {
	*r = occurrenceRow{}
	err := row.Scan(append([]any{&r.id, &r.tenant, &r.key, &r.revision, &r.position, &r.step, &r.subscriber, &r.timestamp,
		&r.due, &r.scheduled, &r.token, &r.attempt, &r.lastError, &r.failed}, more...)...)
	o := job.Occurrence{
		ID:          r.id,
		Name:        job.Name{Tenant: r.tenant, Key: r.key},
		Revision:    job.Revision(r.revision),
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

func orEmpty(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// targetReader decodes the targets of many rows. Neighbouring rows often are of one job.
type targetReader struct {
	encoded []byte
	options job.Options
	err     error
}

// read makes a target of its columns. The error is that the options can't be understood; the callback is there then.
func (r *targetReader) read(callbackType *string, callbackData, options []byte) (job.Target, error) {
	if !bytes.Equal(options, r.encoded) || options == nil {
		r.encoded = options
		r.options, r.err = job.DecodeOptions(options)
	}
	return job.Target{Callback: job.Callback{Type: orEmpty(callbackType), Data: callbackData}, Options: r.options}, r.err
}
