package fairqueue_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/dispatcher/fairqueue"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// BenchmarkClaim measures the division of one claim of 256 slots, by the number of lanes and of those with a backlog.
func BenchmarkClaim(b *testing.B) {
	for _, c := range []struct{ lanes, due int }{{1, 1}, {100, 1}, {100, 100}, {10_000, 1}, {10_000, 100}, {10_000, 10_000}} {
		b.Run(fmt.Sprintf("lanes=%d,due=%d", c.lanes, c.due), func(b *testing.B) {
			now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
			s := fairqueue.New(fairqueue.Policy{High: 70, Normal: 25, Low: 5, OverdueAfter: 10 * time.Second, OverdueShare: .5},
				func(string) fairqueue.Tenant { return fairqueue.Tenant{} })
			for i := range c.lanes {
				at := now.Add(time.Hour)
				if i < c.due {
					at = now
				}
				s.Due(job.Lane{Tenant: fmt.Sprint("tenant", i)}, at)
			}
			for b.Loop() {
				_ = s.Next()
				a := s.Allot(now, 256)
				claim := store.Claim{}
				for _, q := range a.Quotas {
					claim.Quotas = append(claim.Quotas, store.QuotaLeft{Found: q.Limit, More: true})
					for range q.Limit {
						claim.Occurrences = append(claim.Occurrences, store.Claimed{Occurrence: job.Occurrence{Timestamp: now}})
					}
				}
				s.Claimed(a, claim, now)
				for _, q := range a.Quotas {
					s.Settled(q.Lane.Tenant, q.Limit)
				}
			}
		})
	}
}
