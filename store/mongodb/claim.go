package mongodb

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Claim implements [store.Queue] in two or three round trips.
//
// The first trip finds due occurrences, by two commands for each quota. Where few are expected, the same trip also
// claims each of them by a findOneAndUpdate, which the driver repeats after a failover. Then the second trip reads
// their jobs, and the claim is complete.
//
// The second trip stamps the other found occurrences if they are still due. The third trip reads those that got this
// claim's stamp, and their jobs, by two concurrent commands.
//
// Further commands put back occurrences that must not fire now. If a command that may have stamped an occurrence fails,
// or any later command does, all occurrences with this claim's token are given back.
func (s *Store) Claim(ctx context.Context, p store.ClaimParams) (store.Claim, error) {
	if err := s.lost.wait(ctx); err != nil {
		return store.Claim{}, err
	}
	a := attempt{
		ClaimParams: p, token: job.NewToken(), finds: make([]finding, len(p.Quotas)), targets: make(map[string]target),
	}
	err := s.take(ctx, &a)
	if err == nil {
		err = s.again(ctx, &a)
	}
	if err != nil {
		if a.stamped {
			s.giveBack(p, a.token)
		}
		return store.Claim{}, err
	}
	claim, back := join(p, a.finds, a.won, a.targets)
	s.putBack(ctx, p, back)
	return claim, nil
}

// attempt is a claim under way.
type attempt struct {
	store.ClaimParams
	token   string
	stamped bool                 // an occurrence may have this claim's stamp
	finds   []finding            // one for each quota
	won     []occurrenceDocument // the claimed occurrences, with their stamps
	targets map[string]target    // of their jobs, by the job's id
}

// take claims due occurrences and reads their jobs' targets.
func (s *Store) take(ctx context.Context, a *attempt) error {
	tries := s.expected.tries(a.ClaimParams, s.routed())
	a.stamped = len(tries) > 0
	var taken [][]occurrenceDocument
	var group errgroup.Group
	group.Go(func() (err error) {
		taken, err = s.takeFirst(ctx, a, tries)
		return err
	})
	group.Go(func() error { return s.look(ctx, a) })
	if err := group.Wait(); err != nil {
		return err
	}
	var left []occurrenceDocument
	for i := range taken {
		left = append(left, a.finds[i].join(taken[i], a.Quotas[i].Limit)...)
	}
	s.expected.note(a)
	for _, d := range slices.Concat(taken...) {
		a.won = append(a.won, a.stamp(d))
	}
	return s.takeLeft(ctx, a, left)
}

// finding is the result of one quota's queries.
type finding struct {
	due  []occurrenceDocument // longest due first; without fields other than id, job, dueAt and scheduledAt
	next time.Time            // when the lane's next occurrence becomes due; zero if there is none
}

// join adds the taken occurrences to the due ones. It returns those that were found but not taken, so that both
// together do not exceed the limit.
func (f *finding) join(taken []occurrenceDocument, limit int) (left []occurrenceDocument) {
	for _, d := range f.due {
		same := func(t occurrenceDocument) bool { return t.ID == d.ID }
		if len(taken)+len(left) < limit && !slices.ContainsFunc(taken, same) {
			left = append(left, d)
		}
	}
	f.due = slices.Concat(taken, left)
	slices.SortFunc(f.due, func(a, b occurrenceDocument) int {
		return cmp.Or(a.DueAt.Compare(b.DueAt), strings.Compare(a.ID, b.ID))
	})
	return left
}

// look finds each quota's due occurrences, and when the next one becomes due.
func (s *Store) look(ctx context.Context, a *attempt) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for i, q := range a.Quotas {
		group.Go(func() (err error) {
			a.finds[i].due, err = s.findDue(ctx, a.ClaimParams, q, q.Limit, "tenant", "key", "revision", "dueAt", "scheduledAt")
			return err
		})
		later := bson.M{"lane": q.Lane.String(), "dueAt": bson.M{"$gt": a.Due()}}
		if a.stamped {
			later["token"] = bson.M{"$ne": a.token} // this claim may put its own back, due later than the lease's end
		}
		group.Go(func() error {
			next, err := s.first(ctx, later)
			a.finds[i].next = next.DueAt
			return err
		})
	}
	return group.Wait()
}

// findDue finds up to limit due occurrences of a quota, the longest due first, and reads these fields of them. It
// ignores the quota's own limit.
func (s *Store) findDue(ctx context.Context, p store.ClaimParams, q store.Quota, limit int, fields ...string) (
	[]occurrenceDocument, error) {
	return find[occurrenceDocument](ctx, s.occurrences, dueOf(p, q), options.Find().
		SetSort(keys("dueAt", "_id")).SetLimit(int64(limit)).SetProjection(keys(fields...)))
}

// dueOf matches a quota's due occurrences.
func dueOf(p store.ClaimParams, q store.Quota) bson.M {
	after, until := p.Range(q)
	return bson.M{"lane": q.Lane.String(), "dueAt": bson.M{"$gt": after, "$lte": until}}
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

// takeLeft stamps the occurrences that were found but not taken yet, reads those that it got, and reads the jobs of
// all. It reads the jobs of the taken occurrences while it stamps, since those have their stamps already. It reads the
// jobs of the others before it knows which of them it got: waiting for that would take a fourth of a claim's time. An
// occurrence's job can't change in between, except that the occurrence may become standalone.
func (s *Store) takeLeft(ctx context.Context, a *attempt, left []occurrenceDocument) error {
	ids, stamped := occurrenceIDs(left), false
	group, trip := errgroup.WithContext(ctx)
	if len(left) > 0 {
		a.stamped = true
		group.Go(func() (err error) {
			stamped, err = s.stamp(trip, a, ids, left)
			return err
		})
	}
	group.Go(func() error { return s.readTargets(trip, a, a.won) })
	if err := group.Wait(); err != nil || !stamped {
		return err
	}
	group, trip = errgroup.WithContext(ctx)
	group.Go(func() error {
		won, err := find[occurrenceDocument](trip, s.occurrences, bson.M{"_id": in(ids), "token": a.token}, options.Find())
		a.won = append(a.won, won...)
		return err
	})
	group.Go(func() error { return s.readTargets(trip, a, left) })
	return group.Wait()
}

// stamp claims those of the ids that are still due, and reports whether there were any. An occurrence that another
// replica has claimed meanwhile does not match: it is due only when its lease ends, which is after the last due time
// found.
func (s *Store) stamp(ctx context.Context, a *attempt, ids []string, due []occurrenceDocument) (bool, error) {
	var last time.Time
	for i := range due {
		last = latest(last, due[i].DueAt)
	}
	result, err := s.occurrences.UpdateMany(ctx,
		bson.M{"_id": in(ids), "lane": anyLane(), "dueAt": bson.M{"$lte": last}}, a.stampOf(),
		options.UpdateMany().SetHint(indexByID)) // a scan of the claim index could go far beyond these ids
	if err != nil {
		return false, mapError(err)
	}
	return result.MatchedCount > 0, nil
}

// stampOf returns the update that claims an occurrence.
func (a *attempt) stampOf() bson.M {
	return bson.M{
		"$set": bson.M{"token": a.token, "scheduledAt": a.Now, "dueAt": a.Now.Add(a.Lease)},
		"$inc": bson.M{"attempt": 1},
	}
}

// stamp returns an occurrence as stampOf changes it.
func (a *attempt) stamp(d occurrenceDocument) occurrenceDocument {
	d.Token, d.ScheduledAt, d.DueAt = a.token, a.Now.UTC(), a.Now.Add(a.Lease).UTC()
	d.Attempt++
	return d
}

// indexByID is the name of the index that every collection has.
const indexByID = "_id_"

// target is a job's callback and options, with the state that decides whether its occurrences may fire. If the callback
// or options can't be read, fault is the reason.
type target struct {
	revision         string
	pausedAt, cursor time.Time
	job.Target
	fault error
}

// readTargets reads the jobs of occurrences into a.targets. It uses no cache, and its result decides only over stamped
// occurrences: so a claim sees every replacement or cancellation that came before it.
func (s *Store) readTargets(ctx context.Context, a *attempt, occurrences []occurrenceDocument) error {
	ids := jobIDs(occurrences)
	if len(ids) == 0 {
		return nil
	}
	found, err := find[jobDocument](ctx, s.jobs, bson.M{"_id": in(ids)},
		options.Find().SetProjection(bson.M{"revision": 1, "pausedAt": 1, "cursor": 1, "callback": 1, "options": 1}))
	if err != nil {
		return err
	}
	for i := range found {
		d := &found[i]
		t, fault := newTarget(d.Callback, d.Options)
		a.targets[d.ID] = target{revision: d.Revision, pausedAt: d.PausedAt, cursor: d.Cursor, Target: t, fault: fault}
	}
	return nil
}

// join combines the claimed occurrences with their jobs, in the order in which they were found. It returns the claim,
// and the occurrences to put back.
func join(p store.ClaimParams, finds []finding, won []occurrenceDocument, targets map[string]target) (
	claim store.Claim, back []returned) {
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

// joined combines a claimed occurrence with its job's target. If the occurrence must not fire now, r says whether to
// drop it, or when it is due again.
func joined(p store.ClaimParams, d *occurrenceDocument, targets map[string]target) (c store.Claimed, r returned) {
	t, ok := targets[d.jobID()]
	d.inherit(t.revision)
	c.Occurrence, c.Fault = d.occurrence()
	r.occurrenceDocument = d
	switch {
	case c.Own != nil: // it does not depend on its job
		c.Target = *c.Own
	case !ok || t.revision != d.Revision:
		r.dueAt, r.drop = store.PutBack(job.Revision(d.Revision), p)
		r.orphan, r.jobRevision = true, t.revision
	case !t.pausedAt.IsZero():
		r.dueAt, r.paused = store.PutBackPaused(d.Timestamp, t.pausedAt, p), true
	case !t.cursor.IsZero() && d.Timestamp.After(t.cursor):
		r.dueAt = store.PutBackUnexpanded(p)
	default:
		c.Target, c.Fault = t.Target, t.fault
	}
	return c, r
}

// unclaim returns the update that undoes a claim of an occurrence and makes it due at a time.
func unclaim(dueAt time.Time) bson.M {
	return bson.M{
		"$set":   bson.M{"dueAt": dueAt},
		"$unset": bson.M{"token": "", "scheduledAt": ""},
		"$inc":   bson.M{"attempt": -1},
	}
}
