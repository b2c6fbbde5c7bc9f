package bench

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/carillon-scheduler/carillon/job"
)

// rawPostgres is PostgreSQL's bare client. It has tables of its own beside the store's, copied from them.
type rawPostgres struct {
	pool *pgxpool.Pool
	in   *strings.Replacer // inserts the tables' names into a statement
}

// $jobs and $occurrences are the tables' names.
const (
	// One statement writes both, and so one transaction in one round trip.
	rawPostgresUpsert = `WITH put AS (
			INSERT INTO $jobs (tenant, key, revision, version, callback_type, callback_data, schedule, created_at, updated_at,
				expires_at, missed)
			SELECT 'default', n.key, n.revision, n.version, 'discard', n.data, n.schedule, n.now, n.now, n.expires, 0
			FROM unnest($1::text[], $2::uuid[], $3::text[], $6::bytea[], $7::bytea[], $8::bigint[], $9::bigint[])
				AS n (key, revision, version, data, schedule, now, expires)
			ON CONFLICT (tenant, key) DO UPDATE SET revision = excluded.revision, version = excluded.version,
				callback_data = excluded.callback_data, schedule = excluded.schedule,
				updated_at = excluded.updated_at, expires_at = excluded.expires_at
		)
		INSERT INTO $occurrences (lane, revision, id, timestamp, due_at, position, attempt)
		SELECT 'default', n.revision, n.id, n.at, n.at, 0, 0
		FROM unnest($2::uuid[], $4::uuid[], $5::bigint[]) AS n (revision, id, at)
		ON CONFLICT (revision, id) DO UPDATE SET due_at = excluded.due_at, scheduled_at = NULL, token = NULL, attempt = 0`
	// The statement finds the locked rows by their location, without an index.
	rawPostgresClaim = `UPDATE $occurrences SET token = $1, scheduled_at = $2, due_at = $3, attempt = attempt + 1
		WHERE ctid = ANY (ARRAY(SELECT ctid FROM $occurrences WHERE lane = 'default' AND due_at <= $2
			ORDER BY due_at, timestamp LIMIT $4 FOR UPDATE SKIP LOCKED)) RETURNING revision, id`
	rawPostgresDelete = `DELETE FROM $occurrences o USING unnest($1::uuid[], $2::uuid[]) AS c (revision, id)
		WHERE o.revision = c.revision AND o.id = c.id AND o.token = $3`
	// A transaction that begins with this statement finds rows by an index and in its order, as the store's do. For a
	// table without statistics, the planner would otherwise sort all due rows for each claim.
	rawPostgresPlan = `SELECT set_config(name, 'off', true)
		FROM unnest('{enable_seqscan,enable_bitmapscan,enable_sort,enable_hashjoin,enable_mergejoin}'::text[]) AS s (name)`
	rawPostgresDrop = `DROP TABLE IF EXISTS $jobs, $occurrences`
)

// openRawPostgres creates the tables in the store's schema.
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
	// This mode works with a pooler, and takes no more round trips.
	cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	name := func(table string) string { return pgx.Identifier{schema, table}.Sanitize() }
	r := &rawPostgres{pool, strings.NewReplacer("$jobs", name("bench_raw_jobs"), "$occurrences",
		name("bench_raw_occurrences"))}
	_, err = pool.Exec(ctx, r.in.Replace(rawPostgresDrop))
	for _, table := range []string{"jobs", "occurrences"} {
		if err == nil {
			err = r.copyTable(ctx, name(table), name("bench_raw_"+table))
		}
	}
	if err != nil {
		return nil, errors.Join(err, r.Close(ctx))
	}
	return r, nil
}

// copyTable creates an empty table with the columns, indexes and storage options of another.
func (r *rawPostgres) copyTable(ctx context.Context, from, to string) error {
	var with string
	if err := r.pool.QueryRow(ctx, `SELECT coalesce(' WITH (' || array_to_string(reloptions, ', ') || ')', '')
		FROM pg_class WHERE oid = $1::text::regclass`, from).Scan(&with); err != nil {
		return err
	}
	_, err := r.pool.Exec(ctx, "CREATE TABLE "+to+" (LIKE "+from+" INCLUDING ALL)"+with)
	return err
}

func (r *rawPostgres) Upsert(ctx context.Context, rows []rawRow) error {
	n := len(rows)
	keys, versions := make([]string, n), make([]string, n)
	revisions, ids := make([]pgtype.UUID, n), make([]pgtype.UUID, n)
	data, schedules := make([][]byte, n), make([][]byte, n)
	at, now, expires := make([]int64, n), make([]int64, n), make([]int64, n)
	for i := range rows {
		row := &rows[i]
		revision, err := job.ParseID(row.revision)
		if err != nil {
			return err
		}
		keys[i], versions[i] = row.key, row.revision
		revisions[i], ids[i] = pgtype.UUID{Bytes: revision, Valid: true}, pgtype.UUID{Bytes: row.id, Valid: true}
		data[i], schedules[i] = row.data, row.schedule
		at[i], now[i], expires[i] = row.at, row.now, row.expires
	}
	_, err := r.pool.Exec(ctx, r.in.Replace(rawPostgresUpsert), keys, revisions, versions, ids, at, data, schedules, now,
		expires)
	return err
}

func (r *rawPostgres) Take(ctx context.Context, c rawClaim) (int, error) {
	var revision, id pgtype.UUID
	var revisions, ids []pgtype.UUID
	var claim, deletion pgx.Batch
	claim.Queue(rawPostgresPlan)
	claim.Queue(r.in.Replace(rawPostgresClaim), c.token, c.now, c.until, rawBatch).Query(func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, []any{&revision, &id}, func() error {
			revisions, ids = append(revisions, revision), append(ids, id)
			return nil
		})
		return err
	})
	if err := r.pool.SendBatch(ctx, &claim).Close(); err != nil || len(ids) == 0 {
		return 0, err
	}
	deleted := 0
	deletion.Queue(rawPostgresPlan)
	deletion.Queue(r.in.Replace(rawPostgresDelete), revisions, ids, c.token).Exec(func(tag pgconn.CommandTag) error {
		deleted = int(tag.RowsAffected())
		return nil
	})
	err := r.pool.SendBatch(ctx, &deletion).Close()
	return deleted, err
}

func (r *rawPostgres) Close(ctx context.Context) error {
	defer r.pool.Close()
	_, err := r.pool.Exec(ctx, r.in.Replace(rawPostgresDrop))
	return err
}
