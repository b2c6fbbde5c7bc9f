package mongodb

import (
	"context"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// deadLetters matches all dead letters. It names dueAt, which they don't have, because the index has dueAt before the
// id.
func deadLetters() bson.M {
	return bson.M{"lane": laneDead, "dueAt": bson.M{"$exists": false}}
}

// DeadLetters implements [store.Jobs].
func (s *Store) DeadLetters(ctx context.Context, f store.DeadLetterFilter) ([]job.Occurrence, error) {
	id := bson.M{"$gt": f.After.String()}
	if f.ID != (job.ID{}) {
		id["$eq"] = f.ID.String()
	}
	filter := both(deadLetters(), bson.M{"revision": "", "tenant": f.Tenant, "_id": id})
	key := bson.M{}
	if f.Key != "" {
		key["$eq"] = f.Key
	}
	if f.Prefix != "" {
		key["$gte"] = f.Prefix
		if end := beyond(f.Prefix); end != "" {
			key["$lt"] = end
		}
	}
	if len(key) > 0 {
		filter["key"] = key
	}
	if f.Brief {
		return s.page(ctx, filter, f.Limit, bson.M{"callback.data": 0})
	}
	return s.page(ctx, filter, f.Limit, nil)
}

// SettleDead implements [store.Jobs].
func (s *Store) SettleDead(ctx context.Context, d store.DeadSettlement) (int, error) {
	ctx, cancel := within(ctx)
	defer cancel()
	if d.Outcome == store.Discard {
		return s.discard(ctx, d.Tenant, texts(d.IDs))
	}
	return s.redrive(ctx, d.Tenant, texts(d.IDs), d.Now)
}

// redrive makes dead letters due. It reads their priorities first, which never change, because it writes those of one
// lane at once.
func (s *Store) redrive(ctx context.Context, tenant string, ids []string, now time.Time) (redriven int, err error) {
	for part := range slices.Chunk(ids, chunk) {
		dead := both(deadLetters(), bson.M{"_id": in(part), "tenant": tenant})
		found, err := find[occurrenceDocument](ctx, s.occurrences, dead,
			options.Find().SetProjection(bson.M{"priority": 1}))
		if err != nil {
			return redriven, partly(redriven, notDone(err))
		}
		idsByLane := make(map[job.Lane][]string)
		for i := range found {
			l := job.Lane{Tenant: tenant, Priority: job.PriorityOf(found[i].Priority)}
			idsByLane[l] = append(idsByLane[l], found[i].ID)
		}
		for l, ids := range idsByLane {
			n := 0
			err := s.inTime(ctx, func(ctx context.Context, inTime bson.M) (bool, error) {
				dead := both(deadLetters(), bson.M{"_id": in(ids)})
				result, err := s.occurrences.UpdateMany(ctx, both(dead, inTime), bson.M{
					"$set":   bson.M{"lane": l.String(), "dueAt": now, "attempt": 0},
					"$unset": bson.M{"failedAt": "", "lastError": ""},
					"$inc":   bson.M{"redrives": 1},
				})
				if err != nil {
					return false, err
				}
				n = int(result.MatchedCount)
				return n > 0, nil
			})
			redriven += n
			if err != nil {
				return redriven, partly(redriven, err)
			}
		}
	}
	return redriven, nil
}

// partly returns the error of a mutation of many documents, some of which were changed.
func partly(changed int, err error) error {
	if changed > 0 {
		return unknown(err)
	}
	return err
}

// discard deletes dead letters.
func (s *Store) discard(ctx context.Context, tenant string, ids []string) (deleted int, err error) {
	for part := range slices.Chunk(ids, chunk) {
		n, err := s.deleteInTime(ctx, both(deadLetters(), bson.M{"_id": in(part), "tenant": tenant}))
		deleted += n
		if err != nil {
			return deleted, partly(deleted, err)
		}
	}
	return deleted, nil
}
