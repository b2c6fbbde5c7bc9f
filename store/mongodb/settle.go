package mongodb

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Settle implements [store.Queue]. It deletes delivered occurrences, by one write for each claim, and updates the
// others in bulk. It first reads which of the missed or buried occurrences are still held, so that a repeated
// settlement counts once, and to which revisions they belong, so that each counts for a job that has it. It deletes
// missed ones one by one, since the driver repeats only such a write after its answer was lost. A crash between the
// last two writes loses the count, and so does an error that the driver does not bridge. If a lease ends between the
// reading and the writes, another claim may have an occurrence by then; or a put may have carried it over. So where the
// writes have not changed all, it reads again which ones they have, and settles those once more that are still held.
//
// The answer to a bulk write does not show which claims were still held. So a stale settlement, too, may postpone the
// expiry of its job, if the job still has that revision.
func (s *Store) Settle(ctx context.Context, settlements []store.Settlement) error {
	held, err := s.held(ctx, settlements)
	if err != nil {
		return err
	}
	deleted := make(map[string][]string)
	kept := make(map[job.Revision]mongo.WriteModel)
	keptUntil := make(map[job.Revision]time.Time)
	var updates, deletions, misses []mongo.WriteModel
	for i := range settlements {
		t := &settlements[i]
		claimed := bson.M{"_id": t.ID.String(), "token": t.Token}
		if counts(t) {
			h := held[holdOf(t)]
			if h == nil {
				continue // its claim has ended
			}
			claimed["revision"], claimed["heirs"] = h.revision, bson.M{"$exists": h.heirs != nil}
		}
		switch t.Outcome {
		case store.Ack:
			deleted[t.Token] = append(deleted[t.Token], t.ID.String())
			continue
		case store.Miss:
			misses = append(misses, mongo.NewDeleteOneModel().SetFilter(claimed))
			continue
		default:
			updates = append(updates, mongo.NewUpdateOneModel().SetFilter(claimed).SetUpdate(settlementUpdate(t)))
		}
		if t.Outcome != store.Bury && t.Revision != "" && t.KeepUntil.After(keptUntil[t.Revision]) {
			keptUntil[t.Revision] = t.KeepUntil
			kept[t.Revision] = mongo.NewUpdateOneModel().
				SetFilter(jobOf(jobID(t.Name), t.Revision)).
				SetUpdate(bson.M{"$max": bson.M{"expiresAt": t.KeepUntil}})
		}
	}
	for token, ids := range deleted {
		deletions = append(deletions, mongo.NewDeleteManyModel().SetFilter(bson.M{"_id": in(ids), "token": token}))
	}
	changed, err := bulkWrite(ctx, s.occurrences, slices.Concat(updates, deletions))
	if err != nil {
		return err
	}
	missed, err := bulkWrite(ctx, s.occurrences, misses)
	if err != nil {
		return err
	}
	var again []store.Settlement
	if changed.MatchedCount < int64(len(updates)) || missed.DeletedCount < int64(len(misses)) {
		if again, err = s.changed(ctx, held, missed.DeletedCount); err != nil {
			return err
		}
	}
	ofJobs := slices.Collect(maps.Values(kept))
	for _, t := range held.sums() {
		ofJobs = append(ofJobs, mongo.NewUpdateOneModel().SetFilter(t.job).
			SetUpdate(bson.M{"$inc": t.counts, "$max": bson.M{"trouble": t.latest}}))
	}
	if _, err = bulkWrite(ctx, s.jobs, ofJobs); err != nil || len(again) == 0 {
		return err
	}
	return s.Settle(ctx, again)
}

// counts reports whether a settlement misses or buries an occurrence of a job.
func counts(t *store.Settlement) bool {
	return (t.Outcome == store.Miss || t.Outcome == store.Bury) && t.Revision != ""
}

// troubles are settlements that miss or bury an occurrence of a job, by its claim.
type troubles map[hold]*trouble

// trouble is a settlement, and the revision to which its occurrence belongs, with those that may have it as an heir.
type trouble struct {
	*store.Settlement
	revision string
	heirs    map[string]heirDocument
}

// hold is a claim's hold of an occurrence.
type hold struct{ id, token string }

func holdOf(t *store.Settlement) hold { return hold{t.ID.String(), t.Token} }

// held returns the settlements that miss or bury an occurrence of a job which their claim still holds.
func (s *Store) held(ctx context.Context, settlements []store.Settlement) (troubles, error) {
	all := make(troubles)
	for i := range settlements {
		if t := &settlements[i]; counts(t) {
			all[holdOf(t)] = &trouble{Settlement: t}
		}
	}
	return all, s.keep(ctx, all, func(t *trouble, now *occurrenceDocument) bool {
		if now == nil || now.Token != t.Token {
			return false
		}
		t.revision, t.heirs = now.Revision, now.Heirs
		return true
	})
}

// changed deletes from held the settlements whose writes changed nothing, as far as can be known, and returns those of
// them whose claims still hold their occurrences. A missed occurrence that is gone was deleted by these writes if they
// deleted as many as are gone; otherwise another claim may have deleted one.
func (s *Store) changed(ctx context.Context, held troubles, deleted int64) (again []store.Settlement, err error) {
	gone := int64(0)
	err = s.keep(ctx, held, func(t *trouble, now *occurrenceDocument) bool {
		if now == nil && t.Outcome == store.Miss {
			gone++
			return true
		}
		if now != nil && now.Token == t.Token {
			again = append(again, *t.Settlement)
			return false
		}
		return now != nil && t.Outcome == store.Bury && now.Lane == laneDead && now.FailedAt.UnixMilli() == t.At.UnixMilli()
	})
	if gone > deleted {
		maps.DeleteFunc(held, func(_ hold, t *trouble) bool { return t.Outcome == store.Miss })
	}
	return again, err
}

// keep reads the occurrences of settlements, nil for one that is gone, and deletes the settlements that are not wanted.
func (s *Store) keep(
	ctx context.Context, all troubles, wanted func(*trouble, *occurrenceDocument) bool,
) error {
	for part := range slices.Chunk(slices.Collect(maps.Keys(all)), chunk) {
		ids := make([]string, len(part))
		for i, c := range part {
			ids[i] = c.id
		}
		found, err := find[occurrenceDocument](ctx, s.occurrences, bson.M{"_id": in(ids)},
			options.Find().SetProjection(bson.M{"token": 1, "lane": 1, "failedAt": 1, "revision": 1, "heirs": 1}))
		if err != nil {
			return err
		}
		there := make(map[string]*occurrenceDocument, len(found))
		for i := range found {
			there[found[i].ID] = &found[i]
		}
		for _, c := range part {
			if !wanted(all[c], there[c.id]) {
				delete(all, c)
			}
		}
	}
	return nil
}

// troubled is the sum of a job's missed and buried occurrences: how much to add to each counter, and the latest
// trouble.
type troubled struct {
	job    bson.M // matches the job
	counts bson.M // by field
	latest string
}

// sums returns the sums of the occurrences of each job that belong to the same revisions.
func (all troubles) sums() map[string]troubled {
	sums := make(map[string]troubled)
	for _, t := range all {
		of := append([]string{t.revision}, slices.Sorted(maps.Keys(t.heirs))...)
		name := jobID(t.Name) + separator + strings.Join(of, " ")
		sum := sums[name]
		if sum.counts == nil {
			sum = troubled{job: bson.M{"_id": jobID(t.Name), "revision": in(of)}, counts: bson.M{}}
		}
		field := "failed"
		if t.Outcome == store.Miss {
			field = "missed"
		}
		n, _ := sum.counts[field].(int)
		sum.counts[field], sum.latest = n+1, max(sum.latest, t.Trouble().Encode())
		sums[name] = sum
	}
	return sums
}

// settlementUpdate returns the update that a retry, bury or release makes to its occurrence.
func settlementUpdate(t *store.Settlement) bson.M {
	if t.Outcome == store.Bury {
		set := bson.M{
			"lane": laneDead, "revision": "", "failedAt": t.At, "lastError": t.Error,
			"callback": newCallbackDocument(t.Target.Callback),
		}
		unset := bson.M{"dueAt": "", "scheduledAt": "", "token": "", "heirs": ""}
		encoded := t.Target.Options.Encode()
		assign(set, unset, "options", encoded, len(encoded) > 0)
		return bson.M{"$set": set, "$unset": unset}
	}
	set := bson.M{"dueAt": t.DueAt}
	unset := bson.M{"scheduledAt": "", "token": ""}
	if t.Error != "" {
		set["lastError"] = t.Error
	} else if t.Outcome == store.Retry {
		unset["lastError"] = ""
	}
	update := bson.M{"$set": set, "$unset": unset}
	if t.Outcome == store.Release {
		update["$inc"] = bson.M{"attempt": -1}
	}
	return update
}

// bulkWrite makes independent writes.
func bulkWrite(ctx context.Context, c *mongo.Collection, writes []mongo.WriteModel) (mongo.BulkWriteResult, error) {
	if len(writes) == 0 {
		return mongo.BulkWriteResult{}, nil
	}
	result, err := c.BulkWrite(ctx, writes, options.BulkWrite().SetOrdered(false))
	if err != nil {
		return mongo.BulkWriteResult{}, mapError(err)
	}
	return *result, nil
}
