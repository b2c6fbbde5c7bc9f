package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/sqlite"
)

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// open opens a fresh file, and a second connection to it.
func open(t *testing.T) (s *sqlite.Store, beside *sql.DB) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "carillon.db")
	s, err := sqlite.Open(t.Context(), "sqlite:"+file)
	if err != nil {
		t.Fatal(err)
	}
	if beside, err = sql.Open("sqlite", "file:"+file+"?_txlock=immediate"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(beside.Close(), s.Close()); err != nil {
			t.Error(err)
		}
	})
	return s, beside
}

// put returns a submission of one job with n instants from the epoch on.
func put(key string, n int) store.Put {
	revision := job.NewRevision(epoch)
	j := job.Job{
		Name: job.Name{Tenant: job.DefaultTenant, Key: key}, Revision: revision, Version: revision,
		Callback:  job.Callback{Type: "http", Data: []byte("1")},
		CreatedAt: epoch, UpdatedAt: epoch, ExpiresAt: epoch,
	}
	for i := range n {
		j.Schedule.Instants = append(j.Schedule.Instants, epoch.Add(time.Duration(i)*time.Second))
	}
	return begin(j)
}

// begin returns the submission of a job at the epoch.
func begin(j job.Job) store.Put {
	b, err := j.Begin(epoch, job.PastFire, job.Expansion{Horizon: time.Minute})
	if err != nil {
		panic(err)
	}
	return store.Put{Job: j, Occurrences: b.Occurrences, Now: epoch}
}

// A put or cancel that exceeds one transaction is complete, and its results are too.
func TestLargePutsAndCancels(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	s, _ := open(t)
	var puts []store.Put
	var names []job.Name
	for i := range 4 {
		puts = append(puts, put(fmt.Sprint("k", i), 3000))
		names = append(names, puts[i].Job.Name)
	}
	for round := range 2 {
		for i, r := range s.Put(t.Context(), puts) {
			if r.Err != nil || (r.Replaced != "") != (round > 0) {
				t.Fatalf("put %d: %+v", i, r)
			}
		}
		for i := range puts {
			puts[i] = put(fmt.Sprint("k", i), 3000)
		}
	}
	results, err := s.Cancel(t.Context(), names, store.Asked{Now: epoch})
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range results {
		if want := (store.CancelResult{Found: true, Cancelled: 3000}); r != want {
			t.Errorf("cancel %d: %+v, want %+v", i, r, want)
		}
	}
}

// If one call puts a name several times, only the occurrences of the last put are left, even if some were still waiting
// to be inserted.
func TestSameNameInOneCall(t *testing.T) {
	for _, instants := range [][]int{{1, 1}, {2, 1}, {1, 2}, {17, 20, 1}, {1, 33, 16, 2}} {
		s, _ := open(t)
		puts := []store.Put{put("before", 3)}
		for _, n := range instants {
			puts = append(puts, put("k", n))
		}
		puts = append(puts, put("behind", 3))
		for i, r := range s.Put(t.Context(), puts) {
			if want := i > 1 && i <= len(instants); r.Err != nil || (r.Replaced != "") != want {
				t.Fatalf("put %d of %v: %+v", i, instants, r)
			}
		}
		last := puts[len(instants)].Job
		found, total, err := s.Occurrences(t.Context(), store.OccurrenceFilter{Name: last.Name, Revision: last.Revision, Limit: 100, Count: true})
		if want := instants[len(instants)-1]; err != nil || len(found) != want || total != want {
			t.Errorf("%v: there are %d in a list and %d in all, want %d: %v", instants, len(found), total, want, err)
		}
		late := epoch.Add(time.Hour)
		claim, err := s.Claim(t.Context(), store.ClaimParams{Now: late, Lease: time.Minute, Quotas: []store.Quota{{Lane: job.DefaultLane, Limit: 100}}})
		if want := 6 + instants[len(instants)-1]; err != nil || len(claim.Occurrences) != want {
			t.Errorf("%v: claimed %d, want %d: %v", instants, len(claim.Occurrences), want, err)
		}
		for _, c := range claim.Occurrences {
			if c.Name.Key == "k" && c.Revision != last.Revision {
				t.Errorf("%v: revision %s fires, want %s", instants, c.Revision, last.Revision)
			}
		}
	}
}

// A resume brings all occurrences of a paused backlog forward, even if they exceed one transaction.
func TestLargeResume(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	s, _ := open(t)
	const n = 12_000
	p := put("k", n)
	last := p.Job.Schedule.Instants[n-1]
	for _, r := range s.Put(t.Context(), []store.Put{p}) {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	if err := s.Pause(t.Context(), p.Job.Name, job.NewRevision(last), last); err != nil {
		t.Fatal(err)
	}
	params := store.ClaimParams{Now: last, Lease: time.Minute, Quotas: []store.Quota{{Lane: job.DefaultLane, Limit: 2 * n}}}
	if claim, err := s.Claim(t.Context(), params); err != nil || len(claim.Occurrences) != 0 || !claim.More() {
		t.Fatalf("claimed %d of a paused job, more is %t: %v", len(claim.Occurrences), claim.More(), err)
	}
	if err := s.Resume(t.Context(), p.Job.Name, job.NewRevision(last), last); err != nil {
		t.Fatal(err)
	}
	if claim, err := s.Claim(t.Context(), params); err != nil || len(claim.Occurrences) != n {
		t.Errorf("claimed %d after the pause: %v", len(claim.Occurrences), err)
	}
}

// A call that waits for another process's write lock returns at its deadline, and has changed nothing.
func TestLocked(t *testing.T) {
	s, beside := open(t)
	lock, err := beside.Begin()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if r := s.Put(ctx, []store.Put{put("k", 1)})[0]; !errors.Is(r.Err, store.ErrNotDone) {
		t.Errorf("put answers %v", r.Err)
	}
	if _, err := s.DueLanes(t.Context(), store.DueParams{Until: epoch, Limit: 1}); err != nil {
		t.Errorf("reading is not locked, but answers %v", err)
	}
	if err := lock.Rollback(); err != nil {
		t.Fatal(err)
	}
	if _, err := store.ReadJob(t.Context(), s, job.Name{Tenant: job.DefaultTenant, Key: "k"}); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("the job that was not put: %v", err)
	}
	if r := s.Put(t.Context(), []store.Put{put("k", 1)})[0]; r.Err != nil {
		t.Errorf("put after the lock: %v", r.Err)
	}
}

// An unreadable row is claimed with a fault, beside the others.
func TestUnreadable(t *testing.T) {
	s, beside := open(t)
	for _, r := range s.Put(t.Context(), []store.Put{put("bad", 1), put("good", 1)}) {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	if _, err := beside.Exec("UPDATE jobs SET options = 'nonsense' WHERE key = 'bad'"); err != nil {
		t.Fatal(err)
	}
	claim, err := s.Claim(t.Context(), store.ClaimParams{Now: epoch, Lease: time.Minute, Quotas: []store.Quota{{Lane: job.DefaultLane, Limit: 10}}})
	if err != nil || len(claim.Occurrences) != 2 {
		t.Fatalf("claimed %d: %v", len(claim.Occurrences), err)
	}
	for _, c := range claim.Occurrences {
		if (c.Fault != nil) != (c.Name.Key == "bad") {
			t.Errorf("%s has the fault %v", c.Name.Key, c.Fault)
		}
	}
}

// An unreadable job is not claimed for expansion, and does not keep others from being claimed.
func TestUnreadableSchedule(t *testing.T) {
	s, beside := open(t)
	var puts []store.Put
	for _, key := range []string{"bad", "worse", "good"} {
		j := put(key, 0).Job
		j.Schedule.Crontab, _ = job.ParseCrontab("@every 1m")
		puts = append(puts, begin(j))
	}
	for _, r := range s.Put(t.Context(), puts) {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	if _, err := beside.Exec(`UPDATE jobs SET schedule = '{"crontab":"@fortnightly"}' WHERE key = 'bad';
		UPDATE jobs SET options = 'nonsense' WHERE key = 'worse'`); err != nil {
		t.Fatal(err)
	}
	params := store.ClaimJobsParams{Now: epoch.Add(time.Hour), Lease: time.Minute, Limit: 1}
	var keys, unreadable []string
	for more := true; more; {
		claimed, err := s.ClaimJobs(t.Context(), params)
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range claimed.Jobs {
			keys = append(keys, j.Key)
		}
		for _, n := range claimed.Unreadable {
			unreadable = append(unreadable, n.Key)
		}
		more = claimed.More
	}
	if !slices.Equal(keys, []string{"good"}) || !slices.Equal(unreadable, []string{"bad", "worse"}) {
		t.Errorf("claimed %q, and could not read %q", keys, unreadable)
	}
}

// The queries of the claim loop use an index, without a sort.
func TestQueryPlans(t *testing.T) {
	_, beside := open(t)
	for _, c := range []struct{ query, index string }{
		{"SELECT min(due_at) FROM occurrences WHERE lane = 'a'", "COVERING INDEX occurrences_claim (lane=?)"},
		{"SELECT min(lane) FROM occurrences WHERE lane > 'a'", "COVERING INDEX occurrences_claim (lane>?)"},
		{"SELECT id, attempt FROM occurrences WHERE lane = 'a' AND due_at > 0 AND due_at <= 1 ORDER BY due_at, id LIMIT 5", "occurrences_claim (lane=? AND due_at>? AND due_at<?)"},
		{"UPDATE occurrences SET due_at = 9 WHERE lane = 'a' AND due_at > 0 AND (due_at, id) <= (1, x'00')", "occurrences_claim (lane=? AND due_at>? AND (due_at,id)<(?,?))"},
		{"SELECT count(*) FROM occurrences WHERE job = 1 AND id IN (SELECT id FROM occurrences WHERE job = 1 AND listed = 1 UNION ALL SELECT sole FROM jobs WHERE rowid = 1)", "occurrences_job"},
		{"DELETE FROM occurrences WHERE job = 1 AND id IN (SELECT id FROM occurrences WHERE job = 1 AND listed = 1 UNION ALL SELECT sole FROM jobs WHERE rowid = 1)", "occurrences_job"},
		{"SELECT j.key FROM jobs j WHERE expires_at <= 1 AND (EXISTS (SELECT 1 FROM occurrences o WHERE o.job = j.rowid AND o.listed = 1) OR EXISTS (SELECT 1 FROM occurrences o WHERE o.id = j.sole AND o.job = j.rowid))", "occurrences_job"},
		{"SELECT DISTINCT key FROM occurrences WHERE job IS NULL AND tenant = 't' AND key >= 'a' AND key < 'b' AND lane > '' ORDER BY key LIMIT 5", "occurrences_own"},
		{"SELECT id FROM occurrences WHERE job = 1 AND listed = 1 AND id > x'00' AND due_at > 5 ORDER BY id LIMIT 5", "occurrences_job (job=? AND id>?)"},
		{"SELECT id FROM occurrences WHERE job = 1 AND listed = 1 AND id > x'00' AND id <= x'01'", "occurrences_job (job=? AND id>? AND id<?)"},
		{"SELECT o.id, j.key FROM occurrences o LEFT JOIN jobs j ON j.rowid = o.job WHERE o.lane = 'a' AND o.due_at > 0 AND o.due_at <= 1 ORDER BY o.due_at, o.id LIMIT 5", "occurrences_claim"},
		{"SELECT 1 FROM jobs WHERE expand_at <= 1 LIMIT 1", "jobs_expand"},
		{"SELECT count(*) FROM occurrences WHERE lane > ''", "COVERING INDEX occurrences_claim"},
		{"SELECT count(*) FROM occurrences WHERE lane = 'a' AND due_at <= 1", "COVERING INDEX occurrences_claim"},
		{"SELECT min(due_at) FROM occurrences WHERE lane = 'a' AND due_at <= 1", "COVERING INDEX occurrences_claim"},
		{"SELECT revision FROM jobs WHERE expand_at <= 1 ORDER BY expand_at LIMIT 5", "jobs_expand"},
		{"SELECT key FROM jobs WHERE expires_at <= 1 ORDER BY expires_at LIMIT 5", "jobs_expiry"},
	} {
		rows, err := beside.Query("EXPLAIN QUERY PLAN " + c.query)
		if err != nil {
			t.Fatal(err)
		}
		plan := ""
		for rows.Next() {
			var id, parent, unused int
			var detail string
			if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
				t.Fatal(err)
			}
			plan += detail + "; "
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			t.Fatal(err)
		}
		if !contains(plan, "SEARCH occurrences USING", "SEARCH o USING", "SEARCH j USING", "SEARCH jobs USING") || !contains(plan, c.index) || contains(plan, "SCAN", "TEMP B-TREE") {
			t.Errorf("%s\nis planned as %s", c.query, plan)
		}
	}
}

func contains(s string, parts ...string) bool {
	return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(s, part) })
}

// The documents of an earlier version, without the index by due times, are found like those of this one.
func TestOpenWithoutIndexes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "carillon.db")
	s, err := sqlite.Open(t.Context(), "sqlite:"+file)
	if err != nil {
		t.Fatal(err)
	}
	for _, result := range s.Put(t.Context(), []store.Put{put("k", 3)}) {
		if result.Err != nil {
			t.Fatal(result.Err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	beside, err := sql.Open("sqlite", "file:"+file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := beside.Exec("DROP INDEX occurrences_due"); err != nil {
		t.Fatal(err)
	}
	if err := beside.Close(); err != nil {
		t.Fatal(err)
	}
	if s, err = sqlite.Open(t.Context(), "sqlite:"+file); err != nil {
		t.Fatal(err)
	}
	page, err := s.DueLanes(t.Context(), store.DueParams{Until: epoch.Add(time.Hour), Limit: 10})
	if err != nil || len(page.Lanes) != 1 || !page.Lanes[0].DueAt.Equal(epoch) {
		t.Errorf("told %v, %v", page, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
