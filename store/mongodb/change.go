package mongodb

import (
	"context"
	"errors"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

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
	ctx, cancel := within(ctx)
	defer cancel()
	if changed, err := s.changeJob(ctx, bson.M{"_id": jobID(a.Name), "version": a.Of}, update); changed || err != nil {
		return err
	}
	now, err := s.read(ctx, a.Name)
	if err == nil && now.version != a.Version { // an equal version: an earlier try succeeded, and its answer was lost
		err = store.ErrPrecondition
	}
	return notDone(err)
}

// changeJob changes a job before the context's deadline, or never, and reports whether a job matched.
func (s *Store) changeJob(ctx context.Context, filter, update bson.M) (changed bool, err error) {
	err = s.inTime(ctx, func(ctx context.Context, inTime bson.M) (bool, error) {
		result, err := s.jobs.UpdateOne(ctx, both(filter, inTime), update)
		changed = err == nil && result.MatchedCount > 0
		return changed, err
	})
	return changed, err
}

// read returns the state that a change of a job needs, or ErrNotFound.
func (s *Store) read(ctx context.Context, name job.Name) (present, error) {
	found, err := s.present(ctx, jobID(name))
	if err != nil {
		return present{}, err
	}
	p := found[jobID(name)]
	if !p.exists {
		return p, store.ErrNotFound
	}
	return p, nil
}

// Pause implements [store.Jobs]. It ends an expansion under way: the occurrences that the expansion has inserted, and
// may still insert, stay beyond the cursor until the job is expanded again.
func (s *Store) Pause(ctx context.Context, name job.Name, version job.Revision, now time.Time) error {
	ctx, cancel := within(ctx)
	defer cancel()
	for {
		changed, err := s.changeJob(ctx, both(bson.M{"_id": jobID(name), "pausedAt": absent()}, realJobs()), bson.M{
			"$set":   bson.M{"pausedAt": now, "version": version, "updatedAt": now},
			"$unset": bson.M{"expandAt": "", "expandToken": ""},
		})
		if changed || err != nil {
			return err
		}
		if present, err := s.read(ctx, name); err != nil || present.paused() {
			return notDone(err)
		}
		// The job was resumed or put again since it was read.
	}
}

// Resume implements [store.Jobs]. It leaves an occurrence that a claim is about to put back at this moment: that claim
// brings it forward, see [Store.Claim]. A put may replace the job meanwhile and carry over occurrences that were put
// back. So the job is read again, until it has the revision whose occurrences were brought forward.
func (s *Store) Resume(ctx context.Context, name job.Name, version job.Revision, now time.Time) error {
	ctx, cancel := within(ctx)
	defer cancel()
	resumed, err := s.unpause(ctx, name, version, now)
	if err != nil {
		return err
	}
	for revision := resumed.revision; ; {
		if err := s.bringForward(ctx, name, revision, now); err != nil {
			return unknown(err)
		}
		found, err := s.read(ctx, name)
		switch {
		case errors.Is(err, store.ErrNotFound):
			return nil // it was cancelled meanwhile
		case err != nil:
			return unknown(err)
		case found.paused() || found.revision == revision:
			return nil
		}
		revision = found.revision
	}
}

// unpause clears a job's pause, and returns the state of the job as it was last read.
func (s *Store) unpause(ctx context.Context, name job.Name, version job.Revision, now time.Time) (present, error) {
	for {
		found, err := s.read(ctx, name)
		if err != nil || !found.paused() {
			return found, notDone(err)
		}
		set := bson.M{"version": version, "updatedAt": now}
		if !found.cursor.IsZero() {
			// Wait while an expansion that the pause cut off may still insert: it would insert again the occurrences
			// that another expansion inserts and that are then delivered.
			set["expandAt"] = latest(now, found.expandingUntil)
		}
		changed, err := s.changeJob(ctx, bson.M{"_id": jobID(name), "version": found.version},
			bson.M{"$set": set, "$unset": bson.M{"pausedAt": ""}})
		if changed || err != nil {
			return found, err
		}
	}
}

// Trigger implements [store.Jobs]. The occurrence is staged first, and takes effect by a second write, which is
// bounded. The job is read again in between. If it is gone, its cancellation may have missed the occurrence. The same
// holds if another job has that name now, recognized by its creation time: the trigger then came between the two jobs.
// A later cancellation removes the staged occurrence, or cancels it.
func (s *Store) Trigger(ctx context.Context, o job.Occurrence) error {
	ctx, cancel := within(ctx)
	defer cancel()
	before, err := s.read(ctx, o.Name)
	if err != nil {
		return notDone(err)
	}
	one := []job.Occurrence{o}
	if err := s.insertOccurrences(ctx, [][]job.Occurrence{one}, s.staged); err != nil {
		return notDone(err)
	}
	after, err := s.read(ctx, o.Name)
	if err = notDone(err); err == nil && !after.createdAt.Equal(before.createdAt) {
		err = store.ErrNotFound
	}
	if err == nil {
		var there int
		if there, err = s.unveil(ctx, [][]job.Occurrence{one}); err == nil && there == 0 {
			err = store.ErrNotFound
		}
	}
	if err == nil || errors.Is(err, store.ErrUnavailable) && !errors.Is(err, store.ErrNotDone) {
		return err
	}
	tidying, done := context.WithTimeout(context.WithoutCancel(ctx), tidyWithin) // the trigger's time may be over
	defer done()
	_ = s.unstage(tidying, []string{o.ID.String()}) // if this fails, a sweep removes it
	return err
}
