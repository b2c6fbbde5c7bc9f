package sim_test

import (
	"fmt"
	"testing"

	"github.com/carillon-scheduler/carillon/sim"
)

// TestIdle: a replica with nothing to do sends fewer than three commands a second to MongoDB, the driver's own included.
func TestIdle(t *testing.T) {
	commands := func(seconds int) (n int) {
		_, log := run(t, &sim.Plan{Seed: 1, Replicas: 1, Skew: []sim.Span{0}, Until: sim.Span(1000 * seconds)})
		if _, err := fmt.Sscanf(log[len(log)-1].Text, "%d commands", &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	const more = 600
	idle := commands(600+more) - commands(600)
	t.Logf("%.2f commands a second", float64(idle)/more)
	if idle >= 3*more {
		t.Errorf("an idle replica sends %d commands in %d s, want fewer than %d", idle, more, 3*more)
	}
}
