package bench_test

import (
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/cmd/carillon-bench/bench"
)

// The estimate of the effort follows the mode's options.
func TestEffort(t *testing.T) {
	fairness := func(parts ...string) bench.Mode {
		return bench.Fairness{Only: parts, Count: 200_000, Tenants: 100, Spread: 1000, Rate: 500, Duration: 30 * time.Second}
	}
	pending := bench.Pending{Sizes: []int{10_000, 1_000_000}, Rate: 500, Duration: 10 * time.Second}
	for _, c := range []struct {
		name        string
		mode        bench.Mode
		rounds      int
		least, most time.Duration
		want        string
	}{
		{"drain", bench.Drain{Count: 300_000, Replicas: 1}, 3, 2 * time.Minute, 4 * time.Minute, " 3 min, if the store manages to "},
		{"a short one", bench.Drain{Count: 10_000, Replicas: 1}, 1, time.Second, 5 * time.Second, "2 s, if "},
		{"steady", bench.Steady{Rate: 2000, Duration: time.Minute}, 3, 3 * time.Minute, 5 * time.Minute, "of 180000 in all"},
		{"steady, for longer", bench.Steady{Rate: 10, Duration: time.Hour}, 2, 2 * time.Hour, 121 * time.Minute, "121 min"},
		{"burst", bench.Burst{Count: 50_000}, 3, 15 * time.Second, 2 * time.Minute, "60 s"},
		{"mixed", bench.Mixed{Rate: 2800, Duration: time.Minute}, 3, 3 * time.Minute, 5 * time.Minute, " min"},
		{"submit", bench.Submit{Count: 100_000}, 3, time.Minute, 5 * time.Minute, " s"},
		{"intake", bench.Intake{Count: 100_000}, 3, time.Minute, 5 * time.Minute, " s"},
		{"pending", pending, 3, 90 * time.Second, 5 * time.Minute, " min"},
		{"idle", bench.Idle{Pending: 10_000, Duration: 20 * time.Second}, 3, time.Minute, 2 * time.Minute, "64 s"},
		{"feed", bench.Feed{Rate: 20, Duration: time.Hour}, 1, time.Hour, time.Hour, "this takes about 60 min"},
		{"all of fairness", fairness(bench.FairnessParts...), 3, 10 * time.Minute, 15 * time.Minute, " min"},
		{"a part of fairness", fairness("destinations"), 1, time.Minute, 2 * time.Minute, "this takes about 68 s"},
	} {
		e := c.mode.Effort(c.rounds)
		if got := e.Time(); got < c.least || got > c.most {
			t.Errorf("%s: %s, want %s to %s", c.name, got, c.least, c.most)
		}
		if got := e.String(); !strings.HasPrefix(got, "this takes about ") || !strings.Contains(got, c.want) {
			t.Errorf("%s: it says %s, want %s", c.name, got, c.want)
		}
	}
}
