package explain_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/callbacks"
)

// The explanations of instants at any time of a run agree with the deliveries that their receiver has seen and sees
// later. In the run, attempts fail and jobs are paused, replaced and cancelled.
func TestToldIsTrue(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	for seed := range uint64(2) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bubble(t, keeps{}, func(w *world) { newRun(w, seed).run() })
		})
	}
}

// run is a service with some jobs, and the deliveries of each of their instants.
type run struct {
	*world
	random *rand.Rand
	jobs   []string
	// instants are those that a job has or had.
	instants map[string][]string

	lock  sync.Mutex
	seen  map[string]*seen     // by job and instant
	never map[string]time.Time // by instant: from this time on, the explanation was that it never fires
	asked map[string]int       // by code
}

// seen has the deliveries of an instant.
type seen struct {
	sent           []time.Time
	taken, refused time.Time // when it answered; refused is for good
}

func newRun(w *world, seed uint64) *run {
	return &run{
		world: w, random: rand.New(rand.NewPCG(seed, 1)), instants: map[string][]string{},
		seen: map[string]*seen{}, never: map[string]time.Time{}, asked: map[string]int{},
	}
}

func (r *run) run() {
	r.answers(r.receive)
	r.replica()
	for i := range 6 {
		key := fmt.Sprint("job", i)
		r.jobs = append(r.jobs, key)
		r.submit(key)
	}
	for step := 1; step <= 14; step++ {
		r.until(time.Duration(step)*3*time.Minute + time.Duration(r.random.IntN(60_000))*time.Millisecond)
		r.ask()
		key := r.jobs[r.random.IntN(len(r.jobs))]
		switch r.random.IntN(6) {
		case 0:
			r.try("POST", pathOf(key)+"/pause", "")
		case 1, 2:
			for _, key := range r.jobs {
				r.try("POST", pathOf(key)+"/resume", "")
			}
		case 3:
			r.try("DELETE", pathOf(key), "")
		case 4:
			if status, _ := r.try("GET", pathOf(key), ""); status == 200 {
				r.submit(key)
			}
		}
	}
	for _, key := range r.jobs {
		r.try("POST", pathOf(key)+"/resume", "")
	}
	r.until(90 * time.Minute)
	r.ask()
	for of, since := range r.never {
		for _, at := range r.seen[of].sent {
			if at.After(since) {
				r.Errorf("%s: at %s it was told that it never fires; it was sent at %s", of, since, at)
			}
		}
	}
	for _, code := range []string{"delivered", "dead", "retrying", "waiting", "cancelled"} {
		if r.asked[code] == 0 {
			r.Logf("nothing was ever %s in this run: %v", code, r.asked)
		}
	}
}

// submit puts a job with some instants of the next half hour. It may have had some of these before.
func (r *run) submit(key string) {
	schedules := slices.Clone(r.instants[key])
	schedules = schedules[:min(len(schedules), r.random.IntN(4))]
	for range 4 {
		at := r.after(time.Since(r.start) + time.Duration(r.random.IntN(1_800_000))*time.Millisecond)
		schedules = append(schedules, at)
		r.instants[key] = append(r.instants[key], at)
		r.seen[key+" "+at] = &seen{}
	}
	slices.Sort(schedules)
	r.put(key, fmt.Sprintf(`"schedules":["%s"],"retry":{"maxAttempts":3}`, strings.Join(slices.Compact(schedules), `","`)))
}

// receive takes most deliveries, some of them slowly, asks for others again, and refuses some for good.
func (r *run) receive(ctx context.Context, d callbacks.Delivery) error {
	now := time.Now()
	r.lock.Lock()
	s := r.seen[d.Name.Key+" "+jobTime(d.Timestamp)]
	s.sent = append(s.sent, now)
	r.lock.Unlock()
	fate := int(d.ID[15]) + 31*d.Attempt
	if fate%5 == 0 {
		select {
		case <-time.After(20 * time.Second):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	r.lock.Lock()
	defer r.lock.Unlock()
	switch {
	case fate%7 == 0, d.Attempt == 3 && fate%3 == 0:
		s.refused = time.Now()
		return callbacks.Refused(refusal(410))
	case fate%3 == 0:
		return callbacks.RetryAfter(refusal(503), time.Duration(1+fate%200)*time.Second)
	default:
		s.taken = time.Now()
		return nil
	}
}

func jobTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// ask asks about each instant of each job, and compares the answers with the deliveries.
func (r *run) ask() {
	for _, key := range r.jobs {
		for _, at := range r.instants[key] {
			got, of, now := r.explain(key, at), key+" "+at, time.Now()
			r.lock.Lock()
			s := *r.seen[of]
			r.lock.Unlock()
			r.asked[got.Code]++
			ended, want := s.taken, "delivered"
			if s.taken.IsZero() {
				ended, want = s.refused, "dead"
			}
			const settling = 3 * time.Second // in which history has the outcome
			switch {
			case ended.IsZero() && (got.Code == "delivered" || got.Code == "dead"):
				r.Errorf("%s at %s: the receiver has not ended it: %s", of, now, got.text())
			case !ended.IsZero() && now.Sub(ended) > settling && got.Code != want && !afterCancel(&got, want):
				r.Errorf("%s at %s: the receiver has ended it at %s, %s: %s", of, now, ended, want, got.text())
			}
			switch got.Code {
			case "cancelled", "replaced", "no_such_instant", "skipped_as_past", "dead", "missed":
				if _, told := r.never[of]; !told {
					r.never[of] = now
				}
			case "unknown", "not_kept":
				if ended.IsZero() || now.Sub(ended) > settling {
					r.Errorf("%s at %s: %s", of, now, got.text())
				}
			default:
				delete(r.never, of) // a replacement may bring an instant back
			}
		}
	}
}

// afterCancel reports whether a refusal ended an attempt that was under way when its job was cancelled or replaced:
// there is no dead letter then.
func afterCancel(got *answer, want string) bool {
	return want == "dead" && (got.Code == "cancelled" || got.Code == "replaced" || got.Code == "no_such_instant")
}
