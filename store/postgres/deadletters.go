package postgres

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/carillon-scheduler/carillon/job"
)

// deadSQL are a tenant's dead letters of a list of ids.
const deadSQL = `o.revision = ANY (ARRAY[n.revision]) AND o.id = n.id AND o.tenant = $1 AND o.due_at IS NULL`

// Redrive implements [store.Jobs].
func (s *Store) Redrive(ctx context.Context, tenant string, ids []job.ID, now time.Time) (redriven int, err error) {
	revisions, column := ownColumns(ids)
	err = s.changeOnce(ctx, func(t *transaction) {
		t.affected(&redriven, `UPDATE carillon.occurrences o SET due_at = $4, attempt = 0, failed_at = NULL, last_error = NULL
			FROM unnest($2::uuid[], $3::uuid[]) AS n (revision, id) WHERE `+deadSQL, tenant, revisions, column, now.UnixMilli())
	})
	return redriven, err
}

// DeleteDeadLetters implements [store.Jobs].
func (s *Store) DeleteDeadLetters(ctx context.Context, tenant string, ids []job.ID) (deleted int, err error) {
	revisions, column := ownColumns(ids)
	err = s.changeOnce(ctx, func(t *transaction) {
		t.affected(&deleted, `DELETE FROM carillon.occurrences o USING unnest($2::uuid[], $3::uuid[]) AS n (revision, id)
			WHERE `+deadSQL, tenant, revisions, column)
	})
	return deleted, err
}

// ownColumns are occurrences that stand on their own, by their ids, in the order that rows are locked in, each once.
func ownColumns(ids []job.ID) (revisions, column []pgtype.UUID) {
	for _, id := range slices.Compact(slices.SortedFunc(slices.Values(ids), job.ID.Compare)) {
		revisions, column = append(revisions, own), append(column, uuid(id))
	}
	return revisions, column
}
