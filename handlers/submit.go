package handlers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// postJob creates or replaces the job that the body names.
func (a *api) postJob(c *gin.Context) error { return a.put(c, "") }

// putJob creates or replaces the job that the path names.
func (a *api) putJob(c *gin.Context) error {
	key, err := keyInPath(c)
	if err != nil {
		return err
	}
	return a.put(c, key)
}

// put creates or replaces one job. Key is the one in the path; empty if the path has none.
func (a *api) put(c *gin.Context, key string) error {
	if _, err := readQuery(c.Request); err != nil {
		return err
	}
	condition, err := putCondition(c.Request)
	if err != nil {
		return err
	}
	body, err := a.readJSON(c)
	if err != nil {
		return err
	}
	draft, err := job.Decode(body)
	if err != nil {
		return err
	}
	if key != "" {
		if draft.Key != "" && draft.Key != key {
			return job.InvalidField("/key", fmt.Sprintf("must be %q, as in the path, or be left out", key))
		}
		draft.Key = key
	}
	s, err := a.check(a.tenant(c), draft)
	if err != nil {
		return err
	}
	s.condition = condition
	s.job.Options.Trace = traceOf(c.Request)
	o := a.submit(c.Request.Context(), []*submission{s})[0]
	if o.err != nil {
		return o.err
	}
	if o.created {
		c.Header("Location", jobPath(o.key))
	}
	setETag(c, o.version)
	return writeJSON(c, o.status(), acceptedView(&o))
}

// submission is a checked job on its way into the store, which has not begun.
type submission struct {
	job       job.Job
	past      job.Past
	condition store.Condition
}

// outcome answers a submission. What it says of the job holds only if err is nil.
type outcome struct {
	key         string
	revision    job.Revision
	version     job.Revision
	missed      int
	created     bool
	live        bool
	occurrences int
	skipped     int
	next        time.Time // the earliest instant of the occurrences; zero if there are none
	inFlight    int
	paused      bool
	kept        bool // its schedule was left alone
	err         error
}

func (o *outcome) status() int {
	if o.created {
		return http.StatusCreated
	}
	return http.StatusOK
}

// check makes a draft a submission. The error is a [*job.Invalid].
func (a *api) check(tenant string, draft job.Draft) (*submission, error) {
	j, err := draft.Job(tenant, a.Limits)
	if err != nil {
		return nil, err
	}
	if err := a.Callbacks.Validate(j.Target()); err != nil {
		return nil, err
	}
	return &submission{job: j, past: draft.PastOrDefault()}, nil
}

// submit stores submissions and answers for each in order. Names may repeat: the later one wins.
func (a *api) submit(ctx context.Context, submissions []*submission) []outcome {
	outcomes := make([]outcome, len(submissions))
	now := a.now()
	attempts := make([]*attempt, len(submissions))
	for i, s := range submissions {
		attempts[i] = newAttempt(s, &outcomes[i], now)
	}
	for len(attempts) > 0 {
		n := orderly(attempts)
		a.putAll(ctx, attempts[:n])
		attempts = attempts[n:]
	}
	return outcomes
}

// attempt is a submission under way: what to try next, and where its outcome goes.
//
// When the client leaves open what becomes of past instants, that depends on whether the job exists, which only the
// store's own step decides. So it guesses: first that there is no job, and to fire; then, if there is, to skip. The same
// for a schedule that recurs: if there is a job with that very schedule, it is left alone, see [api.keep].
type attempt struct {
	job       *job.Job  // as it was submitted
	at        time.Time // when it was: its schedule begins then, however long it takes to store it
	past      job.Past
	condition store.Condition
	outcome   *outcome
	guesses   bool
	// gone tells that what it replaces has finished and lost its retention, so that for clients it does not exist.
	gone bool
	// refused is why it can't be put, should there be no job with its schedule to keep.
	refused error
	// placed holds what the last try would leave, if it succeeds.
	placed outcome
}

func newAttempt(s *submission, o *outcome, now time.Time) *attempt {
	t := &attempt{job: &s.job, at: now, past: s.past, condition: s.condition, outcome: o}
	switch {
	case !s.job.Schedule.Recurs() && (s.past != job.PastDefault || !s.job.Schedule.HasPast(now)):
	case s.condition.Always():
		t.guesses = true
		t.guessAbsent()
	case s.condition.Absent:
		t.past = job.PastFire
	default:
		t.past = job.PastSkip
	}
	return t
}

func (t *attempt) guessAbsent() { t.tryNext(store.Condition{Absent: true}, job.PastFire, false) }

func (t *attempt) tryNext(condition store.Condition, past job.Past, gone bool) {
	t.condition, t.gone = condition, gone
	if t.guesses {
		t.past = past
	}
}

// orderly is how many attempts may be put together: one whose guess may be wrong is put again after the others, so none
// of the others may have its name.
func orderly(attempts []*attempt) int {
	guessing := map[job.Name]bool{}
	for i, t := range attempts {
		if guessing[t.job.Name] {
			return i
		}
		if t.guesses {
			guessing[t.job.Name] = true
		}
	}
	return len(attempts)
}

// maxRounds is how often a submission is tried. Each further round takes another client that creates or deletes the job
// between two of our steps.
const maxRounds = 8

// putAll tries until each attempt has its outcome.
func (a *api) putAll(ctx context.Context, attempts []*attempt) {
	attempts = a.forEach(attempts, func(t *attempt) error { return a.keepMatching(ctx, t) })
	for range maxRounds {
		if attempts = a.putOnce(ctx, attempts); len(attempts) == 0 {
			return
		}
	}
	for _, t := range attempts {
		t.outcome.err = tooFast(t.job.Name)
	}
}

// putOnce tries each attempt once and answers those to be tried again.
func (a *api) putOnce(ctx context.Context, attempts []*attempt) (again []*attempt) {
	ctx, cancel := context.WithTimeout(ctx, store.Within) // before the revisions are taken: Put relies on it
	defer cancel()
	now := a.now()
	puts := make([]store.Put, 0, len(attempts))
	tried := make([]*attempt, 0, len(attempts))
	for _, t := range attempts {
		put, err := t.put(now, a.Retain, a.Expansion)
		if err != nil && t.job.Schedule.Recurs() && t.guesses && t.condition.Absent {
			t.refused = err // unless the same schedule is there, with its last instants
			again = append(again, t)
			continue
		}
		if err != nil {
			t.outcome.err = err
			continue
		}
		puts, tried = append(puts, put), append(tried, t)
	}
	if len(puts) == 0 {
		return a.reconsider(ctx, again, now)
	}
	var wakes wakes
	for i, result := range a.meetAndPut(ctx, puts) {
		t := tried[i]
		// What is said to have failed because the store was unavailable may have been done all the same.
		if result.Err == nil || errors.Is(result.Err, store.ErrUnavailable) {
			wakes.add(job.Lane{Tenant: t.job.Tenant, Priority: t.job.Options.Priority}, t.placed.next)
		}
		switch {
		case result.Err == nil:
			*t.outcome = t.placed
			t.outcome.created = result.Replaced == "" || t.gone
			t.outcome.inFlight = result.InFlight
			t.outcome.paused = result.Paused
		case errors.Is(result.Err, store.ErrPrecondition) && (t.guesses || t.condition.Absent || t.gone):
			again = append(again, t)
		default:
			t.outcome.err = result.Err
		}
	}
	for _, w := range wakes {
		a.Wake(w.Lane, w.DueAt)
	}
	return a.reconsider(ctx, again, now)
}

// wakes are when the first of what was stored is due, in each lane.
type wakes []store.LaneDue

func (w *wakes) add(lane job.Lane, at time.Time) {
	if at.IsZero() {
		return
	}
	for i := range *w {
		if known := &(*w)[i]; known.Lane == lane {
			if at.Before(known.DueAt) {
				known.DueAt = at
			}
			return
		}
	}
	*w = append(*w, store.LaneDue{Lane: lane, DueAt: at})
}

// put is the attempt's next try, under a fresh revision.
func (t *attempt) put(now time.Time, retain time.Duration, e job.Expansion) (store.Put, error) {
	j := *t.job // each try begins it anew
	j.Revision = job.NewRevision(now)
	j.Version = j.Revision
	j.CreatedAt, j.UpdatedAt = now, now // the store keeps the creation of a job that exists
	begun, err := j.Begin(t.at, t.past, e)
	if err != nil {
		return store.Put{}, err
	}
	t.placed = outcome{
		key: j.Key, revision: j.Revision, version: j.Version, missed: j.Missed,
		live: len(begun.Occurrences) > 0, occurrences: len(begun.Occurrences), skipped: begun.Skipped,
	}
	last := now
	for i := range begun.Occurrences { // those of steps that go back don't ascend
		at := begun.Occurrences[i].Timestamp
		if i == 0 || at.Before(t.placed.next) {
			t.placed.next = at
		}
		if at.After(last) {
			last = at
		}
	}
	if j.ExpiresAt = last.Add(retain); !j.ExpandAt.IsZero() {
		j.ExpiresAt = never
	}
	return store.Put{Job: j, Occurrences: begun.Occurrences, If: t.condition, Anew: t.gone, Now: now}, nil
}

// never is when a job expires whose schedule goes on; the expansion that ends it says otherwise.
var never = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)

// reconsider looks at the jobs of attempts whose condition did not hold, and answers those that have another try.
func (a *api) reconsider(ctx context.Context, attempts []*attempt, now time.Time) (again []*attempt) {
	return a.forEach(attempts, func(t *attempt) error { return a.reconsiderOne(ctx, t, now) })
}

// forEach does something for each attempt, several at once, and answers those that go on: without an error, which is then
// their outcome, or an outcome already. It changes attempts.
func (a *api) forEach(attempts []*attempt, do func(*attempt) error) (goOn []*attempt) {
	if len(attempts) == 1 { // as in most requests, where there mostly is nothing to do
		attempts[0].outcome.err = do(attempts[0])
	} else {
		const atOnce = 8 // reads are short; more would only crowd out other requests
		var next atomic.Int64
		var workers sync.WaitGroup
		for range min(atOnce, len(attempts)) {
			workers.Go(func() {
				for i := int(next.Add(1)); i <= len(attempts); i = int(next.Add(1)) {
					attempts[i-1].outcome.err = do(attempts[i-1])
				}
			})
		}
		workers.Wait()
	}
	return slices.DeleteFunc(attempts, func(t *attempt) bool { return t.outcome.err != nil || t.outcome.kept })
}

// reconsiderOne decides what the attempt tries next; the error is that it tries no more.
func (a *api) reconsiderOne(ctx context.Context, t *attempt, now time.Time) error {
	if !t.condition.Absent { // there was a job, and now there is none or another
		t.tryNext(store.Condition{Absent: true}, job.PastFire, false)
		return nil
	}
	present, err := a.Store.Job(ctx, t.job.Name)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return t.refused // or it was deleted meanwhile: the same again
	case err != nil:
		return err
	case present.Gone(now):
		t.tryNext(store.Condition{Versions: []job.Revision{present.Version}}, job.PastFire, true)
		return nil
	case !t.guesses:
		return store.ErrPrecondition
	}
	if keeps(present, t) {
		return a.keep(ctx, t, present)
	}
	t.tryNext(store.Condition{Present: true}, job.PastSkip, false)
	return nil
}

// keepMatching looks at the job of an attempt for which it must exist: it keeps the schedule, if that is the very same, and
// refuses what is for no job before that makes its tenant known.
func (a *api) keepMatching(ctx context.Context, t *attempt) error {
	if t.guesses || t.condition.Always() || t.condition.Absent || !t.job.Schedule.Recurs() && a.meeting.has(t.job.Tenant) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	for range maxRounds {
		present, err := a.Store.Job(ctx, t.job.Name)
		switch {
		case errors.Is(err, store.ErrNotFound):
			return store.ErrPrecondition
		case err != nil:
			return err
		case !t.condition.Holds(present.Version) || !keeps(present, t):
			return nil // the put itself will tell
		}
		if err := a.keep(ctx, t, present); err != nil || t.outcome.kept {
			return err
		}
	}
	return tooFast(t.job.Name)
}

func tooFast(name job.Name) error {
	return fmt.Errorf("%w: job %s is changed too fast", store.ErrUnavailable, name)
}

// keeps tells whether a job has the very schedule and priority that are submitted for it, and has not come to its end.
func keeps(present store.JobStatus, t *attempt) bool {
	return present.Live && t.job.Schedule.Recurs() && t.job.Schedule.Same(&present.Schedule) &&
		t.job.Options.Priority == present.Options.Priority // else its ticks wait in another lane
}

// keep changes all but the schedule of a job. Else a service that submits its jobs each time it starts would shift the grid
// of "@every" each time, and would drop whatever instant is due just then. If the job has changed meanwhile, nothing is kept.
func (a *api) keep(ctx context.Context, t *attempt, present store.JobStatus) error {
	o, err := a.amend(ctx, present, *t.job)
	if errors.Is(err, store.ErrPrecondition) || errors.Is(err, store.ErrNotFound) {
		return nil
	}
	*t.outcome = o
	return err
}
