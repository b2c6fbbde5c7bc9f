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

// The claim loop's rest after a claim that left nothing due: a part of the claim's duration, but no longer than
// longestPause. A claim costs about as much for one occurrence as for many. So at hundreds of instants a second the
// rest saves most claims, and delays no occurrence by more than a claim takes. Half of it would make occurrences a
// third of a millisecond earlier, for a tenth to a quarter more processor time.
const (
	restPart     = 0.75
	longestPause = 5 * time.Millisecond
)

// longestSleep is the longest time for which the claim loop sleeps before it reads the wall clock again, since the
// clock may be set meanwhile.
const longestSleep = time.Second

// claimLoop is the state of the goroutine that claims.
type claimLoop struct {
	*Dispatcher
	firing context.Context // of the callbacks
	free   int             // slots
	queue  *fairqueue.Queue
	turns  turns

	// No claim is made before both of these times.
	rest    time.Time // after a claim that left nothing due
	backoff time.Time // after a failure

	scanner  scanner                // owned by the scan's goroutine while a scan is under way
	scanning bool                   // a scan is under way
	pages    chan scanPage          // of the scan
	scanAt   time.Time              // the time of the next scan, unless a poll comes first; zero to wait for a poll
	scanned  time.Time              // due times up to this are known; zero if the last scan failed, or one is under way
	noScan   time.Time              // no poll starts a scan before this
	polled   time.Time              // when a poll last planned a scan
	woken    map[job.Lane]time.Time // due times from Wake since the scan began

	size        size // of the next claim
	claimFaults faults
	failed      time.Time // when the last claim failed
	scanFaults  faults
}

// run claims due occurrences until ctx ends.
func (l *claimLoop) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	l.checkClock(ctx)
	l.scan(ctx)
	defer func() {
		for l.scanning { // it ends with ctx; nothing may use the store after this loop
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
		case <-l.polls:
			l.takePoll(ctx)
		}
		l.catchUp(ctx)
	}
}

// handOver announces this replica's stop to the others. If replicas take turns, this one continues to claim in its
// turns until all have read the announcement, but for at most half of ShutdownTimeout. So nothing is late. It returns
// at once if replicas do not take turns now, if no due time is known, or if the store fails.
func (l *claimLoop) handOver(ctx context.Context) {
	if l.queue.Next().IsZero() || !l.writes() {
		return
	}
	lasts := min(beatInterval+2*l.cfg.Tick, l.cfg.ShutdownTimeout/2) // they beat, and then poll
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lasts)
	defer cancel()
	telling, told := context.WithTimeout(ctx, beatInterval/5)
	l.beat(telling) // this also reads the present replicas
	told()
	l.turns.meet(l.beating(), l.now())
	if l.turns.taken(l.now()) {
		l.log.Info("stopping: handing over to the other replicas", "within", lasts)
		l.run(ctx)
	}
}

// catchUp takes all pending events without waiting. While there is a backlog and a free slot, the loop claims all the
// time. So the next claim is as large as possible, and covers all known due lanes.
func (l *claimLoop) catchUp(ctx context.Context) {
	l.collectFreed()
	l.takeWakes()
	select {
	case page := <-l.pages:
		l.takePage(ctx, page)
	default:
	}
	select {
	case <-l.polls:
		l.takePoll(ctx)
	default:
	}
}

// takePoll plans a scan, unless a poll did so just now: the scheduler may fire twice at once.
func (l *claimLoop) takePoll(ctx context.Context) {
	if now := l.now(); now.Sub(l.polled) > l.cfg.Tick/2 && !now.Before(l.noScan) {
		l.polled = now
		if wait := l.turns.pollIn(now); wait > 0 {
			l.scanAt = now.Add(wait)
			return
		}
		l.scan(ctx)
	}
}

// plan returns the loop's next action and the time until then; act is nil if the loop is to wait for an event. Pauses
// use the monotonic clock and due times the wall clock, so only the remaining times can be compared. When the store is
// back after an outage, outcomes are written first: their leases may have ended meanwhile, and a claim would deliver
// these occurrences again. The settler wakes the loop after that.
func (l *claimLoop) plan() (wait time.Duration, act func(context.Context)) {
	now := l.now()
	switch {
	case !l.scanAt.IsZero():
		wait, act = l.scanAt.Sub(now), l.scan
	case !l.scanned.IsZero(): // no poll has come before, or the clock was set
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

// takeWakes notes the due times from Wake.
func (l *claimLoop) takeWakes() {
	now := l.now()
	for lane, at := range l.takeWakeAts() {
		l.turns.woken(lane, at, now)
		l.queue.Due(lane, l.turns.at(lane, at, now))
		if known, ok := l.woken[lane]; l.scanning && (!ok || at.Before(known)) {
			l.woken[lane] = at
		}
	}
}

// collect adds freed slots.
func (l *claimLoop) collect(f freed) {
	for _, of := range f {
		l.free += of.n
		l.queue.Settled(of.tenant, of.n)
	}
}

// collectFreed adds all freed slots without waiting.
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

// claim claims as many occurrences as there are free slots, and fires them.
func (l *claimLoop) claim(ctx context.Context) {
	start, may := l.mayClaim(ctx)
	if !may {
		return
	}
	params := store.ClaimParams{Now: start.Truncate(time.Millisecond), Early: l.cfg.Early, Lease: l.cfg.Lease}
	asked := min(l.free, l.size.most)
	a := l.queue.Allot(params.Due(), asked)
	if params.Quotas = a.Quotas; len(a.Quotas) == 0 {
		return
	}
	// Not the loop's own context: a cancelled claim may have claimed all the same.
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	claim, err := l.cfg.Store.Claim(call, params)
	end := l.now()
	took, failure := end.Sub(start), err
	if err == nil && took >= l.cfg.CallbackTimeout {
		failure = errTooLate // none of it will be sent
	}
	l.size.adapt(asked, took, min(storeTimeout, l.cfg.CallbackTimeout), failure, claim.More())
	if l.claimFaults.note(l.log, "claim", failure) {
		l.progress.Store(&end)
	} else {
		l.failed = end
		l.backoff = end.Add(l.claimFaults.pause())
	}
	if err != nil {
		l.queue.Failed(a)
		return
	}
	l.free -= len(claim.Occurrences)
	l.turns.used(l.cfg.Concurrency-l.free, l.cfg.Concurrency, end)
	for i := range claim.Quotas {
		claim.Quotas[i].Next = l.turns.at(a.Quotas[i].Lane, claim.Quotas[i].Next, end)
	}
	l.queue.Claimed(a, claim, params.Due())
	l.metrics.claimed(claim.Occurrences)
	l.start(l.firing, start, claim.Occurrences)
	if next := l.queue.Next(); !claim.More() && (next.IsZero() || next.After(params.Due())) {
		l.rest = end.Add(min(time.Duration(restPart*float64(end.Sub(start))), longestPause))
	}
}

// mayClaim reports whether claiming is safe, and returns the time for the claim. This machine's clock must be right,
// and the tenants' settings must be known, since a tenant may be paused.
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

// scan starts a scan of the due lanes, unless one is under way. The loop claims meanwhile.
func (l *claimLoop) scan(ctx context.Context) {
	l.scanAt, l.scanned = time.Time{}, time.Time{}
	if l.scanning {
		return
	}
	l.scanning = true
	clear(l.woken)
	go l.scanner.scan(ctx, l.pages)
}

// takePage takes a page of the scan. A scan counts as a success of the loop only if the store takes
// writes: a store that can be read but not written is no use.
func (l *claimLoop) takePage(ctx context.Context, p scanPage) {
	if p.last {
		l.scanning = false
	}
	if ctx.Err() != nil {
		return
	}
	l.turns.meet(l.beating(), p.end)
	lanes := l.turns.found(p.lanes, p.start, l.queue.Room)
	switch {
	case p.complete:
		l.queue.Replace(lanes)
		for lane, at := range l.woken {
			l.queue.Due(lane, l.turns.at(lane, at, p.end))
		}
	default:
		for _, d := range lanes {
			l.queue.Due(d.Lane, d.DueAt)
		}
		if p.last {
			l.queue.ApplySettings()
		}
	}
	if !p.last {
		if l.writes() {
			l.progress.Store(&p.end)
		}
		return
	}
	took := p.end.Sub(p.start)
	l.noScan = p.end.Add(restAfter(took, l.cfg.Tick))
	if l.cfg.Auto.on() {
		l.tenants.auto.publishKnown(l.queue.Tenants, p.end)
	}
	if !l.scanFaults.note(l.log, "list the due lanes", p.err) {
		l.scanAt = l.now().Add(max(l.scanFaults.pause(), took))
		return
	}
	l.scanned = p.reach
	if l.writes() {
		at := latestOf(p.end, l.noScan) // if nothing is due, there is no success before that
		l.progress.Store(&at)
	}
}

// writes reports whether the store takes writes, as far as this replica knows. It does if the last claim succeeded. It
// also does if a heartbeat succeeded longer after the last failed claim than a claim takes: nothing was due since.
// Without the heartbeats, such a replica would not be ready before the next due time.
func (l *claimLoop) writes() bool {
	beaten := l.beaten.Load()
	return l.claimFaults == 0 || beaten != nil && beaten.Sub(l.failed) > storeTimeout+2*longestSleep
}

// faults counts failures in a row.
type faults int

// note counts a failure of a call to the store, or resets the count, and reports whether the call succeeded. It logs
// the first of a row of failures, and then every sixtieth.
func (f *faults) note(log *slog.Logger, call string, err error) bool {
	if err == nil {
		if *f > 0 {
			log.Info("the store answers again", "failures", int(*f))
		}
		*f = 0
		return true
	}
	*f++
	if *f == 1 || *f%60 == 0 {
		log.Error("the store failed to "+call, "error", err, "failures", int(*f))
	}
	return false
}

// pause returns the pause before the next call, a little longer after each failure.
func (f *faults) pause() time.Duration {
	return min(time.Duration(*f)*50*time.Millisecond, time.Second)
}

// waitIdle waits until all slots are free, at most for the given time, and reports whether they are.
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
