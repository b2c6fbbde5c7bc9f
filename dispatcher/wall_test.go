package dispatcher_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/carillon-scheduler/carillon/dispatcher"
)

// wall has a machine's clocks in a bubble: the wall clock can be set, and the monotonic clock continues. A bubble's own
// times have no monotonic clock, and only the runtime can make times with two clocks that differ. So they are put
// together here as the runtime does it; [TestWall] checks that.
type wall struct{ ahead atomic.Int64 }

func (w *wall) set(ahead time.Duration) { w.ahead.Store(int64(ahead)) }

// Now works as [time.Now] does outside a bubble.
func (w *wall) Now() (t time.Time) {
	at := time.Now().Add(time.Duration(w.ahead.Load()))
	since1885 := at.Sub(time.Date(1885, 1, 1, 0, 0, 0, 0, time.UTC).Add(100*365*24*time.Hour)) + 100*365*24*time.Hour
	fields := (*struct {
		wall uint64
		ext  int64
		loc  *time.Location
	})(unsafe.Pointer(&t))
	fields.wall = 1<<63 | uint64(since1885/time.Second)<<30 | uint64(at.Nanosecond())
	fields.loc = time.Local
	fields.ext = int64(time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC))) + 1
	return t
}

func TestWall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w wall
		before, start := w.Now(), time.Now()
		w.set(-time.Hour)
		time.Sleep(1500 * time.Millisecond)
		after := w.Now()
		if got := after.Sub(before); got != 1500*time.Millisecond {
			t.Errorf("by the monotonic clock %s have passed", got)
		}
		if got, want := after.Round(0), start.Add(1500*time.Millisecond-time.Hour); !got.Equal(want) || !before.Round(0).Equal(start) {
			t.Errorf("the wall clock says %s, then %s; want %s, then %s", before, got, start, want)
		}
	})
}

// machine starts a replica whose wall clock can be set. The store has its own clock, or the machine's, as SQLite has.
func (b *bench) machine(w *wall, own bool, change func(*dispatcher.Config)) (d *dispatcher.Dispatcher, stop func()) {
	b.Helper()
	return b.replica(func(c *dispatcher.Config) {
		c.Now = w.Now
		if !own {
			c.Store = machineStore{c.Store, w}
		}
		if change != nil {
			change(c)
		}
	})
}

// machineStore is a store that uses a machine's clock.
type machineStore struct {
	dispatcher.Store
	wall *wall
}

func (s machineStore) Now(context.Context) (time.Time, error) { return s.wall.Now().Round(0), nil }

// If a wall clock is set wrong and right again while a replica runs, nothing is early, and only occurrences that were
// due meanwhile are late.
func TestWallClockIsWrongForAWhile(t *testing.T) {
	polls := []time.Duration{20 * time.Second, time.Second}
	if testing.Short() {
		polls = polls[:1]
	}
	for _, wrong := range []time.Duration{time.Hour, -time.Hour, 20 * time.Second, -20 * time.Second} {
		for _, poll := range polls {
			t.Run(fmt.Sprint(wrong, " polling every ", poll), func(t *testing.T) {
				t.Parallel()
				bubble(t, func(b *bench) {
					var w wall
					b.submit("ticks", crontab("*/10 * * * * *"))
					d, _ := b.machine(&w, true, func(c *dispatcher.Config) { c.Tick = poll })
					time.Sleep(31*time.Second + 300*time.Microsecond)
					w.set(wrong)
					b.submit("meanwhile", nil, 2*time.Second) // through another replica
					time.Sleep(12 * time.Second)              // time for all periodic work
					if err := d.Ready(); err == nil {
						b.Errorf("it is ready while its clock is wrong")
					}
					w.set(0)
					righted := time.Now()
					b.submit("later", of("another", ""), 40*time.Second) // through another replica, and alone in its lane
					time.Sleep(10 * time.Minute)
					if err := d.Ready(); err != nil {
						b.Errorf("it is not ready: %v", err)
					}
					for key, times := range map[string]int{"ticks": 64, "meanwhile": 1, "later": 1} {
						sent := b.receiver.of(key)
						if len(sent) != times {
							b.Errorf("%s was sent %d times, want %d", key, len(sent), times)
						}
						for _, s := range sent {
							latest := s.Timestamp
							if latest.After(b.start.Add(31*time.Second)) && latest.Before(righted) {
								latest = righted.Add(time.Second)
							}
							if key == "meanwhile" {
								latest = righted.Add(2 * poll) // the next poll
							}
							if s.SentAt.Before(s.Timestamp) || s.SentAt.After(latest.Add(time.Millisecond)) {
								b.Errorf("%s of %s was sent after %s", key, s.Timestamp.Sub(b.start), s.SentAt.Sub(b.start))
							}
						}
					}
					b.expectReplicas("after the clock was wrong", 1)
				})
			})
		}
	}
}

// If a wall clock is set for good, occurrences that it has made due fire at once, and later ones at their times by the
// new clock. Periodic work continues.
func TestWallClockIsSet(t *testing.T) {
	for _, c := range []struct {
		name  string
		by    time.Duration
		own   bool            // clock of the store
		due   []time.Duration // after it is set, by the former clock
		fires []time.Duration // after it is set
	}{
		{"forward", 20 * time.Minute, false, []time.Duration{time.Minute, 19 * time.Minute, 30 * time.Minute}, []time.Duration{0, 0, 10 * time.Minute}},
		{"back", -20 * time.Minute, false, []time.Duration{time.Minute, 5 * time.Minute}, []time.Duration{21 * time.Minute, 25 * time.Minute}},
		{"forward, and the store's is not", 10 * time.Second, true, // which is permitted
			[]time.Duration{5 * time.Second, 30 * time.Second}, []time.Duration{0, 20 * time.Second}},
		{"back, and the store's is not", -10 * time.Second, true,
			[]time.Duration{5 * time.Second, 30 * time.Second}, []time.Duration{15 * time.Second, 40 * time.Second}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(b *bench) {
				var w wall
				b.now = w.Now
				d, _ := b.machine(&w, c.own, func(c *dispatcher.Config) { c.Tick = 10 * time.Second })
				time.Sleep(time.Minute)
				const noticed = 30 * time.Second
				for i := range c.due {
					c.due[i] += noticed
				}
				b.submit("k", nil, c.due...)
				time.Sleep(noticed)
				w.set(c.by)
				set := time.Now()
				time.Sleep(30 * time.Minute)
				var fired []time.Duration
				for _, s := range b.receiver.of("k") {
					fired = append(fired, s.SentAt.Sub(set))
				}
				if len(fired) != len(c.due) {
					b.Fatalf("fired %s after it was set", fired)
				}
				for i, at := range c.fires {
					if fired[i] < at || fired[i] > at+time.Second+time.Millisecond {
						b.Errorf("number %d fired %s after it was set, want %s", i, fired[i], at)
					}
				}
				if err := d.Ready(); err != nil {
					b.Errorf("it is not ready: %v", err)
				}
				b.submit("every", crontab("*/10 * * * * *"))
				time.Sleep(10 * time.Minute)
				if n := len(b.receiver.of("every")); n < 59 || n > 60 {
					b.Errorf("%d ticks of 60 were sent", n)
				}
			})
		})
	}
}
