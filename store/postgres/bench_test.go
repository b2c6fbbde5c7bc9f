//go:build services

package postgres_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// backlog is the number of occurrences that a benchmark delivers in each iteration.
const backlog = 100_000

const perClaim = 256

// BenchmarkDeliver claims and acknowledges a backlog of one-instant jobs. Run it with -benchtime 1x.
func BenchmarkDeliver(b *testing.B) {
	for _, c := range []struct {
		name, server string
		workers      int
		lanes        int
		options      [2]string
	}{
		{"direct/1", serverURL, 1, 1, [2]string{}},
		{"direct/2", serverURL, 2, 1, [2]string{}},
		{"direct 64 lanes/1", serverURL, 1, 64, [2]string{}},
		{"direct 64 lanes/2", serverURL, 2, 64, [2]string{}},
		{"direct describing/1", serverURL, 1, 1, [2]string{"default_query_exec_mode", "cache_describe"}},
		{"pgbouncer/1", pgbouncerURL, 1, 1, [2]string{}},
		{"pgbouncer/2", pgbouncerURL, 2, 1, [2]string{}},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := newSchema(b, c.server)
			if c.options[0] != "" {
				s.url = with(b, s.url, c.options[0], c.options[1])
			}
			opened := s.open()
			var quotas []store.Quota
			for i := range c.lanes {
				quotas = append(quotas, store.Quota{Lane: job.Lane{Tenant: fmt.Sprintf("t%d", i)}, Limit: perClaim / c.lanes})
			}
			for b.Loop() {
				b.StopTimer()
				s.fill(c.lanes)
				b.StartTimer()
				var left atomic.Int64
				left.Store(backlog)
				start := time.Now()
				var group sync.WaitGroup
				for range c.workers {
					group.Go(func() {
						for left.Load() > 0 {
							claim, err := opened.Claim(b.Context(), store.ClaimParams{Now: epoch, Lease: lease, Quotas: quotas})
							if err != nil {
								b.Error(err)
								return
							}
							if err := opened.Settle(b.Context(), acks(claim.Occurrences)); err != nil {
								b.Error(err)
								return
							}
							left.Add(-int64(len(claim.Occurrences)))
						}
					})
				}
				group.Wait()
				b.ReportMetric(backlog/time.Since(start).Seconds(), "deliveries/s")
			}
		})
	}
}

// BenchmarkBare measures the server's limit. It deletes the same backlog from the same table as it claims it, so a
// replica's death would lose the claimed occurrences. It also measures a minimal update and delete.
func BenchmarkBare(b *testing.B) {
	for _, c := range []struct {
		name       string
		workers    int
		statements []string
	}{
		{"delete/1", 1, []string{deleteSQL}},
		{"delete/2", 2, []string{deleteSQL}},
		{"update and delete/1", 1, []string{updateSQL, ackSQL}},
		{"update and delete/2", 2, []string{updateSQL, ackSQL}},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := newSchema(b, serverURL)
			s.open()
			in := func(sql string) string { return fmt.Sprintf(sql, s.table("occurrences"), perClaim) }
			for b.Loop() {
				b.StopTimer()
				s.fill(1)
				b.StartTimer()
				var left atomic.Int64
				left.Store(backlog)
				start := time.Now()
				var group sync.WaitGroup
				for range c.workers {
					group.Go(func() {
						for left.Load() > 0 {
							rows, err := s.admin.Query(b.Context(), in(c.statements[0]), epoch.UnixMilli())
							ids, err2 := pgx.CollectRows(rows, pgx.RowTo[string])
							if err != nil || err2 != nil {
								b.Error(err, err2)
								return
							}
							if len(c.statements) > 1 {
								if _, err := s.admin.Exec(b.Context(), in(c.statements[1]), ids); err != nil {
									b.Error(err)
									return
								}
							}
							left.Add(-int64(len(ids)))
						}
					})
				}
				group.Wait()
				b.ReportMetric(backlog/time.Since(start).Seconds(), "deliveries/s")
			}
		})
	}
}

// fill makes a backlog of one-instant jobs that are all due, in this number of lanes.
func (s schema) fill(lanes int) {
	s.Helper()
	run(s.TB, s.admin, "TRUNCATE "+s.table("jobs")+", "+s.table("occurrences"))
	run(s.TB, s.admin, fmt.Sprintf(`INSERT INTO %s (tenant, key, revision, version, created_at, updated_at, expires_at, missed,
			callback_type, callback_data, schedule)
		SELECT 't' || n %% %d, 'job-' || n, lpad(to_hex(n), 32, '0')::uuid, 'revision-of-26-bytes-' || n, 0, 0, 1e15, 0, 'http', $${"url":"http://127.0.0.1/","payload":1}$$, '{}'
		FROM generate_series(1, %d) n`, s.table("jobs"), lanes, backlog))
	run(s.TB, s.admin, fmt.Sprintf(`INSERT INTO %[1]s (lane, revision, id, position, attempt, timestamp, due_at)
		SELECT 't' || n %% %[3]d, lpad(to_hex(n), 32, '0')::uuid, (lpad(to_hex(%[2]d + n), 12, '0') || substr(md5(n::text), 1, 20))::uuid, 0, 0,
			%[2]d - n, %[2]d - n FROM generate_series(1, %[4]d) n`, s.table("occurrences"), epoch.UnixMilli(), lanes, backlog))
	run(s.TB, s.admin, "VACUUM ANALYZE "+s.table("occurrences"))
	run(s.TB, s.admin, "CHECKPOINT")
}

const (
	deleteSQL = `DELETE FROM %[1]s WHERE ctid = ANY (ARRAY(SELECT ctid FROM %[1]s WHERE lane = 't0' AND due_at <= $1 ORDER BY due_at LIMIT %[2]d FOR UPDATE SKIP LOCKED)) RETURNING ctid::text`
	updateSQL = `UPDATE %[1]s SET due_at = due_at + 60000, token = 't', scheduled_at = $1, attempt = attempt + 1
		WHERE ctid = ANY (ARRAY(SELECT ctid FROM %[1]s WHERE lane = 't0' AND due_at <= $1 ORDER BY due_at LIMIT %[2]d FOR UPDATE SKIP LOCKED)) RETURNING ctid::text`
	ackSQL = `DELETE FROM %[1]s WHERE ctid = ANY ($1::text[]::tid[]) AND token = 't' AND %[2]d > 0`
)

// BenchmarkPut submits one-instant jobs, singly and 500 at a time, and one job of many instants.
func BenchmarkPut(b *testing.B) {
	for _, c := range []struct{ jobs, each int }{{1, 1}, {500, 1}, {1, 30_000}, {1, 100_000}} {
		for _, workers := range []int{1, 2} {
			b.Run(fmt.Sprintf("%d jobs of %d/%d", c.jobs, c.each, workers), func(b *testing.B) {
				s := newSchema(b, serverURL).open()
				after := make([]time.Duration, c.each)
				for i := range after {
					after[i] = time.Duration(i) * time.Second
				}
				var n atomic.Int64
				b.ResetTimer()
				var group sync.WaitGroup
				for range workers {
					group.Go(func() {
						for n.Load() < int64(b.N) {
							round := n.Add(1)
							var puts []store.Put
							for i := range c.jobs {
								puts = append(puts, newPut(fmt.Sprintf("k-%d-%d", round, i), after...))
							}
							for _, result := range s.Put(b.Context(), puts) {
								if result.Err != nil {
									b.Error(result.Err)
									return
								}
							}
						}
					})
				}
				group.Wait()
				b.ReportMetric(float64(b.N*c.jobs*c.each)/b.Elapsed().Seconds(), "instants/s")
			})
		}
	}
}
