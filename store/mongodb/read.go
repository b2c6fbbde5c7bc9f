package mongodb

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Jobs implements [store.Jobs].
func (s *Store) Jobs(ctx context.Context, f store.JobFilter) ([]store.JobStatus, error) {
	prefix := jobID(job.Name{Tenant: f.Tenant, Key: f.Prefix})
	within := bson.M{"$gte": prefix, "$lt": beyond(prefix)}
	if f.Key != "" {
		within = bson.M{"$eq": jobID(job.Name{Tenant: f.Tenant, Key: f.Key})}
	}
	if f.After != "" {
		within["$gt"] = jobID(job.Name{Tenant: f.Tenant, Key: f.After})
	}
	query := options.Find().SetSort(keys("_id")).SetLimit(int64(f.Limit))
	if !f.Whole {
		query.SetProjection(bson.M{"schedule": 0, "callback.data": 0, "options": 0})
	}
	found, err := find[jobDocument](ctx, s.jobs, both(bson.M{"_id": within}, realJobs()), query)
	if err != nil {
		return nil, err
	}
	page, err := s.statuses(ctx, found)
	if err != nil || !f.Standalone {
		return page, err
	}
	names, err := s.standalone(ctx, f)
	return store.WithStandalone(page, names, f.Limit), err
}

// standalone lists the names that have pending standalone occurrences. A name usually has few, so it reads them one by
// one from the index and skips repetitions.
func (s *Store) standalone(ctx context.Context, f store.JobFilter) (names []job.Name, err error) {
	key := bson.M{"$gte": f.Prefix}
	if f.Key != "" {
		key["$eq"] = f.Key
	}
	if end := beyond(f.Prefix); end != "" {
		key["$lt"] = end
	}
	for after := f.After; len(names) < f.Limit; {
		if after != "" {
			key["$gt"] = after
		}
		found, err := find[occurrenceDocument](ctx, s.occurrences,
			bson.M{"revision": "", "tenant": f.Tenant, "key": key, "lane": anyLane()},
			options.Find().SetProjection(bson.M{"key": 1}).SetSort(keys("key")).SetLimit(int64(f.Limit)))
		if err != nil {
			return nil, err
		}
		for i := range found {
			if d := &found[i]; d.Key != after && len(names) < f.Limit {
				names, after = append(names, job.Name{Tenant: f.Tenant, Key: d.Key}), d.Key
			}
		}
		if len(found) < f.Limit {
			break
		}
	}
	return names, nil
}

// statuses returns jobs with their next instants. It also rewrites the occurrences that they have carried over.
func (s *Store) statuses(ctx context.Context, documents []jobDocument) ([]store.JobStatus, error) {
	if err := s.inheritAll(ctx, documents); err != nil {
		return nil, err
	}
	next, err := s.next(ctx, documents)
	if err != nil {
		return nil, err
	}
	statuses := make([]store.JobStatus, len(documents))
	for i := range documents {
		if statuses[i], err = documents[i].status(); err != nil {
			return nil, err
		}
		statuses[i].Next = next[documents[i].Revision]
	}
	return statuses, nil
}

// next reads the instants of the jobs' first pending occurrences, by revision. Most jobs have one or none, so one scan
// of the index finds nearly all. A job with many occurrences ends the scan early; the jobs behind it are then looked up
// one by one.
func (s *Store) next(ctx context.Context, documents []jobDocument) (map[string]time.Time, error) {
	next := make(map[string]time.Time, len(documents))
	var revisions []string
	for i := range documents {
		revisions = append(revisions, documents[i].Revision)
	}
	slices.Sort(revisions)
	var mu sync.Mutex
	look := func(ctx context.Context, revision any, limit int) (found []occurrenceDocument, err error) {
		found, err = find[occurrenceDocument](ctx, s.occurrences, bson.M{"revision": revision}, options.Find().
			SetProjection(bson.M{"_id": 1, "revision": 1}).SetSort(indexByRevision()).SetLimit(int64(limit)))
		mu.Lock()
		defer mu.Unlock()
		for i := range found {
			d := &found[i]
			if _, ok := next[d.Revision]; !ok && err == nil {
				var id job.ID
				id, err = job.ParseID(d.ID)
				next[d.Revision] = job.InstantOf(id)
			}
		}
		return found, err
	}
	for part := range slices.Chunk(revisions, chunk) {
		found, err := look(ctx, in(part), len(part))
		if err != nil {
			return nil, err
		}
		if len(found) < len(part) {
			continue
		}
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(parallel)
		for _, revision := range part {
			if revision > found[len(found)-1].Revision {
				group.Go(func() error {
					_, err := look(ctx, revision, 1)
					return err
				})
			}
		}
		if err := group.Wait(); err != nil {
			return nil, err
		}
	}
	return next, nil
}

// live returns the jobs, by their revisions, that are still to fire: those with a pending occurrence, and those with a
// schedule that is to be expanded, or would be if it were not paused.
func (s *Store) live(ctx context.Context, documents []jobDocument) (map[string]bool, error) {
	live := make(map[string]bool, len(documents))
	var undecided []string
	for i := range documents {
		d := &documents[i]
		if !d.ExpandAt.IsZero() || !d.PausedAt.IsZero() && !d.Cursor.IsZero() {
			live[d.Revision] = true
		} else {
			undecided = append(undecided, d.Revision)
		}
	}
	pending, err := s.pending(ctx, undecided)
	maps.Copy(live, pending)
	return live, err
}

// pending returns the revisions that have pending occurrences. The server reads one index entry of each.
func (s *Store) pending(ctx context.Context, revisions []string) (map[string]bool, error) {
	pending := make(map[string]bool)
	for part := range slices.Chunk(revisions, chunk) {
		cursor, err := s.occurrences.Aggregate(ctx, bson.A{
			bson.M{"$match": bson.M{"revision": in(part)}},
			bson.M{"$group": bson.M{"_id": "$revision"}},
		})
		if err != nil {
			return nil, mapError(err)
		}
		var found []struct {
			Revision string `bson:"_id"`
		}
		if err := cursor.All(ctx, &found); err != nil {
			return nil, mapError(err)
		}
		for _, f := range found {
			pending[f.Revision] = true
		}
	}
	return pending, nil
}

// Occurrences implements [store.Jobs]. A revision's occurrences and the standalone ones are in different parts of the
// index, so it reads a page of each and merges the two.
func (s *Store) Occurrences(
	ctx context.Context, f store.OccurrenceFilter,
) (page []job.Occurrence, total int, err error) {
	sets := []bson.M{ownOf(f.Name.Tenant, f.Name.Key)}
	if f.Revision != "" {
		sets = append(sets, bson.M{"revision": f.Revision, "tenant": f.Name.Tenant, "key": f.Name.Key})
	}
	for _, set := range sets {
		part, err := s.page(ctx, both(set, bson.M{"_id": bson.M{"$gt": f.After.String()}}), f.Limit, bson.M{"callback": 0})
		if err != nil {
			return nil, 0, err
		}
		page = append(page, part...)
		if !f.Count {
			continue
		}
		n, err := s.occurrences.CountDocuments(ctx, set)
		if err != nil {
			return nil, 0, mapError(err)
		}
		total += int(n)
	}
	slices.SortFunc(page, func(a, b job.Occurrence) int { return a.ID.Compare(b.ID) })
	return page[:min(len(page), f.Limit)], total, nil
}

// page reads occurrences in the order of their ids. The projection may be nil.
func (s *Store) page(ctx context.Context, filter bson.M, limit int, projection bson.M) ([]job.Occurrence, error) {
	query := options.Find().SetSort(keys("_id")).SetLimit(int64(limit))
	if projection != nil {
		query.SetProjection(projection)
	}
	found, err := find[occurrenceDocument](ctx, s.occurrences, filter, query)
	if err != nil {
		return nil, err
	}
	page := make([]job.Occurrence, len(found))
	for i := range found {
		if page[i], err = found[i].occurrence(); err != nil {
			return nil, err
		}
	}
	return page, nil
}
