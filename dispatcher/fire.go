package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// fire makes one attempt at a claimed occurrence and hands its outcome to the settler. Start is the moment of the claim:
// the callback's time runs from there, so that it ends before the lease does.
func (d *Dispatcher) fire(ctx context.Context, c store.Claimed, start time.Time) {
	now := time.Now()
	err := d.attempt(ctx, &c, start, now)
	s := outcome(&c, err, time.Now(), rand.Float64())
	if s.Outcome == store.Retry || s.Outcome == store.Release {
		s.KeepUntil = s.DueAt.Add(d.cfg.Retain)
	}
	d.logOutcome(ctx, &c, &s, now)
	d.fired <- s
}

var (
	errTooLate  = errors.New("the claim's time ran out before the callback could be sent")
	errAbandons = errors.New("claimed again and again without an outcome; given up unfired")
)

// abandonAfter is how many claims beyond a job's MaxAttempts are granted for replicas that died on the way.
const abandonAfter = 3

func (d *Dispatcher) attempt(ctx context.Context, c *store.Claimed, start, now time.Time) (err error) {
	sender, ok := d.cfg.Callbacks.Sender(c.Callback.Type)
	if !ok {
		return callbacks.Unavailable(fmt.Errorf("this replica has no sender for callbacks of type %q", c.Callback.Type), 5*time.Second)
	}
	if c.Attempt > c.Options.Retry.WithDefaults().MaxAttempts+abandonAfter {
		return callbacks.Permanent(errAbandons)
	}
	// A process that was stopped for a while must not fire what another may hold by now. Both clocks are asked: the
	// monotonic one is right when the other was set, the other when the whole machine slept.
	if max(now.Sub(start), now.Round(0).Sub(start.Round(0))) >= d.cfg.CallbackTimeout {
		return callbacks.Unavailable(errTooLate, 0)
	}
	ctx, cancel := context.WithDeadline(ctx, start.Add(d.cfg.CallbackTimeout))
	defer cancel()
	defer func() {
		if r := recover(); r != nil {
			d.log.Error("a sender panicked", "type", c.Callback.Type, "panic", r, "stack", string(debug.Stack()))
			err = fmt.Errorf("the sender panicked: %v", r)
		}
	}()
	err = sender.Send(ctx, callbacks.Delivery{
		ID:        c.DeliveryID(),
		Name:      c.Name,
		Timestamp: c.Timestamp,
		Attempt:   c.Attempt,
		SentAt:    now,
		Data:      c.Callback.Data,
	})
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("no answer within %s: %w", d.cfg.CallbackTimeout, err)
	}
	return err
}

// outcome decides how a claim ends. Random is uniform in [0, 1).
func outcome(c *store.Claimed, err error, now time.Time, random float64) store.Settlement {
	s := store.Settlement{ID: c.ID, Token: c.Token, Name: c.Name, Revision: c.Revision, Outcome: store.Ack}
	if err == nil {
		return s
	}
	s.Error = describe(err)
	failure, ok := errors.AsType[*callbacks.Failure](err)
	if !ok {
		failure = &callbacks.Failure{Err: err}
	}
	switch {
	case failure.Unavailable:
		// Spread over half as long again, lest a whole backlog comes back at once.
		s.Outcome = store.Release
		s.DueAt = job.CeilMilli(now.Add(failure.After + time.Duration(random*float64(failure.After)/2)))
	case failure.Permanent || c.Attempt >= c.Options.Retry.WithDefaults().MaxAttempts:
		s.Outcome, s.Target, s.At = store.Bury, c.Target, now
	default:
		s.Outcome = store.Retry
		s.DueAt = job.CeilMilli(now.Add(max(failure.After, c.Options.Retry.Delay(c.Attempt, random))))
	}
	return s
}

// describe is an error's text as it is kept: valid UTF-8 of bounded length.
func describe(err error) string {
	const most = 500
	text := strings.ToValidUTF8(err.Error(), "�")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

func (d *Dispatcher) logOutcome(ctx context.Context, c *store.Claimed, s *store.Settlement, firedAt time.Time) {
	level, text := slog.LevelDebug, "delivered"
	switch s.Outcome {
	case store.Ack:
	case store.Retry:
		level, text = slog.LevelInfo, "attempt failed; it will be retried"
	case store.Release:
		text = "not sent; it will be tried again"
	case store.Bury:
		level, text = slog.LevelWarn, "given up; moved to the dead letters"
	}
	if !d.log.Enabled(ctx, level) { // before anything is formatted: this runs for every firing
		return
	}
	attrs := []slog.Attr{
		slog.String("job", c.Name.String()), slog.String("timestamp", job.FormatTime(c.Timestamp)),
		slog.String("delivery", c.DeliveryID().String()), slog.String("type", c.Callback.Type), slog.Int("attempt", c.Attempt),
		slog.Duration("deviation", firedAt.Sub(c.Timestamp)),
	}
	if s.Error != "" {
		attrs = append(attrs, slog.String("error", s.Error))
	}
	if !s.DueAt.IsZero() {
		attrs = append(attrs, slog.String("dueAt", job.FormatTime(s.DueAt)))
	}
	d.log.LogAttrs(ctx, level, text, attrs...)
}
