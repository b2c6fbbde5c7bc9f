package bench

import (
	"context"
	"fmt"
)

// rawStore is the least that a store's own client must do to fire rows, as fast as simple code can: what bounds a
// scheduler on that store. The rows have an id, a unique key in no order, a due time with an index, and the payload.
type rawStore interface {
	// Upsert inserts rows by one write, which is on disk when it returns, as far as the store promises that. One with a key
	// that is there replaces it.
	Upsert(ctx context.Context, rows []rawRow) error
	// Drain claims and deletes all rows that are due: a batch is claimed by one write that gives it a token and a later due
	// time and reads its payloads, and deleted by another one. Workers do so at the same time. It answers how many there were.
	Drain(ctx context.Context, workers int) (int, error)
	// Close removes what was made.
	Close(ctx context.Context) error
}

// rawRow is what a bare client keeps of a job.
type rawRow struct {
	key     string
	dueAt   int64 // Unix milliseconds
	payload []byte
}

// rawBatch is how many rows a bare client claims, deletes or inserts at once.
const rawBatch = 1000

// openRaw opens the bare client of a store.
func openRaw(ctx context.Context, rawURL string) (rawStore, error) {
	switch kind := storeKind(rawURL); kind {
	case "sqlite":
		return openRawSQLite(ctx)
	case "postgres":
		return openRawPostgres(ctx, rawURL)
	case "redis":
		return openRawRedis(ctx, rawURL)
	case "mongodb":
		return openRawMongoDB(ctx, rawURL)
	default:
		return nil, fmt.Errorf("there is no bare client for %s", kind)
	}
}

// upsertAll inserts the rows of the work, a batch after the other.
func upsertAll(ctx context.Context, r rawStore, w *Work) error {
	rows := make([]rawRow, 0, rawBatch)
	for from := w.From; from < w.From+w.Count; from += rawBatch {
		rows = rows[:0]
		for i := from; i < min(from+rawBatch, w.From+w.Count); i++ {
			rows = append(rows, rawRow{w.key(i), w.instant(i).UnixMilli(), w.appendPayload(nil, i)})
		}
		if err := r.Upsert(ctx, rows); err != nil {
			return err
		}
	}
	return nil
}
