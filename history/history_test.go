package history_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/history"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/memory"
	"github.com/carillon-scheduler/carillon/store/sqlite"
)

const day = 24 * time.Hour

func openSQLite(t testing.TB) store.Store {
	t.Helper()
	s, err := sqlite.Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "carillon.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// read reads the selected entries in pages.
func read(t testing.TB, records store.Records, f history.Filter, now time.Time, page int) (all []history.Entry, gap *history.Gap) {
	t.Helper()
	for {
		reading, err := history.NewReader(records).Read(t.Context(), f, now)
		if err != nil {
			t.Fatal(err)
		}
		gap = reading.Gap
		n := 0
		for e, err := range reading.All(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, e)
			if n++; n == page {
				break
			}
		}
		switch {
		case reading.Next != nil:
			f.Before = reading.Next
		case n < page:
			return all, gap
		default:
			last := all[len(all)-1].Place()
			f.Before = &last
		}
	}
}

// For every filter, a reader finds exactly the recorded entries, the newest first, over several pages: those of a
// closed replica, of one that writes, and of one that died.
func TestEveryEntryIsFound(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	for name, open := range map[string]func(testing.TB) store.Store{
		"memory": func(testing.TB) store.Store { return memory.New() }, "sqlite": openSQLite,
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			random := rand.New(rand.NewPCG(1, 2))
			var all []history.Entry
			now := epoch.Add(time.Hour)
			var writing []*history.Writer
			for replica := range 4 {
				entries := attempts(1500, epoch.Add(time.Duration(replica)*100*time.Millisecond))
				entries = append(entries, variety()...)
				for i := range entries {
					e := &entries[i]
					e.At = e.At.Truncate(time.Millisecond)
					e.Replica = fmt.Sprint(replica)
					if i%2 == 0 { // some jobs have many
						e.Name = job.Name{Tenant: []string{"acme", "other"}[i%4/2], Key: fmt.Sprintf("job-%d", random.IntN(8))}
					}
					e.Attempt = replica*10_000 + i // so that no two are the same
				}
				all = append(all, entries...)
				w := history.NewWriter(history.Config{Records: s, Policy: history.Policy{Keep: 100 * 365 * day}, Now: func() time.Time { return now }})
				for some := range slices.Chunk(entries, 700) {
					w.RecordAll(some...)
				}
				if replica < 2 {
					_ = w.Close()
				} else {
					writing = append(writing, w)
				}
			}
			await(t, s, now, len(writing)*1508)
			filters := []history.Filter{
				{Tenant: "acme"},
				{Tenant: "other"},
				{Tenant: "nobody"},
				{Tenant: "acme", Key: "job-3"},
				{Tenant: "acme", Key: "job-"},
				{Tenant: "acme", Prefix: "job-"},
				{Tenant: "acme", Prefix: "order-00"},
				{Tenant: "default", Key: "grüße/100%"},
				{Tenant: "acme", Kinds: []history.Kind{history.Buried, history.Retried}},
				{Tenant: "acme", Kinds: []history.Kind{history.Delivered}, Key: "job-1"},
				{Tenant: "acme", Destination: "http shop-7.example.com"},
				{Tenant: "acme", Since: epoch.Add(150 * time.Millisecond), Until: epoch.Add(170 * time.Millisecond)},
				{Tenant: "a", Since: epoch.Add(time.Minute)},
			}
			for i := 0; i < len(all); i += 251 { // among them some at the ends of segments
				filters = append(filters, history.Filter{Tenant: all[i].Name.Tenant, Key: all[i].Name.Key})
			}
			for _, f := range filters {
				var want []history.Entry
				for _, e := range all {
					if wanted(f, e) {
						want = append(want, e)
					}
				}
				slices.SortFunc(want, func(a, b history.Entry) int { return b.Place().Compare(a.Place()) })
				for _, page := range []int{1_000_000, 333} {
					got, gap := read(t, s, f, now, page)
					if gap != nil {
						t.Errorf("%+v: nothing was dropped, but %+v", f, *gap)
					}
					same := slices.EqualFunc(got, want, func(a, b history.Entry) bool {
						return a.Place() == b.Place() && a.Replica == b.Replica || a.Kind == b.Kind && !a.Kind.Attempt() && a.Name == b.Name && a.At.Equal(b.At)
					})
					if !same {
						t.Errorf("%+v by pages of %d: got %d entries, want these %d", f, page, len(got), len(want))
					}
				}
			}
			for _, w := range writing {
				_ = w.Close()
			}
		})
	}
}

// wanted reports in the plainest way whether a filter selects an entry.
func wanted(f history.Filter, e history.Entry) bool {
	return e.Name.Tenant == f.Tenant && (f.Key == "" || f.Key == e.Name.Key) &&
		len(e.Name.Key) >= len(f.Prefix) && e.Name.Key[:len(f.Prefix)] == f.Prefix &&
		(f.Kinds == nil || slices.Contains(f.Kinds, e.Kind)) && (f.Destination == "" || e.Destination == f.Destination) &&
		!e.At.Before(f.Since) && (f.Until.IsZero() || e.At.Before(f.Until))
}

// await waits until recent records have n entries.
func await(t *testing.T, s store.Records, now time.Time, n int) {
	t.Helper()
	for {
		records, err := s.Records(t.Context(), store.RecordFilter{Collection: "history-recent", Limit: 1000, Now: now})
		if err != nil {
			t.Fatal(err)
		}
		got := 0
		for _, r := range records {
			entries, _, err := history.DecodeSegment(r.Body)
			if err != nil {
				t.Fatal(err)
			}
			got += len(entries)
		}
		if got == n {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Readers find no entries beyond their retention, and the sweep removes these.
func TestWhatIsOldIsGone(t *testing.T) {
	s := memory.New()
	w := history.NewWriter(history.Config{Records: s, Policy: history.Policy{Keep: time.Hour}, Now: func() time.Time { return epoch }})
	entries := attempts(5000, epoch)
	w.RecordAll(entries...)
	_ = w.Close()
	last := entries[len(entries)-1].At
	f := history.Filter{Tenant: "acme"}
	if got, _ := read(t, s, f, last.Add(time.Hour-time.Millisecond), 1000); len(got) != 5000 {
		t.Errorf("before its time is over, %d are there", len(got))
	}
	if got, _ := read(t, s, f, last.Add(time.Hour), 1000); len(got) != 0 {
		t.Errorf("after its time is over, %d are there", len(got))
	}
	swept, err := s.Sweep(t.Context(), store.SweepParams{Now: last.Add(time.Hour), Again: time.Second, Limit: 1000})
	if err != nil || swept.Records < 5 {
		t.Errorf("swept %d records, %v", swept.Records, err)
	}
	if swept, err = s.Sweep(t.Context(), store.SweepParams{Now: last.Add(1000 * time.Hour), Again: time.Second, Limit: 1000}); swept.Records > 0 {
		t.Errorf("%d records outlive the others, %v", swept.Records, err)
	}
}

// flaky are records of a store that may be down.
type flaky struct {
	store.Store
	down   atomic.Bool
	writes atomic.Int64 // that are granted before it goes down for good, if it is not zero
}

func (s *flaky) WriteRecords(ctx context.Context, changes []store.RecordChange) []error {
	if s.writes.Load() > 0 && s.writes.Add(-1) == 0 {
		s.down.Store(true)
	}
	if s.down.Load() {
		return slices.Repeat([]error{fmt.Errorf("test: %w", store.ErrUnavailable)}, len(changes))
	}
	return s.Store.WriteRecords(ctx, changes)
}

// While the store is down, entries wait up to the bound, the others are dropped at once, and readers report the gap.
func TestDroppedWhileTheStoreIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &flaky{Store: memory.New()}
		s.down.Store(true)
		w := history.NewWriter(history.Config{Records: s, Policy: history.Policy{Keep: day}})
		begun := time.Now()
		recorded := 0
		for time.Since(begun) < time.Minute {
			w.RecordAll(attempts(1000, time.Now())...)
			recorded += 1000
			time.Sleep(time.Second)
		}
		back := time.Now()
		s.down.Store(false)
		time.Sleep(time.Minute)
		w.RecordAll(attempts(1, time.Now())...)
		time.Sleep(time.Second)
		got, gap := read(t, s, history.Filter{Tenant: "acme"}, time.Now(), 1_000_000)
		if len(got) < 20_000 || len(got) >= recorded {
			t.Errorf("%d of %d entries are there: what can be held is to be kept, and no more", len(got), recorded)
		}
		if gap == nil || gap.From.Before(begun) || gap.Until.After(back) || !gap.From.Before(gap.Until) {
			t.Errorf("the store was down from %v to %v; the gap is %+v", begun, back, gap)
		}
		for _, e := range got {
			if gap != nil && e.At.After(gap.From) && e.At.Before(gap.Until) && e.At.Before(back.Add(-time.Second)) {
				t.Fatalf("an entry of %v is there, in the gap", e.At)
			}
		}
		for name, f := range map[string]history.Filter{
			"before": {Tenant: "acme", Until: begun.Add(time.Second)}, "after": {Tenant: "acme", Since: back.Add(time.Second)},
		} {
			if _, gap := read(t, s, f, time.Now(), 1_000_000); gap != nil {
				t.Errorf("%s: it is told of a gap that does not concern it: %+v", name, gap)
			}
		}
		_ = w.Close()
		again, gapAgain := read(t, s, history.Filter{Tenant: "acme"}, time.Now(), 1_000_000)
		if len(again) != len(got) || gapAgain == nil || *gapAgain != *gap {
			t.Errorf("once the run is complete, %d entries of %d and %v are there", len(again), len(got), gapAgain)
		}
	})
}

// A replica that dies at any moment while it completes a run leaves each entry once.
func TestDyingWhileARunIsCompleted(t *testing.T) {
	for writes := int64(2); ; writes++ {
		s := &flaky{Store: memory.New()}
		w := history.NewWriter(history.Config{Records: s, Policy: history.Policy{Keep: day}, Now: func() time.Time { return epoch }})
		w.RecordAll(attempts(2000, epoch)...)
		await(t, s, epoch, 2000)
		s.writes.Store(writes)
		died := make(chan struct{})
		go func() { defer close(died); _ = w.Close() }()
		for !s.down.Load() {
			select {
			case <-died:
				return // it had as many writes as it wanted
			case <-time.After(time.Millisecond):
			}
		}
		got, _ := read(t, s.Store, history.Filter{Tenant: "acme"}, epoch, 1_000_000)
		if len(got) != 2000 {
			t.Errorf("after %d writes, %d entries of 2000 are there", writes, len(got))
		}
		s.down.Store(false)
		<-died
	}
}

// However slowly or quickly entries come, readers need few records to find one job's.
func TestFewRecords(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	for every, atOnce := range map[time.Duration]int{time.Minute: 1, time.Second: 1, 10 * time.Millisecond: 1, 2 * time.Second: 130} {
		synctest.Test(t, func(t *testing.T) {
			s := memory.New()
			w := history.NewWriter(history.Config{Records: s, Policy: history.Policy{Keep: day}})
			n := min(int(6*time.Hour/every), 10_000)
			if atOnce > 1 {
				n = 300 * atOnce
			}
			for some := range slices.Chunk(attempts(n, time.Now()), atOnce) {
				for i := range some {
					some[i].At = time.Now().Truncate(time.Millisecond)
				}
				w.RecordAll(some...)
				time.Sleep(every)
			}
			time.Sleep(time.Second)
			count := func(collection string) int {
				records, err := s.Records(t.Context(), store.RecordFilter{Collection: collection, Limit: 100_000, Now: time.Now()})
				if err != nil {
					t.Error(err)
				}
				return len(records)
			}
			recent, runs := count("history-recent"), count("history-runs")
			if recent > 256 || runs > 7 {
				t.Errorf("of %d entries, %d every %s, there are %d recent records and %d runs", n, atOnce, every, recent, runs)
			}
			if got, _ := read(t, s, history.Filter{Tenant: "acme"}, time.Now(), 1_000_000); len(got) != n {
				t.Errorf("%d of %d are there", len(got), n)
			}
			_ = w.Close()
		})
	}
}

// counted counts the records that are read by their keys.
type counted struct {
	store.Store
	records int
}

func (s *counted) Records(ctx context.Context, f store.RecordFilter) ([]store.Record, error) {
	s.records += len(f.Keys)
	return s.Store.Records(ctx, f)
}

// A reading of failures, of a prefix or of one job reads few segments, however many deliveries there are.
func TestFewSegmentsAreRead(t *testing.T) {
	s := &counted{Store: memory.New()}
	w := history.NewWriter(history.Config{Records: s, Policy: history.Policy{Keep: day}, Now: func() time.Time { return epoch }})
	w.RecordAll(attempts(20_000, epoch)...)
	_ = w.Close()
	for what, c := range map[string]struct {
		f    history.Filter
		most int
	}{
		"failures": {history.Filter{Tenant: "acme", Kinds: []history.Kind{history.Buried}}, 2},
		"a job":    {history.Filter{Tenant: "acme", Key: "order-01234567"}, 4},
		"a prefix": {history.Filter{Tenant: "acme", Prefix: "order-01"}, 5},
		"nobody":   {history.Filter{Tenant: "nobody"}, 4},
	} {
		s.records = 0
		if read(t, s, c.f, epoch, 1_000_000); s.records > c.most {
			t.Errorf("%s: %d segments are read; at most %d are needed", what, s.records, c.most)
		}
	}
}

// A reading that may look through few entries ends early, and the next ones find the rest: each entry once, also where
// the runs of several replicas overlap.
func TestFewEntriesAreLookedThrough(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	const runs, inEach = 40, 100
	for name, apart := range map[string]time.Duration{
		"one after the other": time.Hour, "overlapping": 20 * time.Millisecond, "at the same time": 0,
	} {
		t.Run(name, func(t *testing.T) {
			s := &counted{Store: memory.New()}
			now := epoch.Add(7 * day)
			for run := range runs {
				w := history.NewWriter(history.Config{Records: s, Policy: history.Policy{Keep: 365 * day}, Now: func() time.Time { return now }})
				entries := attempts(inEach, epoch.Add(time.Duration(run)*apart))
				for i := range entries {
					entries[i].Attempt = run*inEach + i // so that no two are the same
				}
				w.RecordAll(entries...)
				_ = w.Close()
			}
			failed := []history.Kind{history.Buried, history.Retried, history.Missed}
			for _, kinds := range [][]history.Kind{nil, failed} {
				f := history.Filter{Tenant: "acme", Kinds: kinds}
				want, _ := read(t, s, f, now, 1_000_000)
				f.Looks = 300
				got, _ := read(t, s, f, now, 333)
				if !slices.EqualFunc(got, want, func(a, b history.Entry) bool { return a.Place() == b.Place() }) {
					t.Errorf("%v: got %d entries, want these %d", kinds, len(got), len(want))
				}
			}
			s.records = 0
			reading, err := history.NewReader(s).Read(t.Context(), history.Filter{Tenant: "acme", Destination: "none", Looks: 300}, now)
			if err != nil {
				t.Fatal(err)
			}
			for range reading.All(t.Context()) {
				t.Error("nothing has been at that destination")
			}
			if reading.Next == nil || s.records > 40 {
				t.Errorf("%d of %d runs were read, and the next is at %v", s.records, runs, reading.Next)
			}
		})
	}
}

// Each of many jobs is found, wherever its entries are in a run.
func TestEachJobIsFound(t *testing.T) {
	s := memory.New()
	w := history.NewWriter(history.Config{Records: s, Policy: history.Policy{Keep: day}, Now: func() time.Time { return epoch }})
	entries := attempts(3000, epoch)
	w.RecordAll(entries...)
	_ = w.Close()
	for i := 0; i < len(entries); i += 7 {
		e := &entries[i]
		if got, _ := read(t, s, history.Filter{Tenant: e.Name.Tenant, Key: e.Name.Key}, epoch, 1000); len(got) != 1 {
			t.Errorf("%d entries of %s are found", len(got), e.Name)
		}
	}
}

// Nothing is kept of deliveries if only failures are wanted.
func TestFailuresOnly(t *testing.T) {
	s := memory.New()
	w := history.NewWriter(history.Config{Records: s, Policy: history.Policy{Keep: day, Failures: true}, Now: func() time.Time { return epoch }})
	entries := attempts(1000, epoch)
	failed := 0
	for _, e := range entries {
		if e.Kind != history.Delivered {
			failed++
		}
	}
	w.RecordAll(entries...)
	_ = w.Close()
	_ = w.Close()
	w.RecordAll(entries...) // too late
	if got, _ := read(t, s, history.Filter{Tenant: "acme"}, epoch, 1000); len(got) != failed || failed == 0 {
		t.Errorf("%d entries are kept of %d failures", len(got), failed)
	}
}
