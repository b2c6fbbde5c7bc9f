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

// Lanes implements [store.Stock]. It goes through the claim index from each lane's first entry to the next lane's, so it takes
// one command more than there are lanes. An aggregation could answer it with one, but where the collection is sharded it
// would read all entries.
func (s *Store) Lanes(ctx context.Context) (lanes []store.LaneDue, err error) {
	for last := laneDead; ; {
		next, err := s.first(ctx, bson.M{"lane": bson.M{"$gt": last}})
		if err != nil {
			return nil, err
		}
		if last = next.Lane; last == laneDead {
			return lanes, nil
		}
		lane, err := job.ParseLane(last)
		if err != nil {
			return nil, err
		}
		lanes = append(lanes, store.LaneDue{Lane: lane, DueAt: next.DueAt})
	}
}

// CountLanes implements [store.Stock]. It counts what is due of a lane, and only if that is below the limit, what comes later, up
// to what is left of the limit: one or two commands for each lane, those of some lanes under way together. What is claimed
// between the two is counted twice. Where the collection is sharded, each shard reads up to the limit.
func (s *Store) CountLanes(ctx context.Context, now time.Time, lanes []job.Lane, limit int) ([]store.LaneCount, error) {
	counts := make([]store.LaneCount, len(lanes))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for i, l := range lanes {
		group.Go(func() error {
			due, err := s.count(ctx, bson.M{"lane": l.String(), "dueAt": bson.M{"$lte": now}}, limit)
			if err != nil || due == limit {
				counts[i] = store.LaneCount{Pending: due, Due: due}
				return err
			}
			later, err := s.count(ctx, bson.M{"lane": l.String(), "dueAt": bson.M{"$gt": now}}, limit-due)
			counts[i] = store.LaneCount{Pending: due + later, Due: due}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return counts, nil
}

// Sample implements [store.Stock] by two commands: one finds the occurrences, the other reads their jobs.
func (s *Store) Sample(ctx context.Context, lane job.Lane, from time.Time, limit int) ([]store.Sampled, error) {
	found, err := find[occurrenceDocument](ctx, s.occurrences, bson.M{"lane": lane.String(), "dueAt": bson.M{"$gte": from}},
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

// countable is up to how many documents are counted one by one. Of more, the server has a number of its own, which a crash of
// it, and on a sharded cluster a migration, can leave a little off.
const countable = 100_000

// Backlog implements [store.Stock]. All but that number is counted in the claim index.
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
	staged, err := s.count(ctx, allStaged(), 0)
	if err != nil {
		return store.Backlog{}, err
	}
	b.DeadLetters = max(b.DeadLetters-staged, 0)
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
func (s *Store) count(ctx context.Context, filter bson.M, limit int) (int, error) {
	opts := options.Count()
	if limit > 0 {
		opts.SetLimit(int64(limit))
	}
	n, err := s.occurrences.CountDocuments(ctx, filter, opts)
	return int(n), mapError(err)
}
