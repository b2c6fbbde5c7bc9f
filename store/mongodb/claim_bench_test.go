//go:build services

package mongodb_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/mongodb"
)

// BenchmarkClaim measures the cost of a claim by the number of due occurrences: claimed one by one, by batch, and with
// too low an expectation.
func BenchmarkClaim(b *testing.B) {
	for _, due := range []int{1, 2, 3, 4} {
		for _, way := range []struct {
			name   string
			expect int
		}{{"one by one", due}, {"one, then batch", 1}, {"batch", 1000}} {
			b.Run(fmt.Sprintf("due=%d/%s", due, way.name), func(b *testing.B) {
				s, err := mongodb.Open(b.Context(), newDatabase(b).url)
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(func() { _ = s.Close() })
				now := epoch
				for b.Loop() {
					b.StopTimer()
					now = now.Add(time.Second)
					put := newPut("k", now, 0)
					put.Job.Schedule.Instants = nil
					for i := range due {
						put.Job.Schedule.Instants = append(put.Job.Schedule.Instants, now.Add(-time.Duration(i)*time.Millisecond))
					}
					if result := s.Put(b.Context(), []store.Put{begin(put.Job, now)})[0]; result.Err != nil {
						b.Fatal(result.Err)
					}
					mongodb.Expect(s, job.DefaultLane, way.expect)
					b.StartTimer()
					claim, err := s.Claim(b.Context(), claimParams(now, 1000))
					b.StopTimer()
					if err != nil || len(claim.Occurrences) != due {
						b.Fatalf("claimed %d, %v", len(claim.Occurrences), err)
					}
					settlements := make([]store.Settlement, due)
					for i, c := range claim.Occurrences {
						settlements[i] = settlement(c, store.Ack)
					}
					if err := s.Settle(b.Context(), settlements); err != nil {
						b.Fatal(err)
					}
					b.StartTimer()
				}
			})
		}
	}
}
