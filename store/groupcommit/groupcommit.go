// Package groupcommit joins the puts of many clients: puts that arrive while the store is busy with others share one
// call. So single puts cost about as much as the puts of a batch. There is no timer; a put that arrives alone does not
// wait.
package groupcommit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carillon-scheduler/carillon/store"
)

const (
	// largest is the weight of the largest put that joins others. They would have to wait for a larger one, and it
	// would gain nothing from a shared call.
	largest = 64 << 10
	// largestBatch bounds the weight of a batch, and so its memory and time.
	largestBatch = 1 << 20
	// apart bounds the distance between the deadlines of one batch: the first of them ends the whole call.
	apart = 5 * time.Second
)

// New wraps a store so that single puts share calls. At most writers such calls are under way at a time. Puts of
// several jobs, which are a batch already, and large puts are made alone and do not count. All other methods are passed
// through.
func New(jobs store.Jobs, writers int) store.Jobs {
	return &gatherer{inner: jobs, writers: writers}
}

// inner embeds the store under a field name that differs from all its methods' names.
type inner interface{ store.Jobs }

// gatherer has no goroutine of its own. One caller writes a batch for all waiting callers, and then hands the next
// batch to one of the callers that arrived meanwhile. So no caller writes for others more than once.
type gatherer struct {
	inner
	writers int

	mu      sync.Mutex
	writing int     // calls under way, or handed to a caller that is about to make one
	waiting []*call // in the order of their coming; empty while fewer than writers are writing
}

// call is a put of one job that had to wait.
type call struct {
	ctx    context.Context
	ends   time.Time
	put    *store.Put
	weight int
	step   chan step // gets one when the call has left the queue
	batch  *batch    // the call's batch; nil while it waits
	result store.PutResult
}

// step is the next step of a caller that has waited.
type step int

const (
	answer step = iota // return the result of the call
	lead               // put the next batch, beginning with its own
	single             // put its own alone
)

// Put implements [store.Jobs]. A put whose context ends while it waits is never made. A put that shares a call with
// others continues after its context is cancelled, until the first of their deadlines, or until all their contexts are
// cancelled.
func (g *gatherer) Put(ctx context.Context, puts []store.Put) []store.PutResult {
	if len(puts) != 1 {
		return g.inner.Put(ctx, puts)
	}
	weight := weightOf(&puts[0])
	if weight > largest {
		return g.inner.Put(ctx, puts)
	}
	g.mu.Lock()
	if g.writing < g.writers {
		g.writing++
		g.mu.Unlock()
		defer g.pass()
		return g.inner.Put(ctx, puts)
	}
	c := &call{ctx: ctx, ends: endOf(ctx), put: &puts[0], weight: weight, step: make(chan step, 1)}
	g.waiting = append(g.waiting, c)
	g.mu.Unlock()

	t := g.await(c)
	if t == lead {
		t = g.lead(c)
	}
	if t == single {
		return g.inner.Put(ctx, puts)
	}
	return []store.PutResult{c.result}
}

// weightOf returns the approximate size of a put in memory, in bytes.
func weightOf(p *store.Put) int {
	const instant = 300
	weight := len(p.Job.Callback.Data) + instant*max(len(p.Occurrences), p.Job.Schedule.Weight())
	for _, payload := range p.Job.Options.Payloads {
		weight += len(payload)
	}
	return weight
}

// endOf returns the time by which a put must have been made.
func endOf(ctx context.Context) time.Time {
	if end, ok := ctx.Deadline(); ok {
		return end
	}
	return time.Now().Add(store.Within) // the limit of calls without a deadline
}

// await waits for a call's next step, or for the end of its context, which removes the call from the queue.
func (g *gatherer) await(c *call) step {
	select {
	case t := <-c.step:
		return t
	case <-c.ctx.Done():
	}
	g.mu.Lock()
	if i := slices.Index(g.waiting, c); i >= 0 {
		g.waiting = slices.Delete(g.waiting, i, i+1)
		g.mu.Unlock()
		c.result.Err = c.notDone()
		return answer
	}
	b := c.batch
	g.mu.Unlock()
	if b != nil {
		b.abandon()
	}
	return <-c.step
}

// notDone returns the error of a put that will never be made.
func (c *call) notDone() error {
	cause := c.ctx.Err()
	if cause == nil {
		cause = context.DeadlineExceeded
	}
	return fmt.Errorf("%w: the put waited for others until its deadline: %w", store.ErrNotDone, cause)
}

// over reports whether the time of a call is over, and then stores the error as its result.
func (c *call) over() bool {
	if c.ctx.Err() == nil && time.Now().Before(c.ends) {
		return false
	}
	c.result.Err = c.notDone()
	return true
}

// pass hands the next batch to a waiting caller, if there is one.
func (g *gatherer) pass() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.waiting) == 0 {
		g.writing--
		return
	}
	next := g.waiting[0]
	g.waiting = slices.Delete(g.waiting, 0, 1)
	next.step <- lead
}

// lead puts a call together with waiting ones, and returns its caller's next step.
func (g *gatherer) lead(first *call) step {
	if first.over() {
		g.pass()
		return answer
	}
	b := g.take(first)
	steps := make([]step, len(b.calls))
	defer func() { // after a panic too
		g.pass() // first, so that the store is not idle while the other callers are notified
		for i, c := range b.calls[1:] {
			c.step <- steps[i+1]
		}
	}()
	g.write(b, steps)
	return steps[0]
}

// take removes those waiting calls from the queue that join the first call in a batch.
func (g *gatherer) take(first *call) *batch {
	g.mu.Lock()
	defer g.mu.Unlock()
	b, weight, n := &batch{calls: []*call{first}, ends: first.ends}, first.weight, 0
	for _, c := range g.waiting {
		if c.over() {
			c.step <- answer
			n++
			continue
		}
		if weight += c.weight; weight > largestBatch || c.ends.Sub(first.ends).Abs() > apart {
			break
		}
		if c.batch = b; c.ends.Before(b.ends) {
			b.ends = c.ends
		}
		b.calls = append(b.calls, c)
		n++
	}
	g.waiting = slices.Delete(g.waiting, 0, n)
	b.ctx, b.cancel = context.WithDeadline(context.WithoutCancel(first.ctx), b.ends)
	b.wanted.Store(int64(len(b.calls)))
	return b
}

// batch is a group of calls that are put together.
type batch struct {
	calls  []*call
	ctx    context.Context
	cancel context.CancelFunc
	ends   time.Time    // the first of the calls'
	wanted atomic.Int64 // how many of the calls' contexts have not ended
}

// abandon notes that the context of one of the calls has ended. It is called once for each.
func (b *batch) abandon() {
	if b.wanted.Add(-1) == 0 {
		b.cancel()
	}
}

// errBroken is the result of the calls in a batch that ended with a panic of another caller.
var errBroken = errors.New("the put was interrupted")

// write puts a batch and records the results and the callers' next steps.
func (g *gatherer) write(b *batch, steps []step) {
	defer b.cancel()
	defer context.AfterFunc(b.calls[0].ctx, b.abandon)()
	puts := make([]store.Put, len(b.calls))
	for i, c := range b.calls {
		puts[i], c.result.Err = *c.put, errBroken
	}
	failed := 0
	for i, r := range g.inner.Put(b.ctx, puts) {
		if b.calls[i].result = r; permanent(r.Err) {
			steps[i] = single
			failed++
		}
	}
	if failed == 1 { // the store has identified the fault, so its put need not be tried alone
		clear(steps)
	}
}

// permanent reports whether a put has failed by a fault of its own, or of another put in its batch. Then nothing has
// changed, so it may be put again under the same revision.
func permanent(err error) bool {
	return err != nil && !errors.Is(err, store.ErrUnavailable) &&
		!errors.Is(err, store.ErrPrecondition) && !errors.Is(err, store.ErrSuperseded)
}
