//go:build services

package main_test

import (
	"context"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/mongodb"
	"github.com/carillon-scheduler/carillon/store/postgres"
	"github.com/carillon-scheduler/carillon/store/redis"
	"github.com/carillon-scheduler/carillon/store/sqlite"
	"github.com/carillon-scheduler/carillon/store/storetest"
)

// freshStore makes empty stores of one kind. Their data go away with the servers.
type freshStore struct {
	name string
	url  func(t *testing.T, id string) string
	open func(ctx context.Context, url string) (store.Store, error)
}

// stores are all kinds.
var stores = []freshStore{
	{
		"sqlite",
		func(t *testing.T, _ string) string { return "sqlite:" + filepath.Join(t.TempDir(), "carillon.db") },
		func(ctx context.Context, url string) (store.Store, error) { return sqlite.Open(ctx, url) },
	},
	{
		"mongodb",
		func(t *testing.T, id string) string { return databaseURL(needed(t, "CARILLON_TEST_MONGODB_URI"), id) },
		func(ctx context.Context, url string) (store.Store, error) { return mongodb.Open(ctx, url) },
	},
	{"postgres", schemaURL("CARILLON_TEST_POSTGRES_URL"), openPostgres},
	{"redis", prefixURL("CARILLON_TEST_REDIS_URL"), openRedis},
}

// ways are other ways to the same kinds.
var ways = []freshStore{
	{"pgbouncer", schemaURL("CARILLON_TEST_PGBOUNCER_URL"), openPostgres},
	{"redis-cluster", prefixURL("CARILLON_TEST_REDIS_CLUSTER_URL"), openRedis},
}

func openPostgres(ctx context.Context, url string) (store.Store, error) {
	return postgres.Open(ctx, url)
}

func openRedis(ctx context.Context, url string) (store.Store, error) { return redis.Open(ctx, url) }

// onEachStore runs a test on a fresh store of each kind, in parallel with each other and with other tests, as it mostly
// waits.
func onEachStore(t *testing.T, test func(t *testing.T, c *cluster)) {
	t.Helper()
	on(t, stores, test)
}

// onEachStoreAndWay does so by the other ways too.
func onEachStoreAndWay(t *testing.T, test func(t *testing.T, c *cluster)) {
	t.Helper()
	on(t, slices.Concat(stores, ways), test)
}

// inLongOnEachWay is onEachStoreAndWay in a long test, and onEachStore otherwise. TestKill shows that
// replicas work by the other ways.
func inLongOnEachWay(t *testing.T, test func(t *testing.T, c *cluster)) {
	t.Helper()
	if storetest.Long() {
		onEachStoreAndWay(t, test)
	} else {
		onEachStore(t, test)
	}
}

func on(t *testing.T, stores []freshStore, test func(t *testing.T, c *cluster)) {
	t.Helper()
	t.Parallel()
	for _, s := range stores {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			test(t, s.cluster(t))
		})
	}
}

// cluster returns a cluster without replicas, on a fresh store.
func (s freshStore) cluster(t *testing.T) *cluster {
	t.Helper()
	url := s.url(t, "e2e_"+strings.ToLower(job.NewToken()))
	opened, err := s.open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	return newCluster(t, url, opened)
}

// databaseURL names a database in a MongoDB URI, before its options.
func databaseURL(uri, database string) string {
	base, query, _ := strings.Cut(uri, "?")
	url := strings.TrimSuffix(base, "/") + "/" + database
	if query != "" {
		url += "?" + query
	}
	return url
}

func schemaURL(variable string) func(*testing.T, string) string {
	return func(t *testing.T, id string) string { return withOption(needed(t, variable), "schema", id) }
}

func prefixURL(variable string) func(*testing.T, string) string {
	return func(t *testing.T, id string) string { return withOption(needed(t, variable), "prefix", id) }
}

// withOption returns a URL with one option more.
func withOption(rawURL, name, value string) string {
	base, query, _ := strings.Cut(rawURL, "?")
	if query != "" {
		query += "&"
	}
	return base + "?" + query + name + "=" + url.QueryEscape(value)
}
