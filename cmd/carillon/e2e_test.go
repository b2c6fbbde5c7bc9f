//go:build services

package main_test

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// These tests run the built program, several replicas of it on one store, and end some of them as the world does.

// patience bounds every wait. Nothing is expected to take nearly as long.
const patience = 10 * time.Minute

// needed returns an environment variable that the services' script sets.
func needed(t *testing.T, name string) string {
	t.Helper()
	v := os.Getenv(name)
	if v == "" {
		t.Fatalf("%s is not set: run these tests by `make test`", name)
	}
	return v
}

// binary and benchBinary build the service and the bench, once each.
var (
	binary      = sync.OnceValues(func() (string, error) { return build("carillon") })
	benchBinary = sync.OnceValues(func() (string, error) { return build("carillon-bench") })
	builds      = sync.OnceValues(func() (string, error) { return os.MkdirTemp("", "carillon-e2e-") })
)

func build(program string) (string, error) {
	dir, err := builds()
	if err != nil {
		return "", err
	}
	// The program in bin is linked only if it is not the present one. The tests run a copy, since bin may change meanwhile.
	built, err := filepath.Abs(filepath.Join("../../bin", program))
	if err != nil {
		return "", err
	}
	if out, err := exec.Command("../../.ci/build", built).CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	// A process of its own copies it: a process that another test starts just then has this one's files for a moment, and
	// a program that someone has open for writing cannot be executed.
	path := filepath.Join(dir, program)
	if out, err := exec.Command("cp", built, path).CombinedOutput(); err != nil {
		return "", fmt.Errorf("copy: %w\n%s", err, out)
	}
	return path, nil
}

func TestMain(m *testing.M) {
	flag.Parse()
	if flag.Lookup("test.parallel").Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		_ = flag.Set("test.parallel", "8") // tests that run beside others mostly wait for instants to come
	}
	code := m.Run()
	if dir, err := builds(); err == nil {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

func TestReplicasDeliverOnce(t *testing.T) {
	inLongOnEachWay(t, func(_ *testing.T, c *cluster) {
		c.start(3, longLease...)
		for i := range 3 {
			c.put(c.replicas[i], fmt.Sprint("job-", i), 100, 4*time.Second, c.webhook(), http.StatusCreated)
		}
		for i := range 3 {
			c.finished(fmt.Sprint("job-", i))
		}
		c.expectDeliveries(300)
	})
}

// A replica that is killed loses nothing, and only the deliveries that it held come twice. History has all deliveries,
// or a gap.
func TestKill(t *testing.T) {
	onEachStoreAndWay(t, func(t *testing.T, c *cluster) {
		c.start(3)
		c.receiver.delay = 300 * time.Millisecond // so that it holds something
		c.put(c.replicas[0], "k", 300, 6*time.Second, c.webhook(), http.StatusCreated)
		c.until("deliveries come", func() bool { n, _ := c.receiver.counts(); return n > 60 })

		// Stopped first, so that its claims can be distinguished from those of the others, which are soon settled.
		victim := c.replicas[2]
		c.stall(victim)
		stalled := time.Now()
		held := c.held("k")
		time.Sleep(2 * time.Second) // longer than a callback takes, shorter than the lease
		still := c.held("k")
		if time.Since(stalled) < callbackTimeout { // later, its leases may have ended, and the numbers mean nothing
			maps.DeleteFunc(held, func(id string, _ bool) bool { return !still[id] })
		}
		victim.signal(t, syscall.SIGKILL)
		c.finished("k")

		distinct, twice := c.receiver.counts()
		if distinct != 300 {
			t.Errorf("%d of 300 were delivered", distinct)
		}
		c.cameTwice(twice, held)
		c.noDeadLetters()
		c.historyAccountsFor(c.replicas[0], "k")
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
		c.cameTwice(twice, held) // sent just before it was stopped, and never settled
	})
}

// On SIGTERM, a replica finishes the callbacks under way, claims no more, and exits with 0.
func TestTerminate(t *testing.T) {
	onEachStore(t, func(t *testing.T, c *cluster) {
		c.start(2, longLease...)
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
		c.historyIsWhatCame(c.replicas[1], "k")
	})
}

// Occurrences that a cancellation or a replacement counts as cancelled do not fire.
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
		after, _ := c.receiver.counts()
		c.finished("replaced")
		c.call(c.replicas[0], http.MethodGet, "/v1/jobs/cancelled", nil, http.StatusNotFound)

		// Long past the last of the old instants, all that could still come has come.
		end := time.Now().Add(6 * time.Second)
		c.until("the old instants have passed", func() bool { return time.Now().After(end) })
		distinct, twice := c.receiver.counts()
		if len(twice) > 0 {
			t.Errorf("%d deliveries came twice", len(twice))
		}
		// Of the cancelled job: all but the cancelled occurrences, and perhaps those in flight. Of the replaced one: the
		// deliveries before the replacement, the fifty new ones, and at most those in flight.
		most := after + 50 + held + inFlight
		if distinct > most {
			t.Errorf("%d deliveries; at most %d could be, as %d were in flight and %d cancelled", distinct, most, held+inFlight, cancelled)
		}
		if distinct < before+50 {
			t.Errorf("%d deliveries; at least the %d before the replacement and 50 after it should be", distinct, before)
		}
	})
}

// A broker that is restarted in the middle costs no message and no attempt. One restart does for all stores.
func TestBrokerRestart(t *testing.T) {
	t.Parallel()
	brokerURL, control := theBroker(t)
	queue := func(s freshStore) string { return "e2e-" + s.name }
	callback := func(s freshStore) any {
		return map[string]any{"type": "rabbitmq", "data": map[string]any{"queue": queue(s), "payload": map[string]any{"n": 1}}}
	}
	clusters := make([]*cluster, len(stores))
	for i, s := range stores {
		declare(t, brokerURL, queue(s))
		clusters[i] = s.cluster(t)
		clusters[i].start(2, "--rabbitmq-url="+brokerURL)
	}
	for i, s := range stores {
		clusters[i].put(clusters[i].replicas[0], "k", 200, 5*time.Second, callback(s), http.StatusCreated)
	}
	for i, s := range stores {
		clusters[i].until("messages come", func() bool { return length(t, brokerURL, queue(s)) > 40 })
	}
	ctl(t, control, "stop")
	for i, s := range stores {
		clusters[i].put(clusters[i].replicas[1], "late", 20, time.Second, callback(s), http.StatusCreated)
	}
	time.Sleep(2 * time.Second) // an outage that takes a while
	ctl(t, control, "start")
	for i, s := range stores {
		t.Run(s.name, func(t *testing.T) {
			c := clusters[i]
			c.T = t
			for _, key := range []string{"k", "late"} {
				c.finished(key)
			}
			c.noDeadLetters()
			attempts := map[string]int{}
			for _, m := range drain(t, brokerURL, queue(s)) {
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
}

// theBroker returns the broker's address and the program that acts on it. Until the test ends, no other has it.
func theBroker(t *testing.T) (url, control string) {
	t.Helper()
	broker.Lock()
	t.Cleanup(broker.Unlock)
	return needed(t, "CARILLON_TEST_RABBITMQ_URL"), needed(t, "CARILLON_TEST_RABBITMQ_CTL")
}

// broker is held by a test that uses the broker, beside others that do not.
var broker sync.Mutex

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
