package replicas

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// hourCollection has a record per hour of the last day and replica. The key consists of the hour's number since the
// Unix epoch and the replica's id. The record outlives the replica.
const hourCollection = "replica-hours"

// hourFor is the time after its beginning for which an hour is kept.
const hourFor = 25 * time.Hour

// Hour is the report of one replica on one hour.
type Hour struct {
	// Replica is the replica's id. Beat and Stop ignore it, and take the id from their parameter.
	Replica string
	// From is the beginning of the hour.
	From time.Time
	// Tells is the report: not nil, and less than 64 KiB.
	Tells []byte
}

func hourKey(at time.Time) string {
	return fmt.Sprintf("%010d", at.Unix()/int64(time.Hour/time.Second))
}

func (h *Hour) change(replica string, now time.Time) store.RecordChange {
	return store.RecordChange{
		Collection: hourCollection, Key: hourKey(h.From) + "-" + replica, Version: job.NewRevision(now), Body: h.Tells,
		ExpiresAt: h.From.Add(hourFor).Truncate(time.Millisecond), Now: now,
	}
}

// Hours returns the reports of all replicas, also of stopped ones, on the hours since a time, the oldest first.
func Hours(ctx context.Context, records store.Records, since, now time.Time) (all []Hour, err error) {
	for filter := (store.RecordFilter{
		Collection: hourCollection, After: hourKey(since), Limit: 1000, Now: now,
	}); ; {
		page, err := records.Records(ctx, filter)
		if err != nil {
			return nil, err
		}
		for _, r := range page {
			number, replica, _ := strings.Cut(r.Key, "-")
			hour, err := strconv.ParseInt(number, 10, 64)
			if err != nil {
				continue // another version's
			}
			from := time.Unix(hour*int64(time.Hour/time.Second), 0).UTC()
			all = append(all, Hour{Replica: replica, From: from, Tells: r.Body})
		}
		if len(page) < filter.Limit {
			return all, nil
		}
		filter.After = page[len(page)-1].Key
	}
}
