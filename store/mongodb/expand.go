package mongodb

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// ClaimJobs implements [store.Queue] in three commands, as [Store.Claim] does: it finds due jobs, stamps those that are
// still due, and reads back those that got this claim's stamp.
func (s *Store) ClaimJobs(ctx context.Context, p store.ClaimJobsParams) (store.ClaimedJobs, error) {
	due, err := find[jobDocument](ctx, s.jobs, bson.M{"expandAt": bson.M{"$lte": p.Now}},
		options.Find().SetSort(keys("expandAt")).SetLimit(int64(p.Limit)).SetProjection(bson.M{"expandAt": 1}))
	if err != nil || len(due) == 0 {
		return store.ClaimedJobs{}, err
	}
	ids := make([]string, len(due))
	for i := range due {
		ids[i] = due[i].ID
	}
	token := job.NewToken()
	won, err := s.stampJobs(ctx, p, ids, due[len(due)-1].ExpandAt, token)
	if err != nil {
		s.giveBackJobs(p, ids, token)
		return store.ClaimedJobs{}, err
	}
	claimed := store.ClaimedJobs{Token: token, More: len(due) == p.Limit || len(won) < len(due)}
	wonByID := make(map[string]*jobDocument, len(won))
	for i := range won {
		wonByID[won[i].ID] = &won[i]
	}
	for _, id := range ids {
		d := wonByID[id]
		if d == nil {
			continue // another replica was faster
		}
		if status, err := d.status(); err == nil {
			claimed.Jobs = append(claimed.Jobs, status.Job)
		} else {
			claimed.Unreadable = append(claimed.Unreadable, job.Name{Tenant: d.Tenant, Key: d.Key})
		}
	}
	return claimed, nil
}

// stampJobs claims those of the ids that are still due, and reads them back.
func (s *Store) stampJobs(ctx context.Context, p store.ClaimJobsParams, ids []string, due time.Time, token string) (
	[]jobDocument, error) {
	_, err := s.jobs.UpdateMany(ctx,
		bson.M{"_id": in(ids), "expandAt": bson.M{"$lte": due}},
		bson.M{"$set": bson.M{"expandToken": token, "expandAt": p.Now.Add(p.Lease), "expandingUntil": p.Now.Add(p.Lease)}},
		options.UpdateMany().SetHint(indexByID))
	if err != nil {
		return nil, mapError(err)
	}
	return find[jobDocument](ctx, s.jobs, bson.M{"_id": in(ids), "expandToken": token},
		options.Find().SetProjection(bson.M{"callback.data": 0}))
}

// giveBackJobs undoes a claim that failed after it may have stamped jobs.
func (s *Store) giveBackJobs(p store.ClaimJobsParams, ids []string, token string) {
	s.lost.giveBack(p.Lease, func(ctx context.Context) error {
		_, err := s.jobs.UpdateMany(ctx, bson.M{"_id": in(ids), "expandToken": token},
			bson.M{"$set": bson.M{"expandAt": p.Now}, "$unset": bson.M{"expandToken": "", "expandingUntil": ""}})
		return err
	})
}

// Advance implements [store.Queue]. Moving the cursor commits a job's new occurrences: until then they lie beyond it
// and do not fire. The write that moves it is guarded by the claim.
//
// A late insertion could bring back occurrences that have been delivered meanwhile. So occurrences are staged first,
// and a bounded write makes them the job's. For the same reason the claims are checked beforehand, although the last
// write decides.
func (s *Store) Advance(ctx context.Context, advances []store.Advance) error {
	ctx, cancel := within(ctx)
	defer cancel()
	standing, err := s.standing(ctx, advances)
	if err != nil || len(standing) == 0 {
		return notDone(err)
	}
	occurrences := make([][]job.Occurrence, len(standing))
	n := 0
	for i, a := range standing {
		occurrences[i] = a.Occurrences
		n += len(a.Occurrences)
	}
	if err := s.insertOccurrences(ctx, occurrences, s.staged); err != nil {
		return err
	}
	there, err := s.unveil(ctx, occurrences)
	if err != nil {
		return err
	}
	if there < n { // some were replaced, cancelled or swept meanwhile
		still, err := s.standing(ctx, advances)
		if err != nil {
			return err
		}
		if len(still) == len(standing) {
			return fmt.Errorf("%w: the staged occurrences are gone", store.ErrUnavailable)
		}
		return s.Advance(ctx, advances)
	}
	if err := s.leftBehind(ctx, standing); err != nil {
		return err
	}
	return s.inTime(ctx, func(ctx context.Context, inTime bson.M) (bool, error) {
		writes := make([]mongo.WriteModel, len(standing))
		for i, a := range standing {
			writes[i] = mongo.NewUpdateOneModel().SetFilter(both(claimOf(a), inTime)).SetUpdate(advanced(a))
		}
		result, err := s.jobs.BulkWrite(ctx, writes, options.BulkWrite().SetOrdered(false))
		return err == nil && int(result.MatchedCount) == len(writes), err
	})
}

// standing returns the advances whose claims are still valid.
func (s *Store) standing(ctx context.Context, advances []store.Advance) (standing []*store.Advance, err error) {
	for part := range slices.Chunk(advances, chunk) {
		ids := make([]string, len(part))
		for i := range part {
			ids[i] = jobID(part[i].Name)
		}
		found, err := find[jobDocument](ctx, s.jobs, bson.M{"_id": in(ids), "expandToken": bson.M{"$exists": true}},
			options.Find().SetProjection(bson.M{"revision": 1, "cursor": 1, "expandToken": 1}))
		if err != nil {
			return nil, err
		}
		byID := make(map[string]*jobDocument, len(found))
		for i := range found {
			byID[found[i].ID] = &found[i]
		}
		for i := range part {
			a, d := &part[i], byID[ids[i]]
			if d != nil && d.Revision == string(a.Revision) && d.ExpandToken == a.Token && d.Cursor.Equal(a.From) {
				standing = append(standing, a)
			}
		}
	}
	return standing, nil
}

// leftBehind counts the missed instants of each advance that have an occurrence: an expansion before was cut off when
// it had inserted them, and the move of the cursor makes them the job's. They were in the store when they passed.
func (s *Store) leftBehind(ctx context.Context, advances []*store.Advance) error {
	var revisions []string
	var from time.Time // the least cursor
	byRevision, added := make(map[string]*store.Advance), make(map[string]bool)
	for _, a := range advances {
		if a.Left = 0; a.Missed == 0 {
			continue
		}
		if len(revisions) == 0 || a.From.Before(from) {
			from = a.From
		}
		revisions = append(revisions, string(a.Revision))
		byRevision[string(a.Revision)] = a
		for i := range a.Occurrences {
			added[a.Occurrences[i].ID.String()] = true
		}
	}
	if len(revisions) == 0 {
		return nil
	}
	found, err := find[occurrenceDocument](ctx, s.occurrences,
		bson.M{"revision": in(revisions), "timestamp": bson.M{"$gt": from}},
		options.Find().SetProjection(bson.M{"revision": 1, "timestamp": 1}))
	for i := range found {
		at, a := found[i].Timestamp, byRevision[found[i].Revision]
		if !added[found[i].ID] && at.After(a.From) && !at.After(a.Cursor) && a.Left < a.Missed {
			a.Left++
		}
	}
	return err
}

// claimOf matches the job of an advance while the advance's claim is valid.
func claimOf(a *store.Advance) bson.M {
	return bson.M{"_id": jobID(a.Name), "revision": a.Revision, "cursor": a.From, "expandToken": a.Token}
}

// advanced returns the update that an advance makes to its job. A job whose schedule has ended has no cursor.
func advanced(a *store.Advance) bson.M {
	set, unset := bson.M{}, bson.M{"expandToken": "", "expandingUntil": ""}
	assign(set, unset, "cursor", a.Cursor, !a.ExpandAt.IsZero())
	assign(set, unset, "expandAt", a.ExpandAt, !a.ExpandAt.IsZero())
	if !a.ExpiresAt.IsZero() {
		set["expiresAt"] = a.ExpiresAt
	}
	update := bson.M{"$unset": unset}
	if len(set) > 0 {
		update["$set"] = set
	}
	if a.Planned() > 0 {
		update["$inc"] = bson.M{"missed": a.Missed - a.Left, "planned": a.Planned()}
	}
	if !a.Trouble.IsZero() && a.Missed > a.Left {
		update["$max"] = bson.M{"trouble": a.Trouble.Encode()}
	}
	return update
}
