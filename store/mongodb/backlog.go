package mongodb

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/carillon-scheduler/carillon/store"
)

// countable is up to how many documents are counted one by one. Of more, the server has a number of its own, which a crash of
// it, and on a sharded cluster a migration, can leave a little off.
const countable = 100_000

// Backlog implements [store.Queue]. All but that number is counted in the claim index.
func (s *Store) Backlog(ctx context.Context, now time.Time) (b store.Backlog, err error) {
	lanes, err := s.Lanes(ctx)
	if err != nil {
		return store.Backlog{}, err
	}
	for _, l := range lanes {
		if !l.DueAt.After(now) {
			b.OldestDue = earliest(b.OldestDue, l.DueAt)
		}
	}
	if b.Due, err = s.count(ctx, bson.M{"lane": anyLane(), "dueAt": bson.M{"$lte": now}}, 0); err != nil {
		return store.Backlog{}, err
	}
	if b.DeadLetters, err = s.count(ctx, bson.M{"lane": laneDead}, 0); err != nil {
		return store.Backlog{}, err
	}
	if b.Pending, err = s.count(ctx, bson.M{"lane": anyLane()}, countable+1); err != nil || b.Pending <= countable {
		return b, err
	}
	all, err := s.occurrences.EstimatedDocumentCount(ctx)
	if err != nil {
		return store.Backlog{}, mapError(err)
	}
	b.Pending = max(b.Pending, b.Due, int(all)-b.DeadLetters)
	return b, nil
}

// count counts the occurrences that match, up to limit, if it is not zero. No field is asked for that the claim index lacks.
func (s *Store) count(ctx context.Context, filter bson.M, limit int64) (int, error) {
	opts := options.Count()
	if limit > 0 {
		opts.SetLimit(limit)
	}
	n, err := s.occurrences.CountDocuments(ctx, filter, opts)
	return int(n), mapError(err)
}
