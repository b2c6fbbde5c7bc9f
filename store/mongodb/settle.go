package mongodb

import (
	"context"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Settle implements [store.Queue]. It deletes delivered occurrences, by one write for each claim, and updates the
// others in bulk. It first reads which of the missed or buried occurrences are still held, so that a repeated
// settlement counts once. It deletes missed ones one by one, since the driver repeats only such a write after its
// answer was lost. A crash between the last two writes loses the count, and so does an error that the driver does not
// bridge.
//
// The answer to a bulk write does not show which claims were still held. So a stale settlement, too, may postpone the
// expiry of its job, if the job still has that revision.
func (s *Store) Settle(ctx context.Context, settlements []store.Settlement) error {
	troubled, err := s.troubled(ctx, settlements)
	if err != nil {
		return err
	}
	deleted := make(map[string][]string)
	kept := make(map[job.Revision]mongo.WriteModel)
	keptUntil := make(map[job.Revision]time.Time)
	var writes []mongo.WriteModel
	for i := range settlements {
		t := &settlements[i]
		claimed := bson.M{"_id": t.ID.String(), "token": t.Token}
		switch t.Outcome {
		case store.Ack:
			deleted[t.Token] = append(deleted[t.Token], t.ID.String())
			continue
		case store.Miss:
			writes = append(writes, mongo.NewDeleteOneModel().SetFilter(claimed))
			continue
		default:
			writes = append(writes, mongo.NewUpdateOneModel().SetFilter(claimed).SetUpdate(settlementUpdate(t)))
		}
		if t.Outcome != store.Bury && t.Revision != "" && t.KeepUntil.After(keptUntil[t.Revision]) {
			keptUntil[t.Revision] = t.KeepUntil
			kept[t.Revision] = mongo.NewUpdateOneModel().
				SetFilter(jobOf(jobID(t.Name), t.Revision)).
				SetUpdate(bson.M{"$max": bson.M{"expiresAt": t.KeepUntil}})
		}
	}
	for token, ids := range deleted {
		writes = append(writes, mongo.NewDeleteManyModel().SetFilter(bson.M{"_id": in(ids), "token": token}))
	}
	if err := bulkWrite(ctx, s.occurrences, writes); err != nil {
		return err
	}
	ofJobs := make([]mongo.WriteModel, 0, len(kept)+len(troubled))
	for _, write := range kept {
		ofJobs = append(ofJobs, write)
	}
	for of, t := range troubled {
		ofJobs = append(ofJobs, mongo.NewUpdateOneModel().SetFilter(jobOf(of.id, of.revision)).
			SetUpdate(bson.M{"$inc": t.counts, "$max": bson.M{"trouble": t.latest}}))
	}
	return bulkWrite(ctx, s.jobs, ofJobs)
}

// revisionOf is a past or present revision of a job.
type revisionOf struct {
	id       string // of the job document
	revision job.Revision
}

// troubled is the sum of a job's missed and buried occurrences: how much to add to each counter, and the latest
// trouble.
type troubled struct {
	counts bson.M // by field
	latest string
}

// troubled sums up the settlements that miss or bury an occurrence which their claim still holds, by the revision of
// the occurrence's job.
func (s *Store) troubled(ctx context.Context, settlements []store.Settlement) (map[revisionOf]troubled, error) {
	type claim struct{ id, token string }
	of := make(map[claim]*store.Settlement)
	var ids []string
	for i := range settlements {
		if t := &settlements[i]; (t.Outcome == store.Miss || t.Outcome == store.Bury) && t.Revision != "" {
			ids = append(ids, t.ID.String())
			of[claim{t.ID.String(), t.Token}] = t
		}
	}
	all := make(map[revisionOf]troubled)
	for part := range slices.Chunk(ids, chunk) {
		found, err := find[occurrenceDocument](ctx, s.occurrences, bson.M{"_id": in(part)},
			options.Find().SetProjection(bson.M{"token": 1}))
		if err != nil {
			return nil, err
		}
		for i := range found {
			t := of[claim{found[i].ID, found[i].Token}]
			if t == nil {
				continue
			}
			name := revisionOf{jobID(t.Name), t.Revision}
			sum := all[name]
			if sum.counts == nil {
				sum.counts = bson.M{}
			}
			field := "failed"
			if t.Outcome == store.Miss {
				field = "missed"
			}
			n, _ := sum.counts[field].(int)
			sum.counts[field], sum.latest = n+1, max(sum.latest, t.Trouble().Encode())
			all[name] = sum
		}
	}
	return all, nil
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
func bulkWrite(ctx context.Context, c *mongo.Collection, writes []mongo.WriteModel) error {
	if len(writes) == 0 {
		return nil
	}
	_, err := c.BulkWrite(ctx, writes, options.BulkWrite().SetOrdered(false))
	return mapError(err)
}
