package bench

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/carillon-scheduler/carillon/job"
)

// rawStore is the bound of any scheduler on a store: the store's own client accepts jobs of one instant and claims and
// deletes their occurrences, as fast as simple code can. It uses the store's rows and indexes for such jobs, and no
// other code of Carillon.
type rawStore interface {
	// Upsert writes jobs and their occurrences. They are on disk when it returns, as far as the store promises that. It
	// replaces a job with the same key and instant.
	Upsert(ctx context.Context, rows []rawRow) error
	// Take claims up to rawBatch due occurrences by one write, which stamps them as the store does, and deletes them by
	// another, by their ids and the token. It returns their number; zero means that no more are due. Calls may run
	// concurrently. Take does not read callbacks: a scheduler could keep them where it needs no reading.
	Take(ctx context.Context, c rawClaim) (int, error)
	// Close deletes the rows and closes the connections.
	Close(ctx context.Context) error
}

// rawRow holds the fields of a job and its only occurrence that differ between jobs. Times are Unix milliseconds.
type rawRow struct {
	key, revision    string
	id               job.ID
	at, now, expires int64
	data             []byte // of the callback
	schedule         []byte
}

func newRawRow(key string, at time.Time, data []byte) rawRow {
	now := time.Now()
	r := rawRow{key: key, revision: string(job.NewRevision(now)), at: at.UnixMilli(), now: now.UnixMilli(), data: data}
	r.id = job.DeliveryID(job.Name{Tenant: job.DefaultTenant, Key: key}, at, 0, "") // the same id for the same instant
	r.expires = max(r.now, r.at) + (24 * time.Hour).Milliseconds()
	r.schedule = append(strconv.AppendInt([]byte(`{"instants":[`), r.at, 10), "]}"...)
	return r
}

// rawClaim is the stamp of a claim: due occurrences get its token and a lease that ends at until. Times are Unix
// milliseconds.
type rawClaim struct {
	token      string
	now, until int64
}

// rawBatch is the number of rows that a bare client claims, deletes or inserts at once.
const rawBatch = 1000

// openRaw opens the bare client of a store. The store must have been opened before.
func openRaw(ctx context.Context, rawURL string) (rawStore, error) {
	switch kind := storeKind(rawURL); kind {
	case "sqlite":
		return openRawSQLite(ctx, rawURL)
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

// upsertBy writes the jobs of the work with a number of workers, each batch after batch.
func upsertBy(ctx context.Context, r rawStore, w *Work, workers int) error {
	var all errgroup.Group
	for i := range workers {
		from := w.From + i*w.Count/workers
		end := w.From + (i+1)*w.Count/workers
		all.Go(func() error {
			rows := make([]rawRow, 0, rawBatch)
			for from < end {
				to := min(from+rawBatch, end)
				rows = rows[:0]
				for ; from < to; from++ {
					rows = append(rows, newRawRow(w.key(from), job.CeilMilli(w.instant(from)), w.appendData(nil, from)))
				}
				if err := r.Upsert(ctx, rows); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return all.Wait()
}

// drainBy takes all due occurrences with a number of workers, and returns their number.
func drainBy(ctx context.Context, r rawStore, workers int) (int, error) {
	var sum atomic.Int64
	var all errgroup.Group
	for range workers {
		all.Go(func() error {
			for {
				now := time.Now()
				n, err := r.Take(ctx, rawClaim{job.NewToken(), now.UnixMilli(), now.Add(time.Minute).UnixMilli()})
				if n == 0 || err != nil {
					return err
				}
				sum.Add(int64(n))
			}
		})
	}
	err := all.Wait()
	return int(sum.Load()), err
}
