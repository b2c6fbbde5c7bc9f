package bench

import (
	"context"
	"fmt"
)

// rawStore is the least that a store's own client must do to fire rows, as fast as simple code can: what bounds a
// scheduler on that store. The rows have an id, a unique key in no order, a due time with an index, and the payload.
type rawStore interface {
	// Fill inserts rows that are due, in batches, each on disk as the store promises before the next.
	Fill(ctx context.Context, w *Work) error
	// Drain claims and deletes all rows: a batch is claimed by one write that gives it a token and a later due time and
	// reads its payloads, and deleted by another one. Workers do so at the same time. It answers how many there were.
	Drain(ctx context.Context, workers int) (int, error)
	// Close removes what was made.
	Close(ctx context.Context) error
}

// rawBatch is how many rows a bare client claims, deletes or inserts at once.
const rawBatch = 1000

// openRaw opens the bare client of the store that is measured.
func (b *Bench) openRaw(ctx context.Context) (rawStore, error) {
	switch kind := storeKind(b.Store); kind {
	case "sqlite":
		return openRawSQLite(ctx)
	case "postgres":
		return openRawPostgres(ctx, b.Store)
	case "redis":
		return openRawRedis(ctx, b.Store)
	case "mongodb":
		return openRawMongoDB(ctx, b.Store)
	default:
		return nil, fmt.Errorf("there is no bare client for %s", kind)
	}
}
