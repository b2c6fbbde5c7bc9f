package mongodb

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Settle implements [store.Queue]: acks are one delete for each claim, the rest is written in bulk.
//
// A job is kept for a settlement whether or not that still held its claim, since a bulk write does not tell. So a stale
// settlement can keep a job a little longer, if the job still has that revision.
func (s *Store) Settle(ctx context.Context, settlements []store.Settlement) error {
	acked := make(map[string][]string)
	kept := make(map[job.Revision]mongo.WriteModel)
	keptUntil := make(map[job.Revision]time.Time)
	var writes []mongo.WriteModel
	for i := range settlements {
		t := &settlements[i]
		if t.Outcome == store.Ack {
			acked[t.Token] = append(acked[t.Token], t.ID.String())
			continue
		}
		writes = append(writes, mongo.NewUpdateOneModel().
			SetFilter(bson.M{"_id": t.ID.String(), "token": t.Token}).SetUpdate(settlementUpdate(t)))
		if t.Outcome != store.Bury && t.Revision != "" && t.KeepUntil.After(keptUntil[t.Revision]) {
			keptUntil[t.Revision] = t.KeepUntil
			kept[t.Revision] = mongo.NewUpdateOneModel().
				SetFilter(bson.M{"_id": jobID(t.Name), "revision": t.Revision}).
				SetUpdate(bson.M{"$max": bson.M{"expiresAt": t.KeepUntil}})
		}
	}
	for token, ids := range acked {
		writes = append(writes, mongo.NewDeleteManyModel().SetFilter(bson.M{"_id": in(ids), "token": token}))
	}
	if err := bulkWrite(ctx, s.occurrences, writes); err != nil {
		return err
	}
	keeps := make([]mongo.WriteModel, 0, len(kept))
	for _, write := range kept {
		keeps = append(keeps, write)
	}
	return bulkWrite(ctx, s.jobs, keeps)
}

// settlementUpdate is what a settlement other than an ack does to its occurrence.
func settlementUpdate(t *store.Settlement) bson.M {
	if t.Outcome == store.Bury {
		set := bson.M{
			"lane": laneDead, "revision": "", "failedAt": t.At, "lastError": t.Error, "callback": newCallbackDocument(t.Target.Callback),
		}
		unset := bson.M{"dueAt": "", "scheduledAt": "", "token": ""}
		if encoded := t.Target.Options.Encode(); len(encoded) > 0 {
			set["options"] = encoded
		} else {
			unset["options"] = ""
		}
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
