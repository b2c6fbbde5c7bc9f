package sqlite

import (
	"context"
	"database/sql"
	"errors"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// ClaimJobs implements [store.Queue]. It takes the write lock only if a job is due for expansion.
func (s *Store) ClaimJobs(ctx context.Context, p store.ClaimJobsParams) (store.ClaimedJobs, error) {
	var due bool
	if err := s.stmt.expandDue.QueryRowContext(ctx, p.Now.UnixMilli()).Scan(&due); err != nil || !due {
		return store.ClaimedJobs{}, mapError(ctx, err)
	}
	var claimed store.ClaimedJobs
	err := s.write(ctx, func(tx *sql.Tx) error {
		rows, err := tx.Stmt(s.stmt.expandRead).QueryContext(ctx, p.Now.UnixMilli(), p.Limit)
		found, err := collect(rows, err, scanExpandable)
		if err != nil {
			return err
		}
		claimed = store.ClaimedJobs{Token: job.NewToken(), More: len(found) == p.Limit}
		stamp, until := tx.Stmt(s.stmt.expandStamp), p.Now.Add(p.Lease)
		for i := range found {
			e := &found[i]
			if _, err := stamp.Exec(until.UnixMilli(), claimed.Token, e.rowid); err != nil {
				return err
			}
			if !e.readable { // it stays claimed, so that it does not hold up claims of the others
				claimed.Unreadable = append(claimed.Unreadable, e.Name)
				continue
			}
			e.ExpandAt = until
			claimed.Jobs = append(claimed.Jobs, e.Job)
		}
		return nil
	})
	return claimed, err
}

// expandable is a row of expandRead.
type expandable struct {
	job.Job
	rowid    int64
	readable bool // its schedule and options could be decoded
}

func scanExpandable(row scanner) (expandable, error) {
	var e expandable
	var options, schedule []byte
	status, err := scanJob(row, &e.rowid, &options, &schedule)
	if err != nil {
		return e, err
	}
	e.Job = status.Job
	var optionsErr, scheduleErr error
	e.Options, optionsErr = job.DecodeOptions(options)
	e.Schedule, scheduleErr = job.DecodeSchedule(schedule)
	e.readable = optionsErr == nil && scheduleErr == nil
	return e, nil
}

// Advance implements [store.Queue]. Each job is advanced within one transaction, and many jobs share one.
func (s *Store) Advance(ctx context.Context, advances []store.Advance) error {
	var in *sql.Tx
	var occurrences inserter
	_, err := s.writeEach(ctx, len(advances), func(tx *sql.Tx, i int) (rows int, err error) {
		if in != tx {
			in, occurrences = tx, newInserter(tx, &s.stmt)
		}
		return s.advance(tx, &advances[i], &occurrences)
	}, occurrences.flush)
	return err
}

// advance advances one job if its claim still stands, and returns the number of rows written, at least one. A pause
// clears the token.
func (s *Store) advance(tx *sql.Tx, a *store.Advance, occurrences *inserter) (rows int, err error) {
	var cursor any // none when the schedule has ended
	if !a.ExpandAt.IsZero() {
		cursor = a.Cursor.UnixMilli()
	}
	var row int64
	err = tx.Stmt(s.stmt.advance).QueryRow(cursor, millis(a.ExpandAt), a.Missed, a.Planned(),
		a.Trouble.Encode(), millis(a.ExpiresAt),
		a.Name.Tenant, a.Name.Key, string(a.Revision), millis(a.From), a.Token).Scan(&row)
	if errors.Is(err, sql.ErrNoRows) {
		return 1, nil
	}
	if err != nil {
		return 1, err
	}
	for i := range a.Occurrences {
		if err := occurrences.add(&a.Occurrences[i], row, true); err != nil {
			return 1, err
		}
	}
	return 1 + len(a.Occurrences), nil
}
