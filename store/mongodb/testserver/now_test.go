package main

import (
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// A write whose filter bounds the server's time changes its matches before that time, and none later, in each form in
// which the driver sends it.
func TestNowIsJudged(t *testing.T) {
	ctx := t.Context()
	uri, _ := start(t, "127.0.0.1:0", "")
	db := connect(t, uri).Database("test")
	coll := db.Collection("docs")

	set := bson.D{{Key: "$set", Value: bson.D{{Key: "changed", Value: true}}}}
	for _, c := range []struct {
		name string
		do   func(filter bson.D) (n int64, err error)
	}{
		{"update of one", func(f bson.D) (int64, error) {
			r, err := coll.UpdateOne(ctx, f, set)
			return r.MatchedCount, err
		}},
		{"update of all", func(f bson.D) (int64, error) {
			r, err := coll.UpdateMany(ctx, f, set, options.UpdateMany().SetHint("_id_"))
			return r.MatchedCount, err
		}},
		{"delete of one", func(f bson.D) (int64, error) {
			r, err := coll.DeleteOne(ctx, f)
			return r.DeletedCount, err
		}},
		{"delete of all", func(f bson.D) (int64, error) {
			r, err := coll.DeleteMany(ctx, f)
			return r.DeletedCount, err
		}},
		{"find and modify", func(f bson.D) (int64, error) {
			err := coll.FindOneAndUpdate(ctx, f, set).Err()
			if err == mongo.ErrNoDocuments {
				return 0, nil
			}
			return 1, err
		}},
		{"bulk of updates, of which one has no bound", func(f bson.D) (int64, error) {
			r, err := coll.BulkWrite(ctx, []mongo.WriteModel{
				mongo.NewUpdateOneModel().SetFilter(bson.D{{Key: "_id", Value: 2}}).SetUpdate(set),
				mongo.NewUpdateOneModel().SetFilter(f).SetUpdate(set),
			}, options.BulkWrite().SetOrdered(false))
			if err != nil {
				return 0, err
			}
			return r.MatchedCount - 1, nil
		}},
		{"command with its statements in an array", func(f bson.D) (int64, error) {
			var r struct {
				N int64 `bson:"n"`
			}
			err := db.RunCommand(ctx, bson.D{
				{Key: "update", Value: "docs"}, {Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: f}, {Key: "u", Value: set}}}},
			}).Decode(&r)
			return r.N, err
		}},
	} {
		for _, later := range []time.Duration{time.Hour, -time.Millisecond} {
			if _, err := coll.DeleteMany(ctx, bson.D{}); err != nil {
				t.Fatal(err)
			}
			if _, err := coll.InsertMany(ctx, []any{bson.D{{Key: "_id", Value: 1}}, bson.D{{Key: "_id", Value: 2}}}); err != nil {
				t.Fatal(err)
			}
			n, err := c.do(bson.D{
				{Key: "_id", Value: 1},
				{Key: "$expr", Value: bson.D{{Key: "$lte", Value: bson.A{"$$NOW", time.Now().Add(later)}}}},
			})
			if err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			if want := map[bool]int64{true: 1}[later > 0]; n != want {
				t.Errorf("%s, bound %s ahead: it matched %d, want %d", c.name, later, n, want)
			}
		}
	}

	// Any other condition is refused rather than ignored.
	_, err := coll.UpdateOne(ctx, bson.D{{Key: "$expr", Value: bson.D{{Key: "$gte", Value: bson.A{"$$NOW", time.Now()}}}}}, set)
	if err == nil {
		t.Error("another condition is not refused")
	}
}
