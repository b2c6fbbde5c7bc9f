package handlers_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/tenants"
)

// backlog is a backlog in the form of the answer.
type backlog struct {
	At, OldestDue                       string
	Pending, Due, DeadLetters, Replicas int
	RatePerSecond                       float64
	DrainSeconds                        int
	Priorities                          []share
	Tenants                             []share
	Destinations                        []destination
}

type destination struct {
	Name               string
	Due, Pending       int
	AtLeast, Estimated bool
	InFlight, Parked   int
}

type share struct {
	Name, Priority, OldestDue string
	Weight                    float64
	Paused, AtLeast           bool
	Due, Pending              int
}

func (a *api) backlog(query string) backlog {
	a.Helper()
	return decode[backlog](a.call("GET", "/v1/backlog"+query, "").want(200))
}

// names returns the names of the tenants.
func (b backlog) names() (names []string) {
	for _, s := range b.Tenants {
		names = append(names, s.Name)
	}
	return names
}

func TestBacklogOfNothing(t *testing.T) {
	t.Parallel()
	got := newAPI(t).call("GET", "/v1/backlog", "").want(200)
	want := fmt.Sprintf(`{"at":%q,"pending":0,"due":0,"deadLetters":0,"replicas":1,"priorities":[`+
		`{"priority":"high","due":0,"pending":0},{"priority":"normal","due":0,"pending":0},{"priority":"low","due":0,"pending":0}],`+
		`"tenants":[],"destinations":[]}`, at(0))
	if string(got.body) != want {
		t.Errorf("it is\n%s\nwant\n%s", got.body, want)
	}
}

func TestBacklog(t *testing.T) {
	t.Parallel()
	var a *api
	a = newAPI(t, func(c *handlers.Config) {
		c.Rate = func() float64 { return 0.5 }
		c.Replicas = func(_ context.Context, now time.Time) (int, error) {
			if !now.Equal(a.clock()) {
				t.Errorf("replicas are counted at %s", now)
			}
			return 3, nil
		}
		c.Destinations = func() []handlers.DestinationState {
			return []handlers.DestinationState{
				{Name: "https://b.example", InFlight: 2},
				{Name: "https://c.example", InFlight: 1, Parked: 4, Failures: 20, OpenSince: start.Add(-time.Minute), Duration: 1500 * time.Millisecond},
				{Name: "https://a.example", InFlight: 2},
			}
		}
	})
	a.call("PUT", "/v1/jobs/dead", body("dead", 0)).want(201)
	a.settle(a.claim()[0], store.Bury, "410 Gone")
	a.call("PUT", "/v1/tenants/acme", `{"weight":2.5,"priority":"low"}`).want(201)
	a.call("PUT", "/v1/tenants/paused", `{"paused":true}`).want(201)
	for _, submitted := range []struct{ tenant, body string }{
		{"acme", with(body("due", time.Minute, 2*time.Minute, time.Hour), "past", "fire")}, // low, as its tenant is
		{"acme", with(body("high", 3*time.Minute), "priority", "high")},
		{"paused", body("due", time.Second)},
		{"default", body("later", time.Hour, 2*time.Hour)},
		{"default", with(body("low"), "priority", "low", "schedules", []string{at(time.Hour)})},
	} {
		a.call("POST", "/v1/jobs", submitted.body, "Carillon-Tenant: "+submitted.tenant).want(201)
	}
	a.advance(10 * time.Minute)
	got := a.call("GET", "/v1/backlog", "").want(200)
	want := fmt.Sprintf(`{"at":%q,"pending":8,"due":4,"oldestDue":%q,"deadLetters":1,"replicas":3,"ratePerSecond":1.5,"drainSeconds":2,"priorities":[`+
		`{"priority":"high","due":1,"pending":1},{"priority":"normal","due":1,"pending":3},{"priority":"low","due":2,"pending":4}],"tenants":[`+
		`{"name":"acme","priority":"low","weight":2.5,"paused":false,"oldestDue":%q,"due":3,"pending":4},`+
		`{"name":"paused","priority":"normal","weight":1,"paused":true,"oldestDue":%q,"due":1,"pending":1},`+
		`{"name":"default","priority":"normal","weight":1,"paused":false,"due":0,"pending":3}],"destinations":[`+
		`{"name":"http somewhere","due":4,"pending":8,"inFlight":0,"parked":0,"failures":0},`+
		`{"name":"https://c.example","due":0,"pending":0,"inFlight":1,"parked":4,"failures":20,"openSince":%q,"duration":"1.5s"},`+
		`{"name":"https://a.example","due":0,"pending":0,"inFlight":2,"parked":0,"failures":0},`+
		`{"name":"https://b.example","due":0,"pending":0,"inFlight":2,"parked":0,"failures":0}]}`,
		at(10*time.Minute), at(time.Second), at(time.Minute), at(time.Second), at(-time.Minute))
	if string(got.body) != want {
		t.Errorf("it is\n%s\nwant\n%s", got.body, want)
	}

	if got := a.backlog("?limit=1"); !slices.Equal(got.names(), []string{"acme"}) || len(got.Destinations) != 1 || got.Due != 4 {
		t.Errorf("of one tenant and destination it is %+v", got)
	}
	if got := a.backlog("?limit=1000"); len(got.Tenants) != 3 || len(got.Destinations) != 4 {
		t.Errorf("after a shorter one it is %+v", got)
	}
	for _, query := range []string{"limit=0", "limit=1001", "limit=x", "limit=1&limit=2", "tenant=acme"} {
		a.call("GET", "/v1/backlog?"+query, "").want(422)
	}
}

// A claimed occurrence counts as held.
func TestBacklogOfWhatIsHeld(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.call("PUT", "/v1/jobs/k", body("k", 0)).want(201)
	a.claim()
	got := a.backlog("")
	if got.Due != 0 || got.Pending != 1 || got.OldestDue != "" || len(got.Tenants) != 1 || got.Tenants[0].OldestDue != "" || got.Tenants[0].Due != 0 {
		t.Errorf("it is %+v", got)
	}
}

// If replicas report the priority of a tenant's jobs without one, the backlog has that priority.
func TestBacklogByAutomaticPriority(t *testing.T) {
	t.Parallel()
	a := newAPI(t, func(c *handlers.Config) {
		c.PrioritiesOf = priorities(map[string]job.Priority{"acme": job.PriorityLow})
	})
	a.call("PUT", "/v1/jobs/k", body("k", time.Hour), ofAcme).want(201)
	a.call("PUT", "/v1/jobs/high", with(body("high", time.Hour), "priority", "high"), ofAcme).want(201)
	a.call("PUT", "/v1/jobs/k", body("k", time.Hour), ofOther).want(201)
	got := a.backlog("")
	for i, want := range []int{1, 1, 1} {
		if got.Priorities[i].Pending != want {
			t.Errorf("by priority it is %+v", got.Priorities)
		}
	}
	if len(got.Tenants) != 2 || got.Tenants[0].Name != "acme" || got.Tenants[0].Priority != "low" || got.Tenants[1].Priority != "normal" {
		t.Errorf("the tenants are %+v", got.Tenants)
	}
}

// priorities returns a function that gives some tenants a priority; the others are normal.
func priorities(of map[string]job.Priority) func(context.Context, []job.Tenant) []job.Priority {
	return func(_ context.Context, tenants []job.Tenant) (all []job.Priority) {
		for _, t := range tenants {
			all = append(all, cmp.Or(of[t.Name], job.PriorityNormal))
		}
		return all
	}
}

// Without a rate, or without due occurrences, there is no time to drain. The least time is a second.
func TestBacklogDrains(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rate     float64
		replicas int
		due      int
		wantRate float64
		want     int
	}{{0, 2, 5, 0, 0}, {10, 2, 0, 20, 0}, {10, 2, 1, 20, 1}, {10, 2, 20, 20, 1}, {10, 2, 21, 20, 2}, {10, 0, 21, 10, 3}, {10, 2, 300_000, 20, 15_000}} {
		a := newAPI(t, func(config *handlers.Config) {
			config.Rate = func() float64 { return c.rate }
			config.Replicas = func(context.Context, time.Time) (int, error) { return c.replicas, nil }
			config.Inspector = &lanesInspector{total: store.Count{Due: c.due, Pending: c.due}, lanes: lanesDue(min(c.due, 1)), each: c.due}
		})
		if got := a.backlog(""); got.RatePerSecond != c.wantRate || got.DrainSeconds != c.want {
			t.Errorf("%+v: it drains at %v/s, in %d s", c, got.RatePerSecond, got.DrainSeconds)
		}
	}
}

// However many lanes there are, and however much they have, counting them is bounded; of each that is counted, at least
// a thousand are.
func TestBacklogIsBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	t.Parallel()
	for _, c := range []struct {
		lanes, each int
		exact       int // how many of the lanes are to be counted to their end, at least
	}{
		{1, 10, 1}, {1, 200_000 - 1, 1}, {1, 5_000_000, 0}, {100, 1999, 100}, {100, 1_000_000, 0}, {300, 100, 300}, {10_000, 5, 10_000},
		{10_000, 1_000_000, 0}, {150_000, 1, 10_000},
	} {
		s := &lanesInspector{each: c.each, lanes: lanesDue(c.lanes)}
		a := newAPI(t, func(config *handlers.Config) { config.Inspector = s })
		got := a.backlog("?limit=1000")
		if s.sampled > 1000 || s.samples > 160 || s.largest > 100 || s.between > 4*200_000 {
			t.Errorf("%+v: %d occurrences are sampled, %d times, up to %d at a time, with %d entries between", c, s.sampled, s.samples,
				s.largest, s.between)
		}
		if s.read > 220_000 || s.counted > 22_000 || s.least < 1000 {
			t.Errorf("%+v: %d entries of %d lanes are read, up to %d of one", c, s.read, s.counted, s.least)
		}
		normal := got.Priorities[1]
		sum, whole := c.lanes*c.each, c.exact == c.lanes
		if normal.AtLeast == whole || normal.Due > sum || whole && normal.Due != sum || normal.Due < min(c.lanes, 10_000) || normal.Due < c.exact*c.each {
			t.Errorf("%+v: there are %+v", c, normal)
		}
		if first := got.Tenants[0]; len(got.Tenants) != min(c.lanes, 1000) || whole && first.AtLeast || c.exact == 0 && !first.AtLeast {
			t.Errorf("%+v: %d tenants, the first is %+v", c, len(got.Tenants), first)
		}
		if last := fmt.Sprint("t", c.lanes-1); c.exact == 0 && !slices.Contains(got.names(), last) {
			t.Errorf("%+v: %s, which has been due the longest, is not told", c, last)
		}
	}
}

// However many clients ask, the backlog is counted once in two seconds, or in fifty times the duration of a count.
func TestBacklogIsCountedSeldom(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ takes, lasts time.Duration }{{0, 2 * time.Second}, {10 * time.Millisecond, 2 * time.Second}, {3 * time.Second, 150 * time.Second}} {
		synctest.Test(t, func(t *testing.T) {
			s := &lanesInspector{takes: c.takes}
			ask := asker(t, s)
			for round := 1; round <= 3; round++ {
				var group sync.WaitGroup
				for range 10 {
					group.Go(func() {
						if status := ask(t.Context()); status != 200 {
							t.Errorf("status %d", status)
						}
					})
				}
				group.Wait()
				time.Sleep(c.lasts - time.Millisecond)
				if ask(t.Context()); s.times != round {
					t.Errorf("when it takes %s, it was counted %d times in %d rounds", c.takes, s.times, round)
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
}

// A client that does not wait for the end leaves its count to the others.
func TestBacklogIsCountedThoughTheClientGoes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &lanesInspector{takes: 3 * time.Second}
		ask := asker(t, s)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		go ask(ctx)
		synctest.Wait()
		if status := ask(t.Context()); status != 200 || s.times != 1 {
			t.Errorf("status %d, counted %d times", status, s.times)
		}
	})
}

// If the count fails, the answer has no backlog, and the next request counts again.
func TestBacklogThatCannotBeCounted(t *testing.T) {
	t.Parallel()
	s := &lanesInspector{lanes: lanesDue(1), each: 2000}
	var replicas error
	a := newAPI(t, func(c *handlers.Config) {
		c.Inspector = s
		c.Replicas = func(context.Context, time.Time) (int, error) { return 1, replicas }
	})
	for call := 1; call <= 6; call++ {
		s.failAt = call
		a.call("GET", "/v1/backlog", "").want(503)
	}
	s.failAt = 0
	a.store.setTenantFault(store.ErrUnavailable)
	a.call("GET", "/v1/backlog", "").want(503)
	a.store.setTenantFault(nil)
	replicas = store.ErrUnavailable
	a.call("GET", "/v1/backlog", "").want(503)
	replicas = nil
	a.call("GET", "/v1/backlog", "").want(200)
	s.failAt = 1
	a.call("GET", "/v1/backlog", "").want(200) // it is remembered
	a.advance(2 * time.Second)
	a.call("GET", "/v1/backlog", "").want(503) // but not for long
}

// lanesDue returns lanes of tenants of their own, each due a little longer than the one before.
func lanesDue(n int) (lanes []store.LaneDue) {
	for i := range n {
		lanes = append(lanes, store.LaneDue{Lane: job.Lane{Tenant: fmt.Sprint("t", i)}, DueAt: start.Add(-time.Duration(i) * time.Millisecond)})
	}
	return lanes
}

// asker returns a function that asks an API on the bubble's clock for the backlog, and returns the status.
func asker(t *testing.T, s *lanesInspector) func(context.Context) int {
	api := handlers.New(handlers.Config{Inspector: s, Records: noRecords{}, Callbacks: callbacks.NewRegistry(), MaxBody: 1})
	return func(ctx context.Context) int {
		t.Helper()
		answer := httptest.NewRecorder()
		api.ServeHTTP(answer, httptest.NewRequestWithContext(ctx, http.MethodGet, "/v1/backlog", http.NoBody))
		return answer.Code
	}
}

// noRecords is a store of no records.
type noRecords struct{ store.Store }

func (noRecords) Records(context.Context, store.RecordFilter) ([]store.Record, error) {
	return nil, nil
}

// lanesInspector has lanes with the same number of due occurrences each, and counts the reads.
type lanesInspector struct {
	total  store.Count
	lanes  []store.LaneDue
	each   int
	takes  time.Duration // the duration of each Backlog
	failAt int           // the call of each request that fails, from 1

	calls, times              int // since the last Backlog, and of it
	read, counted, least      int // entries, lanes, and the lowest limit of one
	samples, sampled, largest int // times, occurrences, and the most at a time
	between                   int // entries that were read to count from one sample to the next
}

// Sample returns up to limit occurrences of a lane, a millisecond apart, as far as the lane has them.
func (s *lanesInspector) Sample(_ context.Context, _ job.Lane, from time.Time, limit int) (found []store.Sampled, err error) {
	if from.IsZero() {
		from = start.Add(-time.Duration(s.each) * time.Millisecond)
	}
	for ; len(found) < limit && from.Before(start); from = from.Add(time.Millisecond) {
		found = append(found, store.Sampled{DueAt: from, Callback: job.Callback{Type: "http", Data: []byte(`{}`)}})
	}
	s.samples, s.sampled, s.largest = s.samples+1, s.sampled+len(found), max(s.largest, limit)
	return found, s.call()
}

func (s *lanesInspector) call() error {
	if s.calls++; s.calls == s.failAt {
		return errors.Join(store.ErrUnavailable, errors.New("as asked"))
	}
	return nil
}

func (s *lanesInspector) countAll(ctx context.Context, _ time.Time) (store.Count, error) {
	s.calls, s.times = 0, s.times+1
	if s.takes > 0 {
		select {
		case <-time.After(s.takes):
		case <-ctx.Done():
			return store.Count{}, ctx.Err()
		}
	}
	return s.total, s.call()
}

func (s *lanesInspector) DueLanes(_ context.Context, p store.DueParams) (store.DuePage, error) {
	return duePage(s.lanes, p), s.call()
}

// duePage returns a page of the due times of lanes.
func duePage(lanes []store.LaneDue, p store.DueParams) (page store.DuePage) {
	due := slices.DeleteFunc(lanesAfter(lanes, p.After, len(lanes)), func(l store.LaneDue) bool { return l.DueAt.After(p.Until) })
	if page.Lanes = due; len(due) > p.Limit {
		page.Lanes, page.Next = due[:p.Limit], due[p.Limit-1]
	}
	return page
}

// lanesAfter returns the lanes that come after one.
func lanesAfter(lanes []store.LaneDue, after store.LaneDue, limit int) []store.LaneDue {
	all := slices.SortedFunc(slices.Values(lanes), store.LaneDue.Compare)
	first, found := slices.BinarySearchFunc(all, after, store.LaneDue.Compare)
	if found {
		first++
	}
	return all[first:min(first+limit, len(all))]
}

func (s *lanesInspector) Count(ctx context.Context, now time.Time, lanes []job.Lane, limit int) ([]store.Count, error) {
	if len(lanes) > 0 {
		return s.countLanes(ctx, now, lanes, limit)
	}
	all, err := s.countAll(ctx, now)
	return []store.Count{all}, err
}

func (s *lanesInspector) countLanes(_ context.Context, _ time.Time, lanes []job.Lane, limit int) ([]store.Count, error) {
	counts := make([]store.Count, len(lanes))
	n := min(s.each, limit)
	for i := range counts {
		counts[i] = store.Count{Pending: n, Due: n}
	}
	if s.samples > 0 {
		s.between += n * len(lanes)
		return counts, s.call()
	}
	s.read += n * len(lanes)
	s.counted += len(lanes)
	if s.least == 0 || limit < s.least {
		s.least = limit
	}
	return counts, s.call()
}

// Where there is too much to read all due times, tenants that have something later are found by their names.
func TestBacklogOfTenantsBehindMuch(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		tenants int // that the store knows, beside one that has something
		whole   bool
	}{{3, true}, {2600, false}} {
		h := endless{heap: newHeap(t), pages: new(int)}
		h.add(acmeLane, 0, time.Millisecond, 5000, func(int) string { return "a" })
		h.add(job.Lane{Tenant: "a1", Priority: job.PriorityLow}, time.Hour, time.Millisecond, 3, func(int) string { return "b" })
		h.add(job.Lane{Tenant: "z-unknown"}, time.Hour, time.Millisecond, 2, func(int) string { return "c" })
		a := newAPI(t, func(config *handlers.Config) {
			config.Inspector, config.Callbacks = h, callbacks.NewRegistry(placer{"http"})
		})
		known := []job.Tenant{{Name: "a1"}}
		for i := range c.tenants {
			known = append(known, job.Tenant{Name: fmt.Sprintf("b%04d", i)})
		}
		if _, err := tenants.New(a.store).Meet(t.Context(), known); err != nil {
			t.Fatal(err)
		}
		got := a.backlog("?limit=1000")
		low := share{Priority: "low", Pending: 3, AtLeast: !c.whole}
		if !slices.Equal(got.names(), []string{"acme", "a1"}) || got.Tenants[1].Pending != 3 || got.Tenants[1].AtLeast || got.Priorities[2] != low {
			t.Errorf("of %d tenants more, the tenants are %+v, the priorities %+v", c.tenants, got.Tenants, got.Priorities)
		}
		if *h.pages > 20 {
			t.Errorf("%d pages are read", *h.pages)
		}
	}
}

// endless is a heap whose first lane has due times without end, so that no page is the last.
type endless struct {
	*heap
	pages *int
}

func (e endless) DueLanes(_ context.Context, p store.DueParams) (store.DuePage, error) {
	*e.pages++
	next := store.LaneDue{Lane: acmeLane, DueAt: p.After.DueAt.Add(time.Millisecond)}
	if p.After.DueAt.IsZero() {
		next.DueAt = start
	}
	return store.DuePage{Lanes: []store.LaneDue{next}, Next: next}, nil
}
