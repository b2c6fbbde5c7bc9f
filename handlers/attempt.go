package handlers

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// attempt is a submission under way. It is a state machine: each state is one action, and [next] returns the state that
// follows the event of that action.
//
//	start ──▶ direct ──────────────────────── stored ──▶ done
//
//	start ──▶ create ──────────────────────── stored ──▶ done
//	             │ ▲
//	     changed │ │ absent
//	             ▼ │
//	start ──▶   read ─── expired ───▶ revive ─ stored ─▶ done
//	             ▲ ├──── sameTimes ─▶ amend ── stored ─▶ done
//	             │ └──── otherTimes ▶ replace ─ stored ▶ done
//	             │                       │
//	             └── changed ────────────┘ (revive, amend and replace)
//
//	any state ── failed ──▶ done
//
// Whether a past instant fires depends on the replaced job: the instant may have fired already. So every put except a
// direct one takes effect only if the job is unchanged since the attempt read it. Otherwise the attempt reads it again.
type attempt struct {
	*submission
	at      time.Time // the time of the submission, at which the schedule begins, even if the attempt takes long
	state   state
	outcome *outcome
	// present is the job as it was last read; pending are its occurrences that may be claimed before it is replaced.
	present store.JobStatus
	pending []job.Occurrence
	// neverFires is the reason that the schedule can't begin again. It fails the attempt unless the job already has the
	// same schedule.
	neverFires error
	// admitted is the submission's reservation of the quotas, held until the outcome is known.
	admitted admission
	// stored is the job with the beginning of its schedule, once it is stored.
	stored *job.Job
	// missed are the occurrences of the last put that are past their deadline.
	missed []job.Occurrence
	// expected is the outcome of the last put if all of its Carried are still pending when it takes effect.
	expected outcome
}

// state is the next action of an attempt.
type state int

const (
	direct  state = iota // put under the client's condition: no instant of the job can be claimed before that
	create               // put if there is no job of the name
	read                 // read the job
	revive               // replace a job that clients no longer see
	replace              // replace the job that was read
	amend                // change the job that was read, except its schedule
	done                 // the outcome is known
)

// event is the result of an action.
type event int

const (
	stored     event = iota // the write took effect
	failed                  // the outcome is an error
	changed                 // the job does not meet the write's condition
	absent                  // there is no job
	expired                 // it has finished, and its retention has passed
	sameTimes               // it has the schedule and priority that were submitted
	otherTimes              // it has a different one
)

// next is the transition function. A direct put fails if the job does not meet its condition.
func next(e event) state {
	switch e {
	case changed:
		return read
	case absent:
		return create
	case expired:
		return revive
	case sameTimes:
		return amend
	case otherTimes:
		return replace
	default: // stored, failed
		return done
	}
}

// act runs an action and makes the transition. A panic of the action fails this attempt only.
func (t *attempt) act(action func() (event, error)) {
	e, err := guarded(action)
	t.advance(e, err)
}

// advance makes the transition of an event, or of an error.
func (t *attempt) advance(e event, err error) {
	if err != nil {
		t.outcome.err, e = err, failed
	}
	t.state = next(e)
}

// written returns the event for the error of a write.
func (t *attempt) written(err error) (event, error) {
	if t.state != direct && (errors.Is(err, store.ErrPrecondition) || errors.Is(err, store.ErrNotFound)) {
		return changed, nil
	}
	return stored, err
}

// guarded calls a function and returns a panic as an error with the stack, for the log. In another goroutine than the
// request's, a panic would end the process; in the request's own, one item would end a whole batch.
func guarded[T any](do func() (T, error)) (v T, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("panic: %v\n%s", fault, debug.Stack())
		}
	}()
	return do()
}

// newAttempt makes an attempt in its first state.
func (a *api) newAttempt(s *submission, o *outcome, now time.Time) *attempt {
	t := &attempt{submission: s, at: now, outcome: o}
	first, err := guarded(func() (state, error) { return a.first(s, now), nil })
	if t.state = first; err != nil {
		t.advance(failed, err)
	}
	return t
}

// first returns the first state of a submission's attempt.
func (a *api) first(s *submission, now time.Time) state {
	always, reaches := s.condition.Always(), s.job.Schedule.Reaches(a.soon(now), now)
	switch {
	case s.condition.Absent, always && (reaches || s.origin.Repeated):
		return create
	// A put that fails must not make a tenant known.
	case !always && (reaches || s.origin.Repeated || !a.tenants.Met(s.job.Tenant)):
		return read
	default:
		return direct
	}
}

// soon returns the latest instant that any replica, by its own clock, may claim before a put that begins now takes
// effect.
func (a *api) soon(now time.Time) time.Time { return now.Add(2*store.Within + a.Early) }

// readAll runs the attempts that are in state read, several at once, and amends the jobs whose schedules stay the same.
func (a *api) readAll(ctx context.Context, attempts []*attempt) {
	var reading []*attempt
	for _, t := range attempts {
		if t.state == read {
			reading = append(reading, t)
		}
	}
	const atOnce = 8 // reads are short; more of them would delay other requests
	var taken atomic.Int64
	var workers sync.WaitGroup
	for range min(atOnce, len(reading)) {
		workers.Go(func() {
			for i := int(taken.Add(1)); i <= len(reading); i = int(taken.Add(1)) {
				t := reading[i-1]
				t.act(func() (event, error) { return a.read(ctx, t) })
				if t.state == amend {
					t.act(func() (event, error) { return a.amendRead(ctx, t) })
				}
			}
		})
	}
	workers.Wait()
}

// read reads the job.
func (a *api) read(ctx context.Context, t *attempt) (event, error) {
	present, err := store.ReadJob(ctx, a.Store, t.job.Name)
	if errors.Is(err, store.ErrNotFound) {
		if !t.condition.Holds("") {
			return failed, store.ErrPrecondition
		}
		return absent, t.neverFires
	}
	if err != nil {
		return failed, err
	}
	if t.newer.Has(present.Version) { // puts check that again, but amendments go by the version that is read here
		return failed, store.ErrSuperseded
	}
	t.present, t.pending = present, nil
	switch {
	case present.Gone(a.now()) && (t.condition.Always() || t.condition.Absent):
		return expired, nil
	case t.origin.stored(&present.Job, &t.job):
		return sameTimes, nil // else a repetition would shift a delay or fail its own condition
	case !t.condition.Holds(present.Version):
		return failed, store.ErrPrecondition
	case t.keepsTimes():
		return sameTimes, nil
	}
	if t.job.Schedule.Reaches(a.soon(t.at), t.at) {
		t.pending, err = a.pendingUntil(ctx, &present.Job, a.soon(t.at))
	}
	return otherTimes, err
}

// keepsTimes reports whether the job that was read has the submitted schedule, spread and priority, and so continues.
// Otherwise a service that submits its jobs at each start would shift the grid of "@every" each time. With another
// priority, the pending occurrences would wait in the wrong lane.
func (t *attempt) keepsTimes() bool {
	return t.present.Live() && t.job.Schedule.Recurs() && t.job.SameTimes(&t.present.Job)
}

// amendRead changes the job that was read, except its schedule.
func (a *api) amendRead(ctx context.Context, t *attempt) (event, error) {
	o, err := a.amend(ctx, t.present, t.job)
	if err == nil {
		*t.outcome = o
		now := t.present.Job // its schedule continues
		now.Options, t.stored = t.job.Options, &now
	}
	return t.written(err)
}

// pendingUntil reads a job's pending occurrences up to an instant, and perhaps some later ones.
func (a *api) pendingUntil(ctx context.Context, j *job.Job, until time.Time) (all []job.Occurrence, err error) {
	filter := store.OccurrenceFilter{Name: j.Name, Revision: j.Revision, Limit: maxLimit}
	for {
		page, _, err := a.Store.Occurrences(ctx, filter)
		if err != nil {
			return nil, err
		}
		all = append(all, page...)
		if len(page) < filter.Limit || page[len(page)-1].Timestamp.After(until) {
			return all, nil
		}
		filter.After = page[len(page)-1].ID
	}
}
