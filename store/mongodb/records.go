package mongodb

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// recordDocument is a document of the collection records. A document without a version is a stub and no record: it
// exists because an update can be bounded by the server's time, and an insertion can't.
type recordDocument struct {
	ID        string    `bson:"_id"`
	Version   string    `bson:"version"`
	ExpiresAt time.Time `bson:"expiresAt,omitempty"`
	Body      []byte    `bson:"body,omitempty"`
}

// recordID returns the _id of a record. It is unambiguous, and the _ids of one collection sort by their keys' bytes.
func recordID(collection, key string) string { return collection + separator + key }

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

// WriteRecords implements [store.Records]. Each change is judged by the document as read, and made by one write, which
// is guarded by that document's version and by the server's time. Where there is no document, a stub is inserted first.
func (s *Store) WriteRecords(ctx context.Context, changes []store.RecordChange) []error {
	ctx, cancel := within(ctx)
	defer cancel()
	answers := make([]error, len(changes))
	var parts [][]recordChange // none has an id twice, and those of one id are in order
	next := make(map[string]int, len(changes))
	for i := range changes {
		c := recordChange{&changes[i], recordID(changes[i].Collection, changes[i].Key), &answers[i]}
		n := next[c.id]
		if n < len(parts) && len(parts[n]) == togetherMost {
			n = len(parts)
		}
		if n == len(parts) {
			parts = append(parts, nil)
		}
		parts[n], next[c.id] = append(parts[n], c), n+1
	}
	for _, part := range parts {
		s.writeRecords(ctx, part)
	}
	return answers
}

// writeRecords makes changes of distinct records and sets their results. If a write does not match, another change has
// succeeded since the record was read, so the record is read again.
func (s *Store) writeRecords(ctx context.Context, going []recordChange) {
	fail := func(err error, partly bool) { // some may have been made
		if partly {
			err = unknown(err)
		}
		for _, c := range going {
			*c.answer = err
		}
	}
	for made := 0; ; {
		present, err := s.presentRecords(ctx, going)
		if err != nil {
			fail(notDone(err), made > 0)
			return
		}
		if going = judgeRecords(going, present, made); len(going) == 0 {
			return
		}
		if err := s.insertRecordStubs(ctx, going, present); err != nil {
			fail(notDone(err), false)
			return
		}
		made = 0
		err = s.inTime(ctx, func(ctx context.Context, inTime bson.M) (bool, error) {
			writes := make([]mongo.WriteModel, len(going))
			for i, c := range going {
				writes[i] = c.write(both(bson.M{"_id": c.id, "version": present[c.id].Version}, inTime), len(going) == 1)
			}
			result, err := s.records.BulkWrite(ctx, writes, options.BulkWrite().SetOrdered(false))
			if err == nil {
				made += int(result.MatchedCount + result.DeletedCount)
			}
			return made == len(going), err
		})
		if err != nil {
			fail(err, len(going) > 1)
			return
		}
		if made == len(going) {
			return
		}
	}
}

// presentRecords reads the documents of records that are to be changed, without their bodies.
func (s *Store) presentRecords(ctx context.Context, changes []recordChange) (map[string]recordDocument, error) {
	ids := make([]string, len(changes))
	for i, c := range changes {
		ids[i] = c.id
	}
	found, err := find[recordDocument](ctx, s.records, bson.M{"_id": in(ids)},
		options.Find().SetProjection(keys("version", "expiresAt")))
	if err != nil {
		return nil, err
	}
	present := make(map[string]recordDocument, len(found))
	for _, d := range found {
		present[d.ID] = d
	}
	return present, nil
}

// judgeRecords sets the results of changes that need no write, and returns the others. Made is the number of changes
// that the last bulk write made. If fewer of them are still in the store, other clients have changed some of the
// records again, and it is unknown which; then all changes whose version is absent get an error.
func judgeRecords(changes []recordChange, present map[string]recordDocument, made int) (left []recordChange) {
	for _, c := range changes {
		write, answer := c.Judge(c.live(present))
		if *c.answer = answer; write {
			left = append(left, c)
		}
		if c.live(present) == c.Version || c.Body == nil && c.live(present) == "" {
			made--
		}
	}
	if made <= 0 {
		return left
	}
	for _, c := range changes {
		if c.live(present) != c.Version {
			*c.answer = fmt.Errorf("%w: it is unknown which records were changed twice", store.ErrUnavailable)
		}
	}
	return nil
}

// live returns the version of the present record if it is live; empty if not.
func (c *recordChange) live(present map[string]recordDocument) job.Revision {
	if d := present[c.id]; d.ExpiresAt.IsZero() || d.ExpiresAt.After(c.Now) {
		return job.Revision(d.Version)
	}
	return ""
}

// insertRecordStubs inserts stubs for records that have no document. If another replica has inserted one meanwhile, the
// guarded write that follows decides.
func (s *Store) insertRecordStubs(
	ctx context.Context, changes []recordChange, present map[string]recordDocument) error {
	var stubs []any
	for _, c := range changes {
		if _, there := present[c.id]; !there {
			stubs = append(stubs, recordDocument{ID: c.id, ExpiresAt: c.Now.Add(stubFor)})
		}
	}
	if len(stubs) == 0 {
		return nil
	}
	_, err := s.records.InsertMany(ctx, stubs, options.InsertMany().SetOrdered(false))
	if onlyDuplicates(err) {
		return nil
	}
	return mapError(err)
}

// write returns the write that makes the change of the document that a filter matches. The driver repeats a write that
// is sent alone after a failure; for several, see [updateOf].
func (c *recordChange) write(filter bson.M, alone bool) mongo.WriteModel {
	switch {
	case c.Body == nil && alone:
		return mongo.NewDeleteOneModel().SetFilter(filter)
	case c.Body == nil:
		return mongo.NewDeleteManyModel().SetFilter(filter)
	}
	set, unset := bson.M{"version": c.Version}, bson.M{}
	assign(set, unset, "expiresAt", c.ExpiresAt, !c.ExpiresAt.IsZero())
	assign(set, unset, "body", c.Body, len(c.Body) > 0)
	update := bson.M{"$set": set}
	if len(unset) > 0 {
		update["$unset"] = unset
	}
	if alone {
		return mongo.NewUpdateOneModel().SetFilter(filter).SetUpdate(update)
	}
	return updateOf(filter, update)
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
