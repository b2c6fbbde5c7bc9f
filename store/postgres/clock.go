package postgres

import (
	"sync/atomic"
	"time"
)

// clock estimates the server's clock by this process's monotonic clock, which never steps.
//
// The estimate is never ahead of the server's clock, provided that the server's clock does not step: a reading is the
// time at which the server answered, and is recorded when the answer arrives. So a deadline may be too early, by at
// most the time that the answer took or that this process was stopped, and is never too late.
type clock struct {
	closest atomic.Pointer[reading]
}

// reading is a time of the server's clock, and a later or equal local time.
type reading struct {
	server, here time.Time
}

func (r *reading) at(here time.Time) time.Time { return r.server.Add(here.Sub(r.here)) }

// steady is the time for which a reading is valid, since the server's clock may step. Among the readings in that time,
// the one that gives the latest time came with the fastest answer.
const steady = 10 * time.Second

// note records a reading of the server's clock, in Unix microseconds, from an answer that has just arrived.
func (c *clock) note(micros int64) {
	r := read(micros)
	before := c.closest.Load()
	if before != nil && r.here.Sub(before.here) < steady && before.at(r.here).After(r.server) {
		return
	}
	c.closest.CompareAndSwap(before, r) // if this fails, another reading is as recent
}

// set records the first reading of a server, which may differ from the previous server.
func (c *clock) set(micros int64) { c.closest.Store(read(micros)) }

func read(micros int64) *reading { return &reading{server: time.UnixMicro(micros), here: time.Now()} }

// at returns the time of the server's clock at a local time, in Unix microseconds. A connection must have been made
// before.
func (c *clock) at(here time.Time) int64 { return c.closest.Load().at(here).UnixMicro() }

// microsSQL is the expression for the time of the server's clock.
const microsSQL = `(extract(epoch FROM clock_timestamp()) * 1e6)::bigint`
