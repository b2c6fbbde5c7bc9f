package postgres

import (
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// errRaced is the error of a transaction that must be repeated, because another one changed its jobs meanwhile.
var errRaced = errors.New("concurrent calls changed the same jobs in every attempt")

// Cancel implements [store.Jobs]. It is one transaction. It deletes the jobs first, so that no more occurrences are
// inserted for them. If a claim has just taken one of their occurrences, it waits for that claim, and counts the
// occurrence as held.
//
// A name without a job has no row to lock. So Cancel inserts a row, and deletes it like a job. Until this transaction
// ends, no job of that name can be put, and Cancel waits for a put under way. Otherwise it could return that there is
// no such job, and a job that was submitted earlier would appear afterwards. This row is deleted for every condition.
func (s *Store) Cancel(ctx context.Context, names []job.Name, asked store.Asked) ([]store.CancelResult, error) {
	of := make(map[job.Name]int, len(names)) // for a repeated name, the first result gets everything
	for i, n := range slices.Backward(names) {
		of[n] = i
	}
	ordered := slices.SortedFunc(slices.Values(names), compareNames)
	ordered = slices.DeleteFunc(slices.Compact(ordered), func(n job.Name) bool { return !storable(n.Tenant, n.Key) })
	tenants, keys := nameColumns(ordered)
	var results []store.CancelResult
	err := s.change(ctx, store.ErrNotDone, func(ctx context.Context, tx *conversation) error {
		results = make([]store.CancelResult, len(names))
		var revisions []pgtype.UUID
		revisionOf := make(map[pgtype.UUID]int, len(ordered))
		var left []job.Name // those that may be cancelled
		decided := 0
		refuse := func(name job.Name, why error) {
			results[of[name]].Err = why
			decided++
		}
		versions := make([]string, len(asked.If.Versions)) // not nil: that would be NULL
		for i, v := range asked.If.Versions {
			versions[i] = string(v)
		}
		err := tx.do(ctx, func(t *transaction) {
			t.exec(`INSERT INTO carillon.jobs (tenant, key, revision, version, created_at, updated_at, expires_at, missed,
					callback_type, callback_data, schedule)
				SELECT tenant, key, $3, '', 0, 0, 0, 0, '', '', '' FROM unnest($1::text[], $2::text[]) AS n (tenant, key)
				ON CONFLICT (tenant, key) DO NOTHING`, tenants, keys, own)
			t.rows(`DELETE FROM carillon.jobs j USING unnest($1::text[], $2::text[]) AS n (tenant, key)
				WHERE j.tenant = ANY (ARRAY[n.tenant]) AND j.key = n.key AND NOT (j.version > $3 AND j.version <= $4)
					AND (j.revision = $5 OR NOT $6 AND (cardinality($7::text[]) = 0 OR j.version = ANY ($7)))
				RETURNING j.tenant, j.key, j.revision`,
				func(rows pgx.Rows) error {
					var name job.Name
					var revision pgtype.UUID
					if err := rows.Scan(&name.Tenant, &name.Key, &revision); err != nil {
						return err
					}
					if revision != own {
						results[of[name]].Found = true
						revisions, revisionOf[revision] = append(revisions, revision), of[name]
					} else if why := asked.Judge(""); why != nil {
						refuse(name, why)
						return nil
					}
					left = append(left, name)
					return nil
				}, tenants, keys, string(asked.Newer.After), string(asked.Newer.Until), own, asked.If.Absent, versions)
			t.rows(`SELECT j.tenant, j.key, j.version FROM unnest($1::text[], $2::text[]) AS n (tenant, key)
				JOIN carillon.jobs j ON j.tenant = ANY (ARRAY[n.tenant]) AND j.key = n.key`,
				func(rows pgx.Rows) error {
					var name job.Name
					var version string
					if err := rows.Scan(&name.Tenant, &name.Key, &version); err != nil {
						return err
					}
					if why := asked.Judge(job.Revision(version)); why != nil {
						refuse(name, why)
					}
					return nil
				}, tenants, keys)
		})
		if err != nil {
			return err
		}
		if len(left)+decided != len(ordered) {
			return errRaced // a job was deleted meanwhile, or put again
		}
		slices.SortFunc(left, compareNames)
		tenants, keys := nameColumns(left)
		return tx.do(ctx, func(t *transaction) {
			// The order is that of row locks. Occurrences that were buried meanwhile stay.
			t.rows(`WITH found AS MATERIALIZED (
					SELECT revision, id FROM (
						SELECT o.revision, o.id FROM unnest($1::uuid[]) AS r (revision)
						JOIN carillon.occurrences o ON o.revision = ANY (ARRAY[r.revision])
						UNION ALL
						SELECT o.revision, o.id FROM unnest($2::text[], $3::text[]) AS n (tenant, key)
						JOIN carillon.occurrences o ON o.tenant = ANY (ARRAY[n.tenant]) AND o.key = n.key
							AND o.tenant IS NOT NULL AND o.due_at IS NOT NULL
					) AS all_of_them ORDER BY revision, id
				), deleted AS (
					DELETE FROM carillon.occurrences o USING found f
					WHERE o.revision = ANY (ARRAY[f.revision]) AND o.id = f.id AND o.due_at IS NOT NULL
					RETURNING o.revision, o.tenant, o.key, o.token IS NOT NULL AND o.due_at > $4 AS held
				)
				SELECT revision, tenant, key, count(*) FILTER (WHERE NOT held), count(*) FILTER (WHERE held) FROM deleted
				GROUP BY revision, tenant, key`,
				func(rows pgx.Rows) error {
					var revision pgtype.UUID
					var tenant, key *string
					var cancelled, held int
					err := rows.Scan(&revision, &tenant, &key, &cancelled, &held)
					i, ofJob := revisionOf[revision]
					if !ofJob {
						i = of[job.Name{Tenant: orEmpty(tenant), Key: orEmpty(key)}]
					}
					results[i].Found = true
					results[i].Cancelled += cancelled
					results[i].InFlight += held
					return err
				}, revisions, tenants, keys, asked.Now.UnixMilli())
		})
	})
	if err != nil {
		return nil, err
	}
	return results, nil
}
