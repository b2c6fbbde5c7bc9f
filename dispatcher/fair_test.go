package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/dispatcher"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/tenants"
)

// of returns a change for submit: the job is a tenant's, and has a priority.
func of(tenant string, priority job.Priority) func(*job.Job) {
	return func(j *job.Job) { j.Tenant, j.Options.Priority = tenant, priority }
}

// tenant gives a tenant settings.
func (b *bench) tenant(name string, seen time.Time, settings job.TenantSettings) {
	b.Helper()
	all := tenants.New(b.store)
	_, err := all.Meet(b.Context(), []job.Tenant{{Name: name, FirstSeen: seen}})
	if err := errors.Join(err, all.Set(b.Context(), name, settings, seen)); err != nil {
		b.Fatal(err)
	}
}

// crowd submits jobs with instants that are all due already.
func (b *bench) crowd(n int, change func(*job.Job)) {
	b.Helper()
	b.submit("crowd", change, crowdOf(n)...)
}

// tenants counts the deliveries of each tenant.
func (r *receiver) tenants() map[string]int {
	n := map[string]int{}
	for _, d := range r.all() {
		n[d.Name.Tenant]++
	}
	return n
}

// quickly answers soon, though not at once.
func quickly(context.Context, callbacks.Delivery) error {
	time.Sleep(10 * time.Millisecond)
	return nil
}

// few changes a replica's configuration to few slots.
func few(c *dispatcher.Config) {
	c.Concurrency = 8
	alone(c)
}

// A tenant that comes to another's backlog is served beside it.
func TestBacklogOfAnother(t *testing.T) {
	bubble(t, func(b *bench) {
		b.receiver.answers(quickly)
		b.crowd(4000, of("large", ""))
		d, _ := b.replica(few)
		time.Sleep(time.Second)
		b.submit("k", of("small", ""), 0)
		d.Wake(job.Lane{Tenant: "small"}, time.Now())
		time.Sleep(50 * time.Millisecond)
		if sent := b.receiver.tenants(); sent["small"] != 1 || sent["large"] > 1000 {
			t.Errorf("sent of each tenant: %v", sent)
		}
	})
}

// The same holds where the other's backlog is parked, and for priorities.
func TestBacklogAtADestination(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	t.Parallel()
	bubble(t, func(b *bench) {
		b.receiver.answers(func(context.Context, callbacks.Delivery) error { time.Sleep(500 * time.Millisecond); return nil })
		b.crowd(1000, of("large", "")) // four at a time, half a second each: two minutes
		d, _ := b.replica(func(c *dispatcher.Config) { c.Concurrency = 8 })
		time.Sleep(10 * time.Second)
		for i := range 40 {
			b.submit(fmt.Sprint("small", i), of("small", ""), 0)
			b.submit(fmt.Sprint("urgent", i), of("large", job.PriorityHigh), 0)
		}
		d.Wake(job.Lane{Tenant: "small"}, time.Now())
		d.Wake(job.Lane{Tenant: "large", Priority: job.PriorityHigh}, time.Now())
		time.Sleep(15 * time.Second)
		urgent := 0
		for i := range 40 {
			urgent += len(b.receiver.of(fmt.Sprint("urgent", i)))
		}
		if sent := b.receiver.tenants(); sent["small"] < 8 || urgent < 35 || sent["small"] >= urgent {
			t.Errorf("of 40 each, %d of another tenant are sent, and %d that are urgent: %v", sent["small"], urgent, sent)
		}
	})
}

// Where backlogs are parked, turns follow weights and priorities.
func TestWeightsAtADestination(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	t.Parallel()
	for name, c := range map[string]struct {
		more, less  func(*job.Job)
		least, most float64 // the ratio of one tenant's deliveries to the other's
	}{
		"tenants":    {of("heavy", ""), of("light", ""), 2.5, 6.4},
		"priorities": {of("heavy", job.PriorityHigh), of("heavy", job.PriorityLow), 5, 25},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(b *bench) {
				b.receiver.answers(func(context.Context, callbacks.Delivery) error { time.Sleep(500 * time.Millisecond); return nil })
				b.tenant("heavy", b.start, job.TenantSettings{Weight: 4})
				b.tenant("light", b.start, job.TenantSettings{Weight: 1})
				b.submit("more", c.more, crowdOf(300)...)
				b.submit("less", c.less, crowdOf(300)...)
				b.replica(func(c *dispatcher.Config) { c.Concurrency = 8 })
				time.Sleep(25 * time.Second) // four at a time, half a second each
				more, less := float64(len(b.receiver.of("more"))), float64(len(b.receiver.of("less")))
				if more+less < 170 || more < c.least*less || more > c.most*less {
					t.Errorf("%v and %v are sent", more, less)
				}
			})
		})
	}
}

// Tenants get slots by their weights.
func TestWeights(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	bubble(t, func(b *bench) {
		b.receiver.answers(quickly)
		b.tenant("three", b.start, job.TenantSettings{Weight: 3})
		for _, name := range []string{"one", "three"} {
			b.crowd(2000, of(name, ""))
		}
		b.replica(few)
		time.Sleep(2 * time.Second)
		if sent := b.receiver.tenants(); sent["three"] < 1000 || sent["three"] < sent["one"]*28/10 || sent["three"] > sent["one"]*32/10 {
			t.Errorf("sent of each tenant: %v", sent)
		}
	})
}

// A paused tenant waits, from the moment of its settings on and from a replica's start on, until the pause ends.
func TestPausedTenant(t *testing.T) {
	long := time.Hour
	if testing.Short() {
		long = 5 * time.Minute
	}
	bubble(t, func(b *bench) {
		b.tenant("paused", b.start, job.TenantSettings{Paused: true})
		b.submit("paused", of("paused", job.PriorityHigh), 0, time.Minute)
		b.submit("other", of("other", ""), 0, time.Minute, 2*time.Minute)
		b.replica(nil)
		time.Sleep(90 * time.Second)
		b.expectSent("0s other #1", "1m0s other #1")
		b.tenant("paused", b.start, job.TenantSettings{})
		b.tenant("other", b.start, job.TenantSettings{Paused: true})
		time.Sleep(10 * time.Second)
		if n := len(b.receiver.of("paused")); n != 2 {
			t.Errorf("%d are sent of the tenant that is not paused any more, want 2", n)
		}
		time.Sleep(long)
		if n := len(b.receiver.of("other")); n != 2 {
			t.Errorf("%d are sent of the tenant that is paused now, want 2", n)
		}
	})
}

// Occurrences that wait because their tenant is paused are due, but do not count as late.
func TestPausedTenantIsNotLate(t *testing.T) {
	bubble(t, func(b *bench) {
		b.tenant("paused", b.start, job.TenantSettings{Paused: true})
		b.submit("paused", of("paused", ""), time.Second)
		m, _, _ := b.measure(nil)
		time.Sleep(10 * time.Minute)
		m.expect("paused", "1", "carillon_due_backlog")
		m.expect("paused", "0", "carillon_oldest_due_age_seconds")
	})
}

// Tenants beyond the number with metrics of their own share one label.
func TestTenantMetrics(t *testing.T) {
	bubble(t, func(b *bench) {
		for _, name := range []string{"a", "b", "c", "d"} {
			b.submit(name, of(name, ""), time.Second)
		}
		m, _, _ := b.measure(func(c *dispatcher.Config) { c.TenantLabels = 2 })
		time.Sleep(10 * time.Second)
		b.submit("more", of("e", ""), time.Second)
		time.Sleep(10 * time.Second)
		own := 0
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			if m.text("carillon_tenant_deliveries_total", "delivered", name) == "1" {
				own++
			}
		}
		if own != 2 {
			t.Errorf("%d tenants have metrics of their own, want 2", own)
		}
		m.expect("the others", "3", "carillon_tenant_deliveries_total", "delivered", "(other)")
	})
}

// Nothing is claimed before the paused tenants are known. Settings read once stay in use while the store does not
// answer.
func TestPausedTenantUnknown(t *testing.T) {
	bubble(t, func(b *bench) {
		b.tenant("paused", b.start, job.TenantSettings{Paused: true})
		b.submit("paused", of("paused", ""), 0, time.Minute)
		b.submit("other", of("other", ""), 0)
		b.queue.set(func(q *flakyQueue) { q.tenantsErr = errors.New("not now") })
		b.replica(nil)
		time.Sleep(30 * time.Second)
		b.expectSent()
		b.queue.set(func(q *flakyQueue) { q.tenantsErr = nil })
		time.Sleep(10 * time.Second)
		if n := len(b.receiver.of("other")); n != 1 {
			t.Errorf("%d are sent once the store tells the tenants, want 1", n)
		}
		b.queue.set(func(q *flakyQueue) { q.tenantsErr = errors.New("not now") })
		time.Sleep(10 * time.Minute)
		if n := len(b.receiver.of("paused")); n != 0 {
			t.Errorf("%d are sent of a tenant that is paused", n)
		}
	})
}

// A tenant has no more callbacks under way than its limit, and leaves the other slots to others.
func TestTenantMaxInFlight(t *testing.T) {
	bubble(t, func(b *bench) {
		var lock sync.Mutex
		underWay, most := 0, 0
		count := func(n int) {
			lock.Lock()
			defer lock.Unlock()
			underWay += n
			most = max(most, underWay)
		}
		b.receiver.answers(func(_ context.Context, d callbacks.Delivery) error {
			if d.Name.Tenant == "limited" {
				count(1)
				defer count(-1)
			}
			time.Sleep(time.Second)
			return nil
		})
		b.tenant("limited", b.start, job.TenantSettings{MaxInFlight: 2})
		b.crowd(100, of("limited", ""))
		b.crowd(100, of("other", ""))
		b.replica(few)
		time.Sleep(9500 * time.Millisecond)
		lock.Lock()
		defer lock.Unlock()
		if sent := b.receiver.tenants(); most != 2 || sent["limited"] < 18 || sent["limited"]+sent["other"] != 80 {
			t.Errorf("in ten seconds were sent %v, and at most %d at once", sent, most)
		}
	})
}

// priority returns the priority of a tenant's jobs without their own, as a replica reports it.
func (b *bench) priority(d *dispatcher.Dispatcher, name string) job.Priority {
	b.Helper()
	t, err := tenants.New(b.queue).Tenant(b.Context(), name)
	if errors.Is(err, store.ErrNotFound) {
		t, err = job.Tenant{Name: name}, nil
	}
	if err != nil {
		b.Fatal(err)
	}
	return d.Priorities(b.Context(), []job.Tenant{t})[0]
}

// Automatic priorities: new tenants come first, then those with few pending occurrences.
func TestAutoPriority(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	bubble(t, func(b *bench) {
		b.receiver.answers(quickly)
		old := b.start.Add(-30 * 24 * time.Hour)
		b.tenant("new", b.start.Add(-time.Hour), job.TenantSettings{})
		b.tenant("small", old, job.TenantSettings{})
		b.tenant("large", old, job.TenantSettings{})
		b.tenant("set", old, job.TenantSettings{Priority: job.PriorityHigh})
		for name, n := range map[string]int{"new": 1500, "small": 900, "large": 2500, "set": 1500} {
			b.crowd(n, of(name, ""))
		}
		b.crowd(1000, of("told", job.PriorityLow)) // by its jobs
		d, _ := b.replica(func(c *dispatcher.Config) {
			few(c)
			c.Auto = dispatcher.AutoPriority{New: 7 * 24 * time.Hour, Small: 1000}
		})
		time.Sleep(time.Second)
		for name, want := range map[string]job.Priority{
			"new": "high", "small": "normal", "large": "low", "set": "high", "one that nobody has seen": "high",
		} {
			if got := b.priority(d, name); got != want {
				t.Errorf("%s is %s, want %s", name, got, want)
			}
		}
		before := b.receiver.tenants()
		time.Sleep(time.Second)
		after := b.receiver.tenants()
		sent := map[string]int{}
		for name, n := range after {
			sent[name] = n - before[name]
		}
		// Of 100 slots, 70 go to the two high ones, 25 to the small one, 5 to the others.
		total := sent["new"] + sent["set"] + sent["small"] + sent["large"] + sent["told"]
		if high := sent["new"] + sent["set"]; high < total*65/100 || high > total*75/100 || sent["small"] < total*22/100 || sent["large"] == 0 || sent["told"] == 0 {
			t.Errorf("in a second were sent %v", sent)
		}
		if rate := d.Rate(); rate < float64(total)*.9 || rate > float64(total)*1.1 {
			t.Errorf("the rate is %v, and %d were sent in the last second", rate, total)
		}
	})
}

// Of very many tenants with due occurrences, a due scan counts those of few, and later rounds count the others.
func TestAutoPriorityOfManyTenants(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	bubble(t, func(b *bench) {
		const tenants, lanesOfOne = 2500, 4
		old := b.start.Add(-30 * 24 * time.Hour)
		for i := range tenants {
			name := fmt.Sprintf("tenant %d", i)
			b.tenant(name, old, job.TenantSettings{})
			b.submit("k", of(name, ""), 40*time.Second)
		}
		b.tenant("large", old, job.TenantSettings{})
		b.submit("k", of("large", ""), 40*time.Second, time.Hour, 2*time.Hour)
		b.tenant("new", b.start.Add(-time.Hour), job.TenantSettings{})
		b.submit("k", of("new", ""), 41*time.Second)
		d, _ := b.replica(func(c *dispatcher.Config) {
			c.Auto = dispatcher.AutoPriority{New: 7 * 24 * time.Hour, Small: 2}
		})
		counted := func() (n int) {
			b.queue.set(func(q *flakyQueue) { n = q.counted })
			return n
		}
		time.Sleep(time.Second)
		if n := counted() / lanesOfOne; n == 0 || n > tenants/10 {
			t.Errorf("the first scan counts %d of %d tenants, want some, and at most a tenth", n, tenants)
		}
		if got := b.priority(d, "new"); got != job.PriorityHigh {
			t.Errorf("the new one is %s before it is counted", got)
		}
		time.Sleep(38 * time.Second)
		if n := counted() / lanesOfOne; n < tenants || n > 10*countedPerRound {
			t.Errorf("%d of %d tenants were counted in the end, want all, and some twice", n, tenants)
		}
		if got := b.priority(d, "large"); got != job.PriorityLow {
			t.Errorf("the large one is %s", got)
		}
		time.Sleep(10 * time.Second)
		if n := b.receiver.count(); n != tenants+2 {
			t.Errorf("%d were sent, want %d", n, tenants+2)
		}
	})
}

// countedPerRound is the largest number of tenants that are counted every five seconds.
const countedPerRound = 2000

// Settings apply even if the store can't count the tenants' occurrences.
func TestAutoPriorityUnknown(t *testing.T) {
	bubble(t, func(b *bench) {
		b.tenant("paused", b.start.Add(-30*24*time.Hour), job.TenantSettings{Paused: true})
		b.submit("paused", of("paused", ""), 0)
		b.submit("other", of("other", ""), 0)
		b.queue.set(func(q *flakyQueue) { q.countErr = errors.New("not now") })
		b.replica(func(c *dispatcher.Config) { c.Auto = dispatcher.AutoPriority{New: time.Hour, Small: 10} })
		time.Sleep(10 * time.Second)
		b.expectSent("0s other #1")
	})
}

// Without automatic priorities all are normal.
func TestNoAutoPriority(t *testing.T) {
	bubble(t, func(b *bench) {
		b.tenant("low", b.start, job.TenantSettings{Priority: job.PriorityLow})
		b.crowd(5000, of("large", ""))
		d, _ := b.replica(nil)
		time.Sleep(10 * time.Second)
		for name, want := range map[string]job.Priority{"low": "low", "large": "normal", "nobody": "normal"} {
			if got := b.priority(d, name); got != want {
				t.Errorf("%s is %s, want %s", name, got, want)
			}
		}
	})
}

// A destination that is slow or down delays no other, and its callbacks are not claimed again and again.
func TestDestinationsApart(t *testing.T) {
	for name, answer := range map[string]func(context.Context) error{
		"slow": func(context.Context) error { time.Sleep(20 * time.Second); return nil },
		"down": func(context.Context) error { return errors.New("connection refused") },
		"hangs": func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(b *bench) {
				b.receiver.to = func(data []byte) string { return string(data[:4]) }
				b.receiver.answers(func(ctx context.Context, d callbacks.Delivery) error {
					if d.Name.Key == "well" {
						return nil
					}
					return answer(ctx)
				})
				b.submit("sick", func(j *job.Job) { j.Options.Retry.MaxAttempts = 100 }, crowdOf(300)...)
				var after []time.Duration
				for i := range 80 {
					after = append(after, time.Duration(i)*100*time.Millisecond)
				}
				b.submit("well", nil, after...)
				m, _, _ := b.measure(func(c *dispatcher.Config) { c.Concurrency = 32 })
				time.Sleep(12 * time.Second)
				late := 0
				for _, d := range b.receiver.of("well") {
					if d.SentAt.Sub(d.Timestamp) > 200*time.Millisecond && d.Timestamp.Sub(b.start) > time.Second {
						late++
					}
				}
				if n := len(b.receiver.of("well")); n != 80 || late > 2 {
					t.Errorf("%d of 80 are sent to the other destination, %d of them late", n, late)
				}
				// Once, and at most once per probe interval.
				if parked, err := strconv.Atoi(m.text("carillon_parked_total")); err != nil || parked == 0 || parked > 300*(5+12)/5 {
					t.Errorf("%d were given back, %v", parked, err)
				}
			})
		})
	}
}

// crowdOf returns instants that are due already.
func crowdOf(n int) []time.Duration {
	instants := make([]time.Duration, n)
	for i := range instants {
		instants[i] = time.Duration(i-n) * time.Millisecond
	}
	return instants
}

// A job's own limits of its destination apply.
func TestDestinationOfAJob(t *testing.T) {
	bubble(t, func(b *bench) {
		b.receiver.answers(quickly)
		b.submit("paced", func(j *job.Job) { j.Options.Destination.RatePerSecond = 20 }, crowdOf(200)...)
		b.replica(nil)
		time.Sleep(5 * time.Second)
		if n := b.receiver.count(); n < 85 || n > 105 {
			t.Errorf("%d are sent in five seconds, at 20 a second", n)
		}
		time.Sleep(10 * time.Second)
		if n := b.receiver.count(); n != 200 {
			t.Errorf("%d are sent in the end, want 200", n)
		}
	})
}
