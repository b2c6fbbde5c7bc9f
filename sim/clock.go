package sim

import (
	"sync/atomic"
	"time"
	"unsafe"
)

// wall has a machine's clocks in a bubble: the wall clock can be set, and the monotonic clock goes on. A bubble's own
// times have no monotonic clock, and only the runtime can make times with two clocks that differ. So they are put
// together here as the runtime does it. The dispatcher's tests do the same, and check it.
type wall struct{ ahead atomic.Int64 }

func (w *wall) set(ahead time.Duration) { w.ahead.Store(int64(ahead)) }

// bubbleBegin is the time at which each bubble begins.
var bubbleBegin = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// now works as [time.Now] does outside a bubble.
func (w *wall) now() (t time.Time) {
	at := time.Now().Add(time.Duration(w.ahead.Load()))
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
