package redis

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/carillon-scheduler/carillon/store"
)

// A change must not take effect after its deadline. A command may be delayed for a minute, and be executed after its
// caller has given up. So the script of a change gets its deadline by the server's clock, and refuses to begin later,
// see bounded.lua. A refusal contains the server's time. If the deadline is after that time, the change is tried again.

// clock relates a server's clock to this process's monotonic clock, which is never set. It is safe for concurrent use.
type clock struct{ last atomic.Pointer[reading] }

// reading is a server's time, and this process's time when the answer arrived.
type reading struct {
	shown int64 // Unix time in milliseconds
	came  time.Time
}

// trusted is the time for which a reading is valid: clocks drift, and are set.
const trusted = time.Minute

// note records a time that the server's clock showed a moment ago.
func (c *clock) note(shown int64) { c.last.Store(&reading{shown, time.Now()}) }

// at converts a time of this process to the server's clock, in Unix milliseconds. The result lags by the last answer's
// time in transit, so a bound derived from it may be too early, but never too late.
func (c *clock) at(t time.Time) int64 {
	r := c.last.Load()
	return r.shown + t.Sub(r.came).Milliseconds()
}

// fresh reports whether the clock was read recently.
func (c *clock) fresh() bool {
	r := c.last.Load()
	return r != nil && time.Since(r.came) < trusted
}

// readClocks reads the clocks of shards. It returns the errors of those that it could not read, by shard.
func (s *Store) readClocks(ctx context.Context, shards []int) map[int]error {
	if len(shards) == 0 {
		return nil
	}
	calls := make([]call, len(shards))
	for i, shard := range shards {
		calls[i] = call{script: clockScript, shard: shard}
	}
	failed := make(map[int]error)
	for i, r := range s.run(ctx, calls) {
		at, err := r.time()
		if err != nil {
			failed[shards[i]] = err
			continue
		}
		s.shard(shards[i]).clock.note(at.UnixMilli())
	}
	return failed
}

// bound limits a change to [store.Within].
func bound(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, store.Within)
}

// monotonic returns the time since this process began, by a clock that is never set back.
func monotonic() time.Duration { return time.Since(began) }

var began = time.Now()
