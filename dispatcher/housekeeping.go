package dispatcher

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/carillon-scheduler/carillon/store"
)

// How often replicas look at the store's clock, and on average sweep.
const (
	clockInterval = 10 * time.Second
	sweepInterval = 20 * time.Second
)

// clock is how far this machine's clock is from the store's.
type clock struct {
	skew atomic.Pointer[time.Duration] // nil until the store has told its time
}

func (c *clock) known() bool { return c.skew.Load() != nil }

// err tells why claiming is not safe; nil if the clocks agree within the permitted skew.
func (c *clock) err(permitted time.Duration) error {
	skew := c.skew.Load()
	if skew == nil {
		return fmt.Errorf("the store has not told its time yet")
	}
	if skew.Abs() > permitted {
		return fmt.Errorf("this machine's clock is %s off the store's; at most %s is safe with this lease", *skew, permitted)
	}
	return nil
}

// checkClock compares this machine's clock with the store's. The time that the answer took is not held against it.
func (d *Dispatcher) checkClock(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	before := time.Now()
	theirs, err := d.cfg.Store.Now(ctx)
	if err != nil {
		return // the claim loop tells of a store that can't be reached
	}
	after := time.Now()
	var skew time.Duration
	switch {
	case theirs.Before(before.Round(0)):
		skew = before.Round(0).Sub(theirs)
	case theirs.After(after.Round(0)):
		skew = after.Round(0).Sub(theirs)
	}
	permitted := d.cfg.margin() / 2
	was := d.clock.err(permitted)
	d.clock.skew.Store(&skew)
	if is := d.clock.err(permitted); is != nil {
		d.log.Error("claiming is stopped", "reason", is)
	} else if was != nil {
		d.log.Debug("the clock agrees with the store's", "skew", skew)
	}
}

// sweep removes finished jobs and old dead letters whose retention has passed.
func (d *Dispatcher) sweep(ctx context.Context) {
	for more := true; more && ctx.Err() == nil; {
		now := time.Now().Truncate(time.Millisecond)
		params := store.SweepParams{Now: now, Again: max(d.cfg.Retain, sweepInterval), Limit: largestBatch}
		if d.cfg.DeadLetterRetain > 0 {
			params.FailedBefore = now.Add(-d.cfg.DeadLetterRetain)
		}
		call, cancel := context.WithTimeout(ctx, storeTimeout)
		swept, err := d.cfg.Store.Sweep(call, params)
		cancel()
		if err != nil {
			if ctx.Err() == nil {
				d.log.Warn("a sweep failed", "error", err)
			}
			return
		}
		if swept.Jobs+swept.DeadLetters > 0 {
			d.log.Debug("swept", "jobs", swept.Jobs, "deadLetters", swept.DeadLetters)
		}
		more = swept.More
	}
}

// gocronLogger passes on what gocron has to say.
type gocronLogger struct{ log *slog.Logger }

func (l gocronLogger) Debug(msg string, args ...any) { l.log.Debug(msg, args...) }
func (l gocronLogger) Info(msg string, args ...any)  { l.log.Debug(msg, args...) }
func (l gocronLogger) Warn(msg string, args ...any)  { l.log.Warn(msg, args...) }
func (l gocronLogger) Error(msg string, args ...any) { l.log.Error(msg, args...) }
