package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

var tenantTests = []namedTest{
	{"a tenant is met once", testMeetTenants},
	{"a tenant's settings are replaced whole", testSetTenant},
	{"racing settings of a tenant", testSetTenantRace},
	{"tenants are listed page by page", testListTenants},
	{"tenants that have settings are listed without the others", testListSetTenants},
	{"tenants are listed by their names", testListTenantsByName},
	{"a tenant is no job", testTenantApart},
	{"tenants with an ended context", testTenantsEnded},
	{"lanes are counted up to a limit", testCountLanes},
	{"lanes are counted in many and in none", testCountManyLanes},
}

// every setting has a value of its own.
var everySetting = job.TenantSettings{Weight: 2.5, Priority: job.PriorityLow, MaxInFlight: 7, Paused: true}

func (f *fixture) meet(want int, tenants ...job.Tenant) {
	f.Helper()
	n, err := f.store().MeetTenants(f.Context(), tenants)
	f.must(err)
	expect(f, "tenants that were not known", n, want)
}

// expectTenant reads a tenant by way of another handle.
func (f *fixture) expectTenant(what string, want job.Tenant) {
	f.Helper()
	got, err := f.second().Tenant(f.Context(), want.Name)
	f.must(err)
	expect(f, what, got, want)
}

func testMeetTenants(f *fixture) {
	_, err := f.store().Tenant(f.Context(), "acme")
	expect(f, "one that nobody has met is not found", errors.Is(err, store.ErrNotFound), true)
	f.meet(0)
	f.meet(1, job.Tenant{Name: "acme", FirstSeen: epoch})
	f.expectTenant("met", job.Tenant{Name: "acme", FirstSeen: epoch})
	imported := job.Tenant{Name: "imported", FirstSeen: epoch.Add(-time.Hour), Settings: everySetting}
	f.meet(1, job.Tenant{Name: "acme", FirstSeen: epoch.Add(time.Hour), Settings: everySetting}, imported)
	f.expectTenant("met again", job.Tenant{Name: "acme", FirstSeen: epoch})
	f.expectTenant("met with settings", imported)
	f.meet(1, job.Tenant{Name: "twice", FirstSeen: epoch}, job.Tenant{Name: "twice", FirstSeen: epoch.Add(time.Second)}, imported)
	f.expectTenant("met twice at once", job.Tenant{Name: "twice", FirstSeen: epoch})
	_, err = f.store().Tenant(f.Context(), "Acme")
	expect(f, "one of another case is not found", errors.Is(err, store.ErrNotFound), true)
}

func testSetTenant(f *fixture) {
	set := func(t job.Tenant) {
		f.Helper()
		f.must(f.store().SetTenant(f.Context(), t))
	}
	set(job.Tenant{Name: "acme", FirstSeen: epoch, Settings: everySetting})
	f.expectTenant("set", job.Tenant{Name: "acme", FirstSeen: epoch, Settings: everySetting})
	for _, s := range []job.TenantSettings{{Weight: 0.001}, {Priority: job.PriorityHigh}, {MaxInFlight: 1}, {Paused: true}, {}} {
		set(job.Tenant{Name: "acme", FirstSeen: epoch.Add(time.Hour), Settings: s})
		f.expectTenant("set again", job.Tenant{Name: "acme", FirstSeen: epoch, Settings: s})
	}
	f.meet(1, job.Tenant{Name: "other", FirstSeen: epoch})
	set(job.Tenant{Name: "other", FirstSeen: epoch.Add(-time.Hour), Settings: everySetting})
	f.expectTenant("set once it was met", job.Tenant{Name: "other", FirstSeen: epoch, Settings: everySetting})
	f.expectTenant("beside", job.Tenant{Name: "acme", FirstSeen: epoch})
}

func testSetTenantRace(f *fixture) {
	var settings []job.TenantSettings
	var group sync.WaitGroup
	for i := range 8 {
		s := job.TenantSettings{Weight: float64(i + 1), MaxInFlight: i + 1}
		settings = append(settings, s)
		handle := f.handle()
		group.Go(func() {
			t := job.Tenant{Name: "acme", FirstSeen: epoch, Settings: s}
			if _, err := handle.MeetTenants(f.Context(), []job.Tenant{{Name: "acme", FirstSeen: epoch}}); err != nil {
				f.Error(err)
			}
			if err := handle.SetTenant(f.Context(), t); err != nil {
				f.Error(err)
			}
		})
	}
	group.Wait()
	got, err := f.store().Tenant(f.Context(), "acme")
	f.must(err)
	expect(f, "one's settings are left", slices.Contains(settings, got.Settings), true)
}

func testListTenants(f *fixture) {
	list := func(filter store.TenantFilter) []job.Tenant {
		f.Helper()
		page, err := f.second().Tenants(f.Context(), filter)
		f.must(err)
		return page
	}
	expect(f, "tenants of an empty store", len(list(store.TenantFilter{Limit: 10})), 0)
	var all []job.Tenant
	for i, name := range []string{"-", ".", "0", "A", "B", "_", "a", "a-b", "a.b", "ab", "b"} { // in the order of their bytes
		t := job.Tenant{Name: name, FirstSeen: epoch.Add(time.Duration(i) * time.Second)}
		if i%2 == 0 {
			t.Settings = everySetting
		}
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b job.Tenant) int { return b.FirstSeen.Compare(a.FirstSeen) })
	f.meet(len(all), all...)
	slices.Reverse(all)
	slices.SortFunc(all, func(a, b job.Tenant) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	for _, limit := range []int{1, 3, len(all), 1000} {
		var got []job.Tenant
		after := ""
		for range len(all) + 1 {
			page := list(store.TenantFilter{After: after, Limit: limit})
			got = append(got, page...)
			if len(page) < limit {
				break
			}
			after = page[len(page)-1].Name
		}
		expectEach(f, fmt.Sprintf("by pages of %d: tenant", limit), got, all)
	}
	expectEach(f, "after one that there is not: tenant", list(store.TenantFilter{After: "aa", Limit: 1}), all[9:10])
}

func testListSetTenants(f *fixture) {
	pages := func(limit int) (all []job.Tenant) {
		f.Helper()
		for filter := (store.TenantFilter{Limit: limit, Set: true}); ; {
			page, err := f.second().Tenants(f.Context(), filter)
			f.must(err)
			all = append(all, page...)
			if len(page) < limit {
				return all
			}
			filter.After = page[len(page)-1].Name
		}
	}
	expect(f, "tenants of an empty store", len(pages(2)), 0)
	var want []job.Tenant
	for i := range 12 {
		t := job.Tenant{Name: fmt.Sprintf("t%02d", i), FirstSeen: epoch}
		f.meet(1, t)
		if i%3 == 0 {
			t.Settings = everySetting
			f.must(f.store().SetTenant(f.Context(), t))
			want = append(want, t)
		}
	}
	met := job.Tenant{Name: "t99", FirstSeen: epoch, Settings: everySetting}
	f.meet(1, met)
	want = append(want, met)
	for _, limit := range []int{1, 2, 5, 100} {
		expectEach(f, "with settings: tenant", pages(limit), want)
	}
	for i, at := range []int{0, 2} { // those that have their defaults again are among them no more
		f.must(f.store().SetTenant(f.Context(), job.Tenant{Name: want[at-i].Name, FirstSeen: epoch}))
		want = slices.Delete(want, at-i, at-i+1)
	}
	for _, limit := range []int{1, 2, 3, 100} {
		expectEach(f, "still with settings: tenant", pages(limit), want)
	}
}

func testListTenantsByName(f *fixture) {
	named := func(filter store.TenantFilter, names ...string) []job.Tenant {
		f.Helper()
		filter.Names = names
		page, err := f.second().Tenants(f.Context(), filter)
		f.must(err)
		return page
	}
	expect(f, "tenants of an empty store", len(named(store.TenantFilter{Limit: 5}, "a")), 0)
	all := []job.Tenant{{Name: "a", FirstSeen: epoch}, {Name: "b", FirstSeen: epoch, Settings: everySetting}, {Name: "c", FirstSeen: epoch}}
	f.meet(3, all...)
	expectEach(f, "tenant", named(store.TenantFilter{Limit: 5}, "c", "nobody", "a"), []job.Tenant{all[0], all[2]})
	expectEach(f, "with settings: tenant", named(store.TenantFilter{Limit: 5, Set: true}, "c", "b", "a"), all[1:2])
	expectEach(f, "of a page: tenant", named(store.TenantFilter{Limit: 1}, "c", "b", "a"), all[:1])
	expectEach(f, "of the next: tenant", named(store.TenantFilter{Limit: 5, After: "a"}, "c", "b", "a"), all[1:])
}

func testTenantApart(f *fixture) {
	n := job.Name{Tenant: "acme", Key: "k"}
	f.put(newPut(n, epoch, 0))
	_, err := f.store().Tenant(f.Context(), "acme")
	expect(f, "a tenant that has a job, but was not met, is not found", errors.Is(err, store.ErrNotFound), true)
	f.must(f.store().SetTenant(f.Context(), job.Tenant{Name: "acme", FirstSeen: epoch, Settings: everySetting}))
	f.expectBacklog("with a tenant", epoch, backlog{Pending: 1, Due: 1, OldestDue: epoch})
	expect(f, "records", len(f.export(10)), 2)
	f.cancel(n)
	f.expectTenant("without its job", job.Tenant{Name: "acme", FirstSeen: epoch, Settings: everySetting})
}

func testTenantsEnded(f *fixture) {
	ended, cancel := context.WithCancel(f.Context())
	cancel()
	s := f.store()
	t := job.Tenant{Name: "acme", FirstSeen: epoch}
	_, meetErr := s.MeetTenants(ended, []job.Tenant{t})
	_, readErr := s.Tenant(ended, "acme")
	_, listErr := s.Tenants(ended, store.TenantFilter{Limit: 1})
	_, countErr := s.Count(ended, epoch, []job.Lane{job.DefaultLane}, 1)
	for what, err := range map[string]error{
		"meet": meetErr, "set": s.SetTenant(ended, t), "read": readErr, "list": listErr, "count": countErr,
	} {
		expect(f, what+" is unavailable", errors.Is(err, store.ErrUnavailable), true)
	}
	_, err := s.Tenant(f.Context(), "acme")
	expect(f, "nothing was inserted", errors.Is(err, store.ErrNotFound), true)
}

// counts are what lanes have.
func (f *fixture) counts(now time.Time, limit int, lanes ...job.Lane) []store.Count {
	f.Helper()
	all, err := f.second().Count(f.Context(), now, lanes, limit)
	f.must(err)
	return all
}

func testCountLanes(f *fixture) {
	f.put(in(acmeHigh, "list", epoch, 0, time.Second, 2*time.Second, time.Hour))
	f.put(in(acme, "one", epoch, time.Second))
	f.put(in(acme, "dead", epoch, 0))
	c := f.claimOf(epoch, store.Quota{Lane: acme, Limit: 1})
	f.settle(settlement(c.Occurrences[0], store.Bury))
	lanes := []job.Lane{acmeLow, acmeHigh, acme}
	for _, c := range []struct {
		what  string
		now   time.Time
		limit int
		want  []store.Count
	}{
		{"before anything is due", epoch.Add(-1 * time.Millisecond), 10, []store.Count{{}, {Pending: 4}, {Pending: 1}}},
		{"one is due", epoch, 10, []store.Count{{}, {Pending: 4, Due: 1}, {Pending: 1}}},
		{"more are due", epoch.Add(time.Second), 10, []store.Count{{}, {Pending: 4, Due: 2}, {Pending: 1, Due: 1}}},
		{"as many as the limit", epoch.Add(time.Hour), 4, []store.Count{{}, {Pending: 4, Due: 4}, {Pending: 1, Due: 1}}},
		{"more than the limit are due", epoch.Add(time.Hour), 2, []store.Count{{}, {Pending: 2, Due: 2}, {Pending: 1, Due: 1}}},
		{"more than the limit are pending", epoch.Add(time.Second), 3, []store.Count{{}, {Pending: 3, Due: 2}, {Pending: 1, Due: 1}}},
	} {
		expectSame(f, c.what, f.counts(c.now, c.limit, lanes...), c.want)
	}
	f.claimOf(epoch.Add(time.Second), store.Quota{Lane: acmeHigh, Limit: 1})
	expectSame(f, "while one is held", f.counts(epoch.Add(time.Second), 10, acmeHigh), []store.Count{{Pending: 4, Due: 1}})
	expectSame(f, "once its lease has ended", f.counts(epoch.Add(time.Second+lease), 10, acmeHigh), []store.Count{{Pending: 4, Due: 3}})
}

func testCountManyLanes(f *fixture) {
	expectSame(f, "of all of an empty store", f.counts(epoch, 1), []store.Count{{}})
	expectSame(f, "of an empty store", f.counts(epoch, 1, acme, acmeLow), []store.Count{{}, {}})
	want := make([]store.Count, len(lookalikes))
	for i, l := range lookalikes {
		var after []time.Duration
		for n := range i {
			after = append(after, time.Duration(n)*time.Second)
			want[i].Due++
		}
		want[i].Pending = i + 1
		f.put(in(l, "k"+l.String(), epoch, append(after, time.Hour)...))
	}
	expectSame(f, "of lanes whose names look alike", f.counts(epoch.Add(time.Minute), 100, lookalikes...), want)
	expectSame(f, "of one lane twice", f.counts(epoch.Add(time.Minute), 100, acme, acme), []store.Count{want[1], want[1]})
}
