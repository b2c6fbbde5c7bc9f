package sim_test

import (
	"flag"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/sim"
	"github.com/carillon-scheduler/carillon/sim/checker"
)

var (
	first = flag.Uint64("first", 1, "the first seed")
	count = flag.Int("count", 3, "the number of histories")
)

// run runs a plan in a bubble of its own.
func run(t *testing.T, p *sim.Plan) (h checker.History, log []sim.Line) {
	t.Helper()
	cryptotest.SetGlobalRandom(t, p.Seed)
	synctest.Test(t, func(*testing.T) { h, log = sim.Run(p) })
	return h, log
}

func TestHistories(t *testing.T) {
	for i := range *count {
		seed := *first + uint64(i)
		begun := time.Now()
		h, log := run(t, sim.NewPlan(seed))
		ran := time.Since(begun)
		found := checker.Check(&h)
		t.Logf("seed %d: %d ops, %d deliveries, %d found, %s and %s", seed, len(h.Ops), len(h.Deliveries), len(found), ran.Round(time.Millisecond), (time.Since(begun) - ran).Round(time.Millisecond))
		for _, v := range found {
			t.Errorf("%s", v)
		}
		if len(found) > 0 {
			t.Logf("%d lines", len(log))
		}
	}
}
