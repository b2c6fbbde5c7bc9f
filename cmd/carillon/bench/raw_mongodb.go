package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/connstring"
)

// rawMongoDB is MongoDB's bare client, on a collection of its own beside the store's.
type rawMongoDB struct {
	client *mongo.Client
	rows   *mongo.Collection
}

func openRawMongoDB(ctx context.Context, rawURL string) (*rawMongoDB, error) {
	parsed, err := connstring.ParseAndValidate(rawURL)
	if err != nil {
		return nil, err
	}
	client, err := mongo.Connect(options.Client().ApplyURI(rawURL).SetWriteConcern(writeconcern.Majority()))
	if err != nil {
		return nil, err
	}
	r := &rawMongoDB{client, client.Database(cmp.Or(parsed.Database, "carillon")).Collection("bench_raw")}
	if err := r.rows.Drop(ctx); err != nil {
		return nil, errors.Join(err, r.Close(ctx))
	}
	for _, index := range []mongo.IndexModel{
		{Keys: bson.D{{Key: "key", Value: 1}}, Options: options.Index().SetUnique(true)},
		{Keys: bson.D{{Key: "dueAt", Value: 1}}},
	} {
		if _, err := r.rows.Indexes().CreateOne(ctx, index); err != nil {
			return nil, errors.Join(err, r.Close(ctx))
		}
	}
	return r, nil
}

func (r *rawMongoDB) Upsert(ctx context.Context, rows []rawRow) error {
	documents := make([]any, len(rows))
	for i, row := range rows {
		documents[i] = bson.D{{Key: "_id", Value: bson.NewObjectID()}, {Key: "key", Value: row.key},
			{Key: "dueAt", Value: time.UnixMilli(row.dueAt)}, {Key: "payload", Value: row.payload}}
	}
	_, err := r.rows.InsertMany(ctx, documents, options.InsertMany().SetOrdered(false)) // no key comes twice
	return err
}

func (r *rawMongoDB) Drain(ctx context.Context, workers int) (int, error) {
	var all sync.WaitGroup
	var sum atomic.Int64
	errs := make([]error, workers)
	for i := range workers {
		all.Go(func() { errs[i] = r.drain(ctx, fmt.Sprintf("w%d-", i), &sum) })
	}
	all.Wait()
	return int(sum.Load()), errors.Join(errs...)
}

func (r *rawMongoDB) drain(ctx context.Context, name string, sum *atomic.Int64) error {
	for n := 0; ; n++ {
		now := time.Now()
		token := fmt.Sprint(name, n)
		due := bson.D{{Key: "dueAt", Value: bson.D{{Key: "$lte", Value: now}}}}
		ids, err := r.ids(ctx, due, options.Find().SetSort(bson.D{{Key: "dueAt", Value: 1}}).SetLimit(rawBatch).
			SetProjection(bson.D{{Key: "_id", Value: 1}}))
		if err != nil || len(ids) == 0 {
			return err
		}
		these := bson.E{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}
		if _, err := r.rows.UpdateMany(ctx, append(bson.D{these}, due...), bson.D{{Key: "$set", Value: bson.D{
			{Key: "token", Value: token}, {Key: "dueAt", Value: now.Add(time.Minute)}}}}); err != nil {
			return err
		}
		taken, err := r.ids(ctx, bson.D{these, {Key: "token", Value: token}}, options.Find())
		if err != nil {
			return err
		}
		result, err := r.rows.DeleteMany(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: taken}}}, {Key: "token", Value: token}})
		if err != nil {
			return err
		}
		sum.Add(result.DeletedCount)
	}
}

// ids reads rows whole and answers their ids.
func (r *rawMongoDB) ids(ctx context.Context, filter bson.D, o *options.FindOptionsBuilder) (bson.A, error) {
	cursor, err := r.rows.Find(ctx, filter, o)
	if err != nil {
		return nil, err
	}
	ids := bson.A{}
	var row struct {
		ID      bson.ObjectID `bson:"_id"`
		Payload []byte        `bson:"payload"`
	}
	for cursor.Next(ctx) {
		if err := cursor.Decode(&row); err != nil {
			return nil, errors.Join(err, cursor.Close(ctx))
		}
		ids = append(ids, row.ID)
	}
	return ids, errors.Join(cursor.Err(), cursor.Close(ctx))
}

func (r *rawMongoDB) Close(ctx context.Context) error {
	return errors.Join(r.rows.Drop(ctx), r.client.Disconnect(ctx))
}
