package otlp

import (
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/history"
	"github.com/carillon-scheduler/carillon/job"
)

// BenchmarkEncode measures the processor time that an entry costs before it is sent.
func BenchmarkEncode(b *testing.B) {
	var all [mostAtOnce]*history.Entry
	for i := range all {
		at := time.Unix(int64(i), 0)
		all[i] = &history.Entry{
			Name: job.Name{Tenant: "acme", Key: "order-12345678"}, At: at, Instant: at, Claimed: at, Attempt: 1,
			Took: time.Millisecond, Destination: "http example.com", Replica: "EYK4IGJ3ZKJ7GYLF2NDDWBVGOW",
		}
	}
	s := &Sink{}
	for b.Loop() {
		if _, err := s.encode(all[:]); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(all)), "ns/entry")
}
