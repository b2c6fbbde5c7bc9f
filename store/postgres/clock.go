package postgres

import (
	"sync/atomic"
	"time"
)

// clock tells what the server's clock shows, by this process' monotonic one, which never steps.
//
// What it tells is no later than it is, if the server's clock runs on: a reading is of the time at which the server
// answered, and noted when the answer has come. So a deadline is too early by the answer's way at most, or by as long
// as this process was stopped just then, and never too late.
type clock struct {
	closest atomic.Pointer[reading]
}

// reading is what the server's clock showed no later than at a time here.
type reading struct {
	server, here time.Time
}

func (r *reading) at(here time.Time) time.Time { return r.server.Add(here.Sub(r.here)) }

// steady is how long the server's clock is taken to run on. Of the readings of so long, the one that tells the latest
// time has come the soonest.
const steady = 10 * time.Second

// note notes an answer of the server that it read its clock at, in Unix microseconds.
func (c *clock) note(micros int64) {
	r := read(micros)
	before := c.closest.Load()
	if before != nil && r.here.Sub(before.here) < steady && before.at(r.here).After(r.server) {
		return
	}
	c.closest.CompareAndSwap(before, r) // or another one is as recent
}

// set notes the first answer of a server, which may be another one than before.
func (c *clock) set(micros int64) { c.closest.Store(read(micros)) }

func read(micros int64) *reading { return &reading{server: time.UnixMicro(micros), here: time.Now()} }

// at is what the server's clock shows at a time here, in Unix microseconds. Some connection was made before.
func (c *clock) at(here time.Time) int64 { return c.closest.Load().at(here).UnixMicro() }

// microsSQL is the time of the server's clock.
const microsSQL = `(extract(epoch FROM clock_timestamp()) * 1e6)::bigint`
