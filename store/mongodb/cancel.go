package mongodb

import (
	"context"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// cancelledTogether is how many jobs are cancelled step by step together. If a step fails, that many may be cancelled in part: what
// they leave are orphans.
const cancelledTogether = 64

// Cancel implements [store.Jobs]. Jobs are cancelled independently of each other, but what some of them have left is looked up
// by one command.
//
// The job document goes first, by a write guarded by its revision: from then on a claim of that revision's occurrences
// finds no job. What is not held is then deleted, and at last what was, so that its settlement finds nothing to retry.
func (s *Store) Cancel(ctx context.Context, names []job.Name, asked store.Asked) ([]store.CancelResult, error) {
	now := asked.Now
	results := make([]store.CancelResult, len(names))
	seen := make(map[job.Name]bool, len(names))
	var all []*cancellation
	for i, name := range names {
		if !seen[name] { // else the first of them leaves nothing
			seen[name] = true
			all = append(all, &cancellation{Name: name, CancelResult: &results[i]})
		}
	}
	for part := range slices.Chunk(all, cancelledTogether) {
		if err := s.cancel(ctx, part, now); err != nil {
			return nil, err
		}
	}
	return results, nil
}

// cancellation is one job that is being cancelled.
type cancellation struct {
	job.Name
	*store.CancelResult
	revision job.Revision // that was deleted; empty if there was none
}

// cancel cancels some jobs.
func (s *Store) cancel(ctx context.Context, jobs []*cancellation, now time.Time) error {
	ids := make([]string, len(jobs))
	for i, c := range jobs {
		ids[i] = jobID(c.Name)
	}
	found, err := s.present(ctx, ids...)
	if err != nil {
		return err
	}
	err = each(ctx, jobs, func(ctx context.Context, c *cancellation) (err error) {
		c.revision, err = s.deleteJob(ctx, c.Name, found[jobID(c.Name)].revision)
		return err
	})
	if err != nil {
		return err
	}
	// Read before anything is deleted: what is held now, and is buried and redriven meanwhile, stands on its own then, and
	// is not to be cancelled as such.
	own, err := s.ownPending(ctx, jobs)
	if err != nil {
		return err
	}
	var revisions []string
	for _, c := range jobs {
		if c.revision != "" {
			revisions = append(revisions, string(c.revision))
		}
	}
	pending, err := s.pending(ctx, revisions)
	if err != nil {
		return err
	}
	return each(ctx, jobs, func(ctx context.Context, c *cancellation) error {
		c.Found = c.revision != ""
		if pending[string(c.revision)] {
			if err := s.cancelRevision(ctx, c.revision, now, c.CancelResult); err != nil {
				return err
			}
		}
		return s.cancelOwn(ctx, own[jobID(c.Name)], now, c.CancelResult)
	})
}

// each does something for each job, for some at a time.
func each(ctx context.Context, jobs []*cancellation, do func(context.Context, *cancellation) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for _, c := range jobs {
		group.Go(func() error { return do(ctx, c) })
	}
	return group.Wait()
}

// deleteJob deletes a job document, whose revision has been read, and answers the revision that it then had; empty if there was no
// such job.
func (s *Store) deleteJob(ctx context.Context, name job.Name, revision job.Revision) (job.Revision, error) {
	for revision != "" {
		deleted, err := s.jobs.DeleteOne(ctx, bson.M{"_id": jobID(name), "revision": revision})
		if err != nil {
			return "", mapError(err)
		}
		if deleted.DeletedCount > 0 {
			break
		}
		// It was replaced or cancelled since.
		found, err := s.present(ctx, jobID(name))
		if err != nil {
			return "", err
		}
		revision = found[jobID(name)].revision
	}
	return revision, nil
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

// ownPending reads the jobs' pending occurrences that stand on their own: of each job, by its id, their ids by how often they were
// redriven.
func (s *Store) ownPending(ctx context.Context, jobs []*cancellation) (map[string]map[int][]string, error) {
	keysOf := make(map[string][]string)
	for _, c := range jobs {
		keysOf[c.Tenant] = append(keysOf[c.Tenant], c.Key)
	}
	own := make(map[string]map[int][]string)
	for tenant, keys := range keysOf {
		found, err := find[occurrenceDocument](ctx, s.occurrences, ownOf(tenant, in(keys)),
			options.Find().SetProjection(bson.M{"tenant": 1, "key": 1, "redrives": 1}).SetHint(indexByRevision()))
		if err != nil {
			return nil, err
		}
		for i := range found {
			d := &found[i]
			if own[d.jobID()] == nil {
				own[d.jobID()] = make(map[int][]string)
			}
			own[d.jobID()][d.Redrives] = append(own[d.jobID()][d.Redrives], d.ID)
		}
	}
	return own, nil
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

// ownOf matches the pending occurrences of a tenant's key, or of some, that stand on their own.
func ownOf(tenant string, key any) bson.M {
	return bson.M{"revision": "", "tenant": tenant, "key": key, "lane": anyLane()}
}
