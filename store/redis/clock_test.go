//go:build services

package redis

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// A wrong reading of a server's clock, because the clock was set or another server took the address, prevents no put.
func TestClockSet(t *testing.T) {
	url := os.Getenv("CARILLON_TEST_REDIS_CLUSTER_URL")
	if url == "" {
		t.Fatal("CARILLON_TEST_REDIS_CLUSTER_URL is not set; run the tests by .ci/with-services")
	}
	s, err := Open(t.Context(), url+"&prefix=test-"+job.NewToken())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.Background()
		for i := range s.shards {
			for _, key := range s.shards[i].keys {
				_ = s.client.Unlink(ctx, key.(string)).Err() //nolint:errcheck // it is a string
			}
		}
		_ = s.client.Unlink(ctx, s.prefix+":store").Err()
		_ = s.Close()
	})
	for i, off := range []time.Duration{-time.Hour, time.Hour} {
		now := time.Now().Truncate(time.Millisecond)
		revision := job.NewRevision(now)
		p := store.Put{Now: now, Job: job.Job{
			Name: job.Name{Tenant: job.DefaultTenant, Key: "k"}, Revision: revision, Version: revision, ExpiresAt: now,
		}}
		known := &s.shard(s.shardOf(p.Job.Name)).clock
		known.note(known.at(time.Now()) + off.Milliseconds())
		if r := s.Put(t.Context(), []store.Put{p})[0]; r.Err != nil || (r.Replaced != "") != (i > 0) {
			t.Errorf("off by %s, put answers %+v", off, r)
		}
		if left := time.UnixMilli(known.at(now)).Sub(now); left.Abs() > 10*time.Minute {
			t.Errorf("off by %s, it is still taken to be off by %s", off, left)
		}
	}
	// An old reading is renewed before it is used, since the clock may have been set meanwhile.
	known := &s.shard(0).clock
	known.last.Store(&reading{known.at(time.Now()) + time.Hour.Milliseconds(), time.Now().Add(-2 * trusted)})
	ctx, cancel := context.WithTimeout(t.Context(), store.Within)
	defer cancel()
	change := []call{{script: pauseScript, shard: 0}}
	if going := s.ready(ctx, change, make([]reply, 1), []int{0}); len(going) != 1 {
		t.Fatal("its time could not be read")
	}
	if off := time.Until(time.UnixMilli(known.at(time.Now()))); off.Abs() > 10*time.Minute {
		t.Errorf("it is taken to be off by %s", off)
	}
}
