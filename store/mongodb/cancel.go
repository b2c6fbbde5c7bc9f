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

// cancelledTogether is the number of jobs that are cancelled together, step by step. If a step fails, all of them may
// be cancelled in part; their remaining occurrences are then orphans.
const cancelledTogether = 64

// Cancel implements [store.Jobs]. Jobs are cancelled independently of each other, but one command looks up the
// remaining occurrences of several jobs.
//
// The job document is deleted first, by a write guarded by its version and by the server's time: from then on a claim
// of that revision's occurrences finds no job. Then the occurrences that are not held are deleted, and the held ones
// last, so that their settlements find nothing to retry. A stub is deleted too, so that a pending flip of a put that
// has lost its replica or its connection matches nothing.
func (s *Store) Cancel(ctx context.Context, names []job.Name, asked store.Asked) ([]store.CancelResult, error) {
	ctx, cancel := within(ctx)
	defer cancel()
	results := make([]store.CancelResult, len(names))
	seen := make(map[job.Name]bool, len(names))
	var all []*cancellation
	for i, name := range names {
		if !seen[name] { // the first one leaves nothing for a repeated name
			seen[name] = true
			all = append(all, &cancellation{Name: name, CancelResult: &results[i]})
		}
	}
	for part := range slices.Chunk(all, cancelledTogether) {
		if err := s.cancel(ctx, part, asked); err != nil {
			if slices.ContainsFunc(all, func(c *cancellation) bool { return c.changed }) {
				err = unknown(err)
			}
			return nil, err
		}
	}
	return results, nil
}

// cancellation is the cancellation of one job.
type cancellation struct {
	job.Name
	*store.CancelResult
	revision  job.Revision // the deleted one; empty if there was none
	recurring bool         // an expansion of it may be under way
	changed   bool         // a document was deleted
}

// cancel cancels some jobs.
func (s *Store) cancel(ctx context.Context, jobs []*cancellation, asked store.Asked) error {
	ids := make([]string, len(jobs))
	for i, c := range jobs {
		ids[i] = jobID(c.Name)
	}
	found, err := s.present(ctx, ids...)
	if err != nil {
		return notDone(err)
	}
	err = each(ctx, jobs, func(ctx context.Context, c *cancellation) error {
		return s.deleteJob(ctx, c, found[jobID(c.Name)], asked)
	})
	if err != nil {
		return err
	}
	jobs = slices.DeleteFunc(slices.Clone(jobs), func(c *cancellation) bool { return c.Err != nil })
	// Read these before anything is deleted. An occurrence that is held now, and is buried and redriven meanwhile, is
	// standalone afterwards, but it must not be cancelled as a standalone one.
	own, err := s.ownPending(ctx, jobs)
	if err != nil {
		return notDone(err)
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
			if err := s.cancelRevision(ctx, c, asked.Now); err != nil {
				return err
			}
		}
		return s.cancelOwn(ctx, own[jobID(c.Name)], asked.Now, c)
	})
}

// each calls do for each job, several at a time.
func each(ctx context.Context, jobs []*cancellation, do func(context.Context, *cancellation) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for _, c := range jobs {
		group.Go(func() error { return do(ctx, c) })
	}
	return group.Wait()
}

// deleteJob deletes a job document that was read, and notes the revision that it had, or the reason why it may not be
// deleted. It notes nothing if there was no such job.
func (s *Store) deleteJob(ctx context.Context, c *cancellation, found present, asked store.Asked) error {
	id := jobID(c.Name)
	for {
		if c.Err = asked.Judge(found.version); c.Err != nil {
			return nil //nolint:nilerr // it is the result of this job alone
		}
		switch {
		case found.stub:
			_, err := s.jobs.DeleteOne(ctx, both(bson.M{"_id": id}, stubs()))
			return notDone(mapError(err))
		case !found.exists:
			return nil
		}
		deleted := false
		err := s.inTime(ctx, func(ctx context.Context, inTime bson.M) (bool, error) {
			result, err := s.jobs.DeleteOne(ctx, both(bson.M{"_id": id, "version": found.version}, inTime))
			deleted = err == nil && result.DeletedCount > 0
			return deleted, err
		})
		if err != nil {
			return err
		}
		if deleted {
			c.revision, c.recurring, c.changed = found.revision, !found.cursor.IsZero(), true
			return nil
		}
		// The job was changed, replaced or cancelled since it was read.
		again, err := s.present(ctx, id)
		if err != nil {
			return notDone(err)
		}
		found = again[id]
	}
}

// cancelRevision deletes the occurrences of a revision that no longer has a job. An expansion under way may add some
// after they were counted. Then the difference of the first two numbers is not the number of held ones, so these are
// counted as they are deleted.
func (s *Store) cancelRevision(ctx context.Context, c *cancellation, now time.Time) error {
	all := bson.M{"revision": c.revision}
	total, err := s.occurrences.CountDocuments(ctx, all)
	if err != nil || total == 0 {
		return mapError(err)
	}
	cancelled, err := s.occurrences.DeleteMany(ctx, both(all, notHeld(now)))
	if err != nil {
		return mapError(err)
	}
	c.Cancelled += int(cancelled.DeletedCount)
	if total == cancelled.DeletedCount && !c.recurring {
		return nil
	}
	held, err := s.occurrences.DeleteMany(ctx, all)
	if err != nil {
		return mapError(err)
	}
	c.InFlight += int(max(total-cancelled.DeletedCount, held.DeletedCount))
	return nil
}

// ownPending reads the jobs' pending standalone occurrences. The result has, for each job's id, the occurrences' ids by
// the number of their redrives. It first removes occurrences of triggers that are still staged, so that those triggers
// match nothing.
func (s *Store) ownPending(ctx context.Context, jobs []*cancellation) (map[string]map[int][]string, error) {
	keysOf := make(map[string][]string)
	for _, c := range jobs {
		keysOf[c.Tenant] = append(keysOf[c.Tenant], c.Key)
	}
	own := make(map[string]map[int][]string)
	for tenant, keys := range keysOf {
		found, err := s.ownAndNoStaged(ctx, tenant, keys)
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

// ownAndNoStaged reads the standalone occurrences of some keys of a tenant, at a moment when none of them is staged.
func (s *Store) ownAndNoStaged(ctx context.Context, tenant string, of []string) ([]occurrenceDocument, error) {
	filter := bson.M{"tenant": tenant, "key": in(of), "revision": in([]string{"", stagedRevision}), "$or": bson.A{
		bson.M{"lane": anyLane()}, bson.M{"revision": stagedRevision},
	}}
	for {
		found, err := find[occurrenceDocument](ctx, s.occurrences, filter,
			options.Find().SetHint(indexByRevision()).
				SetProjection(bson.M{"tenant": 1, "key": 1, "revision": 1, "redrives": 1}))
		if err != nil {
			return nil, err
		}
		var staged []string
		for i := range found {
			if found[i].Revision == stagedRevision {
				staged = append(staged, found[i].ID)
			}
		}
		if len(staged) == 0 {
			return found, nil
		}
		if err := s.unstage(ctx, staged); err != nil {
			return nil, err
		}
	}
}

// cancelOwn deletes standalone occurrences. They have no revision that distinguishes them from a dead letter that is
// redriven meanwhile, which must not be lost. So it deletes exactly those that were read: with their ids and their
// numbers of redrives. They have no version that never returns either, so each deletion is bounded.
func (s *Store) cancelOwn(ctx context.Context, idsByRedrives map[int][]string, now time.Time, c *cancellation) error {
	for redrives, ids := range idsByRedrives {
		c.Found = true
		for part := range slices.Chunk(ids, chunk) {
			read := bson.M{"_id": in(part), "lane": anyLane(), "redrives": redrives}
			if redrives == 0 {
				read["redrives"] = nil // matches documents without the field
			}
			cancelled, err := s.deleteInTime(ctx, both(read, notHeld(now)))
			if err != nil {
				return err
			}
			c.changed = c.changed || cancelled > 0
			c.Cancelled += cancelled
			c.InFlight += len(part) - cancelled
			if cancelled == len(part) {
				continue
			}
			if _, err := s.deleteInTime(ctx, read); err != nil {
				return err
			}
		}
	}
	return nil
}

// deleteInTime deletes occurrences before the context's deadline, or never, and returns their number. The filter must
// name their ids.
func (s *Store) deleteInTime(ctx context.Context, filter bson.M) (deleted int, err error) {
	err = s.inTime(ctx, func(ctx context.Context, inTime bson.M) (bool, error) {
		result, err := s.occurrences.DeleteMany(ctx, both(filter, inTime), options.DeleteMany().SetHint(indexByID))
		if err != nil {
			return false, err
		}
		deleted = int(result.DeletedCount)
		return deleted > 0, nil
	})
	return deleted, err
}

// ownOf matches the pending standalone occurrences of one or several keys of a tenant.
func ownOf(tenant string, key any) bson.M {
	return bson.M{"revision": "", "tenant": tenant, "key": key, "lane": anyLane()}
}
