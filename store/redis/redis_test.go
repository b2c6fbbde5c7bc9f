//go:build services

package redis_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/carillon-scheduler/carillon/history/historytest"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/memory"
	"github.com/carillon-scheduler/carillon/store/redis"
	"github.com/carillon-scheduler/carillon/store/storetest"
)

// patient is the option of a store whose server may be slow, as on a machine that does much at once.
const patient = "read_timeout=2m"

// TestStore runs all cases on a cluster, which has more restrictions than one server. A long test also runs them on one
// server; otherwise only the random histories run there.
func TestStore(t *testing.T) {
	server := newServer(t, "--appendonly", "yes", "--appendfsync", "always").url
	for _, c := range []struct {
		name, server, options string
		long                  bool
	}{
		{"cluster", clusterURL(t), patient, false},
		{"one server", server, patient, true},
		{"one server of several shards", server, patient + "&shards=5", true},
	} {
		if c.long && !storetest.Long() {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			storetest.Run(t, func(t *testing.T) storetest.Opener {
				url := newStore(t, c.server, c.options)
				return func() (store.Store, error) { return redis.Open(context.Background(), url) }
			})
		})
	}
}

// TestHistory: the store keeps history.
func TestHistory(t *testing.T) {
	t.Parallel()
	server := clusterURL(t)
	historytest.Run(t, func(t *testing.T) storetest.Opener {
		url := newStore(t, server, patient)
		return func() (store.Store, error) { return redis.Open(context.Background(), url) }
	})
}

// TestDifferential: the store behaves like the reference store.
func TestDifferential(t *testing.T) {
	t.Parallel()
	server := newServer(t).url
	for name, options := range map[string]string{"one shard": "", "several shards": "shards=5"} {
		t.Run(name, func(t *testing.T) {
			storetest.Differential(t, 15, func() store.Store { return memory.New() }, func(t *testing.T) storetest.Opener {
				url := newStore(t, server, options)
				return func() (store.Store, error) { return redis.Open(context.Background(), url) }
			})
		})
	}
}

// clusterURL returns the address of a Redis Cluster.
func clusterURL(t testing.TB) string {
	t.Helper()
	const name = "CARILLON_TEST_REDIS_CLUSTER_URL"
	value := os.Getenv(name)
	if value == "" {
		t.Fatalf("%s is not set; run the tests by .ci/with-services", name)
	}
	return value
}

// newStore returns the URL of an empty store on a server. The store is deleted when the test ends.
func newStore(t testing.TB, server, options string) (url string) {
	t.Helper()
	prefix := "test-" + job.NewToken()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		if err := eachServer(ctx, server, func(c *goredis.Client) error { return deleteKeys(ctx, c, prefix) }); err != nil {
			t.Errorf("delete the test's keys: %v", err)
		}
	})
	return withOptions(server, "prefix="+prefix, options)
}

func withOptions(url string, options ...string) string {
	for _, o := range options {
		switch {
		case o == "":
		case strings.Contains(url, "?"):
			url += "&" + o
		default:
			url += "?" + o
		}
	}
	return url
}

// eachServer calls f with a client of the server, or of each node of the cluster, that a store URL names.
func eachServer(ctx context.Context, url string, f func(*goredis.Client) error) error {
	hosts, _, _ := strings.Cut(strings.TrimPrefix(url, "redis://"), "?")
	hosts, _, _ = strings.Cut(hosts, "/")
	if hosts == "" {
		return ctx.Err()
	}
	for host := range strings.SplitSeq(hosts, ",") {
		client := goredis.NewClient(&goredis.Options{Addr: host})
		if err := f(client); err != nil {
			return err
		}
		if err := client.Close(); err != nil {
			return err
		}
	}
	return nil
}

func deleteKeys(ctx context.Context, c *goredis.Client, prefix string) error {
	keys := c.Scan(ctx, 0, prefix+":*", 1000).Iterator()
	for keys.Next(ctx) {
		if err := c.Unlink(ctx, keys.Val()).Err(); err != nil {
			return err
		}
	}
	return keys.Err()
}

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const lease = time.Minute

// put returns a submission of one job with n instants from the epoch on, a millisecond apart.
func put(key string, n int) store.Put {
	revision := job.NewRevision(epoch)
	j := job.Job{
		Name: job.Name{Tenant: job.DefaultTenant, Key: key}, Revision: revision, Version: revision,
		Callback:  job.Callback{Type: "http", Data: []byte(`{"payload":1}`)},
		CreatedAt: epoch, UpdatedAt: epoch, ExpiresAt: epoch,
	}
	for i := range n {
		j.Schedule.Instants = append(j.Schedule.Instants, epoch.Add(time.Duration(i)*time.Millisecond))
	}
	beginning, err := j.Begin(epoch, job.PastFire, job.Expansion{})
	if err != nil {
		panic(err)
	}
	return store.Put{Job: j, Occurrences: beginning.Occurrences, Now: epoch}
}

func mustPut(t testing.TB, s store.Store, puts ...store.Put) []store.PutResult {
	t.Helper()
	results := s.Put(t.Context(), puts)
	for i, r := range results {
		if r.Err != nil {
			t.Fatalf("put %d: %v", i, r.Err)
		}
	}
	return results
}

func claim(t testing.TB, s store.Store, now time.Time, limit int) store.Claim {
	t.Helper()
	c, err := s.Claim(t.Context(), claimParams(now, limit))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// claimParams select due occurrences of the lane that most tests use.
func claimParams(now time.Time, limit int) store.ClaimParams {
	return store.ClaimParams{Now: now, Lease: lease, Quotas: []store.Quota{{Lane: job.DefaultLane, Limit: limit}}}
}

// nextDue returns the first due time of all lanes.
func nextDue(t testing.TB, s store.Store) (time.Time, error) {
	t.Helper()
	page, err := s.DueLanes(t.Context(), store.DueParams{Until: epoch.AddDate(100, 0, 0), Limit: 1000})
	if err != nil || len(page.Lanes) == 0 {
		return time.Time{}, err
	}
	return page.Lanes[0].DueAt, nil
}

func acks(claimed []store.Claimed) (all []store.Settlement) {
	for _, c := range claimed {
		all = append(all, store.Settlement{
			ID: c.ID, Token: c.Token, Outcome: store.Ack, Name: c.Name, Priority: c.Priority, Revision: c.Revision,
		})
	}
	return all
}

func open(t testing.TB, url string) *redis.Store {
	t.Helper()
	s, err := redis.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}
