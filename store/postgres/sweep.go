package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Sweep implements [store.Queue].
func (s *Store) Sweep(ctx context.Context, p store.SweepParams) (swept store.Swept, err error) {
	err = s.converse(ctx, func(ctx context.Context, tx *conversation) error {
		swept = store.Swept{}
		if err := sweepJobs(ctx, tx, p, &swept); err != nil {
			return err
		}
		err := tx.do(ctx, func(t *transaction) {
			t.affected(&swept.Records, `WITH old AS MATERIALIZED (
					SELECT collection, key FROM carillon.records
					WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED
				)
				DELETE FROM carillon.records r USING old WHERE r.collection = ANY (ARRAY[old.collection]) AND r.key = old.key`,
				p.Now.UnixMilli(), p.Limit)
		})
		swept.More = swept.More || swept.Records == p.Limit
		if err != nil || p.FailedBefore.IsZero() {
			return err
		}
		err = tx.do(ctx, func(t *transaction) {
			t.affected(&swept.DeadLetters, `WITH old AS MATERIALIZED (
					SELECT revision, id FROM carillon.occurrences
					WHERE failed_at < $1 ORDER BY failed_at LIMIT $2 FOR UPDATE SKIP LOCKED
				)
				DELETE FROM carillon.occurrences o USING old WHERE o.revision = ANY (ARRAY[old.revision]) AND o.id = old.id`,
				p.FailedBefore.UnixMilli(), p.Limit)
		})
		swept.More = swept.More || swept.DeadLetters == p.Limit
		return err
	})
	return swept, err
}

// sweepJobs deletes expired jobs, and postpones those that are still live. It locks them before it checks that, so that
// no occurrence can be inserted for them meanwhile.
func sweepJobs(ctx context.Context, tx *conversation, p store.SweepParams, swept *store.Swept) error {
	var names []job.Name
	err := tx.do(ctx, func(t *transaction) {
		t.rows(`SELECT tenant, key FROM carillon.jobs
			WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED`,
			func(rows pgx.Rows) error {
				var name job.Name
				err := rows.Scan(&name.Tenant, &name.Key)
				names = append(names, name)
				return err
			}, p.Now.UnixMilli(), p.Limit)
	})
	if err != nil || len(names) == 0 {
		return err
	}
	swept.More = len(names) == p.Limit
	tenants, keys := nameColumns(names)
	return tx.do(ctx, func(t *transaction) {
		t.affected(&swept.Jobs, `DELETE FROM carillon.jobs j USING unnest($1::text[], $2::text[]) AS n (tenant, key)
			WHERE j.tenant = ANY (ARRAY[n.tenant]) AND j.key = n.key AND NOT `+liveSQL, tenants, keys)
		t.exec(`UPDATE carillon.jobs j SET expires_at = $3 FROM unnest($1::text[], $2::text[]) AS n (tenant, key)
			WHERE j.tenant = ANY (ARRAY[n.tenant]) AND j.key = n.key`, tenants, keys, p.Now.Add(p.Again).UnixMilli())
	})
}
