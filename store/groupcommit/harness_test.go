package groupcommit_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/groupcommit"
)

// harness has callers whose puts gather before a store. Each call of the store blocks until the test finishes it. The
// harness runs in a synctest bubble, and each of its methods returns when all goroutines are blocked.
type harness struct {
	*testing.T
	jobs  store.Jobs
	store store.Jobs // gets the calls; if nil, the harness invents their results
	onEnd func()     // if set, the caller of a call calls it at the call's end

	lock    sync.Mutex  // guards the fields below
	calls   []*underWay // that have not finished
	answers []string    // of the callers, in the order in which they were started
}

// underWay is a call to the store.
type underWay struct {
	ctx  context.Context
	puts []store.Put
	end  chan []error
}

func (u *underWay) keys() string {
	keys := make([]string, len(u.puts))
	for i := range u.puts {
		keys[i] = u.puts[i].Job.Key
	}
	return strings.Join(keys, " ")
}

func newHarness(t *testing.T, writers int) *harness {
	h := &harness{T: t}
	h.jobs = groupcommit.New(held{put: h.put}, writers)
	return h
}

// held is a store whose puts the harness holds.
type held struct {
	nothing
	put func(ctx context.Context, puts []store.Put) []store.PutResult
}

// nothing has a store's other methods, which are never called.
type nothing interface{ store.Jobs }

func (h held) Put(ctx context.Context, puts []store.Put) []store.PutResult { return h.put(ctx, puts) }

// errPanic makes a call to the store panic.
var errPanic = errors.New("panic")

// put is the Put of the store. Invented results differ by the keys.
func (h *harness) put(ctx context.Context, puts []store.Put) []store.PutResult {
	u := &underWay{ctx, puts, make(chan []error)}
	h.lock.Lock()
	h.calls = append(h.calls, u)
	h.lock.Unlock()
	errs := <-u.end
	if h.onEnd != nil {
		h.onEnd()
	}
	if h.store != nil {
		return h.store.Put(ctx, puts)
	}
	results := make([]store.PutResult, len(puts))
	for i := range results {
		results[i].Replaced = job.Revision(puts[i].Job.Key)
		if i < len(errs) && errs[i] != nil {
			if errors.Is(errs[i], errPanic) {
				panic(errPanic)
			}
			results[i].Err = errs[i]
		}
	}
	return results
}

// start starts a caller that puts one job, without a limit.
func (h *harness) start(key string) { h.startPuts(h.Context(), newPut(key)) }

func (h *harness) startPuts(ctx context.Context, puts ...store.Put) {
	var keys []string
	for i := range puts {
		keys = append(keys, puts[i].Job.Key)
	}
	name, i := strings.Join(keys, " ")+": ", len(h.answers)
	h.lock.Lock()
	h.answers = append(h.answers, name+"-")
	h.lock.Unlock()
	go func() {
		answer := name
		defer func() {
			if fault := recover(); fault != nil {
				answer = name + "panic"
			}
			h.lock.Lock()
			defer h.lock.Unlock()
			h.answers[i] = answer
		}()
		for _, r := range h.jobs.Put(ctx, puts) {
			if r.Err != nil {
				answer += r.Err.Error()
			}
			answer += string(r.Replaced)
		}
	}()
	synctest.Wait()
}

// within returns a context that ends after a time.
func (h *harness) within(limit time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(h.Context(), limit)
	h.Cleanup(cancel)
	return ctx
}

// finish ends the first of the calls under way, with these errors.
func (h *harness) finish(errs ...error) {
	h.Helper()
	if len(h.calls) == 0 {
		h.Fatal("nothing is under way")
	}
	u := h.calls[0]
	h.calls = h.calls[1:]
	u.end <- errs
	synctest.Wait()
}

// expectUnderWay checks which calls are under way, by the keys of their jobs, in any order.
func (h *harness) expectUnderWay(want ...string) {
	h.Helper()
	var got []string
	for _, u := range h.calls {
		got = append(got, u.keys())
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		h.Fatalf("%q are under way, want %q", got, want)
	}
}

// expectTimeLeft checks the time left until the deadline of the call under way.
func (h *harness) expectTimeLeft(want time.Duration) {
	h.Helper()
	if end, ok := h.calls[0].ctx.Deadline(); !ok || time.Until(end) != want {
		h.Errorf("it has %v, want %v", time.Until(end), want)
	}
}

// expectAnswers checks the callers' results; a caller that still waits has a dash.
func (h *harness) expectAnswers(want ...string) {
	h.Helper()
	h.lock.Lock()
	defer h.lock.Unlock()
	for i, w := range want {
		if i >= len(h.answers) || !strings.HasPrefix(h.answers[i], w) {
			h.Errorf("the answers are %q, want %q", h.answers, want)
			return
		}
	}
}

func newPut(key string) store.Put {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	revision := job.NewRevision(now)
	return store.Put{
		Job: job.Job{
			Name: job.Name{Tenant: job.DefaultTenant, Key: key}, Revision: revision, Version: revision,
			Callback: job.Callback{Type: "http", Data: []byte("{}")}, CreatedAt: now, UpdatedAt: now, ExpiresAt: now,
		},
		Now: now,
	}
}
