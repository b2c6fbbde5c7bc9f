package mongodb

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// DueLanes implements [store.Inspector]. It reads one batch of the index by due times, and nothing else.
func (s *Store) DueLanes(ctx context.Context, p store.DueParams) (store.DuePage, error) {
	// Staged occurrences have due times too, but no lane.
	span := bson.M{"dueAt": bson.M{"$gte": p.After.DueAt, "$lte": p.Until}, "lane": anyLane()}
	if after := p.After; after.Lane != (job.Lane{}) {
		span = bson.M{"$or": bson.A{
			bson.M{"dueAt": after.DueAt, "lane": bson.M{"$gt": after.Lane.String()}},
			bson.M{"dueAt": bson.M{"$gt": after.DueAt, "$lte": p.Until}, "lane": anyLane()},
		}}
	}
	limit := min(p.Limit, chunk)
	entries, err := find[struct {
		Lane  string    `bson:"lane"`
		DueAt time.Time `bson:"dueAt"`
	}](ctx, s.occurrences, span, options.Find().SetSort(keys("dueAt", "lane")).SetLimit(int64(limit)).SetBatchSize(chunk).
		SetProjection(bson.M{"_id": 0, "lane": 1, "dueAt": 1}))
	if err != nil {
		return store.DuePage{}, err
	}
	found := make([]store.DueEntries, len(entries))
	for i, e := range entries {
		lane, err := job.ParseLane(e.Lane)
		if err != nil {
			return store.DuePage{}, err
		}
		found[i] = store.DueEntries{Lane: lane, First: e.DueAt, Last: e.DueAt, N: 1}
	}
	return store.DuePageOf(found, limit), nil
}

// Count implements [store.Inspector]. It counts a lane's due occurrences; if these are fewer than the limit, it counts
// the later ones too, up to the rest of the limit. That takes one or two commands for each lane; the lanes run
// concurrently. An occurrence that is claimed between the two commands is counted twice. In a sharded collection, each
// shard reads up to the limit.
func (s *Store) Count(ctx context.Context, now time.Time, lanes []job.Lane, limit int) ([]store.Count, error) {
	if len(lanes) == 0 {
		all, err := s.countAll(ctx, now)
		return []store.Count{all}, err
	}
	counts := make([]store.Count, len(lanes))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for i, l := range lanes {
		group.Go(func() error {
			due, err := s.count(ctx, bson.M{"lane": l.String(), "dueAt": bson.M{"$lte": now}}, limit)
			if err != nil || due == limit {
				counts[i] = store.Count{Pending: due, Due: due}
				return err
			}
			later, err := s.count(ctx, bson.M{"lane": l.String(), "dueAt": bson.M{"$gt": now}}, limit-due)
			counts[i] = store.Count{Pending: due + later, Due: due}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return counts, nil
}

// Sample implements [store.Inspector] by two commands: one finds the occurrences, the other reads their jobs.
func (s *Store) Sample(ctx context.Context, lane job.Lane, from time.Time, limit int) ([]store.Sampled, error) {
	found, err := find[occurrenceDocument](ctx, s.occurrences,
		bson.M{"lane": lane.String(), "dueAt": bson.M{"$gte": from}},
		options.Find().SetSort(keys("dueAt", "_id")).SetLimit(int64(limit)).
			SetProjection(bson.M{"_id": 0, "dueAt": 1, "tenant": 1, "key": 1, "revision": 1, "callback": 1, "heirs": 1}))
	if err != nil {
		return nil, err
	}
	jobs := map[string]jobDocument{}
	if ids := jobIDs(found); len(ids) > 0 {
		all, err := find[jobDocument](ctx, s.jobs, bson.M{"_id": in(ids)},
			options.Find().SetProjection(bson.M{"revision": 1, "callback": 1}))
		if err != nil {
			return nil, err
		}
		for i := range all {
			jobs[all[i].ID] = all[i]
		}
	}
	sampled := make([]store.Sampled, len(found))
	for i := range found {
		d := &found[i]
		d.inherit(jobs[d.jobID()].Revision)
		sampled[i].DueAt = d.DueAt
		if d.Callback != nil {
			sampled[i].Callback = job.Callback{Type: d.Callback.Type, Data: d.Callback.Data}
		} else if j := jobs[d.jobID()]; j.Revision == d.Revision {
			sampled[i].Callback = job.Callback{Type: j.Callback.Type, Data: j.Callback.Data}
		}
	}
	return sampled, nil
}

// countable bounds the documents that are counted one by one. Above it, the server's own estimate is used, which can be
// slightly wrong after a crash of the server or, on a sharded cluster, after a migration.
const countable = 100_000

// countAll counts the occurrences and dead letters of the whole store, by its indexes of due times and of lanes.
func (s *Store) countAll(ctx context.Context, now time.Time) (c store.Count, err error) {
	if c.Due, err = s.count(ctx, bson.M{"dueAt": bson.M{"$lte": now}, "lane": anyLane()}, 0); err != nil {
		return store.Count{}, err
	}
	if c.DeadLetters, err = s.count(ctx, bson.M{"lane": laneDead}, 0); err != nil {
		return store.Count{}, err
	}
	staged, err := s.count(ctx, allStaged(), 0)
	if err != nil {
		return store.Count{}, err
	}
	c.DeadLetters = max(c.DeadLetters-staged, 0)
	if c.Pending, err = s.count(ctx, bson.M{"lane": anyLane()}, countable+1); err != nil || c.Pending <= countable {
		return c, err
	}
	all, err := s.occurrences.EstimatedDocumentCount(ctx)
	if err != nil {
		return store.Count{}, mapError(err)
	}
	c.Pending = max(c.Pending, c.Due, int(all)-c.DeadLetters)
	return c, nil
}

// count counts the occurrences that match, up to limit, if it is not zero. No field is asked for that the claim index
// lacks.
func (s *Store) count(ctx context.Context, filter bson.M, limit int) (int, error) {
	opts := options.Count()
	if limit > 0 {
		opts.SetLimit(int64(limit))
	}
	n, err := s.occurrences.CountDocuments(ctx, filter, opts)
	return int(n), mapError(err)
}
