package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// rawPostgres is PostgreSQL's bare client, on a table of its own beside the store's.
type rawPostgres struct {
	pool *pgxpool.Pool
	sql  struct{ upsert, claim, remove, drop string }
}

// These have $table for the table's name. The store's own table is set up like this too.
const (
	rawPostgresTable = `DROP TABLE IF EXISTS $table;
		CREATE TABLE $table (id bigserial PRIMARY KEY, key text NOT NULL UNIQUE, due_at bigint NOT NULL, token text,
		payload bytea NOT NULL) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
		CREATE INDEX ON $table (due_at)`
	rawPostgresUpsert = `INSERT INTO $table (key, due_at, payload) SELECT * FROM unnest($1::text[], $2::bigint[], $3::bytea[])
		ON CONFLICT (key) DO UPDATE SET due_at = excluded.due_at, payload = excluded.payload`
	rawPostgresClaim = `UPDATE $table SET token = $1, due_at = $2 WHERE id IN
		(SELECT id FROM $table WHERE due_at <= $3 ORDER BY due_at LIMIT $4 FOR UPDATE SKIP LOCKED) RETURNING id, payload`
	rawPostgresDelete = `DELETE FROM $table WHERE id = ANY($1) AND token = $2`
)

// openRawPostgres makes the table in the store's schema.
func openRawPostgres(ctx context.Context, rawURL string) (*rawPostgres, error) {
	cfg, err := pgxpool.ParseConfig(rawURL)
	if err != nil {
		return nil, err
	}
	schema := cfg.ConnConfig.RuntimeParams["schema"] // an option of the store's
	if schema == "" {
		schema = "carillon"
	}
	delete(cfg.ConnConfig.RuntimeParams, "schema")
	cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe // a pooler bears it, and it costs no more round trips
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	r := &rawPostgres{pool: pool}
	in := func(sql string) string {
		return strings.ReplaceAll(sql, "$table", pgx.Identifier{schema, "bench_raw"}.Sanitize())
	}
	r.sql.upsert, r.sql.claim, r.sql.remove, r.sql.drop = in(rawPostgresUpsert), in(rawPostgresClaim), in(rawPostgresDelete), in(`DROP TABLE IF EXISTS $table`)
	if _, err := pool.Exec(ctx, in(rawPostgresTable), pgx.QueryExecModeSimpleProtocol); err != nil {
		pool.Close()
		return nil, err
	}
	return r, nil
}

func (r *rawPostgres) Upsert(ctx context.Context, rows []rawRow) error {
	keys, dues, payloads := make([]string, len(rows)), make([]int64, len(rows)), make([][]byte, len(rows))
	for i := range rows {
		keys[i], dues[i], payloads[i] = rows[i].key, rows[i].dueAt, rows[i].payload
	}
	_, err := r.pool.Exec(ctx, r.sql.upsert, keys, dues, payloads)
	return err
}

func (r *rawPostgres) Drain(ctx context.Context, workers int) (int, error) {
	var all sync.WaitGroup
	var sum atomic.Int64
	errs := make([]error, workers)
	for i := range workers {
		all.Go(func() {
			errs[i] = r.drain(ctx, fmt.Sprintf("w%d-", i), &sum)
		})
	}
	all.Wait()
	return int(sum.Load()), errors.Join(errs...)
}

func (r *rawPostgres) drain(ctx context.Context, name string, sum *atomic.Int64) error {
	for n := 0; ; n++ {
		now := time.Now()
		token := fmt.Sprint(name, n)
		rows, err := r.pool.Query(ctx, r.sql.claim, token, now.Add(time.Minute).UnixMilli(), now.UnixMilli(), rawBatch)
		if err != nil {
			return err
		}
		var id int64
		var payload []byte
		var ids []int64
		if _, err := pgx.ForEachRow(rows, []any{&id, &payload}, func() error { ids = append(ids, id); return nil }); err != nil {
			return err
		}
		if len(ids) == 0 {
			return nil
		}
		if _, err := r.pool.Exec(ctx, r.sql.remove, ids, token); err != nil {
			return err
		}
		sum.Add(int64(len(ids)))
	}
}

func (r *rawPostgres) Close(ctx context.Context) error {
	defer r.pool.Close()
	_, err := r.pool.Exec(ctx, r.sql.drop)
	return err
}
