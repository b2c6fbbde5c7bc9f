package postgres

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/carillon-scheduler/carillon/job"
)

// Redrive implements [store.Jobs].
func (s *Store) Redrive(ctx context.Context, tenant string, ids []job.ID, now time.Time) (redriven int, err error) {
	err = s.transact(ctx, func(t *transaction) {
		t.affected(&redriven, `UPDATE carillon.occurrences o SET due_at = $3, attempt = 0, failed_at = NULL, last_error = NULL
			FROM unnest($2::uuid[]) AS n (id) WHERE o.id = ANY (ARRAY[n.id]) AND o.tenant = $1 AND o.due_at IS NULL`,
			tenant, idColumn(ids), now.UnixMilli())
	})
	return redriven, err
}

// DeleteDeadLetters implements [store.Jobs].
func (s *Store) DeleteDeadLetters(ctx context.Context, tenant string, ids []job.ID) (deleted int, err error) {
	err = s.transact(ctx, func(t *transaction) {
		t.affected(&deleted, `DELETE FROM carillon.occurrences o USING unnest($2::uuid[]) AS n (id)
			WHERE o.id = ANY (ARRAY[n.id]) AND o.tenant = $1 AND o.due_at IS NULL`, tenant, idColumn(ids))
	})
	return deleted, err
}

// idColumn is the ids in their order, which is the order that rows are locked in, each once.
func idColumn(ids []job.ID) []pgtype.UUID {
	ordered := slices.Compact(slices.SortedFunc(slices.Values(ids), job.ID.Compare))
	column := make([]pgtype.UUID, len(ordered))
	for i, id := range ordered {
		column[i] = uuid(id)
	}
	return column
}
