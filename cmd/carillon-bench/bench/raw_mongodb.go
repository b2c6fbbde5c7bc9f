package bench

import (
	"cmp"
	"context"
	"errors"
	"net/url"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/carillon-scheduler/carillon/job"
)

// rawMongoDB is MongoDB's bare client. It has collections of its own beside the store's, with the same indexes.
type rawMongoDB struct {
	client            *mongo.Client
	jobs, occurrences *mongo.Collection
}

func openRawMongoDB(ctx context.Context, rawURL string) (*rawMongoDB, error) {
	client, err := mongo.Connect(options.Client().ApplyURI(rawURL).SetWriteConcern(writeconcern.Majority()))
	if err != nil {
		return nil, err
	}
	db := client.Database(databaseOf(rawURL))
	r := &rawMongoDB{client, db.Collection("bench_raw_jobs"), db.Collection("bench_raw_occurrences")}
	err = r.drop(ctx)
	if err == nil {
		err = errors.Join(copyIndexes(ctx, db.Collection("jobs"), r.jobs),
			copyIndexes(ctx, db.Collection("occurrences"), r.occurrences))
	}
	if err != nil {
		return nil, errors.Join(err, r.Close(ctx))
	}
	return r, nil
}

// databaseOf returns the database in a URL that the store has accepted.
func databaseOf(rawURL string) string {
	address, _, _ := strings.Cut(rawURL, "?")
	_, address, _ = strings.Cut(address, "://")
	_, name, _ := strings.Cut(address, "/")
	if decoded, err := url.PathUnescape(name); err == nil {
		name = decoded
	}
	return cmp.Or(name, "carillon")
}

// copyIndexes creates the indexes of one collection in another.
func copyIndexes(ctx context.Context, from, to *mongo.Collection) error {
	indexes, err := from.Indexes().ListSpecifications(ctx)
	if err != nil {
		return err
	}
	for _, index := range indexes {
		o := options.Index().SetName(index.Name)
		if index.Unique != nil {
			o.SetUnique(*index.Unique)
		}
		if index.Sparse != nil {
			o.SetSparse(*index.Sparse)
		}
		if index.Name == "_id_" { // every collection has it
			continue
		}
		if _, err := to.Indexes().CreateOne(ctx, mongo.IndexModel{Keys: index.KeysDocument, Options: o}); err != nil {
			return err
		}
	}
	return nil
}

func (r *rawMongoDB) Upsert(ctx context.Context, rows []rawRow) error {
	jobs, occurrences := make([]mongo.WriteModel, len(rows)), make([]mongo.WriteModel, len(rows))
	for i := range rows {
		row := &rows[i]
		now, at := time.UnixMilli(row.now), time.UnixMilli(row.at)
		occurrences[i] = upsertOf(row.id.String(), bson.D{{Key: "tenant", Value: job.DefaultTenant},
			{Key: "key", Value: row.key},
			{Key: "revision", Value: row.revision}, {Key: "timestamp", Value: at}, {Key: "lane", Value: job.DefaultTenant},
			{Key: "dueAt", Value: at},
			{Key: "attempt", Value: 0}})
		jobs[i] = upsertOf(job.DefaultTenant+"\x00"+row.key,
			bson.D{{Key: "tenant", Value: job.DefaultTenant}, {Key: "key", Value: row.key},
				{Key: "revision", Value: row.revision}, {Key: "version", Value: row.revision}, {Key: "createdAt", Value: now},
				{Key: "updatedAt", Value: now}, {Key: "expiresAt", Value: time.UnixMilli(row.expires)},
				{Key: "callback", Value: bson.D{{Key: "type", Value: DiscardType}, {Key: "data", Value: row.data}}},
				{Key: "schedule", Value: row.schedule}})
	}
	unordered := options.BulkWrite().SetOrdered(false)
	if _, err := r.occurrences.BulkWrite(ctx, occurrences, unordered); err != nil {
		return err
	}
	_, err := r.jobs.BulkWrite(ctx, jobs, unordered)
	return err
}

func upsertOf(id string, document bson.D) mongo.WriteModel {
	return mongo.NewReplaceOneModel().SetFilter(bson.D{{Key: "_id", Value: id}}).SetReplacement(document).SetUpsert(true)
}

func (r *rawMongoDB) Take(ctx context.Context, c rawClaim) (int, error) {
	now := time.UnixMilli(c.now)
	due := bson.D{{Key: "lane", Value: job.DefaultTenant}, {Key: "dueAt", Value: bson.D{{Key: "$lte", Value: now}}}}
	stamp := bson.D{
		{Key: "$set", Value: bson.D{{Key: "token", Value: c.token}, {Key: "scheduledAt", Value: now},
			{Key: "dueAt", Value: time.UnixMilli(c.until)}}},
		{Key: "$inc", Value: bson.D{{Key: "attempt", Value: 1}}},
	}
	var found bson.A
	for stamped := int64(0); stamped == 0; { // once, unless others have claimed all of the found ones
		var err error
		found, err = r.ids(ctx, due, options.Find().SetSort(bson.D{{Key: "dueAt", Value: 1},
			{Key: "_id", Value: 1}}).SetLimit(rawBatch))
		if err != nil || len(found) == 0 {
			return 0, err
		}
		result, err := r.occurrences.UpdateMany(ctx, append(oneOf(found), due...), stamp,
			options.UpdateMany().SetHint("_id_"))
		if err != nil {
			return 0, err
		}
		stamped = result.ModifiedCount
	}
	token := bson.E{Key: "token", Value: c.token}
	taken, err := r.ids(ctx, append(oneOf(found), token), options.Find())
	if err != nil {
		return 0, err
	}
	deleted, err := r.occurrences.DeleteMany(ctx, append(oneOf(taken), token))
	if err != nil {
		return 0, err
	}
	return int(deleted.DeletedCount), nil
}

// oneOf selects documents by their ids.
func oneOf(ids bson.A) bson.D {
	return bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}}
}

// ids returns the ids of the occurrences that a filter selects.
func (r *rawMongoDB) ids(ctx context.Context, filter bson.D, o *options.FindOptionsBuilder) (bson.A, error) {
	cursor, err := r.occurrences.Find(ctx, filter, o.SetProjection(bson.D{{Key: "_id", Value: 1}}))
	if err != nil {
		return nil, err
	}
	var found []struct {
		ID string `bson:"_id"`
	}
	err = cursor.All(ctx, &found)
	ids := make(bson.A, len(found))
	for i := range found {
		ids[i] = found[i].ID
	}
	return ids, err
}

func (r *rawMongoDB) drop(ctx context.Context) error {
	return errors.Join(r.jobs.Drop(ctx), r.occurrences.Drop(ctx))
}

func (r *rawMongoDB) Close(ctx context.Context) error {
	return errors.Join(r.drop(ctx), r.client.Disconnect(ctx))
}
