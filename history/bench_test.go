package history_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/history"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/sqlite"
)

// BenchmarkOneJob finds one job's history among ten million attempts, and reports the bytes of the store per attempt.
// Making the attempts takes minutes; CARILLON_BENCH_HISTORY names a file that keeps them.
func BenchmarkOneJob(b *testing.B) {
	path := os.Getenv("CARILLON_BENCH_HISTORY")
	if path == "" {
		path = filepath.Join(b.TempDir(), "carillon.db")
	}
	s, err := sqlite.Open(b.Context(), "sqlite:"+path)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	const many = 10_000_000
	at := epoch
	needle := job.Name{Tenant: "acme", Key: "order-needle"}
	if there, err := s.Records(b.Context(), recentFilter(epoch)); err != nil || len(there) == 0 {
		w := history.NewWriter(history.Config{Records: s, Policy: history.Policy{Keep: day}, Now: func() time.Time { return at }})
		for n := 0; n < many; n += 1000 {
			some := attempts(1000, at)
			if n%1_000_000 == 0 {
				some[7].Name = needle
			}
			for w.Waiting() > 10_000 {
				time.Sleep(time.Millisecond)
			}
			w.RecordAll(some...)
			at = at.Add(100 * time.Millisecond)
		}
		_ = w.Close()
	}
	_ = s.Close()
	size := int64(0)
	for _, suffix := range []string{"", "-wal"} {
		if info, err := os.Stat(path + suffix); err == nil {
			size += info.Size()
		}
	}
	b.ReportMetric(float64(size)/many, "bytes/firing")
	if s, err = sqlite.Open(b.Context(), "sqlite:"+path); err != nil {
		b.Fatal(err)
	}
	for what, f := range map[string]history.Filter{
		"job": {Tenant: "acme", Key: needle.Key}, "unknown job": {Tenant: "acme", Key: "nobody"},
		"newest": {Tenant: "acme"}, "newest failures": {Tenant: "acme", Kinds: []history.Kind{history.Buried}},
	} {
		b.Run(what, func(b *testing.B) {
			for b.Loop() {
				got := firstPage(b, s, f)
				if what == "job" && len(got) != 10 {
					b.Errorf("found %d of 10", len(got))
				}
			}
		})
	}
}

func recentFilter(now time.Time) store.RecordFilter {
	return store.RecordFilter{Collection: "history-runs", Limit: 1, Now: now}
}

func firstPage(b *testing.B, s store.Records, f history.Filter) (all []history.Entry) {
	b.Helper()
	reading, err := history.NewReader(s).Read(b.Context(), f, epoch)
	if err != nil {
		b.Fatal(err)
	}
	for e, err := range reading.All(b.Context()) {
		if err != nil {
			b.Fatal(err)
		}
		if all = append(all, e); len(all) == 100 {
			break
		}
	}
	return all
}

// noRecords takes everything and keeps nothing.
type noRecords struct{ store.Store }

func (noRecords) WriteRecords(_ context.Context, changes []store.RecordChange) []error {
	return make([]error, len(changes))
}

// BenchmarkWriter measures the processor time that an attempt costs, from its record to its last writing.
func BenchmarkWriter(b *testing.B) {
	const batch = 128
	all := attempts(65_536, epoch)
	w := history.NewWriter(history.Config{Records: noRecords{}, Policy: history.Policy{Keep: day}})
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		from := i * batch % len(all)
		for w.Waiting() > 10_000 {
			time.Sleep(100 * time.Microsecond)
		}
		w.RecordAll(all[from : from+batch]...)
	}
	_ = w.Close()
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batch), "ns/entry")
}
