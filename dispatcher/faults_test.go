package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/dispatcher"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// A replica that is stopped waits for a claim under way, so that its occurrences are given back.
func TestShutdownDuringClaim(t *testing.T) {
	bubble(t, func(b *bench) {
		j := b.submit("k", nil, 0)
		_, stop := b.replica(func(c *dispatcher.Config) { c.Store = &slowQueue{Store: b.queue, pause: 2 * time.Second} })
		time.Sleep(time.Second)
		stop()
		if left := b.pending(j); len(left) > 0 && left[0].Token != "" {
			b.Errorf("it is still claimed after the shutdown")
		}
	})
}

// A replica that was stopped between its claim and its callbacks fires no occurrence that another replica may hold.
func TestStoppedReplicaFiresNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	bubble(t, func(b *bench) {
		slow := &slowQueue{Store: b.store, pause: time.Hour, stopped: true}
		b.replica(func(c *dispatcher.Config) { c.Store = slow })
		b.submit("k", nil, 0)
		time.Sleep(30 * time.Minute) // the first replica holds the answer of its claim, and sleeps
		if n := b.receiver.count(); n != 0 {
			b.Fatalf("%d sent while the replica was stopped", n)
		}
		b.replica(nil)
		time.Sleep(time.Minute)
		b.expectSent("30m0s k #2")
		time.Sleep(time.Hour)
		b.expectSent("30m0s k #2")
	})
}

// While the store is down, the outcomes of fired occurrences wait. They are written before anything is claimed again.
func TestStoreOutage(t *testing.T) {
	step := 70 * time.Millisecond
	if testing.Short() {
		step = 350 * time.Millisecond
	}
	for offset := time.Duration(0); offset < time.Second; offset += step { // claims and outcomes may each come first
		bubble(t, func(b *bench) {
			b.receiver.answer = func(context.Context, callbacks.Delivery) error {
				b.queue.set(func(q *flakyQueue) { q.down = true })
				return nil
			}
			d, _ := b.replica(nil)
			b.submit("k", nil, time.Second)
			b.submit("later", nil, 10*time.Second)
			time.Sleep(3*time.Minute + offset)
			if err := d.Ready(); err == nil || !strings.Contains(err.Error(), "claim loop") {
				b.Errorf("ready answers %v while the store is down", err)
			}
			b.receiver.lock.Lock()
			b.receiver.answer = nil
			b.receiver.lock.Unlock()
			b.queue.set(func(q *flakyQueue) { q.down = false })
			time.Sleep(time.Minute)
			if n := b.receiver.count(); n != 2 {
				b.Errorf("%d sent, want each once", n)
			}
			if err := d.Ready(); err != nil {
				b.Errorf("not ready after the outage: %v", err)
			}
		})
	}
}

// An outcome that can never be written blocks neither the others nor the claims for good.
func TestSpoiltOutcome(t *testing.T) {
	for _, jobs := range []int{1, 3} {
		t.Run(fmt.Sprint(jobs, " at once"), func(t *testing.T) {
			bubble(t, func(b *bench) {
				down := fmt.Errorf("%w: restarting", store.ErrUnavailable)
				b.queue.settle = []error{down, errors.New("not authorized"), errors.New("not authorized")}
				for i := range jobs {
					b.submit(fmt.Sprint("k", i), nil, 0)
				}
				b.submit("later", nil, 20*time.Second)
				d, _ := b.replica(nil)
				time.Sleep(50 * time.Second) // the spoilt one's lease has not run out
				if n := b.receiver.count(); n != jobs+1 {
					b.Errorf("%d sent, want %d", n, jobs+1)
				}
				if err := d.Ready(); err != nil {
					b.Errorf("not ready: %v", err)
				}
			})
		})
	}
}

// A store that can be read but not written is not ready, and gets no storm of claims.
func TestClaimsFail(t *testing.T) {
	bubble(t, func(b *bench) {
		b.queue.claimErr = fmt.Errorf("%w: the disk is full", store.ErrUnavailable)
		b.submit("k", nil, 0)
		d, _ := b.replica(nil)
		time.Sleep(5 * time.Minute)
		before := b.queue.polls()
		time.Sleep(100 * time.Second)
		if polls := b.queue.polls() - before; polls > 330 {
			b.Errorf("%d queries in 100 seconds of failing claims", polls)
		}
		if err := d.Ready(); err == nil || !strings.Contains(err.Error(), "no success") {
			b.Errorf("ready answers %v while nothing can be claimed", err)
		}
		b.queue.set(func(q *flakyQueue) { q.claimErr = nil })
		time.Sleep(2 * time.Second)
		if err := d.Ready(); err != nil || b.receiver.count() != 1 {
			b.Errorf("ready answers %v, %d sent, when claims work again", err, b.receiver.count())
		}
	})
}

// After a failed claim, a replica is ready again when the store is, even if nothing is due any more: its heartbeats show
// that the store takes writes.
func TestReadyAfterAFailedClaimWithNothingDue(t *testing.T) {
	bubble(t, func(b *bench) {
		down := fmt.Errorf("%w: the disk is full", store.ErrUnavailable)
		b.queue.claimErr, b.queue.beatErr = down, down
		j := b.submit("k", nil, 0)
		d, _ := b.replica(nil)
		time.Sleep(time.Minute)
		if _, err := b.store.Cancel(b.Context(), []job.Name{j.Name}, store.Asked{Now: time.Now()}); err != nil {
			b.Fatal(err)
		}
		time.Sleep(time.Minute)
		if err := d.Ready(); err == nil {
			b.Error("a replica whose store takes no writes is ready")
		}
		b.queue.set(func(q *flakyQueue) { q.claimErr, q.beatErr = nil, nil })
		time.Sleep(time.Minute)
		if err := d.Ready(); err != nil {
			b.Errorf("ready answers %v, a minute after the store is back", err)
		}
	})
}

// A store that is too slow for a claim of all free slots delays occurrences, and does not keep them from firing, whether
// a claim's time or the callbacks' time is over first. When it is fast again, claims take all slots again.
func TestClaimsTooLargeForASlowStore(t *testing.T) {
	for _, timeout := range []time.Duration{30 * time.Second, 5 * time.Second} {
		t.Run(timeout.String(), func(t *testing.T) {
			bubble(t, func(b *bench) {
				const jobs = 300
				slow := &slowQueue{Store: b.queue, pause: time.Second, each: 100 * time.Millisecond}
				for i := range jobs {
					b.submit(fmt.Sprint("k", i), nil, 0)
				}
				d, _ := b.replica(func(c *dispatcher.Config) { c.Store, c.CallbackTimeout = slow, timeout })
				time.Sleep(4 * time.Minute)
				for _, sent := range b.receiver.all() {
					if sent.Attempt != 1 {
						b.Errorf("%s: attempt %d", sent.Name.Key, sent.Attempt)
					}
				}
				if n, err := b.receiver.count(), d.Ready(); n != jobs || err != nil {
					b.Errorf("%d of %d sent; ready answers %v", n, jobs, err)
				}
				synctest.Wait()
				slow.each = time.Millisecond
				for i := range 16 * dispatcher.Defaults.Concurrency {
					b.submit(fmt.Sprint("then", i), nil, 0)
				}
				time.Sleep(10 * time.Minute)
				b.expectFullClaim(slow)
			})
		})
	}
}

// expectFullClaim expects that a claim takes all slots if as much is due.
func (b *bench) expectFullClaim(slow *slowQueue) {
	b.Helper()
	slots := dispatcher.Defaults.Concurrency
	synctest.Wait()
	slow.largest = 0
	for i := range slots {
		b.submit(fmt.Sprint("last", i), nil, time.Minute) // all at one moment
	}
	time.Sleep(5 * time.Minute)
	synctest.Wait()
	if slow.largest != slots {
		b.Errorf("the largest claim has %d, and there are %d slots", slow.largest, slots)
	}
}

// Claims get larger again, though slowly, on a store that takes more than half of their time whatever their size.
func TestClaimsGrowOnASteadilySlowStore(t *testing.T) {
	bubble(t, func(b *bench) {
		const jobs = 300
		slow := &slowQueue{Store: b.queue, pause: 11 * time.Second}
		for i := range jobs {
			b.submit(fmt.Sprint("k", i), nil, 0)
		}
		b.replica(func(c *dispatcher.Config) { c.Store = slow })
		time.Sleep(10 * time.Minute) // all come too late
		synctest.Wait()
		b.queue.set(func(*flakyQueue) { slow.pause = 6 * time.Second }) // each claim takes that lock first
		time.Sleep(20 * time.Minute)
		if n := b.receiver.count(); n != jobs {
			b.Errorf("%d of %d sent", n, jobs)
		}
	})
}

// Claims that fail at once, as while the store is down, are followed by ones for all slots.
func TestClaimsStayLargeInAnOutage(t *testing.T) {
	bubble(t, func(b *bench) {
		b.submit("k", nil, 0)
		slow := &slowQueue{Store: b.queue, pause: 6 * time.Second}
		b.queue.set(func(q *flakyQueue) { q.claimErr = store.ErrUnavailable })
		b.replica(func(c *dispatcher.Config) { c.Store = slow })
		time.Sleep(5 * time.Minute)
		b.queue.set(func(q *flakyQueue) { q.claimErr = nil })
		b.expectFullClaim(slow)
	})
}

// Claims that take all of the callback's time are given back, with a pause between them, and the replica is not ready.
func TestSlowClaims(t *testing.T) {
	bubble(t, func(b *bench) {
		slow := &slowQueue{Store: b.queue, pause: 2 * time.Second}
		b.submit("k", func(j *job.Job) { j.Options.Retry.MaxAttempts = 1 }, 0)
		d, stop := b.replica(func(c *dispatcher.Config) { c.Store, c.CallbackTimeout = slow, time.Second })
		time.Sleep(10 * time.Minute)
		if err := d.Ready(); err == nil || !strings.Contains(err.Error(), "no success") {
			b.Errorf("ready answers %v while nothing can be sent", err)
		}
		stop()
		if n := b.receiver.count(); n != 0 {
			b.Errorf("%d sent without time to do so", n)
		}
		if polls := b.queue.polls(); polls > 1500 { // a poll a second, and a claim and a settlement in five or more
			b.Errorf("%d queries in ten minutes", polls)
		}
		b.replica(nil)
		time.Sleep(time.Minute)
		if n, dead := b.receiver.count(), len(b.dead()); n != 1 || dead != 0 {
			b.Errorf("%d sent and %d dead letters in the end", n, dead)
		}
	})
}

func TestClockOff(t *testing.T) {
	bubble(t, func(b *bench) {
		b.queue.skew = 16 * time.Second // half the margin of 60 s - 30 s is 15 s
		d, _ := b.replica(nil)
		b.submit("k", nil, 0)
		time.Sleep(time.Minute)
		if err := d.Ready(); err == nil || !strings.Contains(err.Error(), "clock") || b.receiver.count() != 0 {
			b.Errorf("ready answers %v with a wrong clock, %d sent", err, b.receiver.count())
		}
		b.queue.set(func(q *flakyQueue) { q.skew = -14 * time.Second })
		time.Sleep(15 * time.Second)
		if err := d.Ready(); err != nil || b.receiver.count() != 1 {
			b.Errorf("ready answers %v with a clock that is right enough, %d sent", err, b.receiver.count())
		}
	})
}

// If the store takes so long to tell its time that the clocks may differ by too much, a comparison tells nothing.
func TestClockOfASlowStore(t *testing.T) {
	for _, c := range []struct {
		name            string
		skew, ask, tell time.Duration
	}{
		{"a clock ahead, a store that reads its own late", -7 * time.Second, 9 * time.Second, 0},
		{"a clock behind, a store that answers late", 7 * time.Second, 0, 9 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(b *bench) {
				b.queue.skew, b.queue.ask, b.queue.tell = c.skew, c.ask, c.tell
				d, _ := b.replica(func(c *dispatcher.Config) {
					c.Lease, c.CallbackTimeout = 20*time.Second, 5*time.Second // a clock that is off by 5 s is safe
				})
				b.submit("k", nil, 0)
				time.Sleep(time.Minute)
				err := d.Ready()
				told := err != nil && (strings.Contains(err.Error(), "clock") || strings.Contains(err.Error(), "time"))
				if !told || b.receiver.count() != 0 {
					b.Errorf("ready answers %v, %d sent; the clock is 7 s off", err, b.receiver.count())
				}
				b.queue.set(func(q *flakyQueue) { q.skew, q.ask, q.tell = 0, 0, 0 })
				time.Sleep(20 * time.Second)
				if err := d.Ready(); err != nil || b.receiver.count() != 1 {
					b.Errorf("ready answers %v with a right clock, %d sent", err, b.receiver.count())
				}
				b.queue.set(func(q *flakyQueue) { q.ask, q.tell = c.ask, c.tell })
				time.Sleep(time.Minute)
				b.submit("l", nil, 0)
				time.Sleep(2 * time.Second)
				if err := d.Ready(); err != nil || b.receiver.count() != 2 {
					b.Errorf("ready answers %v, %d sent; the clock was right, and was not set since", err, b.receiver.count())
				}
			})
		})
	}
}

func TestShutdown(t *testing.T) {
	for _, c := range []struct {
		name    string
		takes   time.Duration
		pending int // occurrences left, one of them was never due
		lasted  time.Duration
	}{
		{"callbacks end in time", 5 * time.Second, 1, 4 * time.Second},
		{"callbacks are cancelled", time.Hour, 2, 25 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(b *bench) {
				b.receiver.answer = func(ctx context.Context, _ callbacks.Delivery) error {
					select {
					case <-time.After(c.takes):
						return nil
					case <-ctx.Done():
						return ctx.Err()
					}
				}
				j := b.submit("k", func(j *job.Job) { j.Options.Retry.MaxAttempts = 1 }, 0, 3*time.Second)
				d, stop := b.replica(nil)
				time.Sleep(time.Second)
				begin := time.Now()
				stop()
				if lasted := time.Since(begin); lasted != c.lasted {
					b.Errorf("the shutdown lasted %s, want %s", lasted, c.lasted)
				}
				left := b.pending(j)
				if len(left) != c.pending {
					b.Fatalf("%d occurrences are left, want %d", len(left), c.pending)
				}
				for _, o := range left {
					if o.Token != "" || o.Attempt != 0 {
						b.Errorf("%s is still claimed, or charged: attempt %d", o.Timestamp, o.Attempt)
					}
				}
				if n := len(b.dead()); n != 0 {
					b.Errorf("%d dead letters", n)
				}
				if err := d.Ready(); err == nil {
					b.Error("ready after the shutdown")
				}
				b.expectSent("0s k #1")
			})
		})
	}
}

// An expansion has half a lease, so clocks may never differ by more than that, however short callbacks are.
func TestClockWithinTheLease(t *testing.T) {
	bubble(t, func(b *bench) {
		b.queue.skew = 16 * time.Second // of a lease of 60 s, a quarter is 15 s; half of the margin is 27.5 s
		d, _ := b.replica(func(c *dispatcher.Config) { c.CallbackTimeout = 5 * time.Second })
		time.Sleep(time.Minute)
		if err := d.Ready(); err == nil || !strings.Contains(err.Error(), "clock") {
			b.Errorf("ready answers %v with a wrong clock", err)
		}
		b.queue.set(func(q *flakyQueue) { q.skew = 14 * time.Second })
		time.Sleep(time.Minute)
		if err := d.Ready(); err != nil {
			b.Errorf("ready answers %v with a clock that is right enough", err)
		}
	})
}

// While the store can't be written, submissions to this replica do not make it claim more often.
func TestSubmissionsWhileClaimsFail(t *testing.T) {
	bubble(t, func(b *bench) {
		b.queue.claimErr = fmt.Errorf("%w: the disk is full", store.ErrUnavailable)
		claims := func() (n int) { b.queue.set(func(q *flakyQueue) { n = q.claims }); return n }
		b.submit("k", nil, 0)
		d, _ := b.replica(nil)
		time.Sleep(time.Minute)
		before := claims()
		for range 10 * 100 {
			time.Sleep(10 * time.Millisecond)
			d.Wake(job.DefaultLane, time.Now())
		}
		if n := claims() - before; n > 11 {
			b.Errorf("%d claims have failed in ten seconds with 100 submissions each, want one a second", n)
		}
		b.queue.set(func(q *flakyQueue) { q.claimErr = nil })
		time.Sleep(time.Second + time.Millisecond)
		if n := b.receiver.count(); n != 1 {
			b.Errorf("%d were sent a second after claims work again", n)
		}
	})
}

// For a due time within a millisecond, as after outcomes were written at the end of an outage, the loop waits for the
// next whole millisecond, which is the store's precision. Otherwise this test would never end, since no time passes
// while the loop is busy.
func TestDueWithinAMillisecond(t *testing.T) {
	bubble(t, func(b *bench) {
		b.queue.settle = []error{fmt.Errorf("%w: restarting", store.ErrUnavailable)}
		b.submit("k", nil, 0)
		b.submit("later", nil, time.Second)
		time.Sleep(300 * time.Microsecond)
		d, _ := b.replica(nil)
		time.Sleep(100 * time.Millisecond)
		d.Wake(job.DefaultLane, time.Now().Add(10*time.Millisecond+700*time.Nanosecond))
		time.Sleep(time.Second)
		b.expectSent("300µs k #1", "1s later #1")
	})
}
