package sim

import (
	"sync"
	"time"
	"unsafe"
)

// wall has a machine's clocks in a bubble: the wall clock can be set, and goes wrong, and the monotonic clock goes on.
// A bubble's own times have no monotonic clock, and only the runtime can make times with two clocks that differ. So
// they are put together here as the runtime does it. The dispatcher's tests do the same, and check it.
type wall struct {
	lock  sync.Mutex
	steps time.Duration // how far it was set ahead
	rate  time.Duration // by how much it goes wrong per second, from a time on
	since time.Time
}

// step sets the clock ahead.
func (w *wall) step(by time.Duration) {
	w.lock.Lock()
	defer w.lock.Unlock()
	w.steps += by
}

// drift has the clock go wrong by some time per second, from now on. The error of a drift before is set right.
func (w *wall) drift(rate time.Duration) {
	w.lock.Lock()
	defer w.lock.Unlock()
	w.rate, w.since = rate, time.Now()
}

// ahead returns how far the clock is ahead of the true time.
func (w *wall) ahead() time.Duration {
	w.lock.Lock()
	defer w.lock.Unlock()
	if w.rate == 0 {
		return w.steps
	}
	return w.steps + time.Duration(time.Since(w.since).Seconds()*float64(w.rate))
}

// bubbleBegin is the time at which each bubble begins.
var bubbleBegin = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// now works as [time.Now] does outside a bubble.
func (w *wall) now() (t time.Time) {
	at := time.Now().Add(w.ahead())
	since1885 := at.Sub(time.Date(1985, 1, 1, 0, 0, 0, 0, time.UTC)) + 36524*24*time.Hour
	fields := (*struct {
		wall uint64
		ext  int64
		loc  *time.Location
	})(unsafe.Pointer(&t))

	fields.wall = 1<<63 | uint64(since1885/time.Second)<<30 | uint64(at.Nanosecond())
	fields.loc = time.UTC
	fields.ext = int64(time.Since(bubbleBegin)) + 1
	return t
}
