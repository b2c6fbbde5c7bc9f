package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Put implements [store.Jobs]: all puts are one transaction.
func (s *Store) Put(ctx context.Context, puts []store.Put) []store.PutResult {
	results := make([]store.PutResult, len(puts))
	err := s.write(ctx, func(tx *sql.Tx) error {
		w := putter{
			tx: tx, stmt: &s.stmt,
			jobInsert: tx.Stmt(s.stmt.jobInsert), occurrenceInsert: tx.Stmt(s.stmt.occurrenceInsert),
		}
		for i := range puts {
			var err error
			results[i], err = w.put(&puts[i])
			if errors.Is(err, store.ErrPrecondition) {
				results[i].Err = err
			} else if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		for i := range results {
			results[i] = store.PutResult{Err: err}
		}
	}
	return results
}

// putter writes puts within one transaction. The context is the transaction's, so the statements go without one.
type putter struct {
	tx                          *sql.Tx
	stmt                        *statements
	jobInsert, occurrenceInsert *sql.Stmt
}

func (w *putter) put(p *store.Put) (store.PutResult, error) {
	var result store.PutResult
	created := false
	var err error
	if p.If.Always() || p.If.Absent { // most jobs are new: one statement tells, and does it
		if created, err = w.insert(&p.Job); err != nil {
			return result, err
		}
	}
	if !created {
		if result, err = w.replace(p); err != nil {
			return result, err
		}
	}
	for i := range p.Occurrences {
		o := &p.Occurrences[i]
		if _, err := w.occurrenceInsert.Exec(o.ID[:], o.Name.Tenant, o.Name.Key, string(o.Revision), o.Position,
			o.Timestamp.UnixMilli(), o.DueAt.UnixMilli()); err != nil {
			return result, err
		}
	}
	return result, nil
}

// insert creates the job unless there is one of its name.
func (w *putter) insert(j *job.Job) (created bool, err error) {
	n, err := affected(w.jobInsert.Exec(j.Tenant, j.Key, string(j.Revision), j.CreatedAt.UnixMilli(), j.UpdatedAt.UnixMilli(),
		j.ExpiresAt.UnixMilli(), j.Callback.Type, j.Callback.Data, j.Options.Encode(), j.Schedule.Encode()))
	return n > 0, err
}

// replace puts the job in the place of the present one, whose occurrences go with it. Those that are held go too: their
// settlement will find nothing, so they are never retried.
func (w *putter) replace(p *store.Put) (store.PutResult, error) {
	var present string
	err := w.tx.Stmt(w.stmt.jobRevision).QueryRow(p.Job.Tenant, p.Job.Key).Scan(&present)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return store.PutResult{}, err
	}
	if present == "" || !p.If.Holds(job.Revision(present)) {
		return store.PutResult{}, store.ErrPrecondition
	}
	result := store.PutResult{Replaced: job.Revision(present)}
	var total int
	if err := w.tx.Stmt(w.stmt.revisionCount).QueryRow(p.Now.UnixMilli(), present).Scan(&total, &result.InFlight); err != nil {
		return result, err
	}
	if total > 0 {
		if _, err := w.tx.Stmt(w.stmt.revisionDelete).Exec(present); err != nil {
			return result, err
		}
	}
	j := &p.Job
	_, err = w.tx.Stmt(w.stmt.jobReplace).Exec(string(j.Revision), j.UpdatedAt.UnixMilli(), j.ExpiresAt.UnixMilli(),
		j.Callback.Type, j.Callback.Data, j.Options.Encode(), j.Schedule.Encode(), j.Tenant, j.Key)
	return result, err
}

// Cancel implements [store.Jobs]: all cancellations are one transaction.
func (s *Store) Cancel(ctx context.Context, names []job.Name, now time.Time) ([]store.CancelResult, error) {
	results := make([]store.CancelResult, len(names))
	err := s.write(ctx, func(tx *sql.Tx) error {
		for i, name := range names {
			var err error
			if results[i], err = s.cancel(tx, name, now); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return results, nil
}

func (s *Store) cancel(tx *sql.Tx, name job.Name, now time.Time) (store.CancelResult, error) {
	var revision string
	err := tx.Stmt(s.stmt.jobRevision).QueryRow(name.Tenant, name.Key).Scan(&revision)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return store.CancelResult{}, err
	}
	var total, held, ownTotal, ownHeld int
	if err := tx.Stmt(s.stmt.revisionCount).QueryRow(now.UnixMilli(), revision).Scan(&total, &held); err != nil {
		return store.CancelResult{}, err
	}
	if err := tx.Stmt(s.stmt.ownCount).QueryRow(now.UnixMilli(), name.Tenant, name.Key).Scan(&ownTotal, &ownHeld); err != nil {
		return store.CancelResult{}, err
	}
	if _, err := tx.Stmt(s.stmt.revisionDelete).Exec(revision); err != nil {
		return store.CancelResult{}, err
	}
	if _, err := tx.Stmt(s.stmt.ownDelete).Exec(name.Tenant, name.Key); err != nil {
		return store.CancelResult{}, err
	}
	if _, err := tx.Stmt(s.stmt.jobDelete).Exec(name.Tenant, name.Key); err != nil {
		return store.CancelResult{}, err
	}
	inFlight := held + ownHeld
	return store.CancelResult{
		Found:     revision != "" || ownTotal > 0,
		Cancelled: total + ownTotal - inFlight,
		InFlight:  inFlight,
	}, nil
}

// Job implements [store.Jobs].
func (s *Store) Job(ctx context.Context, name job.Name) (store.JobStatus, error) {
	var callbackData, options, schedule []byte
	status, err := scanJob(s.stmt.jobRead.QueryRowContext(ctx, name.Tenant, name.Key), &callbackData, &options, &schedule)
	if errors.Is(err, sql.ErrNoRows) {
		return store.JobStatus{}, store.ErrNotFound
	}
	if err != nil {
		return store.JobStatus{}, mapError(err)
	}
	status.Callback.Data = callbackData
	if status.Options, err = job.DecodeOptions(options); err != nil {
		return store.JobStatus{}, err
	}
	status.Schedule, err = job.DecodeSchedule(schedule)
	return status, err
}

// Jobs implements [store.Jobs].
func (s *Store) Jobs(ctx context.Context, f store.JobFilter) ([]store.JobStatus, error) {
	rows, err := s.stmt.jobList.QueryContext(ctx, f.Tenant, f.Prefix, afterPrefix(f.Prefix), f.After, f.Limit)
	return collect(rows, err, func(r scanner) (store.JobStatus, error) { return scanJob(r) })
}

// afterPrefix is a bound above every key with the prefix: keys are UTF-8, in which no byte is 0xff.
func afterPrefix(prefix string) string { return prefix + "\xff" }

// Occurrences implements [store.Jobs].
func (s *Store) Occurrences(ctx context.Context, f store.OccurrenceFilter) (page []job.Occurrence, total int, err error) {
	revision, tenant, key := string(f.Revision), f.Name.Tenant, f.Name.Key
	rows, err := s.stmt.occurrenceList.QueryContext(ctx, f.After[:], revision, tenant, key, f.Limit)
	if page, err = collect(rows, err, func(r scanner) (job.Occurrence, error) { return scanOccurrence(r) }); err != nil {
		return nil, 0, err
	}
	err = s.stmt.occurrenceCount.QueryRowContext(ctx, revision, tenant, key).Scan(&total)
	return page, total, mapError(err)
}

// DeadLetters implements [store.Jobs].
func (s *Store) DeadLetters(ctx context.Context, f store.DeadLetterFilter) ([]job.Occurrence, error) {
	where := []string{"o.lane = ?", "o.due_at IS NULL", "o.revision = ''", "o.tenant = ?", "o.id > ?"}
	args := []any{laneDead, f.Tenant, f.After[:]}
	if f.Key != "" {
		where, args = append(where, "o.key = ?"), append(args, f.Key)
	}
	if f.Prefix != "" {
		where, args = append(where, "o.key >= ? AND o.key < ?"), append(args, f.Prefix, afterPrefix(f.Prefix))
	}
	if f.ID != (job.ID{}) {
		where, args = append(where, "o.id = ?"), append(args, f.ID[:])
	}
	query := "SELECT " + occurrenceColumns + " FROM occurrences o WHERE " + strings.Join(where, " AND ") + " ORDER BY o.id LIMIT ?"
	rows, err := s.reader.QueryContext(ctx, query, append(args, f.Limit)...)
	return collect(rows, err, func(r scanner) (job.Occurrence, error) { return scanOccurrence(r) })
}

// Redrive implements [store.Jobs].
func (s *Store) Redrive(ctx context.Context, tenant string, ids []job.ID, now time.Time) (int, error) {
	return s.forEach(ctx, s.stmt.redrive, ids, func(id job.ID) []any { return []any{now.UnixMilli(), id[:], tenant} })
}

// DeleteDeadLetters implements [store.Jobs].
func (s *Store) DeleteDeadLetters(ctx context.Context, tenant string, ids []job.ID) (int, error) {
	return s.forEach(ctx, s.stmt.deadDelete, ids, func(id job.ID) []any { return []any{id[:], tenant} })
}

// forEach runs a statement for each id in one transaction and counts the rows it changed.
func (s *Store) forEach(ctx context.Context, stmt *sql.Stmt, ids []job.ID, args func(job.ID) []any) (changed int, err error) {
	err = s.write(ctx, func(tx *sql.Tx) error {
		changed = 0
		each := tx.Stmt(stmt)
		for _, id := range ids {
			n, err := affected(each.Exec(args(id)...))
			if err != nil {
				return err
			}
			changed += n
		}
		return nil
	})
	return changed, err
}

// scanner is a row or the rows of a query.
type scanner interface{ Scan(dest ...any) error }

// collect reads all rows of a query.
func collect[T any](rows *sql.Rows, err error, scan func(scanner) (T, error)) ([]T, error) {
	if err != nil {
		return nil, mapError(err)
	}
	defer func() { _ = rows.Close() }() // its error is that of rows.Err
	var all []T
	for rows.Next() {
		item, err := scan(rows)
		if err != nil {
			return nil, mapError(err)
		}
		all = append(all, item)
	}
	return all, mapError(rows.Err())
}

// scanJob reads jobColumns and whatever more was selected.
func scanJob(row scanner, more ...any) (store.JobStatus, error) {
	var s store.JobStatus
	var created, updated, expires int64
	err := row.Scan(append([]any{&s.Tenant, &s.Key, &s.Revision, &created, &updated, &expires, &s.Callback.Type, &s.Live}, more...)...)
	s.CreatedAt = time.UnixMilli(created).UTC()
	s.UpdatedAt = time.UnixMilli(updated).UTC()
	s.ExpiresAt = time.UnixMilli(expires).UTC()
	return s, err
}

// scanOccurrence reads occurrenceColumns and whatever more was selected.
func scanOccurrence(row scanner, more ...any) (job.Occurrence, error) {
	var o job.Occurrence
	var timestamp int64
	var due, scheduled, failed sql.NullInt64
	var token, lastError, callbackType sql.NullString
	var callbackData, options []byte
	err := row.Scan(append([]any{&o.ID, &o.Name.Tenant, &o.Name.Key, &o.Revision, &o.Position, &timestamp, &due, &scheduled,
		&token, &o.Attempt, &lastError, &failed, &callbackType, &callbackData, &options}, more...)...)
	if err != nil {
		return o, err
	}
	o.Timestamp = time.UnixMilli(timestamp).UTC()
	o.DueAt, o.ScheduledAt, o.FailedAt = fromMillis(due), fromMillis(scheduled), fromMillis(failed)
	o.Token, o.LastError = token.String, lastError.String
	if callbackType.Valid {
		o.Own = &job.Target{Callback: job.Callback{Type: callbackType.String, Data: callbackData}}
		o.Own.Options, err = job.DecodeOptions(options)
	}
	return o, err
}
