//go:build services

package postgres_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store/postgres"
	"github.com/carillon-scheduler/carillon/store/replicas"
	"github.com/carillon-scheduler/carillon/store/tenants"
)

// TestOpenMovesTenants: the tenants and replicas that format 4 keeps in separate tables become records. If several
// replicas start at once, one of them moves them. A client's change after one of the replicas serves is not undone.
func TestOpenMovesTenants(t *testing.T) {
	s := newSchema(t, serverURL)
	run(t, s.admin, "CREATE SCHEMA "+s.name)
	run(t, s.admin, "CREATE TABLE "+s.table("format")+" (version integer PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now())")
	for version := 1; version <= 4; version++ {
		script, err := os.ReadFile(fmt.Sprintf("migrations/%d.sql", version))
		if err != nil {
			t.Fatal(err)
		}
		run(t, s.admin, strings.ReplaceAll(string(script), "carillon.", s.name+"."))
		run(t, s.admin, fmt.Sprintf("INSERT INTO %s (version) VALUES (%d)", s.table("format"), version))
	}
	const n = 2500
	var want []job.Tenant
	for i := range n {
		want = append(want, job.Tenant{Name: fmt.Sprintf("t%05d", i), FirstSeen: epoch.Add(time.Duration(i) * time.Second)})
	}
	run(t, s.admin, fmt.Sprintf(`INSERT INTO %s (name, first_seen)
		SELECT 't' || lpad(n::text, 5, '0'), %d + 1000 * n FROM generate_series(0, %d) n`, s.table("tenants"), epoch.UnixMilli(), n-1))
	settings := job.TenantSettings{Weight: 2, Paused: true}
	for i := 7; i < n; i += 100 {
		want[i].Settings = settings
		run(t, s.admin, fmt.Sprintf("UPDATE %s SET settings = '%s' WHERE name = '%s'", s.table("tenants"), settings.Encode(), want[i].Name))
	}
	run(t, s.admin, fmt.Sprintf("INSERT INTO %s (id, beats_until) VALUES ('gone', %d), ('a', %d)",
		s.table("replicas"), epoch.UnixMilli(), epoch.Add(time.Hour).UnixMilli()))

	want[107].Settings = job.TenantSettings{}
	var group sync.WaitGroup
	for range 6 {
		group.Go(func() {
			opened, err := postgres.Open(t.Context(), s.url)
			if err != nil {
				t.Error(err)
				return
			}
			defer opened.Close()
			if err := tenants.New(opened).Set(t.Context(), want[107].Name, job.TenantSettings{}, epoch); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	opened := s.open()
	all := tenants.New(opened)
	if got, err := all.List(t.Context(), "", n+1); err != nil || !slices.Equal(got, want) {
		t.Errorf("%d of %d tenants are known, %v, and they are not the same", len(got), n, err)
	}
	if set, err := all.Settings(t.Context(), "", n); err != nil || len(set) != n/100-1 {
		t.Errorf("%d have settings, %v", len(set), err)
	}
	if n, err := replicas.Count(t.Context(), opened, epoch); err != nil || n != 1 {
		t.Errorf("%d replicas, %v", n, err)
	}
	if n := query[int](s, "SELECT count(*) FROM pg_tables WHERE schemaname = $1 AND tablename IN ('tenants', 'replicas')", s.name); n != 0 {
		t.Errorf("%d tables of the format before are left", n)
	}
}
