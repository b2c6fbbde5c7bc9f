package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// limit measures the bound of a drain with one callback type.
type limit interface {
	// Run returns the number of the work's occurrences that the bare client handles in a second.
	Run(ctx context.Context, w *Work) (perSecond float64, err error)
	// Target is the destination of the work's callbacks.
	Target() string
	// About describes the bare client.
	About() string
	// Goal is the goal for Carillon's ratio to it; nil for none.
	Goal() *goal
	Close(ctx context.Context) error
}

// openLimit opens the bare client of the callback type, or of the store if callbacks cost nothing.
func (b *Bench) openLimit(ctx context.Context) (limit, error) {
	switch b.Callback {
	case "http":
		var url string
		if _, err := b.startPart(ctx, receiverRole, ReceiverOptions{}, &url); err != nil {
			return nil, err
		}
		return &httpLimit{url, min(b.Concurrency, 256)}, nil
	case "rabbitmq":
		return openRabbitmqLimit(b.RabbitmqURL)
	case "kafka":
		return openKafkaLimit(ctx, b.KafkaBrokers)
	default:
		return &storeLimit{b.Store}, nil
	}
}

// storeLimit claims and deletes with the store's bare client.
type storeLimit struct{ url string }

// Run drains one half of the work with one worker and the other with two, and returns the better rate. For a store with
// a single writer, it drains all with one worker.
func (l *storeLimit) Run(ctx context.Context, w *Work) (best float64, err error) {
	raw, err := openRaw(ctx, l.url)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, raw.Close(context.WithoutCancel(ctx))) }()
	workers := []int{1, 2}
	if storeKind(l.url) == "sqlite" {
		workers = workers[:1]
	}
	for i, n := range workers {
		part := *w
		part.Count = w.Count / len(workers)
		part.From = w.From + i*part.Count
		if err := upsertBy(ctx, raw, &part, 1); err != nil {
			return 0, err
		}
		start := time.Now()
		done, err := drainBy(ctx, raw, n)
		if err != nil {
			return 0, err
		}
		if done != part.Count {
			return 0, fmt.Errorf("it drained %d of %d", done, part.Count)
		}
		best = max(best, float64(done)/time.Since(start).Seconds())
	}
	return best, nil
}

func (l *storeLimit) Target() string { return "" }

func (l *storeLimit) About() string {
	return "the store's own client claims 1,000 occurrences by one write, reading their ids only, and deletes them by " +
		"another, with one worker or two, whichever is faster; the rows and the indexes are the store's"
}

func (l *storeLimit) Goal() *goal { return ratioOf(0.5) }

func (l *storeLimit) Close(context.Context) error { return nil }

// httpLimit is a bare HTTP client.
type httpLimit struct {
	url         string
	connections int
}

func (l *httpLimit) Run(ctx context.Context, w *Work) (float64, error) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: l.connections, DisableCompression: true}}
	defer client.CloseIdleConnections()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	start := time.Now()
	var all sync.WaitGroup
	for range l.connections {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < w.Count && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				if err := post(ctx, client, l.url, w.appendPayload(nil, i)); err != nil {
					cancel(err)
				}
			}
		})
	}
	all.Wait()
	return float64(w.Count) / time.Since(start).Seconds(), context.Cause(ctx)
}

func post(ctx context.Context, client *http.Client, url string, body []byte) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode >= 300 {
		return errors.New(response.Status)
	}
	_, err = io.Copy(io.Discard, response.Body)
	return err
}

func (l *httpLimit) Target() string { return l.url }

func (l *httpLimit) About() string {
	return fmt.Sprintf("net/http posts the same payloads to the same receiver, on %d connections", l.connections)
}

func (l *httpLimit) Goal() *goal { return ratioOf(0.6) }

func (l *httpLimit) Close(context.Context) error { return nil }

// benchQueue is the queue or topic of the callbacks.
const benchQueue = "carillon-bench"

// rabbitmqLimit is a bare publisher.
type rabbitmqLimit struct {
	conn *amqp.Connection
	ch   *amqp.Channel // to declare and purge the queue
}

func openRabbitmqLimit(url string) (*rabbitmqLimit, error) {
	conn, err := amqp.Dial(url)
	if err != nil {
		return nil, fmt.Errorf("--rabbitmq-url: %w", err)
	}
	ch, err := conn.Channel()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if _, err = ch.QueueDeclare(benchQueue, true, false, false, false, nil); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &rabbitmqLimit{conn, ch}, nil
}

func (l *rabbitmqLimit) Run(_ context.Context, w *Work) (float64, error) {
	if _, err := l.ch.QueuePurge(benchQueue, false); err != nil { // messages of the last round
		return 0, err
	}
	ch, err := l.conn.Channel()
	if err != nil {
		return 0, err
	}
	defer func() { _ = ch.Close() }()
	if err := ch.Confirm(false); err != nil {
		return 0, err
	}
	start := time.Now()
	window := make(chan *amqp.DeferredConfirmation, 1000)
	refused := make(chan bool, 1)
	go func() {
		one := false
		for c := range window {
			one = !c.Wait() || one
		}
		refused <- one
	}()
	for i := 0; i < w.Count && err == nil; i++ {
		var c *amqp.DeferredConfirmation
		c, err = ch.PublishWithDeferredConfirm("", benchQueue, true, false, amqp.Publishing{
			DeliveryMode: amqp.Persistent, ContentType: "application/json", Body: w.appendPayload(nil, i)})
		if err == nil {
			window <- c
		}
	}
	close(window)
	if <-refused {
		err = errors.Join(err, errors.New("the broker has refused a message"))
	}
	took := time.Since(start)
	_, purged := l.ch.QueuePurge(benchQueue, false)
	return float64(w.Count) / took.Seconds(), errors.Join(err, purged)
}

func (l *rabbitmqLimit) Target() string { return benchQueue }

func (l *rabbitmqLimit) About() string {
	return "amqp091-go publishes the same payloads to the same queue, persistent, with 1,000 confirms outstanding on " +
		"one channel"
}

func (l *rabbitmqLimit) Goal() *goal { return ratioOf(0.7) }

func (l *rabbitmqLimit) Close(context.Context) error {
	_, err := l.ch.QueueDelete(benchQueue, false, false, false)
	return errors.Join(err, l.conn.Close())
}

// kafkaLimit is a bare producer.
type kafkaLimit struct {
	client *kgo.Client
	admin  *kadm.Client
}

func openKafkaLimit(ctx context.Context, brokers []string) (*kafkaLimit, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.DefaultProduceTopic(benchQueue),
		kgo.MaxBufferedRecords(1000))
	if err != nil {
		return nil, fmt.Errorf("--kafka-brokers: %w", err)
	}
	l := &kafkaLimit{client, kadm.NewClient(client)}
	made, err := l.admin.CreateTopics(ctx, 4, 1, nil, benchQueue)
	if err == nil {
		err = made[benchQueue].Err
	}
	if err != nil {
		client.Close()
		return nil, fmt.Errorf("make the topic %s: %w", benchQueue, err)
	}
	return l, nil
}

func (l *kafkaLimit) Run(ctx context.Context, w *Work) (float64, error) {
	var failed atomic.Pointer[error]
	start := time.Now()
	for i := range w.Count {
		l.client.Produce(ctx, &kgo.Record{Key: []byte(w.key(i)), Value: w.appendPayload(nil, i)},
			func(_ *kgo.Record, err error) {
				if err != nil {
					failed.Store(&err)
				}
			})
	}
	if err := l.client.Flush(ctx); err != nil {
		return 0, err
	}
	took := time.Since(start)
	if err := failed.Load(); err != nil {
		return 0, *err
	}
	return float64(w.Count) / took.Seconds(), nil
}

func (l *kafkaLimit) Target() string { return benchQueue }

func (l *kafkaLimit) About() string {
	return "franz-go produces the same payloads to the same topic, idempotent and with all acks, at most 1,000 outstanding"
}

func (l *kafkaLimit) Goal() *goal { return nil }

func (l *kafkaLimit) Close(ctx context.Context) error {
	_, err := l.admin.DeleteTopics(ctx, benchQueue)
	l.client.Close()
	return err
}
