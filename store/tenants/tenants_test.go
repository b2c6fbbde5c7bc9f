package tenants_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/sqlite"
	"github.com/carillon-scheduler/carillon/store/tenants"
)

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// everySetting has a distinct value for each setting.
var everySetting = job.TenantSettings{Weight: 2.5, Priority: job.PriorityLow, MaxInFlight: 7, Paused: true}

// bench is one store, and two replicas of it.
type bench struct {
	*testing.T
	store           store.Store
	tenants, second *tenants.Tenants
}

func newBench(t *testing.T) *bench {
	t.Helper()
	s, err := sqlite.Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "carillon.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return &bench{t, s, tenants.New(s), tenants.New(s)}
}

func (b *bench) meet(want int, all ...job.Tenant) {
	b.Helper()
	if n, err := b.tenants.Meet(b.Context(), all); err != nil || n != want {
		b.Errorf("%d tenants were not known, %v; want %d", n, err, want)
	}
}

func (b *bench) set(name string, s job.TenantSettings, now time.Time) {
	b.Helper()
	if err := b.tenants.Set(b.Context(), name, s, now); err != nil {
		b.Error(err)
	}
}

// expect expects a tenant to be read by the second replica.
func (b *bench) expect(what string, want job.Tenant) {
	b.Helper()
	if got, err := b.second.Tenant(b.Context(), want.Name); err != nil || got != want {
		b.Errorf("%s: the tenant is %+v, %v; want %+v", what, got, err, want)
	}
}

func (b *bench) expectUnknown(what, name string) {
	b.Helper()
	if got, err := b.second.Tenant(b.Context(), name); !errors.Is(err, store.ErrNotFound) {
		b.Errorf("%s: the tenant is %+v, %v; want none", what, got, err)
	}
}

func expectEach[T comparable](t *testing.T, what string, got []T, err error, want ...T) {
	t.Helper()
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%s: got %+v, %v; want %+v", what, got, err, want)
	}
}

func TestMeet(t *testing.T) {
	b := newBench(t)
	b.expectUnknown("before it is met", "acme")
	b.meet(0)
	acme := job.Tenant{Name: "acme", FirstSeen: epoch}
	b.meet(1, acme)
	b.expect("met", acme)
	imported := job.Tenant{Name: "imported", FirstSeen: epoch.Add(-time.Hour), Settings: everySetting}
	b.meet(1, job.Tenant{Name: "acme", FirstSeen: epoch.Add(time.Hour), Settings: everySetting}, imported)
	b.expect("met again", acme)
	b.expect("met with settings", imported)
	b.meet(1, job.Tenant{Name: "twice", FirstSeen: epoch}, job.Tenant{Name: "twice", FirstSeen: epoch.Add(time.Second), Settings: everySetting}, imported)
	b.expect("met twice at once", job.Tenant{Name: "twice", FirstSeen: epoch})
	b.expectUnknown("of another case", "Acme")
	old := job.Tenant{Name: "old", FirstSeen: time.Date(1900, 1, 1, 0, 0, 0, 0, time.UTC)}
	b.meet(1, old)
	b.expect("before 1970", old)
}

// A tenant that one replica has met is known to another replica, which has not met it.
func TestMeetBesideAnother(t *testing.T) {
	b := newBench(t)
	b.meet(1, job.Tenant{Name: "acme", FirstSeen: epoch})
	if !b.tenants.Met("acme") || b.second.Met("acme") {
		t.Error("a tenant is remembered by replicas that have met it")
	}
	n, err := b.second.Meet(t.Context(), []job.Tenant{{Name: "acme", FirstSeen: epoch.Add(time.Second), Settings: everySetting}})
	if n != 0 || err != nil {
		t.Errorf("%d were not known, %v", n, err)
	}
	if !b.second.Met("acme") {
		t.Error("it is not remembered")
	}
	b.expect("met by both", job.Tenant{Name: "acme", FirstSeen: epoch})
}

func TestSet(t *testing.T) {
	b := newBench(t)
	b.set("acme", everySetting, epoch)
	b.expect("set", job.Tenant{Name: "acme", FirstSeen: epoch, Settings: everySetting})
	for _, s := range []job.TenantSettings{{Weight: 0.001}, {Priority: job.PriorityHigh}, {MaxInFlight: 1}, {Paused: true}, {}} {
		b.set("acme", s, epoch.Add(time.Hour))
		b.expect("set again", job.Tenant{Name: "acme", FirstSeen: epoch, Settings: s})
	}
	b.meet(1, job.Tenant{Name: "other", FirstSeen: epoch})
	b.set("other", everySetting, epoch.Add(-time.Hour))
	b.expect("set once it was met", job.Tenant{Name: "other", FirstSeen: epoch, Settings: everySetting})
	b.expect("beside", job.Tenant{Name: "acme", FirstSeen: epoch})
}

func TestSetRace(t *testing.T) {
	b := newBench(t)
	var settings []job.TenantSettings
	var group sync.WaitGroup
	for i := range 8 {
		s := job.TenantSettings{Weight: float64(i + 1), MaxInFlight: i + 1}
		settings = append(settings, s)
		replica := tenants.New(b.store)
		group.Go(func() {
			if err := replica.Set(t.Context(), "acme", s, epoch); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	got, err := b.second.Tenant(t.Context(), "acme")
	if err != nil || !slices.Contains(settings, got.Settings) {
		t.Errorf("the tenant is %+v, %v: these are nobody's settings", got, err)
	}
	all, err := b.second.List(t.Context(), "", 10)
	expectEach(t, "listed", all, err, got)
}

func TestList(t *testing.T) {
	b := newBench(t)
	got, err := b.second.List(t.Context(), "", 10)
	expectEach(t, "of an empty store", got, err)
	var all []job.Tenant
	for i, name := range []string{"-", ".", "0", "A", "B", "_", "a", "a-b", "a.b", "ab", "b"} { // sorted by their bytes
		tenant := job.Tenant{Name: name, FirstSeen: epoch.Add(time.Duration(i) * time.Second)}
		if i%2 == 0 {
			tenant.Settings = everySetting
		}
		all = append(all, tenant)
	}
	backwards := slices.Clone(all)
	slices.Reverse(backwards)
	b.meet(len(all), backwards...)
	for _, limit := range []int{1, 3, len(all), 1000} {
		var got []job.Tenant
		for after := ""; ; {
			page, err := b.second.List(t.Context(), after, limit)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, page...)
			if len(page) < limit || len(got) > len(all) {
				break
			}
			after = page[len(page)-1].Name
		}
		expectEach(t, fmt.Sprintf("by pages of %d", limit), got, nil, all...)
	}
	got, err = b.second.List(t.Context(), "aa", 1)
	expectEach(t, "after an unknown one", got, err, all[9])
}

// Settings lists only tenants with settings of their own, at a cost that follows their number.
func TestSettings(t *testing.T) {
	b := newBench(t)
	pages := func(limit int) (all []tenants.Settings) {
		t.Helper()
		for after := ""; ; {
			page, err := b.second.Settings(t.Context(), after, limit)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, page...)
			if len(page) < limit {
				return all
			}
			after = page[len(page)-1].Tenant
		}
	}
	expectEach(t, "of an empty store", pages(2), nil)
	var want []tenants.Settings
	for i := range 12 {
		name := fmt.Sprintf("t%02d", i)
		b.meet(1, job.Tenant{Name: name, FirstSeen: epoch})
		if i%3 == 0 {
			b.set(name, everySetting, epoch)
			want = append(want, tenants.Settings{Tenant: name, TenantSettings: everySetting})
		}
	}
	b.meet(1, job.Tenant{Name: "t99", FirstSeen: epoch, Settings: everySetting})
	want = append(want, tenants.Settings{Tenant: "t99", TenantSettings: everySetting})
	for _, limit := range []int{1, 2, 5, 100} {
		expectEach(t, "with settings", pages(limit), nil, want...)
	}
	for i, at := range []int{0, 2} { // tenants with default settings are no longer listed
		b.set(want[at-i].Tenant, job.TenantSettings{}, epoch)
		want = slices.Delete(want, at-i, at-i+1)
	}
	counted := &countingRecords{Store: b.store}
	b.second = tenants.New(counted)
	for _, limit := range []int{1, 2, 3, 100} {
		counted.read = 0
		expectEach(t, "still with settings", pages(limit), nil, want...)
		if counted.read != len(want) {
			t.Errorf("%d records were read for %d tenants with settings", counted.read, len(want))
		}
	}
}

// countingRecords counts the records that are read.
type countingRecords struct {
	store.Store
	read int
}

func (c *countingRecords) Records(ctx context.Context, f store.RecordFilter) ([]store.Record, error) {
	page, err := c.Store.Records(ctx, f)
	c.read += len(page)
	return page, err
}

func TestNamed(t *testing.T) {
	b := newBench(t)
	got, err := b.second.Named(t.Context(), []string{"a"})
	expectEach(t, "of an empty store", got, err)
	all := []job.Tenant{{Name: "a", FirstSeen: epoch}, {Name: "b", FirstSeen: epoch, Settings: everySetting}, {Name: "c", FirstSeen: epoch}}
	b.meet(3, all...)
	got, err = b.second.Named(t.Context(), []string{"c", "nobody", "b"})
	expectEach(t, "some", got, err, all[1], all[2])
	got, err = b.second.Named(t.Context(), nil)
	expectEach(t, "none", got, err)
	byName, err := b.second.ByName(t.Context(), []string{"c", "nobody", "b", "b"})
	if err != nil || !maps.Equal(byName, map[string]job.Tenant{"b": all[1], "c": all[2], "nobody": {Name: "nobody"}}) {
		t.Errorf("by name %+v, %v", byName, err)
	}
	seen, err := b.second.FirstSeen(t.Context(), []string{"c", "nobody", "b"})
	if err != nil || len(seen) != 2 || !seen["b"].Equal(epoch) || !seen["c"].Equal(epoch) {
		t.Errorf("first seen %v, %v", seen, err)
	}
	seen, err = b.second.FirstSeen(t.Context(), nil)
	if err != nil || len(seen) != 0 {
		t.Errorf("of none, first seen %v, %v", seen, err)
	}
}

// A tenant with jobs that was never met is unknown. A known tenant outlives its jobs.
func TestTenantsAreApartFromJobs(t *testing.T) {
	b := newBench(t)
	n, r := job.Name{Tenant: "acme", Key: "k"}, job.NewRevision(epoch)
	j := job.Job{
		Name: n, Revision: r, Version: r, CreatedAt: epoch, UpdatedAt: epoch, ExpiresAt: epoch,
		Callback: job.Callback{Type: "http", Data: []byte("{}")}, Schedule: job.Schedule{Instants: []time.Time{epoch}},
	}
	if err := b.store.Put(t.Context(), []store.Put{{Job: j, Now: epoch}})[0].Err; err != nil {
		t.Fatal(err)
	}
	b.expectUnknown("with a job", "acme")
	b.set("acme", everySetting, epoch)
	if _, err := b.store.Cancel(t.Context(), []job.Name{n}, store.Asked{Now: epoch}); err != nil {
		t.Fatal(err)
	}
	b.expect("without its job", job.Tenant{Name: "acme", FirstSeen: epoch, Settings: everySetting})
}

func TestUnavailable(t *testing.T) {
	b := newBench(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	acme := job.Tenant{Name: "acme", FirstSeen: epoch}
	_, meetErr := b.tenants.Meet(ended, []job.Tenant{acme})
	acme.Settings = everySetting
	_, settledErr := b.tenants.Meet(ended, []job.Tenant{acme})
	_, readErr := b.tenants.Tenant(ended, "acme")
	_, listErr := b.tenants.List(ended, "", 1)
	_, namedErr := b.tenants.Named(ended, []string{"acme"})
	_, settingsErr := b.tenants.Settings(ended, "", 1)
	_, seenErr := b.tenants.FirstSeen(ended, []string{"acme"})
	for what, err := range map[string]error{
		"meet": meetErr, "meet with settings": settledErr, "set": b.tenants.Set(ended, "acme", everySetting, epoch), "read": readErr,
		"list": listErr, "named": namedErr, "settings": settingsErr, "first seen": seenErr,
	} {
		if !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s answers %v", what, err)
		}
	}
	if b.tenants.Met("acme") {
		t.Error("it is remembered, though it was not inserted")
	}
	b.expectUnknown("after all failed", "acme")
}

// Repeating an interrupted insertion of tenants with settings completes it.
func TestMeetBrokenOff(t *testing.T) {
	all := []job.Tenant{{Name: "a", FirstSeen: epoch, Settings: everySetting}, {Name: "b", FirstSeen: epoch}}
	for writes := range 3 {
		b := newBench(t)
		b.tenants = tenants.New(&breakingRecords{Store: b.store, left: writes})
		if _, err := b.tenants.Meet(t.Context(), all); (err == nil) != (writes == 2) {
			t.Errorf("after %d writes, it answers %v", writes, err)
		}
		b.tenants = b.second
		if _, err := b.tenants.Meet(t.Context(), all); err != nil {
			t.Error(err)
		}
		got, err := tenants.New(b.store).List(t.Context(), "", 10)
		expectEach(t, fmt.Sprintf("after %d writes", writes), got, err, all...)
	}
}

// breakingRecords fail after some writes.
type breakingRecords struct {
	store.Store
	left int
}

func (r *breakingRecords) WriteRecords(ctx context.Context, changes []store.RecordChange) []error {
	if r.left == 0 {
		return slices.Repeat([]error{store.ErrUnavailable}, len(changes))
	}
	r.left--
	return r.Store.WriteRecords(ctx, changes)
}

// The number of remembered tenants is bounded.
func TestMetIsBounded(t *testing.T) {
	const n = 250_000
	all := tenants.New(&takingRecords{})
	for i := 0; i < n; i += 500 {
		var some []job.Tenant
		for k := range 500 {
			some = append(some, job.Tenant{Name: strconv.Itoa(i + k), FirstSeen: epoch})
		}
		if _, err := all.Meet(t.Context(), some); err != nil {
			t.Fatal(err)
		}
	}
	met := 0
	for i := range n {
		if all.Met(strconv.Itoa(i)) {
			met++
		}
	}
	if met == 0 || met > 100_000 || !all.Met(strconv.Itoa(n-1)) {
		t.Errorf("%d are remembered", met)
	}
}

// takingRecords take every change and keep none.
type takingRecords struct{ store.Store }

func (takingRecords) WriteRecords(_ context.Context, changes []store.RecordChange) []error {
	return make([]error, len(changes))
}
