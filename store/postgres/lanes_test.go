//go:build services

package postgres_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/postgres"
)

// tenantPut returns a submission to a tenant's lane.
func tenantPut(tenant, key string, after ...time.Duration) store.Put {
	p := newPut(key, after...)
	p.Job.Tenant = tenant
	for i := range p.Occurrences {
		p.Occurrences[i].Name.Tenant = tenant
	}
	return p
}

// quotas returns one quota for each tenant.
func quotas(limit int, tenants ...string) (all []store.Quota) {
	for _, t := range tenants {
		all = append(all, store.Quota{Lane: job.Lane{Tenant: t}, Limit: limit})
	}
	return all
}

func claimOf(t *testing.T, s store.Store, now time.Time, quotas []store.Quota) store.Claim {
	t.Helper()
	claim, err := s.Claim(t.Context(), store.ClaimParams{Now: now, Lease: lease, Quotas: quotas})
	if err != nil {
		t.Fatal(err)
	}
	return claim
}

// TestClaimManyLanes: claims of one large lane and many small ones, divided or not, by two replicas, take up to the
// quota of each lane, the longest due first, and each occurrence once.
func TestClaimManyLanes(t *testing.T) {
	const large, lanes = 4000, 64
	for _, server := range []string{serverURL, pgbouncerURL} {
		sc := newSchema(t, server)
		stores := []store.Store{sc.open(), sc.open()}
		tenants := []string{"large"}
		after := make([]time.Duration, large)
		for i := range after {
			after[i] = time.Duration(i) * time.Millisecond
		}
		puts := []store.Put{tenantPut("large", "k", after...)}
		for i := 1; i < lanes; i++ {
			tenants = append(tenants, fmt.Sprintf("small%02d", i))
			puts = append(puts, tenantPut(tenants[i], "k", after[:i%3]...))
		}
		pending := 0
		for _, p := range puts {
			pending += len(p.Occurrences)
		}
		mustPut(t, stores[0], puts...)
		asked := quotas(5, tenants...)
		asked[0].Limit = 601
		reversed := slices.Clone(asked) // so that the large lane is in either half
		slices.Reverse(reversed)
		var lock sync.Mutex
		seen := make(map[job.ID]bool)
		var group sync.WaitGroup
		for i, s := range stores {
			asked := [][]store.Quota{asked, reversed}[i]
			group.Go(func() {
				for more := true; more; {
					claim, err := s.Claim(t.Context(), store.ClaimParams{Now: epoch.Add(time.Hour), Lease: lease, Quotas: asked})
					if err != nil {
						t.Error(err)
						return
					}
					more = claim.More()
					rest := claim.Occurrences
					lock.Lock()
					for k, q := range claim.Quotas {
						if q.Found > asked[k].Limit {
							t.Errorf("found %d of lane %s, want at most %d", q.Found, asked[k].Lane, asked[k].Limit)
						}
						for n, o := range rest[:q.Found] {
							if o.Lane() != asked[k].Lane || seen[o.ID] || n > 0 && o.Timestamp.Before(rest[n-1].Timestamp) {
								t.Errorf("%s of lane %s comes for lane %s, again: %t", o.Timestamp, o.Lane(), asked[k].Lane, seen[o.ID])
							}
							seen[o.ID] = true
						}
						rest = rest[q.Found:]
					}
					lock.Unlock()
				}
			})
		}
		group.Wait()
		// One claim may have skipped the rows that the other had locked.
		for _, o := range claimOf(t, stores[0], epoch.Add(time.Hour), quotas(2*large, tenants...)).Occurrences {
			seen[o.ID] = true
		}
		if len(seen) != pending {
			t.Errorf("claimed %d, want %d", len(seen), pending)
		}
	}
}

// TestClaimPausedHalf: one half of a divided claim may find only occurrences of paused jobs. The claim reports that the
// lane has more, and is continued.
func TestClaimPausedHalf(t *testing.T) {
	s := newSchema(t, serverURL).open()
	after := make([]time.Duration, 400)
	for i := range after {
		after[i] = time.Duration(i) * time.Millisecond
	}
	mustPut(t, s, tenantPut("busy", "k", after...), tenantPut("idle", "paused", after[:100]...), tenantPut("idle", "k", time.Second))
	if err := s.Pause(t.Context(), job.Name{Tenant: "idle", Key: "paused"}, job.NewRevision(epoch), epoch); err != nil {
		t.Fatal(err)
	}
	now := epoch.Add(time.Hour)
	if claim := claimOf(t, s, now, quotas(200, "busy")); !claim.Quotas[0].More { // so that the next claim is divided
		t.Fatalf("the first claim is answered %+v", claim.Quotas)
	}
	claim := claimOf(t, s, now, quotas(100, "busy", "idle"))
	if claim.Quotas[0].Found != 100 || claim.Quotas[1].Found != 0 || !claim.Quotas[1].More {
		t.Errorf("the claim with paused jobs is answered %+v", claim.Quotas)
	}
	claim = claimOf(t, s, now, quotas(100, "busy", "idle"))
	if left := claim.Quotas[1]; left.Found != 1 || left.More {
		t.Errorf("the claim past paused jobs is answered %+v", claim.Quotas)
	}
}

// TestClaimFailedHalf: if one half of a divided claim fails, the other's occurrences are returned, and the claim
// reports more for the lanes of the failed half.
func TestClaimFailedHalf(t *testing.T) {
	sc := newSchema(t, serverURL)
	s := sc.open()
	after := make([]time.Duration, 300)
	for i := range after {
		after[i] = time.Duration(i) * time.Millisecond
	}
	mustPut(t, s, tenantPut("good", "k", after...), tenantPut("bad", "k", after...))
	now, both := epoch.Add(time.Hour), quotas(100, "good", "bad")
	claimOf(t, s, now, both) // finds enough for the next claim to be divided
	run(t, sc.admin, fmt.Sprintf(`CREATE FUNCTION %s.fail() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''as the test says''; END'`, sc.name))
	run(t, sc.admin, fmt.Sprintf(`CREATE TRIGGER fail BEFORE UPDATE ON %s FOR EACH ROW WHEN (NEW.lane = 'bad') EXECUTE FUNCTION %s.fail()`,
		sc.table("occurrences"), sc.name))
	claim := claimOf(t, s, now, both)
	if claim.Quotas[0].Found != 100 || claim.Quotas[1].Found != 0 || !claim.Quotas[1].More {
		t.Errorf("the claim of which one half fails is answered %+v", claim.Quotas)
	}
	if _, err := s.Claim(t.Context(), store.ClaimParams{Now: now, Lease: lease, Quotas: quotas(100, "bad")}); err == nil {
		t.Error("the claim that fails whole is not answered an error")
	}
	run(t, sc.admin, "DROP TRIGGER fail ON "+sc.table("occurrences"))
	claim = claimOf(t, s, now, both)
	if claim.Quotas[0].Found != 100 || claim.Quotas[1].Found != 100 {
		t.Errorf("the claim after one that failed is answered %+v", claim.Quotas)
	}
}

// TestClaimNextOfHalves: either half of a divided claim may find the only due occurrence. Next is the end of its lease,
// whichever half ends first.
func TestClaimNextOfHalves(t *testing.T) {
	s := newSchema(t, serverURL).open()
	for i := range 20 {
		tenant := fmt.Sprintf("t%d", i)
		mustPut(t, s, tenantPut("other", tenant, 0), tenantPut(tenant, "k", 0, time.Hour))
		claimOf(t, s, epoch, quotas(1, "other")) // reaches its limit, so the next claim is divided
		claim := claimOf(t, s, epoch, quotas(300, tenant))
		if want := (store.QuotaLeft{Found: 1, Next: epoch.Add(lease)}); claim.Quotas[0] != want {
			t.Errorf("claim %d is answered %+v, want %+v", i, claim.Quotas[0], want)
		}
	}
}

// TestPlansOfLanes: the cost of claiming or counting many lanes follows the number of occurrences claimed or counted,
// however many one lane has. Counting reads only the index. This also holds for statements that the server plans at
// each execution.
func TestPlansOfLanes(t *testing.T) {
	const many, lanes, asked, limit = 100_000, 64, 10, 5
	s := newSchema(t, serverURL)
	s.url = with(t, with(t, s.url, "application_name", s.name), "pool_max_conns", "1")
	var tenants []string
	for i := range lanes {
		tenants = append(tenants, fmt.Sprintf("t%d", i))
	}
	for _, mode := range []string{"cache_statement", "cache_describe"} {
		o, err := postgres.Open(context.Background(), with(t, s.url, "default_query_exec_mode", mode))
		if err != nil {
			t.Fatal(err)
		}
		run(t, s.admin, "TRUNCATE "+s.table("occurrences"))
		run(t, s.admin, "ANALYZE "+s.table("occurrences"))
		claimOf(t, o, epoch, quotas(limit, tenants...)) // the statements are prepared while the tables are empty
		if _, err := o.Count(t.Context(), epoch, lanesOf(tenants), limit); err != nil {
			t.Fatal(err)
		}
		// The first lane has nearly all occurrences, the second none, and each other one has one.
		run(t, s.admin, fmt.Sprintf(`INSERT INTO %s (lane, revision, id, position, attempt, timestamp, due_at)
			SELECT 't' || CASE WHEN n < %d THEN n + 1 ELSE 0 END, lpad(to_hex(n), 32, '0')::uuid, gen_random_uuid(), 0, 0, n, n
			FROM generate_series(1, %d) n`, s.table("occurrences"), lanes-1, many))
		run(t, s.admin, fmt.Sprintf(`INSERT INTO %s (tenant, key, revision, version, created_at, updated_at, expires_at, missed,
				callback_type, callback_data, schedule)
			SELECT 't0', 'k' || n, lpad(to_hex(n), 32, '0')::uuid, 'r' || n, 0, 0, 1e15, 0, 'http', '{}', '{}'
			FROM generate_series(1, %d) n ON CONFLICT DO NOTHING`, s.table("jobs"), many))
		s.vacuum()
		before := s.reads()
		for range asked {
			counts, err := o.Count(t.Context(), epoch, lanesOf(tenants), limit)
			if err != nil {
				t.Fatal(err)
			}
			for i, c := range counts {
				want := store.Count{Pending: 1, Due: 1}
				switch i {
				case 0:
					want = store.Count{Pending: limit, Due: limit}
				case 1:
					want = store.Count{}
				}
				if c != want {
					t.Errorf("%s: %s has %+v, want %+v", mode, tenants[i], c, want)
				}
			}
		}
		// The counters are added up when their connection ends.
		if err := o.Close(); err != nil {
			t.Fatal(err)
		}
		s.awaitGone("application_name", s.name)
		counted := s.reads()
		if entries, most := counted.entries-before.entries, asked*(limit+lanes-2); entries != most {
			t.Errorf("%s: %d entries were read to count, want %d", mode, entries, most)
		}
		if counted.rows != before.rows {
			t.Errorf("%s: %d rows were read to count, want none", mode, counted.rows-before.rows)
		}

		if o, err = postgres.Open(context.Background(), with(t, s.url, "default_query_exec_mode", mode)); err != nil {
			t.Fatal(err)
		}
		for i := range asked {
			claim := claimOf(t, o, epoch, quotas(limit, tenants...))
			want := limit
			if i == 0 {
				want += lanes - 2
			}
			if len(claim.Occurrences) != want {
				t.Errorf("%s: claimed %d, want %d", mode, len(claim.Occurrences), want)
			}
		}
		if err := o.Close(); err != nil {
			t.Fatal(err)
		}
		s.awaitGone("application_name", s.name)
		// A claim may pass over the remains of those before.
		claimed := s.reads()
		if entries := claimed.entries - counted.entries; entries == 0 || entries > many/20 {
			t.Errorf("%s: %d entries were read to claim, want some, and at most %d", mode, entries, many/20)
		}
		if rows := claimed.rows - counted.rows; rows > many/20 {
			t.Errorf("%s: %d rows were read to claim, want at most %d", mode, rows, many/20)
		}
	}
}

func lanesOf(tenants []string) (all []job.Lane) {
	for _, t := range tenants {
		all = append(all, job.Lane{Tenant: t})
	}
	return all
}

// vacuum makes all occurrences visible to all transactions. A transaction of another test under way may prevent that.
func (s schema) vacuum() {
	s.Helper()
	for deadline := time.Now().Add(5 * time.Minute); ; {
		run(s.TB, s.admin, "VACUUM "+s.table("occurrences"))
		if query[bool](s, "SELECT relallvisible >= relpages FROM pg_class WHERE oid = $1::text::regclass", s.table("occurrences")) {
			return
		}
		if time.Now().After(deadline) {
			s.Fatal("the table does not become all visible")
		}
	}
}

// reads has the numbers of index entries and rows of occurrences that were read.
type reads struct {
	entries int // of the claim index
	rows    int // of the table
}

// reads returns the numbers read by connections that have ended.
func (s schema) reads() reads {
	s.Helper()
	return reads{
		query[int](s, "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE schemaname = $1 AND indexrelname = 'occurrences_claim'", s.name),
		query[int](s, "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE schemaname = $1 AND relname = 'occurrences'", s.name),
	}
}
