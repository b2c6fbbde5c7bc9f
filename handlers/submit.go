package handlers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"
	"golang.org/x/sync/errgroup"

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
	o := a.submit(c.Request.Context(), []submission{s})[0]
	if o.err != nil {
		return o.err
	}
	if o.created {
		c.Header("Location", jobPath(o.job.Key))
	}
	setETag(c, o.job.Revision)
	return writeJSON(c, o.status(), acceptedView(o))
}

// accepted tells a client what became of its submission.
type accepted struct {
	Key         string       `json:"key"`
	Revision    job.Revision `json:"revision"`
	State       string       `json:"state"`
	Occurrences int          `json:"occurrences"`
	Skipped     int          `json:"skipped"`
	NextInstant string       `json:"nextInstant,omitzero"`
	InFlight    *int         `json:"inFlight,omitzero"`
}

func acceptedView(o outcome) accepted {
	v := accepted{
		Key:         o.job.Key,
		Revision:    o.job.Revision,
		State:       jobState(o.occurrences > 0),
		Occurrences: o.occurrences,
		Skipped:     o.skipped,
		NextInstant: instantText(o.next),
	}
	if !o.created {
		v.InFlight = &o.inFlight
	}
	return v
}

// submission is a checked job on its way into the store, yet without revision and times.
type submission struct {
	job       job.Job
	past      job.Past
	condition store.Condition
}

// outcome answers a submission. What it says of the job holds only if err is nil.
type outcome struct {
	job         job.Job
	created     bool
	occurrences int
	skipped     int
	next        time.Time // the earliest instant of the occurrences; zero if there are none
	inFlight    int
	err         error
}

func (o outcome) status() int {
	if o.created {
		return http.StatusCreated
	}
	return http.StatusOK
}

// check makes a draft a submission. The error is a [*job.Invalid].
func (a *api) check(tenant string, draft job.Draft) (submission, error) {
	j, err := draft.Job(tenant, a.Limits)
	if err != nil {
		return submission{}, err
	}
	if err := a.Callbacks.Validate(j.Callback); err != nil {
		return submission{}, err
	}
	return submission{job: j, past: draft.Past}, nil
}

// submit stores submissions and answers for each in order. Names may repeat: the later one wins.
func (a *api) submit(ctx context.Context, submissions []submission) []outcome {
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
// store's own step decides. So it guesses: first that there is no job, and to fire; then, if there is, to skip.
type attempt struct {
	submission
	outcome *outcome
	guesses bool
	// gone tells that what it replaces has finished and lost its retention, so that for clients it does not exist.
	gone bool
	// placed holds what the last try would leave, if it succeeds.
	placed outcome
}

func newAttempt(s submission, o *outcome, now time.Time) *attempt {
	t := &attempt{submission: s, outcome: o}
	switch {
	case s.past != job.PastDefault || !s.job.Schedule.HasPast(now):
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
	for range maxRounds {
		if attempts = a.putOnce(ctx, attempts); len(attempts) == 0 {
			return
		}
	}
	for _, t := range attempts {
		t.outcome.err = fmt.Errorf("%w: job %s is created and deleted too fast", store.ErrUnavailable, t.job.Name)
	}
}

// putOnce tries each attempt once and answers those to be tried again.
func (a *api) putOnce(ctx context.Context, attempts []*attempt) (again []*attempt) {
	ctx, cancel := context.WithTimeout(ctx, store.PutWithin) // before the revisions are taken: Put relies on it
	defer cancel()
	now := a.now()
	puts := make([]store.Put, 0, len(attempts))
	tried := make([]*attempt, 0, len(attempts))
	for _, t := range attempts {
		put, err := t.put(now, a.Retain)
		if err != nil {
			t.outcome.err = err
			continue
		}
		puts, tried = append(puts, put), append(tried, t)
	}
	if len(puts) == 0 {
		return nil
	}
	var wake time.Time
	for i, result := range a.Store.Put(ctx, puts) {
		t := tried[i]
		// What is said to have failed because the store was unavailable may have been done all the same.
		if next := t.placed.next; result.Err == nil || errors.Is(result.Err, store.ErrUnavailable) {
			if !next.IsZero() && (wake.IsZero() || next.Before(wake)) {
				wake = next
			}
		}
		switch {
		case result.Err == nil:
			*t.outcome = t.placed
			t.outcome.created = result.Replaced == "" || t.gone
			t.outcome.inFlight = result.InFlight
		case errors.Is(result.Err, store.ErrPrecondition) && (t.guesses || t.condition.Absent || t.gone):
			again = append(again, t)
		default:
			t.outcome.err = result.Err
		}
	}
	if !wake.IsZero() {
		a.Wake(wake)
	}
	return a.reconsider(ctx, again, now)
}

// put is the attempt's next try, under a fresh revision.
func (t *attempt) put(now time.Time, retain time.Duration) (store.Put, error) {
	j := t.job
	j.Revision = job.NewRevision(now)
	j.CreatedAt, j.UpdatedAt = now, now // the store keeps the creation of a job that exists
	j.ExpiresAt = now.Add(retain)
	if last := j.Schedule.Last(); last.After(now) {
		j.ExpiresAt = last.Add(retain)
	}
	occurrences, skipped, err := j.Occurrences(now, t.past)
	if err != nil {
		return store.Put{}, err
	}
	t.placed = outcome{job: j, occurrences: len(occurrences), skipped: skipped}
	if len(occurrences) > 0 {
		t.placed.next = occurrences[0].Timestamp // they ascend
	}
	return store.Put{Job: j, Occurrences: occurrences, If: t.condition, Now: now}, nil
}

// reconsider looks at the jobs of attempts whose condition did not hold, and answers those that have another try.
func (a *api) reconsider(ctx context.Context, attempts []*attempt, now time.Time) (again []*attempt) {
	const atOnce = 8 // reads are short; more would only crowd out other requests
	var group errgroup.Group
	group.SetLimit(atOnce)
	for _, t := range attempts {
		group.Go(func() error {
			t.outcome.err = a.reconsiderOne(ctx, t, now)
			return nil
		})
	}
	_ = group.Wait()
	for _, t := range attempts {
		if t.outcome.err == nil {
			again = append(again, t)
		}
	}
	return again
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
		return nil // deleted meanwhile: the same again
	case err != nil:
		return err
	case present.Gone(now):
		t.tryNext(store.Condition{Revisions: []job.Revision{present.Revision}}, job.PastFire, true)
		return nil
	case t.guesses:
		t.tryNext(store.Condition{Present: true}, job.PastSkip, false)
		return nil
	default:
		return store.ErrPrecondition
	}
}
