// Package clock relates this process's monotonic clock to the clock of a store. Replicas whose wall clocks differ use
// it to stamp and compare versions by the store's clock, as far as they know that clock.
package clock

import (
	"context"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// drift bounds the drift between two clocks, as a fraction of the time since they were compared. Crystals are within
// 100 parts in a million, and clocks that are slewed within 500 (adjtime(3)).
const drift = 0.0005

// resolution is that of the times that a store returns.
const resolution = time.Millisecond

// Clock holds the readings of a store's clock. The zero value has none. It is safe for concurrent use.
//
// Times passed in must have a monotonic reading, as those of time.Now do. Then it has no effect if this machine's wall
// clock is set back. If it is set ahead, the store's clock may show as much more, until the next reading: the machine
// may have been suspended instead.
type Clock struct {
	lock  sync.Mutex
	known bool
	// The store's clock showed least or later at received, and most or earlier at sent.
	least, most    time.Time
	sent, received time.Time
}

// Note records a reading: the store read its clock between sent and received.
func (c *Clock) Note(sent, theirs, received time.Time) {
	c.lock.Lock()
	defer c.lock.Unlock()
	next := Clock{known: true, least: theirs, most: theirs.Add(resolution), sent: sent, received: received}
	// A quick reading from a moment ago is more exact than a slow one now, unless the two contradict each other.
	if c.known && next.width(received) > c.width(received) && !next.earliest(received).After(c.latest(received)) &&
		!c.earliest(received).After(next.latest(received)) {
		return
	}
	c.known, c.least, c.most, c.sent, c.received = true, next.least, next.most, next.sent, next.received
}

func (c *Clock) width(t time.Time) time.Duration { return c.latest(t).Sub(c.earliest(t)) }

func (c *Clock) earliest(t time.Time) time.Time {
	d := t.Sub(c.received)
	return c.least.Add(d - time.Duration(drift*float64(d.Abs())))
}

func (c *Clock) latest(t time.Time) time.Time {
	d := t.Sub(c.sent)
	return c.most.Add(d + time.Duration(drift*float64(d.Abs())) + c.suspended(t))
}

// suspended returns the longest time for which this machine may have been suspended since the last reading. Its
// monotonic clock does not count that, and its wall clock does.
func (c *Clock) suspended(t time.Time) time.Duration {
	return max(0, t.Round(0).Sub(c.sent.Round(0))-t.Sub(c.sent))
}

// Earliest returns the earliest time that the store's clock may show at t; ok is false without a reading.
func (c *Clock) Earliest(t time.Time) (theirs time.Time, ok bool) {
	c.lock.Lock()
	defer c.lock.Unlock()
	return c.earliest(t), c.known
}

// Newer returns the span of versions that were taken after a request was submitted and before its deadline. The span
// includes no version taken before the submission, so a client that waits for each response before its next request is
// never refused. Without a reading the span is empty.
func (c *Clock) Newer(submitted, over time.Time) store.Span {
	c.lock.Lock()
	defer c.lock.Unlock()
	if !c.known {
		return store.Span{}
	}
	return store.Span{After: job.LastRevision(c.latest(submitted)), Until: job.LastRevision(c.latest(over))}
}

// Watch wraps inner so that c records the readings of its clock.
func (c *Clock) Watch(inner store.Store) store.Store { return &watched{inner, c} }

type watched struct {
	store.Store
	clock *Clock
}

// Now implements [store.Queue].
func (w *watched) Now(ctx context.Context) (time.Time, error) {
	sent := time.Now()
	theirs, err := w.Store.Now(ctx)
	if err == nil {
		w.clock.Note(sent, theirs, time.Now())
	}
	return theirs, err
}
