package mongodb

import (
	"context"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/carillon-scheduler/carillon/job"
)

// stagedRevision is the revision of staged occurrences, which were inserted but do not take effect yet. No job has it,
// and they are in the lane of dead letters, where nothing claims or counts them. An insertion has no filter, so it
// can't be bounded by the server's time; the update that unveils the occurrences can. A late insertion stays staged
// until it is swept.
const stagedRevision = "-"

// staged returns an occurrence as it is inserted before it takes effect.
func (s *Store) staged(o *job.Occurrence) occurrenceDocument {
	d := newOccurrenceDocument(o)
	d.Revision, d.Lane, d.Staged = stagedRevision, laneDead, s.clock.now()
	return d
}

// allStaged matches all staged occurrences. In the claim index they are apart from the dead letters, which have no
// dueAt.
func allStaged() bson.M {
	return bson.M{"lane": laneDead, "dueAt": bson.M{"$gt": time.Time{}}}
}

// unveil makes staged occurrences take effect before the context's deadline, or never. Each slice has one revision and
// one lane. It returns how many of all these occurrences exist afterwards and are no longer staged.
func (s *Store) unveil(ctx context.Context, parts [][]job.Occurrence) (there int, err error) {
	type set struct {
		o   *job.Occurrence // the first of the slice
		ids []string
	}
	var sets []set
	n := 0
	for _, occurrences := range parts {
		for part := range slices.Chunk(occurrences, chunk) {
			ids := make([]string, len(part))
			for i := range part {
				ids[i] = part[i].ID.String()
			}
			sets = append(sets, set{o: &part[0], ids: ids})
			n += len(ids)
		}
	}
	if n == 0 {
		return 0, nil
	}
	err = s.inTime(ctx, func(ctx context.Context, inTime bson.M) (bool, error) {
		writes := make([]mongo.WriteModel, len(sets))
		for i, of := range sets {
			writes[i] = mongo.NewUpdateManyModel().SetHint(indexByID).
				SetFilter(both(bson.M{"_id": in(of.ids), "revision": stagedRevision}, inTime)).
				SetUpdate(bson.M{
					"$set":   bson.M{"revision": of.o.Revision, "lane": of.o.Lane().String()},
					"$unset": bson.M{"staged": ""},
				})
		}
		result, err := s.occurrences.BulkWrite(ctx, writes, options.BulkWrite().SetOrdered(false))
		if err != nil {
			return false, err
		}
		there = int(result.MatchedCount)
		return there == n, nil
	})
	if err != nil || there == n {
		return there, err
	}
	there = 0 // some existed before, or are gone
	for _, of := range sets {
		found, err := s.occurrences.CountDocuments(ctx,
			bson.M{"_id": in(of.ids), "revision": bson.M{"$ne": stagedRevision}})
		if err != nil {
			return there, mapError(err)
		}
		there += int(found)
	}
	return there, nil
}

// unstage deletes those of the occurrences that are still staged.
func (s *Store) unstage(ctx context.Context, ids []string) error {
	for part := range slices.Chunk(ids, chunk) {
		_, err := s.occurrences.DeleteMany(ctx, bson.M{"_id": in(part), "revision": stagedRevision},
			options.DeleteMany().SetHint(indexByID))
		if err != nil {
			return mapError(err)
		}
	}
	return nil
}
