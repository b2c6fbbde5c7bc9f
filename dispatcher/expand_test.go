package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/dispatcher"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// expectEvery checks that each tick of a job up to now, including one at this instant, has fired once and on time,
// except for those left out.
func (b *bench) expectEvery(j job.Job, every time.Duration, without ...int) {
	b.Helper()
	synctest.Wait() // all occurrences of this instant have fired
	want := make(map[int64]bool)
	for at := j.Schedule.Anchor.Add(every); !at.After(time.Now()); at = at.Add(every) {
		want[at.UnixMilli()] = true
	}
	for _, k := range without {
		delete(want, j.Schedule.Anchor.Add(time.Duration(k)*every).UnixMilli())
	}
	for _, d := range b.receiver.of(j.Key) {
		if d.Attempt > 1 {
			continue
		}
		if tick := d.Timestamp.UnixMilli(); !want[tick] || !d.SentAt.Equal(d.Timestamp) {
			b.Errorf("%s: the tick of %s was fired at %s, or again, or is none", j.Key, d.Timestamp.Sub(b.start), d.SentAt.Sub(b.start))
		} else {
			delete(want, tick)
		}
	}
	if len(want) > 0 {
		b.Errorf("%s: %d ticks have not fired", j.Key, len(want))
	}
}

// Replicas side by side do no more work in all than one replica.
func TestExpandsOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	t.Parallel()
	expansions := make(map[int]int) // by replicas
	for _, replicas := range []int{1, 3} {
		bubble(t, func(b *bench) {
			often, seldom := b.submit("often", crontab("@every 10s")), b.submit("seldom", crontab("@every 20m"))
			for range replicas {
				b.replica(calm)
			}
			time.Sleep(time.Hour)
			b.expectEvery(often, 10*time.Second)
			b.expectEvery(seldom, 20*time.Minute)
			expansions[replicas] = b.queue.expanded()
		})
	}
	// Each expansion lasts half a minute at least. It makes little difference which replica looks when.
	if one, three := expansions[1], expansions[3]; one > 2*60+3 || three > one+one/5 {
		t.Errorf("one replica expanded %d times in an hour, three did %d times", one, three)
	}
}

// A callback that fails, once or for good, and the loss of occurrences neither end a chain nor delay another tick.
func TestChainHolds(t *testing.T) {
	bubble(t, func(b *bench) {
		b.receiver.answers(func(_ context.Context, d callbacks.Delivery) error {
			switch d.Timestamp.Sub(b.start).Minutes() {
			case 3:
				return callbacks.Permanent(errors.New("no"))
			case 5, 6:
				return errors.New("try again")
			}
			return nil
		})
		b.replica(nil)
		j := b.submit("k", func(j *job.Job) {
			crontab("@every 1m")(j)
			j.Options.Retry = job.Retry{Initial: job.Duration(2 * time.Minute)}
		})
		time.Sleep(20*time.Minute + time.Second)
		claim, err := b.store.Claim(b.Context(), store.ClaimParams{Now: time.Now().Add(100 * time.Second), Lease: time.Second, Quotas: []store.Quota{{Lane: job.DefaultLane, Limit: 100}}})
		if err != nil {
			b.Fatal(err)
		}
		ticks := 0
		for _, c := range claim.Occurrences {
			if err := b.store.Settle(b.Context(), []store.Settlement{{ID: c.ID, Token: c.Token, Outcome: store.Ack}}); err != nil {
				b.Fatal(err)
			}
			if c.Attempt == 1 {
				ticks++
			}
		}
		if ticks != 1 {
			b.Fatalf("%d ticks were lost, want that of 21m only", ticks)
		}
		time.Sleep(20 * time.Minute)
		b.expectEvery(j, time.Minute, 21)
		if n := len(b.dead()); n != 1 {
			b.Errorf("%d dead letters, want 1", n)
		}
	})
}

// If a replica claims a job for expansion and does not advance it, another one advances it in time.
func TestExpansionIsTakenOver(t *testing.T) {
	for _, c := range []struct {
		name string
		flaw func(q *flakyQueue)
	}{
		{"the store did not answer", func(q *flakyQueue) {
			q.advance = func(context.Context, []store.Advance) error { return fmt.Errorf("%w: reset", store.ErrUnavailable) }
		}},
		{"the store's answer was lost", func(q *flakyQueue) {
			q.advance = func(ctx context.Context, advances []store.Advance) error {
				if err := q.Store.Advance(ctx, advances); err != nil {
					return err
				}
				return fmt.Errorf("%w: reset", store.ErrUnavailable)
			}
		}},
		{"it hung", func(q *flakyQueue) {
			q.advance = func(ctx context.Context, _ []store.Advance) error {
				<-ctx.Done()
				return fmt.Errorf("%w: %w", store.ErrUnavailable, ctx.Err())
			}
		}},
		{"the zone is unknown there", func(q *flakyQueue) { q.readJob = func(j *job.Job) { j.Schedule.Zone = "Mars/Olympus" } }},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(b *bench) {
				bad := &flakyQueue{Store: b.store}
				c.flaw(bad)
				j := b.submit("k", crontab("@every 5s"))
				b.replica(func(cfg *dispatcher.Config) { cfg.Store, cfg.Tick = bad, time.Minute })
				time.Sleep(time.Minute) // it has claimed the job by now
				b.replica(calm)
				time.Sleep(15 * time.Minute) // either may be the first to claim it again
				b.expectEvery(j, 5*time.Second)
			})
		})
	}
}

// A job that can't be expanded or advanced does not keep the others from it.
func TestSpoiltExpansion(t *testing.T) {
	every := time.Hour
	if testing.Short() {
		every = 10 * time.Minute
	}
	bubble(t, func(b *bench) {
		spoilt := func(key string) bool { return strings.HasPrefix(key, "bad") }
		b.queue.advance = func(_ context.Context, advances []store.Advance) error {
			for _, a := range advances {
				if spoilt(a.Name.Key) {
					return errors.New("out of range")
				}
			}
			return nil
		}
		b.queue.readJob = func(j *job.Job) {
			if j.Key == "lost" {
				j.Schedule.Zone = "Mars/Olympus"
			}
		}
		var good []job.Job
		for i := range 70 { // more than are claimed at once
			b.submit(fmt.Sprint("bad", i), crontab("@every "+every.String()))
			good = append(good, b.submit(fmt.Sprint("good", i), crontab("@every "+every.String())))
		}
		b.submit("lost", crontab("@every "+every.String()))
		d, _ := b.replica(calm)
		time.Sleep(3*every + time.Second)
		for _, j := range good {
			b.expectEvery(j, every)
		}
		if err := d.Ready(); err != nil {
			b.Errorf("not ready: %v", err)
		}
	})
}

// A job whose schedule makes the expansion panic does not keep the others from it, nor end the process.
func TestPanicInExpansion(t *testing.T) {
	every := time.Hour
	if testing.Short() {
		every = 10 * time.Minute
	}
	bubble(t, func(b *bench) {
		b.queue.readJob = func(j *job.Job) {
			if j.Key == "bad" {
				breakCrontab(&j.Schedule.Crontab)
			}
		}
		good := b.submit("good", crontab("@every "+every.String()))
		b.submit("bad", crontab("@every "+every.String()))
		d, _ := b.replica(calm)
		time.Sleep(3*every + time.Second)
		b.expectEvery(good, every)
		if err := d.Ready(); err != nil {
			b.Errorf("not ready: %v", err)
		}
	})
}

// breakCrontab sets the interval of an @every to zero, as only a bug could: each division by it panics.
func breakCrontab(c *job.Crontab) {
	every := reflect.ValueOf(c).Elem().FieldByName("every")
	*(*time.Duration)(every.Addr().UnsafePointer()) = 0
}

// While jobs can be claimed but not advanced, a replica is ready as long as no tick can be late because of it.
func TestReadyWithoutExpansion(t *testing.T) {
	bubble(t, func(b *bench) {
		d, _ := b.replica(nil)
		j := b.submit("k", crontab("@every 1s"))
		time.Sleep(time.Minute)
		b.queue.set(func(q *flakyQueue) { q.claimJobsErr = fmt.Errorf("%w: no index", store.ErrUnavailable) })
		for _, c := range []struct {
			after time.Duration
			ready bool
		}{{80 * time.Second, true}, {20 * time.Second, false}, {time.Hour, false}} {
			time.Sleep(c.after)
			synctest.Wait()
			if err := d.Ready(); (err == nil) != c.ready || err != nil && !strings.Contains(err.Error(), "expanded") {
				b.Errorf("%s into the fault, ready answers %v", time.Since(b.start)-time.Minute, err)
			}
		}
		b.queue.set(func(q *flakyQueue) { q.claimJobsErr = nil })
		time.Sleep(6*time.Second + 500*time.Millisecond) // between two polls
		if err := d.Ready(); err != nil {
			b.Errorf("not ready after the fault: %v", err)
		}
		sent := b.receiver.of("k")
		if last := sent[len(sent)-1]; !last.SentAt.Equal(last.Timestamp) || time.Since(last.SentAt) > time.Second {
			b.Errorf("after the fault, the last was fired at %s for %s", last.SentAt, last.Timestamp)
		}
		if missed := b.status(j).Missed; missed == 0 || missed+len(sent) != int(time.Since(b.start)/time.Second) {
			b.Errorf("%d fired and %d missed in %s", len(sent), missed, time.Since(b.start))
		}
	})
}

// A replica whose clock is off expands nothing.
func TestClockOffExpandsNothing(t *testing.T) {
	bubble(t, func(b *bench) {
		b.queue.skew = 16 * time.Second
		b.submit("k", crontab("@every 1s"))
		b.replica(nil)
		time.Sleep(10 * time.Minute)
		if n := b.queue.expanded(); n != 0 {
			b.Errorf("%d expansions with a wrong clock", n)
		}
		b.queue.set(func(q *flakyQueue) { q.skew = 0 })
		time.Sleep(20 * time.Second)
		if b.queue.expanded() == 0 || b.receiver.count() == 0 {
			b.Errorf("%d expansions and %d firings with the right clock", b.queue.expanded(), b.receiver.count())
		}
	})
}

// Occurrences are inserted within half of the lease, or not at all.
func TestAdvancesWithinHalfTheLease(t *testing.T) {
	for _, c := range []struct {
		name  string
		takes time.Duration // the claim
		left  time.Duration // for the advance; zero for none
	}{
		{"fast", 0, 6 * time.Second}, {"slow", 4 * time.Second, 2 * time.Second}, {"too slow", 6 * time.Second, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(b *bench) {
				left := []time.Duration{}
				b.queue.readJob = func(*job.Job) { time.Sleep(c.takes) }
				b.queue.advance = func(ctx context.Context, _ []store.Advance) error {
					deadline, _ := ctx.Deadline()
					left = append(left, time.Until(deadline))
					return fmt.Errorf("%w: once is enough", store.ErrUnavailable)
				}
				b.submit("k", crontab("@every 1s"))
				time.Sleep(time.Minute)
				_, stop := b.replica(func(cfg *dispatcher.Config) { cfg.Lease, cfg.CallbackTimeout = 12*time.Second, 5*time.Second })
				time.Sleep(10 * time.Second)
				stop()
				if c.left == 0 && len(left) > 0 || c.left > 0 && (len(left) != 1 || left[0] != c.left) {
					b.Errorf("advances had %v, want %s", left, c.left)
				}
			})
		})
	}
}

// A store that is too slow for an expansion of all jobs at once delays no tick for ever: smaller expansions come in time.
func TestExpansionsTooLargeForASlowStore(t *testing.T) {
	bubble(t, func(b *bench) {
		const jobs = 80
		b.queue.advance = func(ctx context.Context, advances []store.Advance) error {
			select {
			case <-time.After(time.Duration(len(advances)) * 200 * time.Millisecond):
				return nil
			case <-ctx.Done():
				return fmt.Errorf("%w: %w", store.ErrUnavailable, ctx.Err())
			}
		}
		for i := range jobs {
			b.submit(fmt.Sprint("k", i), crontab("@every 1m"))
		}
		d, _ := b.replica(calm)
		time.Sleep(15*time.Minute + time.Second)
		if n := b.receiver.count(); n != 15*jobs {
			b.Errorf("%d sent, want %d", n, 15*jobs)
		}
		if err := d.Ready(); err != nil {
			b.Errorf("not ready: %v", err)
		}
	})
}

// When a replica is stopped, it ends the advance under way, and claims no more.
func TestShutdownDuringExpansion(t *testing.T) {
	bubble(t, func(b *bench) {
		b.queue.advance = func(ctx context.Context, _ []store.Advance) error {
			select {
			case <-time.After(3 * time.Second):
				return nil
			case <-ctx.Done():
				return fmt.Errorf("%w: %w", store.ErrUnavailable, ctx.Err())
			}
		}
		j := b.submit("k", crontab("@every 1h"))
		time.Sleep(90 * time.Minute)
		_, stop := b.replica(nil)
		time.Sleep(time.Second)
		begin := time.Now()
		stop()
		if lasted := time.Since(begin); lasted != 2*time.Second {
			b.Errorf("the shutdown lasted %s, want 2s", lasted)
		}
		if b.queue.expanded() != 1 || len(b.pending(j)) != 1 {
			b.Errorf("%d jobs advanced, %d occurrences pending; want 1 and 1", b.queue.expanded(), len(b.pending(j)))
		}
	})
}

// However much there is to expand at once, it is written in parts.
func TestExpandsBitByBit(t *testing.T) {
	bubble(t, func(b *bench) {
		largest := 0
		b.queue.advance = func(_ context.Context, advances []store.Advance) error {
			occurrences := 0
			for _, a := range advances {
				occurrences += len(a.Occurrences)
			}
			largest = max(largest, occurrences)
			return nil
		}
		for i := range 30 {
			b.submit(fmt.Sprint("k", i), func(j *job.Job) {
				crontab("@every 1s")(j)
				j.Schedule.StartAt = time.Now().Add(time.Hour)
			})
		}
		time.Sleep(time.Hour)
		b.replica(nil)
		time.Sleep(500 * time.Millisecond)
		if n := b.queue.expanded(); n != 30 {
			b.Errorf("%d jobs were expanded, want 30", n)
		}
		if largest > 2500 {
			b.Errorf("one call carried %d occurrences", largest)
		}
	})
}

// A job whose schedule has ended is kept as long as other jobs, counted from its last instant.
func TestScheduleEnds(t *testing.T) {
	bubble(t, func(b *bench) {
		b.replica(func(cfg *dispatcher.Config) { cfg.Retain = time.Hour })
		j := b.submit("k", func(j *job.Job) {
			crontab("@every 10m")(j)
			j.Schedule.EndAt = time.Now().Add(45 * time.Minute)
		})
		time.Sleep(44 * time.Minute)
		b.expectSent("10m0s k #1", "20m0s k #1", "30m0s k #1", "40m0s k #1")
		if status := b.status(j); status.Live() || !status.ExpandAt.IsZero() || status.ExpiresAt.Sub(b.start).Round(time.Minute) != 100*time.Minute {
			b.Errorf("after the last: live %t, to be expanded at %s, expires after %s", status.Live(), status.ExpandAt, status.ExpiresAt.Sub(b.start))
		}
		time.Sleep(53 * time.Minute)
		b.status(j)
		time.Sleep(5 * time.Minute)
		if _, err := store.ReadJob(b.Context(), b.store, j.Name); !errors.Is(err, store.ErrNotFound) {
			b.Errorf("after its retention, the job is still there: %v", err)
		}
	})
}

// A replica that starts looks for recurring jobs at once: some may have been submitted through another replica, or
// before an outage.
func TestExpandsAtOnce(t *testing.T) {
	bubble(t, func(b *bench) {
		b.submit("k", crontab("@every 1h"))
		time.Sleep(150 * time.Minute)
		b.replica(nil)
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if got := b.receiver.of("k"); len(got) != 1 || got[0].Timestamp.Sub(b.start) != 2*time.Hour {
			b.Errorf("at once there were fired: %+v", got)
		}
	})
}
