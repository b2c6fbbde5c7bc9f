package dispatcher

import (
	"context"
	"log/slog"
	"time"

	"github.com/carillon-scheduler/carillon/store"
)

// longestPause bounds the pause between two claims. A claim costs about as much for one occurrence as for many, so after one that
// left nothing due the next comes no sooner than the last has taken: at hundreds of instants a second that spares most
// claims, and makes nothing later than a claim does.
const longestPause = 5 * time.Millisecond

// claimLoop is the state of the goroutine that claims.
type claimLoop struct {
	*Dispatcher
	firing context.Context // of the callbacks
	free   int             // slots
	next   time.Time       // when the next claim may find something; zero if not known
	rested time.Time       // no claim before this
	ticked time.Time       // when the last tick was taken
	faults faults          // of claiming
	blind  faults          // of asking for the next due time
}

// run claims what is due until ctx ends.
func (l *claimLoop) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	l.checkClock(ctx)
	l.peek(ctx)
	for ctx.Err() == nil {
		if l.free > 0 && !l.next.IsZero() {
			wait := max(time.Until(l.next.Add(-l.cfg.Early)), time.Until(l.rested))
			if wait <= 0 {
				l.claim(ctx)
				continue
			}
			timer.Reset(wait)
		} else {
			timer.Stop()
		}
		select {
		case <-ctx.Done():
		case <-timer.C:
		case n := <-l.freed:
			l.free += n
		case <-l.wake:
			if at := l.takeWake(); !at.IsZero() && (l.next.IsZero() || at.Before(l.next)) {
				l.next = at
			}
		case <-l.ticks:
			if now := time.Now(); now.Sub(l.ticked) > l.cfg.Tick/2 { // the scheduler may tick twice at once
				l.ticked = now
				l.peek(ctx)
			}
		}
		l.collectFreed()
	}
}

// collectFreed takes all slots that have become free, so that the next claim is as large as can be.
func (l *claimLoop) collectFreed() {
	for {
		select {
		case n := <-l.freed:
			l.free += n
		default:
			return
		}
	}
}

// claim takes as much as there are free slots for and fires it.
func (l *claimLoop) claim(ctx context.Context) {
	if !l.mayClaim(ctx) {
		return
	}
	start := time.Now()
	// Not the loop's own context: a claim that is cut off may have claimed all the same.
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	claim, err := l.cfg.Store.Claim(call, store.ClaimParams{
		Now:   start.Truncate(time.Millisecond),
		Early: l.cfg.Early,
		Lease: l.cfg.Lease,
		Limit: min(l.free, largestBatch),
	})
	if !l.answered(&l.faults, "claim", err) {
		return
	}
	end := time.Now()
	l.progress.Store(end.UnixNano())
	l.free -= len(claim.Occurrences)
	l.metrics.claimed(claim.Occurrences)
	l.start(l.firing, start, claim.Occurrences)
	if claim.More {
		l.next = start
		return
	}
	l.rested = end.Add(min(end.Sub(start), longestPause))
	l.peek(ctx)
}

// mayClaim tells whether claiming is safe. This machine's clock must be right. And when the store is back after an outage,
// outcomes are written first: their leases may have run out meanwhile, and a claim would deliver again what has been
// delivered.
func (l *claimLoop) mayClaim(ctx context.Context) bool {
	if l.clockAgrees(ctx) && l.unsettled.Load() == 0 {
		return true
	}
	l.next = time.Now().Add(l.cfg.Tick)
	return false
}

// peek asks the store when the next occurrence is due. Its success is the loop's only if claims have not failed: a store
// that can be read but not written is of no use.
func (l *claimLoop) peek(ctx context.Context) {
	call, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	next, err := l.cfg.Store.NextDue(call)
	if ctx.Err() != nil || !l.answered(&l.blind, "tell the next due time", err) {
		return
	}
	if l.faults == 0 {
		l.next = next
		l.progress.Store(time.Now().UnixNano())
	}
}

// answered notes whether the store did what it was asked. If it did not, the next claim is a little later each time.
func (l *claimLoop) answered(f *faults, what string, err error) bool {
	if f.note(l.log, what, err) {
		return true
	}
	l.next = time.Now().Add(min(time.Duration(*f)*50*time.Millisecond, time.Second))
	return false
}

// faults counts failures in a row.
type faults int

// note counts the failure of a call to the store, or that there is none any more, and tells whether the call succeeded. It
// logs the first of a row of failures, and every so often another one.
func (f *faults) note(log *slog.Logger, what string, err error) bool {
	if err == nil {
		if *f > 0 {
			log.Info("the store answers again", "failures", int(*f))
		}
		*f = 0
		return true
	}
	*f++
	if *f == 1 || *f%60 == 0 {
		log.Error("the store failed to "+what, "error", err, "failures", int(*f))
	}
	return false
}

// waitIdle waits until all slots are free, at most for the given time, and tells whether they are.
func (l *claimLoop) waitIdle(limit time.Duration) bool {
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	for l.free < l.cfg.Concurrency {
		select {
		case n := <-l.freed:
			l.free += n
		case <-timeout.C:
			return false
		}
	}
	return true
}
