//go:build services

package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/postgres"
)

// TestPlans: the cost of the loops' queries follows the number of due rows, however large the tables are, and whatever
// statistics the server had when it first planned the statements. This also holds for statements that it plans at each
// execution, as through a pooler.
func TestPlans(t *testing.T) {
	const many, asked = 100_000, 10
	s := newSchema(t, serverURL)
	s.url = with(t, with(t, s.url, "application_name", s.name), "pool_max_conns", "1")
	var opened []*postgres.Store
	for _, rawURL := range []string{s.url, with(t, s.url, "default_query_exec_mode", "cache_describe")} {
		o, err := postgres.Open(context.Background(), rawURL)
		if err != nil {
			t.Fatal(err)
		}
		opened = append(opened, o)
	}
	ask := func(now time.Time, want int) {
		t.Helper()
		for i := range 2 * asked {
			o := opened[i%2]
			quotas := []store.Quota{{Lane: job.DefaultLane, Limit: 5}, {Lane: job.Lane{Tenant: "other"}, Limit: 5}}
			claim, err := o.Claim(t.Context(), store.ClaimParams{Now: now, Lease: lease, Quotas: quotas[:1+i/2%2]})
			if err != nil || len(claim.Occurrences) != want {
				t.Errorf("claimed %d, want %d, %v", len(claim.Occurrences), want, err)
			}
			if err := o.Settle(t.Context(), acks(claim.Occurrences)); err != nil {
				t.Error(err)
			}
			if page, err := o.DueLanes(t.Context(), store.DueParams{Until: now, Limit: 20}); err != nil || want > 0 && len(page.Lanes) != 1 {
				t.Errorf("told %v, %v", page, err)
			}
			after := store.LaneDue{Lane: job.DefaultLane, DueAt: time.UnixMilli(many / 2)}
			if _, err := o.DueLanes(t.Context(), store.DueParams{After: after, Until: now, Limit: 20}); err != nil {
				t.Error(err)
			}
			found, err := o.Sample(t.Context(), job.DefaultLane, time.UnixMilli(many/2), 5)
			if err != nil || want > 0 && len(found) != 5 {
				t.Errorf("sampled %d, %v", len(found), err)
			}
			claimed, err := o.ClaimJobs(t.Context(), store.ClaimJobsParams{Now: now, Lease: lease, Limit: 5})
			if err != nil || len(claimed.Jobs) != want {
				t.Errorf("claimed %d jobs, want %d, %v", len(claimed.Jobs), want, err)
			}
		}
	}
	// The statements are prepared, and the tables examined, while the tables are nearly empty.
	first := newPut("first", time.Hour)
	mustPut(t, opened[0], first)
	run(t, s.admin, "VACUUM ANALYZE "+s.table("jobs"))
	run(t, s.admin, "VACUUM ANALYZE "+s.table("occurrences"))
	ask(epoch, 0)

	run(t, s.admin, `INSERT INTO `+s.table("occurrences")+` (lane, revision, id, position, attempt, timestamp, due_at)
		SELECT 'default', lpad(to_hex(n), 32, '0')::uuid, gen_random_uuid(), 0, 0, n, n FROM generate_series(1, 100000) n`)
	run(t, s.admin, `INSERT INTO `+s.table("jobs")+` (tenant, key, revision, version, created_at, updated_at, expires_at, missed,
			callback_type, callback_data, schedule, cursor_at, expand_at)
		SELECT 'default', 'k' || n, lpad(to_hex(n), 32, '0')::uuid, 'r' || n, 0, 0, 1e15, 0, 'http', '{}', convert_to('`+
		string(first.Job.Schedule.Encode())+`', 'UTF8'), 0, n FROM generate_series(1, 100000) n`)
	ask(epoch, 5) // all of it is due

	for _, o := range opened {
		if err := o.Close(); err != nil {
			t.Fatal(err)
		}
	}
	s.awaitGone("application_name", s.name)
	for table, index := range map[string]string{"occurrences": "occurrences_claim", "jobs": "jobs_expansion"} {
		sequential := query[int](s, "SELECT seq_tup_read FROM pg_stat_user_tables WHERE schemaname = $1 AND relname = $2", s.name, table)
		if sequential > many/100 { // examining a table reads it
			t.Errorf("%d rows of %s were read from end to end", sequential, table)
		}
		most := query[int](s, "SELECT max(idx_tup_read) FROM pg_stat_user_indexes WHERE schemaname = $1 AND relname = $2", s.name, table)
		if most > many/20 {
			t.Errorf("%d entries of an index of %s were read, want at most %d", most, table, many/20)
		}
		// A statement may pass over the remains of those before.
		entries := query[int](s, "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE schemaname = $1 AND indexrelname = $2", s.name, index)
		if entries == 0 || entries > many/20 {
			t.Errorf("%d entries of %s were read, want some, and at most %d", entries, index, many/20)
		}
	}
}

// TestPlansByName: the cost of a statement about named jobs or occurrences follows their number, however large the
// tables are.
func TestPlansByName(t *testing.T) {
	const many = 50_000
	s := newSchema(t, serverURL)
	s.url = with(t, with(t, s.url, "application_name", s.name), "pool_max_conns", "1")
	o, err := postgres.Open(context.Background(), s.url)
	if err != nil {
		t.Fatal(err)
	}
	first := newPut("first", time.Hour)
	mustPut(t, o, first)
	run(t, s.admin, `INSERT INTO `+s.table("occurrences")+` (lane, revision, id, position, attempt, timestamp, due_at)
		SELECT 'default', lpad(to_hex(n), 32, '0')::uuid, gen_random_uuid(), 0, 0, n, 1e15 FROM generate_series(1, 50000) n`)
	run(t, s.admin, `INSERT INTO `+s.table("jobs")+` (tenant, key, revision, version, created_at, updated_at, expires_at, missed,
			callback_type, callback_data, schedule)
		SELECT 'default', 'k' || n, lpad(to_hex(n), 32, '0')::uuid, 'r' || n, 0, 0, 1e15, 0, 'http', '{}', convert_to('`+
		string(first.Job.Schedule.Encode())+`', 'UTF8') FROM generate_series(1, 50000) n`)
	run(t, s.admin, "VACUUM ANALYZE "+s.table("jobs"))
	run(t, s.admin, "VACUUM ANALYZE "+s.table("occurrences"))

	now := epoch
	mustPut(t, o, newPut("k7", 0, time.Hour)) // replaces another one
	claimed := mustClaim(t, o, now, 5)
	if len(claimed.Occurrences) != 1 {
		t.Fatalf("claimed %d, want 1", len(claimed.Occurrences))
	}
	c := claimed.Occurrences[0]
	if err := o.Settle(t.Context(), []store.Settlement{{
		ID: c.ID, Token: c.Token, Outcome: store.Retry, DueAt: now.Add(time.Hour), Error: "it failed",
		Name: c.Name, Revision: c.Revision, KeepUntil: now.Add(100 * time.Hour),
	}}); err != nil {
		t.Error(err)
	}
	moved := newPut("moved", time.Hour)
	records := []store.Document{{Job: &moved.Job}, {Occurrence: &moved.Occurrences[0]}}
	if n, err := o.Import(t.Context(), records); n != len(records) || err != nil {
		t.Errorf("imported %d, %v", n, err)
	}
	results, err := o.Cancel(t.Context(), []job.Name{first.Job.Name, c.Name}, store.Asked{Now: now})
	if err != nil || results[0].Cancelled != 1 || results[1].Cancelled != 2 {
		t.Errorf("cancelled %+v, %v", results, err)
	}
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	s.awaitGone("application_name", s.name)
	for _, table := range []string{"jobs", "occurrences"} {
		read := query[int](s, "SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes WHERE schemaname = $1 AND relname = $2", s.name, table)
		if read == 0 || read > many/100 {
			t.Errorf("%d entries of the indexes of %s were read, want some, and at most %d", read, table, many/100)
		}
	}
}

// awaitGone waits until the connections with such a column in pg_stat_activity have ended. A connection's counters are
// added up at its end at the latest.
func (s schema) awaitGone(column, value string) {
	s.Helper()
	for deadline := time.Now().Add(5 * time.Minute); query[int](s, "SELECT count(*) FROM pg_stat_activity WHERE "+column+" = $1", value) > 0; time.Sleep(pause) {
		if time.Now().After(deadline) {
			s.Fatal("the store's connections do not end")
		}
	}
}
