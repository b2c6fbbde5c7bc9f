package dispatcher_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/dispatcher"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// meeting is the time after which replicas that have started know of each other: their second heartbeats say that they
// are ready, and with the third ones all have read that.
const meeting = 25 * time.Second

// counted is a store that counts claims, and takes time for them as a server does.
type counted struct {
	*flakyQueue
	claims, empty, scans atomic.Int64
}

func (q *counted) Claim(ctx context.Context, p store.ClaimParams) (store.Claim, error) {
	time.Sleep(time.Millisecond)
	claim, err := q.flakyQueue.Claim(ctx, p)
	time.Sleep(time.Millisecond)
	if q.claims.Add(1); len(claim.Occurrences) == 0 {
		q.empty.Add(1)
	}
	return claim, err
}

func (q *counted) DueLanes(ctx context.Context, p store.DueParams) (store.DuePage, error) {
	q.scans.Add(1)
	return q.flakyQueue.DueLanes(ctx, p)
}

// member is a replica with its own link to the store, and its deliveries.
type member struct {
	link *flakyQueue
	sent *receiver
	stop func() // as SIGTERM does
}

// join starts a replica.
func (b *bench) join(change func(*dispatcher.Config, *flakyQueue)) member {
	m := member{link: &flakyQueue{Store: b.store}, sent: &receiver{}}
	_, m.stop = b.replica(func(c *dispatcher.Config) {
		c.Store, c.Callbacks = m.link, callbacks.NewRegistry(m.sent)
		if change != nil {
			change(c, m.link)
		}
	})
	return m
}

// team starts replicas at once, and waits until they know of each other.
func (b *bench) team(n int, change func(*dispatcher.Config, *flakyQueue)) (team []member) {
	for range n {
		team = append(team, b.join(change))
	}
	time.Sleep(meeting)
	return team
}

// lateness returns how late each delivery of a team was, sorted.
func lateness(team []member) (late []time.Duration) {
	for _, m := range team {
		for _, d := range m.sent.all() {
			late = append(late, d.SentAt.Sub(d.Timestamp))
		}
	}
	slices.Sort(late)
	return late
}

// instants returns random instants of a steady rate per second, from a second ahead on.
func instants(rate int, lasts time.Duration) (after []time.Duration) {
	for range int(lasts.Seconds()) * rate {
		after = append(after, time.Second+rand.N(lasts).Truncate(time.Millisecond))
	}
	slices.Sort(after)
	return slices.Compact(after)
}

// However many replicas there are, a firing costs about the same number of claims, and is no later. A long test has 64.
func TestClaimsPerFiring(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	replicas := []int{1, 4, 16}
	if os.Getenv("CARILLON_TEST_LONG") != "" {
		replicas = append(replicas, 64)
	}
	for _, c := range []struct {
		rate  int
		lasts time.Duration
	}{{20, 20 * time.Second}, {300, 2 * time.Second}} {
		var alone, lateAlone float64
		for _, n := range replicas {
			bubble(t, func(b *bench) {
				var queues []*counted
				team := b.team(n, func(c *dispatcher.Config, link *flakyQueue) {
					q := &counted{flakyQueue: link}
					queues, c.Store = append(queues, q), q
				})
				var claims, empty, scans int64
				sum := func(sign int64) {
					for _, q := range queues {
						claims += sign * q.claims.Load()
						empty += sign * q.empty.Load()
						scans += sign * q.scans.Load()
					}
				}
				sum(-1)
				after := instants(c.rate, c.lasts)
				b.submit("k", nil, after...)
				time.Sleep(c.lasts + 5*time.Second)
				sum(1)
				late := lateness(team)
				fired := float64(len(late))
				per, p99 := float64(claims)/fired, late[len(late)*99/100].Seconds()
				b.Logf("%d/s, %d replicas: %.3f claims for a firing, %.3f empty, %.2f scans; p50 %s, p99 %s, at most %s",
					c.rate, n, per, float64(empty)/fired, float64(scans)/fired,
					late[len(late)/2], late[len(late)*99/100], late[len(late)-1])
				if n == 1 {
					alone, lateAlone = per, p99
				}
				if len(late) != len(after) {
					b.Errorf("%d of %d were fired", len(late), len(after))
				}
				if per > 1.1*alone || p99 > lateAlone+0.002 {
					b.Errorf("%d/s, %d replicas: %.3f claims for a firing, p99 %.4f s; with one replica %.3f and %.4f s",
						c.rate, n, per, p99, alone, lateAlone)
				}
			})
		}
	}
}

// The occurrences of a dead replica's first turn are late: they wait for the next poll of another replica, which comes
// sooner the more replicas there are. From then on, that replica stands in, and nothing is late. A few replicas take no
// turns, and nothing is late at all.
func TestTurnsOfADeadReplica(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	for _, n := range []int{3, 4, 6} {
		bubble(t, func(b *bench) {
			team := b.team(n, nil)
			b.submit("k", nil, instants(20, time.Minute)...)
			time.Sleep(10 * time.Second) // until the beginning of a turn
			synctest.Wait()
			died := time.Now()
			team[0].link.set(func(q *flakyQueue) { q.down = true })
			time.Sleep(55 * time.Second)

			late := map[time.Duration]int{}
			var first, last time.Time
			for _, m := range team {
				for _, d := range m.sent.all() {
					by, since := d.SentAt.Sub(d.Timestamp), d.Timestamp.Sub(died)
					switch {
					case d.Attempt > 1: // it was claimed by the dead one, whose lease has to end
					case by > 200*time.Millisecond+2*time.Second/time.Duration(n):
						b.Errorf("at %s: %s after the death, one is late by %s", d.Timestamp.Format("05.000"), since, by)
					case by > 10*time.Millisecond && since < 0:
						b.Errorf("%s before the death, one is late by %s", -since, by)
					case by > 10*time.Millisecond:
						late[by.Truncate(100*time.Millisecond)]++
						last = later(last, d.Timestamp)
						if first.IsZero() || d.Timestamp.Before(first) {
							first = d.Timestamp
						}
					}
				}
			}
			team[0].link.set(func(q *flakyQueue) { q.down = false })
			time.Sleep(10 * time.Second) // it writes its outcomes
			b.Logf("%d replicas: %d late, by %v, within %s", n, sumOf(late), late, last.Sub(first))
			if last.Sub(first) > 1150*time.Millisecond {
				b.Errorf("with %d replicas, some are late for %s", n, last.Sub(first))
			}
			if n < 4 && len(late) > 0 {
				b.Errorf("with %d replicas, %d are late, by %v", n, sumOf(late), late)
			}
		})
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Replicas that stop in good order, and others that start, make nothing late, however many there are. Those that take
// turns need some time to stop, unless nothing falls due.
func TestTurnsInARollingRestart(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	for _, c := range []struct {
		replicas, rate int
		stops          time.Duration // within this
	}{
		{3, 20, time.Second},
		{4, 20, 13 * time.Second},
		{6, 20, 13 * time.Second},
		{6, 0, time.Second},
	} {
		bubble(t, func(b *bench) {
			team := b.team(c.replicas, nil)
			after := instants(c.rate, 100*time.Second)
			b.submit("k", nil, append(after, 3*time.Minute)...)
			time.Sleep(2 * time.Second)
			var longest time.Duration
			for i := range c.replicas {
				team = append(team, b.join(nil))
				time.Sleep(rand.N(3 * time.Second))
				begun := time.Now()
				team[i].stop()
				longest = max(longest, time.Since(begun))
			}
			time.Sleep(4 * time.Minute)
			late := lateness(team)
			b.Logf("%d replicas: one took %s to stop, and one of %d was %s late", c.replicas, longest, len(late), late[len(late)-1])
			if len(late) != len(after)+1 {
				b.Errorf("%d of %d were fired", len(late), len(after)+1)
			}
			if late[len(late)-1] > 10*time.Millisecond || longest > c.stops {
				b.Errorf("with %d replicas and %d/s, one is late by %s, or one took %s to stop",
					c.replicas, c.rate, late[len(late)-1], longest)
			}
		})
	}
}

func sumOf(m map[time.Duration]int) (sum int) {
	for _, n := range m {
		sum += n
	}
	return sum
}

// All replicas claim during a backlog, and at whole minutes from the beginning.
func TestEveryoneClaimsABacklog(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	const n, slots, takes, jobs = 4, 16, 100 * time.Millisecond, 2000
	for _, c := range []struct {
		name   string
		at     time.Duration // after the start of a minute
		within time.Duration
	}{
		{"at a whole minute", 0, 3500 * time.Millisecond},
		{"at another time", 30*time.Second + 123*time.Millisecond, 6 * time.Second},
		{"long ago", -time.Hour + 123*time.Millisecond, 6 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(b *bench) {
				team := b.team(n, func(c *dispatcher.Config, _ *flakyQueue) {
					c.Concurrency = slots
					alone(c)
				})
				for _, m := range team {
					m.sent.answers(func(context.Context, callbacks.Delivery) error {
						time.Sleep(takes)
						return nil
					})
				}
				minute := time.Now().Truncate(time.Minute).Add(time.Minute)
				due := time.Until(minute.Add(c.at))
				for i := range jobs {
					b.submit(fmt.Sprint(i), nil, due)
				}
				begun := time.Now().Add(max(0, due))
				time.Sleep(time.Until(begun.Add(2 * time.Minute)))
				all, last := 0, time.Duration(0)
				var each []int
				for _, m := range team {
					sent := m.sent.all()
					each = append(each, len(sent))
					all += len(sent)
					for _, d := range sent {
						last = max(last, d.SentAt.Sub(begun))
					}
				}
				b.Logf("each has fired %v, the last after %s", each, last)
				if all != jobs || slices.Min(each) < jobs/n/4 || last > c.within {
					b.Errorf("%d of %d were fired, by each %v, the last after %s", all, jobs, each, last)
				}
			})
		})
	}
}

// A job that is submitted to one replica for the next instants is fired on time in every turn.
func TestTurnsAndSubmissions(t *testing.T) {
	bubble(t, func(b *bench) {
		var all []*dispatcher.Dispatcher
		for range 4 {
			d, _ := b.replica(nil)
			all = append(all, d)
		}
		time.Sleep(meeting)
		for i := range 200 {
			due := rand.N(4 * time.Second).Truncate(time.Millisecond)
			b.submit(fmt.Sprint(i), nil, due, due+300*time.Millisecond)
			all[i%len(all)].Wake(job.DefaultLane, time.Now().Add(due))
			time.Sleep(rand.N(time.Second))
		}
		time.Sleep(time.Minute)
		for _, d := range b.receiver.all() {
			if late := d.SentAt.Sub(d.Timestamp); late > time.Millisecond {
				b.Errorf("%s was fired %s late", d.Timestamp, late)
			}
		}
		if got := b.receiver.count(); got != 400 {
			b.Errorf("%d were fired", got)
		}
	})
}

// Slow callbacks use the slots of all replicas, not only of the one that has the turn.
func TestTurnsAndSlowCallbacks(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	bubble(t, func(b *bench) {
		team := b.team(4, func(c *dispatcher.Config, _ *flakyQueue) { c.Concurrency = 64 })
		for _, m := range team {
			m.sent.answers(func(context.Context, callbacks.Delivery) error {
				time.Sleep(time.Second)
				return nil
			})
		}
		begun := time.Now()
		b.submit("k", nil, instants(50, 35*time.Second)...) // one replica lets a slow destination have 32 at once
		time.Sleep(time.Minute)
		late, worst := 0, time.Duration(0)
		for _, m := range team {
			for _, d := range m.sent.all() {
				if by := d.SentAt.Sub(d.Timestamp); by > 20*time.Millisecond && d.Timestamp.Sub(begun) > 20*time.Second {
					late, worst = late+1, max(worst, by)
				}
			}
		}
		b.Logf("%d late, by %s at most", late, worst)
		if late > 10 { // of 750
			b.Errorf("%d are late, by %s at most", late, worst)
		}
	})
}
