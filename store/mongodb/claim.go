package mongodb

import (
	"context"
	"errors"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Claim implements [store.Queue] in three steps: find what is due of each lane, stamp it if it is still due, and read both what
// got this claim's stamp and the jobs. The first is two commands for each quota, the last is two for all, which are under way
// together. More put back what is not to fire now, if there is any.
//
// If a command after the stamping fails, the whole batch is given back. If that fails too, it waits for the lease's end.
func (s *Store) Claim(ctx context.Context, p store.ClaimParams) (store.Claim, error) {
	finds, err := s.look(ctx, p)
	if err != nil {
		return store.Claim{}, err
	}
	var due []occurrenceDocument
	for _, f := range finds {
		due = append(due, f.due...)
	}
	if len(due) == 0 {
		claim, _ := join(p, finds, nil, nil)
		return claim, nil
	}
	token := job.NewToken()
	won, targets, err := s.take(ctx, p, due, token)
	if err != nil {
		s.giveBack(ctx, p, occurrenceIDs(due), token)
		return store.Claim{}, err
	}
	claim, back := join(p, finds, won, targets)
	s.putBack(ctx, p, back)
	return claim, nil
}

// finding is what a quota has found.
type finding struct {
	due  []occurrenceDocument // the longest due first; no more of them than the order, whose they are and what tells a reclaim
	next time.Time            // when the first of the lane becomes due that is not due yet; zero if there is none
}

// look finds what is due by each quota.
func (s *Store) look(ctx context.Context, p store.ClaimParams) ([]finding, error) {
	finds := make([]finding, len(p.Quotas))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for i, q := range p.Quotas {
		group.Go(func() (err error) {
			finds[i].due, err = s.findDue(ctx, p, q, q.Limit, "tenant", "key", "revision", "dueAt", "scheduledAt")
			return err
		})
		group.Go(func() error {
			next, err := s.first(ctx, bson.M{"lane": q.Lane.String(), "dueAt": bson.M{"$gt": p.Due()}})
			finds[i].next = next.DueAt
			return err
		})
	}
	return finds, group.Wait()
}

// findDue finds what is due by a quota but for its limit, the longest due first, and reads these fields of it.
func (s *Store) findDue(ctx context.Context, p store.ClaimParams, q store.Quota, limit int, fields ...string) ([]occurrenceDocument, error) {
	after, until := p.Range(q)
	return find[occurrenceDocument](ctx, s.occurrences,
		bson.M{"lane": q.Lane.String(), "dueAt": bson.M{"$gt": after, "$lte": until}},
		options.Find().SetSort(keys("dueAt", "_id")).SetLimit(int64(limit)).SetProjection(keys(fields...)))
}

// first reads the first entry of the claim index that matches; the zero value if there is none.
func (s *Store) first(ctx context.Context, filter bson.M) (d occurrenceDocument, err error) {
	err = s.occurrences.FindOne(ctx, filter, options.FindOne().SetSort(keys("lane", "dueAt")).
		SetProjection(bson.M{"_id": 0, "lane": 1, "dueAt": 1})).Decode(&d)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return d, nil
	}
	return d, mapError(err)
}

// take stamps what was found due and reads what it got, with its jobs. It reads the jobs of all that was found: not to wait for
// which of it was got spares a claim a fourth of its time. An occurrence that has a job when it is found may only lose it
// until then, by standing on its own.
func (s *Store) take(ctx context.Context, p store.ClaimParams, due []occurrenceDocument, token string) (
	won []occurrenceDocument, targets map[string]target, err error) {
	ids := occurrenceIDs(due)
	stamped, err := s.stamp(ctx, p, ids, due, token)
	if !stamped || err != nil {
		return nil, nil, err
	}
	group, reading := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		won, err = find[occurrenceDocument](reading, s.occurrences, bson.M{"_id": in(ids), "token": token}, options.Find())
		return err
	})
	group.Go(func() (err error) {
		targets, err = s.targets(reading, due)
		return err
	})
	if err = group.Wait(); err != nil {
		return nil, nil, err
	}
	return won, targets, s.again(ctx, won, targets, token)
}

// stamp claims those of the ids that are still due, and answers whether there were any. An occurrence that was claimed since
// they were found is due only at its lease's end, after the last of what was found, so it does not match.
func (s *Store) stamp(ctx context.Context, p store.ClaimParams, ids []string, due []occurrenceDocument, token string) (bool, error) {
	var last time.Time
	for i := range due {
		last = latest(last, due[i].DueAt)
	}
	result, err := s.occurrences.UpdateMany(ctx,
		bson.M{"_id": in(ids), "lane": anyLane(), "dueAt": bson.M{"$lte": last}},
		bson.M{"$set": bson.M{"token": token, "scheduledAt": p.Now, "dueAt": p.Now.Add(p.Lease)}, "$inc": bson.M{"attempt": 1}},
		options.UpdateMany().SetHint(indexByID)) // the claim index would do, but may be read far beyond these ids
	if err != nil {
		return false, mapError(err)
	}
	return result.MatchedCount > 0, nil
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

// join matches what was won with its jobs, in the order of what was found, and tells what is to be put back.
func join(p store.ClaimParams, finds []finding, won []occurrenceDocument, targets map[string]target) (claim store.Claim, back []returned) {
	wonByID := make(map[string]*occurrenceDocument, len(won))
	for i := range won {
		wonByID[won[i].ID] = &won[i]
	}
	claim.Quotas = make([]store.QuotaLeft, len(finds))
	for quota, f := range finds {
		left := &claim.Quotas[quota]
		left.Next = f.next
		for i := range f.due {
			d := wonByID[f.due[i].ID]
			if d == nil {
				continue // another replica was faster
			}
			c, r := joined(p, d, targets)
			if r.drop || !r.dueAt.IsZero() {
				r.quota = quota
				back = append(back, r)
				left.Next = earliest(left.Next, r.dueAt)
				continue
			}
			c.Reclaimed = !f.due[i].ScheduledAt.IsZero()
			claim.Occurrences = append(claim.Occurrences, c)
			left.Found++
			left.Next = earliest(left.Next, c.DueAt)
		}
		left.More = len(f.due) == p.Quotas[quota].Limit || left.Found < len(f.due)
	}
	return claim, back
}

// joined is what was won with what it fires with, or if it is not to fire now, what becomes of it instead.
func joined(p store.ClaimParams, d *occurrenceDocument, targets map[string]target) (c store.Claimed, r returned) {
	t, ok := targets[d.jobID()]
	d.inherit(t.revision)
	c.Occurrence, c.Fault = d.occurrence()
	r.occurrenceDocument = d
	switch {
	case c.Own != nil: // whatever became of its job
		c.Target = *c.Own
	case !ok || t.revision != d.Revision:
		r.dueAt, r.drop = store.PutBack(job.Revision(d.Revision), p.Now)
		r.orphan, r.jobRevision = true, t.revision
	case !t.pausedAt.IsZero():
		r.dueAt, r.paused = store.PutBackPaused(d.Timestamp, t.pausedAt, p), true
	case !t.cursor.IsZero() && d.Timestamp.After(t.cursor):
		r.dueAt = store.PutBackUnexpanded(p.Now)
	default:
		c.Target, c.Fault = t.Target, t.fault
	}
	return c, r
}

// giveBack undoes a claim whose answer could not be completed. The earlier due times are not known for all of them, so
// they are due at the latest that any of them was.
func (s *Store) giveBack(ctx context.Context, p store.ClaimParams, ids []string, token string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyWithin) // the claim's time may be over
	defer cancel()
	_, _ = s.occurrences.UpdateMany(ctx, bson.M{"_id": in(ids), "token": token}, unclaim(p.Due()))
}

// unclaim gives an occurrence back as if it had not been claimed, due at a time.
func unclaim(dueAt time.Time) bson.M {
	return bson.M{
		"$set":   bson.M{"dueAt": dueAt},
		"$unset": bson.M{"token": "", "scheduledAt": ""},
		"$inc":   bson.M{"attempt": -1},
	}
}
