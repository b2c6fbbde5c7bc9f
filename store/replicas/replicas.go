// Package replicas keeps the heartbeats of replicas as records of a store. Operators read them, programs that move a
// store's documents check by them that no replica claims, and replicas take turns by them. No guarantee depends on
// them.
package replicas

import (
	"cmp"
	"context"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// collection has one record for each replica that may be claiming. The key is the replica's id, and the body its report
// on itself, which may be empty. The record expires with the last heartbeat.
const collection = "replicas"

// Beat records that a replica may be claiming until a given time. It also stores the replica's report on itself, which
// may be nil, and its reports on hours.
func Beat(
	ctx context.Context, records store.Records, replica string, tells []byte, now, until time.Time, hours ...Hour,
) error {
	if tells == nil {
		tells = []byte{} // nil would delete the record
	}
	return write(ctx, records, store.RecordChange{
		Collection: collection, Key: replica, Version: job.NewRevision(now), Body: tells, ExpiresAt: until, Now: now,
	}, hours)
}

// Stop records that a replica has stopped claiming, and stores its reports on hours.
func Stop(ctx context.Context, records store.Records, replica string, now time.Time, hours ...Hour) error {
	return write(ctx, records, store.RecordChange{
		Collection: collection, Key: replica, Version: job.NewRevision(now), Now: now,
	}, hours)
}

func write(ctx context.Context, records store.Records, c store.RecordChange, hours []Hour) error {
	changes := []store.RecordChange{c}
	for _, h := range hours {
		changes = append(changes, h.change(c.Key, c.Now))
	}
	return cmp.Or(records.WriteRecords(ctx, changes)...)
}

// Count returns the number of replicas that may be claiming at now.
func Count(ctx context.Context, records store.Records, now time.Time) (int, error) {
	all, err := List(ctx, records, now)
	return len(all), err
}

// Replica is a replica that may be claiming.
type Replica struct {
	ID string
	// Seen is the time of its last heartbeat, by its own clock.
	Seen time.Time
	// Tells is its report on itself; it may be empty.
	Tells []byte
}

// List returns the replicas that may be claiming at now, sorted by id.
func List(ctx context.Context, records store.Records, now time.Time) (all []Replica, err error) {
	for filter := (store.RecordFilter{Collection: collection, Limit: 1000, Now: now}); ; {
		page, err := records.Records(ctx, filter)
		if err != nil {
			return nil, err
		}
		for _, r := range page {
			all = append(all, Replica{ID: r.Key, Seen: now.Add(-r.Version.Age(now)), Tells: r.Body})
		}
		if len(page) < filter.Limit {
			return all, nil
		}
		filter.After = page[len(page)-1].Key
	}
}
