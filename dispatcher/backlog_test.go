package dispatcher_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/dispatcher"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

var backlogGauges = []string{
	"carillon_due_backlog", "carillon_oldest_due_age_seconds", "carillon_pending", "carillon_dead_letters", "carillon_replicas",
}

// expectBacklog expects the gauges of the backlog, in the order above.
func (m measured) expectBacklog(what string, want ...any) {
	m.Helper()
	for i, name := range backlogGauges {
		m.expect(what, fmt.Sprint(want[i]), name)
	}
}

// expectUnknown expects none of the gauges to have a value.
func (m measured) expectUnknown(what string) {
	m.Helper()
	m.expectBacklog(what, "NaN", "NaN", "NaN", "NaN", "NaN")
}

// backlogQueue is a store that counts its backlog slowly, or can't count it.
type backlogQueue struct {
	dispatcher.Store
	asked atomic.Int64
	takes atomic.Int64 // nanoseconds
	down  atomic.Bool
}

func (q *backlogQueue) Count(ctx context.Context, now time.Time, lanes []job.Lane, limit int) ([]store.Count, error) {
	if len(lanes) > 0 {
		return q.Store.Count(ctx, now, lanes, limit)
	}
	q.asked.Add(1)
	select {
	case <-time.After(time.Duration(q.takes.Load())):
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", store.ErrUnavailable, ctx.Err())
	}
	if q.down.Load() {
		return nil, fmt.Errorf("%w: switched off", store.ErrUnavailable)
	}
	return q.Store.Count(ctx, now, nil, limit)
}

// measureBacklog starts a replica with metrics on a backlogQueue.
func (b *bench) measureBacklog(takes time.Duration) (m measured, q *backlogQueue, log *lockedLog) {
	b.Helper()
	q, log = &backlogQueue{Store: b.queue}, &lockedLog{}
	q.takes.Store(int64(takes))
	m, _, _ = b.measure(func(c *dispatcher.Config) {
		c.Store, c.Logger = q, slog.New(slog.NewTextHandler(log, nil))
		c.Concurrency, c.Tick = 1, time.Minute
	})
	return m, q, log
}

// The backlog is shown from the start, and again every 15 seconds.
func TestBacklogIsShown(t *testing.T) {
	bubble(t, func(b *bench) {
		release := make(chan struct{})
		b.receiver.answers(func(ctx context.Context, _ callbacks.Delivery) error {
			select {
			case <-release:
			case <-ctx.Done():
			}
			return nil
		})
		b.submit("k", nil, -3*time.Second, -2*time.Second, -time.Second, time.Hour)
		m, q, _ := b.measureBacklog(0)
		synctest.Wait()
		if n := q.asked.Load(); n != 1 {
			b.Fatalf("the backlog was asked for %d times at the start", n)
		}
		for _, name := range backlogGauges {
			if m.text(name) == "NaN" {
				b.Errorf("%s is not known at the start", name)
			}
		}
		time.Sleep(16 * time.Second) // one is under way, and the others wait for its slot
		m.expectBacklog("after a while", 2, 17, 4, 0, 1)
		close(release)
		time.Sleep(10 * time.Second)
		m.expectBacklog("before it is asked again", 2, 17, 4, 0, 1)
		time.Sleep(5 * time.Second)
		m.expectBacklog("when it was", 0, 0, 1, 0, 1)
		if n := q.asked.Load(); n != 3 {
			b.Errorf("the backlog was asked for %d times in 31 seconds", n)
		}
	})
}

// When the store does not count its backlog any more, the last numbers are shown until three refreshes have failed.
// Then none are shown until the store answers again.
func TestBacklogGoesStale(t *testing.T) {
	t.Parallel()
	bubble(t, func(b *bench) {
		b.submit("k", nil, time.Hour)
		m, q, log := b.measureBacklog(0)
		time.Sleep(time.Second)
		m.expectBacklog("at first", 0, 0, 1, 0, 1)
		q.down.Store(true)
		time.Sleep(44 * time.Second) // 15 s and 30 s have failed, and the third is about to
		m.expectBacklog("after two missed refreshes", 0, 0, 1, 0, 1)
		time.Sleep(11 * time.Second)
		m.expectUnknown("after three")
		time.Sleep(10 * time.Minute)
		m.expectUnknown("for long")
		if n := log.count("the store does not count its backlog"); n != 1 {
			b.Errorf("it was told %d times", n)
		}
		q.down.Store(false)
		time.Sleep(15 * time.Second)
		m.expectBacklog("when it is back", 0, 0, 1, 0, 1)
	})
}

// A store that takes long to count is asked so rarely that this takes at most a hundredth of its time. The last numbers
// are shown until the next reading.
func TestSlowBacklog(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	t.Parallel()
	bubble(t, func(b *bench) {
		b.submit("k", nil, 100*time.Hour)
		m, q, _ := b.measureBacklog(2 * time.Second)
		synctest.Wait()
		m.expectUnknown("before the first answer")
		time.Sleep(3 * time.Second)
		for range 30 {
			m.expectBacklog("all the time", 0, 0, 1, 0, 1)
			time.Sleep(time.Minute)
		}
		if n := q.asked.Load(); n < 5 || n > 10 { // every 202 s, or a little later
			b.Errorf("it was asked %d times in half an hour", n)
		}
		// A store that never answers in time is asked less and less.
		q.takes.Store(int64(time.Hour))
		time.Sleep(time.Hour)
		m.expectUnknown("when it has been too slow for long")
		before := q.asked.Load()
		time.Sleep(3 * time.Hour)
		if n := q.asked.Load() - before; n < 1 || n > 5 {
			b.Errorf("it was asked %d times in three hours, for half a minute each", n)
		}
	})
}

// Without metrics, the backlog is not read.
func TestNobodyAsksForTheBacklog(t *testing.T) {
	bubble(t, func(b *bench) {
		q := &backlogQueue{Store: b.queue}
		b.replica(func(c *dispatcher.Config) { c.Store = q })
		time.Sleep(time.Minute)
		if n := q.asked.Load(); n != 0 {
			b.Errorf("it was asked %d times", n)
		}
	})
}

// A count under way does not delay the end.
func TestBacklogAtTheEnd(t *testing.T) {
	bubble(t, func(b *bench) {
		q := &backlogQueue{Store: b.queue}
		q.takes.Store(int64(time.Hour))
		_, _, stop := b.measure(func(c *dispatcher.Config) { c.Store = q })
		time.Sleep(time.Second)
		before := time.Now()
		stop()
		if took := time.Since(before); took > time.Second {
			b.Errorf("it took %s to stop", took)
		}
	})
}
