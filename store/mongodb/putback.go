package mongodb

import (
	"context"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// returned is an occurrence that was claimed and is not to fire now.
type returned struct {
	*occurrenceDocument
	dueAt  time.Time
	drop   bool // rather than make it due again
	paused bool // its job is
}

// putBack gives back what is not to fire now. One for which that fails is claimed again at its lease's end.
func (s *Store) putBack(ctx context.Context, p store.ClaimParams, back []returned) {
	if len(back) == 0 {
		return
	}
	writes := make([]mongo.WriteModel, len(back))
	for i, r := range back {
		still := bson.M{"_id": r.ID, "token": r.Token}
		if r.drop {
			writes[i] = mongo.NewDeleteOneModel().SetFilter(still)
		} else {
			writes[i] = mongo.NewUpdateOneModel().SetFilter(still).SetUpdate(unclaim(r.dueAt))
		}
	}
	_, _ = s.occurrences.BulkWrite(ctx, writes, options.BulkWrite().SetOrdered(false))
	s.catchResumes(ctx, p.Now, back)
}

// catchResumes looks again at the jobs whose occurrences have just been put back because of a pause. A resume in between
// did not bring those forward, since they were claimed. One that comes later does.
func (s *Store) catchResumes(ctx context.Context, now time.Time, back []returned) {
	paused := make(map[string][]returned)
	for _, r := range back {
		if r.paused {
			id := jobID(job.Name{Tenant: r.Tenant, Key: r.Key})
			paused[id] = append(paused[id], r)
		}
	}
	ids := make([]string, 0, len(paused))
	for id := range paused {
		ids = append(ids, id)
	}
	var forward []string
	for part := range slices.Chunk(ids, chunk) {
		found, err := s.present(ctx, part...)
		if err != nil {
			continue // they wait for as long as they were put back for
		}
		for id, present := range found {
			for _, r := range paused[id] {
				if !present.paused && r.Revision == string(present.revision) {
					forward = append(forward, r.ID)
				}
			}
		}
	}
	if len(forward) > 0 {
		_ = s.bringForward(ctx, bson.M{"_id": in(forward)}, now)
	}
}

// bringForward makes those occurrences due at now that are not claimed and whose instants have passed.
func (s *Store) bringForward(ctx context.Context, of bson.M, now time.Time) error {
	_, err := s.occurrences.UpdateMany(ctx,
		both(of, bson.M{"token": absent(), "timestamp": bson.M{"$lte": now}, "dueAt": bson.M{"$gt": now}}),
		bson.M{"$set": bson.M{"dueAt": now}})
	return mapError(err)
}
