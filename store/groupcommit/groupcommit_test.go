package groupcommit_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/groupcommit"
	"github.com/carillon-scheduler/carillon/store/memory"
	"github.com/carillon-scheduler/carillon/store/sqlite"
	"github.com/carillon-scheduler/carillon/store/storetest"
)

func TestStore(t *testing.T) {
	storetest.Run(t, func(*testing.T) storetest.Opener {
		s := memory.New()
		return func() (store.Store, error) { return gathering{s, groupcommit.New(s, 1)}, nil }
	})
}

// gathering is a store whose Put gathers.
type gathering struct {
	store.Store
	jobs store.Jobs
}

func (g gathering) Put(ctx context.Context, puts []store.Put) []store.PutResult {
	return g.jobs.Put(ctx, puts)
}

// Puts that arrive while others are being put share one call, in the order of their arrival, and each caller gets its
// own result.
func TestGathers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, 1)
		h.start("a")
		h.start("b")
		h.start("c")
		h.start("b")
		h.expectUnderWay("a")
		h.finish()
		h.expectUnderWay("b c b")
		h.start("d")
		h.finish(nil, store.ErrPrecondition, nil)
		h.expectUnderWay("d")
		h.finish()
		h.expectUnderWay()
		h.expectAnswers("a: a", "b: b", "c: precondition failed", "b: b", "d: d")
		h.start("e") // no call is under way, so it does not wait
		h.expectUnderWay("e")
		h.finish()
	})
}

// Several calls are under way if more than one writer is allowed.
func TestWriters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, 2)
		for _, key := range []string{"a", "b", "c", "d"} {
			h.start(key)
		}
		h.expectUnderWay("a", "b")
		h.finish()
		h.expectUnderWay("b", "c d")
		h.start("e")
		h.finish()
		h.expectUnderWay("c d", "e")
		h.finish()
		h.finish()
		h.expectUnderWay()
		h.expectAnswers("a: a", "b: b", "c: c", "d: d", "e: e")
	})
}

// Puts of several jobs and large puts are made alone at once. Batches are bounded.
func TestBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, 1)
		h.start("a")
		h.startPuts(t.Context(), newPut("b"), newPut("c"))
		h.startPuts(t.Context())
		large, many, steps := newPut("large"), newPut("many"), newPut("steps")
		large.Job.Callback.Data = make([]byte, 100<<10)
		steps.Job.Options.Payloads = map[int]jsontext.Value{0: make([]byte, 100<<10)}
		many.Occurrences = make([]job.Occurrence, 1000)
		h.startPuts(t.Context(), large)
		h.startPuts(t.Context(), many)
		h.startPuts(t.Context(), steps)
		h.expectUnderWay("a", "b c", "", "large", "many", "steps")
		for range 6 {
			h.finish()
		}
		h.start("a")
		for range 40 {
			p := newPut("x")
			p.Job.Callback.Data = make([]byte, 50<<10)
			h.startPuts(t.Context(), p)
		}
		h.finish()
		first := len(h.calls[0].puts)
		if size := first * (50 << 10); size > 1<<20 || size < 1<<19 {
			t.Errorf("%d bytes are put together", size)
		}
		h.finish()
		if n := len(h.calls[0].puts); first+n != 40 {
			t.Errorf("%d of 40 are put", first+n)
		}
		h.finish()
	})
}

// A put whose context ends while it waits is never made, and fails at once.
func TestEndsWhileItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, 1)
		h.start("a")
		cancelled, cancel := context.WithCancel(t.Context())
		h.startPuts(cancelled, newPut("b"))
		h.startPuts(h.within(time.Second), newPut("c"))
		h.startPuts(h.within(2*time.Second), newPut("d"))
		h.start("e") // gets the time limit of a put without a deadline
		cancel()
		synctest.Wait()
		h.expectAnswers("a: -", "b: the store is unavailable", "c: -", "d: -", "e: -")
		time.Sleep(time.Second)
		synctest.Wait()
		h.expectAnswers("a: -", "b: the store is unavailable", "c: the store is unavailable", "d: -", "e: -")
		time.Sleep(store.Within)
		h.start("f")
		h.finish()
		h.expectUnderWay("f")
		h.finish()
		h.expectUnderWay()
		h.expectAnswers("a: a", "b: the store is unavailable", "c: the store is unavailable", "d: the store is unavailable",
			"e: the store is unavailable", "f: f")
	})
}

// A put whose deadline passes just before its turn is not made either, even if its caller has not noticed yet.
func TestEndsAtItsTurn(t *testing.T) {
	for range 100 { // the end is noticed at one point or another
		synctest.Test(t, func(t *testing.T) {
			h := newHarness(t, 1)
			h.start("a")
			ctx, cancel := context.WithCancel(t.Context())
			h.startPuts(ctx, newPut("b"))
			h.start("c")
			h.startPuts(ctx, newPut("d"))
			h.start("e")
			h.onEnd = cancel
			h.finish()
			h.expectUnderWay("c e")
			h.finish()
			h.expectAnswers("a: a", "b: the store is unavailable", "c: c", "d: the store is unavailable", "e: e")
		})
	}
}

// A batch ends with the first deadline in it. A put with much more time does not join it.
func TestDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, 1)
		h.start("a")
		h.startPuts(h.within(14*time.Second), newPut("b"))
		h.startPuts(h.within(10*time.Second), newPut("c"))
		h.startPuts(h.within(25*time.Second), newPut("d"))
		h.start("e")
		h.finish()
		h.expectUnderWay("b c")
		h.expectTimeLeft(10 * time.Second)
		h.finish()
		h.expectUnderWay("d e")
		h.expectTimeLeft(25 * time.Second)
		h.finish()
	})
}

// A caller that gives up does not end the batch of the others.
func TestCancelledTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, 1)
		h.start("a")
		var cancels []context.CancelFunc
		for _, key := range []string{"b", "c", "d"} {
			ctx, cancel := context.WithCancel(t.Context())
			cancels = append(cancels, cancel)
			h.startPuts(ctx, newPut(key))
		}
		h.finish()
		h.expectUnderWay("b c d")
		for i, cancel := range cancels {
			if err := h.calls[0].ctx.Err(); err != nil {
				t.Fatalf("after %d of 3 it ends: %v", i, err)
			}
			cancel()
			synctest.Wait()
		}
		if h.calls[0].ctx.Err() == nil {
			t.Error("nobody waits for it, and it goes on")
		}
		h.finish()
		h.expectUnderWay()
	})
}

// A fault of one put does not affect the others, whether or not the store reports which put failed.
func TestFaults(t *testing.T) {
	faulty, down := errors.New("faulty"), fmt.Errorf("%w: down", store.ErrUnavailable)
	for _, c := range []struct {
		name    string
		results []error  // of b, c and d together
		again   []string // the puts that are then made alone
		want    string   // of c
	}{
		{"it spoils all", []error{faulty, faulty, faulty}, []string{"b", "c", "d"}, "faulty"},
		{"it spoils another", []error{faulty, faulty, nil}, []string{"b", "c"}, "faulty"},
		{"it is told apart", []error{nil, faulty, nil}, nil, "faulty"},
		{"a condition", []error{store.ErrPrecondition, store.ErrPrecondition, nil}, nil, "precondition failed"},
		{"a newer version", []error{store.ErrSuperseded, store.ErrSuperseded, nil}, nil, "a newer version of the job"},
		{"the store is down", []error{down, down, down}, nil, "the store is unavailable"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, 1)
				for _, key := range []string{"a", "b", "c", "d"} {
					h.start(key)
				}
				h.finish()
				h.finish(c.results...)
				h.expectUnderWay(c.again...)
				for len(h.calls) > 0 {
					if h.calls[0].keys() == "c" {
						h.finish(faulty)
					} else {
						h.finish()
					}
				}
				if !strings.HasPrefix(h.answers[2], "c: "+c.want) {
					t.Errorf("the answer is %q", h.answers[2])
				}
				for i, key := range map[int]string{1: "b", 3: "d"} {
					if want := key + ": " + key; c.again != nil && h.answers[i] != want {
						t.Errorf("the answer is %q, want %q", h.answers[i], want)
					}
				}
			})
		})
	}
}

// A panic ends its caller only; the other puts of the batch fail, and later puts are made.
func TestPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, 1)
		for _, key := range []string{"a", "b", "c"} {
			h.start(key)
		}
		h.finish()
		h.start("d")
		h.finish(errPanic)
		h.expectUnderWay("d")
		h.finish()
		h.expectAnswers("a: a", "b: panic", "c: the put was interrupted", "d: d")
	})
}

// On a store with transactions, a faulty put shares a transaction with others, which are stored.
func TestFaultOnSQLite(t *testing.T) {
	file := "sqlite:" + filepath.Join(t.TempDir(), "carillon.db")
	synctest.Test(t, func(t *testing.T) {
		s, err := sqlite.Open(t.Context(), file)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		h := newHarness(t, 1)
		h.start("a")
		h.start("b")
		faulty := newPut("faulty")
		faulty.Job.Callback.Data = nil // every job has data
		h.startPuts(t.Context(), faulty)
		h.start("c")
		h.store = s
		h.finish()
		h.expectUnderWay("b faulty c")
		h.finish()
		h.expectUnderWay("b", "c", "faulty")
		for range 3 {
			h.finish()
		}
		for i, want := range []string{"a: ", "b: ", "faulty: constraint failed", "c: "} {
			if got := h.answers[i]; !strings.HasPrefix(got, want) || i != 2 && got != want { // these puts replace nothing
				t.Errorf("the answer is %q, want %q", got, want)
			}
		}
		for key, want := range map[string]error{"a": nil, "b": nil, "c": nil, "faulty": store.ErrNotFound} {
			if _, err := store.ReadJob(t.Context(), s, newPut(key).Job.Name); !errors.Is(err, want) {
				t.Errorf("job %s: %v", key, err)
			}
		}
	})
}
