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
	// passed bounds what a claim that meets a pause looks through for more of what is paused. It is more than most
	// claims take, so that a backlog is passed in few claims, and costs a claim no more than a few commands.
	passed = chunk

	// mostEarly bounds how long before an instant a claim may have met it: early, or on a clock that is ahead.
	mostEarly = 10 * time.Minute
)

// returned is an occurrence that is not to fire now, and when it is due again.
type returned struct {
	*occurrenceDocument
	quota  int // that it was found by
	dueAt  time.Time
	drop   bool // rather than make it due again
	paused bool // its job is

	orphan      bool
	jobRevision string // that its job has instead; empty if there is no job
}

// putBack gives back what was claimed and is not to fire now. One for which that fails is claimed again at its lease's
// end. If some job is paused, what else is due of paused jobs by the same quota is put back as well.
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
	_ = bulkWrite(ctx, s.occurrences, writes)
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

// confirmed is what is to be put back, without what is not to be dropped after all: a majority has a job of that
// revision, or can't be asked. That waits for its lease's end. The server that told of the jobs before may have been
// deposed without knowing.
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

// passPaused puts back what is due of paused jobs among the first that are due by a quota, and answers it. It claims
// nothing: each write is guarded by the occurrence still being as it was read, so what another replica has claimed
// since stays claimed. What can't be read or written is for a later claim.
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
		r := returned{occurrenceDocument: d, quota: quota, dueAt: store.PutBackPaused(d.Timestamp, of.pausedAt, p), paused: true}
		writes = append(writes, updateOf(same, bson.M{
			"$set": bson.M{"dueAt": r.dueAt}, "$unset": bson.M{"token": "", "scheduledAt": ""}, // of a stale claim
		}))
		back = append(back, r)
	}
	_ = bulkWrite(ctx, s.occurrences, writes)
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

// catchResumes looks again at the jobs whose occurrences have just been put back because of a pause. A resume in
// between did not bring those forward, since they were claimed, or due. One that comes later does. Only what is still
// due when it was put back to is changed: anything else is another's doing.
func (s *Store) catchResumes(ctx context.Context, now time.Time, back []returned) {
	for part := range slices.Chunk(back, chunk) {
		documents := make([]occurrenceDocument, len(part))
		for i, r := range part {
			documents[i] = *r.occurrenceDocument
		}
		jobs, err := s.presentOf(ctx, documents)
		if err != nil {
			return // they wait for as long as they were put back for
		}
		var writes []mongo.WriteModel
		for _, r := range part {
			if of := jobs[r.jobID()]; !of.paused() && r.Revision == string(of.revision) {
				writes = append(writes, updateOf(
					bson.M{"_id": r.ID, "token": absent(), "dueAt": r.dueAt},
					bson.M{"$set": bson.M{"dueAt": latest(r.Timestamp, now)}}))
			}
		}
		_ = bulkWrite(ctx, s.occurrences, writes)
	}
}

// bringForward makes those occurrences of a job due at their instants, or at now if those have passed, that are not
// claimed and due later.
//
// An instant that is still ahead may have been put back too: by a claim that was early, or whose clock is ahead. Not
// all servers can compare two fields of a document in a filter, so those are read.
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
	for ahead.Next(ctx) { // one by one, since very many may fall into that time, of which few are due later
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

// updateOf is the update of one document, by its id, among very many. It is made as an update of all that match:
// FerretDB, which the tests run on, holds one of its 100 connections for each update of one until the whole command has
// ended.
func updateOf(filter, update bson.M) mongo.WriteModel {
	return mongo.NewUpdateManyModel().SetFilter(filter).SetUpdate(update)
}
