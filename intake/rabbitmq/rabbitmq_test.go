//go:build services

package rabbitmq_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	amqp "github.com/rabbitmq/amqp091-go"

	sending "github.com/carillon-scheduler/carillon/callbacks/rabbitmq"
	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/intake"
	"github.com/carillon-scheduler/carillon/intake/rabbitmq"
	"github.com/carillon-scheduler/carillon/job"
)

// patience turns a hanging test into a failing one.
const patience = 5 * time.Minute

func variable(t testing.TB, name string) string {
	t.Helper()
	value := os.Getenv(name)
	if value == "" {
		t.Fatalf("%s is not set; run the tests by .ci/with-services", name)
	}
	return value
}

// ctl acts on the broker and returns when that is done.
func ctl(t *testing.T, verb string) {
	t.Helper()
	if out, err := exec.Command(variable(t, "CARILLON_TEST_RABBITMQ_CTL"), verb).CombinedOutput(); err != nil {
		t.Fatalf("%s the broker: %v\n%s", verb, err, out)
	}
}

// office is a queue, and an API that notes the submissions from it.
type office struct {
	*testing.T
	queue string
	conn  *amqp.Connection
	ch    *amqp.Channel

	mu       sync.Mutex
	keys     []string       // in the order in which they were stored
	count    map[string]int // how often each was stored
	identity map[string]string
	down     bool
	refused  int           // requests while the store was down
	released chan struct{} // closed when requests may continue; nil while they need not wait
	waited   int           // requests that had to wait
}

func newOffice(t *testing.T) *office {
	o := &office{T: t, queue: "carillon-intake-" + job.NewToken(), count: map[string]int{}, identity: map[string]string{}}
	o.connect()
	t.Cleanup(func() {
		o.connect()
		for _, queue := range []string{o.queue, rabbitmq.DeadLetters(o.queue)} {
			if _, err := o.ch.QueueDelete(queue, false, false, false); err != nil {
				t.Error(err)
			}
		}
		_ = o.conn.Close()
	})
	return o
}

func (o *office) connect() {
	o.Helper()
	if o.conn != nil && !o.conn.IsClosed() {
		return
	}
	var err error
	if o.conn, err = amqp.Dial(variable(o, "CARILLON_TEST_RABBITMQ_URL")); err != nil {
		o.Fatal(err)
	}
	if o.ch, err = o.conn.Channel(); err != nil {
		o.Fatal(err)
	}
	if err := o.ch.Confirm(false); err != nil {
		o.Fatal(err)
	}
}

// ServeHTTP stores puts by their keys; a job with the key "bad" is invalid.
func (o *office) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	released := o.released
	if released != nil {
		o.waited++
	}
	o.mu.Unlock()
	if released != nil {
		<-released
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.down {
		o.refused++
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	from, lines := handlers.InsideOf(r.Context()), json.NewDecoder(r.Body)
	for i := 0; lines.More(); i++ {
		var body struct{ Key string }
		if err := lines.Decode(&body); err != nil {
			o.Error(err)
		}
		if body.Key == "bad" {
			fmt.Fprintf(w, `{"index":%d,"status":422,"title":"Unprocessable Entity","detail":"bad"}`+"\n", i)
			continue
		}
		if o.count[body.Key]++; o.count[body.Key] == 1 {
			o.keys = append(o.keys, body.Key)
		}
		o.identity[body.Key] = from.Items[i].Identity
		fmt.Fprintf(w, `{"index":%d,"status":201}`+"\n", i)
	}
}

// source starts to consume. It ends with the function that it returns, or with the test.
func (o *office) source(group int) (door *intake.Door, stop func()) {
	o.Helper()
	dialer, err := (&sending.Options{URL: variable(o, "CARILLON_TEST_RABBITMQ_URL")}).Dialer()
	if err != nil {
		o.Fatal(err)
	}
	return o.sourceBy(group, func(ctx context.Context) (*amqp.Connection, error) { return dialer.Connect(ctx, "test") })
}

// sourceBy is source with connections that the test makes.
func (o *office) sourceBy(
	group int, connect func(ctx context.Context) (*amqp.Connection, error)) (door *intake.Door, stop func()) {
	o.Helper()
	door = intake.NewDoor(intake.Config{
		API: o, Source: "queue " + o.queue, Tenant: "acme", Patience: time.Minute, Metrics: intake.NewMetrics(prometheus.NewRegistry()),
		Logger: slog.New(slog.NewTextHandler(o.Output(), nil)),
	})
	source := rabbitmq.New(rabbitmq.Config{
		Connect: connect, Queue: o.queue, Door: door, Group: group,
		MayReply: func(queue string) bool { return !strings.HasPrefix(queue, "private") },
	})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { source.Run(ctx) })
	stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	o.Cleanup(stop)
	return door, stop
}

func (o *office) until(what string, is func() bool) {
	o.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			o.Fatalf("it never is so that %s", what)
		}
	}
}

func (o *office) consuming(door *intake.Door) {
	o.Helper()
	o.until("it consumes", func() bool { return door.Problem() == "" })
}

// publish publishes jobs with keys, and waits until the broker has them.
func (o *office) publish(keys ...string) {
	o.Helper()
	o.connect()
	var confirms []*amqp.DeferredConfirmation
	for _, key := range keys {
		confirm, err := o.ch.PublishWithDeferredConfirm("", o.queue, true, false, amqp.Publishing{
			DeliveryMode: amqp.Persistent, Body: fmt.Appendf(nil, `{"key":%q}`, key), MessageId: "id of " + key,
		})
		if err != nil {
			o.Fatal(err)
		}
		confirms = append(confirms, confirm)
	}
	for _, c := range confirms {
		if !c.Wait() {
			o.Fatal("the broker refuses a message")
		}
	}
}

func (o *office) stored() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.keys)
}

func (o *office) waitedSoFar() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.waited
}

func (o *office) refusedSoFar() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.refused
}

func (o *office) ready() int {
	o.Helper()
	o.connect()
	q, err := o.ch.QueueDeclarePassive(o.queue, true, false, false, false, nil)
	if err != nil {
		o.Fatal(err)
	}
	return q.Messages
}

func keys(prefix string, n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprint(prefix, i))
	}
	return all
}

// ordered checks that all keys were stored, in order.
func (o *office) ordered(want []string) {
	o.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if fmt.Sprint(o.keys) != fmt.Sprint(want) {
		o.Errorf("%d of %d messages were stored, or in another order", len(o.keys), len(want))
	}
}

// TestStored: messages are stored in order, and acknowledged.
func TestStored(t *testing.T) {
	o := newOffice(t)
	door, stop := o.source(0)
	o.consuming(door)
	want := keys("k", 3000)
	o.publish(want...)
	o.until("all are stored", func() bool { return o.stored() == len(want) })
	stop()
	o.ordered(want)
	if n := o.ready(); n != 0 {
		t.Errorf("%d messages are still in the queue", n)
	}
	for key, n := range o.count {
		if n > 1 {
			t.Errorf("%s was stored %d times", key, n)
		}
		if o.identity[key] != door.Source+" id of "+key {
			t.Errorf("%s has the identity %q", key, o.identity[key])
		}
	}
}

// TestBrokerRestart: a broker that is restarted in between loses nothing, and repeated messages come in order.
func TestBrokerRestart(t *testing.T) {
	o := newOffice(t)
	door, stop := o.source(100)
	o.consuming(door)
	want := keys("before", 500)
	o.publish(want...)
	o.until("some are stored", func() bool { return o.stored() > 0 })
	ctl(t, "stop")
	o.until("it notices", func() bool { return door.Problem() != "" })
	ctl(t, "start")
	o.consuming(door)
	after := keys("after", 500)
	o.publish(after...)
	want = append(want, after...)
	o.until("all are stored", func() bool { return o.stored() == len(want) })
	o.ordered(want)
	stop()
	if n := o.ready(); n != 0 {
		t.Errorf("%d messages are still in the queue", n)
	}
}

// TestOneConsumer: of two sources, one consumes, and the other takes over, also where the user declared an ordinary queue
// without a single active consumer. So the messages stay in order.
func TestOneConsumer(t *testing.T) {
	for name, arguments := range map[string]amqp.Table{
		"ordinary": nil, "single active consumer": {amqp.SingleActiveConsumerArg: true},
		"quorum": {amqp.QueueTypeArg: amqp.QueueTypeQuorum, amqp.SingleActiveConsumerArg: true},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOffice(t)
			o.connect()
			if _, err := o.ch.QueueDeclare(o.queue, true, false, false, false, arguments); err != nil {
				t.Fatal(err)
			}
			first, stop := o.source(10)
			o.consuming(first)
			second, _ := o.source(10)
			o.consuming(second)
			want := keys("before", 500)
			o.publish(want...)
			o.until("all are stored", func() bool { return o.stored() == len(want) })
			o.ordered(want)
			stop()
			after := keys("after", 500)
			o.publish(after...)
			want = append(want, after...)
			o.until("all are stored", func() bool { return o.stored() == len(want) })
			o.ordered(want)
		})
	}
}

// watched is a connection of a source, which tells of what the broker sends before the source sees it.
type watched struct {
	net.Conn
	sees func(sent []byte)
}

func (w *watched) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	w.sees(b[:n])
	return n, err
}

// TestJoin: a source is the only consumer of an ordinary queue even if the other one ends while it asks to be one. It
// consumes beside the consumer of another program that lets others in.
func TestJoin(t *testing.T) {
	refusal, counted := []byte("exclusive use"), []byte{0, 50, 0, 11} // the class and the method of queue.declare-ok
	for name, c := range map[string]struct {
		arguments amqp.Table
		ends      [][]byte // the other consumer ends when the broker has sent these, in order; it stays if there are none
		shared    bool     // the other consumer is not exclusive
		refused   bool     // so is another consumer, beside the source
	}{
		"it ends when the source was refused":   {ends: [][]byte{refusal}, refused: true},
		"it ends when it was counted":           {ends: [][]byte{refusal, counted}, refused: true},
		"it ends beside a single active source": {arguments: amqp.Table{amqp.SingleActiveConsumerArg: true}, ends: [][]byte{refusal, counted}, shared: true},
		"it is another program's":               {shared: true},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOffice(t)
			if _, err := o.ch.QueueDeclare(o.queue, true, false, false, false, c.arguments); err != nil {
				t.Fatal(err)
			}
			consume := func(exclusive bool) (*amqp.Channel, error) {
				ch, err := o.conn.Channel()
				if err == nil {
					_, err = ch.Consume(o.queue, "", false, exclusive, false, false, nil)
				}
				return ch, err
			}
			other, err := consume(!c.shared)
			if err != nil {
				t.Fatal(err)
			}
			ends := c.ends
			sees := func(sent []byte) {
				if len(ends) == 0 || !bytes.Contains(sent, ends[0]) {
					return
				}
				if ends = ends[1:]; len(ends) == 0 {
					if err := other.Close(); err != nil {
						t.Error(err)
					}
				}
			}
			door, _ := o.sourceBy(10, func(context.Context) (*amqp.Connection, error) {
				return amqp.DialConfig(variable(t, "CARILLON_TEST_RABBITMQ_URL"), amqp.Config{
					Dial: func(network, address string) (net.Conn, error) {
						conn, err := net.Dial(network, address)
						return &watched{conn, sees}, err
					},
				})
			})
			o.consuming(door)
			if len(c.ends) > 0 {
				want := keys("k", 20)
				o.publish(want...)
				o.until("all are stored", func() bool { return o.stored() == len(want) })
			}
			if _, err := consume(false); err != nil != c.refused {
				t.Errorf("another consumer is answered %v", err)
			}
		})
	}
}

// TestStoreDown: while the store is down, nothing is acknowledged; waiting messages outlive the source.
func TestStoreDown(t *testing.T) {
	o := newOffice(t)
	o.down = true
	door, stop := o.source(0)
	o.consuming(door)
	want := keys("k", 100)
	o.publish(want...)
	o.until("the store was asked repeatedly", func() bool { return o.refusedSoFar() > 1 })
	stop()
	if n := o.ready(); n != len(want) {
		t.Errorf("%d of %d messages are in the queue", n, len(want))
	}
	o.mu.Lock()
	o.down = false
	o.mu.Unlock()
	o.source(0)
	o.until("all are stored", func() bool { return o.stored() == len(want) })
	o.ordered(want)
}

// TestSecondConsumer: of two replicas one consumes; the other takes over, without a change of the order.
func TestSecondConsumer(t *testing.T) {
	o := newOffice(t)
	first, stopFirst := o.source(10)
	o.consuming(first)
	second, _ := o.source(10)
	o.consuming(second)
	want := keys("k", 1000)
	o.publish(want[:500]...)
	o.until("some are stored", func() bool { return o.stored() > 50 })
	stopFirst()
	o.publish(want[500:]...)
	o.until("all are stored", func() bool { return o.stored() == len(want) })
	o.ordered(want)
}

// TestStop: a source that ends while messages are being stored acknowledges them, and leaves the others.
func TestStop(t *testing.T) {
	o := newOffice(t)
	o.released = make(chan struct{})
	door, stop := o.source(5)
	o.consuming(door)
	o.publish(keys("k", 20)...)
	o.until("it holds some", func() bool { return o.ready() == 10 && o.waitedSoFar() > 0 })
	stopped := make(chan struct{})
	go func() { stop(); close(stopped) }()
	close(o.released)
	<-stopped
	if n, left := o.stored(), o.ready(); n+left != 20 || n == 0 {
		t.Errorf("%d are stored, and %d are left", n, left)
	}
}

// TestStopJoinsAll: no goroutine of a source is left when it has ended.
func TestStopJoinsAll(t *testing.T) {
	o := newOffice(t)
	buffer := make([]byte, 16<<20)
	for range 50 { // a goroutine that is not joined may have ended anyway
		door, stop := o.source(0)
		o.consuming(door)
		stop()
		for stack := range strings.SplitSeq(string(buffer[:runtime.Stack(buffer, true)]), "\n\n") {
			if frames, _, _ := strings.Cut(stack, "\ncreated by "); strings.Contains(frames, "/intake/rabbitmq.") {
				t.Fatalf("there still is\n%s", stack)
			}
		}
	}
}

// TestPutAside: a refused message goes to the dead letters with its problem, and the problem to the queue that it names,
// if the tenant may use that.
func TestPutAside(t *testing.T) {
	o := newOffice(t)
	door, _ := o.source(0)
	o.consuming(door)
	reply, err := o.ch.QueueDeclare("", false, true, true, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	private, err := o.ch.QueueDeclare("private-"+o.queue, false, true, true, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, to := range []string{reply.Name, "", private.Name, "nowhere"} {
		if err := o.ch.Publish("", o.queue, true, false, amqp.Publishing{
			Body: []byte(`{"key":"bad"}`), ReplyTo: to, MessageId: fmt.Sprint("m", i), ContentType: "application/json",
			Headers: amqp.Table{"x-mine": int32(7)}, DeliveryMode: amqp.Persistent,
		}); err != nil {
			t.Fatal(err)
		}
	}
	o.publish("good")
	o.until("all are done", func() bool { return o.stored() == 1 && o.ready() == 0 })
	var dead []amqp.Delivery
	o.until("the dead letters are there", func() bool {
		d, ok, err := o.ch.Get(rabbitmq.DeadLetters(o.queue), true)
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			dead = append(dead, d)
		}
		return len(dead) == 4
	})
	for i, d := range dead {
		var p struct{ Status int }
		problem, _ := d.Headers["carillon-problem"].(string)
		if err := json.Unmarshal([]byte(problem), &p); err != nil || p.Status != 422 || string(d.Body) != `{"key":"bad"}` ||
			d.MessageId != fmt.Sprint("m", i) || d.Headers["x-mine"] != int32(7) || d.DeliveryMode != amqp.Persistent {
			t.Errorf("the dead letter %d is %+v", i, d)
		}
	}
	var got amqp.Delivery
	o.until("the reply is there", func() (ok bool) {
		got, ok, err = o.ch.Get(reply.Name, true)
		return ok
	})
	if got.CorrelationId != "m0" || got.ContentType != intake.ProblemMedia || !strings.Contains(string(got.Body), `"status":422`) {
		t.Errorf("the reply is %+v", got)
	}
	if _, there, _ := o.ch.Get(private.Name, true); there {
		t.Error("a problem was sent to a queue that the tenant may not use")
	}
}
