// Package replicas keeps the heartbeats of replicas as records of a store. They serve operators, and programs that
// check for claiming replicas before they move a store's documents. No claim depends on them.
package replicas

import (
	"context"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// collection has one record for each replica that may be claiming. The key is the replica's id; the body is empty. The
// record expires with the last heartbeat.
const collection = "replicas"

// Beat records that the replica with this id may be claiming until a time.
func Beat(ctx context.Context, records store.Records, replica string, now, until time.Time) error {
	return write(ctx, records, store.RecordChange{
		Collection: collection, Key: replica, Version: job.NewRevision(now), Body: []byte{}, ExpiresAt: until, Now: now,
	})
}

// Stop records that a replica has stopped claiming.
func Stop(ctx context.Context, records store.Records, replica string, now time.Time) error {
	return write(ctx, records, store.RecordChange{
		Collection: collection, Key: replica, Version: job.NewRevision(now), Now: now,
	})
}

func write(ctx context.Context, records store.Records, c store.RecordChange) error {
	return records.WriteRecords(ctx, []store.RecordChange{c})[0]
}

// Count returns the number of replicas that may be claiming at now.
func Count(ctx context.Context, records store.Records, now time.Time) (int, error) {
	n := 0
	for filter := (store.RecordFilter{Collection: collection, Limit: 1000, Now: now}); ; {
		page, err := records.Records(ctx, filter)
		if err != nil {
			return 0, err
		}
		if n += len(page); len(page) < filter.Limit {
			return n, nil
		}
		filter.After = page[len(page)-1].Key
	}
}
