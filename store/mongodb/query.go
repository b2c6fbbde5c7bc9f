package mongodb

import (
	"context"
	"maps"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/carillon-scheduler/carillon/job"
)

// batchSize is the number of documents in the first answer; the server's default is 101. No find of a claim matches
// more, so each takes one round trip. It is one more than a chunk, so that the server closes the cursor with a full
// chunk.
const batchSize = chunk + 1

// find reads all documents that match.
func find[T any](ctx context.Context, c *mongo.Collection, filter bson.M, opts *options.FindOptionsBuilder) (
	[]T, error) {
	cursor, err := c.Find(ctx, filter, opts.SetBatchSize(batchSize))
	if err != nil {
		return nil, mapError(err)
	}
	var all []T
	if err := cursor.All(ctx, &all); err != nil {
		return nil, mapError(err)
	}
	return all, nil
}

// in matches any of the values. There must be at least one.
func in[T any](values []T) bson.M { return bson.M{"$in": values} }

// absent matches documents that do not have a field.
func absent() bson.M { return bson.M{"$exists": false} }

// held matches occurrences that a replica holds at now, and notHeld the others.
func held(now time.Time) bson.M {
	return bson.M{"token": bson.M{"$exists": true}, "dueAt": bson.M{"$gt": now}}
}

func notHeld(now time.Time) bson.M { return bson.M{"$nor": bson.A{held(now)}} }

// anyLane matches the lanes of pending occurrences.
func anyLane() bson.M { return bson.M{"$gt": laneDead} }

// both joins two filters that have no field in common.
func both(a, b bson.M) bson.M {
	joined := maps.Clone(a)
	maps.Copy(joined, b)
	return joined
}

// latest returns the latest of some times.
func latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }

// earliest returns the earliest of the times that are not zero; zero if there is none.
func earliest(times ...time.Time) (first time.Time) {
	for _, t := range times {
		if first.IsZero() || !t.IsZero() && t.Before(first) {
			first = t
		}
	}
	return first
}

func texts(ids []job.ID) []string {
	all := make([]string, len(ids))
	for i, id := range ids {
		all[i] = id.String()
	}
	return all
}
