//go:build services

package redis_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

var acmeHigh = job.Lane{Tenant: "acme", Priority: job.PriorityHigh}

// putIn returns a submission of one job to a lane, see put.
func putIn(t *testing.T, lane job.Lane, key string, n int) store.Put {
	t.Helper()
	p := put(key, n)
	p.Job.Tenant, p.Job.Options.Priority = lane.Tenant, lane.Priority
	beginning, err := p.Job.Begin(epoch, job.PastFire, job.Expansion{})
	if err != nil {
		t.Fatal(err)
	}
	p.Occurrences = beginning.Occurrences
	return p
}

// TestManyQuotas: a claim of many lanes is one script, unless it exceeds the limit of one script.
func TestManyQuotas(t *testing.T) {
	for _, c := range []struct{ lanes, each, scripts int }{{50, 5, 1}, {3, 700, 3}} {
		t.Run(fmt.Sprintf("%d of each of %d", c.each, c.lanes), func(t *testing.T) {
			server := newServer(t)
			s := open(t, server.url)
			params := store.ClaimParams{Now: epoch.Add(time.Hour), Lease: lease}
			var puts []store.Put
			for i := range c.lanes {
				lane := job.Lane{Tenant: fmt.Sprintf("tenant%d", i), Priority: job.PriorityLow}
				puts = append(puts, putIn(t, lane, "k", c.each+1))
				params.Quotas = append(params.Quotas, store.Quota{Lane: lane, Limit: c.each})
			}
			mustPut(t, s, puts...)
			claim(t, s, epoch.Add(-time.Hour), 1) // so that the server knows the script
			before := server.scripts()
			got, err := s.Claim(t.Context(), params)
			if err != nil {
				t.Fatal(err)
			}
			if ran := server.scripts() - before; ran != c.scripts {
				t.Errorf("it took %d scripts, want %d", ran, c.scripts)
			}
			if len(got.Occurrences) != c.lanes*c.each {
				t.Fatalf("claimed %d, want %d", len(got.Occurrences), c.lanes*c.each)
			}
			for i, o := range got.Occurrences {
				if want := params.Quotas[i/c.each].Lane; o.Lane() != want {
					t.Fatalf("%d. is of lane %s, want %s", i+1, o.Lane(), want)
				}
			}
		})
	}
}

// TestLanesGo: any change that removes the last occurrence of a lane removes the lane completely.
func TestLanesGo(t *testing.T) {
	name := job.Name{Tenant: acmeHigh.Tenant, Key: "k"}
	one := func(t *testing.T, s store.Store) store.Claimed {
		t.Helper()
		c, err := s.Claim(t.Context(), store.ClaimParams{Now: epoch, Lease: lease, Quotas: []store.Quota{{Lane: acmeHigh, Limit: 2}}})
		if err != nil || len(c.Occurrences) != 1 {
			t.Fatalf("claimed %d: %v", len(c.Occurrences), err)
		}
		return c.Occurrences[0]
	}
	settle := func(t *testing.T, s store.Store, outcome store.Outcome) {
		t.Helper()
		settlement := acks([]store.Claimed{one(t, s)})[0]
		settlement.Outcome, settlement.At, settlement.DueAt = outcome, epoch, epoch.Add(time.Minute)
		if err := s.Settle(t.Context(), []store.Settlement{settlement}); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		what string
		left int // number of lanes left
		do   func(t *testing.T, s store.Store, server *server)
	}{
		{"nothing", 1, func(*testing.T, store.Store, *server) {}},
		{"a retry", 1, func(t *testing.T, s store.Store, _ *server) { settle(t, s, store.Retry) }},
		{"a delivery", 0, func(t *testing.T, s store.Store, _ *server) { settle(t, s, store.Ack) }},
		{"a burial", 0, func(t *testing.T, s store.Store, _ *server) { settle(t, s, store.Bury) }},
		{"a miss", 0, func(t *testing.T, s store.Store, _ *server) { settle(t, s, store.Miss) }},
		{"a redrive and its delivery", 0, func(t *testing.T, s store.Store, _ *server) {
			settle(t, s, store.Bury)
			dead, err := s.DeadLetters(t.Context(), store.DeadLetterFilter{Tenant: name.Tenant, Limit: 2})
			if err != nil || len(dead) != 1 {
				t.Fatalf("%d dead letters: %v", len(dead), err)
			}
			if n, err := s.SettleDead(t.Context(), store.DeadSettlement{Tenant: name.Tenant, IDs: []job.ID{dead[0].ID}, Outcome: store.Redrive, Now: epoch}); n != 1 || err != nil {
				t.Fatalf("redriven %d: %v", n, err)
			}
			settle(t, s, store.Ack)
		}},
		{"a replacement by another priority", 1, func(t *testing.T, s store.Store, _ *server) {
			mustPut(t, s, putIn(t, job.Lane{Tenant: name.Tenant}, "k", 1))
		}},
		{"a replacement by nothing", 0, func(t *testing.T, s store.Store, _ *server) { mustPut(t, s, putIn(t, acmeHigh, "k", 0)) }},
		{"a cancellation", 0, func(t *testing.T, s store.Store, _ *server) {
			if _, err := s.Cancel(t.Context(), []job.Name{name}, store.Asked{Now: epoch}); err != nil {
				t.Fatal(err)
			}
		}},
		{"the end of an orphan", 0, func(t *testing.T, s store.Store, server *server) {
			server.must("hdel", "carillon:{0}:jobs", name.Tenant+"\x00"+name.Key)
			c, err := s.Claim(t.Context(), store.ClaimParams{Now: epoch.Add(2 * time.Hour), Lease: lease, Quotas: []store.Quota{{Lane: acmeHigh, Limit: 2}}})
			if err != nil || len(c.Occurrences) != 0 {
				t.Fatalf("claimed %d: %v", len(c.Occurrences), err)
			}
		}},
	} {
		t.Run(c.what, func(t *testing.T) {
			server := newServer(t)
			s := open(t, server.url)
			mustPut(t, s, putIn(t, acmeHigh, "k", 1))
			c.do(t, s, server)
			page, err := s.DueLanes(t.Context(), store.DueParams{Until: epoch.AddDate(100, 0, 0), Limit: 1000})
			if err != nil || len(page.Lanes) != c.left {
				t.Errorf("the lanes are %v, %v", page.Lanes, err)
			}
			keys, err := server.direct.Keys(t.Context(), "carillon:{0}:pending:*").Result()
			if err != nil || len(keys) != c.left {
				t.Errorf("their keys are %v, %v", keys, err)
			}
			if n := server.must("zcard", "carillon:{0}:heads"); n != int64(c.left) {
				t.Errorf("the index has %v", n)
			}
			if server.must("exists", "carillon:{0}:pending:") != int64(0) {
				t.Error("there is the key that must not be")
			}
		})
	}
}

// TestPriorityOfBrokenExpansion: an occurrence that an interrupted expansion inserted is in one lane only after the
// expansion is repeated with another priority.
func TestPriorityOfBrokenExpansion(t *testing.T) {
	server := newServer(t)
	s := open(t, server.url)
	expansion := job.Expansion{Horizon: 10 * time.Second}
	p := recurring(t, "k", expansion)
	mustPut(t, s, p)
	now := p.Job.Cursor.Add(5 * time.Second)
	first := advanceOf(t, s, now, expansion)
	const jobs, field = "carillon:{0}:jobs", job.DefaultTenant + "\x00k"
	state := server.must("hget", jobs, field)
	if err := s.Advance(t.Context(), []store.Advance{first}); err != nil {
		t.Fatal(err)
	}
	server.must("hset", jobs, field, state) // as if it had been interrupted
	for i := range first.Occurrences {
		first.Occurrences[i].Priority = job.PriorityLow
	}
	if err := s.Advance(t.Context(), []store.Advance{first}); err != nil {
		t.Fatal(err)
	}
	fired := map[job.ID]int{}
	for _, priority := range []job.Priority{job.PriorityDefault, job.PriorityLow} {
		lane := job.Lane{Tenant: job.DefaultTenant, Priority: priority}
		c, err := s.Claim(t.Context(), store.ClaimParams{Now: now.Add(time.Hour), Lease: lease, Quotas: []store.Quota{{Lane: lane, Limit: 1000}}})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range c.Occurrences {
			fired[o.ID]++
		}
	}
	if want := len(p.Occurrences) + len(first.Occurrences); len(fired) != want || len(first.Occurrences) == 0 {
		t.Errorf("%d fired, want %d", len(fired), want)
	}
	for id, n := range fired {
		if n != 1 {
			t.Errorf("%s fired %d times", id, n)
		}
	}
}

// TestCountLanesByIndex: a few scripts count many lanes, and read none of their occurrences.
func TestCountLanesByIndex(t *testing.T) {
	const shards, lanes, most = 3, 2200, 1000
	server := newServer(t)
	s := open(t, fmt.Sprintf("%s?shards=%d", server.url, shards))
	asked, want := make([]job.Lane, lanes), make([]store.Count, lanes)
	for i := range asked {
		asked[i] = job.Lane{Tenant: fmt.Sprintf("tenant%d", i), Priority: job.PriorityLow}
	}
	for k, i := range []int{0, most - 1, most, lanes - 1} { // the first and the last lane of each script
		for key := range k + 2 { // in any of the shards
			mustPut(t, s, putIn(t, asked[i], fmt.Sprint(key), 3))
		}
		want[i] = store.Count{Pending: min(3*(k+2), 10), Due: 2 * (k + 2)}
	}
	count := func() {
		t.Helper()
		if got, err := s.Count(t.Context(), epoch.Add(time.Millisecond), asked, 10); err != nil || !slices.Equal(got, want) {
			t.Errorf("counted otherwise than they are, %v", err)
		}
	}
	count() // so that the server knows the script
	server.must("config", "resetstat")
	count()
	for name, n := range server.commands() {
		switch {
		case (name == "evalsha" || name == "zmscore") && n == shards*(lanes/most+1):
		case (name == "zcard" || name == "zcount") && n <= 4*shards:
		default:
			t.Errorf("%s was called %d times", name, n)
		}
	}
}
