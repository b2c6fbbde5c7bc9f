package dispatcher_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/dispatcher"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

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
			pause := b.receiver.all()[i+1].SentAt.Sub(b.receiver.all()[i].SentAt)
			if pause < 0 || pause > bound+time.Millisecond {
				b.Errorf("pause %d is %s, want at most %s", i+1, pause, bound)
			}
			if b.receiver.all()[i+1].ID != b.receiver.all()[0].ID || b.receiver.all()[i+1].Attempt != i+2 {
				b.Errorf("attempt %d came as delivery %s, attempt %d", i+2, b.receiver.all()[i+1].ID, b.receiver.all()[i+1].Attempt)
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
				got := b.receiver.all()[1]
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

// An outage of the sender's own connection spends no attempts and buries nothing, however long it lasts: more than a day in
// a long test.
func TestOutageBuriesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	t.Parallel()
	lasts := 4 * time.Hour
	if os.Getenv("CARILLON_TEST_LONG") != "" {
		lasts = 25 * time.Hour
	}
	bubble(t, func(b *bench) {
		back := time.Now().Add(lasts)
		b.receiver.answer = func(context.Context, callbacks.Delivery) error {
			if time.Now().Before(back) {
				return callbacks.Unavailable(errors.New("no connection"), 10*time.Minute)
			}
			return nil
		}
		b.replica(func(c *dispatcher.Config) { c.Tick, c.Lease = 10*time.Minute, 10*time.Minute }) // a day of seconds would be many queries
		b.submit("k", func(j *job.Job) { j.Options.Retry.MaxAttempts = 1 }, 0)
		time.Sleep(lasts + time.Hour)
		sent := b.receiver.all()
		if last := sent[len(sent)-1]; last.Attempt != 1 || last.SentAt.Sub(back) > 15*time.Minute {
			b.Errorf("delivered as attempt %d, %s after the connection was back", last.Attempt, last.SentAt.Sub(back))
		}
		if n := len(b.dead()); n != 0 {
			b.Errorf("%d dead letters", n)
		}
	})
}

// A panic over one occurrence, wherever it comes from, costs that occurrence an attempt and nothing else.
func TestPanicIsContained(t *testing.T) {
	bad := func(data []byte) bool { return string(data) == `"bad"` }
	for name, sabotage := range map[string]func(r *receiver){
		"in Send": func(r *receiver) {
			r.answer = func(_ context.Context, d callbacks.Delivery) error {
				if bad(d.Data) {
					panic("a bug")
				}
				return nil
			}
		},
		"in the destination": func(r *receiver) {
			r.to = func(data []byte) string {
				if bad(data) {
					panic("a bug")
				}
				return "receiver"
			}
		},
		"in the error": func(r *receiver) {
			r.answer = func(_ context.Context, d callbacks.Delivery) error {
				if bad(d.Data) {
					return bugError{}
				}
				return nil
			}
		},
		"in the error's status": func(r *receiver) {
			r.answer = func(_ context.Context, d callbacks.Delivery) error {
				if bad(d.Data) {
					return callbacks.RetryAfter(bugStatus{}, time.Second)
				}
				return nil
			}
		},
		"in the error's type": func(r *receiver) {
			r.answer = func(_ context.Context, d callbacks.Delivery) error {
				if bad(d.Data) {
					return bugType{}
				}
				return nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(b *bench) {
				sabotage(b.receiver)
				b.submit("bad", func(j *job.Job) {
					j.Options.Retry = job.Retry{MaxAttempts: 2, Initial: job.Duration(time.Second)}
				}, 0)
				b.submit("good", nil, 10*time.Second)
				var closeHistory func()
				trace, _ := traced(sdktrace.AlwaysSample())
				d, _ := b.replica(func(c *dispatcher.Config) {
					closeHistory = b.recording(c)
					trace(c)
				})
				time.Sleep(time.Minute)
				closeHistory()
				if sent := b.receiver.of("good"); len(sent) != 1 {
					b.Errorf("the other job was sent %d times, want once", len(sent))
				}
				if dead := b.dead(); len(dead) != 1 || !strings.Contains(dead[0].LastError, "a bug") || dead[0].Attempt != 2 {
					b.Errorf("dead letters: %+v", dead)
				}
				for _, s := range d.Destinations() {
					if s.InFlight != 0 {
						b.Errorf("%d callbacks are still counted as under way at %s", s.InFlight, s.Name)
					}
				}
			})
		})
	}
}

// bugError is an error whose method panics.
type bugError struct{}

func (bugError) Error() string { panic("a bug") }

// bugStatus is an error whose status panics.
type bugStatus struct{}

func (bugStatus) Error() string { return "no" }
func (bugStatus) Status() int   { panic("a bug") }

// bugType is an error whose type for traces panics.
type bugType struct{}

func (bugType) Error() string     { return "no" }
func (bugType) ErrorType() string { panic("a bug") }

// The callbacks of one claim share their deadline and nothing else: if one ends or fails, the others continue.
func TestOneEndsNoOther(t *testing.T) {
	bubble(t, func(b *bench) {
		b.receiver.answer = func(ctx context.Context, d callbacks.Delivery) error {
			switch d.Name.Key {
			case "quick":
				return nil
			case "failing":
				return errors.New("no")
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(5 * time.Second):
				return nil
			}
		}
		for _, key := range []string{"quick", "failing", "slow"} {
			b.submit(key, func(j *job.Job) { j.Options.Retry.Initial = job.Duration(time.Hour) }, time.Second)
		}
		b.replica(nil)
		time.Sleep(time.Minute)
		if got := b.receiver.of("slow"); len(got) != 1 {
			t.Errorf("the slow callback was sent %d times, want once", len(got))
		}
	})
}

func TestCallbackTimeout(t *testing.T) {
	bubble(t, func(b *bench) {
		b.receiver.answer = func(ctx context.Context, _ callbacks.Delivery) error {
			<-ctx.Done()
			return ctx.Err()
		}
		j := b.submit("k", func(j *job.Job) { j.Options.Retry.Initial = job.Duration(24 * time.Hour) }, 0)
		b.replica(func(c *dispatcher.Config) { c.CallbackTimeout = 7 * time.Second })
		time.Sleep(7*time.Second + 10*time.Millisecond) // outcomes are written together
		synctest.Wait()
		if o := b.pending(j)[0]; o.Token != "" || !strings.Contains(o.LastError, "no answer within 7s") {
			b.Errorf("after the timeout: token %q, last error %q", o.Token, o.LastError)
		}
	})
}

// A retry fires at its time, not at the next poll.
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
		// Its job is kept as long as if the retry's time had been its instant.
		kept, err := store.ReadJob(b.Context(), b.store, j.Name)
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
			c.Store, c.CallbackTimeout = &slowQueue{Store: b.queue, pause: 3 * time.Second}, 7*time.Second
		})
		time.Sleep(time.Minute)
		synctest.Wait() // so that the callback's writes can be read
		b.expectSent("3s k #1")
		if cut != 7*time.Second {
			b.Errorf("the callback was cut off after %s, want 7s", cut)
		}
	})
}

// After an outage has ended, the next one begins with short pauses again.
func TestOutageEnds(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	t.Parallel()
	bubble(t, func(b *bench) {
		b.receiver.answer = func(context.Context, callbacks.Delivery) error {
			if at := time.Since(b.start); at < time.Hour || at == 65*time.Minute {
				return callbacks.Unavailable(errors.New("no connection"), time.Second)
			}
			return nil
		}
		b.submit("k", nil, 0)
		b.submit("l", nil, 65*time.Minute)
		b.replica(nil)
		time.Sleep(66 * time.Minute)
		sent := b.receiver.all()
		first, last := sent[len(sent)-2], sent[len(sent)-1]
		if pause := last.SentAt.Sub(first.SentAt); last.Name.Key != "l" || pause < time.Second || pause > 1500*time.Millisecond {
			b.Errorf("the second outage began with a pause of %s, want 1s to 1.5s", pause)
		}
		if n := b.receiver.count(); n > 200 {
			b.Errorf("%d attempts in an outage of an hour", n)
		}
	})
}

// An occurrence that the store can't read is buried, and affects no other.
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

// The longer the callbacks of a type can't be sent, the longer the pauses are, up to a minute and a half.
func TestOutagePauses(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	bubble(t, func(b *bench) {
		b.submit("k", func(j *job.Job) { j.Callback.Type = "another" }, 0)
		j := b.submit("k", func(j *job.Job) { j.Callback.Type = "another" }, 0)
		b.replica(nil)
		time.Sleep(time.Hour)
		before := b.queue.polls()
		time.Sleep(time.Hour)
		const polls, clocks, beats, expansions = 3600, 360, 360, 720
		if more := b.queue.polls() - before - polls - clocks - beats - expansions; more > 3*65 { // claim, look again, settle: a minute apart or more
			b.Errorf("%d queries an hour for one occurrence that can't be sent", more)
		}
		if o := b.pending(j)[0]; o.Attempt != 0 || !strings.Contains(o.LastError, "another") {
			b.Errorf("attempt %d, last error %q", o.Attempt, o.LastError)
		}
	})
}

// A job that kills every replica ends among the dead letters.
func TestAbandons(t *testing.T) {
	bubble(t, func(b *bench) {
		j := b.submit("k", func(j *job.Job) { j.Options.Retry.MaxAttempts = 2 }, 0)
		for range 5 { // five replicas died with it
			claim, err := b.store.Claim(b.Context(), store.ClaimParams{Now: time.Now(), Lease: time.Second, Quotas: []store.Quota{{Lane: job.DefaultLane, Limit: 1}}})
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
