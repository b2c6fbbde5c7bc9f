package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/dispatcher"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/sqlite"
)

// The tests run whole dispatchers on a real store, on the virtual clock of a synctest bubble.

// bubble runs f on a virtual clock with an empty store.
func bubble(t *testing.T, f func(b *bench)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s, err := sqlite.Open(t.Context(), "sqlite:"+filepath.Join(dir, "carillon.db"))
		if err != nil {
			t.Fatal(err)
		}
		b := &bench{T: t, store: s, queue: &flakyQueue{Queue: s}, receiver: &receiver{}, start: time.Now()}
		f(b)
		b.stopAll()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

type bench struct {
	*testing.T
	store    store.Store
	queue    *flakyQueue
	receiver *receiver
	start    time.Time
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

// submit puts a job with instants that many after now.
func (b *bench) submit(key string, change func(*job.Job), after ...time.Duration) job.Job {
	b.Helper()
	now := time.Now()
	j := job.Job{
		Name:     job.Name{Tenant: job.DefaultTenant, Key: key},
		Revision: job.NewRevision(now), CreatedAt: now, UpdatedAt: now, ExpiresAt: now.Add(24 * time.Hour),
		Callback: job.Callback{Type: "test", Data: []byte(`"` + key + `"`)},
	}
	for _, d := range after {
		j.Schedule.Instants = append(j.Schedule.Instants, now.Add(d).Truncate(time.Millisecond))
	}
	if change != nil {
		change(&j)
	}
	occurrences, _, err := j.Occurrences(now, job.PastFire)
	if err != nil {
		b.Fatal(err)
	}
	result := b.store.Put(b.Context(), []store.Put{{Job: j, Occurrences: occurrences, Now: now}})[0]
	if result.Err != nil {
		b.Fatal(result.Err)
	}
	return j
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

// receiver is a sender that records what it is given and answers as told.
type receiver struct {
	lock   sync.Mutex
	sent   []callbacks.Delivery
	answer func(ctx context.Context, d callbacks.Delivery) error
}

func (*receiver) Type() string          { return "test" }
func (*receiver) Validate([]byte) error { return nil }

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

// log lists what was sent: when since start, to whom, which attempt.
func (r *receiver) log(start time.Time) string {
	r.lock.Lock()
	defer r.lock.Unlock()
	var lines []string
	for _, d := range r.sent {
		lines = append(lines, fmt.Sprintf("%s %s #%d", d.SentAt.Sub(start), d.Name.Key, d.Attempt))
	}
	return strings.Join(lines, "\n")
}

func (r *receiver) count() int {
	r.lock.Lock()
	defer r.lock.Unlock()
	return len(r.sent)
}

// flakyQueue is the store with faults to order.
type flakyQueue struct {
	store.Queue
	lock     sync.Mutex
	down     bool
	skew     time.Duration
	poll     int
	claimErr error   // of every claim
	settle   []error // of the next settlements
	read     func(*store.Claimed)
}

func (q *flakyQueue) set(f func(q *flakyQueue)) {
	q.lock.Lock()
	defer q.lock.Unlock()
	f(q)
}

func (q *flakyQueue) polls() int {
	q.lock.Lock()
	defer q.lock.Unlock()
	return q.poll
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
	q.lock.Unlock()
	if err != nil {
		return store.Claim{}, err
	}
	claim, err := q.Queue.Claim(ctx, p)
	for i := range claim.Occurrences {
		if read != nil {
			read(&claim.Occurrences[i])
		}
	}
	return claim, err
}

func (q *flakyQueue) NextDue(ctx context.Context) (time.Time, error) {
	if err := q.fault(); err != nil {
		return time.Time{}, err
	}
	return q.Queue.NextDue(ctx)
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
	return q.Queue.Settle(ctx, s)
}

func (q *flakyQueue) Now(ctx context.Context) (time.Time, error) {
	if err := q.fault(); err != nil {
		return time.Time{}, err
	}
	now, err := q.Queue.Now(ctx)
	q.lock.Lock()
	defer q.lock.Unlock()
	return now.Add(q.skew), err
}

func TestFiresAtTheInstant(t *testing.T) {
	bubble(t, func(b *bench) {
		d, _ := b.replica(nil)
		synctest.Wait()
		b.submit("list", nil, 1500*time.Millisecond, 1501*time.Millisecond, 90*time.Minute+7*time.Millisecond)
		d.Wake(time.Now().Add(1500 * time.Millisecond))
		b.submit("past", nil, -time.Hour)
		d.Wake(time.Now().Add(-time.Hour))
		time.Sleep(2 * time.Hour)
		b.expectSent("0s past #1", "1.5s list #1", "1.501s list #1", "1h30m0.007s list #1")
	})
}

// Without a wake, as for what another replica submitted, the tick notices in time whatever is due later than one tick.
func TestTickNotices(t *testing.T) {
	bubble(t, func(b *bench) {
		b.replica(nil)
		synctest.Wait()
		b.submit("k", nil, 10*time.Millisecond, 1234*time.Millisecond)
		time.Sleep(1500 * time.Millisecond)
		b.submit("l", nil, 1100*time.Millisecond)
		time.Sleep(time.Minute)
		b.expectSent("1s k #1", "1.234s k #1", "2.6s l #1")
	})
}

func TestEarlyWindow(t *testing.T) {
	bubble(t, func(b *bench) {
		b.replica(func(c *dispatcher.Config) { c.Early = 2 * time.Second })
		b.submit("k", nil, 10*time.Second)
		time.Sleep(time.Minute)
		b.expectSent("8s k #1")
	})
}

func TestReadyAtOnce(t *testing.T) {
	bubble(t, func(b *bench) {
		d, _ := b.replica(nil)
		time.Sleep(time.Millisecond)
		if err := d.Ready(); err != nil {
			b.Errorf("an idle replica that has just started is not ready: %v", err)
		}
	})
}

func TestIdlePollsOncePerTick(t *testing.T) {
	bubble(t, func(b *bench) {
		b.replica(nil)
		b.submit("far", nil, 24*time.Hour)
		time.Sleep(time.Minute)
		before := b.queue.polls()
		time.Sleep(100 * time.Second)
		if polls := b.queue.polls() - before; polls < 90 || polls > 112 {
			b.Errorf("%d queries in 100 idle seconds, want one per tick and one per clock check", polls)
		}
	})
}

func TestRetriesThenBuries(t *testing.T) {
	bubble(t, func(b *bench) {
		b.receiver.answer = func(context.Context, callbacks.Delivery) error { return errors.New("it is closed") }
		j := b.submit("k", func(j *job.Job) {
			j.Options.Retry = job.Retry{MaxAttempts: 4, Initial: job.Duration(10 * time.Second), Factor: 3, Max: job.Duration(time.Minute)}
		}, 0)
		b.replica(nil)
		time.Sleep(time.Hour)
		if n := b.receiver.count(); n != 4 {
			b.Errorf("%d attempts, want 4", n)
		}
		bounds := []time.Duration{10 * time.Second, 30 * time.Second, time.Minute}
		for i, bound := range bounds {
			pause := b.receiver.sent[i+1].SentAt.Sub(b.receiver.sent[i].SentAt)
			if pause < 0 || pause > bound+time.Millisecond {
				b.Errorf("pause %d is %s, want at most %s", i+1, pause, bound)
			}
			if b.receiver.sent[i+1].ID != b.receiver.sent[0].ID || b.receiver.sent[i+1].Attempt != i+2 {
				b.Errorf("attempt %d came as delivery %s, attempt %d", i+2, b.receiver.sent[i+1].ID, b.receiver.sent[i+1].Attempt)
			}
		}
		dead := b.dead()
		if len(dead) != 1 || dead[0].LastError != "it is closed" || dead[0].Attempt != 4 || len(b.pending(j)) != 0 {
			b.Errorf("dead letters: %+v", dead)
		}
	})
}

func TestAnswers(t *testing.T) {
	for _, c := range []struct {
		name     string
		first    error // the answer to the first attempt; later ones succeed
		second   time.Duration
		latest   time.Duration
		attempt  int
		attempts int
	}{
		{"retry after", callbacks.RetryAfter(errors.New("busy"), 40*time.Second), 40 * time.Second, 41 * time.Second, 2, 2},
		{"unavailable", callbacks.Unavailable(errors.New("no connection"), 10*time.Second), 10 * time.Second, 15 * time.Second, 1, 2},
		{"permanent", callbacks.Permanent(errors.New("gone")), 0, 0, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(b *bench) {
				first := true
				b.receiver.answer = func(context.Context, callbacks.Delivery) error {
					if first {
						first = false
						return c.first
					}
					return nil
				}
				b.submit("k", nil, 0)
				b.replica(nil)
				time.Sleep(10 * time.Minute)
				if n := b.receiver.count(); n != c.attempts {
					b.Fatalf("%d attempts, want %d", n, c.attempts)
				}
				if c.attempts == 1 {
					if dead := b.dead(); len(dead) != 1 || dead[0].LastError != "gone" {
						b.Errorf("dead letters: %+v", dead)
					}
					return
				}
				got := b.receiver.sent[1]
				if pause := got.SentAt.Sub(b.start); pause < c.second || pause > c.latest+time.Millisecond {
					b.Errorf("the second attempt came after %s, want %s to %s", pause, c.second, c.latest)
				}
				if got.Attempt != c.attempt {
					b.Errorf("it counts as attempt %d, want %d", got.Attempt, c.attempt)
				}
			})
		})
	}
}

// An outage of the sender's own connection spends no attempts and buries nothing, however long it lasts.
func TestOutageBuriesNothing(t *testing.T) {
	bubble(t, func(b *bench) {
		back := time.Now().Add(25 * time.Hour)
		b.receiver.answer = func(context.Context, callbacks.Delivery) error {
			if time.Now().Before(back) {
				return callbacks.Unavailable(errors.New("no connection"), 10*time.Minute)
			}
			return nil
		}
		b.replica(func(c *dispatcher.Config) { c.Tick = time.Minute }) // a day of seconds would be many queries
		b.submit("k", func(j *job.Job) { j.Options.Retry.MaxAttempts = 1 }, 0)
		time.Sleep(26 * time.Hour)
		sent := b.receiver.sent
		if last := sent[len(sent)-1]; last.Attempt != 1 || last.SentAt.Sub(back) > 15*time.Minute {
			b.Errorf("delivered as attempt %d, %s after the connection was back", last.Attempt, last.SentAt.Sub(back))
		}
		if n := len(b.dead()); n != 0 {
			b.Errorf("%d dead letters", n)
		}
	})
}

func TestPanicIsContained(t *testing.T) {
	bubble(t, func(b *bench) {
		b.receiver.answer = func(_ context.Context, d callbacks.Delivery) error {
			if d.Name.Key == "bad" {
				panic("a bug")
			}
			return nil
		}
		b.submit("bad", func(j *job.Job) { j.Options.Retry.MaxAttempts = 1 }, 0)
		b.submit("good", nil, 2*time.Second)
		b.replica(nil)
		time.Sleep(time.Minute)
		b.expectSent("0s bad #1", "2s good #1")
		if dead := b.dead(); len(dead) != 1 || !strings.Contains(dead[0].LastError, "a bug") {
			b.Errorf("dead letters: %+v", dead)
		}
	})
}

func TestCallbackTimeout(t *testing.T) {
	bubble(t, func(b *bench) {
		b.receiver.answer = func(ctx context.Context, _ callbacks.Delivery) error {
			<-ctx.Done()
			return ctx.Err()
		}
		j := b.submit("k", func(j *job.Job) { j.Options.Retry.Initial = job.Duration(time.Hour) }, 0)
		b.replica(func(c *dispatcher.Config) { c.CallbackTimeout = 7 * time.Second })
		time.Sleep(7 * time.Second)
		synctest.Wait()
		if o := b.pending(j)[0]; o.Token != "" || !strings.Contains(o.LastError, "no answer within 7s") {
			b.Errorf("after the timeout: token %q, last error %q", o.Token, o.LastError)
		}
	})
}

// A retry fires at its time, not at the next tick.
func TestRetryOnTime(t *testing.T) {
	bubble(t, func(b *bench) {
		b.receiver.answer = func(_ context.Context, d callbacks.Delivery) error {
			if d.Attempt == 1 {
				return callbacks.RetryAfter(errors.New("busy"), 300*time.Millisecond)
			}
			return nil
		}
		j := b.submit("k", func(j *job.Job) {
			j.Options.Retry = job.Retry{Initial: job.Duration(time.Millisecond), Max: job.Duration(time.Millisecond)}
			j.ExpiresAt = time.Now()
		}, 0)
		b.replica(nil)
		time.Sleep(time.Minute)
		b.expectSent("0s k #1", "300ms k #2")
		// And its job is kept for as long as if that had been its instant.
		kept, err := b.store.Job(b.Context(), j.Name)
		if want := b.start.Add(300*time.Millisecond + 24*time.Hour); err != nil || !kept.ExpiresAt.Equal(want) {
			b.Errorf("the job expires at %s, want %s: %v", kept.ExpiresAt, want, err)
		}
	})
}

// The callback's time runs from the claim, so that it ends before the lease does.
func TestCallbackTimeRunsFromTheClaim(t *testing.T) {
	bubble(t, func(b *bench) {
		var cut time.Duration
		b.receiver.answer = func(ctx context.Context, _ callbacks.Delivery) error {
			<-ctx.Done()
			cut = time.Since(b.start)
			return callbacks.Permanent(ctx.Err())
		}
		b.submit("k", nil, 0)
		b.replica(func(c *dispatcher.Config) {
			c.Store, c.CallbackTimeout = &slowQueue{Queue: b.queue, pause: 3 * time.Second}, 7*time.Second
		})
		time.Sleep(time.Minute)
		b.expectSent("3s k #1")
		if cut != 7*time.Second {
			b.Errorf("the callback was cut off after %s, want 7s", cut)
		}
	})
}

// A claim that is under way when the replica is told to stop is waited for, so that what it claimed is given back.
func TestShutdownDuringClaim(t *testing.T) {
	bubble(t, func(b *bench) {
		j := b.submit("k", nil, 0)
		_, stop := b.replica(func(c *dispatcher.Config) { c.Store = &slowQueue{Queue: b.queue, pause: 2 * time.Second} })
		time.Sleep(time.Second)
		stop()
		if left := b.pending(j); len(left) > 0 && left[0].Token != "" {
			b.Errorf("it is still claimed after the shutdown")
		}
	})
}

// After an outage has ended, the next one begins with short pauses again.
func TestOutageEnds(t *testing.T) {
	bubble(t, func(b *bench) {
		b.receiver.answer = func(context.Context, callbacks.Delivery) error {
			if at := time.Since(b.start); at < time.Hour || at == 2*time.Hour {
				return callbacks.Unavailable(errors.New("no connection"), time.Second)
			}
			return nil
		}
		b.submit("k", nil, 0)
		b.submit("l", nil, 2*time.Hour)
		b.replica(nil)
		time.Sleep(3 * time.Hour)
		sent := b.receiver.sent
		first, last := sent[len(sent)-2], sent[len(sent)-1]
		if pause := last.SentAt.Sub(first.SentAt); last.Name.Key != "l" || pause < time.Second || pause > 1500*time.Millisecond {
			b.Errorf("the second outage began with a pause of %s, want 1s to 1.5s", pause)
		}
		if n := b.receiver.count(); n > 200 {
			b.Errorf("%d attempts in an outage of an hour", n)
		}
	})
}

// A replica that was stopped between its claim and its callbacks fires nothing it may no longer hold.
func TestStoppedReplicaFiresNothing(t *testing.T) {
	bubble(t, func(b *bench) {
		slow := &slowQueue{Queue: b.store, pause: time.Hour, stopped: true}
		b.replica(func(c *dispatcher.Config) { c.Store = slow })
		b.submit("k", nil, 0)
		time.Sleep(30 * time.Minute) // the first replica holds the answer of its claim, and sleeps
		if n := b.receiver.count(); n != 0 {
			b.Fatalf("%d sent while the replica was stopped", n)
		}
		b.replica(nil)
		time.Sleep(time.Minute)
		b.expectSent("30m0s k #2")
		time.Sleep(time.Hour)
		b.expectSent("30m0s k #2")
	})
}

// slowQueue lets a claim's answer wait, however little time the claim has if the whole process is stopped.
type slowQueue struct {
	store.Queue
	pause   time.Duration
	stopped bool
}

func (q *slowQueue) Claim(ctx context.Context, p store.ClaimParams) (store.Claim, error) {
	claim, err := q.Queue.Claim(ctx, p)
	if len(claim.Occurrences) == 0 {
		return claim, err
	}
	if q.stopped {
		time.Sleep(q.pause)
		return claim, err
	}
	select {
	case <-time.After(q.pause):
		return claim, err
	case <-ctx.Done(): // the answer is lost
		return store.Claim{}, fmt.Errorf("%w: %w", store.ErrUnavailable, ctx.Err())
	}
}

func TestClaimsNoMoreThanSlots(t *testing.T) {
	bubble(t, func(b *bench) {
		var busy, most int
		b.receiver.answer = func(context.Context, callbacks.Delivery) error {
			b.receiver.lock.Lock()
			busy++
			most = max(most, busy)
			b.receiver.lock.Unlock()
			time.Sleep(time.Second)
			b.receiver.lock.Lock()
			busy--
			b.receiver.lock.Unlock()
			return nil
		}
		b.replica(func(c *dispatcher.Config) { c.Concurrency = 5 })
		var after []time.Duration
		for i := range 23 {
			after = append(after, time.Duration(i)*time.Millisecond)
		}
		j := b.submit("k", nil, after...)
		time.Sleep(1500 * time.Millisecond)
		held := 0
		for _, o := range b.pending(j) {
			if o.Held(time.Now()) {
				held++
			}
		}
		if held != 5 {
			b.Errorf("%d occurrences are held with 5 slots", held)
		}
		time.Sleep(time.Minute)
		if most != 5 || b.receiver.count() != 23 {
			b.Errorf("%d sent, at most %d at once; want 23 and 5", b.receiver.count(), most)
		}
	})
}

func TestReplicasShare(t *testing.T) {
	bubble(t, func(b *bench) {
		for range 3 {
			b.replica(func(c *dispatcher.Config) { c.Concurrency = 10 })
		}
		var after []time.Duration
		for i := range 200 {
			after = append(after, time.Duration(i)*10*time.Millisecond)
		}
		b.submit("k", nil, after...)
		time.Sleep(time.Minute)
		seen := map[job.ID]int{}
		for _, d := range b.receiver.sent {
			seen[d.ID]++
		}
		if len(seen) != 200 || len(b.receiver.sent) != 200 {
			b.Errorf("%d deliveries of %d occurrences, want 200 of 200", len(b.receiver.sent), len(seen))
		}
	})
}

// While the store is down, what was fired waits to be settled; then it is, before anyone delivers it again.
func TestStoreOutage(t *testing.T) {
	for offset := time.Duration(0); offset < time.Second; offset += 70 * time.Millisecond { // claims and outcomes may each come first
		bubble(t, func(b *bench) {
			b.receiver.answer = func(context.Context, callbacks.Delivery) error {
				b.queue.set(func(q *flakyQueue) { q.down = true })
				return nil
			}
			d, _ := b.replica(nil)
			b.submit("k", nil, time.Second)
			b.submit("later", nil, 10*time.Second)
			time.Sleep(10*time.Minute + offset)
			if err := d.Ready(); err == nil || !strings.Contains(err.Error(), "claim loop") {
				b.Errorf("ready answers %v while the store is down", err)
			}
			b.receiver.lock.Lock()
			b.receiver.answer = nil
			b.receiver.lock.Unlock()
			b.queue.set(func(q *flakyQueue) { q.down = false })
			time.Sleep(time.Minute)
			if n := b.receiver.count(); n != 2 {
				b.Errorf("%d sent, want each once", n)
			}
			if err := d.Ready(); err != nil {
				b.Errorf("not ready after the outage: %v", err)
			}
		})
	}
}

// An outcome that can't ever be written does not keep the others, nor the claims, for good.
func TestSpoiltOutcome(t *testing.T) {
	for _, jobs := range []int{1, 3} {
		t.Run(fmt.Sprint(jobs, " at once"), func(t *testing.T) {
			bubble(t, func(b *bench) {
				down := fmt.Errorf("%w: restarting", store.ErrUnavailable)
				b.queue.settle = []error{down, errors.New("not authorized"), errors.New("not authorized")}
				for i := range jobs {
					b.submit(fmt.Sprint("k", i), nil, 0)
				}
				b.submit("later", nil, 20*time.Second)
				d, _ := b.replica(nil)
				time.Sleep(50 * time.Second) // the spoilt one's lease has not run out
				if n := b.receiver.count(); n != jobs+1 {
					b.Errorf("%d sent, want %d", n, jobs+1)
				}
				if err := d.Ready(); err != nil {
					b.Errorf("not ready: %v", err)
				}
			})
		})
	}
}

// A store that can be read but not written is not ready, and gets no storm of claims.
func TestClaimsFail(t *testing.T) {
	bubble(t, func(b *bench) {
		b.queue.claimErr = fmt.Errorf("%w: the disk is full", store.ErrUnavailable)
		b.submit("k", nil, 0)
		d, _ := b.replica(nil)
		time.Sleep(5 * time.Minute)
		before := b.queue.polls()
		time.Sleep(100 * time.Second)
		if polls := b.queue.polls() - before; polls > 330 {
			b.Errorf("%d queries in 100 seconds of failing claims", polls)
		}
		if err := d.Ready(); err == nil || !strings.Contains(err.Error(), "no success") {
			b.Errorf("ready answers %v while nothing can be claimed", err)
		}
		b.queue.set(func(q *flakyQueue) { q.claimErr = nil })
		time.Sleep(2 * time.Second)
		if err := d.Ready(); err != nil || b.receiver.count() != 1 {
			b.Errorf("ready answers %v, %d sent, when claims work again", err, b.receiver.count())
		}
	})
}

// Claims that take all of the callback's time are given back, with a pause between them.
func TestSlowClaims(t *testing.T) {
	bubble(t, func(b *bench) {
		slow := &slowQueue{Queue: b.queue, pause: 2 * time.Second}
		b.submit("k", func(j *job.Job) { j.Options.Retry.MaxAttempts = 1 }, 0)
		_, stop := b.replica(func(c *dispatcher.Config) { c.Store, c.CallbackTimeout = slow, time.Second })
		time.Sleep(10 * time.Minute)
		stop()
		if n := b.receiver.count(); n != 0 {
			b.Errorf("%d sent without time to do so", n)
		}
		if polls := b.queue.polls(); polls > 1500 { // a tick a second, and a claim and a settlement in five or more
			b.Errorf("%d queries in ten minutes", polls)
		}
		b.replica(nil)
		time.Sleep(time.Minute)
		if n, dead := b.receiver.count(), len(b.dead()); n != 1 || dead != 0 {
			b.Errorf("%d sent and %d dead letters in the end", n, dead)
		}
	})
}

// What the store can't read is buried, and takes nothing else with it.
func TestUnreadable(t *testing.T) {
	bubble(t, func(b *bench) {
		b.queue.read = func(c *store.Claimed) {
			if c.Name.Key == "bad" {
				c.Fault = errors.New("no such option")
			}
		}
		b.submit("bad", nil, 0)
		b.submit("good", nil, 0)
		b.replica(nil)
		time.Sleep(time.Minute)
		b.expectSent("0s good #1")
		if dead := b.dead(); len(dead) != 1 || !strings.Contains(dead[0].LastError, "no such option") {
			b.Errorf("dead letters: %+v", dead)
		}
	})
}

// The longer callbacks of a type can't be sent, the longer are the pauses, up to a minute and a half.
func TestOutagePauses(t *testing.T) {
	bubble(t, func(b *bench) {
		b.submit("k", func(j *job.Job) { j.Callback.Type = "another" }, 0)
		j := b.submit("k", func(j *job.Job) { j.Callback.Type = "another" }, 0)
		b.replica(nil)
		time.Sleep(time.Hour)
		before := b.queue.polls()
		time.Sleep(time.Hour)
		const ticks, clocks = 3600, 360
		if busy := b.queue.polls() - before - ticks - clocks; busy > 3*65 { // claim, look again, settle: a minute apart or more
			b.Errorf("%d queries an hour for one occurrence that can't be sent", busy)
		}
		if o := b.pending(j)[0]; o.Attempt != 0 || !strings.Contains(o.LastError, "another") {
			b.Errorf("attempt %d, last error %q", o.Attempt, o.LastError)
		}
	})
}

func TestClockOff(t *testing.T) {
	bubble(t, func(b *bench) {
		b.queue.skew = 16 * time.Second // half the margin of 60 s - 30 s is 15 s
		d, _ := b.replica(nil)
		b.submit("k", nil, 0)
		time.Sleep(time.Minute)
		if err := d.Ready(); err == nil || !strings.Contains(err.Error(), "clock") || b.receiver.count() != 0 {
			b.Errorf("ready answers %v with a wrong clock, %d sent", err, b.receiver.count())
		}
		b.queue.set(func(q *flakyQueue) { q.skew = -14 * time.Second })
		time.Sleep(15 * time.Second)
		if err := d.Ready(); err != nil || b.receiver.count() != 1 {
			b.Errorf("ready answers %v with a clock that is right enough, %d sent", err, b.receiver.count())
		}
	})
}

func TestShutdown(t *testing.T) {
	for _, c := range []struct {
		name    string
		takes   time.Duration
		pending int // occurrences left, one of them was never due
		lasted  time.Duration
	}{
		{"callbacks end in time", 5 * time.Second, 1, 4 * time.Second},
		{"callbacks are cancelled", time.Hour, 2, 25 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(b *bench) {
				b.receiver.answer = func(ctx context.Context, _ callbacks.Delivery) error {
					select {
					case <-time.After(c.takes):
						return nil
					case <-ctx.Done():
						return ctx.Err()
					}
				}
				j := b.submit("k", func(j *job.Job) { j.Options.Retry.MaxAttempts = 1 }, 0, 3*time.Second)
				d, stop := b.replica(nil)
				time.Sleep(time.Second)
				begin := time.Now()
				stop()
				if lasted := time.Since(begin); lasted != c.lasted {
					b.Errorf("the shutdown lasted %s, want %s", lasted, c.lasted)
				}
				left := b.pending(j)
				if len(left) != c.pending {
					b.Fatalf("%d occurrences are left, want %d", len(left), c.pending)
				}
				for _, o := range left {
					if o.Token != "" || o.Attempt != 0 {
						b.Errorf("%s is still claimed, or charged: attempt %d", o.Timestamp, o.Attempt)
					}
				}
				if n := len(b.dead()); n != 0 {
					b.Errorf("%d dead letters", n)
				}
				if err := d.Ready(); err == nil {
					b.Error("ready after the shutdown")
				}
				b.expectSent("0s k #1")
			})
		})
	}
}

// A job that takes every replica down with it ends among the dead letters.
func TestAbandons(t *testing.T) {
	bubble(t, func(b *bench) {
		j := b.submit("k", func(j *job.Job) { j.Options.Retry.MaxAttempts = 2 }, 0)
		for range 5 { // five replicas died with it
			claim, err := b.store.Claim(b.Context(), store.ClaimParams{Now: time.Now(), Lease: time.Second, Limit: 1})
			if err != nil || len(claim.Occurrences) != 1 {
				b.Fatalf("claimed %d: %v", len(claim.Occurrences), err)
			}
			time.Sleep(time.Second)
		}
		b.replica(nil)
		time.Sleep(time.Minute)
		if dead := b.dead(); b.receiver.count() != 0 || len(dead) != 1 || len(b.pending(j)) != 0 {
			b.Errorf("%d sent, dead letters: %+v", b.receiver.count(), dead)
		}
	})
}

func TestSweeps(t *testing.T) {
	bubble(t, func(b *bench) {
		b.receiver.answer = func(_ context.Context, d callbacks.Delivery) error {
			if d.Name.Key == "dead" {
				return callbacks.Permanent(errors.New("no"))
			}
			return nil
		}
		b.replica(func(c *dispatcher.Config) { c.Retain, c.DeadLetterRetain = time.Hour, 2*time.Hour })
		for _, key := range []string{"k", "dead"} {
			b.submit(key, func(j *job.Job) { j.ExpiresAt = time.Now().Add(time.Hour) }, 0)
		}
		count := func() int {
			page, err := b.store.Jobs(b.Context(), store.JobFilter{Tenant: job.DefaultTenant, Limit: 10})
			if err != nil {
				b.Fatal(err)
			}
			return len(page)
		}
		time.Sleep(59 * time.Minute)
		if jobs, dead := count(), len(b.dead()); jobs != 2 || dead != 1 {
			b.Errorf("%d jobs and %d dead letters within the retention, want 2 and 1", jobs, dead)
		}
		time.Sleep(3 * time.Minute)
		if jobs, dead := count(), len(b.dead()); jobs != 0 || dead != 1 {
			b.Errorf("%d jobs and %d dead letters after the jobs' retention, want 0 and 1", jobs, dead)
		}
		time.Sleep(time.Hour)
		if dead := len(b.dead()); dead != 0 {
			b.Errorf("%d dead letters after their retention", dead)
		}
	})
}

// Dead letters that are to be kept for longer than there has been time are kept for ever, and jobs are swept all the same.
func TestLongRetention(t *testing.T) {
	bubble(t, func(b *bench) {
		b.replica(func(c *dispatcher.Config) { c.Retain, c.DeadLetterRetain = time.Hour, 200*365*24*time.Hour })
		j := b.submit("k", func(j *job.Job) { j.ExpiresAt = time.Now().Add(time.Hour) }, 0)
		time.Sleep(2 * time.Hour)
		if _, err := b.store.Job(b.Context(), j.Name); !errors.Is(err, store.ErrNotFound) {
			b.Errorf("the job is still there: %v", err)
		}
	})
}

func TestConfig(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*dispatcher.Config)
		want   string
	}{
		{"lease too short", func(c *dispatcher.Config) { c.Lease = 31 * time.Second }, "lease"},
		{"early eats the margin", func(c *dispatcher.Config) { c.Early = 28 * time.Second }, "early"},
		{"tick", func(c *dispatcher.Config) { c.Tick = 0 }, "tick"},
		{"concurrency", func(c *dispatcher.Config) { c.Concurrency = 0 }, "concurrency"},
		{"callback timeout", func(c *dispatcher.Config) { c.CallbackTimeout = 0 }, "callback-timeout"},
		{"retain", func(c *dispatcher.Config) { c.Retain = -1 }, "retain"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := dispatcher.Defaults
			cfg.Store, cfg.Callbacks = &flakyQueue{}, callbacks.NewRegistry()
			c.change(&cfg)
			if _, err := dispatcher.New(cfg); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("new answers %v, want one that names %s", err, c.want)
			}
		})
	}
}
