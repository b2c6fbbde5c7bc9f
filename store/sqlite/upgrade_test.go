package sqlite_test

import (
	"database/sql"
	"embed"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/replicas"
	"github.com/carillon-scheduler/carillon/store/sqlite"
	"github.com/carillon-scheduler/carillon/store/tenants"
)

//go:embed testdata/format*.sql
var formats embed.FS

// TestUpgrade: a file of an older format keeps its content, and can be written. The planned numbers of its jobs are
// unknown.
func TestUpgrade(t *testing.T) {
	for _, format := range []int{4, 5} {
		t.Run(fmt.Sprint("format ", format), func(t *testing.T) { testUpgrade(t, format) })
	}
}

func testUpgrade(t *testing.T, format int) {
	schema, err := formats.ReadFile(fmt.Sprintf("testdata/format%d.sql", format))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	paused := job.TenantSettings{Paused: true}
	file := filepath.Join(t.TempDir(), "old.db")
	db, err := sql.Open("sqlite", file)
	if err != nil {
		t.Fatal(err)
	}
	name := job.Name{Tenant: job.DefaultTenant, Key: "k"}
	id := job.OccurrenceID(name, "r", now, 0, "")
	for _, s := range []struct {
		sql  string
		args []any
	}{
		{fmt.Sprintf("%s; PRAGMA user_version = %d; PRAGMA application_id = 1131572334", schema, format), nil},
		{`INSERT INTO tenants (name, first_seen, settings) VALUES ('acme', ?1, ?2), ('met', ?1 + 1, NULL)`,
			[]any{now.UnixMilli(), paused.Encode()}},
		{`INSERT INTO replicas (id, until) VALUES ('a', ?1), ('b', ?1 + 1)`, []any{now.UnixMilli()}},
		{`INSERT INTO jobs (tenant, key, revision, version, created_at, updated_at, expires_at, missed, callback_type, callback_data, sole, schedule)
			VALUES ('default', 'k', 'r', 'r', ?1, ?1, ?1, 2, 'http', '{}', ?2, ?3)`,
			[]any{now.UnixMilli(), id[:], job.Schedule{Instants: []time.Time{now}}.Encode()}},
		{`INSERT INTO occurrences (id, job, listed, position, timestamp, lane, due_at, attempt) VALUES (?2, 1, 0, 0, ?1, 'default', ?1, 0)`,
			[]any{now.UnixMilli(), id[:]}},
	} {
		if _, err := db.Exec(s.sql, s.args...); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	for i := range 2 { // the second time it has the present format
		s, err := sqlite.Open(t.Context(), "sqlite:"+file)
		if err != nil {
			t.Fatal(err)
		}
		all, want := tenants.New(s), []job.Tenant{{Name: "acme", FirstSeen: now, Settings: paused}, {Name: "met", FirstSeen: now.Add(time.Millisecond)}}
		if i > 0 {
			want[0].Settings = job.TenantSettings{}
		}
		if got, err := all.List(t.Context(), "", 10); err != nil || !slices.Equal(got, want) {
			t.Errorf("the tenants are %+v, %v; want %+v", got, err, want)
		}
		if set, err := all.Settings(t.Context(), "", 10); err != nil || len(set) != 1-i {
			t.Errorf("with settings are %+v, %v", set, err)
		}
		if err := all.Set(t.Context(), "acme", job.TenantSettings{}, now); err != nil {
			t.Error(err)
		}
		if n, err := replicas.Count(t.Context(), s, now); err != nil || n != 1 {
			t.Errorf("%d replicas, %v", n, err)
		}
		j, err := store.ReadJob(t.Context(), s, name)
		if err != nil || j.Missed != 2 || j.Planned != 0 || !j.Trouble.IsZero() && j.Failed != 1 {
			t.Errorf("%+v, %v", j, err)
		}
		claim, err := s.Claim(t.Context(), store.ClaimParams{
			Now: now, Lease: time.Minute, Quotas: []store.Quota{{Lane: job.DefaultLane, Limit: 5}},
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range claim.Occurrences {
			settlement := store.Settlement{
				ID: c.ID, Token: c.Token, Outcome: store.Bury, At: now, Error: "no",
				Target: c.Target, Name: c.Name, Revision: c.Revision,
			}
			if err := s.Settle(t.Context(), []store.Settlement{settlement}); err != nil {
				t.Error(err)
			}
		}
		if j, err = store.ReadJob(t.Context(), s, name); err != nil || j.Failed != 1 || j.Trouble.Error != "no" || j.Live() {
			t.Errorf("%+v, %v", j, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
