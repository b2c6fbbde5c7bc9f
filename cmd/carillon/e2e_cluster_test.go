//go:build services

package main_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// cluster is some replicas on one store, and a webhook receiver.
type cluster struct {
	*testing.T
	url      string
	store    store.Store // to look into the replicas' store
	replicas []*replica
	receiver *receiver
	// environment has variables for the replicas, as NAME=VALUE.
	environment []string
}

func newCluster(t *testing.T, url string, s store.Store) *cluster {
	c := &cluster{T: t, url: url, store: s, receiver: newReceiver(t)}
	t.Cleanup(func() {
		for _, r := range c.replicas {
			r.kill()
		}
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return c
}

// replica is a process.
type replica struct {
	cmd    *exec.Cmd
	url    string
	log    *tail
	exited chan struct{}
	err    error // of its exit
	// lostStore reports whether it could not write outcomes for a while, as on a busy machine. Deliveries of that time may
	// be repeated.
	lostStore atomic.Bool
}

// A dead replica's claims are taken over while a test waits, and yet no callback that goes well is cut off, and
// delivered twice, because the machine stalls for some seconds.
const lease, callbackTimeout = 20 * time.Second, 15 * time.Second

// start starts n replicas.
func (c *cluster) start(n int, args ...string) {
	c.Helper()
	for range n {
		c.replicas = append(c.replicas, c.startOne(args...))
	}
}

func (c *cluster) startOne(args ...string) *replica {
	c.Helper()
	path, err := binary()
	if err != nil {
		c.Fatal(err)
	}
	return c.startProgram(path, args...)
}

// startProgram starts a replica of a program, which may be another than the present one.
func (c *cluster) startProgram(path string, args ...string) *replica {
	c.Helper()
	cmd := exec.Command(path, append([]string{
		"serve", "--listen=127.0.0.1:0", "--store=" + c.url, "--log-format=json", "--tick=250ms",
		"--lease=" + lease.String(), "--callback-timeout=" + callbackTimeout.String(), "--concurrency=16",
	}, args...)...)
	// No test here asks for the web page, and to compress it is a third of what a start costs the processor. A program
	// from before this option would only warn of the variable.
	cmd.Env = slices.Concat(os.Environ(), []string{"CARILLON_UI=off"}, c.environment)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		c.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		c.Fatal(err)
	}
	address, log := make(chan string, 1), &tail{}
	r := &replica{cmd: cmd, log: log, exited: make(chan struct{})}
	go func() {
		defer close(r.exited)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			log.add(lines.Text())
			if strings.Contains(lines.Text(), "outcomes can't be written") {
				r.lostStore.Store(true)
			}
			var entry struct{ Msg, Address string }
			if json.Unmarshal(lines.Bytes(), &entry) == nil && entry.Msg == "serving" {
				address <- entry.Address
			}
		}
		r.err = cmd.Wait()
	}()
	c.Cleanup(func() {
		if c.Failed() {
			c.Logf("log of process %d:\n%s", cmd.Process.Pid, log)
		}
	})
	select {
	case a := <-address:
		r.url = "http://" + a
	case <-r.exited:
		c.Fatalf("a replica ended at its start: %v\n%s", r.err, log)
	case <-time.After(patience):
		c.Fatalf("a replica does not serve\n%s", log)
	}
	return r
}

// tail keeps the last lines of a log.
type tail struct {
	lock  sync.Mutex
	lines []string
}

func (t *tail) add(line string) {
	t.lock.Lock()
	defer t.lock.Unlock()
	t.lines = append(t.lines, line)
	if len(t.lines) > 40 {
		t.lines = t.lines[1:]
	}
}

func (t *tail) String() string {
	t.lock.Lock()
	defer t.lock.Unlock()
	return strings.Join(t.lines, "\n")
}

func (r *replica) signal(t *testing.T, s os.Signal) {
	t.Helper()
	if err := r.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// stopped reports whether all threads of the process are stopped.
func (r *replica) stopped() bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", r.cmd.Process.Pid))
	for _, path := range threads {
		stat, err := os.ReadFile(path)
		if err != nil {
			return false // it has ended meanwhile
		}
		_, state, _ := strings.Cut(string(stat), ") ")
		if !strings.HasPrefix(state, "T") {
			return false
		}
	}
	return len(threads) > 0
}

func (r *replica) kill() {
	_ = r.cmd.Process.Kill() // it may have ended already
	<-r.exited
}

// call makes an API request, with headers given as names and values, and returns the JSON of the answer.
func (c *cluster) call(r *replica, method, path string, body any, status int, headers ...string) map[string]any {
	c.Helper()
	content, err := json.Marshal(body)
	if err != nil {
		c.Fatal(err)
	}
	request, err := http.NewRequest(method, r.url+path, bytes.NewReader(content))
	if err != nil {
		c.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		c.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		c.Fatal(err)
	}
	if response.StatusCode != status {
		c.Fatalf("%s %s: %s, want %d\n%s", method, path, response.Status, status, answer)
	}
	var v map[string]any
	if err := json.Unmarshal(answer, &v); err != nil {
		c.Fatalf("%s %s: %v\n%s", method, path, err, answer)
	}
	return v
}

// put submits a job with n instants, evenly over a time that begins soon.
func (c *cluster) put(r *replica, key string, n int, over time.Duration, callback any, status int) map[string]any {
	c.Helper()
	first := time.Now().Add(500 * time.Millisecond)
	schedules := make([]string, n)
	for i := range schedules {
		schedules[i] = first.Add(over * time.Duration(i) / time.Duration(n)).UTC().Format(time.RFC3339Nano)
	}
	return c.call(r, http.MethodPut, "/v1/jobs/"+key, map[string]any{"schedules": schedules, "callback": callback}, status)
}

func (c *cluster) webhook() map[string]any {
	return map[string]any{"type": "http", "data": map[string]any{"url": c.receiver.server.URL, "payload": 1}}
}

// held lists the delivery ids of a job's occurrences that are claimed.
func (c *cluster) held(key string) map[string]bool {
	c.Helper()
	name := job.Name{Tenant: job.DefaultTenant, Key: key}
	status, err := store.ReadJob(c.Context(), c.store, name)
	if err != nil {
		c.Fatal(err)
	}
	page, _, err := c.store.Occurrences(c.Context(), store.OccurrenceFilter{Name: name, Revision: status.Revision, Limit: 1000})
	if err != nil {
		c.Fatal(err)
	}
	held := map[string]bool{}
	for _, o := range page {
		if o.Token != "" {
			held[o.DeliveryID().String()] = true
		}
	}
	return held
}

// finished waits until nothing of a job is pending.
func (c *cluster) finished(key string) {
	c.Helper()
	name := job.Name{Tenant: job.DefaultTenant, Key: key}
	c.until("job "+key+" has finished", func() bool {
		status, err := store.ReadJob(c.Context(), c.store, name)
		if err != nil {
			c.Fatal(err)
		}
		return !status.Live()
	})
}

// stall stops a replica's process, at a moment when it does not have the lock of a store that has only one: it would
// keep that, and so stall all others too.
func (c *cluster) stall(r *replica) {
	c.Helper()
	c.until("a replica could be stopped", func() bool {
		r.signal(c.T, syscall.SIGSTOP)
		c.until("it is stopped", r.stopped) // on a busy machine it may run on for a while
		ctx, cancel := context.WithTimeout(c.Context(), time.Second)
		defer cancel()
		_, err := c.store.Cancel(ctx, []job.Name{{Tenant: job.DefaultTenant, Key: "none"}}, store.Asked{Now: time.Now()})
		if err != nil {
			r.signal(c.T, syscall.SIGCONT)
		}
		return err == nil
	})
}

// until polls until a condition holds.
func (c *cluster) until(what string, condition func() bool) {
	c.Helper()
	await(c.T, what, condition)
}

// await polls until a condition holds. A condition that takes longer to find out, as one that reads a store, is asked
// less often, so that it keeps nothing busy: under the race detector, a job of some hundred instants is read in
// milliseconds.
func await(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		asked := time.Now()
		if condition() {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("gave up waiting until %s", what)
		}
		time.Sleep(min(max(30*time.Millisecond, 100*time.Since(asked)), 500*time.Millisecond))
	}
}

// cameTwice expects of deliveries that came twice that they were held by a replica that was stopped, or were settled too
// late by one that lost the store.
func (c *cluster) cameTwice(twice []string, held map[string]bool) {
	c.Helper()
	lost := slices.ContainsFunc(c.replicas, func(r *replica) bool { return r.lostStore.Load() })
	for _, id := range twice {
		switch {
		case held[id]:
		case lost:
			c.Logf("%s came twice; a replica could not write outcomes for a while", id)
		default:
			c.Errorf("%s came twice and was not held by the replica that was stopped", id)
		}
	}
}

func (c *cluster) noDeadLetters() {
	c.Helper()
	dead, err := c.store.DeadLetters(c.Context(), store.DeadLetterFilter{Tenant: job.DefaultTenant, Limit: 10})
	if err != nil {
		c.Fatal(err)
	}
	if len(dead) > 0 {
		c.Errorf("%d dead letters, the first for %q", len(dead), dead[0].LastError)
	}
}

// receiver is a webhook that counts deliveries by their id.
type receiver struct {
	server   *httptest.Server
	lock     sync.Mutex
	began    map[string]int // requests by delivery id
	arrivals []arrival      // the requests, in order
	early    int
	delay    time.Duration
	// arrived, if it is set, is called with each request before it is answered.
	arrived func(a arrival)
}

// arrival is one request that the receiver got.
type arrival struct {
	id, key, step, subscriber, body, attempt string

	instant, at time.Time
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{began: map[string]int{}}
	r.server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, request *http.Request) {
		now := time.Now()
		instant, err := time.Parse(time.RFC3339, request.Header.Get("Carillon-Timestamp"))
		if err != nil {
			t.Errorf("instant of a delivery: %v", err)
		}
		body, err := io.ReadAll(request.Body)
		if err != nil {
			return // it was cut off, and comes again
		}
		h := request.Header
		r.lock.Lock()
		a := arrival{
			id: h.Get("webhook-id"), key: h.Get("Carillon-Key"), step: h.Get("Carillon-Step"), subscriber: h.Get("Carillon-Subscriber"),
			body: string(body), instant: instant, attempt: h.Get("Carillon-Attempt"), at: now,
		}
		r.arrivals = append(r.arrivals, a)
		r.began[request.Header.Get("webhook-id")]++
		if now.Before(instant) {
			r.early++
		}
		delay, arrived := r.delay, r.arrived
		r.lock.Unlock()
		if arrived != nil {
			arrived(a)
		}
		select {
		case <-time.After(delay):
		case <-request.Context().Done():
		}
	}))
	t.Cleanup(r.server.Close)
	return r
}

// counts returns the distinct deliveries, and those that came more than once.
func (r *receiver) counts() (distinct int, twice []string) {
	r.lock.Lock()
	defer r.lock.Unlock()
	for id, n := range r.began {
		if n > 1 {
			twice = append(twice, id)
		}
	}
	return len(r.began), twice
}

// historyIsWhatCame waits until the history of the only job has an entry for each delivery that the receiver got,
// delivered at its first attempt, and otherwise only the job's creation.
func (c *cluster) historyIsWhatCame(r *replica, key string) {
	c.Helper()
	var items []any
	told := func() map[string]bool {
		all := make(map[string]bool)
		items, _ = c.call(r, http.MethodGet, "/v1/jobs/"+key+"/history?limit=1000", nil, http.StatusOK)["items"].([]any)
		for _, item := range items {
			if e, _ := item.(map[string]any); e["outcome"] == "delivered" && e["attempt"] == 1.0 {
				all[fmt.Sprint(e["deliveryId"])] = true
			}
		}
		return all
	}
	came := func() map[string]bool {
		c.receiver.lock.Lock()
		defer c.receiver.lock.Unlock()
		all := make(map[string]bool)
		for id := range c.receiver.began {
			all[id] = true
		}
		return all
	}
	c.until("history tells of each delivery", func() bool { return maps.Equal(told(), came()) })
	if len(items) != len(came())+1 {
		c.Errorf("history has %d entries, of %d deliveries and one creation", len(items), len(came()))
	}
}

// historyAccountsFor waits until the history of a job accounts for all deliveries that the receiver got, after a
// replica was killed: by an entry of the same attempt, whose end may be unknown, or by a gap shortly before the death.
// It must have no delivery that the receiver did not get.
func (c *cluster) historyAccountsFor(r *replica, key string) {
	c.Helper()
	var unaccounted []string
	unknown, missing := 0, 0
	look := func() bool {
		answer := c.call(r, http.MethodGet, "/v1/jobs/"+key+"/history?limit=1000", nil, http.StatusOK)
		told := make(map[string]string)
		items, _ := answer["items"].([]any)
		for _, item := range items {
			if e, _ := item.(map[string]any); e["outcome"] != nil {
				told[fmt.Sprintf("%v #%v", e["deliveryId"], e["attempt"])] = e["outcome"].(string)
			}
		}
		from, _ := time.Parse(time.RFC3339, fmt.Sprint(answer["missingFrom"]))
		until, _ := time.Parse(time.RFC3339, fmt.Sprint(answer["missingUntil"]))
		unaccounted, unknown, missing = nil, 0, 0
		c.receiver.lock.Lock()
		defer c.receiver.lock.Unlock()
		for _, a := range c.receiver.arrivals {
			attempt := a.id + " #" + a.attempt
			switch outcome, is := told[attempt]; {
			case outcome == "unknown":
				unknown++
			case is:
			case answer["incomplete"] == true && a.at.After(from) && a.at.Before(until):
				missing++
			default:
				unaccounted = append(unaccounted, attempt)
			}
			delete(told, attempt)
		}
		for attempt, outcome := range told {
			if outcome != "unknown" { // it may have been claimed and not been sent
				unaccounted = append(unaccounted, attempt+", which did not come")
			}
		}
		return answer["incomplete"] == true && unaccounted == nil
	}
	for end := time.Now().Add(2 * time.Minute); !look(); time.Sleep(500 * time.Millisecond) {
		if time.Now().After(end) {
			c.Fatalf("history does not account for these attempts, or does not say that it is incomplete: %q", unaccounted)
		}
	}
	c.Logf("history: %d attempts are unknown, %d may be missing", unknown, missing)
}

func (c *cluster) expectDeliveries(want int) {
	c.Helper()
	distinct, twice := c.receiver.counts()
	if distinct != want || len(twice) > 0 {
		c.Errorf("%d deliveries, %d of them more than once; want %d, each once", distinct, len(twice), want)
	}
	if c.receiver.early > 0 {
		c.Errorf("%d deliveries were early", c.receiver.early)
	}
	c.noDeadLetters()
}
