//go:build services

package main_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/cmd/carillon-bench/bench"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// runBench runs a bench with short rounds, and answers its report.
func runBench(t *testing.T, rounds int, args ...string) bench.Report {
	t.Helper()
	path, err := benchBinary()
	if err != nil {
		t.Fatal(err)
	}
	args = append(slices.Clone(args), fmt.Sprintf("--rounds=%d", rounds), "--json")
	var stdout, stderr bytes.Buffer
	run := func() error {
		stdout.Reset()
		stderr.Reset()
		cmd := exec.Command(path, args...)
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		return cmd.Run()
	}
	err = run()
	// A machine that is fast, or that was busy at first and is not any more, drains a backlog sooner than the bench
	// expected.
	for count := 8000; err != nil && count <= 128_000 && strings.Contains(stderr.String(), "--count must be larger"); count *= 2 {
		args = append(args, fmt.Sprintf("--count=%d", count))
		err = run()
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, &stderr)
	}
	if first, _, _ := strings.Cut(stderr.String(), "\n"); !strings.Contains(first, "this takes about ") {
		t.Errorf("it does not begin with how long it takes:\n%s", &stderr)
	}
	var r bench.Report
	if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
		t.Fatalf("%v\n%s", err, &stdout)
	}
	return r
}

// figure returns a figure of a report, which must have it.
func figure(t *testing.T, r bench.Report, name string) bench.Figure {
	t.Helper()
	i := slices.IndexFunc(r.Figures, func(f bench.Figure) bool { return f.Name == name })
	if i < 0 {
		t.Fatalf("there is no figure %q: %+v", name, r.Figures)
	}
	return r.Figures[i]
}

// TestBench runs a small version of each mode. The counts must be right, and there must be ratios, of any value. Only
// draining takes two rounds, since all modes have the same rounds.
func TestBench(t *testing.T) {
	t.Parallel()
	const rabbitmq = "--callback=rabbitmq"
	punctual := []string{"early", "lost", "doubled"}
	for _, c := range []struct {
		args   []string
		ratios []string // figures that have one
		zeros  []string // figures that must be 0
	}{
		{[]string{"drain", "--count=100"}, []string{"drained"}, nil},
		{[]string{"drain", "--count=500", "--replicas=2"}, []string{"drained"}, nil},
		{[]string{"drain", "--count=100", "--callback=http", "--secure"}, []string{"drained"}, nil},
		{[]string{"drain", "--count=100", rabbitmq}, []string{"drained"}, nil},
		{[]string{"steady", "--rate=50", "--duration=1s", "--callback=http"}, []string{"deviation p50", "deviation p99"}, punctual},
		{[]string{"burst", "--count=200"}, []string{"last fired after"}, punctual},
		{[]string{"mixed", "--rate=50", "--duration=1s"}, []string{"submitted"}, punctual},
		// One at a time, so that the backlog lasts. If it does not, it is made larger.
		{[]string{"fairness", "--count=4000", "--concurrency=1", "--only=backlog"}, []string{"backlog: A drained while B comes"}, nil},
		{[]string{"fairness", "--count=2000", "--only=priorities"}, []string{"priorities: share of high", "priorities: share of normal", "priorities: share of low"}, nil},
		{[]string{"fairness", "--count=2000", "--only=destinations", "--rate=50", "--duration=1s"}, []string{"destinations: to the healthy one", "destinations: its deviation p99"}, nil},
		{[]string{"submit", "--count=500"}, []string{"batches", "one by one, 256 connections", "one by one, 1 connection"}, nil},
		{[]string{"pending", "--sizes=100,1000", "--rate=50", "--duration=1s"}, []string{"with 100 waiting: claim p99", "with 1000 waiting: claim p99", "with 1000 waiting: memory"}, nil},
		{[]string{"pending", "--sizes=100,200", "--crontab=@every 30d", "--rate=50", "--duration=1s"}, []string{"with 200 waiting: claim p99"}, nil},
		{[]string{"idle", "--pending=10", "--duration=1s"}, nil, nil},
		{[]string{"tenants", "--count=50", "--few=10", "--rate=20", "--duration=1s"}, []string{"50 tenants: deviation p99"}, nil},
		{[]string{"feed", "--duration=3s"}, nil, nil},
	} {
		t.Run(strings.Join(c.args[:1], " "), func(t *testing.T) {
			t.Parallel()
			if slices.Contains(c.args, rabbitmq) {
				url, _ := theBroker(t)
				c.args = append(c.args, "--rabbitmq-url="+url)
			}
			rounds := 1
			if c.args[0] == "drain" {
				rounds = 2
			}
			r := runBench(t, rounds, c.args...)
			if r.Mode != c.args[0] || r.Store != "sqlite" || r.Machine.Cores < 1 || len(r.Figures) == 0 {
				t.Errorf("the report is about %+v", r)
			}
			for _, name := range c.ratios {
				if f := figure(t, r, name); f.Ratio <= 0 || len(f.Rounds) != rounds || len(f.Raw) != rounds {
					t.Errorf("%+v has no ratio of %d rounds", f, rounds)
				}
			}
			for _, name := range c.zeros {
				if f := figure(t, r, name); f.Median != 0 || len(f.Rounds) != rounds {
					t.Errorf("%s: %v", name, f.Rounds)
				}
			}
		})
	}
}

// TestBenchShares has tenants compete, in one round, and checks that it leaves no job of a tenant in the given store.
func TestBenchShares(t *testing.T) {
	t.Parallel()
	c := stores[0].cluster(t)
	r := runBench(t, 2, "fairness", "--only=shares", "--count=2000", "--tenants=5", "--spread=4", "--store="+c.url)
	if f := figure(t, r, "shares: least Jain's index of a window"); f.Median < 0 || f.Median > 1 || len(f.Rounds) != 1 {
		t.Errorf("Jain's index is %v", f.Rounds)
	}
	figure(t, r, "shares: largest deviation of a tenant's share")
	if notes := strings.Join(r.Notes, "\n"); !strings.Contains(notes, "backlogs of 250 to 1000") {
		t.Errorf("the largest backlog is not 1000, half of the count, or the smallest not a fourth of it: %s", notes)
	}
	if f := figure(t, r, "shares: drained"); f.Median <= 0 {
		t.Errorf("it drained %v/s", f.Rounds)
	}
	expectNothingPending(t, c.store)
	for i := range 5 {
		tenant := fmt.Sprintf("bench-%d", i)
		if jobs, err := c.store.Jobs(t.Context(), store.JobFilter{Tenant: tenant, Limit: 1}); err != nil || len(jobs) > 0 {
			t.Errorf("it left %v of %s (%v)", jobs, tenant, err)
		}
	}
}

func expectNothingPending(t *testing.T, s store.Store) {
	t.Helper()
	page, err := s.DueLanes(t.Context(), store.DueParams{Until: time.Now().AddDate(100, 0, 0), Limit: 1000})
	if err != nil || len(page.Lanes) > 0 {
		t.Errorf("it left occurrences in %v (%v)", page.Lanes, err)
	}
}

// TestBenchStores drains on each store, and checks that it leaves nothing there.
func TestBenchStores(t *testing.T) {
	inLongOnEachWay(t, func(t *testing.T, c *cluster) {
		for _, args := range [][]string{{"drain", "--count=200"}, {"submit", "--count=100", "--connections=8"}} {
			r := runBench(t, 1, append(args, "--store="+c.url)...)
			for _, f := range r.Figures {
				if f.Median <= 0 {
					t.Errorf("%s: %v", f.Name, f.Rounds)
				}
			}
		}
		jobs, err := c.store.Jobs(t.Context(), store.JobFilter{Tenant: job.DefaultTenant, Limit: 1})
		if err != nil || len(jobs) > 0 {
			t.Errorf("it left %v (%v)", jobs, err)
		}
		expectNothingPending(t, c.store)
	})
}

// TestBenchRefuses tries it on a store that is in use.
func TestBenchRefuses(t *testing.T) {
	t.Parallel()
	c := stores[0].cluster(t)
	c.start(1)
	path, err := benchBinary()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(path, "drain", "--count=10", "--rounds=1", "--store="+c.url).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "--force") {
		t.Errorf("on a store from which a replica claims: %v\n%s", err, out)
	}
	c.replicas[0].kill()
	c.start(1)
	c.put(c.replicas[1], "mine", 1, time.Hour, c.webhook(), http.StatusCreated)
	c.replicas[1].kill()
	out, err = exec.Command(path, "drain", "--count=10", "--rounds=1", "--store="+c.url).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "--force") {
		t.Errorf("on a store that holds a job: %v\n%s", err, out)
	}
	r := runBench(t, 1, "drain", "--count=10", "--force", "--store="+c.url)
	if figure(t, r, "drained").Median <= 0 {
		t.Error("forced, it measured nothing")
	}
	if _, err := store.ReadJob(t.Context(), c.store, job.Name{Tenant: job.DefaultTenant, Key: "mine"}); err != nil {
		t.Errorf("it deleted a job that was not its own: %v", err)
	}
}
