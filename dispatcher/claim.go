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

// How long the claim loop rests after a claim that left nothing due: a part of what the claim took, but no longer than
// longestPause. A claim costs about as much for one occurrence as for many, so at hundreds of instants a second that
// spares most claims, and makes nothing later than a claim does. Half of it would make instants a third of a
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
	rested time.Time              // no claim before this
	held   time.Time              // nor before this, whatever is said to be due: something has failed
	look   time.Time              // when to look again at what becomes due, unless a tick comes first; zero to wait for one
	reach  time.Time              // up to when the last look has told what becomes due; zero if it has failed, or another is under way
	quiet  time.Time              // no tick has it look before this
	ticked time.Time              // when the last tick was taken
	looks  looks                  // the look's own, while one is under way
	asking bool                   // one is
	told   chan told              // of one
	since  map[job.Lane]time.Time // what was said to become due since the look began
	faults faults                 // of claiming
	blind  faults                 // of looking
}

// run claims what is due until ctx ends.
func (l *claimLoop) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	l.checkClock(ctx)
	l.ask(ctx)
	defer func() {
		for l.asking { // it ends with ctx, and nothing is to use the store after this loop
			l.asking = !(<-l.told).ended
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
		case t := <-l.told:
			l.hear(ctx, t)
		case <-l.wake:
			l.takeWakes()
		case <-l.ticks:
			l.takeTick(ctx)
		}
		l.catchUp(ctx)
	}
}

// catchUp takes what has happened while the loop was busy, as it is all the time while there is a backlog and a slot is
// free: so the next claim is as large as can be, and knows of all that has become due.
func (l *claimLoop) catchUp(ctx context.Context) {
	l.collectFreed()
	l.takeWakes()
	select {
	case t := <-l.told:
		l.hear(ctx, t)
	default:
	}
	select {
	case <-l.ticks:
		l.takeTick(ctx)
	default:
	}
}

// takeTick looks again at what becomes due, unless that was done just now: the scheduler may tick twice at once.
func (l *claimLoop) takeTick(ctx context.Context) {
	if now := l.now(); now.Sub(l.ticked) > l.cfg.Tick/2 && !now.Before(l.quiet) {
		l.ticked = now
		l.ask(ctx)
	}
}

// plan answers what to do next by itself, and in how long; nothing until something happens. Pauses go by the monotonic
// clock, and what is due by the other, so only what is left of them can be compared. When the store is back after an
// outage, outcomes are written first: their leases may have run out meanwhile, and a claim would deliver again what has
// been delivered. The settler wakes the loop then.
func (l *claimLoop) plan() (wait time.Duration, act func(context.Context)) {
	now := l.now()
	switch {
	case !l.look.IsZero():
		wait, act = l.look.Sub(now), l.ask
	case !l.reach.IsZero(): // no tick has come before, or the clock was set
		wait, act = l.reach.Sub(now), l.ask
	}
	if next := l.queue.Next(); l.free > 0 && !next.IsZero() && l.unsettled.Load() == nil {
		due := max(next.Add(-l.cfg.Early).Sub(now), l.rested.Sub(now), l.held.Sub(now))
		if act == nil || due < wait {
			wait, act = due, l.claim
		}
	}
	return wait, act
}

func latestOf(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }

// takeWakes notes what others have said to become due.
func (l *claimLoop) takeWakes() {
	for lane, at := range l.takeWakeAts() {
		l.queue.Due(lane, at)
		if known, ok := l.since[lane]; l.asking && (!ok || at.Before(known)) {
			l.since[lane] = at
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

// claim takes as much as there are free slots for and fires it.
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
	if !l.faults.note(l.log, "claim", err) {
		l.queue.Failed(a)
		l.held = l.now().Add(l.faults.pause())
		return
	}
	end := l.now()
	l.progress.Store(&end)
	l.queue.Claimed(a, claim, params.Due())
	l.free -= len(claim.Occurrences)
	l.metrics.claimed(claim.Occurrences)
	l.start(l.firing, start, claim.Occurrences)
	if next := l.queue.Next(); !claim.More() && (next.IsZero() || next.After(params.Due())) {
		l.rested = end.Add(min(time.Duration(restPart*float64(end.Sub(start))), longestPause))
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
	l.held = l.now().Add(min(l.cfg.Tick, longestSleep))
	return now, false
}

// ask looks at what becomes due, unless that is under way. Claims go on meanwhile.
func (l *claimLoop) ask(ctx context.Context) {
	l.look, l.reach = time.Time{}, time.Time{}
	if l.asking {
		return
	}
	l.asking = true
	clear(l.since)
	go l.looks.look(ctx, l.told)
}

// hear takes a page of what becomes due. Its success is the loop's only if claims have not failed: a store that can be
// read but not written is of no use.
func (l *claimLoop) hear(ctx context.Context, t told) {
	if t.ended {
		l.asking = false
	}
	if ctx.Err() != nil {
		return
	}
	switch {
	case t.whole:
		l.queue.Replace(t.lanes)
		for lane, at := range l.since {
			l.queue.Due(lane, at)
		}
	default:
		for _, d := range t.lanes {
			l.queue.Due(d.Lane, d.DueAt)
		}
		if t.ended {
			l.queue.ApplySettings()
		}
	}
	if !t.ended {
		if l.faults == 0 {
			l.progress.Store(&t.end)
		}
		return
	}
	took := t.end.Sub(t.start)
	l.quiet = t.end.Add(restAfter(took, l.cfg.Tick))
	if l.cfg.Auto.on() {
		l.tenants.matter(l.queue.Tenants())
	}
	if !l.blind.note(l.log, "tell what becomes due", t.err) {
		l.look = l.now().Add(max(l.blind.pause(), took))
		return
	}
	l.reach = t.reach
	if l.faults == 0 {
		at := latestOf(t.end, l.quiet) // if nothing is due, there is no more to come before
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
