package sqlite_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/sqlite"
)

// BenchmarkPut puts new jobs of one instant, with 200 bytes of payload, 1,000 by one call, and reports the processor
// time for each job. Their keys are in random order.
func BenchmarkPut(b *testing.B) {
	s, err := sqlite.Open(b.Context(), "sqlite:"+filepath.Join(b.TempDir(), "carillon.db"))
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	const atOnce = 1000
	now := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	data := []byte(`{"payload":"` + strings.Repeat("x", 200) + `"}`)
	n, used := 0, time.Duration(0)
	b.ReportAllocs()
	for b.Loop() {
		puts := make([]store.Put, atOnce)
		for i := range puts {
			n++
			j := job.Job{
				Name:      job.Name{Tenant: job.DefaultTenant, Key: fmt.Sprintf("bench-%016x-%d", uint64(n)*0x9E3779B97F4A7C15, n)},
				Revision:  job.NewRevision(now),
				Callback:  job.Callback{Type: "http", Data: data},
				Schedule:  job.Schedule{Instants: []time.Time{now.Add(time.Duration(n) * time.Millisecond)}},
				CreatedAt: now,
				UpdatedAt: now,
				ExpiresAt: now.Add(24 * time.Hour),
			}
			j.Version = j.Revision
			begun, err := j.Begin(now, job.PastFire, job.Expansion{})
			if err != nil {
				b.Fatal(err)
			}
			puts[i] = store.Put{Job: j, Occurrences: begun.Occurrences, Now: now}
		}
		before := processorTime(b)
		for _, r := range s.Put(b.Context(), puts) {
			if r.Err != nil {
				b.Fatal(r.Err)
			}
		}
		used += processorTime(b) - before
	}
	b.ReportMetric(used.Seconds()*1e6/float64(n), "us-cpu/job")
}

// processorTime returns the processor time that this process has used.
func processorTime(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
