package dispatcher_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/dispatcher"
	"github.com/carillon-scheduler/carillon/status"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/replicas"
)

// expectReplicas expects the number of replicas that the store knows of now.
func (b *bench) expectReplicas(what string, want int) {
	b.Helper()
	got, err := replicas.Count(b.Context(), b.store, time.Now())
	if err != nil {
		b.Fatal(err)
	}
	if got != want {
		b.Errorf("%s: %d replicas are known, want %d", what, got, want)
	}
}

// A replica is known for as long as it runs, and no longer.
func TestBeats(t *testing.T) {
	bubble(t, func(b *bench) {
		b.expectReplicas("before any runs", 0)
		_, stopFirst := b.replica(calm)
		_, stopSecond := b.replica(calm)
		synctest.Wait()
		b.expectReplicas("at once", 2)
		for range 12 {
			time.Sleep(7 * time.Second)
			b.expectReplicas("while they run", 2)
		}
		stopFirst()
		b.expectReplicas("when one was stopped", 1)
		stopSecond()
		b.expectReplicas("when both were", 0)
	})
}

// A replica is known before its first claim, and until it has settled all its claims.
func TestBeatsAroundClaims(t *testing.T) {
	bubble(t, func(b *bench) {
		b.submit("k", nil, 0)
		b.receiver.answers(func(context.Context, callbacks.Delivery) error {
			b.expectReplicas("when it fires", 1)
			time.Sleep(20 * time.Second)
			return nil
		})
		b.queue.set(func(q *flakyQueue) { q.read = func(*store.Claimed) { b.expectReplicas("when it claims", 1) } })
		_, stop := b.replica(nil)
		time.Sleep(time.Second)
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			stop()
		}()
		time.Sleep(10 * time.Second)
		b.expectReplicas("while it stops", 1)
		<-stopped
		b.expectReplicas("when it has", 0)
	})
}

// A replica stores its counts of an hour while it runs and when it stops.
func TestHoursAreStored(t *testing.T) {
	bubble(t, func(b *bench) {
		expect := func(when string, want int) {
			b.Helper()
			hours, err := replicas.Hours(b.Context(), b.store, b.start.Add(-time.Hour), time.Now())
			fired := 0
			for _, h := range hours {
				counts, ok := status.DecodeHour(h.From, h.Tells)
				if fired += counts.Fired(); !ok {
					b.Errorf("%s: %q is stored", when, h.Tells)
				}
			}
			if err != nil || fired != want {
				b.Errorf("%s: %d were fired in all hours, want %d, %v", when, fired, want, err)
			}
		}
		_, stop := b.replica(func(c *dispatcher.Config) { c.Status, _ = status.NewWatch(nil, time.Now, nil) })
		b.submit("k", nil, time.Second, 2*time.Second, 33*time.Second)
		time.Sleep(15 * time.Second)
		expect("while it runs", 2)
		time.Sleep(20 * time.Second)
		expect("before the next beat", 2)
		stop()
		expect("when it has stopped", 3)
	})
}

// A failure of heartbeats stops nothing. A store that has had no heartbeat for long does not count the replica.
func TestBeatFails(t *testing.T) {
	bubble(t, func(b *bench) {
		b.queue.set(func(q *flakyQueue) { q.beatErr = fmt.Errorf("%w: not now", store.ErrUnavailable) })
		d, _ := b.replica(nil)
		b.submit("k", nil, 15*time.Second)
		time.Sleep(20 * time.Second)
		if err := d.Ready(); err != nil || b.receiver.count() != 1 {
			b.Errorf("%d were sent, ready: %v", b.receiver.count(), err)
		}
		b.expectReplicas("while beats fail", 0)
		b.queue.set(func(q *flakyQueue) { q.beatErr = nil })
		time.Sleep(15 * time.Second)
		b.expectReplicas("when they don't", 1)

		b.queue.set(func(q *flakyQueue) { q.beatErr = fmt.Errorf("%w: not now", store.ErrUnavailable) })
		time.Sleep(45 * time.Second)
		b.expectReplicas("when they have failed for long", 0)
	})
}

// A heartbeat that hangs does not delay a replica's end.
func TestBeatHangsAtTheEnd(t *testing.T) {
	bubble(t, func(b *bench) {
		_, stop := b.replica(func(c *dispatcher.Config) { c.Store = hangingBeats{c.Store} })
		time.Sleep(time.Minute)
		before := time.Now()
		stop()
		if took := time.Since(before); took > 15*time.Second {
			b.Errorf("it took %s to stop", took)
		}
	})
}

// hangingBeats answers heartbeats only when their time is over.
type hangingBeats struct{ dispatcher.Store }

func (hangingBeats) WriteRecords(ctx context.Context, _ []store.RecordChange) []error {
	<-ctx.Done()
	return []error{fmt.Errorf("%w: %w", store.ErrUnavailable, ctx.Err())}
}

func (q *flakyQueue) WriteRecords(ctx context.Context, changes []store.RecordChange) []error {
	q.lock.Lock()
	err := q.beatErr
	q.lock.Unlock()
	if err = cmp.Or(q.fault(), err); err != nil {
		return slices.Repeat([]error{err}, len(changes))
	}
	return q.Store.WriteRecords(ctx, changes)
}
