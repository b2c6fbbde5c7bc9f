// Package kafka sends callbacks of type "kafka": each attempt produces one record, and succeeds when all in-sync
// replicas have it.
//
// A franz-go client, the session, produces with an idempotent producer: a record that it sends again after a lost
// connection is not written twice. The sender adds three things. It looks up a topic before it first produces to it, so
// that a misspelled topic never reaches the producer. After a failure, one goroutine checks whether any broker can be
// reached, so that attempts fail at once during an outage. And it replaces a session that can't continue.
// docs/receivers.md describes the records that consumers get.
package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/job"
)

// Options configures a [Sender]. Only Brokers is required.
type Options struct {
	// Brokers are the addresses, host:port, by which the sender finds the cluster; the default port is 9092.
	Brokers []string
	// TLS turns on TLS, by which the brokers are verified.
	TLS bool
	// CAFile is a PEM file of the authorities that sign the brokers' certificates; empty trusts the system's.
	CAFile string
	// CertFile and KeyFile are PEM files of the certificate to show to the brokers, and its key.
	CertFile, KeyFile string
	// Mechanism is the mechanism of SASL: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; empty means no SASL.
	Mechanism string
	// Username and Password are those of SASL.
	Username, Password string
	// AutoCreateTopics has the brokers create missing topics, if their configuration allows it.
	AutoCreateTopics bool
	// Allow has the topics that each tenant may use.
	Allow callbacks.Grants
	// Logger logs when the cluster can be reached again or no longer, and the client's own lines at debug level; nil logs
	// nothing.
	Logger *slog.Logger
}

// Sender produces to one cluster. Its methods are safe for concurrent use.
type Sender struct {
	options    Options
	clientOpts []kgo.Opt
	address    string // for logs and errors

	link     atomic.Pointer[link] // never nil
	checking atomic.Bool
	ctx      context.Context // ends when the sender is closed
	stop     context.CancelFunc
	work     sync.WaitGroup // the goroutines that end with ctx, see start

	deadlines deadlines
	broke     atomic.Pointer[time.Time] // when a connection last failed, with the monotonic clock; nil for never
	mu        sync.Mutex
	session   *session              // the one in use; nil once the sender is closed
	sessions  map[*session]struct{} // also replaced ones that are still in use
}

// New makes a sender and begins to connect. It does not wait for the cluster: until a broker is reachable, Send returns
// [callbacks.Unavailable]. Options that can never work, such as an unreadable file, are an error at once.
func New(o Options) (*Sender, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Brokers = addresses(o.Brokers)
	ctx, stop := context.WithCancel(context.Background())
	s := &Sender{
		options:  o,
		address:  strings.Join(o.Brokers, ", "),
		ctx:      ctx,
		stop:     stop,
		sessions: make(map[*session]struct{}),
	}
	var err error
	if s.clientOpts, err = clientOptions(o, &s.deadlines); err != nil {
		stop()
		return nil, err
	}
	s.clientOpts = append(s.clientOpts, kgo.WithHooks(hooks{s}))
	if s.session, err = s.newSession(); err != nil {
		stop()
		return nil, fmt.Errorf("kafka: %w", err)
	}
	s.link.Store(&link{err: errors.New("not connected yet")})
	s.doubt()
	return s, nil
}

// Close ends all connections, and returns when all of the sender's own goroutines have. Attempts that are still under
// way end with [callbacks.Unavailable], as do later ones.
func (s *Sender) Close() error {
	s.stop()
	s.mu.Lock()
	s.session = nil
	all := s.sessions
	s.sessions = nil
	s.mu.Unlock()
	for x := range all {
		x.client.Close()
	}
	s.work.Wait()
	s.link.Store(&link{err: errClosed, pause: lastPause})
	return nil
}

// Type returns "kafka".
func (s *Sender) Type() string { return "kafka" }

// Validate checks the callback data of a record.
func (s *Sender) Validate(data []byte) error { return validate(data) }

// Granted checks that a tenant may use the topic.
func (s *Sender) Granted(tenant string, data []byte) error {
	c, err := job.ParseTrusted[callback](data)
	if err != nil {
		return err // can't happen to data that was accepted
	}
	if s.options.Allow.Allow(tenant, c.Topic) {
		return nil
	}
	return job.InvalidField("/topic", notAllowed(tenant))
}

func notAllowed(tenant string) string {
	return fmt.Sprintf("is not one that the tenant %q may use; --kafka-allow has those", tenant)
}

// Destination returns the topic.
func (s *Sender) Destination(data []byte) string {
	c, err := job.ParseTrusted[struct {
		Topic string `json:"topic"`
	}](data)
	if err != nil {
		return "" // can't happen to data that was accepted
	}
	return "topic " + c.Topic
}

// References returns the references in headers.
func (s *Sender) References(data []byte) []callbacks.Reference {
	c, err := job.ParseTrusted[callback](data)
	if err != nil {
		return nil // can't happen to data that was accepted
	}
	return callbacks.HeaderReferences(c.Headers)
}

// Envelopes returns all envelopes.
func (s *Sender) Envelopes() []job.Envelope {
	return []job.Envelope{job.EnvelopeStructured, job.EnvelopeBinary}
}

// Send produces the record and waits for its acknowledgement. A broker's refusal of the topic or the record costs an
// attempt, also if the topic does not exist, since it may never be created. Where no broker answers, or none leads the
// partition, it costs none. A record that was not sent when ctx ends is never sent. For that, a record with a deadline
// well before those of the topic's records under way has to wait until they are done, at no cost.
func (s *Sender) Send(ctx context.Context, d callbacks.Delivery) error {
	c, err := job.ParseTrusted[callback](d.Data)
	if err != nil {
		return callbacks.Permanent(fmt.Errorf("callback data: %w", err))
	}
	if !s.options.Allow.Allow(d.Name.Tenant, c.Topic) {
		return callbacks.Refused(fmt.Errorf("kafka: the topic %s", notAllowed(d.Name.Tenant)))
	}
	callbacks.DescribeMessage(ctx, semconv.MessagingSystemKafka, c.Topic, "send")
	if err := ctx.Err(); err != nil {
		return callbacks.Unavailable(fmt.Errorf("kafka: nothing was sent: %w", err), soon())
	}
	if l := s.link.Load(); l.err != nil {
		return callbacks.Unavailable(fmt.Errorf("kafka at %s: %w", s.address, l.err), l.wait(time.Now()))
	}
	x := s.enter()
	if x == nil {
		return callbacks.Unavailable(fmt.Errorf("kafka: %w", errClosed), lastPause)
	}
	defer s.leave(x)
	t, err := s.find(ctx, x, c)
	if err != nil {
		return err
	}
	record, err := newRecord(ctx, s, c, &d)
	if err != nil {
		return err
	}
	begun, id := time.Now(), d.ID.String()
	err = s.produce(ctx, x, t, id, record, 1)
	if maybeAnothers(err) {
		// The broker refuses batches, not records. So the record is sent again by itself, to find the faulty one.
		err = s.produce(ctx, x, t, id, record, alone)
	}
	return s.verdict(ctx, x, c, begun, err)
}

// errUnsent is the error of a record that was not handed to the client.
type errUnsent struct{ error }

func (e errUnsent) Unwrap() error { return e.error }

// produce produces the record of the delivery with an id: together with others of the topic, or alone, by the number of
// permits.
func (s *Sender) produce(
	ctx context.Context, x *session, t *topic, id string, record kgo.Record, permits int64,
) error {
	if err := t.permits.Acquire(ctx, permits); err != nil {
		return errUnsent{err}
	}
	if err := t.enter(ctx); err != nil {
		t.permits.Release(permits)
		return errUnsent{err}
	}
	s.hold(x)
	deadline, limited := ctx.Deadline()
	if limited {
		s.deadlines.add(id, deadline)
	}
	done := make(chan error, 1)
	// The client gives the record up when ctx ends, or soon after.
	x.client.Produce(ctx, &record, func(_ *kgo.Record, err error) {
		if limited {
			s.deadlines.remove(id, deadline)
		}
		t.leave()
		t.permits.Release(permits)
		s.leave(x)
		done <- err
	})
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// soon returns a short random pause, for trouble that is expected to pass at once.
func soon() time.Duration { return 50*time.Millisecond + rand.N(200*time.Millisecond) }
