//go:build services

package redis_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/redis"
	"github.com/carillon-scheduler/carillon/store/replicas"
	"github.com/carillon-scheduler/carillon/store/tenants"
)

// TestOpenFormatBefore: the lanes of the previous version, which recorded only that they are not empty, are found like
// those of this one. So are the lanes that a running replica of that version records later.
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
	server.must("hset", "carillon:store", "format", "2")

	s := open(t, url)
	tell(s, lanes)
	if got := server.must("hget", "carillon:store", "format"); got != "4" {
		t.Errorf("its format is %v", got)
	}

	for shard := range shards { // the old replica continues to write
		server.must("del", fmt.Sprintf("carillon:{%d}:heads", shard))
	}
	name := puts[3].Job.Name
	for shard := range shards {
		server.must("sadd", fmt.Sprintf("carillon:{%d}:lanes", shard), job.Lane{Tenant: name.Tenant, Priority: job.PriorityLow}.String())
	}
	tell(s, 1)
	server.must("hset", "carillon:store", "format", "5")
	if _, err := redis.Open(t.Context(), url); !errors.Is(err, store.ErrFormat) {
		t.Errorf("of a later format, it answers %v", err)
	}
}

// tenantsBefore writes tenants and a replica in the form of format 3.
func (s *server) tenantsBefore(n int) (want []job.Tenant) {
	s.t.Helper()
	args := []any{"zadd", "carillon:tenants"}
	for i := range n {
		tenant := job.Tenant{Name: fmt.Sprintf("t%05d", i), FirstSeen: epoch.Add(time.Duration(i) * time.Second)}
		if i%100 == 7 {
			tenant.Settings = job.TenantSettings{Weight: 2, Paused: true}
			s.must("zadd", "carillon:tenants-set", 0, tenant.Name)
		}
		args = append(args, 0, fmt.Sprintf("%s\x00%d %s", tenant.Name, tenant.FirstSeen.UnixMilli(), tenant.Settings.Encode()))
		want = append(want, tenant)
	}
	s.must(args...)
	s.must("zadd", "carillon:tenants-set", 0, want[0].Name) // this tenant had settings before
	s.must("zadd", "carillon:replicas", epoch.UnixMilli(), "gone", epoch.Add(time.Hour).UnixMilli(), "a")
	s.must("hset", "carillon:store", "format", "3")
	return want
}

// TestOpenMovesTenants: the tenants and replicas that format 3 keeps in separate keys become records. Several replicas
// that start at once move each of them once, and an interrupted move is completed. A client's change after one of the
// replicas serves is not undone.
func TestOpenMovesTenants(t *testing.T) {
	const n = 2500
	server := newServer(t)
	open(t, server.url)
	want := server.tenantsBefore(n)
	want[107].Settings = job.TenantSettings{} // the first replica that serves resets them
	var group sync.WaitGroup
	for range 6 {
		group.Go(func() {
			s, err := redis.Open(t.Context(), server.url)
			if err != nil {
				t.Error(err)
				return
			}
			defer s.Close()
			if err := tenants.New(s).Set(t.Context(), want[107].Name, job.TenantSettings{}, epoch); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	s := open(t, server.url)
	all := tenants.New(s)
	var got []job.Tenant
	for after := ""; ; after = got[len(got)-1].Name {
		page, err := all.List(t.Context(), after, 1000)
		if err != nil {
			t.Fatal(err)
		}
		if got = append(got, page...); len(page) < 1000 {
			break
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%d of %d tenants are known, and they are not the same", len(got), n)
	}
	if set, err := all.Settings(t.Context(), "", n); err != nil || len(set) != n/100-1 {
		t.Errorf("%d have settings, %v", len(set), err)
	}
	if n, err := replicas.Count(t.Context(), s, epoch); err != nil || n != 1 {
		t.Errorf("%d replicas, %v", n, err)
	}
	for _, key := range []string{"carillon:tenants", "carillon:tenants-set", "carillon:replicas"} {
		if left := server.must("exists", key); left != int64(0) {
			t.Errorf("%s is left", key)
		}
	}
}

// TestOpenMovesTheRest: after an interrupted move, the rest is moved, and clients' changes since then stay.
func TestOpenMovesTheRest(t *testing.T) {
	server := newServer(t)
	s := open(t, server.url)
	if err := tenants.New(s).Set(t.Context(), "t00007", job.TenantSettings{Weight: 5}, epoch.Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	want := server.tenantsBefore(10)
	want[7] = job.Tenant{Name: "t00007", FirstSeen: epoch.Add(-time.Hour), Settings: job.TenantSettings{Weight: 5}}
	server.must("hset", "carillon:store", "format", "4") // the format is raised first
	got, err := tenants.New(open(t, server.url)).List(t.Context(), "", 20)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("the tenants are %+v, %v; want %+v", got, err, want)
	}
}
