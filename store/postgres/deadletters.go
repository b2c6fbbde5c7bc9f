package postgres

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// deadSQL is the condition that selects a tenant's dead letters by a list n of ids.
const deadSQL = `o.revision = ANY (ARRAY[n.revision]) AND o.id = n.id AND o.tenant = $1 AND o.due_at IS NULL`

// SettleDead implements [store.Jobs].
func (s *Store) SettleDead(ctx context.Context, d store.DeadSettlement) (settled int, err error) {
	revisions, column := ownColumns(d.IDs)
	query, args := `UPDATE carillon.occurrences o SET due_at = $4, attempt = 0, failed_at = NULL, last_error = NULL
		FROM unnest($2::uuid[], $3::uuid[]) AS n (revision, id) WHERE `+deadSQL, []any{d.Tenant, revisions, column}
	if d.Outcome == store.Discard {
		query = `DELETE FROM carillon.occurrences o USING unnest($2::uuid[], $3::uuid[]) AS n (revision, id) WHERE ` + deadSQL
	} else {
		args = append(args, d.Now.UnixMilli())
	}
	err = s.changeOnce(ctx, func(t *transaction) { t.affected(&settled, query, args...) })
	return settled, err
}

// ownColumns returns the keys of standalone occurrences by their ids, each once, in the order of row locks.
func ownColumns(ids []job.ID) (revisions, column []pgtype.UUID) {
	for _, id := range slices.Compact(slices.SortedFunc(slices.Values(ids), job.ID.Compare)) {
		revisions, column = append(revisions, own), append(column, uuid(id))
	}
	return revisions, column
}
