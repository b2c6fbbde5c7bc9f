package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/dispatcher"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/memory"
)

// The tests run whole dispatchers on a real store, on the virtual clock of a synctest bubble.

// bubble runs f on a virtual clock with an empty store.
func bubble(t *testing.T, f func(b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		b := &bench{T: t, store: s, queue: &flakyQueue{Store: s}, receiver: &receiver{}, start: time.Now(), now: time.Now}
		f(b)
		b.stopAll()
	})
}

// calm changes a replica's configuration: it polls less often, so that a test of hours is faster.
func calm(c *dispatcher.Config) { c.Tick = time.Minute }

// alone changes a replica's configuration: one destination may have all slots, however slow it is.
func alone(c *dispatcher.Config) {
	c.Destinations.InFlight, c.Destinations.SlowInFlight = c.Concurrency, c.Concurrency
}

type bench struct {
	*testing.T
	store    store.Store
	queue    *flakyQueue
	receiver *receiver
	start    time.Time
	now      func() time.Time // the submitter's clock
	stops    []func()
}

// replica starts a dispatcher; stop ends it as SIGTERM does.
func (b *bench) replica(change func(*dispatcher.Config)) (d *dispatcher.Dispatcher, stop func()) {
	b.Helper()
	cfg := dispatcher.Defaults
	cfg.Store, cfg.Callbacks = b.queue, callbacks.NewRegistry(b.receiver)
	if change != nil {
		change(&cfg)
	}
	d, err := dispatcher.New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			b.Errorf("run: %v", err)
		}
	})
	b.stops = append(b.stops, stop)
	return d, stop
}

func (b *bench) stopAll() {
	for _, stop := range b.stops {
		stop()
	}
}

// submit puts a job with instants at these times after now, or with the schedule that change sets.
func (b *bench) submit(key string, change func(*job.Job), after ...time.Duration) job.Job {
	b.Helper()
	now := b.now().Round(0)
	revision := job.NewRevision(now)
	j := job.Job{
		Name:     job.Name{Tenant: job.DefaultTenant, Key: key},
		Revision: revision, Version: revision, CreatedAt: now, UpdatedAt: now, ExpiresAt: now.Add(24 * time.Hour),
		Callback: job.Callback{Type: "test", Data: []byte(`"` + key + `"`)},
	}
	for _, d := range after {
		j.Schedule.Instants = append(j.Schedule.Instants, now.Add(d).Truncate(time.Millisecond))
	}
	if change != nil {
		change(&j)
	}
	if j.Schedule.Recurs() {
		j.ExpiresAt = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)
	}
	begun, err := j.Begin(now, job.PastFire, dispatcher.Defaults.Expansion())
	if err != nil {
		b.Fatal(err)
	}
	result := b.store.Put(b.Context(), []store.Put{{Job: j, Occurrences: begun.Occurrences, Now: now}})[0]
	if result.Err != nil {
		b.Fatal(result.Err)
	}
	return j
}

// crontab returns a change for submit.
func crontab(expression string) func(*job.Job) {
	return func(j *job.Job) {
		var err error
		if j.Schedule.Crontab, err = job.ParseCrontab(expression); err != nil {
			panic(err)
		}
	}
}

// status reads a job.
func (b *bench) status(j job.Job) store.JobStatus {
	b.Helper()
	status, err := store.ReadJob(b.Context(), b.store, j.Name)
	if err != nil {
		b.Fatal(err)
	}
	return status
}

// pause pauses jobs.
func (b *bench) pause(jobs ...job.Job) {
	b.Helper()
	now := time.Now()
	for _, j := range jobs {
		if err := b.store.Pause(b.Context(), j.Name, job.NewRevision(now), now); err != nil {
			b.Fatal(err)
		}
	}
}

// resume resumes jobs, and wakes a dispatcher as the API does.
func (b *bench) resume(d *dispatcher.Dispatcher, jobs ...job.Job) {
	b.Helper()
	now := time.Now()
	for _, j := range jobs {
		if err := b.store.Resume(b.Context(), j.Name, job.NewRevision(now), now); err != nil {
			b.Fatal(err)
		}
	}
	d.Wake(job.DefaultLane, now)
	d.WakeExpander()
}

func (b *bench) pending(j job.Job) []job.Occurrence {
	b.Helper()
	page, _, err := b.store.Occurrences(b.Context(), store.OccurrenceFilter{Name: j.Name, Revision: j.Revision, Limit: 1000})
	if err != nil {
		b.Fatal(err)
	}
	return page
}

func (b *bench) dead() []job.Occurrence {
	b.Helper()
	page, err := b.store.DeadLetters(b.Context(), store.DeadLetterFilter{Tenant: job.DefaultTenant, Limit: 1000})
	if err != nil {
		b.Fatal(err)
	}
	return page
}

func (b *bench) expectSent(want ...string) {
	b.Helper()
	if got := b.receiver.log(b.start); got != strings.Join(want, "\n") {
		b.Errorf("sent:\n%s\nwant:\n%s", got, strings.Join(want, "\n"))
	}
}

// receiver is a sender that records its deliveries and answers as set.
type receiver struct {
	lock   sync.Mutex
	sent   []callbacks.Delivery
	answer func(ctx context.Context, d callbacks.Delivery) error
	to     func(data []byte) string // the destinations; nil is one for all
	part   func(data []byte) string // the parts of destinations; nil is one for all
}

func (*receiver) Type() string          { return "test" }
func (*receiver) Validate([]byte) error { return nil }

func (r *receiver) Destination(data []byte) string {
	destination, _ := r.Place(data)
	return destination
}

func (r *receiver) Place(data []byte) (destination, part string) {
	r.lock.Lock()
	defer r.lock.Unlock()
	if r.part != nil {
		part = r.part(data)
	}
	if r.to == nil {
		return "receiver", part
	}
	return r.to(data), part
}

func (r *receiver) Send(ctx context.Context, d callbacks.Delivery) error {
	r.lock.Lock()
	d.SentAt = time.Now()
	r.sent = append(r.sent, d)
	answer := r.answer
	r.lock.Unlock()
	if answer == nil {
		return nil
	}
	return answer(ctx, d)
}

// log lists the deliveries: the time since start, the job, the attempt.
func (r *receiver) log(start time.Time) string {
	r.lock.Lock()
	defer r.lock.Unlock()
	var lines []string
	for _, d := range r.sent {
		lines = append(lines, fmt.Sprintf("%s %s #%d", d.SentAt.Sub(start), d.Name.Key, d.Attempt))
	}
	return strings.Join(lines, "\n")
}

// all lists the deliveries.
func (r *receiver) all() []callbacks.Delivery {
	r.lock.Lock()
	defer r.lock.Unlock()
	return slices.Clone(r.sent)
}

// of lists the deliveries of a job.
func (r *receiver) of(key string) []callbacks.Delivery {
	r.lock.Lock()
	defer r.lock.Unlock()
	var sent []callbacks.Delivery
	for _, d := range r.sent {
		if d.Name.Key == key {
			sent = append(sent, d)
		}
	}
	return sent
}

// answers sets the receiver's answers from now on.
func (r *receiver) answers(answer func(ctx context.Context, d callbacks.Delivery) error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.answer = answer
}

func (r *receiver) count() int {
	r.lock.Lock()
	defer r.lock.Unlock()
	return len(r.sent)
}

// flakyQueue is a store whose faults a test sets.
type flakyQueue struct {
	dispatcher.Store
	lock       sync.Mutex
	down       bool
	skew       time.Duration
	ask        time.Duration // the time before the store reads its clock
	tell       time.Duration // the time after that, until its answer comes
	poll       int
	claims     int
	claimErr   error   // of every claim
	beatErr    error   // of every beat
	tenantsErr error   // of every list of the tenants
	countErr   error   // of every count of lanes
	counted    int     // lanes
	settle     []error // of the next settlements
	read       func(*store.Claimed)

	claimJobsErr error                                                     // of every claim of jobs
	readJob      func(*job.Job)                                            // changes every job that is claimed for expansion
	advance      func(ctx context.Context, advances []store.Advance) error // runs before every advance; an error prevents the advance
	expansions   int                                                       // successful advances of jobs
}

func (q *flakyQueue) set(f func(q *flakyQueue)) {
	q.lock.Lock()
	defer q.lock.Unlock()
	f(q)
}

// expanded returns the number of advances.
func (q *flakyQueue) expanded() int {
	q.lock.Lock()
	defer q.lock.Unlock()
	return q.expansions
}

func (q *flakyQueue) polls() int {
	q.lock.Lock()
	defer q.lock.Unlock()
	return q.poll
}

// claimed returns the number of claims.
func (q *flakyQueue) claimed() int {
	q.lock.Lock()
	defer q.lock.Unlock()
	return q.claims
}

func (q *flakyQueue) fault() error {
	q.lock.Lock()
	defer q.lock.Unlock()
	q.poll++
	if q.down {
		return fmt.Errorf("%w: switched off", store.ErrUnavailable)
	}
	return nil
}

func (q *flakyQueue) Claim(ctx context.Context, p store.ClaimParams) (store.Claim, error) {
	if err := q.fault(); err != nil {
		return store.Claim{}, err
	}
	q.lock.Lock()
	err, read := q.claimErr, q.read
	q.claims++
	q.lock.Unlock()
	if err != nil {
		return store.Claim{}, err
	}
	claim, err := q.Store.Claim(ctx, p)
	for i := range claim.Occurrences {
		if read != nil {
			read(&claim.Occurrences[i])
		}
	}
	return claim, err
}

func (q *flakyQueue) ClaimJobs(ctx context.Context, p store.ClaimJobsParams) (store.ClaimedJobs, error) {
	if err := q.fault(); err != nil {
		return store.ClaimedJobs{}, err
	}
	q.lock.Lock()
	err, read := q.claimJobsErr, q.readJob
	q.lock.Unlock()
	if err != nil {
		return store.ClaimedJobs{}, err
	}
	claimed, err := q.Store.ClaimJobs(ctx, p)
	for i := range claimed.Jobs {
		if read != nil {
			read(&claimed.Jobs[i])
		}
	}
	return claimed, err
}

func (q *flakyQueue) Advance(ctx context.Context, advances []store.Advance) error {
	if err := q.fault(); err != nil {
		return err
	}
	q.lock.Lock()
	advance := q.advance
	q.lock.Unlock()
	if advance != nil {
		if err := advance(ctx, advances); err != nil {
			return err
		}
	}
	err := q.Store.Advance(ctx, advances)
	if err == nil {
		q.set(func(q *flakyQueue) { q.expansions += len(advances) })
	}
	return err
}

func (q *flakyQueue) DueLanes(ctx context.Context, p store.DueParams) (store.DuePage, error) {
	if err := q.fault(); err != nil {
		return store.DuePage{}, err
	}
	return q.Store.DueLanes(ctx, p)
}

func (q *flakyQueue) Records(ctx context.Context, filter store.RecordFilter) ([]store.Record, error) {
	q.lock.Lock()
	down, err := q.down, q.tenantsErr
	q.lock.Unlock()
	switch {
	case filter.Collection == "replicas":
	case down:
		return nil, fmt.Errorf("%w: switched off", store.ErrUnavailable)
	case err != nil:
		return nil, err
	}
	return q.Store.Records(ctx, filter)
}

func (q *flakyQueue) Count(ctx context.Context, now time.Time, lanes []job.Lane, limit int) ([]store.Count, error) {
	q.lock.Lock()
	err := q.countErr
	q.counted += len(lanes)
	q.lock.Unlock()
	if err != nil {
		return nil, err
	}
	return q.Store.Count(ctx, now, lanes, limit)
}

func (q *flakyQueue) Settle(ctx context.Context, s []store.Settlement) error {
	if err := q.fault(); err != nil {
		return err
	}
	q.lock.Lock()
	var err error
	if len(q.settle) > 0 {
		err, q.settle = q.settle[0], q.settle[1:]
	}
	q.lock.Unlock()
	if err != nil {
		return err
	}
	return q.Store.Settle(ctx, s)
}

func (q *flakyQueue) Now(ctx context.Context) (time.Time, error) {
	if err := q.fault(); err != nil {
		return time.Time{}, err
	}
	q.lock.Lock()
	ask, tell := q.ask, q.tell
	q.lock.Unlock()
	time.Sleep(ask)
	now, err := q.Store.Now(ctx)
	time.Sleep(tell)
	q.lock.Lock()
	defer q.lock.Unlock()
	return now.Add(q.skew), err
}

// slowQueue delays a claim's answer. If it is stopped, the answer comes even beyond the claim's time limit, as if the
// whole process were stopped.
type slowQueue struct {
	dispatcher.Store
	pause, each time.Duration // the delay: a fixed part, and one for each claimed occurrence
	stopped     bool
	largest     int // occurrences of one claim
}

func (q *slowQueue) Claim(ctx context.Context, p store.ClaimParams) (store.Claim, error) {
	claim, err := q.Store.Claim(ctx, p)
	if len(claim.Occurrences) == 0 {
		return claim, err
	}
	q.largest = max(q.largest, len(claim.Occurrences))
	if q.stopped {
		time.Sleep(q.pause)
		return claim, err
	}
	select {
	case <-time.After(q.pause + q.each*time.Duration(len(claim.Occurrences))):
		return claim, err
	case <-ctx.Done(): // the answer is lost, and the claim is given back, as by a store
		var back []store.Settlement
		for i := range claim.Occurrences {
			c := &claim.Occurrences[i]
			back = append(back, store.Settlement{ID: c.ID, Token: c.Token, Outcome: store.Release, DueAt: p.Now})
		}
		return store.Claim{}, errors.Join(store.ErrUnavailable, ctx.Err(), q.Settle(context.WithoutCancel(ctx), back))
	}
}
