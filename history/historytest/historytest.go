// Package historytest is the suite of history that every store passes, in addition to that of storetest: a reader finds
// the entries that a writer records.
package historytest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/history"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/storetest"
)

// Run runs the tests of the suite in parallel. NewStore is as for [storetest.Run].
func Run(t *testing.T, newStore func(t *testing.T) storetest.Opener) {
	t.Helper()
	for _, test := range []struct {
		name string
		run  func(f *fixture)
	}{
		{"history tells each entry once", testOnce},
		{"history tells what a dead replica may have lost", testDeadReplica},
		{"history is swept", testSweep},
		{"history is that of the reference store", testReference},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(&fixture{T: t, open: newStore(t)})
		})
	}
}

// epoch is the time at which the tests take place.
var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// keep is the retention of entries.
const keep = 30 * time.Minute

// fixture is one test on one fresh store.
type fixture struct {
	*testing.T
	open storetest.Opener
}

// handle opens a handle on the store.
func (f *fixture) handle() store.Store {
	f.Helper()
	s, err := f.open()
	f.must(err)
	f.Cleanup(func() { f.must(s.Close()) })
	return s
}

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// newWriter returns a writer of history to a store, at a time.
func newWriter(s store.Store, now time.Time) *history.Writer {
	return history.NewWriter(history.Config{
		Records: s, Policy: history.Policy{Keep: keep}, Now: func() time.Time { return now },
		PolicyOf: func(tenant string) history.Policy {
			if tenant == "acme" {
				return history.Policy{Keep: keep / 3, Failures: true}
			}
			return history.Policy{Keep: keep}
		},
	})
}

// told returns the selected entries as text, the newest first, and the gap in which some may be missing.
func (f *fixture) told(s store.Store, filter history.Filter, now time.Time) (all []string, gap *history.Gap) {
	f.Helper()
	reading, err := history.NewReader(s).Read(f.Context(), filter, now)
	f.must(err)
	for e, err := range reading.All(f.Context()) {
		f.must(err)
		all = append(all, fmt.Sprintf("%+v", e))
	}
	return all, reading.Gap
}

// makeEntries has many jobs with one entry, one job with many, of two tenants, some failed, and some changes.
func makeEntries(n int, replica string) (all []history.Entry) {
	for i := range n {
		at := epoch.Add(time.Duration(i*7919%n) * time.Millisecond)
		e := history.Entry{
			Name: job.Name{Tenant: job.DefaultTenant, Key: fmt.Sprintf("k-%d", i)}, At: at, Instant: at.Add(-time.Second),
			Position: i, Attempt: 1, Claimed: at, Took: time.Millisecond, Destination: "http example.com", Replica: replica,
		}
		switch {
		case i%3 == 0:
			e.Name.Key = "often"
		case i%5 == 0:
			e.Name.Tenant = "acme"
		}
		switch {
		case i%11 == 0:
			e.Kind, e.Status, e.Next = history.Retried, 503, at.Add(time.Minute)
		case i%17 == 0:
			e = history.Entry{
				Name: e.Name, Kind: history.Replaced, At: at, Request: fmt.Sprint(replica, i), Fields: []string{"schedule"},
			}
		}
		all = append(all, e)
	}
	return all
}

// pointers returns pointers to copies of entries.
func pointers(entries []history.Entry) []*history.Entry {
	all := make([]*history.Entry, len(entries))
	for i, e := range entries {
		all[i] = &e
	}
	return all
}

func testOnce(f *fixture) {
	var want []history.Entry
	handles := []store.Store{f.handle(), f.handle()}
	for replica, on := range handles {
		entries := makeEntries(1500, fmt.Sprint("r", replica))
		w := newWriter(on, epoch)
		w.Record(pointers(entries)...)
		f.must(w.Close())
		want = append(want, entries...)
	}
	filters := []history.Filter{
		{Tenant: job.DefaultTenant}, {Tenant: "acme"}, {Tenant: "nobody"}, {Tenant: job.DefaultTenant, Key: "often"},
		{Tenant: job.DefaultTenant, Key: "k-1"}, {Tenant: job.DefaultTenant, Key: "k-"},
		{Tenant: job.DefaultTenant, Prefix: "k-1"}, {Tenant: job.DefaultTenant, Kinds: []history.Kind{history.Retried}},
		{Tenant: job.DefaultTenant, Since: epoch.Add(500 * time.Millisecond), Until: epoch.Add(600 * time.Millisecond)},
	}
	for _, filter := range filters {
		var wanted []string
		for _, e := range want {
			if e.Name.Tenant == filter.Tenant && (filter.Key == "" || e.Name.Key == filter.Key) &&
				strings.HasPrefix(e.Name.Key, filter.Prefix) && (filter.Kinds == nil || slices.Contains(filter.Kinds, e.Kind)) &&
				!e.At.Before(filter.Since) && (filter.Until.IsZero() || e.At.Before(filter.Until)) &&
				(e.Name.Tenant != "acme" || e.Kind != history.Delivered) {
				wanted = append(wanted, fmt.Sprintf("%+v", e))
			}
		}
		got, gap := f.told(handles[0], filter, epoch.Add(2*time.Second))
		slices.Sort(wanted) // two replicas have entries of the same place
		slices.Sort(got)
		if gap != nil || !slices.Equal(got, wanted) {
			f.Errorf("%+v: got %d entries, want %d; gap %v", filter, len(got), len(wanted), gap)
		}
	}
}

func testDeadReplica(f *fixture) {
	entries := makeEntries(300, "r")
	w := newWriter(f.handle(), epoch)
	defer func() { f.must(w.Close()) }()
	w.Record(pointers(entries)...)
	filter := history.Filter{Tenant: job.DefaultTenant}
	n := 0
	for _, e := range entries {
		if e.Name.Tenant == filter.Tenant {
			n++
		}
	}
	other := f.handle()
	for {
		got, gap := f.told(other, filter, epoch.Add(time.Second))
		if gap != nil {
			f.Fatalf("it lives, but there is a gap: %v", gap)
		}
		if len(got) == n {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	got, gap := f.told(other, filter, epoch.Add(time.Minute)) // its clock has stopped, so it has not refreshed its record
	if len(got) != n || gap == nil || gap.From.After(epoch.Add(-time.Minute)) || gap.Until.Before(epoch) {
		f.Errorf("of %d entries %d are there; the gap is %v", n, len(got), gap)
	}
}

func testSweep(f *fixture) {
	s := f.handle()
	w := newWriter(s, epoch)
	w.Record(pointers(makeEntries(2000, "r"))...)
	f.must(w.Close())
	last := epoch.Add(1999 * time.Millisecond)
	for _, c := range []struct {
		tenant string
		kept   time.Duration
	}{{"acme", keep / 3}, {job.DefaultTenant, keep}} {
		for after, some := range map[time.Duration]bool{c.kept - time.Millisecond: true, c.kept: false} {
			if got, _ := f.told(s, history.Filter{Tenant: c.tenant}, last.Add(after)); len(got) > 0 != some {
				f.Errorf("after %s, %s has %d entries", after, c.tenant, len(got))
			}
		}
	}
	for more := true; more; {
		swept, err := s.Sweep(f.Context(), store.SweepParams{Now: last.Add(keep), Again: time.Second, Limit: 3})
		f.must(err)
		if more = swept.More; swept.Records > 3 {
			f.Errorf("%d records are swept at once", swept.Records)
		}
	}
	if got, _ := f.told(s, history.Filter{Tenant: job.DefaultTenant}, epoch); len(got) > 0 {
		f.Errorf("%d entries are left, even for who does not look at the expiry", len(got))
	}
}
