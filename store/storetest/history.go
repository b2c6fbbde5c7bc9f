package storetest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"pgregory.net/rapid"

	"github.com/carillon-scheduler/carillon/history"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

var historyTests = []namedTest{
	{"history tells each entry once", testHistory},
	{"history tells what a dead replica may have lost", testHistoryOfADeadReplica},
	{"history is swept", testSweepHistory},
}

// historyKeep is how long entries are kept.
const historyKeep = 30 * time.Minute

// historyWriter writes history to a store, at a time.
func historyWriter(s store.Store, now time.Time) *history.Writer {
	return history.NewWriter(history.Config{
		Records: s, Policy: history.Policy{Keep: historyKeep}, Now: func() time.Time { return now },
		PolicyOf: func(tenant string) history.Policy {
			if tenant == "acme" {
				return history.Policy{Keep: historyKeep / 3, Failures: true}
			}
			return history.Policy{Keep: historyKeep}
		},
	})
}

// told reads what a filter selects, the newest first, as text; and whether some may be missing.
func told(f *fixture, s store.Store, filter history.Filter, now time.Time) (all []string, gap *history.Gap) {
	f.Helper()
	reading, err := history.NewReader(s).Read(f.Context(), filter, now)
	f.must(err)
	for e, err := range reading.All(f.Context()) {
		f.must(err)
		all = append(all, fmt.Sprintf("%+v", e))
	}
	return all, reading.Gap
}

// historyEntries has many jobs with one entry, one job with many, of two tenants, some failed, and some changes.
func historyEntries(n int, replica string) (all []history.Entry) {
	for i := range n {
		at := epoch.Add(time.Duration(i*7919%n) * time.Millisecond)
		e := history.Entry{
			Name: name(fmt.Sprintf("k-%d", i)), At: at, Instant: at.Add(-time.Second), Position: i, Attempt: 1, Claimed: at,
			Took: time.Millisecond, Destination: "http example.com", Replica: replica,
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
			e = history.Entry{Name: e.Name, Kind: history.Replaced, At: at, Request: fmt.Sprint(replica, i), Fields: []string{"schedule"}}
		}
		all = append(all, e)
	}
	return all
}

// pointers are those of copies of entries.
func pointers(entries []history.Entry) []*history.Entry {
	all := make([]*history.Entry, len(entries))
	for i, e := range entries {
		all[i] = &e
	}
	return all
}

func testHistory(f *fixture) {
	var want []history.Entry
	for replica, on := range []store.Store{f.store(), f.second()} {
		entries := historyEntries(1500, fmt.Sprint("r", replica))
		w := historyWriter(on, epoch)
		w.Record(pointers(entries)...)
		f.must(w.Close())
		want = append(want, entries...)
	}
	filters := []history.Filter{
		{Tenant: job.DefaultTenant}, {Tenant: "acme"}, {Tenant: "nobody"}, {Tenant: job.DefaultTenant, Key: "often"},
		{Tenant: job.DefaultTenant, Key: "k-1"}, {Tenant: job.DefaultTenant, Key: "k-"}, {Tenant: job.DefaultTenant, Prefix: "k-1"},
		{Tenant: job.DefaultTenant, Kinds: []history.Kind{history.Retried}},
		{Tenant: job.DefaultTenant, Since: epoch.Add(500 * time.Millisecond), Until: epoch.Add(600 * time.Millisecond)},
	}
	for _, filter := range filters {
		var wanted []history.Entry
		for _, e := range want {
			if e.Name.Tenant == filter.Tenant && (filter.Key == "" || e.Name.Key == filter.Key) &&
				strings.HasPrefix(e.Name.Key, filter.Prefix) && (filter.Kinds == nil || slices.Contains(filter.Kinds, e.Kind)) &&
				!e.At.Before(filter.Since) && (filter.Until.IsZero() || e.At.Before(filter.Until)) &&
				(e.Name.Tenant != "acme" || e.Kind != history.Delivered) {
				wanted = append(wanted, e)
			}
		}
		slices.SortFunc(wanted, func(a, b history.Entry) int {
			if order := b.Place().Compare(a.Place()); order != 0 {
				return order
			}
			return strings.Compare(a.Replica, b.Replica)
		})
		texts := make([]string, len(wanted))
		for i, e := range wanted {
			texts[i] = fmt.Sprintf("%+v", e)
		}
		got, gap := told(f, f.store(), filter, epoch.Add(2*time.Second))
		slices.Sort(texts) // two replicas have entries of the same place
		slices.Sort(got)
		if gap != nil || !slices.Equal(got, texts) {
			f.Errorf("%+v: got %d entries, want %d; gap %v", filter, len(got), len(texts), gap)
		}
	}
}

func testHistoryOfADeadReplica(f *fixture) {
	entries := historyEntries(300, "r")
	w := historyWriter(f.store(), epoch)
	defer func() { f.must(w.Close()) }()
	w.Record(pointers(entries)...)
	filter := history.Filter{Tenant: job.DefaultTenant}
	n := 0
	for _, e := range entries {
		if e.Name.Tenant == filter.Tenant {
			n++
		}
	}
	for {
		got, gap := told(f, f.second(), filter, epoch.Add(time.Second))
		if gap != nil {
			f.Fatalf("it lives, but there is a gap: %v", gap)
		}
		if len(got) == n {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	got, gap := told(f, f.second(), filter, epoch.Add(time.Minute)) // its clock has stopped, so it has not told since
	if len(got) != n || gap == nil || gap.From.After(epoch.Add(-time.Minute)) || gap.Until.Before(epoch) {
		f.Errorf("of %d entries %d are there; the gap is %v", n, len(got), gap)
	}
}

func testSweepHistory(f *fixture) {
	w := historyWriter(f.store(), epoch)
	entries := historyEntries(2000, "r")
	w.Record(pointers(entries)...)
	f.must(w.Close())
	last := epoch.Add(1999 * time.Millisecond)
	for _, c := range []struct {
		tenant string
		kept   time.Duration
	}{{"acme", historyKeep / 3}, {job.DefaultTenant, historyKeep}} {
		for after, some := range map[time.Duration]bool{c.kept - time.Millisecond: true, c.kept: false} {
			if got, _ := told(f, f.store(), history.Filter{Tenant: c.tenant}, last.Add(after)); len(got) > 0 != some {
				f.Errorf("after %s, %s has %d entries", after, c.tenant, len(got))
			}
		}
	}
	for more := true; more; {
		swept, err := f.store().Sweep(f.Context(), store.SweepParams{Now: last.Add(historyKeep), Again: time.Second, Limit: 3})
		f.must(err)
		if more = swept.More; swept.Records > 3 {
			f.Errorf("%d records are swept at once", swept.Records)
		}
	}
	if got, _ := told(f, f.store(), history.Filter{Tenant: job.DefaultTenant}, epoch); len(got) > 0 {
		f.Errorf("%d entries are left, even for who does not look at the expiry", len(got))
	}
}

// recordHistory records some entries in both stores, and compares the answers to a question.
func (d *differential) recordHistory() {
	var entries []history.Entry
	for range draw(d, "entries", rapid.IntRange(0, 4)) {
		d.serial++
		at := d.now.Add(-oneOf(d, "ago", 0, time.Second, time.Hour))
		e := history.Entry{
			Name: d.name(), At: at, Kind: oneOf(d, "kind", history.Kinds()...), Request: fmt.Sprint(d.serial),
		}
		if e.Kind.Attempt() {
			e.Instant, e.Attempt, e.Claimed, e.Error, e.Request = at, int(d.serial), at, oneOf(d, "error", "", "hung up"), "" //nolint:gosec // it is small
		}
		entries = append(entries, e)
	}
	filter := history.Filter{
		Tenant: oneOf(d, "of", job.DefaultTenant, "acme"), Key: oneOf(d, "key", "", "a"),
		Kinds: oneOf(d, "kinds", nil, []history.Kind{history.Delivered}, []history.Kind{history.Buried, history.Created}),
		Since: oneOf(d, "since", time.Time{}, d.now.Add(-time.Minute)),
	}
	want, got := both(d, "reading history", func(s store.Store) (all []history.Entry, err error) {
		w := historyWriter(s, d.now)
		w.Record(pointers(entries)...)
		if err := w.Close(); err != nil {
			return nil, err
		}
		reading, err := history.NewReader(s).Read(d.ctx, filter, d.now)
		if err != nil {
			return nil, err
		}
		for e, err := range reading.All(d.ctx) {
			if err != nil {
				return nil, err
			}
			all = append(all, e)
		}
		return all, nil
	})
	same(d, "history", got, want)
}
