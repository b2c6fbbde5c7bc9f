package dispatcher

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/dispatcher/fairqueue"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// How long the claim loop rests after a claim that left nothing due: a part of the time of the claim, but no longer
// than longestPause. A claim costs about as much for one occurrence as for many, so at hundreds of instants a second
// that spares most claims, and makes nothing later than a claim does. Half of it would make instants a third of a
// millisecond earlier, for a tenth to a quarter more processor time.
const (
	restPart     = 0.75
	longestPause = 5 * time.Millisecond
)

// longestSleep is how long the claim loop sleeps at most before it looks at the wall clock again, which may be set
// meanwhile.
const longestSleep = time.Second

// claimLoop is the state of the goroutine that claims.
type claimLoop struct {
	*Dispatcher
	firing context.Context // of the callbacks
	free   int             // slots
	queue  *fairqueue.Queue

	// No claim is made before either of these.
	rest    time.Time // after a claim that left nothing due
	backoff time.Time // after a failure

	scanner  scanner                // of the scan's goroutine, while a scan is under way
	scanning bool                   // a scan is under way
	pages    chan scanPage          // of the scan
	scanAt   time.Time              // when to scan, unless a tick comes first; zero to wait for one
	scanned  time.Time              // due times are known up to this; zero if the last scan failed, or one is under way
	noScan   time.Time              // no tick starts a scan before this
	ticked   time.Time              // when the last tick was taken
	woken    map[job.Lane]time.Time // due times that others have told since the scan began

	claimFaults faults
	scanFaults  faults
}

// run claims due occurrences until ctx ends.
func (l *claimLoop) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	l.checkClock(ctx)
	l.scan(ctx)
	defer func() {
		for l.scanning { // it ends with ctx, and nothing is to use the store after this loop
			l.scanning = !(<-l.pages).last
		}
	}()
	for ctx.Err() == nil {
		wait, act := l.plan()
		switch {
		case act == nil:
			timer.Stop()
		case wait <= 0:
			act(ctx)
			l.catchUp(ctx)
			continue
		default:
			timer.Reset(min(wait, longestSleep))
		}
		select {
		case <-ctx.Done():
		case <-timer.C:
		case f := <-l.freed:
			l.collect(f)
		case page := <-l.pages:
			l.takePage(ctx, page)
		case <-l.wake:
			l.takeWakes()
		case <-l.ticks:
			l.takeTick(ctx)
		}
		l.catchUp(ctx)
	}
}

// catchUp takes all events that have happened since, without waiting. While there is a backlog and a free slot, the
// loop claims all the time: so the next claim is as large as can be, and knows of all due lanes.
func (l *claimLoop) catchUp(ctx context.Context) {
	l.collectFreed()
	l.takeWakes()
	select {
	case page := <-l.pages:
		l.takePage(ctx, page)
	default:
	}
	select {
	case <-l.ticks:
		l.takeTick(ctx)
	default:
	}
}

// takeTick starts a scan, unless a tick did just now: the scheduler may tick twice at once.
func (l *claimLoop) takeTick(ctx context.Context) {
	if now := l.now(); now.Sub(l.ticked) > l.cfg.Tick/2 && !now.Before(l.noScan) {
		l.ticked = now
		l.scan(ctx)
	}
}

// plan answers the loop's next action and in how long it is due; nil if the loop is to wait for an event. Pauses go by
// the monotonic clock and due times by the wall clock, so only the times that are left can be compared. When the store
// is back after an outage, outcomes are written first: their leases may have run out meanwhile, and a claim would
// deliver these occurrences again. The settler wakes the loop then.
func (l *claimLoop) plan() (wait time.Duration, act func(context.Context)) {
	now := l.now()
	switch {
	case !l.scanAt.IsZero():
		wait, act = l.scanAt.Sub(now), l.scan
	case !l.scanned.IsZero(): // no tick has come before, or the clock was set
		wait, act = l.scanned.Sub(now), l.scan
	}
	if next := l.queue.Next(); l.free > 0 && !next.IsZero() && l.unsettled.Load() == nil {
		due := max(next.Add(-l.cfg.Early).Sub(now), l.rest.Sub(now), l.backoff.Sub(now))
		if act == nil || due < wait {
			wait, act = due, l.claim
		}
	}
	return wait, act
}

func latestOf(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }

// takeWakes notes due times that others have told.
func (l *claimLoop) takeWakes() {
	for lane, at := range l.takeWakeAts() {
		l.queue.Due(lane, at)
		if known, ok := l.woken[lane]; l.scanning && (!ok || at.Before(known)) {
			l.woken[lane] = at
		}
	}
}

// collect takes slots that have become free.
func (l *claimLoop) collect(f freed) {
	for _, of := range f {
		l.free += of.n
		l.queue.Settled(of.tenant, of.n)
	}
}

// collectFreed takes all slots that have become free.
func (l *claimLoop) collectFreed() {
	for {
		select {
		case f := <-l.freed:
			l.collect(f)
		default:
			return
		}
	}
}

// claim claims as many occurrences as there are free slots and fires them.
func (l *claimLoop) claim(ctx context.Context) {
	start, may := l.mayClaim(ctx)
	if !may {
		return
	}
	params := store.ClaimParams{Now: start.Truncate(time.Millisecond), Early: l.cfg.Early, Lease: l.cfg.Lease}
	a := l.queue.Allot(params.Due(), min(l.free, largestBatch))
	if params.Quotas = a.Quotas; len(a.Quotas) == 0 {
		return
	}
	// Not the loop's own context: a claim that is cut off may have claimed all the same.
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	claim, err := l.cfg.Store.Claim(call, params)
	if !l.claimFaults.note(l.log, "claim", err) {
		l.queue.Failed(a)
		l.backoff = l.now().Add(l.claimFaults.pause())
		return
	}
	end := l.now()
	l.progress.Store(&end)
	l.queue.Claimed(a, claim, params.Due())
	l.free -= len(claim.Occurrences)
	l.metrics.claimed(claim.Occurrences)
	l.start(l.firing, start, claim.Occurrences)
	if next := l.queue.Next(); !claim.More() && (next.IsZero() || next.After(params.Due())) {
		l.rest = end.Add(min(time.Duration(restPart*float64(end.Sub(start))), longestPause))
	}
}

// mayClaim tells whether claiming is safe, and as of when. This machine's clock must be right, and the tenants must be
// known, since one may be paused.
func (l *claimLoop) mayClaim(ctx context.Context) (now time.Time, may bool) {
	if l.tenants.known.Load() == nil {
		l.readTenants(ctx)
	}
	now, agrees := l.clockAgrees(ctx)
	if agrees && l.tenants.known.Load() != nil {
		return now, true
	}
	l.backoff = l.now().Add(min(l.cfg.Tick, longestSleep))
	return now, false
}

// scan starts a scan of the due lanes, unless one is under way. Claims go on meanwhile.
func (l *claimLoop) scan(ctx context.Context) {
	l.scanAt, l.scanned = time.Time{}, time.Time{}
	if l.scanning {
		return
	}
	l.scanning = true
	clear(l.woken)
	go l.scanner.scan(ctx, l.pages)
}

// takePage takes a page of the scan. A scan counts as a success of the loop only if claims have not failed: a store
// that can be read but not written is of no use.
func (l *claimLoop) takePage(ctx context.Context, p scanPage) {
	if p.last {
		l.scanning = false
	}
	if ctx.Err() != nil {
		return
	}
	switch {
	case p.complete:
		l.queue.Replace(p.lanes)
		for lane, at := range l.woken {
			l.queue.Due(lane, at)
		}
	default:
		for _, d := range p.lanes {
			l.queue.Due(d.Lane, d.DueAt)
		}
		if p.last {
			l.queue.ApplySettings()
		}
	}
	if !p.last {
		if l.claimFaults == 0 {
			l.progress.Store(&p.end)
		}
		return
	}
	took := p.end.Sub(p.start)
	l.noScan = p.end.Add(restAfter(took, l.cfg.Tick))
	if l.cfg.Auto.on() {
		l.tenants.auto.tellKnown(l.queue.Tenants, p.end)
	}
	if !l.scanFaults.note(l.log, "tell which lanes become due", p.err) {
		l.scanAt = l.now().Add(max(l.scanFaults.pause(), took))
		return
	}
	l.scanned = p.reach
	if l.claimFaults == 0 {
		at := latestOf(p.end, l.noScan) // if nothing is due, the next success comes no sooner
		l.progress.Store(&at)
	}
}

// faults counts failures in a row.
type faults int

// note counts the failure of a call to the store, or that there is none any more, and tells whether the call succeeded.
// It logs the first of a row of failures, and every so often another one.
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

// pause is how long to let the store alone: a little longer after each failure.
func (f *faults) pause() time.Duration {
	return min(time.Duration(*f)*50*time.Millisecond, time.Second)
}

// waitIdle waits until all slots are free, at most for the given time, and tells whether they are.
func (l *claimLoop) waitIdle(limit time.Duration) bool {
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	for l.free < l.cfg.Concurrency {
		select {
		case f := <-l.freed:
			l.collect(f)
		case <-timeout.C:
			return false
		}
	}
	return true
}
