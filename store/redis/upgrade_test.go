//go:build services

package redis_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/redis"
)

// TestOpenFormatBefore: what the version before wrote, which noted no more than which lanes are not empty, is found as
// what this one does; and so is what a replica of that version writes that still runs.
func TestOpenFormatBefore(t *testing.T) {
	const lanes, shards = 1100, 2
	server := newServer(t)
	url := fmt.Sprintf("%s?shards=%d", server.url, shards)
	before := open(t, url)
	var puts []store.Put
	for i := range lanes {
		puts = append(puts, putIn(t, job.Lane{Tenant: fmt.Sprint("t", i), Priority: job.PriorityLow}, "k", 2))
	}
	mustPut(t, before, puts...)
	paused := job.Tenant{Name: "t7", FirstSeen: epoch, Settings: job.TenantSettings{Paused: true}}
	if err := before.SetTenant(t.Context(), paused); err != nil {
		t.Fatal(err)
	}
	asBefore := func() {
		t.Helper()
		for shard := range shards {
			heads, set := fmt.Sprintf("carillon:{%d}:heads", shard), fmt.Sprintf("carillon:{%d}:lanes", shard)
			for _, lane := range server.direct.ZRange(t.Context(), heads, 0, -1).Val() {
				server.must("sadd", set, lane)
			}
			server.must("del", heads)
		}
	}
	tell := func(s store.Store, want int) {
		t.Helper()
		told := map[job.Lane]bool{}
		for p := (store.DueParams{Until: epoch.Add(time.Hour), Limit: 300}); ; {
			page, err := s.DueLanes(t.Context(), p)
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range page.Lanes {
				told[l.Lane] = true
			}
			if p.After = page.Next; p.After == (store.LaneDue{}) {
				break
			}
		}
		if len(told) != want {
			t.Errorf("%d lanes are told, want %d", len(told), want)
		}
	}
	asBefore()
	server.must("del", "carillon:tenants-set")
	server.must("hset", "carillon:store", "format", "2")

	s := open(t, url)
	tell(s, lanes)
	if got := server.must("hget", "carillon:store", "format"); got != "3" {
		t.Errorf("its format is %v", got)
	}
	if set, err := s.Tenants(t.Context(), store.TenantFilter{Limit: 10, Set: true}); err != nil || len(set) != 1 || set[0] != paused {
		t.Errorf("with settings %v, %v", set, err)
	}

	for shard := range shards { // the replica before writes on
		server.must("del", fmt.Sprintf("carillon:{%d}:heads", shard))
	}
	name := puts[3].Job.Name
	for shard := range shards {
		server.must("sadd", fmt.Sprintf("carillon:{%d}:lanes", shard), job.Lane{Tenant: name.Tenant, Priority: job.PriorityLow}.String())
	}
	tell(s, 1)
	server.must("hset", "carillon:store", "format", "4")
	if _, err := redis.Open(t.Context(), url); !errors.Is(err, store.ErrFormat) {
		t.Errorf("of a later format, it answers %v", err)
	}
}
