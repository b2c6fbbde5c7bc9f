package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/carillon-scheduler/carillon/status"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/replicas"
)

// The intervals between looks at the store's clock, between heartbeats, and, on average, between sweeps.
const (
	clockInterval = 10 * time.Second
	beatInterval  = 10 * time.Second
	sweepInterval = 20 * time.Second
)

// beatFor is the time for which a heartbeat holds. A replica that dies counts as live for that time.
const beatFor = 30 * time.Second

// clock is the difference between this machine's clock and the store's.
type clock struct {
	checked atomic.Pointer[clockCheck] // nil until the store has returned its time
	off     atomic.Bool                // whether the difference exceeded notableSkew
}

type clockCheck struct {
	at   time.Time // with the monotonic clock
	skew time.Duration
}

// notableSkew is the largest difference without a warning. Claiming is safe beyond it, but occurrences fire that much
// too late or too early.
const notableSkew = 100 * time.Millisecond

// largestStep is the largest change of this machine's clock, by setting or slewing, that is tolerated between two looks
// at the store's clock.
const largestStep = 50 * time.Millisecond

// known reports whether the last look at the store's clock still holds: it does not if this machine's clock was set
// since.
func (c *clock) known(now time.Time) bool {
	last := c.checked.Load()
	return last != nil && step(last.at, now).Abs() <= largestStep
}

// step returns the amount by which the wall clock was set between two times that have both clocks.
func step(from, to time.Time) time.Duration { return to.Round(0).Sub(from.Round(0)) - to.Sub(from) }

// elapsed returns the longer of the two clocks' times between two times. The monotonic clock is right if the wall clock
// was set; the wall clock is right if the whole machine slept.
func elapsed(from, to time.Time) time.Duration {
	return max(to.Sub(from), to.Round(0).Sub(from.Round(0)))
}

// err returns the reason that claiming is not safe; nil if the clocks agree within the permitted skew.
func (c *clock) err(permitted time.Duration) error {
	last := c.checked.Load()
	if last == nil {
		return errors.New("the store has not returned its time yet")
	}
	if last.skew.Abs() > permitted {
		return fmt.Errorf("this machine's clock is %s off the store's; at most %s is safe with this lease",
			last.skew, permitted)
	}
	return nil
}

// clockAgrees returns the time, and reports whether this machine's clock is known to agree with the store's. It is
// unknown before the store has returned its time, and after this machine's clock was set.
func (d *Dispatcher) clockAgrees(ctx context.Context) (now time.Time, agrees bool) {
	if now = d.now(); !d.clock.known(now) {
		d.checkClock(ctx)
		now = d.now()
	}
	return now, d.clock.known(now) && d.clock.err(d.cfg.permittedSkew()) == nil
}

// checkClock compares this machine's clock with the store's. It allows for the time that the answer took. If that was
// so long that claiming may be safe or not, the answer tells nothing: the comparison before still holds, unless this
// machine's clock was set.
func (d *Dispatcher) checkClock(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	before := d.now()
	theirs, err := d.cfg.Store.Now(ctx)
	if err != nil {
		return // the claim loop logs that the store can't be reached
	}
	after := d.now()
	most := after.Round(0).Sub(theirs)     // if the store read its clock just before its answer came
	least := most - elapsed(before, after) // if it did so as soon as it was asked
	skew := max(least, min(most, 0))       // the one of these that is nearest to zero
	permitted := d.cfg.permittedSkew()
	if skew.Abs() <= permitted && max(-least, most) > permitted {
		d.log.Debug("the store's answer took too long to compare the clocks", "took", after.Sub(before))
		return
	}
	was := d.clock.err(permitted)
	d.clock.checked.Store(&clockCheck{at: after, skew: skew})
	if is := d.clock.err(permitted); is != nil {
		d.log.Error("claiming is stopped", "reason", is)
	} else if was != nil {
		d.log.Debug("the clock agrees with the store's", "skew", skew)
	}
	d.logSkew(skew)
}

// logSkew logs the moment at which this machine's clock begins to be notably off, and the moment at which that ends.
func (d *Dispatcher) logSkew(skew time.Duration) {
	is := skew.Abs() > notableSkew
	if was := d.clock.off.Swap(is); is == was {
		return
	}
	if is {
		d.log.Warn("this machine's clock is off the store's: set it, or occurrences fire here as much too early or too late",
			"skew", skew)
	} else {
		d.log.Info("this machine's clock is no longer off the store's", "skew", skew)
	}
}

// sweep removes finished jobs and old dead letters after their retention.
func (d *Dispatcher) sweep(ctx context.Context) {
	for more := true; more && ctx.Err() == nil; {
		now := d.now().Truncate(time.Millisecond)
		params := store.SweepParams{Now: now, Again: max(d.cfg.Retain, sweepInterval), Limit: largestBatch}
		if before := now.Add(-d.cfg.DeadLetterRetain); d.cfg.DeadLetterRetain > 0 && before.UnixMilli() > 0 {
			params.FailedBefore = before
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
		if swept.Jobs+swept.DeadLetters+swept.Records > 0 {
			d.log.Debug("swept", "jobs", swept.Jobs, "deadLetters", swept.DeadLetters, "records", swept.Records)
		}
		more = swept.More
	}
}

// beat records that this replica may be claiming, so that no program moves the store's documents meanwhile, and so that
// the replicas take turns. No guarantee depends on it, so its failure stops nothing.
func (d *Dispatcher) beat(ctx context.Context) {
	begun := d.now()
	now := begun.Truncate(time.Millisecond)
	var tells status.Heartbeat
	if d.cfg.Tells != nil {
		tells = d.cfg.Tells()
	}
	tells.Ready = d.Ready() == nil
	d.noteBeat(ctx, storeTimeout, func(ctx context.Context) error {
		hours, stored := d.hours()
		err := replicas.Beat(ctx, d.cfg.Store, d.replica, tells.Encode(), now, now.Add(beatFor), hours...)
		if err == nil {
			d.beaten.Store(&begun)
			stored()
			err = d.meetReplicas(ctx, now)
		}
		return err
	})
}

// meeting is the result of reading the heartbeats: the replicas that are ready and have beaten lately, and the number
// of all replicas with a heartbeat.
type meeting struct {
	lately []string
	all    int
}

// meetReplicas reads the replicas that have beaten lately, by their own clocks, and were ready. A replica whose clock
// is far off does not claim, and one that is stopping soon ends.
func (d *Dispatcher) meetReplicas(ctx context.Context, now time.Time) error {
	all, err := replicas.List(ctx, d.cfg.Store, now)
	if err != nil {
		return err
	}
	var lately []string
	for _, r := range all {
		told, ok := status.DecodeHeartbeat(r.Tells)
		if now.Sub(r.Seen).Abs() <= beatInterval*3/2 && (told.Ready || !ok) {
			lately = append(lately, r.ID)
		}
	}
	d.met.Store(&meeting{lately, len(all)})
	return nil
}

// beating returns the replicas that had beaten lately, and were ready, when this replica last beat.
func (d *Dispatcher) beating() []string {
	if met := d.met.Load(); met != nil {
		return met.lately
	}
	return nil
}

// hours returns the reports on hours that are not stored yet. Stored notes that they were stored.
func (d *Dispatcher) hours() (all []replicas.Hour, stored func()) {
	hours := d.cfg.Status.Unstored()
	for _, h := range hours {
		all = append(all, replicas.Hour{From: h.From, Tells: h.Encode()})
	}
	return all, func() { d.cfg.Status.Stored(hours) }
}

// lastBeat records that this replica has stopped. It gives up soon, so that a store that is down does not delay the end
// for long.
func (d *Dispatcher) lastBeat(ctx context.Context) {
	d.noteBeat(ctx, beatInterval/5, func(ctx context.Context) error {
		hours, _ := d.hours()
		return replicas.Stop(ctx, d.cfg.Store, d.replica, d.now().Truncate(time.Millisecond), hours...)
	})
}

func (d *Dispatcher) noteBeat(ctx context.Context, within time.Duration, note func(context.Context) error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if err := note(ctx); err != nil {
		d.log.Debug("a beat failed", "error", err)
	}
}

// steady is a clock for gocron, which uses wall times. Its wall times follow the monotonic clock from its creation on.
// So periodic work is neither delayed nor repeated when the machine's clock is set.
type steady struct {
	clockwork.Clock // its timers use the monotonic clock
	now             func() time.Time
	begun           time.Time
}

func steadyClock(now func() time.Time) clockwork.Clock {
	return steady{clockwork.NewRealClock(), now, now()}
}

func (s steady) Now() time.Time                  { return s.begun.Add(s.now().Sub(s.begun)) }
func (s steady) Since(t time.Time) time.Duration { return s.Now().Sub(t) }
func (s steady) Until(t time.Time) time.Duration { return t.Sub(s.Now()) }

// gocronLogger passes gocron's log to ours.
type gocronLogger struct{ log *slog.Logger }

func (l gocronLogger) Debug(msg string, args ...any) { l.log.Debug(msg, args...) }
func (l gocronLogger) Info(msg string, args ...any)  { l.log.Debug(msg, args...) }
func (l gocronLogger) Warn(msg string, args ...any)  { l.log.Warn(msg, args...) }
func (l gocronLogger) Error(msg string, args ...any) { l.log.Error(msg, args...) }
