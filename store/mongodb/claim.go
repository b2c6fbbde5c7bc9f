package mongodb

import (
	"context"
	"errors"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Claim implements [store.Queue] in four commands: find what is due, stamp it if it is still due, read back what got this
// claim's stamp, and read the jobs. Others put back what is not to fire now, if there is any.
//
// If a command after the stamping fails, the whole batch is given back. If that fails too, it waits for the lease's end.
func (s *Store) Claim(ctx context.Context, p store.ClaimParams) (store.Claim, error) {
	due, err := s.findDue(ctx, p, p.Limit, "dueAt", "scheduledAt") // no more than the order and what tells a reclaim
	if err != nil || len(due) == 0 {
		return store.Claim{}, err
	}
	ids := make([]string, len(due))
	for i := range due {
		ids[i] = due[i].ID
	}
	token := job.NewToken()
	claim, err := s.take(ctx, p, due, ids, token)
	if err != nil {
		s.giveBack(ctx, p, ids, token)
		return store.Claim{}, err
	}
	return claim, nil
}

// findDue finds what is due, the longest due first, and reads these fields of it.
func (s *Store) findDue(ctx context.Context, p store.ClaimParams, limit int, fields ...string) ([]occurrenceDocument, error) {
	return find[occurrenceDocument](ctx, s.occurrences,
		bson.M{"lane": lanePending, "dueAt": bson.M{"$lte": p.Now.Add(p.Early)}},
		options.Find().SetSort(keys("dueAt", "_id")).SetLimit(int64(limit)).SetProjection(keys(fields...)))
}

// take claims what was found and joins it with the jobs.
func (s *Store) take(ctx context.Context, p store.ClaimParams, due []occurrenceDocument, ids []string, token string) (store.Claim, error) {
	won, err := s.stamp(ctx, p, ids, due[len(due)-1].DueAt, token)
	if err != nil {
		return store.Claim{}, err
	}
	targets, err := s.targets(ctx, won)
	if err != nil {
		return store.Claim{}, err
	}
	claimed, back := join(p, due, won, targets)
	s.putBack(ctx, p, back)
	return store.Claim{Occurrences: claimed, More: len(due) == p.Limit || len(claimed) < len(due)}, nil
}

// stamp claims those of the ids that are still due, and reads them back. An occurrence that was claimed since they were
// found is due only at its lease's end, so it does not match.
func (s *Store) stamp(ctx context.Context, p store.ClaimParams, ids []string, due time.Time, token string) ([]occurrenceDocument, error) {
	result, err := s.occurrences.UpdateMany(ctx,
		bson.M{"_id": in(ids), "lane": lanePending, "dueAt": bson.M{"$lte": due}},
		bson.M{"$set": bson.M{"token": token, "scheduledAt": p.Now, "dueAt": p.Now.Add(p.Lease)}, "$inc": bson.M{"attempt": 1}},
		options.UpdateMany().SetHint(indexByID)) // the claim index would do, but may be read far beyond these ids
	if err != nil {
		return nil, mapError(err)
	}
	if result.MatchedCount == 0 {
		return nil, nil
	}
	return find[occurrenceDocument](ctx, s.occurrences, bson.M{"_id": in(ids), "token": token}, options.Find())
}

// indexByID is the name of the index that every collection has.
const indexByID = "_id_"

// target is what tells whether a job's occurrences are to fire, and what they fire with, or why that can't be read.
type target struct {
	revision         string
	pausedAt, cursor time.Time
	job.Target
	fault error
}

// targets reads the jobs of occurrences, by their ids. It comes after the stamping and uses no cache: a job that was
// replaced or cancelled before its occurrence was claimed is seen to be.
func (s *Store) targets(ctx context.Context, occurrences []occurrenceDocument) (map[string]target, error) {
	ids := jobIDs(occurrences)
	targets := make(map[string]target, len(ids))
	if len(ids) == 0 {
		return targets, nil
	}
	found, err := find[jobDocument](ctx, s.jobs, bson.M{"_id": in(ids)},
		options.Find().SetProjection(bson.M{"revision": 1, "pausedAt": 1, "cursor": 1, "callback": 1, "options": 1}))
	if err != nil {
		return nil, err
	}
	for i := range found {
		d := &found[i]
		t, fault := newTarget(d.Callback, d.Options)
		targets[d.ID] = target{revision: d.Revision, pausedAt: d.PausedAt, cursor: d.Cursor, Target: t, fault: fault}
	}
	return targets, nil
}

// join matches what was won with its jobs, in the order of what was due, and tells what is to be put back.
func join(p store.ClaimParams, due, won []occurrenceDocument, targets map[string]target) (claimed []store.Claimed, back []returned) {
	wonByID := make(map[string]*occurrenceDocument, len(won))
	for i := range won {
		wonByID[won[i].ID] = &won[i]
	}
	for i := range due {
		d := wonByID[due[i].ID]
		if d == nil {
			continue // another replica was faster
		}
		c := store.Claimed{Reclaimed: !due[i].ScheduledAt.IsZero()}
		c.Occurrence, c.Fault = d.occurrence()
		t, ok := targets[d.jobID()]
		r := returned{occurrenceDocument: d}
		switch {
		case c.Own != nil: // whatever became of its job
			c.Target = *c.Own
		case !ok || t.revision != d.Revision:
			r.dueAt, r.drop = store.PutBack(job.Revision(d.Revision), p.Now)
		case !t.pausedAt.IsZero():
			r.dueAt, r.paused = store.PutBackPaused(d.Timestamp, t.pausedAt, p), true
		case !t.cursor.IsZero() && d.Timestamp.After(t.cursor):
			r.dueAt = store.PutBackUnexpanded(p.Now)
		default:
			c.Target, c.Fault = t.Target, t.fault
		}
		if r.drop || !r.dueAt.IsZero() {
			back = append(back, r)
		} else {
			claimed = append(claimed, c)
		}
	}
	return claimed, back
}

// giveBack undoes a claim whose answer could not be completed. The earlier due times are not known for all of them, so
// they are due at the latest that any of them was.
func (s *Store) giveBack(ctx context.Context, p store.ClaimParams, ids []string, token string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyWithin) // the claim's time may be over
	defer cancel()
	_, _ = s.occurrences.UpdateMany(ctx, bson.M{"_id": in(ids), "token": token}, unclaim(p.Now.Add(p.Early)))
}

// unclaim gives an occurrence back as if it had not been claimed, due at a time.
func unclaim(dueAt time.Time) bson.M {
	return bson.M{
		"$set":   bson.M{"dueAt": dueAt},
		"$unset": bson.M{"token": "", "scheduledAt": ""},
		"$inc":   bson.M{"attempt": -1},
	}
}

// NextDue implements [store.Queue]: it reads one entry of the claim index.
func (s *Store) NextDue(ctx context.Context) (time.Time, error) {
	var first occurrenceDocument
	err := s.occurrences.FindOne(ctx, bson.M{"lane": lanePending},
		options.FindOne().SetSort(keys("dueAt")).SetProjection(bson.M{"_id": 0, "dueAt": 1})).Decode(&first)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return time.Time{}, nil
	}
	return first.DueAt, mapError(err)
}
