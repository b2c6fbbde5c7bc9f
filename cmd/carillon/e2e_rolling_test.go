//go:build services

package main_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// TestRollingRestart replaces all replicas, one after the other, while clients submit jobs and others fire: each new one
// serves before an old one is stopped, and clients are sent to replicas that stay, as a cluster does it. Every submission
// is accepted, and every instant fires once. A long test compares the lateness with that of the time before.
func TestRollingRestart(t *testing.T) {
	tested, calm := stores, 30*time.Second
	if os.Getenv("CARILLON_TEST_LONG") == "" { // it differs little from store to store
		tested, calm = slices.DeleteFunc(slices.Clone(stores), func(s freshStore) bool { return s.name != "sqlite" && s.name != "postgres" }), 0
	}
	on(t, tested, func(_ *testing.T, c *cluster) { c.rollingRestart(2, calm, longLease...) })
}

// rollingRestart starts replicas with these options, and replaces them after a calm time: those that take turns do so by
// then. If there is such a time, the replacement must not make occurrences later.
func (c *cluster) rollingRestart(replicas int, calm time.Duration, options ...string) {
	t := c.T
	c.start(replicas, options...)
	clients := &submitters{callback: c.webhook(), stop: make(chan struct{})}
	clients.use(c.replicas)
	for range 4 {
		clients.Go(clients.submit)
	}
	c.until("deliveries come", func() bool { n, _ := c.receiver.counts(); return n > 20 })
	time.Sleep(calm)
	began := time.Now()
	for range replicas {
		old := c.replicas[0]
		c.replicas = append(c.replicas[1:], c.startOne(options...))
		clients.use(c.replicas)
		old.signal(t, syscall.SIGTERM)
		select {
		case <-old.exited:
		case <-time.After(patience):
			old.kill()
			t.Fatal("it does not end")
		}
		if old.err != nil {
			t.Errorf("it ended with %v\n%s", old.err, old.log)
		}
		clients.until(c, 40)
	}
	close(clients.stop)
	clients.Wait()
	for _, problem := range clients.problems {
		t.Error(problem)
	}
	for i := range clients.accepted.Load() {
		c.finished(fmt.Sprint("job-", i))
	}
	c.expectDeliveries(int(clients.accepted.Load()))
	before := c.lateness("before", func(instant time.Time) bool { return instant.Before(began) })
	meanwhile := c.lateness("meanwhile", func(instant time.Time) bool { return !instant.Before(began) })
	// Occurrences that a stopping replica kept would be late by a lease. A starting replica takes the processor from the
	// others, and so do other tests.
	if calm > 0 && meanwhile > before+5*time.Second {
		t.Errorf("the 99th percentile of the lateness is %v, and was %v before the replicas were replaced", meanwhile, before)
	}
}

// submitters are clients that each submit one job after the other, due soon.
type submitters struct {
	sync.WaitGroup
	callback map[string]any
	stop     chan struct{}

	begun, accepted atomic.Int64 // jobs

	sending  sync.RWMutex // held while a request is under way
	replicas []*replica   // to which requests are sent

	lock     sync.Mutex
	problems []string
}

// use sends all further requests to these replicas. When it returns, none is under way to another.
func (s *submitters) use(replicas []*replica) {
	s.sending.Lock()
	defer s.sending.Unlock()
	s.replicas = slices.Clone(replicas)
}

func (s *submitters) submit() {
	for {
		select {
		case <-s.stop:
			return
		case <-time.After(25 * time.Millisecond):
		}
		i := s.begun.Add(1) - 1
		body, _ := json.Marshal(map[string]any{
			"schedules": []string{time.Now().Add(time.Second).UTC().Format(time.RFC3339Nano)}, "callback": s.callback,
		})
		s.sending.RLock()
		to := s.replicas[int(i)%len(s.replicas)]
		problem := put(fmt.Sprintf("%s/v1/jobs/job-%d", to.url, i), body)
		s.sending.RUnlock()
		if problem != "" {
			s.lock.Lock()
			s.problems = append(s.problems, problem)
			s.lock.Unlock()
		}
		s.accepted.Add(1)
	}
}

func put(url string, body []byte) (problem string) {
	request, err := http.NewRequest(http.MethodPut, url, bytes.NewReader(body))
	if err != nil {
		return err.Error()
	}
	request.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err.Error()
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body)
	if answer.StatusCode != http.StatusCreated {
		return fmt.Sprintf("%s: %s %s", url, answer.Status, text)
	}
	return ""
}

// until waits until more jobs have been submitted, at least this number.
func (s *submitters) until(c *cluster, more int64) {
	c.Helper()
	want := s.accepted.Load() + more
	c.until("jobs are submitted", func() bool { return s.accepted.Load() >= want })
}

// lateness returns the 99th percentile of the lateness of deliveries with certain instants, and logs more.
func (c *cluster) lateness(when string, of func(instant time.Time) bool) (p99 time.Duration) {
	c.receiver.lock.Lock()
	defer c.receiver.lock.Unlock()
	var late []time.Duration
	for _, a := range c.receiver.arrivals {
		if of(a.instant) {
			late = append(late, a.at.Sub(a.instant))
		}
	}
	slices.Sort(late)
	n := len(late)
	c.Logf("%s: %d deliveries, p50 %v, p99 %v, the latest %v", when, n, late[n/2], late[n*99/100], late[n-1])
	return late[n*99/100]
}
