package mongodb

import (
	"context"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

const (
	// passed bounds how many due occurrences a claim that meets a paused job reads, to put back those of paused jobs. It
	// exceeds the size of most claims, so that a few claims get past a paused backlog, for a few commands each.
	passed = chunk

	// mostEarly bounds how long before an instant a claim may have met it: early, or on a clock that is ahead.
	mostEarly = 10 * time.Minute
)

// returned is an occurrence that must not fire now, and when it is due again.
type returned struct {
	*occurrenceDocument
	quota  int // the index of the quota that found it
	dueAt  time.Time
	drop   bool // delete it rather than make it due again
	paused bool // its job is paused

	orphan      bool
	jobRevision string // its job's present revision; empty if there is no job
}

// putBack gives back claimed occurrences that must not fire now. If that fails, they are due again when their leases
// end. If a job is paused, other due occurrences of paused jobs under the same quota are put back as well.
func (s *Store) putBack(ctx context.Context, p store.ClaimParams, back []returned) {
	back = s.confirmed(ctx, back)
	if len(back) == 0 {
		return
	}
	writes := make([]mongo.WriteModel, len(back))
	for i, r := range back {
		still := bson.M{"_id": r.ID, "token": r.Token}
		if r.orphan {
			still = r.stillOrphan()
		}
		if r.drop {
			writes[i] = mongo.NewDeleteOneModel().SetFilter(still)
		} else {
			writes[i] = updateOf(still, unclaim(r.dueAt))
		}
	}
	_, _ = bulkWrite(ctx, s.occurrences, writes)
	s.returnHeirs(ctx, p, back)
	paused := slices.DeleteFunc(back, func(r returned) bool { return !r.paused })
	if len(paused) == 0 {
		return
	}
	more := make([][]returned, len(p.Quotas))
	met := make([]bool, len(p.Quotas))
	var group errgroup.Group
	group.SetLimit(parallel)
	for _, r := range paused {
		if met[r.quota] {
			continue
		}
		met[r.quota] = true
		group.Go(func() error {
			more[r.quota] = s.passPaused(ctx, p, r.quota)
			return nil
		})
	}
	_ = group.Wait()
	s.catchResumes(ctx, p.Now, slices.Concat(paused, slices.Concat(more...)))
}

// confirmed removes from back each occurrence that must not be dropped after all, because a read with read concern
// majority finds a job of its revision, or fails. Such an occurrence is due again when its lease ends. The earlier read
// may have come from a primary that had been deposed without knowing it.
func (s *Store) confirmed(ctx context.Context, back []returned) []returned {
	var drops []occurrenceDocument
	for _, r := range back {
		if r.drop {
			drops = append(drops, *r.occurrenceDocument)
		}
	}
	if len(drops) == 0 {
		return back
	}
	jobs, err := find[jobDocument](ctx, s.committed, bson.M{"_id": in(jobIDs(drops))},
		options.Find().SetProjection(bson.M{"revision": 1}))
	revisions := make(map[string]string, len(jobs))
	for i := range jobs {
		revisions[jobs[i].ID] = jobs[i].Revision
	}
	for i := range back {
		if r := &back[i]; r.drop {
			r.jobRevision = revisions[r.jobID()]
		}
	}
	return slices.DeleteFunc(back, func(r returned) bool {
		return r.drop && (err != nil || r.isOf(r.jobRevision))
	})
}

// passPaused puts back the occurrences of paused jobs among the first due ones of a quota, and returns them. It claims
// nothing: each write applies only while the occurrence is as it was read, so other replicas' claims stand. After an
// error, a later claim does the rest.
func (s *Store) passPaused(ctx context.Context, p store.ClaimParams, quota int) (back []returned) {
	due, err := s.findDue(ctx, p, p.Quotas[quota], passed, "tenant", "key", "revision", "timestamp", "dueAt", "token")
	if err != nil {
		return nil
	}
	jobs, err := s.presentOf(ctx, due)
	if err != nil {
		return nil
	}
	var writes []mongo.WriteModel
	for i := range due {
		d := &due[i]
		of := jobs[d.jobID()]
		if !of.paused() || d.Revision != string(of.revision) {
			continue
		}
		same := bson.M{"_id": d.ID, "lane": p.Quotas[quota].Lane.String(), "dueAt": d.DueAt, "token": d.Token}
		if d.Token == "" {
			same["token"] = absent()
		}
		dueAt := store.PutBackPaused(d.Timestamp, of.pausedAt, p)
		r := returned{occurrenceDocument: d, quota: quota, dueAt: dueAt, paused: true}
		writes = append(writes, updateOf(same, bson.M{
			"$set": bson.M{"dueAt": r.dueAt}, "$unset": bson.M{"token": "", "scheduledAt": ""}, // of a stale claim
		}))
		back = append(back, r)
	}
	_, _ = bulkWrite(ctx, s.occurrences, writes)
	return back
}

// presentOf reads the jobs that occurrences belong to, by their ids.
func (s *Store) presentOf(ctx context.Context, occurrences []occurrenceDocument) (map[string]present, error) {
	ids := jobIDs(occurrences)
	if len(ids) == 0 {
		return nil, nil
	}
	return s.present(ctx, ids...)
}

// catchResumes reads again the jobs whose occurrences have just been put back because of a pause. A resume in between
// did not bring those forward, since they were claimed, or due; a later resume does. It changes only occurrences that
// are still due at the time to which they were put back; others have been changed by another caller.
func (s *Store) catchResumes(ctx context.Context, now time.Time, back []returned) {
	for part := range slices.Chunk(back, chunk) {
		documents := make([]occurrenceDocument, len(part))
		for i, r := range part {
			documents[i] = *r.occurrenceDocument
		}
		jobs, err := s.presentOf(ctx, documents)
		if err != nil {
			return // they stay due at the time to which they were put back
		}
		var writes []mongo.WriteModel
		for _, r := range part {
			if of := jobs[r.jobID()]; of.exists && !of.paused() { // a put may have carried the occurrence over since
				writes = append(writes, updateOf(
					bson.M{"_id": r.ID, "revision": of.revision, "token": absent(), "dueAt": r.dueAt},
					bson.M{"$set": bson.M{"dueAt": latest(r.Timestamp, now)}}))
			}
		}
		_, _ = bulkWrite(ctx, s.occurrences, writes)
	}
}

// bringForward makes the unclaimed occurrences of a job due at their instants, or at now if those have passed. It
// leaves those that are due earlier.
//
// An occurrence whose instant is still ahead may have been put back too: by a claim with an early window, or by a
// replica whose clock is ahead. Not all servers can compare two fields of a document in a filter, so these are read.
func (s *Store) bringForward(ctx context.Context, name job.Name, revision job.Revision, now time.Time) error {
	unclaimed := bson.M{"revision": revision, "tenant": name.Tenant, "key": name.Key, "token": absent()}
	passed := both(unclaimed, bson.M{"timestamp": bson.M{"$lte": now}, "dueAt": bson.M{"$gt": now}})
	err := s.inTime(ctx, func(ctx context.Context, inTime bson.M) (bool, error) {
		result, err := s.occurrences.UpdateMany(ctx, both(passed, inTime), bson.M{"$set": bson.M{"dueAt": now}})
		return err == nil && result.MatchedCount > 0, err
	})
	if err != nil {
		return err
	}
	ahead, err := s.occurrences.Find(ctx,
		both(unclaimed, bson.M{"timestamp": bson.M{"$gt": now, "$lte": now.Add(mostEarly)}}),
		options.Find().SetProjection(keys("timestamp", "dueAt")))
	if err != nil {
		return mapError(err)
	}
	defer func() { _ = ahead.Close(ctx) }()
	var later []occurrenceDocument
	for ahead.Next(ctx) { // one by one, since very many may fall into that time, and few of these are due later
		var d occurrenceDocument
		if err := ahead.Decode(&d); err != nil {
			return err
		}
		if d.DueAt.After(d.Timestamp) {
			later = append(later, d)
		}
	}
	if err := ahead.Err(); err != nil || len(later) == 0 {
		return mapError(err)
	}
	return s.inTime(ctx, func(ctx context.Context, inTime bson.M) (bool, error) {
		writes := make([]mongo.WriteModel, len(later))
		for i, d := range later {
			writes[i] = updateOf(
				both(bson.M{"_id": d.ID, "token": absent(), "dueAt": bson.M{"$gt": d.Timestamp}}, inTime),
				bson.M{"$set": bson.M{"dueAt": d.Timestamp}})
		}
		result, err := s.occurrences.BulkWrite(ctx, writes, options.BulkWrite().SetOrdered(false))
		return err == nil && int(result.MatchedCount) == len(writes), err
	})
}

// updateOf updates one document, by its id, in a bulk write. It uses an updateMany: FerretDB, which the tests run on,
// holds one of its 100 connections for each updateOne until the whole command has ended.
func updateOf(filter, update bson.M) mongo.WriteModel {
	return mongo.NewUpdateManyModel().SetFilter(filter).SetUpdate(update)
}
