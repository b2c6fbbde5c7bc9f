// Command replicaset makes MongoDB servers on this machine a replica set, and ends when the set has a primary. It is a
// program because mongod comes without a shell.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: replicaset NAME HOST:PORT...")
		os.Exit(2)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := initiate(ctx, os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "replicaset:", err)
		os.Exit(1)
	}
}

// initiate waits until all hosts answer, makes them a replica set, and waits until a majority has acknowledged a write.
func initiate(ctx context.Context, name string, hosts []string) error {
	members := make(bson.A, len(hosts))
	for i, host := range hosts {
		members[i] = bson.D{{Key: "_id", Value: i}, {Key: "host", Value: host}}
		if err := at(ctx, "mongodb://"+host+"/?directConnection=true", func(c *mongo.Client) error {
			return c.Ping(ctx, nil)
		}); err != nil {
			return fmt.Errorf("%s does not answer: %w", host, err)
		}
	}
	config := bson.D{{Key: "_id", Value: name}, {Key: "members", Value: members}}
	if err := at(ctx, "mongodb://"+hosts[0]+"/?directConnection=true", func(c *mongo.Client) error {
		return c.Database("admin").RunCommand(ctx, bson.D{{Key: "replSetInitiate", Value: config}}).Err()
	}); err != nil {
		return fmt.Errorf("initiate: %w", err)
	}
	return at(ctx, "mongodb://"+strings.Join(hosts, ",")+"/?replicaSet="+name, func(c *mongo.Client) error {
		ready := c.Database("admin").Collection("ready", options.Collection().SetWriteConcern(writeconcern.Majority()))
		if _, err := ready.InsertOne(ctx, bson.D{}); err != nil {
			return fmt.Errorf("no primary: %w", err)
		}
		return ready.Drop(ctx)
	})
}

// at calls do with a client of a URL.
func at(ctx context.Context, uri string, do func(*mongo.Client) error) error {
	client, err := mongo.Connect(options.Client().ApplyURI(uri).SetServerSelectionTimeout(2 * time.Minute))
	if err != nil {
		return err
	}
	defer func() { _ = client.Disconnect(ctx) }()
	return do(client)
}
