package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/dispatcher"
	"github.com/carillon-scheduler/carillon/job"
)

// Error answers of one path of a host, from however many jobs, delay no other path.
func TestNeighboursOfRefusals(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	for _, c := range []struct {
		name  string
		jobs  int
		blame callbacks.Blame
		most  int // the largest number sent there during the test; zero is no limit
	}{
		{"one job has errors", 1, callbacks.BlamePart, 50},
		{"many jobs have errors", 300, callbacks.BlamePart, 50},
		{"one job is refused", 1, callbacks.BlameDelivery, 0},
		{"many jobs are refused", 300, callbacks.BlameDelivery, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(b *bench) {
				b.receiver.part = func(data []byte) string { return strings.Trim(string(data), `"0123456789`) }
				b.receiver.answers(func(_ context.Context, d callbacks.Delivery) error {
					time.Sleep(5 * time.Millisecond)
					if d.Name.Key == "well" {
						return nil
					}
					return &callbacks.Failure{Err: errors.New("500"), Blame: c.blame}
				})
				for i := range c.jobs {
					b.submit(fmt.Sprint("sick", i), nil, crowdOf(300/c.jobs)...)
				}
				var after []time.Duration
				for i := range 80 {
					after = append(after, time.Second+time.Duration(i)*500*time.Millisecond)
				}
				b.submit("well", nil, after...)
				b.replica(func(c *dispatcher.Config) { c.Concurrency = 32 })
				time.Sleep(45 * time.Second)
				sent := b.receiver.of("well")
				for _, s := range sent {
					if late := s.SentAt.Sub(s.Timestamp); late > 200*time.Millisecond {
						b.Errorf("the neighbour's instant after %s is %s late", s.Timestamp.Sub(b.start), late)
					}
				}
				if len(sent) != len(after) {
					b.Errorf("%d of the neighbour's instants were sent, want %d", len(sent), len(after))
				}
				if sick := b.receiver.count() - len(sent); sick == 0 || c.most > 0 && sick > c.most {
					b.Errorf("%d were sent to what has errors, want at most %d", sick, c.most)
				}
			})
		})
	}
}

// A destination that recovers after a long outage is noticed at the next probe, even if each of its occurrences has a
// pause of an hour. The probes use up no attempts: no occurrence is given up within hours.
func TestWellAgainIsNoticed(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	bubble(t, func(b *bench) {
		const lasts = 8 * time.Hour
		back := time.Now().Add(lasts)
		b.receiver.answers(func(context.Context, callbacks.Delivery) error {
			if time.Now().Before(back) {
				return errors.New("connection refused")
			}
			return nil
		})
		j := b.submit("k", nil, crowdOf(2)...)
		b.replica(func(c *dispatcher.Config) {
			c.Tick, c.Lease, c.Destinations.Failures = 5*time.Minute, 10*time.Minute, 4
		})
		time.Sleep(lasts + dispatcher.Defaults.Destinations.LongestProbe + time.Second)
		delivered := 0
		for _, s := range b.receiver.all() {
			if !s.SentAt.Before(back) {
				delivered++
			}
		}
		if delivered == 0 || len(b.pending(j)) != 2-delivered || len(b.dead()) != 0 {
			b.Errorf("a minute after it is back %d were delivered, %d wait, and %d were given up", delivered, len(b.pending(j)), len(b.dead()))
		}
		for _, o := range b.pending(j) {
			if o.Attempt > 50 { // some twelve in the first hour, and two in each other
				b.Errorf("one has used up %d attempts", o.Attempt)
			}
		}
	})
}

// A probing occurrence has no more attempts, and no later end, than its retry policy allows.
func TestProbesEnd(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	bubble(t, func(b *bench) {
		b.receiver.answers(func(context.Context, callbacks.Delivery) error { return errors.New("connection refused") })
		b.submit("k", func(j *job.Job) {
			j.Options.Retry = job.Retry{MaxAttempts: 3, Initial: job.Duration(time.Hour), Max: job.Duration(time.Hour)}
		}, crowdOf(25)...)
		b.replica(func(c *dispatcher.Config) { c.Tick, c.Lease = 5*time.Minute, 10*time.Minute })
		time.Sleep(8 * time.Hour)
		if n := len(b.dead()); n != 25 {
			b.Errorf("%d of 25 were given up after eight hours", n)
		}
		attempts := make(map[job.ID]int)
		for _, s := range b.receiver.all() {
			attempts[s.ID] = max(attempts[s.ID], s.Attempt)
		}
		for _, n := range attempts {
			if n > 3 {
				b.Errorf("one was sent as attempt %d", n)
			}
		}
	})
}
