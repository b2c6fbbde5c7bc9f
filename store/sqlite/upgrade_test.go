package sqlite_test

import (
	"database/sql"
	_ "embed"
	"path/filepath"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/sqlite"
)

//go:embed testdata/format4.sql
var format4 string

// TestUpgrade: a file of the format before is read and written on as it was. What its jobs had been given is not known.
func TestUpgrade(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
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
		{format4 + "; PRAGMA user_version = 4; PRAGMA application_id = 1131572334", nil},
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
	for range 2 { // the second time it is of the present format
		s, err := sqlite.Open(t.Context(), "sqlite:"+file)
		if err != nil {
			t.Fatal(err)
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
