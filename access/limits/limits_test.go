package limits_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/carillon-scheduler/carillon/access/limits"
	"github.com/carillon-scheduler/carillon/history"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/memory"
)

// anyKey is a key without limits of its own.
var anyKey = limits.Key{ID: "k"}

// allowed reports whether a request is allowed, and checks that no more than one limit is exceeded.
func allowed(l *limits.Limiter, key, tenant string) bool {
	return !slices.ContainsFunc(l.Take(limits.Key{ID: key}, tenant, time.Now()), func(s limits.Standing) bool { return s.Exceeded })
}

// TestRequests: a burst, then as many as the rate has; each key and each tenant for itself.
func TestRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limits.New(limits.Config{
			Key:    limits.Limits{Requests: limits.Rate{PerSecond: 2, Burst: 5}},
			Tenant: limits.Limits{Requests: limits.RateOf(4, 0)},
		})
		count := func(n int, key, tenant string) (ok int) {
			for range n {
				if allowed(l, key, tenant) {
					ok++
				}
			}
			return ok
		}
		if n := count(10, "a", ""); n != 5 {
			t.Errorf("at once %d are allowed", n)
		}
		time.Sleep(1500 * time.Millisecond)
		if n := count(10, "a", ""); n != 3 {
			t.Errorf("after 1.5 s %d are allowed", n)
		}
		if n := count(10, "b", "acme"); n != 4 { // the tenant's limit
			t.Errorf("of the tenant %d are allowed", n)
		}
		if n := count(10, "b", "other"); n != 1 { // requests that the tenant's limit refused did not count for the key
			t.Errorf("of another tenant %d are allowed", n)
		}
		if n := count(10, "c", "acme"); n != 0 {
			t.Errorf("of the tenant %d more are allowed, to another key", n)
		}
		time.Sleep(time.Hour)
		if n := count(10, "a", "acme"); n != 4 {
			t.Errorf("after an hour %d are allowed", n)
		}
	})
}

// TestStandings: the standings that clients get are true.
func TestStandings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		l := limits.New(limits.Config{
			Key: limits.Limits{Requests: limits.Rate{PerSecond: 0.5, Burst: 3}}, Tenant: limits.Limits{Requests: limits.RateOf(10, 0)},
			Registerer: registry,
		})
		take := func() []limits.Standing { return l.Take(limits.Key{ID: "k"}, "acme", time.Now()) }
		for left := 2; left >= 0; left-- {
			got := take()
			if len(got) != 2 || got[0].Name != limits.KeyRequests || got[1].Name != limits.TenantRequests || got[0].Left != left || got[0].Exceeded || got[1].Exceeded {
				t.Fatalf("with %d left it is %+v", left, got)
			}
			if got[0].Window() != 6*time.Second || got[1].Window() != time.Second {
				t.Errorf("the windows are %v and %v", got[0].Window(), got[1].Window())
			}
			want := time.Duration(3-left) * 2 * time.Second // until it is full
			if left == 0 {
				want = 2 * time.Second // until there is one
			}
			if got[0].Reset != want {
				t.Errorf("with %d left it is reset in %v, want %v", left, got[0].Reset, want)
			}
		}
		got := take()
		if !got[0].Exceeded || got[1].Exceeded || got[1].Left != 7 || got[0].Reset != 2*time.Second {
			t.Errorf("beyond the limit it is %+v", got)
		}
		time.Sleep(got[0].Reset - time.Millisecond)
		if !take()[0].Exceeded {
			t.Error("it is allowed too early")
		}
		time.Sleep(time.Millisecond)
		if take()[0].Exceeded {
			t.Error("it is refused when it was to be allowed")
		}
		families, err := registry.Gather()
		if err != nil || len(families) != 1 || len(families[0].GetMetric()) != 6 {
			t.Errorf("the metrics are %v, %v", families, err)
		}
		for _, m := range families[0].GetMetric() {
			if n := m.GetCounter().GetValue(); n != map[bool]float64{true: 2}[m.GetLabel()[0].GetValue() == limits.KeyRequests] {
				t.Errorf("%v are counted", m)
			}
		}
	})
}

// TestNoLimits: no request is limited, and there are no standings.
func TestNoLimits(t *testing.T) {
	for name, l := range map[string]*limits.Limiter{"nil": nil, "without limits": limits.New(limits.Config{})} {
		if got := l.Take(limits.Key{ID: "k"}, "acme", time.Now()); len(got) != 0 {
			t.Errorf("%s: it is %+v", name, got)
		}
		if err := l.Admit(t.Context(), anyKey, "acme", 1e6, 1e6); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		l.Settle(anyKey, "acme", 1, 1, 1, 1)
		if f := l.Flow(anyKey, "acme"); f != nil {
			t.Errorf("%s: there is a flow", name)
		}
		if err := (*limits.Flow)(nil).Wait(t.Context(), 1<<30); err != nil {
			t.Error(err)
		}
	}
}

// TestManyNames: the number of remembered names is bounded, and a name in use stays.
func TestManyNames(t *testing.T) {
	l := limits.New(limits.Config{Key: limits.Limits{Requests: limits.Rate{PerSecond: 0.001, Burst: 1}}})
	now := time.Now()
	exceeded := func(key string) bool { return l.Take(limits.Key{ID: key}, "", now)[0].Exceeded }
	if exceeded("used") {
		t.Fatal("it is refused at first")
	}
	for i := range 50_000 {
		exceeded(fmt.Sprint(i))
		if i%5000 == 0 && !exceeded("used") {
			t.Fatalf("after %d others it is forgotten", i)
		}
	}
	if exceeded("0") {
		t.Error("50,000 are remembered")
	}
}

// TestFlow: as much as a second has at once, then no faster than that, by all together.
func TestFlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limits.New(limits.Config{Key: limits.Limits{BatchBytes: 1000}, Tenant: limits.Limits{BatchBytes: 5000}})
		took := func(key, tenant string, bytes int) time.Duration {
			start := time.Now()
			if err := l.Flow(limits.Key{ID: key}, tenant).Wait(t.Context(), bytes); err != nil {
				t.Error(err)
			}
			return time.Since(start)
		}
		if d := took("a", "acme", 1000); d != 0 {
			t.Errorf("the first second's worth takes %v", d)
		}
		if d := took("a", "acme", 4500); d != 4500*time.Millisecond { // more than a burst
			t.Errorf("4,500 more take %v", d)
		}
		var all sync.WaitGroup
		start := time.Now()
		for i := range 20 {
			all.Go(func() { took(fmt.Sprint("k", i), "many", 1000) })
		}
		all.Wait()
		if d := time.Since(start); d != 3*time.Second {
			t.Errorf("20,000 of one tenant take %v", d)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start = time.Now()
		if err := l.Flow(limits.Key{ID: "b"}, "acme").Wait(ctx, 1<<20); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("it waits %v: %v", time.Since(start), err)
		}
	})
}

// counted has the counts of a store, and the number of times it was counted.
type counted struct {
	jobs, pending atomic.Int64
	counts, reads atomic.Int64
	fail          atomic.Bool
	slow          time.Duration
}

func (c *counted) Count(ctx context.Context, _ time.Time, lanes []job.Lane, limit int) ([]store.Count, error) {
	if c.slow > 0 {
		select {
		case <-time.After(c.slow):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	c.counts.Add(1)
	if c.fail.Load() {
		return nil, store.ErrUnavailable
	}
	counts := make([]store.Count, len(lanes))
	counts[0].Pending = min(limit, int(c.pending.Load()))
	return counts, nil
}

func (c *counted) Jobs(_ context.Context, f store.JobFilter) ([]store.JobStatus, error) {
	c.reads.Add(1)
	if c.fail.Load() {
		return nil, store.ErrUnavailable
	}
	var after int64
	if f.After != "" {
		if _, err := fmt.Sscan(f.After, &after); err != nil {
			return nil, err
		}
	}
	page := make([]store.JobStatus, max(0, min(int64(f.Limit), c.jobs.Load()-after)))
	for i := range page {
		page[i].Key = fmt.Sprint(after + int64(i) + 1)
	}
	return page, nil
}

func quotas(jobs, pending int, in limits.Counter) *limits.Limiter {
	return limits.New(limits.Config{Tenant: limits.Limits{Quota: limits.Quota{Jobs: jobs, Pending: pending}}, Count: in})
}

// TestQuotas: stored and admitted jobs count, and removed ones make room again.
func TestQuotas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s counted
		s.jobs.Store(2500)
		l := quotas(2503, 100, &s)
		admit := func(jobs, pending int) *limits.Exceeded {
			t.Helper()
			err := l.Admit(t.Context(), anyKey, "acme", jobs, pending)
			e, ok := errors.AsType[*limits.Exceeded](err)
			if err != nil && !ok {
				t.Fatal(err)
			}
			return e
		}
		for i := range 3 {
			if e := admit(1, 10); e != nil {
				t.Fatalf("the %d. is refused: %v", i, e)
			}
			s.jobs.Add(1)
			s.pending.Add(10)
			l.Settle(anyKey, "acme", 1, 10, 0, 0)
		}
		if e := admit(1, 10); e == nil || *e != (limits.Exceeded{Name: limits.TenantJobs, Limit: 2503, Present: 2503, Wanted: 1}) {
			t.Errorf("one job too many: %+v", e)
		}
		if e := admit(0, 70); e != nil {
			t.Errorf("what adds no job is refused: %v", e)
		}
		if e := admit(0, 1); e == nil || *e != (limits.Exceeded{Name: limits.TenantPending, Limit: 100, Present: 100, Wanted: 1}) {
			t.Errorf("one occurrence too many: %+v", e)
		}
		if e := admit(0, 0); e != nil {
			t.Errorf("what adds nothing is refused: %v", e)
		}
		l.Settle(anyKey, "acme", 0, 70, 0, 70)
		if e := admit(0, 70); e != nil {
			t.Errorf("what was given back is not there: %v", e)
		}
		l.Settle(anyKey, "acme", 0, 70, 0, 0)
		s.jobs.Add(-1) // one is cancelled, and another replica fires
		s.pending.Store(0)
		time.Sleep(time.Second)
		if e := admit(1, 100); e != nil {
			t.Errorf("there is room again, and it is refused: %v", e)
		}
		reads, counts := s.reads.Load(), s.counts.Load()
		for range 1000 {
			admit(1, 1)
		}
		if s.reads.Load() != reads || s.counts.Load() != counts {
			t.Error("a tenant that is at its quota makes the store count each time")
		}
		if e := admit(-1, 0); e != nil {
			t.Error(e)
		}
		if err := l.Admit(t.Context(), anyKey, "other", 3000, 1); err == nil {
			t.Error("one that is larger than the quota is admitted")
		}
	})
}

// TestQuotasOfSubmissionsUnderWay: those that are admitted and not stored yet count, also after the store was counted.
func TestQuotasOfSubmissionsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s counted
		l := quotas(3, 0, &s)
		admit := func(want bool) {
			t.Helper()
			if err := l.Admit(t.Context(), anyKey, "acme", 1, 1); (err == nil) != want {
				t.Errorf("it is admitted: %t, want %t: %v", err == nil, want, err)
			}
		}
		for range 3 {
			admit(true)
		}
		for range 10 {
			time.Sleep(time.Minute) // so that the store is counted again
			admit(false)
		}
		s.jobs.Store(2)
		l.Settle(anyKey, "acme", 2, 2, 0, 0)
		l.Settle(anyKey, "acme", 1, 1, 1, 1)
		time.Sleep(time.Minute)
		admit(true)
		time.Sleep(time.Minute)
		admit(false)
	})
}

// TestCountsOfAStore: jobs are counted over several pages, and pending occurrences in all lanes, of one tenant.
func TestCountsOfAStore(t *testing.T) {
	s := memory.New()
	var puts []store.Put
	now := time.Now().UTC().Truncate(time.Millisecond)
	for i := range 2100 {
		name, at := job.Name{Tenant: []string{"acme", "other"}[i%20/19], Key: fmt.Sprint("k", i)}, now.Add(time.Hour)
		priority := []job.Priority{job.PriorityDefault, job.PriorityHigh, job.PriorityNormal, job.PriorityLow}[i%4]
		j := job.Job{Name: name, Revision: job.NewRevision(now), CreatedAt: now, UpdatedAt: now, ExpiresAt: at}
		j.Version, j.Options.Priority = j.Revision, priority
		o := job.Occurrence{
			ID: job.OccurrenceID(name, j.Revision, at, 0, ""), Name: name, Revision: j.Revision, Priority: priority, Timestamp: at, DueAt: at,
		}
		puts = append(puts, store.Put{Job: j, Occurrences: []job.Occurrence{o}, Now: now})
	}
	for i, result := range s.Put(t.Context(), puts) {
		if result.Err != nil {
			t.Fatalf("%d: %v", i, result.Err)
		}
	}
	for _, c := range []struct {
		jobs, pending int
		exceeded      string
	}{
		{1996, 1996, ""}, {1995, 1996, limits.TenantJobs}, {1996, 1995, limits.TenantPending}, {0, 1995, limits.TenantPending}, {100, 0, limits.TenantJobs},
	} {
		err := quotas(c.jobs, c.pending, s).Admit(t.Context(), anyKey, "acme", 1, 1)
		if e, _ := errors.AsType[*limits.Exceeded](err); (e != nil) != (c.exceeded != "") || e != nil && e.Name != c.exceeded {
			t.Errorf("with quotas of %d and %d: %v", c.jobs, c.pending, err)
		}
	}
}

// TestCountsAreRenewed: additions by other replicas are noticed within seconds, in the background. Counting stops above
// the quota.
func TestCountsAreRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := counted{slow: 100 * time.Millisecond}
		l := quotas(1000, 1000, &s)
		admit := func(pending int) (took time.Duration, err error) {
			start := time.Now()
			if err = l.Admit(t.Context(), anyKey, "acme", 0, pending); err == nil {
				l.Settle(anyKey, "acme", 0, pending, 0, 0)
			}
			return time.Since(start), err
		}
		if took, err := admit(1); err != nil || took != s.slow {
			t.Errorf("the first count takes %v: %v", took, err)
		}
		s.pending.Store(990)
		s.jobs.Store(1 << 40)
		time.Sleep(6 * time.Second)
		if took, err := admit(1); err != nil || took != 0 {
			t.Errorf("it waits %v for a count that it does not need: %v", took, err)
		}
		time.Sleep(s.slow + time.Millisecond)
		if _, err := admit(11); err == nil {
			t.Error("what other replicas added is not noticed")
		}
		if n := s.reads.Load(); n > 10 {
			t.Errorf("of endless jobs %d pages were read", n)
		}
		counts := s.counts.Load()
		for range 60 {
			time.Sleep(time.Second)
			_, _ = admit(1)
		}
		if n := s.counts.Load() - counts; n < 5 || n > 31 { // no more than every 20 times as long as it takes
			t.Errorf("in a minute it was counted %d times", n)
		}
	})
}

// TestACountIsNotOldAfterAPause: the first submission after a pause notices the additions of other replicas. It waits
// no longer than a second for that.
func TestACountIsNotOldAfterAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, one := range []struct {
			slow, waits time.Duration
			exceeded    bool
		}{
			{slow: 100 * time.Millisecond, waits: 100 * time.Millisecond, exceeded: true},
			{slow: 900 * time.Millisecond, waits: 900 * time.Millisecond, exceeded: true},
			{slow: time.Minute, waits: time.Second, exceeded: false},
		} {
			var s counted
			l := quotas(10, 10, &s)
			if err := l.Admit(t.Context(), anyKey, "acme", 1, 1); err != nil {
				t.Fatal(err)
			}
			l.Settle(anyKey, "acme", 1, 1, 0, 0)
			s.slow = one.slow
			s.pending.Store(10)
			time.Sleep(45 * time.Second)
			start := time.Now()
			err := l.Admit(t.Context(), anyKey, "acme", 0, 1)
			if took := time.Since(start); (err != nil) != one.exceeded || took != one.waits {
				t.Errorf("with a count of %s it took %s: %v", one.slow, took, err)
			}
			_ = l.Close()
		}
	})
}

// TestQuotasWhileTheStoreIsAway: an unknown tenant is not admitted; a known one is, by the last counts.
func TestQuotasWhileTheStoreIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s counted
		l := quotas(10, 10, &s)
		if err := l.Admit(t.Context(), anyKey, "acme", 1, 1); err != nil {
			t.Fatal(err)
		}
		s.fail.Store(true)
		time.Sleep(time.Minute)
		for range 3 {
			if err := l.Admit(t.Context(), anyKey, "acme", 1, 1); err != nil {
				t.Error(err)
			}
			synctest.Wait()
		}
		if err := l.Admit(t.Context(), anyKey, "other", 1, 1); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("of an unknown tenant it is %v", err)
		}
	})
}

// TestOwnLimitsAfterAPause: limits that another replica has set are in force for the first request that comes more than
// five seconds later, however long this replica had no request before.
func TestOwnLimitsAfterAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records := memory.New()
		here, there := limits.NewOwn(records, slog.New(slog.DiscardHandler)), limits.NewOwn(records, slog.New(slog.DiscardHandler))
		l := limits.New(limits.Config{Own: here})
		if n := l.Of("acme").Jobs; n != 0 {
			t.Errorf("a quota of %d jobs, which nobody has set", n)
		}
		for i, pause := range []time.Duration{5 * time.Second, 8 * time.Second, 11 * time.Second, time.Minute} {
			most := 5 + i
			if err := there.Set(t.Context(), "acme", limits.TenantDraft{Draft: limits.Draft{MaxJobs: &most}}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(pause)
			if n := l.Of("acme").Jobs; n != most {
				t.Errorf("a quota of %d jobs, which has been %d for %s", n, most, pause)
			}
		}
		_, _, _ = here.Close(), there.Close(), l.Close()
	})
}

// TestOwnLimitsInUse: while requests come again and again, none of them waits for the limits, and they are never older
// than five seconds. If the store does not answer, requests wait a second at most in all.
func TestOwnLimitsInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		records := &slow{Store: memory.New()}
		here, there := limits.NewOwn(records, slog.New(slog.DiscardHandler)), limits.NewOwn(records, slog.New(slog.DiscardHandler))
		l := limits.New(limits.Config{Own: here})
		use := func() (jobs int, waited time.Duration) {
			begun := time.Now()
			return l.Of("acme").Jobs, time.Since(begun)
		}
		use()
		synctest.Wait()
		records.by = 900 * time.Millisecond
		for i := range 20 {
			most := 5 + i
			if err := there.Set(t.Context(), "acme", limits.TenantDraft{Draft: limits.Draft{MaxJobs: &most}}); err != nil {
				t.Fatal(err)
			}
			for set := time.Now(); time.Since(set) < 7*time.Second; time.Sleep(100 * time.Millisecond) {
				since := time.Since(set)
				switch n, waited := use(); {
				case waited > 0:
					t.Fatalf("it waits %s", waited)
				case since >= 5*time.Second && n != most:
					t.Fatalf("a quota of %d jobs, which has been %d for %s", n, most, since)
				}
			}
		}
		synctest.Wait()
		records.by = time.Hour
		time.Sleep(time.Minute)
		total := time.Duration(0)
		for range 5 {
			_, waited := use()
			total += waited
		}
		if total != time.Second {
			t.Errorf("five requests wait %s in all", total)
		}
		_, _, _ = here.Close(), there.Close(), l.Close()
	})
}

// slow has records that are read slowly.
type slow struct {
	*memory.Store
	by time.Duration
}

func (s *slow) Records(ctx context.Context, f store.RecordFilter) ([]store.Record, error) {
	select {
	case <-time.After(s.by):
		return s.Store.Records(ctx, f)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// TestOwnLimitsDoNotWaitForAnother: while the limits are being read, a request that sets others ends with its own time.
func TestOwnLimitsDoNotWaitForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own := limits.NewOwn(stuck{memory.New()}, slog.New(slog.DiscardHandler))
		defer func() { _ = own.Close() }()
		long, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		go func() { _ = own.Load(long) }()
		synctest.Wait()
		begun := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := own.Load(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != time.Second {
			t.Errorf("after %s: %v", time.Since(begun), err)
		}
	})
}

// stuck has records that can't be read.
type stuck struct{ *memory.Store }

func (stuck) Records(ctx context.Context, _ store.RecordFilter) ([]store.Record, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestOwnLimits: they are in force on every replica within seconds, in the places of the defaults; also while the store
// is away.
func TestOwnLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &flaky{to: memory.New()}
		defaults := limits.Limits{Requests: limits.RateOf(7, 9), BatchBytes: 1, Quota: limits.Quota{Jobs: 2, Pending: 3}, Payload: 4}
		own, second := limits.NewOwn(s, slog.New(slog.DiscardHandler)), limits.NewOwn(s, slog.New(slog.DiscardHandler))
		here, there := limits.New(limits.Config{Tenant: defaults, Own: own}), limits.New(limits.Config{Tenant: defaults, Own: second})
		in := func(l *limits.Limiter, want limits.Limits) {
			t.Helper()
			l.Of("acme") // which has them read, if they are old
			synctest.Wait()
			if got := l.Of("acme"); got != want {
				t.Errorf("they are %+v, want %+v", got, want)
			}
			if got := l.Of("other"); got != defaults {
				t.Errorf("those of another tenant are %+v", got)
			}
		}
		in(here, defaults)
		in(there, defaults)
		set := func(text string) {
			t.Helper()
			d, err := limits.ParseTenantDraft([]byte(text))
			if err == nil {
				err = own.Set(t.Context(), "acme", d)
			}
			if err != nil {
				t.Fatal(err)
			}
			if got, err := second.Get(t.Context(), "acme"); err != nil || got.MaxJobs == nil != (d.MaxJobs == nil) {
				t.Errorf("they are read as %+v, %v", got, err)
			}
		}
		set(`{"maxJobs":20,"maxPending":0,"requestsPerSecond":0.5}`)
		changed := limits.Limits{Requests: limits.Rate{PerSecond: 0.5, Burst: 1}, BatchBytes: 1, Quota: limits.Quota{Jobs: 20}, Payload: 4}
		in(here, changed)
		in(there, defaults)
		time.Sleep(5 * time.Second)
		in(there, changed)
		s.fail.Store(true)
		time.Sleep(time.Hour)
		in(there, changed)
		s.fail.Store(false)
		time.Sleep(5 * time.Second)
		set(`{}`)
		in(here, defaults)
		time.Sleep(5 * time.Second)
		in(there, defaults)
	})
}

// flaky are records that can't be read while it fails.
type flaky struct {
	to   store.Records
	fail atomic.Bool
}

// Records implements [store.Records].
func (f *flaky) Records(ctx context.Context, filter store.RecordFilter) ([]store.Record, error) {
	if f.fail.Load() {
		return nil, store.ErrUnavailable
	}
	return f.to.Records(ctx, filter)
}

// WriteRecords implements [store.Records].
func (f *flaky) WriteRecords(ctx context.Context, changes []store.RecordChange) []error {
	return f.to.WriteRecords(ctx, changes)
}

func TestDrafts(t *testing.T) {
	for body, want := range map[string]string{
		`{}`: "", `{"maxJobs":null}`: "", `{"requestsPerSecond":1.5,"requestBurst":3}`: "",
		`{"requestsPerSecond":0,"requestBurst":0,"batchBytesPerSecond":0,"maxJobs":0,"maxPending":0,"maxPayload":0}`: "",
		`{"maxJobs":-1}`:                           "/maxJobs",
		`{"maxPending":1.5}`:                       "/maxPending",
		`{"maxPayload":"1k"}`:                      "/maxPayload",
		`{"requestsPerSecond":-1}`:                 "/requestsPerSecond",
		`{"requestBurst":5}`:                       "/requestBurst",
		`{"requestBurst":5,"requestsPerSecond":0}`: "/requestBurst",
		`{"batchBytesPerSecond":10000000000}`:      "/batchBytesPerSecond",
		`{"maxjobs":1}`:                            "/maxjobs",
		`{"requestsPerSecond":1e7}`:                "/requestsPerSecond",
		`{"history":"failures:7d"}`:                "",
		`{"history":"0"}`:                          "",
		`{"history":"for ever"}`:                   "/history",
		`{"history":"-1h"}`:                        "/history",
		`{"history":24}`:                           "/history",
	} {
		_, err := limits.ParseTenantDraft([]byte(body))
		invalid, _ := errors.AsType[*job.Invalid](err)
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", body, err)
		case want != "" && (invalid == nil || len(invalid.Fields) != 1 || invalid.Fields[0].Pointer != want):
			t.Errorf("%s: %v, want %s", body, err, want)
		}
	}
}

func TestNoDraft(t *testing.T) {
	if _, err := limits.ParseTenantDraft([]byte("null")); err == nil {
		t.Error("null is taken for limits")
	}
}

// A tenant's own policy of history replaces the service's, unless the service keeps none.
func TestHistoryOfATenant(t *testing.T) {
	own := limits.NewOwn(memory.New(), slog.New(slog.DiscardHandler))
	defer func() { _ = own.Close() }()
	usual, its := history.Policy{Keep: time.Hour}, history.Policy{Keep: 48 * time.Hour, Failures: true}
	if err := own.Set(t.Context(), "acme", limits.TenantDraft{History: &its}); err != nil {
		t.Fatal(err)
	}
	for tenant, want := range map[string]history.Policy{"acme": its, "other": usual} {
		if got := own.History(tenant, usual); got != want {
			t.Errorf("of %s it is %s, want %s", tenant, got, want)
		}
	}
	if got := own.History("acme", history.Policy{}); got.Keep != 0 {
		t.Errorf("the service keeps none, but %s", got)
	}
	l := limits.New(limits.Config{Own: own, History: usual})
	defer func() { _ = l.Close() }()
	if got := l.Effective(limits.TenantDraft{}).History.String() + " " + l.Effective(limits.TenantDraft{History: &its}).History.String(); got != "1h failures:2d" {
		t.Errorf("effective are %s", got)
	}
}
