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

// TestReadingAfterAStep: a reading from a time at which this machine's clock was set wrong gives way to the next one,
// even if that is less exact.
func TestReadingAfterAStep(t *testing.T) {
	var c clock.Clock
	theirs := time.Now()
	wrong := set(theirs, 5)
	c.Note(wrong, theirs, wrong.Add(time.Millisecond))
	later := theirs.Add(10 * time.Second)
	c.Note(later, later, later.Add(100*time.Millisecond))
	asked := later.Add(time.Second)
	if span := c.Newer(asked, asked.Add(time.Minute)); !span.Has(job.NewRevision(asked.Add(time.Second))) {
		t.Error("after the clock was set right and compared again, no version is newer than a request")
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
