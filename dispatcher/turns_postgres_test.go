//go:build services && long

package dispatcher_test

import (
	"context"
	"net/url"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/carillon-scheduler/carillon/dispatcher"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/instrumented"
	"github.com/carillon-scheduler/carillon/store/postgres"
)

// effort is the work of replicas in a store.
type effort struct {
	claims, empty int64            // of the claims, those that found nothing
	calls         map[string]int64 // to the store, by operation
	rows, entries int64            // that were inserted, changed or deleted; of indexes, those that were added
}

// less subtracts another effort.
func (e effort) less(other effort) effort {
	e.claims, e.empty = e.claims-other.claims, e.empty-other.empty
	e.rows, e.entries = e.rows-other.rows, e.entries-other.entries
	calls := map[string]int64{}
	for op, n := range e.calls {
		calls[op] = n - other.calls[op]
	}
	e.calls = calls
	return e
}

// all returns the number of calls.
func (e effort) all() (n int64) {
	for _, calls := range e.calls {
		n += calls
	}
	return n
}

// emptyClaims counts claims, and those that find nothing.
type emptyClaims struct {
	*flakyQueue
	claims, empty *atomic.Int64
}

func (q *emptyClaims) Claim(ctx context.Context, p store.ClaimParams) (store.Claim, error) {
	claim, err := q.flakyQueue.Claim(ctx, p)
	if q.claims.Add(1); len(claim.Occurrences) == 0 {
		q.empty.Add(1)
	}
	return claim, err
}

// On PostgreSQL too, a firing costs about the same, however many replicas there are: in claims, calls to the store, rows
// and index entries. Rows and entries include those of the put. Each replica has connections of its own. The effort of an
// equal time in which nothing is due is subtracted, since each replica has that for itself.
func TestEffortPerFiring(t *testing.T) {
	const rate, lasts = 200, 10 * time.Second
	var alone effort
	for _, n := range []int{1, 4, 16, 64} {
		schema := "turns_" + job.NewToken()
		at, err := url.Parse(os.Getenv("CARILLON_TEST_POSTGRES_URL"))
		if err != nil {
			t.Fatal(err)
		}
		server, err := pgx.Connect(t.Context(), at.String())
		if err != nil {
			t.Fatal(err)
		}
		options := at.Query()
		options.Set("schema", schema)
		options.Set("pool_max_conns", "2")
		at.RawQuery = options.Encode()
		open := func() *postgres.Store {
			s, err := postgres.Open(t.Context(), at.String())
			if err != nil {
				t.Fatal(err)
			}
			return s
		}

		b := &bench{T: t, start: time.Now(), now: time.Now}
		var stores []*postgres.Store
		var metrics []*prometheus.Registry
		var claims, empty atomic.Int64
		var team []member
		for range n {
			s, registry := open(), prometheus.NewRegistry()
			stores, metrics = append(stores, s), append(metrics, registry)
			b.store = instrumented.New(s, registry)
			team = append(team, b.join(func(c *dispatcher.Config, link *flakyQueue) {
				c.Store = &emptyClaims{link, &claims, &empty}
			}))
		}
		time.Sleep(meeting)
		soFar := func() effort {
			e := effort{claims: claims.Load(), empty: empty.Load(), calls: map[string]int64{}}
			for _, registry := range metrics {
				families, err := registry.Gather()
				if err != nil {
					t.Fatal(err)
				}
				for _, f := range families {
					for _, m := range f.Metric {
						if m.Histogram != nil {
							e.calls[m.Label[0].GetValue()] += int64(m.Histogram.GetSampleCount())
						}
					}
				}
			}
			if err := server.QueryRow(t.Context(), `
				SELECT sum(n_tup_ins + n_tup_upd + n_tup_del), sum((n_tup_ins + n_tup_upd - n_tup_hot_upd) *
					(SELECT count(*) FROM pg_index WHERE indrelid = relid))
				FROM pg_stat_user_tables WHERE schemaname = $1`, schema).Scan(&e.rows, &e.entries); err != nil {
				t.Fatal(err)
			}
			return e
		}
		// A connection that has become idle tells the server after 10 s what it has done.
		const window = 3*time.Second + lasts + 12*time.Second
		begun := soFar()
		time.Sleep(window)
		idle := soFar().less(begun)

		begun = soFar()
		after := instants(rate, lasts)
		for i := range after {
			after[i] += 2 * time.Second
		}
		submitter := open()
		b.store = submitter
		b.submit("k", nil, after...)
		if err := submitter.Close(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(window)
		done := soFar().less(begun)
		late := lateness(team)
		b.stopAll()
		for _, s := range stores {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
		if _, err := server.Exec(t.Context(), "DROP SCHEMA "+pgx.Identifier{schema}.Sanitize()+" CASCADE"); err != nil {
			t.Error(err)
		}
		_ = server.Close(t.Context())
		if len(late) != len(after) {
			t.Fatalf("%d of %d were fired", len(late), len(after))
		}

		fired := float64(len(late))
		per := func(n int64) float64 { return float64(n) / fired }
		firing := done.less(idle)
		t.Logf("%d replicas, for a firing: %.3f claims that find something, %.3f empty ones, %.3f calls in all (%v); %.2f rows, "+
			"%.2f index entries; without firings %.2f calls a second each (%v); late p50 %s, p99 %s, at most %s",
			n, per(firing.claims-firing.empty), per(firing.empty), per(firing.all()), firing.calls, per(firing.rows),
			per(firing.entries), float64(idle.all())/window.Seconds()/float64(n), idle.calls,
			late[len(late)/2], late[len(late)*99/100], late[len(late)-1])
		if n == 1 {
			alone = firing
		}
		// Other replicas claim in the place of one that is late by 100 ms, as on a busy machine.
		compared := map[string][2]int64{"rows": {firing.rows, alone.rows}, "index entries": {firing.entries, alone.entries}}
		if late[len(late)-1] < 100*time.Millisecond {
			compared["claims"], compared["calls"] = [2]int64{firing.claims, alone.claims}, [2]int64{firing.all(), alone.all()}
		}
		for what, c := range compared {
			if float64(c[0]) > 1.5*float64(c[1]) {
				t.Errorf("%d replicas: %d %s, one has %d", n, c[0], what, c[1])
			}
		}
	}
}
