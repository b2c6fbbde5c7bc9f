package mongodb

import (
	"context"
	"time"

	"github.com/oklog/ulid/v2"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Sweep implements [store.Queue]. Once a job has a revision, that revision gets new occurrences only by expansion, now
// or after a resume. The index by which remaining occurrences are counted has no field that a claim or a settlement
// changes. So a job that was found to have finished has still finished as long as its version is the same.
func (s *Store) Sweep(ctx context.Context, p store.SweepParams) (swept store.Swept, err error) {
	if err := s.sweepJobs(ctx, p, &swept); err != nil {
		return swept, err
	}
	if err := s.sweepUnfinished(ctx, p.Now); err != nil {
		return swept, err
	}
	if err := s.sweepRecords(ctx, p, &swept); err != nil {
		return swept, err
	}
	if p.FailedBefore.IsZero() {
		return swept, nil
	}
	err = s.sweepDeadLetters(ctx, p, &swept)
	return swept, err
}

// sweepJobs deletes expired jobs that have finished, and postpones the expiry of the others.
func (s *Store) sweepJobs(ctx context.Context, p store.SweepParams, swept *store.Swept) error {
	expired, err := find[jobDocument](ctx, s.jobs, both(bson.M{"expiresAt": bson.M{"$lte": p.Now}}, realJobs()),
		options.Find().SetSort(keys("expiresAt")).SetLimit(int64(p.Limit)).
			SetProjection(bson.M{
				"tenant": 1, "key": 1, "revision": 1, "version": 1, "pausedAt": 1, "cursor": 1, "expandAt": 1, "inherits": 1,
			}))
	if err != nil || len(expired) == 0 {
		return err
	}
	swept.More = len(expired) == p.Limit
	if err := s.inheritAll(ctx, expired); err != nil {
		return err
	}
	live, err := s.live(ctx, expired)
	if err != nil {
		return err
	}
	writes := make([]mongo.WriteModel, len(expired))
	for i, d := range expired {
		same := bson.M{"_id": d.ID, "version": d.Version, "expiresAt": bson.M{"$lte": p.Now}}
		if live[d.Revision] {
			later := bson.M{"$set": bson.M{"expiresAt": p.Now.Add(p.Again)}}
			writes[i] = mongo.NewUpdateOneModel().SetFilter(same).SetUpdate(later)
		} else {
			writes[i] = mongo.NewDeleteOneModel().SetFilter(same)
		}
	}
	result, err := s.jobs.BulkWrite(ctx, writes, options.BulkWrite().SetOrdered(false))
	if err != nil {
		return mapError(err)
	}
	swept.Jobs = int(result.DeletedCount)
	return nil
}

// sweepDeadLetters deletes old dead letters. An occurrence's instant, which begins its id, is never after its failure.
// So the ids below the bound, which the index has in order, include all dead letters that failed before it.
func (s *Store) sweepDeadLetters(ctx context.Context, p store.SweepParams, swept *store.Swept) error {
	var bound job.ID
	if err := bound.SetTime(ulid.Timestamp(p.FailedBefore) + 1); err != nil {
		return err
	}
	old := both(deadLetters(), bson.M{"failedAt": bson.M{"$lt": p.FailedBefore}, "_id": bson.M{"$lt": bound.String()}})
	found, err := find[occurrenceDocument](ctx, s.occurrences, old,
		options.Find().SetSort(keys("_id")).SetLimit(int64(p.Limit)).SetProjection(bson.M{"_id": 1}))
	if err != nil || len(found) == 0 {
		return err
	}
	swept.More = swept.More || len(found) == p.Limit
	old["_id"] = in(occurrenceIDs(found))
	result, err := s.occurrences.DeleteMany(ctx, old)
	if err != nil {
		return mapError(err)
	}
	swept.DeadLetters = int(result.DeletedCount)
	return nil
}

// sweepUnfinished deletes the remains of interrupted puts, triggers and expansions: stubs of jobs, and occurrences that
// are staged. It waits for an hour, far longer than a mutation may take.
func (s *Store) sweepUnfinished(ctx context.Context, now time.Time) error {
	if _, err := s.jobs.DeleteMany(ctx, both(stubs(), bson.M{"expiresAt": bson.M{"$lte": now}})); err != nil {
		return mapError(err)
	}
	old := bson.M{"staged": bson.M{"$lt": s.clock.now().Add(-time.Hour)}}
	_, err := s.occurrences.DeleteMany(ctx, both(allStaged(), old))
	return mapError(err)
}
