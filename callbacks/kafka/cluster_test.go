package kafka_test

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/callbacks/callbackstest"
	"github.com/carillon-scheduler/carillon/callbacks/kafka"
	"github.com/carillon-scheduler/carillon/callbacks/kafka/testcluster"
	"github.com/carillon-scheduler/carillon/job"
)

const (
	username, password = "carillon", "pass%word,s3cret"
	// inbox is a topic that there always is, with three partitions.
	inbox = "carillon.inbox"
	// largest is the maximum number of bytes in a batch that the brokers take.
	largest = 300_000
)

// cluster is a fake of Kafka in this process, which asks for SASL PLAIN and can be stopped and started, and a consumer
// that notes all that arrives in the inbox.
type cluster struct {
	t        *testing.T
	kafka    *testcluster.Cluster
	consumer *kgo.Client

	mu      sync.Mutex
	taken   map[string]*kgo.Record // by delivery id, the first
	count   int                    // of all records
	changed chan struct{}          // closed and replaced at each change
}

func newCluster(t *testing.T, opts ...kfake.Opt) *cluster {
	c := &cluster{
		t: t,
		kafka: testcluster.Start(t, append([]kfake.Opt{
			kfake.SeedTopics(3, inbox),
			kfake.EnableSASL(),
			kfake.Superuser("PLAIN", username, password),
			kfake.BrokerConfigs(map[string]string{"message.max.bytes": strconv.Itoa(largest)}),
		}, opts...)...),
		taken:   map[string]*kgo.Record{},
		changed: make(chan struct{}),
	}
	c.consumer = c.client(kgo.ConsumeTopics(inbox), kgo.MetadataMinAge(50*time.Millisecond))
	var consuming sync.WaitGroup
	consuming.Go(c.consume)
	t.Cleanup(func() {
		c.consumer.Close()
		consuming.Wait()
	})
	return c
}

// client returns a client that is not under test.
func (c *cluster) client(opts ...kgo.Opt) *kgo.Client {
	c.t.Helper()
	client, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(c.kafka.ListenAddrs()...),
		kgo.SASL(plain.Auth{User: username, Pass: password}.AsMechanism()),
	}, opts...)...)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(client.Close)
	return client
}

func (c *cluster) consume() {
	for {
		fetches := c.consumer.PollFetches(context.Background())
		if fetches.IsClientClosed() {
			return
		}
		c.mu.Lock()
		fetches.EachRecord(func(r *kgo.Record) {
			c.count++
			id := header(r, "carillon-id")
			if _, twice := c.taken[id]; !twice {
				c.taken[id] = r
			}
		})
		close(c.changed)
		c.changed = make(chan struct{})
		c.mu.Unlock()
	}
}

// has reports whether a delivery has arrived.
func (c *cluster) has(id job.ID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.taken[id.String()] != nil
}

// record waits until a delivery has arrived.
func (c *cluster) record(ctx context.Context, t *testing.T, id job.ID) *kgo.Record {
	t.Helper()
	for {
		c.mu.Lock()
		r, changed := c.taken[id.String()], c.changed
		c.mu.Unlock()
		if r != nil {
			return r
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("delivery %s did not arrive", id)
		}
	}
}

func (c *cluster) await(ctx context.Context, t *testing.T, id job.ID) callbackstest.Received {
	t.Helper()
	r := c.record(ctx, t, id)
	attempt, _ := strconv.Atoi(header(r, "carillon-attempt"))
	got := callbackstest.Received{
		ID: header(r, "carillon-id"), Key: header(r, "carillon-key"), Timestamp: header(r, "carillon-timestamp"), Attempt: attempt,
		SentAt: r.Timestamp.Truncate(time.Second), Payload: string(r.Value), ContentType: header(r, "content-type"),
		Tenant: callbackstest.NotTold, Step: callbackstest.NotTold, Subscriber: callbackstest.NotTold,
		Headers: headers(r),
	}
	all := headers(r)
	if tenant, told := all["carillon-tenant"]; told {
		got.Tenant = tenant
	}
	if step, told := all["carillon-step"]; told {
		got.Step = step
	}
	if subscriber, told := all["carillon-subscriber"]; told {
		got.Subscriber = subscriber
	}
	for name, value := range all {
		switch strings.ToLower(name) {
		case "traceparent":
			got.TraceParent += value
		case "tracestate":
			got.TraceState += value
		}
	}
	return got
}

func (c *cluster) attributes(ctx context.Context, t *testing.T, id job.ID) map[string]string {
	all := headers(c.record(ctx, t, id))
	maps.DeleteFunc(all, func(name, _ string) bool { return !strings.HasPrefix(name, "ce_") })
	found := map[string]string{}
	for name, value := range all {
		found[strings.TrimPrefix(name, "ce_")] = value
	}
	return found
}

// headers returns the headers of a record by their names, with a note if one is repeated.
func headers(r *kgo.Record) map[string]string {
	all := map[string]string{}
	for _, h := range r.Headers {
		if _, twice := all[h.Key]; twice {
			all[h.Key] = "(more than once)"
		} else {
			all[h.Key] = string(h.Value)
		}
	}
	return all
}

func header(r *kgo.Record, name string) string { return headers(r)[name] }

// fault has the brokers answer requests with an error until it is removed, for a topic or, if that is empty, for all.
func (c *cluster) fault(key kmsg.Key, topic string, err *kerr.Error) *kfake.FaultHandle {
	return c.kafka.Fault(kfake.Fault{Keys: []kmsg.Key{key}, Topic: topic, Err: err, Count: -1})
}

// cut has the brokers close the connection at each request of a kind, before they do anything. The channel signals the
// first.
func (c *cluster) cut(key kmsg.Key) (first <-chan struct{}, mend func()) {
	return c.intercept(key, func() (kmsg.Response, error, bool) { return nil, errors.New("cut"), true })
}

// hang has the brokers keep records waiting. The channel signals the first.
func (c *cluster) hang() (first <-chan struct{}, resume func()) {
	gate := make(chan struct{})
	k := c.kafka
	first, mend := c.intercept(kmsg.Produce, func() (kmsg.Response, error, bool) {
		k.SleepControl(func() { <-gate })
		return nil, nil, false
	})
	return first, sync.OnceFunc(func() {
		mend()
		close(gate)
	})
}

func (c *cluster) intercept(key kmsg.Key, act func() (kmsg.Response, error, bool)) (first <-chan struct{}, end func()) {
	came, over := make(chan struct{}), make(chan struct{})
	came1 := sync.OnceFunc(func() { close(came) })
	k := c.kafka
	k.ControlKey(key.Int16(), func(kmsg.Request) (kmsg.Response, error, bool) { //nolint:revive // kfake's order
		select {
		case <-over:
			k.DropControl()
			return nil, nil, false
		default:
		}
		k.KeepControl()
		came1()
		return act()
	})
	return came, sync.OnceFunc(func() { close(over) })
}

// ask makes a request of the cluster that must succeed.
func ask[R kmsg.Response](ctx context.Context, t *testing.T, client *kgo.Client, req kmsg.Request) R {
	t.Helper()
	resp, err := client.Request(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	return resp.(R)
}

func (c *cluster) options() kafka.Options {
	return kafka.Options{Brokers: c.kafka.ListenAddrs(), Mechanism: "PLAIN", Username: username, Password: password}
}

func (c *cluster) sender() *kafka.Sender { return newSender(c.t, c.options()) }

func newSender(t testing.TB, o kafka.Options) *kafka.Sender {
	t.Helper()
	if testing.Verbose() {
		o.Logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	sender, err := kafka.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sender.Close(); err != nil {
			t.Error(err)
		}
	})
	return sender
}

// data returns callback data with a payload and other members, to the inbox unless they say otherwise.
func data(members string) string {
	if !strings.Contains(members, `"topic"`) {
		members = `"topic":"` + inbox + `",` + members
	}
	return "{" + strings.TrimSuffix(members, ",") + `,"payload":1}`
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

// patience turns a hanging test into a failing one.
const patience = 10 * time.Minute

func limited(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}
