package mongodb

import (
	"context"
	"maps"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Cancel implements [store.Jobs]. Jobs are cancelled independently of each other.
//
// The job document goes first, by a write guarded by its revision: from then on a claim of that revision's occurrences
// finds no job. What is not held is then deleted, and at last what was, so that its settlement finds nothing to retry.
func (s *Store) Cancel(ctx context.Context, names []job.Name, now time.Time) ([]store.CancelResult, error) {
	ids := make([]string, len(names))
	for i, name := range names {
		ids[i] = jobID(name)
	}
	byID := make(map[string]present, len(names))
	for part := range slices.Chunk(ids, chunk) {
		found, err := s.present(ctx, part...)
		if err != nil {
			return nil, err
		}
		maps.Copy(byID, found)
	}
	results := make([]store.CancelResult, len(names))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	seen := make(map[string]bool, len(names))
	for i, name := range names {
		if seen[ids[i]] {
			continue // cancelled a moment ago: there is nothing left
		}
		seen[ids[i]] = true
		group.Go(func() (err error) {
			results[i], err = s.cancel(ctx, name, byID[ids[i]].revision, now)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return results, nil
}

// cancel cancels one job, whose revision has been read; empty if there was no such job.
func (s *Store) cancel(ctx context.Context, name job.Name, present job.Revision, now time.Time) (r store.CancelResult, err error) {
	for present != "" {
		deleted, err := s.jobs.DeleteOne(ctx, bson.M{"_id": jobID(name), "revision": present})
		if err != nil {
			return r, mapError(err)
		}
		if deleted.DeletedCount > 0 {
			break
		}
		// It was replaced or cancelled since.
		found, err := s.present(ctx, jobID(name))
		if err != nil {
			return r, err
		}
		present = found[jobID(name)].revision
	}
	// Read before anything is deleted: what is held now, and is buried and redriven meanwhile, stands on its own then, and
	// is not to be cancelled as such.
	own, err := s.ownPending(ctx, name)
	if err != nil {
		return r, err
	}
	if present != "" {
		r.Found = true
		if err := s.cancelRevision(ctx, present, now, &r); err != nil {
			return r, err
		}
	}
	err = s.cancelOwn(ctx, own, now, &r)
	return r, err
}

// cancelRevision deletes the occurrences of a revision that is no job's any more.
func (s *Store) cancelRevision(ctx context.Context, revision job.Revision, now time.Time, r *store.CancelResult) error {
	all := bson.M{"revision": revision}
	total, err := s.occurrences.CountDocuments(ctx, all)
	if err != nil || total == 0 {
		return mapError(err)
	}
	cancelled, err := s.occurrences.DeleteMany(ctx, both(all, notHeld(now)))
	if err != nil {
		return mapError(err)
	}
	r.Cancelled += int(cancelled.DeletedCount)
	r.InFlight += int(total - cancelled.DeletedCount)
	if total > cancelled.DeletedCount {
		_, err = s.occurrences.DeleteMany(ctx, all)
	}
	return mapError(err)
}

// ownPending reads the name's pending occurrences that stand on their own: their ids, by how often they were redriven.
func (s *Store) ownPending(ctx context.Context, name job.Name) (map[int][]string, error) {
	found, err := find[occurrenceDocument](ctx, s.occurrences, ownOf(name), options.Find().SetProjection(bson.M{"redrives": 1}))
	if err != nil {
		return nil, err
	}
	idsByRedrives := make(map[int][]string)
	for i := range found {
		idsByRedrives[found[i].Redrives] = append(idsByRedrives[found[i].Redrives], found[i].ID)
	}
	return idsByRedrives, nil
}

// cancelOwn deletes occurrences that stand on their own. They have no revision to tell them from a dead letter that is
// redriven meanwhile, which must not be lost, so exactly those that were read are deleted: of their ids, and redriven as
// often.
func (s *Store) cancelOwn(ctx context.Context, idsByRedrives map[int][]string, now time.Time, r *store.CancelResult) error {
	byID := options.DeleteMany().SetHint(indexByID)
	for redrives, ids := range idsByRedrives {
		r.Found = true
		for part := range slices.Chunk(ids, chunk) {
			read := bson.M{"_id": in(part), "lane": anyLane(), "redrives": redrives}
			if redrives == 0 {
				read["redrives"] = nil // which matches that there is none
			}
			cancelled, err := s.occurrences.DeleteMany(ctx, both(read, notHeld(now)), byID)
			if err != nil {
				return mapError(err)
			}
			r.Cancelled += int(cancelled.DeletedCount)
			r.InFlight += len(part) - int(cancelled.DeletedCount)
			if int(cancelled.DeletedCount) == len(part) {
				continue
			}
			if _, err := s.occurrences.DeleteMany(ctx, read, byID); err != nil {
				return mapError(err)
			}
		}
	}
	return nil
}

// ownOf matches the pending occurrences of a name that stand on their own.
func ownOf(name job.Name) bson.M {
	return bson.M{"revision": "", "tenant": name.Tenant, "key": name.Key, "lane": anyLane()}
}
