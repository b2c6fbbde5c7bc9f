package destinations_test

import (
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/dispatcher/destinations"
)

// BenchmarkEnter measures the cost of a callback that is admitted at once.
func BenchmarkEnter(b *testing.B) {
	s := destinations.New(destinations.Policy{
		InFlight: 192, SlowInFlight: 128, SlowAfter: 250 * time.Millisecond, Patience: 100 * time.Millisecond,
		Failures: 20, Probe: 5 * time.Second, LongestProbe: time.Minute,
	}, time.Now)
	ctx := b.Context()
	b.ReportAllocs()
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			pass, err := s.Enter(ctx, "d", destinations.Limits{})
			if err != nil {
				b.Error(err)
				return
			}
			pass.Done(destinations.Well)
		}
	})
}
