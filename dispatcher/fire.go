package dispatcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/dispatcher/destinations"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// batch is the common state of the firings of one claim.
type batch struct {
	// start is the moment of the claim. The callbacks' time runs from it, so that it ends before the lease does.
	start time.Time
	// ctx ends with the callbacks' time, when they are cut off, or after the last of the batch.
	ctx    context.Context
	cancel context.CancelFunc
	left   atomic.Int64 // occurrences yet to be fired

	lock     sync.Mutex
	catchUps map[job.Revision]func() catchUp
}

// time converts a time with the monotonic clock to the wall clock of the claim, which agreed with the store's. If the
// wall clock has been set since, its own time would make a retry too early or too late.
func (b *batch) time(now time.Time) time.Time { return b.start.Add(now.Sub(b.start)) }

// start fires all occurrences of a claim at once, each in an idle goroutine or a new one. The goroutines stay, since
// their stacks have grown: at most as many as ever fired at the same time.
func (d *Dispatcher) start(ctx context.Context, at time.Time, claimed []store.Claimed) {
	if len(claimed) == 0 {
		return
	}
	b := &batch{start: at}
	b.left.Store(int64(len(claimed)))
	b.ctx, b.cancel = context.WithTimeout(ctx, d.cfg.CallbackTimeout-d.now().Sub(at))
	for i := range claimed {
		f := firing{claimed[i], b} // a copy, so that one long callback does not keep the whole claim in memory
		select {
		case d.work <- f:
		default:
			go d.worker(f)
		}
	}
}

// firing is an occurrence to be fired.
type firing struct {
	claimed store.Claimed
	batch   *batch
}

// worker fires one occurrence after the other, until the dispatcher ends.
func (d *Dispatcher) worker(f firing) {
	d.fire(f)
	for f := range d.work {
		d.fire(f)
	}
}

// fire makes one attempt at a claimed occurrence, unless it is too late, and passes the outcome to the settler.
func (d *Dispatcher) fire(f firing) {
	c, b, now := &f.claimed, f.batch, d.now()
	var made attempt
	pass, err := d.attempt(c, b, now, &made)
	d.unknown(c, b, made.to)
	s := d.outcome(c, b, pass, err)
	if s.Outcome == store.Retry || s.Outcome == store.Release {
		s.KeepUntil = s.DueAt.Add(d.cfg.Retain)
	}
	endSpan(made.span, &s, err)
	late := lateness(c, s.Outcome, now)
	d.metrics.settled(c, s.Outcome, late, spanContext(made.span))
	switch {
	case late >= 0:
		d.cfg.Status.Fired(c.Name, late)
	case s.Outcome == store.Miss:
		d.cfg.Status.Missed(c.Name, 1)
	}
	d.logOutcome(b.ctx, c, &s, now)
	if b.left.Add(-1) == 0 {
		b.cancel()
	}
	d.fired <- ended{s, d.entry(c, b, &made, &s, err)}
}

// attempt describes an attempt that was made; zero if none was.
type attempt struct {
	to   string    // the destination; known even if it was not sent
	at   time.Time // when it was sent, with the monotonic clock
	took time.Duration
	span trace.Span // nil if there are no traces
}

// unfired is the reason for releasing a claim without an attempt, and the pause until the next claim, or its due time
// if that is not zero. Unless the pause is exact, up to half of it is added at random, so that a backlog does not come
// back at once.
type unfired struct {
	error
	after time.Duration
	exact bool
	due   time.Time
}

var (
	errTooLate = errors.New("the claim's time ran out before the callback could be sent: " +
		"the store or this machine is slow")
	errEarly     = errors.New("it fires later than its instant")
	errCutOff    = errors.New("cut off by the shutdown")
	errAbandoned = errors.New("claimed again and again without an outcome; given up unfired")
)

const (
	// abandonAfter is the number of claims beyond a job's MaxAttempts that are granted because replicas may have died.
	abandonAfter = 3
	// tooLatePause is the pause of an occurrence that was claimed too late to fire, so that a slow store is not made
	// slower.
	tooLatePause = 5 * time.Second
)

// attempt makes the attempt, describes it in made, and returns its pass. If it makes none, it returns the reason and no
// pass. A panic becomes an error: neither a job's data nor a sender's code ends the process.
func (d *Dispatcher) attempt(
	c *store.Claimed, b *batch, now time.Time, made *attempt,
) (pass *destinations.Pass, err error) {
	defer d.recovered(c, &err)
	if c.Fault != nil {
		return nil, callbacks.Permanent(fmt.Errorf("the store's data can't be read: %w", c.Fault))
	}
	if err := d.inTime(c, b); err != nil {
		return nil, err
	}
	sender, ok := d.cfg.Callbacks.Sender(c.Callback.Type)
	if !ok {
		err := fmt.Errorf("this replica has no sender for callbacks of type %q", c.Callback.Type)
		return nil, &unfired{error: err, after: d.outages[""].begun(now, tooLatePause)}
	}
	if c.Attempt > c.Options.Retry.WithDefaults().MaxAttempts+abandonAfter {
		return nil, callbacks.Permanent(errAbandoned)
	}
	to, part := d.cfg.Callbacks.Place(c.Callback)
	made.to = to
	entered, err := d.destinations.Enter(b.ctx, to, destinations.Limits{
		Part:     part,
		InFlight: c.Options.Destination.MaxInFlight, Rate: c.Options.Destination.RatePerSecond,
		Flow: d.flow(c), Again: c.LastError != "",
	})
	if after, deferred := destinations.IsDeferral(err); deferred {
		d.metrics.park()
		return nil, &unfired{error: err, after: after, exact: true}
	}
	if err != nil { // the context ended while it waited
		return nil, &unfired{error: errTooLate, after: tooLatePause}
	}
	now = d.now() // it may have waited for its turn
	// A process that was stopped for a while must not fire an occurrence that another replica may hold by now.
	if elapsed(b.start, now) >= d.cfg.CallbackTimeout {
		entered.Cancel()
		return nil, &unfired{error: errTooLate, after: tooLatePause}
	}
	shown, unsent := destinations.Failed, false // this holds for a panic too
	defer func() {
		if unsent {
			entered.Cancel()
		} else {
			entered.Done(shown)
		}
	}()
	sending := b.ctx
	if d.tracer != nil {
		sending, made.span = d.startSpan(b.ctx, sender, c, now)
	}
	made.at = now
	err = d.send(sending, sender, c, now)
	made.took = d.now().Sub(now)
	shown = verdict(err)
	failure, classified := errors.AsType[*callbacks.Failure](err)
	if unsent = classified && failure.Blame == callbacks.BlameNobody; unsent {
		return nil, err
	}
	if classified && failure.Refused {
		d.metrics.refuse(c.Callback.Type)
	}
	if classified && failure.Unavailable {
		return nil, &unfired{error: err, after: d.outages[c.Callback.Type].begun(now, failure.After)}
	}
	d.outages[c.Callback.Type].ended()
	if err != nil && !classified && errors.Is(b.ctx.Err(), context.Canceled) {
		return nil, &unfired{error: errCutOff}
	}
	return entered, err
}

// recovered turns a panic over an occurrence into the error of its attempt.
func (d *Dispatcher) recovered(c *store.Claimed, err *error) {
	if r := recover(); r != nil {
		d.log.Error("firing panicked", "job", c.Name.String(), "type", c.Callback.Type,
			"panic", r, "stack", string(debug.Stack()))
		*err = fmt.Errorf("firing panicked: %v", r)
	}
}

// flow returns the flow that a callback belongs to at its destination.
func (d *Dispatcher) flow(c *store.Claimed) destinations.Flow {
	tenant := d.treat(c.Name.Tenant)
	priority := cmp.Or(c.Priority, tenant.Priority, job.PriorityNormal)
	return destinations.Flow{
		Tenant: c.Name.Tenant, Priority: priority,
		PriorityWeight: d.cfg.Policy.Weight(priority), TenantWeight: tenant.Weight,
	}
}

// verdict returns the state of the destination that an attempt's error shows. A receiver that permanently refuses a
// delivery works. A lost connection to a broker is an outage of the whole callback type, not of one destination.
func verdict(err error) destinations.Verdict {
	failure, classified := errors.AsType[*callbacks.Failure](err)
	switch {
	case err == nil, classified && (failure.Permanent || failure.Unavailable || failure.Blame == callbacks.BlameDelivery):
		return destinations.Well
	case classified && failure.Blame == callbacks.BlamePart:
		return destinations.PartFailed
	default:
		return destinations.Failed
	}
}

// send calls the sender within the callback's remaining time.
func (d *Dispatcher) send(ctx context.Context, sender callbacks.Sender, c *store.Claimed, now time.Time) (err error) {
	defer func() { d.metrics.sent(c.Callback.Type, d.now().Sub(now), trace.SpanContextFromContext(ctx)) }()
	defer d.recovered(c, &err)
	delivery := callbacks.Delivery{
		ID:        c.DeliveryID(),
		Name:      c.Name,
		Timestamp: c.Timestamp,
		Attempt:   c.Attempt,
		SentAt:    now,
		Data:      c.Callback.Data,
		Payload:   c.Payload(c.Options),
		Part:      c.Part,
		Event:     c.Options.Event,
		Envelope:  c.Options.Envelope,
		Signing:   c.Options.Signing,
		Secrets:   d.cfg.Secrets,
	}
	if d.tracer != nil {
		delivery.Trace = job.TraceOf(trace.SpanContextFromContext(ctx))
	}
	if err = sender.Send(ctx, delivery); err == nil {
		return nil
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("no answer within %s: %w", d.cfg.CallbackTimeout, err)
	}
	return plain(err)
}

// plainError has all that a sender's error tells.
type plainError struct {
	text, kind string
	status     int
}

func (e *plainError) Error() string     { return e.text }
func (e *plainError) ErrorType() string { return e.kind }
func (e *plainError) Status() int       { return e.status }

// plain returns an error, or a failure, that tells the same as a sender's without running the sender's code any more:
// methods of errors may panic too, such as those of nil pointers, and the caller recovers from that.
func plain(err error) error {
	told := &plainError{err.Error(), errorType(err).Value.AsString(), callbacks.StatusOf(err)}
	failure, ok := errors.AsType[*callbacks.Failure](err)
	if !ok {
		return told
	}
	of := *failure
	of.Err = told
	return &of
}

// outage is the time for which a type's callbacks have been impossible to send. Pauses grow with it, so that a large
// backlog of such callbacks does not take all claims from the others.
type outage struct {
	since atomic.Pointer[time.Time] // with the monotonic clock; nil while there is none
}

// begun notes that a callback could not be sent, and returns the pause: the requested one, or a tenth of the outage so
// far, up to a minute.
func (o *outage) begun(now time.Time, asked time.Duration) time.Duration {
	o.since.CompareAndSwap(nil, &now)
	var lasted time.Duration
	if since := o.since.Load(); since != nil { // otherwise the outage has just ended
		lasted = now.Sub(*since)
	}
	return max(asked, min(lasted/10, time.Minute))
}

// ended notes that a callback could be sent.
func (o *outage) ended() {
	if o.since.Load() != nil { // a read is cheaper than a write when all cores do it at once
		o.since.Store(nil)
	}
}

// outcome decides how a claim ends. Pass is the attempt's; nil if none was made.
func (d *Dispatcher) outcome(c *store.Claimed, b *batch, pass *destinations.Pass, err error) store.Settlement {
	s := store.Settlement{
		ID: c.ID, Token: c.Token, Hint: c.Hint, Name: c.Name, Priority: c.Priority, Revision: c.Revision,
		Outcome: store.Ack,
	}
	if err == nil {
		return s
	}
	s.Error = describe(err)
	random := rand.Float64()
	if u, ok := errors.AsType[*unfired](err); ok {
		s.Outcome = store.Release
		after := u.after
		if !u.exact {
			after += time.Duration(random * float64(after) / 2)
		}
		if s.DueAt = u.due; s.DueAt.IsZero() {
			s.DueAt = d.dueAfter(b.time(d.now()), after)
		}
		return s
	}
	if _, ok := errors.AsType[missed](err); ok {
		s.Outcome, s.At = store.Miss, job.CeilMilli(b.time(d.now()))
		return s
	}
	failure, ok := errors.AsType[*callbacks.Failure](err)
	if !ok {
		failure = &callbacks.Failure{Err: err}
	}
	own := max(failure.After, c.Options.Retry.Delay(c.Attempt, random))
	after, free := own, false
	if pass != nil && !failure.Permanent && failure.After == 0 { // a pause requested by the receiver is kept
		after, free = pass.Again(c.ID, own)
	}
	now := b.time(d.now()) // read after the pass has set the pause, so that the retry is not early
	if s.DueAt = d.dueAfter(now, after); free {
		s.Outcome = store.Release
		return s
	}
	bury := failure.Permanent || c.Attempt >= c.Options.Retry.WithDefaults().MaxAttempts
	if !bury && overdue(c, job.CeilMilli(now.Add(own))) {
		bury = true
		s.Error += "; the next attempt would come after the deadline"
	}
	if bury {
		s.Outcome, s.DueAt, s.At = store.Bury, time.Time{}, now
		s.Target = job.Target{Callback: c.Callback, Options: c.Options.Alone(c.Part)}
		return s
	}
	s.Outcome = store.Retry
	return s
}

// dueAfter returns the due time of an occurrence that is claimed again after a pause. Claims come before due times by
// the early window.
func (d *Dispatcher) dueAfter(now time.Time, pause time.Duration) time.Time {
	return job.CeilMilli(now.Add(pause + d.cfg.Early))
}

// describe returns an error's text for the store: valid UTF-8 of bounded length.
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
		text = "given back; it will be tried again"
		if s.Error == errTooLate.Error() {
			level = slog.LevelWarn
		}
	case store.Miss:
		level, text = slog.LevelInfo, "missed; it will not fire"
	case store.Bury:
		level, text = slog.LevelWarn, "given up; moved to the dead letters"
	}
	if !d.log.Enabled(ctx, level) { // checked first, before anything is formatted: this runs for every firing
		return
	}
	attrs := []slog.Attr{
		slog.String("job", c.Name.String()), slog.String("timestamp", job.FormatTime(c.Timestamp)),
		slog.String("delivery", c.DeliveryID().String()), slog.String("type", c.Callback.Type),
		slog.String("deviation", firedAt.Sub(c.Options.FiresAt(&c.Occurrence)).Round(100*time.Microsecond).String()),
	}
	if s.Outcome != store.Miss { // a miss has no outcome label
		attrs = append(attrs, slog.Int("attempt", c.Attempt))
	}
	if s.Error != "" {
		attrs = append(attrs, slog.String("error", s.Error))
	}
	if !s.DueAt.IsZero() {
		attrs = append(attrs, slog.String("dueAt", job.FormatTime(s.DueAt)))
	}
	d.log.LogAttrs(ctx, level, text, attrs...)
}
