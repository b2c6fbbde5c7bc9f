package history_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/history"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/memory"
)

// Each tenant's entries are kept by its own policy, and the sweep removes the records of each in its time.
func TestTenantsHavePoliciesOfTheirOwn(t *testing.T) {
	policies := map[string]history.Policy{
		"short": {Keep: time.Minute}, "long": {Keep: 30 * day}, "failures": {Keep: day, Failures: true}, "none": {},
	}
	s := memory.New()
	w := history.NewWriter(history.Config{
		Records: s, Policy: history.Policy{Keep: time.Hour}, Now: func() time.Time { return epoch },
		PolicyOf: func(tenant string) history.Policy {
			if p, own := policies[tenant]; own {
				return p
			}
			return history.Policy{Keep: time.Hour}
		},
	})
	tenants := []string{"short", "long", "failures", "none", "usual"}
	const each = 1000
	entries := attempts(each*len(tenants), epoch)
	failed := 0
	for i := range entries {
		e := &entries[i]
		e.Name.Tenant, e.At, e.Next = tenants[i%len(tenants)], epoch, time.Time{}
		if e.Kind != history.Delivered && e.Name.Tenant == "failures" {
			failed++
		}
	}
	w.RecordAll(entries...)
	_ = w.Close()
	expect := func(after time.Duration, want map[string]int) {
		t.Helper()
		for _, tenant := range tenants {
			got, gap := read(t, s, history.Filter{Tenant: tenant}, epoch.Add(after), 1_000_000)
			if len(got) != want[tenant] || gap != nil {
				t.Errorf("after %s, %s has %d entries, want %d; gap %v", after, tenant, len(got), want[tenant], gap)
			}
		}
	}
	expect(0, map[string]int{"short": each, "long": each, "failures": failed, "usual": each})
	expect(time.Minute, map[string]int{"long": each, "failures": failed, "usual": each})
	expect(time.Hour, map[string]int{"long": each, "failures": failed})
	expect(day, map[string]int{"long": each})
	left := 0
	for _, after := range []time.Duration{time.Minute, time.Hour, day, 30 * day} {
		swept, err := s.Sweep(t.Context(), store.SweepParams{Now: epoch.Add(after), Again: time.Second, Limit: 1000})
		if err != nil || swept.Records == 0 {
			t.Errorf("after %s, %d records are swept, %v", after, swept.Records, err)
		}
		left += swept.Records
	}
	if all := count(t, s); all > 0 {
		t.Errorf("%d records of %d are left", all, left)
	}
}

// count returns the number of records of history.
func count(t *testing.T, s store.Store) (n int) {
	t.Helper()
	for _, collection := range []string{"history", "history-recent", "history-runs"} {
		records, err := s.Records(t.Context(), store.RecordFilter{Collection: collection, Limit: 100_000, Now: epoch})
		if err != nil {
			t.Fatal(err)
		}
		n += len(records)
	}
	return n
}

// Of a job with too many entries in an hour, the newest of each run are kept until the bound is reached. Its readers
// report the gap, and other jobs lose nothing. The count begins again with the next hour.
func TestNoJobFillsTheStore(t *testing.T) {
	s := memory.New()
	const most = 3000
	now := epoch
	greedy, modest := job.Name{Tenant: "acme", Key: "greedy"}, job.Name{Tenant: "acme", Key: "modest"}
	run := func() {
		w := history.NewBoundedWriter(history.Config{Records: s, Policy: history.Policy{Keep: day}, Now: func() time.Time { return now }}, most)
		for i := range 5000 {
			kind := history.Delivered
			if i%10 == 0 {
				kind = history.Retried
			}
			e := history.Entry{Name: greedy, Kind: kind, At: now.Add(time.Duration(i) * time.Millisecond), Instant: now, Position: i, Attempt: 1, Claimed: now}
			w.RecordAll(e)
			if e.Name = modest; i%2 == 0 {
				w.RecordAll(e)
			}
		}
		_ = w.Close()
	}
	run()
	got, gap := read(t, s, history.Filter{Tenant: "acme", Key: "greedy"}, now, 10_000)
	delivered := slices.DeleteFunc(slices.Clone(got), func(e history.Entry) bool { return e.Kind != history.Delivered })
	if len(delivered) != most || len(got) != most+500 {
		t.Errorf("%d deliveries and %d others are kept", len(delivered), len(got)-len(delivered))
	}
	oldest := delivered[len(delivered)-1]
	if gap == nil || !gap.From.Equal(now.Add(time.Millisecond)) || !gap.Until.Before(oldest.At) {
		t.Errorf("from %s on all is there; the gap is %v", oldest.At, gap)
	}
	for name, f := range map[string]history.Filter{
		"another job":      {Tenant: "acme", Key: "modest"},
		"another class":    {Tenant: "acme", Key: "greedy", Kinds: []history.Kind{history.Retried}},
		"another prefix":   {Tenant: "acme", Prefix: "m"},
		"a later time":     {Tenant: "acme", Key: "greedy", Since: oldest.At},
		"the failures too": {Tenant: "acme", Kinds: []history.Kind{history.Retried}},
	} {
		if _, gap := read(t, s, f, now, 10_000); gap != nil {
			t.Errorf("%s: nothing is missing, but %v", name, gap)
		}
	}
	if got, _ := read(t, s, history.Filter{Tenant: "acme", Key: "modest"}, now, 10_000); len(got) != 2500 {
		t.Errorf("the other job has %d entries", len(got))
	}
	if _, gap := read(t, s, history.Filter{Tenant: "acme"}, now, 10_000); gap == nil {
		t.Error("readers of all jobs are not told")
	}
}

// The bound holds over all runs of an hour, and the count begins again with the next hour.
func TestTheBoundIsForAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		const most = 5000
		w := history.NewBoundedWriter(history.Config{Records: s, Policy: history.Policy{Keep: day}}, most)
		until := func(end time.Time) (n int) { // 5 a second; a run is an hour
			for ; time.Now().Before(end); time.Sleep(time.Minute) {
				for i := range 300 {
					w.RecordAll(history.Entry{Name: job.Name{Tenant: "acme", Key: "k"}, At: time.Now(), Instant: time.Now(), Position: i, Attempt: 1, Claimed: time.Now()})
				}
				n += 300
			}
			return n
		}
		n := until(time.Now().Add(3 * time.Hour))
		_ = w.Close()
		got, gap := read(t, s, history.Filter{Tenant: "acme"}, time.Now(), 1_000_000)
		if len(got) > 4*most || len(got) < 2*most || gap == nil {
			t.Errorf("of %d entries in three hours, %d are kept; the bound is %d in an hour; gap %v", n, len(got), most, gap)
		}
	})
}

// dead are records of a replica that dies: from some moment on, nothing reaches the store.
type dead struct {
	store.Store
	now atomic.Bool
}

func (s *dead) WriteRecords(ctx context.Context, changes []store.RecordChange) []error {
	if s.now.Load() {
		<-ctx.Done()
		return slices.Repeat([]error{fmt.Errorf("test: %w", store.ErrUnavailable)}, len(changes))
	}
	return s.Store.WriteRecords(ctx, changes)
}

// When a replica has died, readers report a gap, and all missing entries are within it. A live replica without entries
// is never taken for dead; nor is one that was stopped.
func TestWhatADeadReplicaHadIsSaidToBeUnknown(t *testing.T) {
	for name, idle := range map[string]time.Duration{"busy": 0, "idle": 20 * time.Minute, "for hours": 3 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memory.New()
				read := func() ([]history.Entry, *history.Gap) {
					return read(t, s, history.Filter{Tenant: "acme"}, time.Now(), 1_000_000)
				}
				living := history.NewWriter(history.Config{Records: s, Policy: history.Policy{Keep: 48 * time.Hour}})
				stopped := history.NewWriter(history.Config{Records: s, Policy: history.Policy{Keep: 48 * time.Hour}})
				stopped.RecordAll(attempts(10, time.Now())...)
				_ = stopped.Close()
				its := &dead{Store: s}
				w := history.NewWriter(history.Config{Records: its, Policy: history.Policy{Keep: 48 * time.Hour}, Reach: 2 * time.Minute})
				if name != "for hours" {
					w.RecordAll(attempts(100, time.Now())...)
				}
				time.Sleep(time.Second + idle)
				there, gap := read()
				if gap != nil {
					t.Errorf("all replicas live, but there is a gap: %v", *gap)
				}
				lost := attempts(100, time.Now().Add(-100*time.Second))
				w.RecordAll(lost...) // a callback may take that long
				its.now.Store(true)
				died := time.Now()
				time.Sleep(history.DeadTime + 15*time.Second)
				got, gap := read()
				if len(got) != len(there) {
					t.Errorf("%d entries of %d are there", len(got), len(there))
				}
				if gap == nil || gap.From.After(lost[0].At) || gap.Until.Before(died) {
					t.Fatalf("it died at %s; the gap is %v", died, gap)
				}
				if width := gap.Until.Sub(gap.From); width > 3*time.Minute {
					t.Errorf("the gap is %s wide", width)
				}
				time.Sleep(3 * time.Hour)
				if _, again := read(); again == nil || *again != *gap {
					t.Errorf("hours later the gap is %v, not %v", again, gap)
				}
				its.now.Store(false)
				_ = w.Close()
				_ = living.Close()
				if got, gap := read(); len(got) != len(there)+len(lost) || gap != nil {
					t.Errorf("it had only been slow, and all %d entries are there; gap %v", len(got), gap)
				}
			})
		})
	}
}
