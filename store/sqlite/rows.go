package sqlite

import (
	"context"
	"database/sql"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// scanner is a row or the rows of a query.
type scanner interface{ Scan(dest ...any) error }

// read reads all rows of a query concurrently with the writer.
func read[T any](ctx context.Context, rows *sql.Rows, err error, scan func(scanner) (T, error)) ([]T, error) {
	all, err := collect(rows, err, scan)
	return all, mapError(ctx, err)
}

// collect reads all rows of a query.
func collect[T any](rows *sql.Rows, err error, scan func(scanner) (T, error)) ([]T, error) {
	return collectUpTo(rows, err, func(r scanner) (item T, last bool, err error) {
		item, err = scan(r)
		return item, false, err
	})
}

// collectUpTo reads the rows of a query up to the one that scan marks as the last.
func collectUpTo[T any](rows *sql.Rows, err error, scan func(scanner) (item T, last bool, err error)) ([]T, error) {
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }() // its error is that of rows.Err
	var all []T
	for rows.Next() {
		item, last, err := scan(rows)
		if err != nil {
			return nil, err
		}
		if all = append(all, item); last {
			break
		}
	}
	return all, rows.Err()
}

// scanJob reads jobColumns and the further selected columns.
func scanJob(row scanner, more ...any) (store.JobStatus, error) {
	var s store.JobStatus
	var created, updated, expires int64
	var paused, cursor, expand sql.NullInt64
	var next []byte
	var trouble string
	err := row.Scan(append([]any{&s.Tenant, &s.Key, &s.Revision, &s.Version, &created, &updated, &expires, &paused,
		&cursor, &expand, &s.Missed, &s.Planned, &s.Failed, &trouble, &s.Callback.Type, &next}, more...)...)
	s.CreatedAt = time.UnixMilli(created).UTC()
	s.UpdatedAt = time.UnixMilli(updated).UTC()
	s.ExpiresAt = time.UnixMilli(expires).UTC()
	s.PausedAt, s.Cursor, s.ExpandAt = fromMillis(paused), fromMillis(cursor), fromMillis(expand)
	if len(next) == len(job.ID{}) {
		s.Next = job.InstantOf(job.ID(next))
	}
	if err == nil {
		s.Trouble, err = job.DecodeTrouble(trouble)
	}
	return s, err
}

// scanWholeJob reads jobColumns and then the callback's data, the options and the schedule.
func scanWholeJob(row scanner) (store.JobStatus, error) {
	var data, options, schedule []byte
	s, err := scanJob(row, &data, &options, &schedule)
	if err != nil {
		return s, err
	}
	s.Callback.Data = data
	if s.Options, err = job.DecodeOptions(options); err != nil {
		return s, err
	}
	s.Schedule, err = job.DecodeSchedule(schedule)
	return s, err
}

// jobValues returns the parameters of jobInsert.
func jobValues(j *job.Job, pausedAt time.Time, sole any) []any {
	return []any{
		j.Tenant, j.Key, string(j.Revision), string(j.Version), j.CreatedAt.UnixMilli(), j.UpdatedAt.UnixMilli(),
		j.ExpiresAt.UnixMilli(), millis(pausedAt), millis(j.Cursor), millis(j.ExpandAt), j.Missed,
		j.Callback.Type, j.Callback.Data, j.Options.Encode(), sole, j.Schedule.Encode(),
		j.Planned, j.Failed, j.Trouble.Encode(),
	}
}

// ownValues returns the parameters of ownInsert, without the callback.
func ownValues(o *job.Occurrence) []any {
	step, subscriber := partValues(o)
	priority, lane := laneValues(o)
	return []any{
		o.Name.Tenant, o.Name.Key, o.ID[:], priority, lane, o.Position, o.Timestamp.UnixMilli(), o.DueAt.UnixMilli(),
		step, subscriber,
	}
}

// laneValues returns an occurrence's priority and lane, as they are stored.
func laneValues(o *job.Occurrence) (priority any, lane string) {
	return nullable(o.Priority.Code()), o.Lane().String()
}

func partValues(o *job.Occurrence) (step, subscriber any) {
	if o.Part == nil {
		return nil, nil
	}
	return o.Part.Step, nullable(o.Part.Subscriber)
}

// scanOccurrence reads occurrenceColumns and the further selected columns.
func scanOccurrence(row scanner, more ...any) (job.Occurrence, error) {
	var o job.Occurrence
	var timestamp int64
	var due, scheduled, step, failed sql.NullInt64
	var priority, token, subscriber, lastError, callbackType sql.NullString
	var callbackData, options []byte
	err := row.Scan(append([]any{&o.ID, &o.Name.Tenant, &o.Name.Key, &priority, &o.Revision, &o.Position, &timestamp,
		&due, &scheduled, &token, &o.Attempt, &step, &subscriber, &lastError, &failed,
		&callbackType, &callbackData, &options}, more...)...)
	if err != nil {
		return o, err
	}
	o.Priority = job.PriorityOf(priority.String)
	o.Timestamp = time.UnixMilli(timestamp).UTC()
	o.DueAt, o.ScheduledAt, o.FailedAt = fromMillis(due), fromMillis(scheduled), fromMillis(failed)
	o.Token, o.LastError = token.String, lastError.String
	o.Part = partOf(step, subscriber)
	if callbackType.Valid {
		o.Own = &job.Target{Callback: job.Callback{Type: callbackType.String, Data: callbackData}}
		o.Own.Options, err = job.DecodeOptions(options)
	}
	return o, err
}

func partOf(step sql.NullInt64, subscriber sql.NullString) *job.Part {
	if !step.Valid {
		return nil
	}
	return &job.Part{Step: int(step.Int64), Subscriber: subscriber.String}
}

// fromMillis converts a stored time: Unix milliseconds, NULL for none.
func fromMillis(ms sql.NullInt64) time.Time {
	if !ms.Valid {
		return time.Time{}
	}
	return time.UnixMilli(ms.Int64).UTC()
}

// millis converts a time to the form that fromMillis reads.
func millis(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixMilli()
}

// nullable returns NULL, which takes no space, for an empty string.
func nullable(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// affected returns the number of rows that a statement changed.
func affected(r sql.Result, err error) (int, error) {
	if err != nil {
		return 0, err
	}
	n, err := r.RowsAffected()
	return int(n), err
}
