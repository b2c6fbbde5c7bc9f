package handlers

import (
	"cmp"
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
	ctx, cancel, newer := a.inTime(c.Request)
	defer cancel()
	s.condition, s.newer = condition, newer
	s.job.Options.Trace = traceOf(c.Request)
	o := a.submit(ctx, []*submission{s})[0]
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
	// newer are the versions that came after it.
	newer store.Span
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
	settled     int
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

// submit stores submissions and answers for each in order. Names may repeat: the later one wins. The context ends when
// none of them may take effect any more.
func (a *api) submit(ctx context.Context, submissions []*submission) []outcome {
	outcomes := make([]outcome, len(submissions))
	now := a.now()
	attempts := make([]*attempt, len(submissions))
	for i, s := range submissions {
		attempts[i] = a.newAttempt(s, &outcomes[i], now)
	}
	for len(attempts) > 0 {
		n := orderly(attempts)
		a.finish(ctx, slices.Clone(attempts[:n]))
		follow(attempts[:n], attempts[n:])
		attempts = attempts[n:]
	}
	return outcomes
}

// attempt is a submission under way, a state machine. Its step is what to do next:
//
//	blind ---put---> stored
//	create --put---> stored           there is such a job: look
//	look ----------> create           there is none
//	                 revive           it has finished and lost its retention
//	                 stored           it recurs by the very schedule that is submitted: its instants stay
//	                 replace          else
//	revive --put---> stored           the job has changed: look
//	replace -put---> stored           the job has changed: look
//
// What an instant that has passed, or passes meanwhile, becomes depends on what there is when the put takes effect. So
// each put but a blind one takes effect only if that is what it was made for.
type attempt struct {
	*submission
	at      time.Time // when it was submitted: its schedule begins then, however long it takes to store it
	step    step
	outcome *outcome
	// present is the job as it was last looked at, and pending what may be claimed of it before it is replaced.
	present store.JobStatus
	pending []job.Occurrence
	// refused is why it can't be created, should there be no job with its schedule to keep.
	refused error
	// placed is what the last put leaves, if it takes effect and carries over all that was pending.
	placed outcome
}

// step is what an attempt does next.
type step int

const (
	blind   step = iota // put it on its own condition: no instant of it can be claimed before it is stored
	create              // put it on the condition that there is no job of its name
	look                // read the job
	revive              // put it in the place of one that does not exist for clients any more
	replace             // put it in the place of the job that was read
)

func (a *api) newAttempt(s *submission, o *outcome, now time.Time) *attempt {
	t := &attempt{submission: s, at: now, outcome: o}
	reaches := s.job.Schedule.Reaches(a.soon(now), now)
	switch {
	case s.condition.Absent, s.condition.Always() && reaches:
		t.step = create
	case !s.condition.Always() && (reaches || !a.meeting.has(s.job.Tenant)): // what is for no job must not make a tenant known
		t.step = look
	default:
		t.step = blind
	}
	return t
}

// soon is up to which instants may be claimed, by whichever replica's clock, before a put that begins now has taken
// effect.
func (a *api) soon(now time.Time) time.Time { return now.Add(2*store.Within + a.Early) }

// orderly is how many attempts may be made together: each of another name, since one comes after another only if that
// has ended.
func orderly(attempts []*attempt) int {
	names := make(map[job.Name]bool, len(attempts))
	for i, t := range attempts {
		if names[t.job.Name] {
			return i
		}
		names[t.job.Name] = true
	}
	return len(attempts)
}

// follow has attempts come after those that were made before them, whose versions are not newer then.
func follow(before, after []*attempt) {
	if len(after) == 0 {
		return
	}
	versions := make(map[job.Name]job.Revision, len(before))
	for _, t := range before {
		if t.outcome.err == nil {
			versions[t.job.Name] = t.outcome.version
		}
	}
	for _, t := range after {
		if version := versions[t.job.Name]; version > t.newer.After && t.newer != (store.Span{}) {
			t.newer.After = version
		}
	}
}

// maxRounds is how often a submission is tried. Each further round takes another client that changes the job between
// two of our steps.
const maxRounds = 8

// finish goes on until each attempt has its outcome.
func (a *api) finish(ctx context.Context, attempts []*attempt) {
	for range maxRounds {
		attempts = a.forEach(attempts, func(t *attempt) error { return a.look(ctx, t) })
		if attempts = a.putAll(ctx, attempts); len(attempts) == 0 {
			return
		}
	}
	for _, t := range attempts {
		t.outcome.err = tooFast(t.job.Name)
	}
}

// putAll puts each attempt that is to be, and answers those that go on.
func (a *api) putAll(ctx context.Context, attempts []*attempt) (goOn []*attempt) {
	ctx, cancel := a.foreseen(ctx, attempts)
	defer cancel()
	now := a.now()
	puts := make([]store.Put, 0, len(attempts))
	tried := make([]*attempt, 0, len(attempts))
	for _, t := range attempts {
		if t.step == look { // the job changed while it was looked at
			goOn = append(goOn, t)
			continue
		}
		put, err := a.prepare(t, now)
		switch {
		case err == nil:
			puts, tried = append(puts, put), append(tried, t)
		case t.step == create && t.job.Schedule.Recurs() && t.condition.Always():
			t.refused, t.step = err, look // unless the same schedule is there, with its last instants
			goOn = append(goOn, t)
		default:
			t.outcome.err = err
		}
	}
	if len(puts) == 0 {
		return goOn
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
			a.accept(ctx, t, &puts[i], result)
		case errors.Is(result.Err, store.ErrPrecondition) && t.step != blind:
			t.step = look
			goOn = append(goOn, t)
		default:
			t.outcome.err = result.Err
		}
	}
	for _, w := range wakes {
		a.Wake(w.Lane, w.DueAt)
	}
	return goOn
}

// foreseen bounds puts by when the first instant could fire of which they do not know: that of a schedule that recurs,
// which takes another's place, beyond what its beginning looks ahead.
func (a *api) foreseen(ctx context.Context, attempts []*attempt) (context.Context, context.CancelFunc) {
	for _, t := range attempts {
		if t.step == replace && t.job.Schedule.Recurs() && a.Expansion.Lead() < store.Within {
			return context.WithTimeout(ctx, a.Expansion.Lead()-a.now().Sub(t.at))
		}
	}
	return context.WithCancel(ctx)
}

// accept makes what a put has left the attempt's outcome.
func (a *api) accept(ctx context.Context, t *attempt, put *store.Put, result store.PutResult) {
	o := t.outcome
	*o = t.placed
	o.created = result.Replaced == "" || t.step == revive
	o.inFlight, o.paused = result.InFlight, result.Paused
	lost := len(put.Carried) - result.Carried // settled since the job was read
	if lost == 0 {
		return
	}
	o.settled += lost
	o.occurrences -= lost
	o.live = o.occurrences > 0 || !put.Job.ExpandAt.IsZero()
	// It is stored, so that its next instant can't be told is no failure.
	first, _, err := a.Store.Occurrences(ctx, store.OccurrenceFilter{Name: put.Job.Name, Revision: put.Job.Revision, Limit: defaultLimit})
	if o.next = nextOf(first); err != nil {
		o.next = time.Time{}
	}
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

// prepare makes the put of an attempt's step, under a fresh revision.
func (a *api) prepare(t *attempt, now time.Time) (store.Put, error) {
	j := t.job // each try begins it anew
	j.Revision = a.stamp()
	j.Version = j.Revision
	j.CreatedAt, j.UpdatedAt = now, now // the store keeps the creation of a job that exists
	put := store.Put{Newer: t.newer, Now: now}
	begun, err := a.begin(t, &j, &put)
	if err != nil {
		return store.Put{}, err
	}
	put.Job, put.Occurrences, put.Carried = j, begun.Occurrences, begun.Carried
	n := len(begun.Occurrences) + len(begun.Carried)
	t.placed = outcome{
		key: j.Key, revision: j.Revision, version: j.Version, missed: j.Missed, occurrences: n,
		live: n > 0 || !j.ExpandAt.IsZero(), skipped: begun.Skipped, settled: begun.Settled,
	}
	last := now
	see := func(at time.Time) { // those of steps that go back don't ascend
		if t.placed.next.IsZero() || at.Before(t.placed.next) {
			t.placed.next = at
		}
		if at.After(last) {
			last = at
		}
	}
	for i := range begun.Occurrences {
		see(begun.Occurrences[i].Timestamp)
	}
	for i := range begun.Carried {
		see(begun.Carried[i].As.Timestamp)
	}
	if put.Job.ExpiresAt = last.Add(a.Retain); !j.ExpandAt.IsZero() {
		put.Job.ExpiresAt = never
	}
	return put, nil
}

// begin begins the job of an attempt's step, and sets what its put is on condition of.
func (a *api) begin(t *attempt, j *job.Job, put *store.Put) (job.Beginning, error) {
	switch t.step {
	case look: // which comes before it is put
	case blind:
		put.If = t.condition
	case create:
		put.If = store.Condition{Absent: true}
	case revive:
		put.If, put.StartsOver = store.Condition{Versions: []job.Revision{t.present.Version}}, true
	case replace:
		put.From = store.Replaced{Version: t.present.Version, Cursor: t.present.Cursor}
		of := job.Predecessor{Job: &t.present.Job, Pending: t.pending, Until: a.soon(t.at)}
		return j.BeginInstead(of, t.at, cmp.Or(t.past, job.PastSkip), a.Expansion)
	}
	return j.Begin(t.at, cmp.Or(t.past, job.PastFire), a.Expansion)
}

// never is when a job expires whose schedule goes on; the expansion that ends it says otherwise.
var never = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)

// forEach does something for each attempt, several at once, and answers those that go on: without an error, which is
// then their outcome, or an outcome already. It changes attempts.
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

// look reads the job, if that is the attempt's step, and decides what comes next; the error is that the attempt has
// ended.
func (a *api) look(ctx context.Context, t *attempt) error {
	if t.step != look {
		return nil
	}
	present, err := a.Store.Job(ctx, t.job.Name)
	absent := errors.Is(err, store.ErrNotFound)
	switch {
	case err != nil && !absent:
		return err
	case absent && !t.condition.Holds(""):
		return store.ErrPrecondition
	case absent:
		t.step = create
		return t.refused
	case t.newer.Has(present.Version):
		return store.ErrSuperseded
	}
	t.present, t.pending = present, nil
	switch {
	case present.Gone(a.now()) && (t.condition.Always() || t.condition.Absent):
		t.step = revive
		return nil
	case !t.condition.Holds(present.Version):
		return store.ErrPrecondition
	case keeps(present, t):
		return a.keep(ctx, t, present)
	}
	t.step = replace
	if t.job.Schedule.Reaches(a.soon(t.at), t.at) {
		t.pending, err = a.pendingUntil(ctx, &present.Job, a.soon(t.at))
	}
	return err
}

// pendingUntil reads what a job has of pending occurrences up to an instant.
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

func tooFast(name job.Name) error {
	return fmt.Errorf("%w: job %s is changed too fast", store.ErrNotDone, name)
}

// keeps tells whether a job has the very schedule and priority that are submitted for it, and has not come to its end.
func keeps(present store.JobStatus, t *attempt) bool {
	return present.Live() && t.job.Schedule.Recurs() && t.job.Schedule.Same(&present.Schedule) &&
		t.job.Options.Priority == present.Options.Priority // else its ticks wait in another lane
}

// keep changes all but the schedule of a job. Else a service that submits its jobs each time it starts would shift the
// grid of "@every" each time. If the job has changed meanwhile, nothing is kept, and the attempt looks again.
func (a *api) keep(ctx context.Context, t *attempt, present store.JobStatus) error {
	o, err := a.amend(ctx, present, t.job)
	if errors.Is(err, store.ErrPrecondition) || errors.Is(err, store.ErrNotFound) {
		return nil
	}
	*t.outcome = o
	return err
}
