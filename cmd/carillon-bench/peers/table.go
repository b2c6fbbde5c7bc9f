package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// tableSchema is the schema of the table.
const tableSchema = "carillon_bench_table"

// tablePeer is a table of jobs in PostgreSQL, polled by loops with SKIP LOCKED. A batch is deleted, handled and
// committed in one transaction, so that a crash gives it back.
type tablePeer struct {
	polling
	pool    *pgxpool.Pool
	counter *queryCounter
}

func newTable(ctx context.Context, rawURL, settings string) (*tablePeer, error) {
	t := &tablePeer{polling: polling{settings: settings}, counter: &queryCounter{}}
	var err error
	t.pool, err = openPool(ctx, rawURL, loops+1, t.counter)
	return t, err
}

const (
	tableCreate = `CREATE TABLE ` + tableSchema + `.jobs (
			id bigserial PRIMARY KEY, run_at timestamptz NOT NULL, payload bytea NOT NULL);
		CREATE INDEX ON ` + tableSchema + `.jobs (run_at)`
	tableTake = `DELETE FROM ` + tableSchema + `.jobs WHERE id IN (SELECT id FROM ` + tableSchema + `.jobs
		WHERE run_at <= $1 ORDER BY run_at LIMIT $2 FOR UPDATE SKIP LOCKED) RETURNING payload`
)

func (t *tablePeer) about(ctx context.Context) (about, error) {
	server, err := versionOfPostgres(ctx, t.pool)
	return about{"a table and SKIP LOCKED", "postgres", server, t.how()}, err
}

func (t *tablePeer) prepare(ctx context.Context, force bool) error {
	if err := newSchema(ctx, t.pool, tableSchema, force); err != nil {
		return err
	}
	_, err := t.pool.Exec(ctx, tableCreate, pgx.QueryExecModeSimpleProtocol)
	return err
}

func (t *tablePeer) insert(ctx context.Context, w *work) error {
	_, err := t.pool.CopyFrom(ctx, pgx.Identifier{tableSchema, "jobs"}, []string{"run_at", "payload"},
		pgx.CopyFromSlice(w.count, func(i int) ([]any, error) { return []any{w.instant(i), w.data(i)}, nil }))
	if err != nil {
		return err
	}
	_, err = t.pool.Exec(ctx, `ANALYZE `+tableSchema+`.jobs`)
	return err
}

func (t *tablePeer) start(ctx context.Context, handle func(payload []byte)) error {
	t.run(ctx, func(ctx context.Context) (n int, err error) {
		err = pgx.BeginFunc(ctx, t.pool, func(tx pgx.Tx) error {
			rows, err := tx.Query(ctx, tableTake, time.Now(), loopBatch)
			if err != nil {
				return err
			}
			payloads, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
			for _, p := range payloads {
				handle(p)
			}
			n = len(payloads)
			return err
		})
		return n, err
	})
	return nil
}

func (t *tablePeer) queries() int64 { return t.counter.sum.Load() }

func (t *tablePeer) remove(ctx context.Context) error {
	defer t.pool.Close()
	return takeSchema(ctx, t.pool, tableSchema, true)
}
