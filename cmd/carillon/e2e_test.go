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
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/mongodb"
	"github.com/carillon-scheduler/carillon/store/sqlite"
)

// These tests run the built program, several replicas of it on one store, and end some of them as the world does.

// patience bounds every wait. Nothing is expected to take nearly as long.
const patience = 90 * time.Second

// needed is an environment variable that the services' script sets.
func needed(t *testing.T, name string) string {
	t.Helper()
	v := os.Getenv(name)
	if v == "" {
		t.Fatalf("%s is not set: run these tests by `make test`", name)
	}
	return v
}

// binary builds the program once.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "carillon-e2e-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "carillon")
	if out, err := exec.Command("go", "build", "-o", path, ".").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := binary(); err == nil {
		_ = os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// onEachStore runs a test on a fresh store of each kind.
func onEachStore(t *testing.T, test func(t *testing.T, c *cluster)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) {
		url := "sqlite:" + filepath.Join(t.TempDir(), "carillon.db")
		s, err := sqlite.Open(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		test(t, newCluster(t, url, s))
	})
	t.Run("mongodb", func(t *testing.T) {
		url := databaseURL(needed(t, "CARILLON_TEST_MONGODB_URI"), fmt.Sprintf("carillon_e2e_%08x", rand.Uint32()))
		s, err := mongodb.Open(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		test(t, newCluster(t, url, s))
	})
}

// databaseURL names a database in a MongoDB URI, before its options.
func databaseURL(uri, database string) string {
	base, query, _ := strings.Cut(uri, "?")
	url := strings.TrimSuffix(base, "/") + "/" + database
	if query != "" {
		url += "?" + query
	}
	return url
}

// cluster is some replicas on one store, and a webhook receiver.
type cluster struct {
	*testing.T
	url      string
	store    store.Store // to look into what the replicas share
	replicas []*replica
	receiver *receiver
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
	exited chan struct{}
	err    error // of its exit
}

// start starts n replicas with a short lease.
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
	cmd := exec.Command(path, append([]string{
		"serve", "--listen=127.0.0.1:0", "--store=" + c.url, "--log-format=json", "--tick=250ms",
		"--lease=6s", "--callback-timeout=4s", "--concurrency=16",
	}, args...)...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		c.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		c.Fatal(err)
	}
	r := &replica{cmd: cmd, exited: make(chan struct{})}
	address, log := make(chan string, 1), &tail{}
	go func() {
		defer close(r.exited)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			log.add(lines.Text())
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

func (r *replica) kill() {
	_ = r.cmd.Process.Kill() // it may have ended already
	<-r.exited
}

// call makes an API request, with headers given as names and values, and returns what it answers as JSON.
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
	status, err := c.store.Job(c.Context(), name)
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
		status, err := c.store.Job(c.Context(), name)
		if err != nil {
			c.Fatal(err)
		}
		return !status.Live
	})
}

// stall stops a replica's process, at a moment when it does not have the lock of a store that has only one: it would keep
// that, and so stall all others too.
func (c *cluster) stall(r *replica) {
	c.Helper()
	c.until("a replica could be stopped", func() bool {
		r.signal(c.T, syscall.SIGSTOP)
		ctx, cancel := context.WithTimeout(c.Context(), time.Second)
		defer cancel()
		_, err := c.store.Cancel(ctx, []job.Name{{Tenant: job.DefaultTenant, Key: "none"}}, time.Now())
		if err != nil {
			r.signal(c.T, syscall.SIGCONT)
		}
		return err == nil
	})
}

// until polls until a condition holds.
func (c *cluster) until(what string, condition func() bool) {
	c.Helper()
	for end := time.Now().Add(patience); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			c.Fatalf("gave up waiting until %s", what)
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
}

// arrival is one request that the receiver got.
type arrival struct {
	id, key, step, subscriber, body string

	instant time.Time
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
		r.arrivals = append(r.arrivals, arrival{
			id: h.Get("webhook-id"), key: h.Get("Carillon-Key"), step: h.Get("Carillon-Step"), subscriber: h.Get("Carillon-Subscriber"),
			body: string(body), instant: instant,
		})
		r.began[request.Header.Get("webhook-id")]++
		if now.Before(instant) {
			r.early++
		}
		delay := r.delay
		r.lock.Unlock()
		select {
		case <-time.After(delay):
		case <-request.Context().Done():
		}
	}))
	t.Cleanup(r.server.Close)
	return r
}

// counts are the distinct deliveries, and those that came more than once.
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

func TestReplicasDeliverOnce(t *testing.T) {
	onEachStore(t, func(_ *testing.T, c *cluster) {
		c.start(3)
		for i := range 3 {
			c.put(c.replicas[i], fmt.Sprint("job-", i), 100, 4*time.Second, c.webhook(), http.StatusCreated)
		}
		for i := range 3 {
			c.finished(fmt.Sprint("job-", i))
		}
		c.expectDeliveries(300)
	})
}

// A replica that is killed loses nothing, and nothing comes twice but what it held.
func TestKill(t *testing.T) {
	onEachStore(t, func(t *testing.T, c *cluster) {
		c.start(3)
		c.receiver.delay = 300 * time.Millisecond // so that it holds something
		c.put(c.replicas[0], "k", 300, 6*time.Second, c.webhook(), http.StatusCreated)
		c.until("deliveries come", func() bool { n, _ := c.receiver.counts(); return n > 60 })

		// Stopped first, so that what it holds can be told from what the others do: theirs is soon settled.
		victim := c.replicas[2]
		c.stall(victim)
		held := c.held("k")
		time.Sleep(2 * time.Second) // longer than a callback takes, shorter than the lease
		still := c.held("k")
		maps.DeleteFunc(held, func(id string, _ bool) bool { return !still[id] })
		victim.signal(t, syscall.SIGKILL)
		c.finished("k")

		distinct, twice := c.receiver.counts()
		if distinct != 300 {
			t.Errorf("%d of 300 were delivered", distinct)
		}
		for _, id := range twice {
			if !held[id] {
				t.Errorf("%s came twice and was not held by the replica that was killed", id)
			}
		}
		c.noDeadLetters()
	})
}

// A replica that is stopped for longer than its lease and wakes again delivers nothing that it no longer holds.
func TestStall(t *testing.T) {
	onEachStore(t, func(t *testing.T, c *cluster) {
		c.start(2)
		c.put(c.replicas[0], "k", 200, 4*time.Second, c.webhook(), http.StatusCreated)
		c.until("deliveries come", func() bool { n, _ := c.receiver.counts(); return n > 40 })
		victim := c.replicas[1]
		c.stall(victim)
		held := c.held("k")
		c.finished("k") // the other takes over, when the leases end
		victim.signal(t, syscall.SIGCONT)
		victim.signal(t, syscall.SIGTERM)
		<-victim.exited

		distinct, twice := c.receiver.counts()
		if distinct != 200 {
			t.Errorf("%d of 200 were delivered", distinct)
		}
		for _, id := range twice { // sent just before it was stopped, and never settled
			if !held[id] {
				t.Errorf("%s came twice and was not held by the replica that was stopped", id)
			}
		}
	})
}

// A replica that is told to stop ends the callbacks under way, claims no more, and exits with 0.
func TestTerminate(t *testing.T) {
	onEachStore(t, func(t *testing.T, c *cluster) {
		c.start(2)
		c.receiver.delay = time.Second
		c.put(c.replicas[0], "k", 60, 4*time.Second, c.webhook(), http.StatusCreated)
		c.until("deliveries come", func() bool { n, _ := c.receiver.counts(); return n > 10 })
		leaving := c.replicas[0]
		leaving.signal(t, syscall.SIGTERM)
		select {
		case <-leaving.exited:
		case <-time.After(patience):
			t.Fatal("it does not end")
		}
		if leaving.err != nil {
			t.Errorf("it ended with %v", leaving.err)
		}
		c.finished("k")
		c.expectDeliveries(60)
	})
}

// What a cancellation or a replacement counts as never to fire does not fire.
func TestCancelAndReplace(t *testing.T) {
	onEachStore(t, func(t *testing.T, c *cluster) {
		c.start(3)
		c.receiver.delay = 200 * time.Millisecond
		const total = 150
		for _, key := range []string{"cancelled", "replaced"} {
			c.put(c.replicas[0], key, total, 5*time.Second, c.webhook(), http.StatusCreated)
		}
		c.until("deliveries come", func() bool { n, _ := c.receiver.counts(); return n > 60 })

		answer := c.call(c.replicas[1], http.MethodDelete, "/v1/jobs/cancelled", nil, http.StatusOK)
		cancelled, inFlight := int(answer["cancelled"].(float64)), int(answer["inFlight"].(float64))
		if cancelled == 0 {
			t.Error("nothing was left to cancel: the test shows nothing")
		}
		replacement := map[string]any{"type": "http", "data": map[string]any{"url": c.receiver.server.URL + "/new", "payload": 2}}
		before, _ := c.receiver.counts()
		answer = c.put(c.replicas[2], "replaced", 50, 2*time.Second, replacement, http.StatusOK)
		held := int(answer["inFlight"].(float64))
		c.finished("replaced")
		c.call(c.replicas[0], http.MethodGet, "/v1/jobs/cancelled", nil, http.StatusNotFound)

		// Long past the last of the old instants, all that could still come has come.
		end := time.Now().Add(6 * time.Second)
		c.until("the old instants have passed", func() bool { return time.Now().After(end) })
		distinct, twice := c.receiver.counts()
		if len(twice) > 0 {
			t.Errorf("%d deliveries came twice", len(twice))
		}
		// Of the cancelled job: all but what was cancelled, and perhaps what was in flight. Of the replaced one: what had
		// come before the replacement, the fifty new ones, and at most what was in flight then.
		most := before + 50 + held + inFlight
		if distinct > most {
			t.Errorf("%d deliveries; at most %d could be, as %d were in flight and %d cancelled", distinct, most, held+inFlight, cancelled)
		}
		if distinct < before+50 {
			t.Errorf("%d deliveries; at least the %d before the replacement and 50 after it should be", distinct, before)
		}
	})
}

// A broker that is restarted in the middle costs no message and no attempt.
func TestBrokerRestart(t *testing.T) {
	brokerURL, control := needed(t, "CARILLON_TEST_RABBITMQ_URL"), needed(t, "CARILLON_TEST_RABBITMQ_CTL")
	onEachStore(t, func(t *testing.T, c *cluster) {
		queue := fmt.Sprintf("e2e-%08x", rand.Uint32())
		declare(t, brokerURL, queue)
		c.start(2, "--rabbitmq-url="+brokerURL)
		callback := map[string]any{"type": "rabbitmq", "data": map[string]any{"queue": queue, "payload": map[string]any{"n": 1}}}
		c.put(c.replicas[0], "k", 200, 5*time.Second, callback, http.StatusCreated)
		c.until("messages come", func() bool { return length(t, brokerURL, queue) > 40 })
		ctl(t, control, "stop")
		c.put(c.replicas[1], "late", 20, time.Second, callback, http.StatusCreated)
		time.Sleep(2 * time.Second) // an outage that takes a while
		ctl(t, control, "start")
		for _, key := range []string{"k", "late"} {
			c.finished(key)
		}
		c.noDeadLetters()

		attempts := map[string]int{}
		for _, m := range drain(t, brokerURL, queue) {
			if key := m.Headers["carillon-key"]; key == "k" || key == "late" {
				attempts[m.MessageId]++
			}
			if n := fmt.Sprint(m.Headers["carillon-attempt"]); n != "1" {
				t.Errorf("a message came as attempt %s: the outage was charged", n)
			}
		}
		if len(attempts) != 220 {
			t.Errorf("%d of 220 messages arrived", len(attempts))
		}
	})
}

func ctl(t *testing.T, control, action string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if out, err := exec.CommandContext(ctx, control, action).CombinedOutput(); err != nil {
		t.Fatalf("%s the broker: %v\n%s", action, err, out)
	}
}

// onBroker runs f with a channel of its own connection.
func onBroker(t *testing.T, url string, f func(ch *amqp.Channel) error) {
	t.Helper()
	connection, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	channel, err := connection.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if err := f(channel); err != nil {
		t.Fatal(err)
	}
}

func declare(t *testing.T, url, queue string) {
	t.Helper()
	onBroker(t, url, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(queue, true, false, false, false, nil)
		return err
	})
}

func length(t *testing.T, url, queue string) (n int) {
	t.Helper()
	onBroker(t, url, func(ch *amqp.Channel) error {
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		n = q.Messages
		return err
	})
	return n
}

// drain takes all that is in a queue.
func drain(t *testing.T, url, queue string) (all []amqp.Delivery) {
	t.Helper()
	onBroker(t, url, func(ch *amqp.Channel) error {
		for {
			m, ok, err := ch.Get(queue, true)
			if err != nil || !ok {
				return err
			}
			all = append(all, m)
		}
	})
	return all
}
