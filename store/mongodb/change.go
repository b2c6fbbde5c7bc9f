package mongodb

import (
	"context"
	"errors"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Amend implements [store.Jobs].
func (s *Store) Amend(ctx context.Context, a store.Amendment) error {
	set := bson.M{"version": a.Version, "updatedAt": a.Now, "callback": newCallbackDocument(a.Callback)}
	unset := bson.M{}
	encoded := a.Options.Encode()
	assign(set, unset, "options", encoded, len(encoded) > 0)
	update := bson.M{"$set": set}
	if len(unset) > 0 {
		update["$unset"] = unset
	}
	result, err := s.jobs.UpdateOne(ctx, bson.M{"_id": jobID(a.Name), "version": a.Of}, update)
	if err != nil || result.MatchedCount > 0 {
		return mapError(err)
	}
	now, err := s.read(ctx, a.Name)
	if err == nil && now.version != a.Version { // else it was amended so before, and the answer was lost
		err = store.ErrPrecondition
	}
	return err
}

// read reads what has to be known of a job that is to be changed, or answers ErrNotFound.
func (s *Store) read(ctx context.Context, name job.Name) (present, error) {
	found, err := s.present(ctx, jobID(name))
	if err != nil {
		return present{}, err
	}
	p, ok := found[jobID(name)]
	if !ok {
		return p, store.ErrNotFound
	}
	return p, nil
}

// Pause implements [store.Jobs]. An expansion that is under way ends with it: what it has inserted, and may still insert,
// stays beyond the cursor until the job is expanded again.
func (s *Store) Pause(ctx context.Context, name job.Name, version job.Revision, now time.Time) error {
	for {
		result, err := s.jobs.UpdateOne(ctx, bson.M{"_id": jobID(name), "pausedAt": absent()}, bson.M{
			"$set":   bson.M{"pausedAt": now, "version": version, "updatedAt": now},
			"$unset": bson.M{"expandAt": "", "expandToken": ""},
		})
		if err != nil || result.MatchedCount > 0 {
			return mapError(err)
		}
		if present, err := s.read(ctx, name); err != nil || present.paused() {
			return err
		}
		// It was resumed, or put anew, since.
	}
}

// Resume implements [store.Jobs]. What a claim holds at this moment, and is about to put back, is for that claim to bring
// forward, see [Store.Claim].
func (s *Store) Resume(ctx context.Context, name job.Name, version job.Revision, now time.Time) error {
	present, err := s.unpause(ctx, name, version, now)
	if err != nil {
		return err
	}
	return s.bringForward(ctx, name, present.revision, now)
}

// unpause makes sure that a job is not paused, and answers what it was when it was last read.
func (s *Store) unpause(ctx context.Context, name job.Name, version job.Revision, now time.Time) (present, error) {
	for {
		found, err := s.read(ctx, name)
		if err != nil || !found.paused() {
			return found, err
		}
		set := bson.M{"version": version, "updatedAt": now}
		if found.expands {
			// Not while an expansion that the pause cut off may still insert: what another inserts, and is delivered, would
			// be inserted again.
			set["expandAt"] = latest(now, found.expandingUntil)
		}
		result, err := s.jobs.UpdateOne(ctx, bson.M{"_id": jobID(name), "version": found.version},
			bson.M{"$set": set, "$unset": bson.M{"pausedAt": ""}})
		if err != nil || result.MatchedCount > 0 {
			return found, mapError(err)
		}
	}
}

// Trigger implements [store.Jobs]. The job is looked at again after the insertion: if it is gone, its cancellation may not
// have seen the occurrence. So it is if there is another job of that name by then, which is told by its creation: the
// trigger then came in between the two. An occurrence that is no longer there was cancelled with the job, or has been fired.
func (s *Store) Trigger(ctx context.Context, o job.Occurrence) error {
	before, err := s.read(ctx, o.Name)
	if err != nil {
		return err
	}
	if _, err := s.occurrences.InsertOne(ctx, newOccurrenceDocument(&o)); err != nil && !mongo.IsDuplicateKeyError(err) {
		return mapError(err)
	}
	after, err := s.read(ctx, o.Name)
	if err == nil && after.createdAt.Equal(before.createdAt) || err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	// Held or not, as a cancel does, so that it is never retried. Only a dead letter stays, even one that was redriven.
	deleted, err := s.occurrences.DeleteOne(ctx, bson.M{"_id": o.ID.String(), "lane": anyLane(), "redrives": absent()})
	if err != nil || deleted.DeletedCount == 0 {
		return mapError(err)
	}
	return store.ErrNotFound
}
