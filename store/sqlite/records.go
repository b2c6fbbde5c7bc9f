package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"slices"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Records implements [store.Records].
func (s *Store) Records(ctx context.Context, f store.RecordFilter) ([]store.Record, error) {
	list, args := s.stmt.recordList, []any{f.Collection, f.Now.UnixMilli(), f.Limit}
	if len(f.Keys) > 0 {
		keys, err := json.Marshal(f.Wanted())
		if err != nil {
			return nil, err
		}
		list, args = s.stmt.recordNamed, append(args, string(keys))
	} else {
		from, to := keyRange(store.JobFilter{Prefix: f.Prefix, After: f.After})
		args = append(args, from, to)
	}
	rows, err := list.QueryContext(ctx, args...)
	return read(ctx, rows, err, func(r scanner) (record store.Record, err error) {
		var expires sql.NullInt64
		err = r.Scan(&record.Key, &record.Version, &expires, &record.Body)
		record.ExpiresAt = fromMillis(expires)
		return record, err
	})
}

// WriteRecords implements [store.Records].
func (s *Store) WriteRecords(ctx context.Context, changes []store.RecordChange) []error {
	var answers []error
	done, err := s.writeEach(ctx, len(changes), func(tx *sql.Tx, i int) (int, error) {
		answer, err := s.writeRecord(tx, &changes[i])
		answers = append(answers[:i], answer)
		return 1, err
	}, nil)
	if err != nil {
		answers = append(answers[:done], slices.Repeat([]error{err}, len(changes)-done)...)
	}
	return answers
}

// writeRecord makes a change if its condition holds, and returns the change's result as answer. An err ends the
// transaction.
func (s *Store) writeRecord(tx *sql.Tx, c *store.RecordChange) (answer, err error) {
	var present job.Revision
	err = tx.Stmt(s.stmt.recordRead).QueryRow(c.Collection, c.Key, c.Now.UnixMilli()).Scan(&present)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return nil, err
	}
	switch write, answer := c.Judge(present); {
	case !write:
		return answer, nil
	case c.Body == nil:
		_, err = tx.Stmt(s.stmt.recordDelete).Exec(c.Collection, c.Key)
	default:
		_, err = tx.Stmt(s.stmt.recordWrite).Exec(c.Collection, c.Key, string(c.Version), millis(c.ExpiresAt), c.Body)
	}
	return nil, err
}
