package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/dispatcher"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

func TestFiresAtTheInstant(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	t.Parallel()
	bubble(t, func(b *bench) {
		d, _ := b.replica(nil)
		synctest.Wait()
		b.submit("list", nil, 1500*time.Millisecond, 1501*time.Millisecond, 20*time.Minute+7*time.Millisecond)
		d.Wake(job.DefaultLane, time.Now().Add(1500*time.Millisecond))
		b.submit("past", nil, -time.Hour)
		d.Wake(job.DefaultLane, time.Now().Add(-time.Hour))
		time.Sleep(30 * time.Minute)
		b.expectSent("0s past #1", "1.5s list #1", "1.501s list #1", "20m0.007s list #1")
	})
}

// Without a wake, as when another replica took the submission, a poll notices in time all that is due later than one
// poll interval.
func TestTickNotices(t *testing.T) {
	bubble(t, func(b *bench) {
		b.replica(nil)
		synctest.Wait()
		b.submit("k", nil, 10*time.Millisecond, 1234*time.Millisecond)
		time.Sleep(1500 * time.Millisecond)
		b.submit("l", nil, 1100*time.Millisecond)
		time.Sleep(time.Minute)
		b.expectSent("1s k #1", "1.234s k #1", "2.6s l #1")
	})
}

// One slow answer of the store leaves a replica without due times only for a short time.
func TestTickNoticesAfterASlowLook(t *testing.T) {
	bubble(t, func(b *bench) {
		b.replica(func(c *dispatcher.Config) { c.Store = &slowLook{Store: b.queue} })
		time.Sleep(6 * time.Second)
		b.submit("k", nil, time.Second)
		time.Sleep(10 * time.Second)
		if sent := b.receiver.all(); len(sent) != 1 || sent[0].SentAt.Sub(sent[0].Timestamp) > 5*time.Second {
			b.Errorf("sent %v", sent)
		}
	})
}

// slowLook is a store whose first page of due lanes takes long.
type slowLook struct {
	dispatcher.Store
	once sync.Once
}

func (q *slowLook) DueLanes(ctx context.Context, p store.DueParams) (store.DuePage, error) {
	q.once.Do(func() { time.Sleep(5 * time.Second) })
	return q.Store.DueLanes(ctx, p)
}

// While a scan is under way, occurrences known to be due fire on time.
func TestFiresWhileLooking(t *testing.T) {
	bubble(t, func(b *bench) {
		d, _ := b.replica(func(c *dispatcher.Config) { c.Store = alwaysSlow{b.queue} })
		for i := range 100 {
			tenant := fmt.Sprint("t", i)
			b.submit("told", of(tenant, ""), 100*time.Millisecond)
			b.submit("seen", of(tenant, ""), 250*time.Millisecond) // in the claim for the other lane
			d.Wake(job.Lane{Tenant: tenant}, time.Now().Add(100*time.Millisecond))
			time.Sleep(130 * time.Millisecond)
		}
		time.Sleep(time.Second)
		late := 0
		for _, s := range b.receiver.all() {
			if s.SentAt.Sub(s.Timestamp) > time.Millisecond {
				late++
			}
		}
		if n := b.receiver.count(); n != 200 || late > 0 {
			t.Errorf("%d are sent of 200, %d of them late", n, late)
		}
	})
}

// alwaysSlow is a store whose every page of due lanes takes long.
type alwaysSlow struct{ dispatcher.Store }

func (q alwaysSlow) DueLanes(ctx context.Context, p store.DueParams) (store.DuePage, error) {
	page, err := q.Store.DueLanes(ctx, p) // the due times of the moment of the call
	time.Sleep(3 * time.Second)
	return page, err
}

// One claim covers a limited number of lanes. The next claim, for others, follows at once.
func TestManyLanes(t *testing.T) {
	bubble(t, func(b *bench) {
		const tenants, eachClaim = 1280, 4 * time.Millisecond
		for i := range tenants {
			b.submit("k", of(fmt.Sprint("t", i), ""), -time.Second)
		}
		b.replica(func(c *dispatcher.Config) { c.Store = &slowQueue{Store: b.queue, pause: eachClaim} })
		time.Sleep(tenants/64*eachClaim + 10*time.Millisecond)
		if n := b.receiver.count(); n != tenants {
			t.Errorf("%d are sent of %d", n, tenants)
		}
	})
}

// A backlog keeps the loop busy while slots are free. Another tenant's new occurrences do not wait for its end: the
// next claim covers them if this replica was woken, else the first claim after the next poll.
func TestHearsWhileBusy(t *testing.T) {
	for name, c := range map[string]struct {
		told bool
		most time.Duration
	}{
		"a wake": {true, 250 * time.Millisecond},
		"a poll": {false, 1250 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(b *bench) {
				backlog := make([]time.Duration, 100) // due over ten seconds
				for i := range backlog {
					backlog[i] = -time.Minute - time.Duration(i)*time.Millisecond
				}
				b.submit("backlog", nil, backlog...)
				d, _ := b.replica(func(cfg *dispatcher.Config) {
					cfg.Store = &slowQueue{Store: oneByOne{b.queue}, pause: 100 * time.Millisecond}
				})
				time.Sleep(3050 * time.Millisecond)
				other := b.submit("other", func(j *job.Job) { j.Tenant = "other" }, 0)
				if c.told {
					d.Wake(job.Lane{Tenant: "other"}, time.Now())
				}
				time.Sleep(time.Minute)
				sent := b.receiver.of("other")
				if len(sent) != 1 || sent[0].SentAt.Sub(other.Schedule.Instants[0]) > c.most {
					b.Errorf("sent %v, not within %s of %v", sent, c.most, other.Schedule.Instants)
				}
				if n := len(b.receiver.of("backlog")); n != len(backlog) {
					b.Errorf("%d of the backlog were sent", n)
				}
			})
		})
	}
}

// oneByOne is a store that claims at most one occurrence of a lane at a time.
type oneByOne struct{ dispatcher.Store }

func (q oneByOne) Claim(ctx context.Context, p store.ClaimParams) (store.Claim, error) {
	p.Quotas = slices.Clone(p.Quotas)
	for i := range p.Quotas {
		p.Quotas[i].Limit = 1
	}
	return q.Store.Claim(ctx, p)
}

func TestEarlyWindow(t *testing.T) {
	bubble(t, func(b *bench) {
		b.replica(func(c *dispatcher.Config) { c.Early = 2 * time.Second })
		b.submit("k", nil, 10*time.Second)
		time.Sleep(time.Minute)
		b.expectSent("8s k #1")
	})
}

// A pause before the next attempt is as long as without an early window, which is one before instants only.
func TestPausesBesideAnEarlyWindow(t *testing.T) {
	bubble(t, func(b *bench) {
		var closeHistory func()
		b.replica(func(c *dispatcher.Config) { c.Early, closeHistory = 2*time.Second, b.recording(c) })
		b.receiver.answers(func(_ context.Context, d callbacks.Delivery) error {
			switch d.Attempt {
			case 1:
				return callbacks.RetryAfter(errors.New("busy"), time.Second)
			case 2:
				return callbacks.RetryAfter(errors.New("busy"), 5*time.Second)
			}
			return nil
		})
		b.submit("k", nil, 10*time.Second)
		time.Sleep(time.Minute)
		b.expectSent("8s k #1", "9s k #2", "14s k #3")
		closeHistory()
		entries := b.history()
		for i, e := range entries[:len(entries)-1] {
			if next := entries[i+1].At; !e.Next.Equal(next) {
				b.Errorf("history tells after attempt %d that the next one comes at %s; it came at %s", e.Attempt, e.Next, next)
			}
		}
	})
}

func TestReadyAtOnce(t *testing.T) {
	bubble(t, func(b *bench) {
		d, _ := b.replica(nil)
		time.Sleep(time.Millisecond)
		if err := d.Ready(); err != nil {
			b.Errorf("an idle replica that has just started is not ready: %v", err)
		}
	})
}

func TestIdlePollsOncePerTick(t *testing.T) {
	bubble(t, func(b *bench) {
		b.replica(nil)
		b.submit("far", nil, 24*time.Hour)
		time.Sleep(time.Minute + 500*time.Millisecond) // between two polls
		before := b.queue.polls()
		time.Sleep(100 * time.Second)
		if polls := b.queue.polls() - before; polls < 120 || polls > 142 {
			b.Errorf("%d queries in 100 idle seconds, want one per poll, one per clock check, one per beat and one per look for expansions", polls)
		}
	})
}

func TestClaimsNoMoreThanSlots(t *testing.T) {
	bubble(t, func(b *bench) {
		var underWay, most int
		b.receiver.answer = func(context.Context, callbacks.Delivery) error {
			b.receiver.lock.Lock()
			underWay++
			most = max(most, underWay)
			b.receiver.lock.Unlock()
			time.Sleep(time.Second)
			b.receiver.lock.Lock()
			underWay--
			b.receiver.lock.Unlock()
			return nil
		}
		b.replica(func(c *dispatcher.Config) {
			c.Concurrency = 5
			alone(c)
		})
		var after []time.Duration
		for i := range 23 {
			after = append(after, time.Duration(i)*time.Millisecond)
		}
		j := b.submit("k", nil, after...)
		time.Sleep(1500 * time.Millisecond)
		held := 0
		for _, o := range b.pending(j) {
			if o.Held(time.Now()) {
				held++
			}
		}
		if held != 5 {
			b.Errorf("%d occurrences are held with 5 slots", held)
		}
		time.Sleep(time.Minute)
		sent := b.receiver.count() // so that writes of the other goroutines can be read
		if most != 5 || sent != 23 {
			b.Errorf("%d sent, at most %d at once; want 23 and 5", sent, most)
		}
	})
}

func TestReplicasShare(t *testing.T) {
	bubble(t, func(b *bench) {
		for range 3 {
			b.replica(func(c *dispatcher.Config) { c.Concurrency = 10 })
		}
		var after []time.Duration
		for i := range 200 {
			after = append(after, time.Duration(i)*10*time.Millisecond)
		}
		b.submit("k", nil, after...)
		time.Sleep(time.Minute)
		seen := map[job.ID]int{}
		for _, d := range b.receiver.all() {
			seen[d.ID]++
		}
		if len(seen) != 200 || len(b.receiver.all()) != 200 {
			b.Errorf("%d deliveries of %d occurrences, want 200 of 200", len(b.receiver.all()), len(seen))
		}
	})
}

func TestSweeps(t *testing.T) {
	retain := time.Hour
	if testing.Short() {
		retain = 10 * time.Minute
	}
	bubble(t, func(b *bench) {
		b.receiver.answer = func(_ context.Context, d callbacks.Delivery) error {
			if d.Name.Key == "dead" {
				return callbacks.Permanent(errors.New("no"))
			}
			return nil
		}
		b.replica(func(c *dispatcher.Config) { c.Retain, c.DeadLetterRetain = retain, 2*retain })
		for _, key := range []string{"k", "dead"} {
			b.submit(key, func(j *job.Job) { j.ExpiresAt = time.Now().Add(retain) }, 0)
		}
		count := func() int {
			page, err := b.store.Jobs(b.Context(), store.JobFilter{Tenant: job.DefaultTenant, Limit: 10})
			if err != nil {
				b.Fatal(err)
			}
			return len(page)
		}
		time.Sleep(retain - time.Minute)
		if jobs, dead := count(), len(b.dead()); jobs != 2 || dead != 1 {
			b.Errorf("%d jobs and %d dead letters within the retention, want 2 and 1", jobs, dead)
		}
		time.Sleep(3 * time.Minute)
		if jobs, dead := count(), len(b.dead()); jobs != 0 || dead != 1 {
			b.Errorf("%d jobs and %d dead letters after the jobs' retention, want 0 and 1", jobs, dead)
		}
		time.Sleep(retain)
		if dead := len(b.dead()); dead != 0 {
			b.Errorf("%d dead letters after their retention", dead)
		}
	})
}

// A retention of dead letters longer than the time since 1970 keeps them for ever, and jobs are swept all the same.
func TestLongRetention(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	t.Parallel()
	bubble(t, func(b *bench) {
		b.replica(func(c *dispatcher.Config) {
			calm(c)
			c.Retain, c.DeadLetterRetain = time.Hour, 200*365*24*time.Hour
		})
		j := b.submit("k", func(j *job.Job) { j.ExpiresAt = time.Now().Add(time.Hour) }, 0)
		time.Sleep(2 * time.Hour)
		if _, err := store.ReadJob(b.Context(), b.store, j.Name); !errors.Is(err, store.ErrNotFound) {
			b.Errorf("the job is still there: %v", err)
		}
	})
}

func TestConfig(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*dispatcher.Config)
		want   string
	}{
		{"lease too short", func(c *dispatcher.Config) { c.Lease = 31 * time.Second }, "lease"},
		{"early eats the margin", func(c *dispatcher.Config) { c.Early = 28 * time.Second }, "early"},
		{"tick", func(c *dispatcher.Config) { c.Tick = 0 }, "tick"},
		{"concurrency", func(c *dispatcher.Config) { c.Concurrency = 0 }, "concurrency"},
		{"callback timeout", func(c *dispatcher.Config) { c.CallbackTimeout = 0 }, "callback-timeout"},
		{"catch-up limit", func(c *dispatcher.Config) { c.CatchUpLimit = 0 }, "catch-up-limit"},
		{"retain", func(c *dispatcher.Config) { c.Retain = -1 }, "retain"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := dispatcher.Defaults
			cfg.Store, cfg.Callbacks = &flakyQueue{}, callbacks.NewRegistry()
			c.change(&cfg)
			if _, err := dispatcher.New(cfg); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("new answers %v, want one that names %s", err, c.want)
			}
		})
	}
}
