package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// jobsAtOnce is the largest number of jobs claimed for expansion in one call.
const jobsAtOnce = 100

// expander is the state of the goroutine that expands recurring jobs: it keeps their next occurrences in the store. All
// replicas do it side by side. A job that a replica has claimed and not advanced is claimed again when its lease ends;
// the lead is long enough for that.
type expander struct {
	*Dispatcher
	claiming  faults
	advancing faults
	size      size // of the next claim
	// Between these times, leases of jobs end that this replica could not advance.
	yieldFrom, yieldUntil time.Time
}

// run expands the jobs whose time has come, at once and at each wake, until ctx ends.
func (e *expander) run(ctx context.Context) {
	e.advanced()
	for {
		for ctx.Err() == nil && e.expandSome(ctx) {
		}
		select {
		case <-ctx.Done():
			return
		case <-e.expand:
		}
	}
}

// expandSome claims jobs and advances them. It reports whether there may be more to do at once.
func (e *expander) expandSome(ctx context.Context) (more bool) {
	if e.yields(e.now()) {
		return false
	}
	start, agrees := e.clockAgrees(ctx)
	if !agrees {
		return false
	}
	// Not the loop's own context: a cancelled claim may have claimed all the same.
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	claimed, err := e.cfg.Store.ClaimJobs(call, store.ClaimJobsParams{
		Now:   start.Truncate(time.Millisecond),
		Lease: e.cfg.Lease,
		Limit: e.size.most,
	})
	defer func() {
		e.size.adapt(e.size.most, e.now().Sub(start), min(storeTimeout, e.cfg.Lease/2), err, claimed.More)
	}()
	if !e.claiming.note(e.log, "claim jobs to expand", err) {
		return false
	}
	for _, name := range claimed.Unreadable {
		e.log.Error("a recurring job can't be expanded: the store's data can't be read", "job", name.String())
	}
	if err = e.advanceAll(ctx, claimed, start); err != nil {
		e.leave(start)
		return false
	}
	e.advanced()
	return claimed.More
}

// advanced notes a success.
func (e *expander) advanced() {
	now := e.now()
	e.expanded.Store(&now)
}

// leave notes that jobs claimed at a time are left until their leases end. This replica looks at fixed intervals, so it
// would be the first to see the leases end, again and again; but another replica may be able to advance the jobs.
func (e *expander) leave(claimedAt time.Time) {
	end := claimedAt.Add(e.cfg.Lease)
	if e.yieldUntil.Before(claimedAt) {
		e.yieldFrom = end
	}
	e.yieldUntil = end.Add(e.cfg.expandInterval() * 3 / 2) // all others look before that
}

// yields reports whether the other replicas are to look now.
func (e *expander) yields(now time.Time) bool {
	return !now.Before(e.yieldFrom) && now.Before(e.yieldUntil)
}

// advanceAll expands claimed jobs and writes the result in parts, so that neither memory nor one call holds all of it.
// After an error, the rest are claimed again when their leases end.
func (e *expander) advanceAll(ctx context.Context, claimed store.ClaimedJobs, start time.Time) error {
	var advances []store.Advance
	occurrences := 0
	for i := range claimed.Jobs {
		if a, err := e.next(&claimed.Jobs[i], claimed.Token, start); err != nil {
			e.leave(start) // another replica may know the zone
			e.log.Error("a recurring job can't be expanded here", "job", claimed.Jobs[i].String(), "error", err)
		} else {
			advances = append(advances, a)
			occurrences += len(a.Occurrences)
		}
		if last := i == len(claimed.Jobs)-1; len(advances) == 0 || occurrences < largestBatch && !last {
			continue
		}
		if err := e.advance(ctx, advances, start); !e.advancing.note(e.log, "advance recurring jobs", err) {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		advances, occurrences = nil, 0
	}
	return nil
}

// next returns the next part of a claimed job's schedule. The error means that this replica can't compute it. A panic
// in the expansion is such an error too: one job must not end the process.
func (e *expander) next(j *job.Job, token string, start time.Time) (a store.Advance, err error) {
	defer func() {
		if r := recover(); r != nil {
			e.log.Error("expanding panicked", "job", j.String(), "panic", r, "stack", string(debug.Stack()))
			err = fmt.Errorf("expanding panicked: %v", r)
		}
	}()
	now := start.Truncate(time.Millisecond)
	x, err := j.Expand(now, e.cfg.Expansion())
	if err != nil {
		return store.Advance{}, err
	}
	a = store.Advance{
		Name: j.Name, Revision: j.Revision, From: j.Cursor, Token: token,
		Occurrences: x.Occurrences, Cursor: x.Cursor, ExpandAt: x.ExpandAt, Missed: x.Missed, Trouble: x.Trouble,
	}
	if x.ExpandAt.IsZero() { // the schedule has ended
		a.ExpiresAt = now
		if x.Cursor.After(now) {
			a.ExpiresAt = x.Cursor
		}
		a.ExpiresAt = a.ExpiresAt.Add(e.cfg.Retain + time.Duration(j.Options.ExpectBy)) // its check-ins need it
	}
	return a, nil
}

var errHalfLease = errors.New("half of the claims' lease has passed: the store or this machine is slow")

// advance writes expanded parts, and wakes the claim loop for them. The error means that the store is unavailable, or
// that it is too late. Then advance does not try again, but leaves the jobs until their leases end: occurrences that
// the store has inserted may be delivered already.
func (e *expander) advance(ctx context.Context, advances []store.Advance, start time.Time) error {
	left := e.cfg.Lease/2 - elapsed(start, e.now())
	if left <= 0 {
		return errHalfLease
	}
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(left, storeTimeout))
	defer cancel()
	err := e.cfg.Store.Advance(call, advances)
	switch {
	case err == nil:
		e.wakeForExpanded(advances)
		return nil
	case errors.Is(err, store.ErrUnavailable) || ctx.Err() != nil:
		return err
	case len(advances) > 1: // one job may be the cause of the others' failure
		for i := range advances {
			if err := e.advance(ctx, advances[i:i+1], start); err != nil {
				return err
			}
		}
		return nil
	default:
		e.leave(start)
		e.log.Error("a recurring job can't be advanced; it is tried again when its lease ends",
			"job", advances[0].Name.String(), "error", err)
		return nil
	}
}

// wakeForExpanded wakes the claim loop for the new occurrences, and logs and counts the missed ones.
func (e *expander) wakeForExpanded(advances []store.Advance) {
	for i := range advances {
		for j := range advances[i].Occurrences {
			o := &advances[i].Occurrences[j]
			e.Wake(o.Lane(), o.DueAt)
		}
		if n := advances[i].Missed - advances[i].Left; n > 0 {
			e.metrics.miss(n)
			e.cfg.Status.Missed(advances[i].Name, n)
			e.log.Info("instants of a recurring job were missed", "job", advances[i].Name.String(), "missed", n)
			e.recordMissed(&advances[i])
		}
	}
}
