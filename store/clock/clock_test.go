package clock_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/clock"
)

// server has a clock of its own that is ahead of this machine's and drifts.
type server struct {
	store.Store
	begin time.Time
	ahead time.Duration
	rate  float64
	way   func() time.Duration // the duration of one way to the server, or back
}

func (s *server) time() time.Time {
	d := time.Since(s.begin)
	return s.begin.Add(s.ahead + d + time.Duration(s.rate*float64(d)))
}

// Now implements [store.Queue], in whole milliseconds as stores do.
func (s *server) Now(context.Context) (time.Time, error) {
	time.Sleep(s.way())
	defer func() { time.Sleep(s.way()) }()
	return s.time().Truncate(time.Millisecond), nil
}

// TestTheStoresClockLiesInBetween reads a server's clock every ten seconds. The response times vary, and the clock is
// set now and then.
func TestTheStoresClockLiesInBetween(t *testing.T) {
	for _, s := range []server{
		{}, {ahead: time.Hour}, {ahead: -time.Hour}, {ahead: time.Second, rate: 0.0004}, {ahead: -3 * time.Second, rate: -0.0004},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := s
			s.begin = time.Now()
			random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // it is a test's
			s.way = func() time.Duration { return time.Duration(random.IntN(200)) * time.Millisecond }
			var c clock.Clock
			if _, known := c.Earliest(time.Now()); known {
				t.Error("it is known before anybody asked")
			}
			if c.Newer(time.Now(), time.Now().Add(time.Minute)) != (store.Span{}) {
				t.Error("something came after, by a clock that nobody knows")
			}
			watched := c.Watch(&s)
			for round := range 100 {
				if round%30 == 29 {
					s.ahead += time.Duration(random.IntN(7200)-3600) * time.Second
				}
				if _, err := watched.Now(t.Context()); err != nil {
					t.Fatal(err)
				}
				for range 10 {
					now, theirs := time.Now(), s.time()
					earliest, known := c.Earliest(now)
					if !known || earliest.After(theirs) {
						t.Fatalf("round %d: it shows %s, and %s at the earliest", round, theirs, earliest)
					}
					span := c.Newer(now, now.Add(time.Minute))
					if before := job.NewRevision(theirs); span.Has(before) {
						t.Fatalf("round %d: a version taken before the submission is newer", round)
					}
					if after := job.NewRevision(theirs.Add(time.Second)); !span.Has(after) {
						t.Fatalf("round %d: a version taken a second after the submission is not newer", round)
					}
					if over := job.NewRevision(theirs.Add(2 * time.Minute)); span.Has(over) {
						t.Fatalf("round %d: a version taken long after the deadline is newer", round)
					}
					time.Sleep(time.Second)
				}
			}
		})
	}
}

// TestSteps: whatever happens to this machine's wall clock between a reading and a request, no version taken before the
// request is newer, and one taken after it is, if the wall clock did not jump ahead by more than that.
func TestSteps(t *testing.T) {
	const second = time.Second
	for name, c := range map[string]struct {
		first, then   uint64        // the seconds by which the wall clock is ahead, at the reading and at the request
		suspended     time.Duration // between the two
		newer         time.Duration // after the request
		again, newest time.Duration // the duration of another reading, and what is newer after it
	}{
		"it stays wrong":                     {first: 5, then: 5, newer: second},
		"it is set back":                     {first: 5, newer: second},
		"it is set ahead":                    {then: 5, newer: 6 * second, again: 100 * time.Millisecond, newest: second},
		"the machine was suspended":          {then: 5, suspended: 5 * second, newer: second},
		"suspended, and another reading":     {then: 5, suspended: 5 * second, newer: second, again: second, newest: 2 * second},
		"set back, and a less exact reading": {first: 5, newer: second, again: 100 * time.Millisecond, newest: second},
	} {
		t.Run(name, func(t *testing.T) {
			var known clock.Clock
			begin := time.Now()
			sent := set(begin, c.first)
			known.Note(sent, begin, sent.Add(time.Millisecond))
			check := func(asked, theirs time.Time, newer time.Duration) {
				t.Helper()
				span := known.Newer(asked, asked.Add(time.Minute))
				if span.Has(job.NewRevision(theirs.Add(-time.Millisecond))) {
					t.Error("a version taken before the request is newer")
				}
				if !span.Has(job.NewRevision(theirs.Add(newer))) {
					t.Errorf("a version taken %s after the request is not newer", newer)
				}
			}
			later := set(begin, c.then).Add(10 * second)
			check(later, begin.Add(10*second+c.suspended), c.newer)
			if c.again > 0 {
				theirs := begin.Add(10*second + c.suspended)
				known.Note(later, theirs, later.Add(c.again))
				check(later.Add(second), theirs.Add(second), c.newest)
			}
		})
	}
}

// set returns a time as a machine reads it whose wall clock was set ahead. Only the runtime can make such times, so its
// seconds are put together here, as package time keeps them.
func set(t time.Time, seconds uint64) time.Time {
	(*struct {
		wall uint64
		ext  int64
		loc  *time.Location
	})(unsafe.Pointer(&t)).wall += seconds << 30
	return t
}
