package bench

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	_ "modernc.org/sqlite" // the same driver as the store's

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store/sqlite"
)

// rawSQLite is SQLite's bare client. It has a file of its own beside the store's, created by the store's code, with the
// same pragmas except for a larger page cache.
type rawSQLite struct {
	dir string
	db  *sql.DB

	putJobs, putOccurrences [rawSQLiteAtOnce]*sql.Stmt // the i-th statement writes i+1 rows
	find, stamp, remove     *sql.Stmt
}

// rawSQLiteAtOnce is the number of rows that one statement writes. More rows are hardly faster.
const rawSQLiteAtOnce = 25

// rawSQLitePutJobs returns a statement that writes n jobs; rawSQLitePutOccurrences, one that writes n occurrences.
func rawSQLitePutJobs(n int) string {
	const row = `(?, ?, ?, ?, ?, ?, ?, ?, ?, 'default', 0, 'discard')`
	return `INSERT INTO jobs (key, revision, version, created_at, updated_at, expires_at, callback_data, sole, schedule,
			tenant, missed, callback_type) VALUES ` + row + strings.Repeat(", "+row, n-1) + `
		ON CONFLICT (tenant, key) DO UPDATE SET revision = excluded.revision, version = excluded.version,
			updated_at = excluded.updated_at, expires_at = excluded.expires_at, callback_data = excluded.callback_data,
			sole = excluded.sole, schedule = excluded.schedule`
}

func rawSQLitePutOccurrences(n int) string {
	const row = `(?, (SELECT rowid FROM jobs WHERE tenant = 'default' AND key = ?), ?, ?, 0, 0, 'default', 0)`
	return `INSERT INTO occurrences (id, job, timestamp, due_at, listed, position, lane, attempt) VALUES ` +
		row + strings.Repeat(", "+row, n-1) + `
		ON CONFLICT (id) DO UPDATE SET due_at = excluded.due_at, scheduled_at = NULL, token = NULL, attempt = 0`
}

const (
	rawSQLiteFind = `SELECT id, due_at FROM occurrences WHERE lane = 'default' AND due_at <= ?
		ORDER BY due_at, id LIMIT ?`
	rawSQLiteStamp = `UPDATE occurrences SET token = ?, scheduled_at = ?, due_at = ?, attempt = attempt + 1
		WHERE lane = 'default' AND (due_at, id) <= (?, ?)`
)

// rawSQLiteDelete has the token and rawBatch ids as parameters; ids may be NULL.
var rawSQLiteDelete = `DELETE FROM occurrences WHERE token = ? AND id IN (?` + strings.Repeat(", ?", rawBatch-1) + ")"

func openRawSQLite(ctx context.Context, rawURL string) (*rawSQLite, error) {
	beside := strings.TrimPrefix(strings.TrimPrefix(rawURL, "sqlite:"), "//")
	dir, err := os.MkdirTemp(filepath.Dir(beside), "carillon-bench-raw-") // on the same disk
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "raw.db")
	made, err := sqlite.Open(ctx, "sqlite:"+path)
	if err == nil {
		err = made.Close()
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	r := &rawSQLite{dir: dir}
	r.db, err = sql.Open("sqlite", "file:"+(&url.URL{Path: path}).EscapedPath()+
		"?_txlock=immediate&_pragma=journal_mode(wal)&_pragma=synchronous(full)&_pragma=cache_size(-65536)"+
		"&_pragma=journal_size_limit(67108864)&_pragma=wal_autocheckpoint(4000)&_pragma=temp_store(memory)")
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	r.db.SetMaxOpenConns(1)
	prepare := func(query string) (stmt *sql.Stmt) {
		if err == nil {
			stmt, err = r.db.PrepareContext(ctx, query)
		}
		return stmt
	}
	r.find, r.stamp, r.remove = prepare(rawSQLiteFind), prepare(rawSQLiteStamp), prepare(rawSQLiteDelete)
	for i := range rawSQLiteAtOnce {
		r.putJobs[i], r.putOccurrences[i] = prepare(rawSQLitePutJobs(i+1)), prepare(rawSQLitePutOccurrences(i+1))
	}
	if err != nil {
		return nil, errors.Join(err, r.Close(ctx))
	}
	return r, nil
}

func (r *rawSQLite) Upsert(ctx context.Context, rows []rawRow) error {
	tx, err := r.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // no effect after the commit
	for part := range slices.Chunk(rows, rawSQLiteAtOnce) {
		var jobs, occurrences []any
		for i := range part {
			row := &part[i]
			jobs = append(jobs, row.key, row.revision, row.revision, row.now, row.now, row.expires, row.data, row.id[:],
				row.schedule)
			occurrences = append(occurrences, row.id[:], row.key, row.at, row.at)
		}
		if _, err := tx.Stmt(r.putJobs[len(part)-1]).Exec(jobs...); err != nil {
			return err
		}
		if _, err := tx.Stmt(r.putOccurrences[len(part)-1]).Exec(occurrences...); err != nil {
			return err
		}
	}
	return tx.Commit()
}

func (r *rawSQLite) Take(ctx context.Context, c rawClaim) (int, error) {
	tx, err := r.db.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback() }() // no effect after the commit
	rows, err := tx.Stmt(r.find).Query(c.now, rawBatch)
	if err != nil {
		return 0, err
	}
	args := append(make([]any, 0, 1+rawBatch), c.token)
	var id job.ID
	var due int64
	for rows.Next() {
		if err := rows.Scan(&id, &due); err != nil {
			return 0, errors.Join(err, rows.Close())
		}
		args = append(args, slices.Clone(id[:]))
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil || len(args) == 1 {
		return 0, err
	}
	// The found rows are the first in this order, and no other writer runs until the commit.
	if _, err := tx.Stmt(r.stamp).Exec(c.token, c.now, c.until, due, id[:]); err != nil {
		return 0, err
	}
	if err := tx.Commit(); err != nil {
		return 0, err
	}
	deleted, err := r.remove.ExecContext(ctx, args[:1+rawBatch]...)
	if err != nil {
		return 0, err
	}
	n, err := deleted.RowsAffected()
	return int(n), err
}

func (r *rawSQLite) Close(context.Context) error {
	return errors.Join(r.db.Close(), os.RemoveAll(r.dir))
}
