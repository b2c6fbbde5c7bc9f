package main

import (
	"context"
	"flag"
	"fmt"

	"github.com/carillon-scheduler/carillon/audit"
	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
	"github.com/carillon-scheduler/carillon/store/mongodb"
	"github.com/carillon-scheduler/carillon/store/storeurl"
)

const shardHelp = "Spread the jobs and occurrences of a MongoDB database over the shards of its cluster, by a hash " +
	"of their ids. Replicas may run meanwhile. A second call changes nothing. See docs/stores.md."

// shardCommand shards the collections of a database.
type shardCommand struct{ store string }

// Flags declares the option.
func (c *shardCommand) Flags(f *flag.FlagSet) {
	f.StringVar(&c.store, "store", "", "`URL`: The database, by way of a router (mongos), as for serve.")
}

// Run shards the collections.
func (c *shardCommand) Run(ctx context.Context, in cli.Input, _ *audit.Entry) error {
	if c.store == "" {
		return cli.Usagef("--store is missing: name the store, as for serve")
	}
	if _, err := storeurl.Parse(c.store, "mongodb", "mongodb+srv"); err != nil {
		return cli.Usagef("--store: only a MongoDB database, such as mongodb://host/carillon, is sharded so: %w", err)
	}
	if err := mongodb.Shard(ctx, c.store); err != nil {
		return err
	}
	fmt.Fprintln(in.Stderr, "The jobs and occurrences are sharded by a hash of their ids. "+
		"The cluster's balancer moves them to the shards in the background.")
	return nil
}
