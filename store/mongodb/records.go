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

// recordDocument is a document of the collection records. One without a version is a stub: it stands for no record, and
// is there since an insertion can't be bounded, and the update of a document can.
type recordDocument struct {
	ID        string    `bson:"_id"`
	Version   string    `bson:"version"`
	ExpiresAt time.Time `bson:"expiresAt,omitempty"`
	Body      []byte    `bson:"body,omitempty"`
}

// recordID is the _id of a record. It is unambiguous, and those of one collection sort by the bytes of their keys.
func recordID(collection, key string) string { return collection + separator + key }

// live is the version of the record if it is live at now; empty if not.
func (d *recordDocument) live(now time.Time) job.Revision {
	if d.ExpiresAt.IsZero() || d.ExpiresAt.After(now) {
		return job.Revision(d.Version)
	}
	return ""
}

// Records implements [store.Records].
func (s *Store) Records(ctx context.Context, f store.RecordFilter) ([]store.Record, error) {
	first := recordID(f.Collection, f.Prefix)
	of := bson.M{"$gte": first, "$lt": beyond(first)}
	if f.After != "" {
		of["$gt"] = recordID(f.Collection, f.After)
	}
	if len(f.Keys) > 0 {
		ids := f.Wanted()
		for i, key := range ids {
			ids[i] = recordID(f.Collection, key)
		}
		of = in(ids)
	}
	found, err := find[recordDocument](ctx, s.records,
		bson.M{"_id": of, "version": bson.M{"$gt": ""}, "$nor": bson.A{bson.M{"expiresAt": bson.M{"$lte": f.Now}}}},
		options.Find().SetSort(keys("_id")).SetLimit(int64(f.Limit)))
	if err != nil {
		return nil, err
	}
	page := make([]store.Record, len(found))
	for i, d := range found {
		key := d.ID[len(f.Collection)+len(separator):]
		page[i] = store.Record{Key: key, Version: job.Revision(d.Version), Body: d.Body, ExpiresAt: d.ExpiresAt}
	}
	return page, nil
}

// recordChange is a change on its way into the store.
type recordChange struct {
	*store.RecordChange
	id     string
	answer *error
}

// WriteRecords implements [store.Records]. A change that is made is one write, guarded by the version that the document
// had when it was read, which decided on the change, and by the server's time. Where there is no document, a stub is
// inserted first.
func (s *Store) WriteRecords(ctx context.Context, changes []store.RecordChange) []error {
	ctx, cancel := within(ctx)
	defer cancel()
	answers := make([]error, len(changes))
	var rounds [][]recordChange // none has an id twice, and those of one id are in order
	next := make(map[string]int, len(changes))
	for i := range changes {
		c := recordChange{&changes[i], recordID(changes[i].Collection, changes[i].Key), &answers[i]}
		n := next[c.id]
		next[c.id]++
		if n == len(rounds) {
			rounds = append(rounds, nil)
		}
		rounds[n] = append(rounds[n], c)
	}
	for _, round := range rounds {
		var group errgroup.Group
		group.SetLimit(parallel)
		for part := range slices.Chunk(round, togetherMost) {
			group.Go(func() error {
				s.writeRecords(ctx, part)
				return nil
			})
		}
		_ = group.Wait()
	}
	return answers
}

// writeRecords makes changes of distinct records, and answers them. What others have changed since it was read is read
// again: then somebody else's change has succeeded.
func (s *Store) writeRecords(ctx context.Context, going []recordChange) {
	for {
		writes, left, err := s.judgeRecords(ctx, going)
		if going = left; len(going) == 0 {
			return
		}
		if err == nil {
			made := 0
			err = s.inTime(ctx, func(ctx context.Context, inTime bson.M) (bool, error) {
				made, err = s.writeTogether(ctx, writes(inTime))
				return made == len(going), err
			})
			if err != nil && len(going) > 1 {
				err = unknown(err) // some of them may have been made
			}
			if err == nil && made == len(going) {
				return
			}
		}
		if err != nil {
			for _, c := range going {
				*c.answer = err
			}
			return
		}
	}
}

// judgeRecords reads the records that are to be changed, and answers those changes about which there is nothing to
// decide. It returns the others, for which there is a document each, and the writes that make them.
func (s *Store) judgeRecords(ctx context.Context, changes []recordChange) (
	writes func(inTime bson.M) []mongo.WriteModel, left []recordChange, err error) {
	ids := make([]string, len(changes))
	for i, c := range changes {
		ids[i] = c.id
	}
	found, err := find[recordDocument](ctx, s.records, bson.M{"_id": in(ids)},
		options.Find().SetProjection(keys("version", "expiresAt")))
	if err != nil {
		return nil, changes, notDone(err)
	}
	present := make(map[string]recordDocument, len(found))
	for _, d := range found {
		present[d.ID] = d
	}
	var stubs []any
	for _, c := range changes {
		d, there := present[c.id]
		write, answer := c.Judge(d.live(c.Now))
		if *c.answer = answer; !write {
			continue
		}
		if left = append(left, c); !there {
			stubs = append(stubs, recordDocument{ID: c.id, ExpiresAt: c.Now.Add(stubFor)})
		}
	}
	if len(stubs) > 0 {
		_, err := s.records.InsertMany(ctx, stubs, options.InsertMany().SetOrdered(false))
		if err != nil && !onlyDuplicates(err) {
			return nil, left, notDone(mapError(err))
		}
	}
	return func(inTime bson.M) []mongo.WriteModel {
		all := make([]mongo.WriteModel, len(left))
		for i, c := range left {
			all[i] = c.write(both(bson.M{"_id": c.id, "version": present[c.id].Version}, inTime))
		}
		return all
	}, left, nil
}

// write is the write that makes the change of the document that a filter matches.
func (c *recordChange) write(filter bson.M) mongo.WriteModel {
	if c.Body == nil {
		return mongo.NewDeleteOneModel().SetFilter(filter)
	}
	set, unset := bson.M{"version": c.Version}, bson.M{}
	assign(set, unset, "expiresAt", c.ExpiresAt, !c.ExpiresAt.IsZero())
	assign(set, unset, "body", c.Body, len(c.Body) > 0)
	update := bson.M{"$set": set}
	if len(unset) > 0 {
		update["$unset"] = unset
	}
	return mongo.NewUpdateOneModel().SetFilter(filter).SetUpdate(update)
}

// writeTogether answers how many documents the writes have matched.
func (s *Store) writeTogether(ctx context.Context, writes []mongo.WriteModel) (matched int, err error) {
	result, err := s.records.BulkWrite(ctx, writes, options.BulkWrite().SetOrdered(false))
	if err != nil {
		return 0, err
	}
	return int(result.MatchedCount + result.DeletedCount), nil
}

// sweepRecords deletes expired records, and stubs that no change may take any more.
func (s *Store) sweepRecords(ctx context.Context, p store.SweepParams, swept *store.Swept) error {
	expired := bson.M{"expiresAt": bson.M{"$lte": p.Now}}
	found, err := find[recordDocument](ctx, s.records, expired,
		options.Find().SetSort(keys("expiresAt")).SetLimit(int64(p.Limit)).SetProjection(keys("version")))
	if err != nil || len(found) == 0 {
		return err
	}
	ids, stubs := make([]string, len(found)), 0
	for i, d := range found {
		if ids[i] = d.ID; d.Version == "" {
			stubs++
		}
	}
	swept.More = swept.More || len(found) == p.Limit
	result, err := s.records.DeleteMany(ctx, both(expired, bson.M{"_id": in(ids)}))
	if err != nil {
		return mapError(err)
	}
	swept.Records = max(0, int(result.DeletedCount)-stubs)
	return nil
}
