package postgres

import (
	"sync/atomic"
	"time"
)

// clock estimates the server's clock by this process's monotonic clock, which never steps.
//
// The estimate is never ahead of the server's clock, as long as that does not step: a reading is of the moment at which
// the server answered, and is noted when the answer has come. So a deadline is too early by at most the time that the
// answer took, or that this process was stopped just then, and is never too late.
type clock struct {
	closest atomic.Pointer[reading]
}

// reading is what the server's clock showed no later than at a time here.
type reading struct {
	server, here time.Time
}

func (r *reading) at(here time.Time) time.Time { return r.server.Add(here.Sub(r.here)) }

// steady is how long a reading is relied on, since the server's clock may step. Of the readings in that time, the one
// that gives the latest time came by the fastest answer.
const steady = 10 * time.Second

// note takes a reading of the server's clock, in Unix microseconds, from an answer that has just come.
func (c *clock) note(micros int64) {
	r := read(micros)
	before := c.closest.Load()
	if before != nil && r.here.Sub(before.here) < steady && before.at(r.here).After(r.server) {
		return
	}
	c.closest.CompareAndSwap(before, r) // or another one is as recent
}

// set takes the first reading of a server, which may be another one than before.
func (c *clock) set(micros int64) { c.closest.Store(read(micros)) }

func read(micros int64) *reading { return &reading{server: time.UnixMicro(micros), here: time.Now()} }

// at is what the server's clock shows at a time here, in Unix microseconds. Some connection was made before.
func (c *clock) at(here time.Time) int64 { return c.closest.Load().at(here).UnixMicro() }

// microsSQL is the time of the server's clock.
const microsSQL = `(extract(epoch FROM clock_timestamp()) * 1e6)::bigint`
