package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/dispatcher"
	"github.com/carillon-scheduler/carillon/history"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// recording configures a replica to keep history. The returned function writes the recorded entries.
func (b *bench) recording(c *dispatcher.Config) (closeHistory func()) {
	w := history.NewWriter(history.Config{Records: b.store, Policy: history.Policy{Keep: 24 * time.Hour}})
	c.History = w
	return func() { _ = w.Close() }
}

// history reads the history of all jobs, the oldest entry first.
func (b *bench) history() (all []history.Entry) {
	b.Helper()
	reading, err := history.NewReader(b.store).Read(b.Context(), history.Filter{Tenant: job.DefaultTenant}, time.Now())
	if err != nil {
		b.Fatal(err)
	}
	if reading.Gap != nil {
		b.Errorf("there is a gap: %+v", *reading.Gap)
	}
	for e, err := range reading.All(b.Context()) {
		if err != nil {
			b.Fatal(err)
		}
		all = append(all, e)
	}
	slices.Reverse(all)
	return all
}

// refusal is an answer with a status.
type refusal int

func (r refusal) Error() string {
	return fmt.Sprintf("it answered %d, and some of the payload", int(r))
}
func (r refusal) Status() int { return int(r) }

// History has exactly the attempts that the receiver saw, even if attempts fail in every way, the store is down for a
// while, and a replica stops meanwhile.
func TestHistoryIsWhatTheReceiverSaw(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	bubble(t, func(b *bench) {
		errs := []error{
			nil, errors.New("it hung up"), refusal(503), callbacks.Permanent(refusal(410)),
			callbacks.Unavailable(errors.New("no connection"), time.Second), callbacks.RetryAfter(refusal(429), 7*time.Second),
		}
		n := 0
		b.receiver.answer = func(ctx context.Context, _ callbacks.Delivery) error {
			b.receiver.lock.Lock()
			n++
			err, takes := errs[n*7919%97%len(errs)], time.Duration(n%40)*100*time.Millisecond
			b.receiver.lock.Unlock()
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(takes):
				return err
			}
		}
		var closers []func()
		var stops []func()
		for range 2 {
			_, stop := b.replica(func(c *dispatcher.Config) {
				c.ShutdownTimeout = time.Second
				c.Destinations.Failures = 1000
				closers = append(closers, b.recording(c))
			})
			stops = append(stops, stop)
		}
		for i := range 30 {
			var after []time.Duration
			for j := range 10 {
				after = append(after, time.Duration(i*137+j*3001)*time.Millisecond)
			}
			b.submit(fmt.Sprint("k", i), nil, after...)
		}
		time.Sleep(10 * time.Second)
		b.queue.set(func(q *flakyQueue) { q.down = true })
		time.Sleep(5 * time.Second)
		b.queue.set(func(q *flakyQueue) { q.down = false })
		stops[0]()
		time.Sleep(2 * time.Hour)
		for _, stop := range stops {
			stop()
		}
		for _, closeHistory := range closers {
			closeHistory()
		}
		seen := make(map[string]int)
		for _, d := range b.receiver.all() {
			seen[fmt.Sprint(d.ID, d.Attempt, d.SentAt.Truncate(time.Millisecond).UTC())]++
		}
		told := make(map[history.Kind]int)
		for _, e := range b.history() {
			told[e.Kind]++
			seen[fmt.Sprint(e.DeliveryID(), e.Attempt, e.At)]--
			if e.Claimed.After(e.At) || e.Replica == "" || e.Destination != "test receiver" {
				b.Errorf("an entry is %+v", e)
			}
			if e.Status != 0 && e.Error != "" || strings.Contains(e.Error, "payload") {
				b.Errorf("a receiver's words are kept: %+v", e)
			}
		}
		for what, n := range seen {
			if n != 0 {
				b.Errorf("%s was seen %d times more often than it is told", what, n)
			}
		}
		for _, kind := range []history.Kind{history.Delivered, history.Retried, history.Released, history.Buried} {
			if told[kind] == 0 {
				b.Errorf("the run had none that was %s", kind)
			}
		}
	})
}

// Each entry has the time, the duration and the outcome.
func TestEntries(t *testing.T) {
	later := time.Hour
	if testing.Short() {
		later = 5 * time.Minute
	}
	bubble(t, func(b *bench) {
		answers := []error{callbacks.RetryAfter(refusal(503), time.Minute), callbacks.Permanent(errors.New("no such queue")), nil}
		b.receiver.answer = func(context.Context, callbacks.Delivery) error {
			time.Sleep(250 * time.Millisecond)
			answer := answers[0]
			answers = answers[1:]
			return answer
		}
		var closeHistory func()
		b.submit("late", func(j *job.Job) { j.Options.Deadline = job.Duration(time.Minute) }, 0)
		time.Sleep(5 * time.Minute)
		b.start = time.Now()
		b.replica(func(c *dispatcher.Config) { closeHistory = b.recording(c) })
		b.submit("k", nil, time.Second, later)
		b.submit("unsent", func(j *job.Job) { j.Callback.Type = "nobody's" }, 0) // it is given back again and again
		time.Sleep(2 * later)
		closeHistory()
		var got []string
		for _, e := range b.history() {
			next := ""
			if !e.Next.IsZero() {
				next = e.Next.Sub(e.At).String()
			}
			got = append(got, fmt.Sprintf("%s %s %s #%d took %s: %d %s; next %s", e.At.Sub(b.start.UTC()), e.Name.Key, e.Kind, e.Attempt,
				e.Took, e.Status, e.Error, next))
		}
		want := []string{
			"0s late missed",
			"1s k retried #1 took 250ms: 503 ; next 1m0.25s",
			"1m1.25s k buried #2 took 250ms: 0 no such queue; next ",
			later.String() + " k delivered #1 took 250ms: 0 ; next ",
		}
		same := len(got) == len(want)
		for i := range want {
			same = same && strings.HasPrefix(got[i], want[i])
		}
		if !same {
			b.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

// The replica that claims the occurrence of a dead replica records that one's attempt as unknown, once.
func TestAttemptsOfADeadReplicaAreUnknown(t *testing.T) {
	bubble(t, func(b *bench) {
		b.submit("k", nil, 0)
		for range 2 { // two replicas died with it
			claim, err := b.store.Claim(b.Context(), store.ClaimParams{Now: time.Now(), Lease: time.Second, Quotas: []store.Quota{{Lane: job.DefaultLane, Limit: 1}}})
			if err != nil || len(claim.Occurrences) != 1 {
				b.Fatalf("claimed %d: %v", len(claim.Occurrences), err)
			}
			time.Sleep(time.Second)
		}
		b.receiver.answer = func(context.Context, callbacks.Delivery) error {
			if b.receiver.count() == 1 {
				return refusal(503)
			}
			return nil
		}
		var closeHistory func()
		b.replica(func(c *dispatcher.Config) { closeHistory = b.recording(c) })
		time.Sleep(time.Minute)
		closeHistory()
		var got []string
		for _, e := range b.history() {
			got = append(got, fmt.Sprintf("%s #%d %s %t", e.Kind, e.Attempt, e.Destination, e.Claimed.IsZero()))
		}
		slices.Sort(got)
		want := []string{"delivered #4 test receiver false", "retried #3 test receiver false", "unknown #2 test receiver true"}
		if !slices.Equal(got, want) {
			b.Errorf("got %q, want %q", got, want)
		}
	})
}
