//go:build services

package rabbitmq_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/callbacks/callbackstest"
	"github.com/carillon-scheduler/carillon/callbacks/rabbitmq"
	"github.com/carillon-scheduler/carillon/job"
)

func brokerURL(t testing.TB) string { return variable(t, "CARILLON_TEST_RABBITMQ_URL") }

// ctl acts on the broker and returns when that is done.
func ctl(t *testing.T, verb string) {
	t.Helper()
	if out, err := exec.Command(variable(t, "CARILLON_TEST_RABBITMQ_CTL"), verb).CombinedOutput(); err != nil {
		t.Fatalf("%s the broker: %v\n%s", verb, err, out)
	}
}

func variable(t testing.TB, name string) string {
	t.Helper()
	value := os.Getenv(name)
	if value == "" {
		t.Fatalf("%s is not set; run the tests by .ci/with-services", name)
	}
	return value
}

func newSender(t *testing.T, o rabbitmq.Options) *rabbitmq.Sender {
	t.Helper()
	if o.URL == "" {
		o.URL = brokerURL(t)
	}
	sender, err := rabbitmq.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sender.Close() })
	return sender
}

func delivery(data string) callbacks.Delivery {
	at := time.Date(2026, 12, 24, 14, 0, 0, 250e6, time.UTC)
	name := job.Name{Tenant: job.DefaultTenant, Key: "grüße " + job.NewToken()}
	return callbacks.Delivery{
		ID: job.DeliveryID(name, at, 0, ""), Name: name, Timestamp: at, Attempt: 3, SentAt: at.Add(time.Hour), Data: []byte(data),
	}
}

// deliver makes attempts as the dispatcher would, but for no failure that would cost one.
func deliver(ctx context.Context, sender callbacks.Sender, d callbacks.Delivery) error {
	for {
		err := sender.Send(ctx, d)
		failure, ok := errors.AsType[*callbacks.Failure](err)
		if !ok || !failure.Unavailable {
			return err
		}
		select {
		case <-time.After(failure.After):
		case <-ctx.Done():
			return err
		}
	}
}

// broker is a queue, and an exchange with the same name that delivers to it, with all that has been taken from there.
type broker struct {
	t    *testing.T
	name string

	mu    sync.Mutex
	conn  *amqp.Connection
	ch    *amqp.Channel
	taken map[string]amqp.Delivery // by message id
}

func newBroker(t *testing.T) *broker {
	b := &broker{t: t, name: "carillon-test-" + job.NewToken(), taken: map[string]amqp.Delivery{}}
	b.do(func(ch *amqp.Channel) error {
		if _, err := ch.QueueDeclare(b.name, true, false, false, false, nil); err != nil {
			return err
		}
		if err := ch.ExchangeDeclare(b.name, amqp.ExchangeFanout, true, false, false, false, nil); err != nil {
			return err
		}
		return ch.QueueBind(b.name, "", b.name, false, nil)
	})
	t.Cleanup(func() {
		b.do(func(ch *amqp.Channel) error {
			_, err := ch.QueueDelete(b.name, false, false, false)
			return errors.Join(err, ch.ExchangeDelete(b.name, false, false))
		})
		_ = b.conn.Close()
	})
	return b
}

// do asks something of the broker, which must be up.
func (b *broker) do(ask func(ch *amqp.Channel) error) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.connect(); err != nil {
		b.t.Fatal(err)
	}
	if err := ask(b.ch); err != nil {
		b.t.Fatal(err)
	}
}

func (b *broker) connect() (err error) {
	if b.conn == nil || b.conn.IsClosed() {
		if b.conn, err = amqp.Dial(brokerURL(b.t)); err != nil {
			return err
		}
		b.ch = nil
	}
	if b.ch == nil || b.ch.IsClosed() {
		b.ch, err = b.conn.Channel()
	}
	return err
}

// message waits until a message has come.
func (b *broker) message(ctx context.Context, t *testing.T, id job.ID) amqp.Delivery {
	t.Helper()
	for ctx.Err() == nil {
		if d, ok := b.take(id); ok {
			return d
		}
		select {
		case <-time.After(5 * time.Millisecond): // then look again
		case <-ctx.Done():
		}
	}
	t.Fatalf("message %s did not arrive", id)
	return amqp.Delivery{}
}

// take takes all there is, and answers whether some message was ever taken.
func (b *broker) take(id job.ID) (amqp.Delivery, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		if d, ok := b.taken[id.String()]; ok {
			return d, true
		}
		if b.connect() != nil {
			return amqp.Delivery{}, false
		}
		d, ok, err := b.ch.Get(b.name, true)
		if err != nil || !ok {
			return amqp.Delivery{}, false
		}
		if _, twice := b.taken[d.MessageId]; !twice {
			b.taken[d.MessageId] = d
		}
	}
}

func (b *broker) await(ctx context.Context, t *testing.T, id job.ID) callbackstest.Received {
	t.Helper()
	d := b.message(ctx, t, id)
	key, _ := d.Headers["carillon-key"].(string)
	timestamp, _ := d.Headers["carillon-timestamp"].(string)
	attempt, _ := d.Headers["carillon-attempt"].(int64)
	got := callbackstest.Received{
		ID: d.MessageId, Key: key, Timestamp: timestamp, Attempt: int(attempt), SentAt: d.Timestamp, Payload: string(d.Body),
		ContentType: d.ContentType, Tenant: callbackstest.NotTold, Step: callbackstest.NotTold, Subscriber: callbackstest.NotTold,
		Headers: map[string]string{},
	}
	if tenant, told := d.Headers["carillon-tenant"]; told {
		got.Tenant = fmt.Sprint(tenant)
	}
	if step, told := d.Headers["carillon-step"]; told {
		got.Step = fmt.Sprintf("%d", step)
	}
	if subscriber, told := d.Headers["carillon-subscriber"]; told {
		got.Subscriber = fmt.Sprint(subscriber)
	}
	for name, value := range d.Headers {
		got.Headers[name] = fmt.Sprint(value)
		switch strings.ToLower(name) {
		case "traceparent":
			got.TraceParent += fmt.Sprint(value)
		case "tracestate":
			got.TraceState += fmt.Sprint(value)
		}
	}
	return got
}

func (b *broker) attributes(ctx context.Context, t *testing.T, id job.ID) map[string]string {
	all := map[string]string{}
	for name, value := range b.message(ctx, t, id).Headers {
		if attribute, ok := strings.CutPrefix(name, "cloudEvents_"); ok {
			all[attribute] = fmt.Sprint(value)
		}
	}
	return all
}

// block makes the broker take no messages, and returns when the sender has heard so.
func (b *broker) block(t *testing.T, sender callbacks.Sender) (unblock func()) {
	ctl(t, "block")
	ctx, cancel := context.WithCancel(context.Background())
	var probe sync.WaitGroup
	probe.Go(func() { // the broker reports that it blocks only to connections that publish
		_ = sender.Send(ctx, delivery(`{"queue":"`+b.name+`","payload":"probe"}`))
	})
	for {
		err := func() error {
			short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			defer cancel()
			return sender.Send(short, delivery(`{"queue":"`+b.name+`","payload":"probe"}`))
		}()
		if err != nil && strings.Contains(err.Error(), "the broker takes no messages") { // not: its time was over
			break
		}
	}
	return sync.OnceFunc(func() {
		ctl(t, "unblock")
		cancel()
		probe.Wait()
	})
}
