package bench

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"time"

	_ "modernc.org/sqlite" // the same driver as the store's
)

// rawSQLite is SQLite's bare client, on a file of its own, with the pragmas that the store has.
type rawSQLite struct {
	dir    string
	db     *sql.DB
	upsert *sql.Stmt
}

func openRawSQLite(ctx context.Context) (*rawSQLite, error) {
	dir, err := os.MkdirTemp("", "carillon-bench-raw-")
	if err != nil {
		return nil, err
	}
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "raw.db")+"?_txlock=immediate&_pragma=journal_mode(wal)"+
		"&_pragma=synchronous(full)&_pragma=cache_size(-65536)&_pragma=journal_size_limit(67108864)")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	_, err = db.ExecContext(ctx, `CREATE TABLE rows (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, due_at INTEGER NOT NULL,
		token TEXT, payload BLOB NOT NULL); CREATE INDEX rows_due ON rows (due_at)`)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	upsert, err := db.PrepareContext(ctx, `INSERT INTO rows (key, due_at, payload) VALUES (?, ?, ?)
		ON CONFLICT (key) DO UPDATE SET due_at = excluded.due_at, payload = excluded.payload`)
	return &rawSQLite{dir, db, upsert}, err
}

func (r *rawSQLite) Upsert(ctx context.Context, rows []rawRow) error {
	tx, err := r.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	upsert := tx.StmtContext(ctx, r.upsert)
	for _, row := range rows {
		if _, err := upsert.ExecContext(ctx, row.key, row.dueAt, row.payload); err != nil {
			return errors.Join(err, tx.Rollback())
		}
	}
	return tx.Commit()
}

func (r *rawSQLite) Drain(ctx context.Context, _ int) (n int, err error) { // there is one writer, whatever is asked
	claim, err := r.db.PrepareContext(ctx, `UPDATE rows SET token = ?, due_at = ? WHERE id IN
		(SELECT id FROM rows WHERE due_at <= ? ORDER BY due_at LIMIT ?) RETURNING id, payload`)
	if err != nil {
		return 0, err
	}
	defer func() { _ = claim.Close() }()
	remove, err := r.db.PrepareContext(ctx, `DELETE FROM rows WHERE id = ? AND token = ?`)
	if err != nil {
		return 0, err
	}
	defer func() { _ = remove.Close() }()
	for {
		now := time.Now()
		token := strconv.FormatInt(now.UnixNano(), 36)
		rows, err := claim.QueryContext(ctx, token, now.Add(time.Minute).UnixMilli(), now.UnixMilli(), rawBatch)
		if err != nil {
			return n, err
		}
		var ids []int64
		var payload []byte
		for rows.Next() {
			var id int64
			if err := rows.Scan(&id, &payload); err != nil {
				return n, errors.Join(err, rows.Close())
			}
			ids = append(ids, id)
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil || len(ids) == 0 {
			return n, err
		}
		tx, err := r.db.BeginTx(ctx, nil)
		if err != nil {
			return n, err
		}
		bound := tx.StmtContext(ctx, remove)
		for _, id := range ids {
			if _, err := bound.ExecContext(ctx, id, token); err != nil {
				return n, errors.Join(err, tx.Rollback())
			}
		}
		if err := tx.Commit(); err != nil {
			return n, err
		}
		n += len(ids)
	}
}

func (r *rawSQLite) Close(context.Context) error {
	return errors.Join(r.db.Close(), os.RemoveAll(r.dir))
}
