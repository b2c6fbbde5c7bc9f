// Package checkins keeps the check-ins of jobs that expect them as records of a store.
package checkins

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// collection has a record for each check-in. The key is the tenant, the job's key and the instant in Unix milliseconds,
// with slashes between them.
const collection = "check-ins"

// CheckIn is the report of a job's receiver that the work of an instant is done.
type CheckIn struct {
	Name job.Name
	// At is the instant.
	At time.Time
	// ExpiresAt is the time until which it is kept.
	ExpiresAt time.Time
}

func key(of job.Name, at time.Time) string {
	return of.Tenant + "/" + of.Key + "/" + strconv.FormatInt(at.UnixMilli(), 10)
}

// Keep writes check-ins, and returns how many were not known before. Keeping one again changes nothing. The errors are
// those of [store.Records]; all are tried, and the first error is returned.
func Keep(ctx context.Context, records store.Records, all []CheckIn, now time.Time) (added int, err error) {
	changes := make([]store.RecordChange, len(all))
	for i, c := range all {
		changes[i] = store.RecordChange{
			Collection: collection, Key: key(c.Name, c.At), Version: job.NewRevision(now), Body: []byte("{}"),
			ExpiresAt: c.ExpiresAt, If: store.RecordCondition{Absent: true}, Now: now,
		}
	}
	if len(changes) == 0 {
		return 0, nil
	}
	for _, answer := range records.WriteRecords(ctx, changes) {
		switch {
		case answer == nil:
			added++
		case err == nil && !errors.Is(answer, store.ErrPrecondition):
			err = answer
		}
	}
	return added, err
}

// Has reports whether the check-in after an instant has come.
func Has(ctx context.Context, records store.Records, of job.Name, at, now time.Time) (bool, error) {
	found, err := records.Records(ctx, store.RecordFilter{
		Collection: collection, Keys: []string{key(of, at)}, Limit: 1, Now: now,
	})
	return len(found) > 0, err
}

// List returns a page of check-ins in a fixed order: those after a place, which is empty at first. Next is the place
// behind the page, and empty if it is the last one.
func List(
	ctx context.Context, records store.Records, after string, limit int, now time.Time,
) (page []CheckIn, next string, err error) {
	found, err := records.Records(ctx, store.RecordFilter{Collection: collection, After: after, Limit: limit, Now: now})
	if err != nil {
		return nil, "", err
	}
	for _, r := range found {
		tenant, rest, _ := strings.Cut(r.Key, "/")
		slash := strings.LastIndexByte(rest, '/')
		if slash < 0 {
			return nil, "", fmt.Errorf("%q is no check-in", r.Key)
		}
		at, err := strconv.ParseInt(rest[slash+1:], 10, 64)
		if err != nil {
			return nil, "", fmt.Errorf("%q is no check-in: %w", r.Key, err)
		}
		page = append(page, CheckIn{
			Name: job.Name{Tenant: tenant, Key: rest[:slash]}, At: time.UnixMilli(at).UTC(), ExpiresAt: r.ExpiresAt,
		})
	}
	if len(found) == limit {
		next = found[limit-1].Key
	}
	return page, next, nil
}
