package mongodb

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/carillon-scheduler/carillon/store/storeurl"
)

// ErrNoRouter is the error of [Shard] for a server that is not the router of a sharded cluster.
var ErrNoRouter = errors.New("the server is not the router (mongos) of a sharded cluster")

// Shard opens the database that a URL names, as [Open] does, and spreads its jobs and occurrences over the shards of
// the cluster by a hash of their ids. Replicas may run meanwhile. A second call changes nothing. The user needs the
// roles readWrite on the database and clusterManager.
//
// Records and the format stay on the database's primary shard: they are few, and lists of them are read often.
func Shard(ctx context.Context, rawURL string) error { return ShardThrough(ctx, rawURL, nil) }

// ShardThrough is [Shard] with a dialer of its own, as [OpenThrough].
func ShardThrough(ctx context.Context, rawURL string, dialer options.ContextDialer) (err error) {
	s, err := OpenThrough(ctx, rawURL, dialer)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	u, err := storeurl.Parse(rawURL, "mongodb", "mongodb+srv")
	if err != nil {
		return err
	}
	if !s.routed() {
		return u.Fault(ErrNoRouter)
	}
	admin := s.client.Database("admin")
	// Needed before MongoDB 6.0, and no error later.
	enable := bson.D{{Key: "enableSharding", Value: s.jobs.Database().Name()}}
	if err := admin.RunCommand(ctx, enable).Err(); err != nil {
		return u.Fault(fmt.Errorf("enable sharding: %w", permitted(mapError(err))))
	}
	for _, c := range []*mongo.Collection{s.jobs, s.occurrences} {
		if err := shard(ctx, admin, c); err != nil {
			return u.Fault(fmt.Errorf("shard the collection %s: %w", c.Name(), permitted(err)))
		}
	}
	return nil
}

// shard spreads a collection over the shards by a hash of _id. A collection that has documents needs the index first.
func shard(ctx context.Context, admin *mongo.Database, c *mongo.Collection) error {
	key := bson.D{{Key: "_id", Value: "hashed"}}
	if _, err := c.Indexes().CreateOne(ctx, mongo.IndexModel{Keys: key}); err != nil {
		return mapError(err)
	}
	command := bson.D{{Key: "shardCollection", Value: c.Database().Name() + "." + c.Name()}, {Key: "key", Value: key}}
	return mapError(admin.RunCommand(ctx, command).Err())
}

// permitted names the role that the user lacks, if that is the error.
func permitted(err error) error {
	if serverError, ok := errors.AsType[mongo.ServerError](err); ok &&
		slices.ContainsFunc(permissionCodes, serverError.HasErrorCode) {
		return fmt.Errorf("the user may not shard collections; it needs the role clusterManager: %w", err)
	}
	return err
}
