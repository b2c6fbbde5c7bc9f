// Package rabbitmq sends callbacks of type "rabbitmq": each attempt publishes one message, and succeeds when the broker
// confirms that a queue has it.
//
// One goroutine owns the connection: it connects, and connects again when the connection is lost. Each connection has a
// few publishers, with one AMQP channel each, on which the goroutines that call Send publish (publisher.go). Messages
// that are written at about the same time leave together (wire.go). docs/receivers.md describes the messages that
// consumers get.
package rabbitmq

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	amqp "github.com/rabbitmq/amqp091-go"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/job"
)

// Options configures a [Sender]. Only URL is required.
type Options struct {
	// URL is the broker's address, amqp://user:password@host:port/vhost, or amqps:// for TLS. The query parameters that
	// RabbitMQ defines (https://www.rabbitmq.com/docs/uri-query-parameters) are read: cacertfile, certfile, keyfile,
	// server_name_indication, auth_mechanism, heartbeat, connection_timeout and channel_max.
	URL string
	// TLS is the base of the TLS configuration of amqps; nil is an empty one.
	TLS *tls.Config
	// CAFile is a PEM file of the authorities that sign the broker's certificate; empty trusts the system's.
	CAFile string
	// CertFile and KeyFile are PEM files of the certificate to show to the broker, and its key.
	CertFile, KeyFile string
	// Heartbeat is the interval of heartbeats of both sides; zero means 10 s. A peer that was silent for three times as
	// long is given up.
	Heartbeat time.Duration
	// Channels is the number of AMQP channels that publish; zero means 2.
	Channels int
	// Window is the maximum number of unconfirmed messages of one channel; zero means 1000.
	Window int
	// Allow has the queues and exchanges that each tenant may use: patterns for "queue:NAME" and "exchange:NAME".
	Allow callbacks.Grants
	// Logger logs when the connection is made, lost, blocked and unblocked; nil logs nothing.
	Logger *slog.Logger
}

// Sender publishes to one broker. Its methods are safe for concurrent use.
type Sender struct {
	options   Options
	tls       *tls.Config
	server    amqp.URI // its URL
	address   string   // for logs and errors; without credentials
	dialLimit time.Duration

	link atomic.Pointer[link] // never nil; stored by run
	stop context.CancelFunc
	work sync.WaitGroup // run
}

// link is the state of the connection.
type link struct {
	session *session // nil while there is none
	// Without a session: the reason, the time of the next try, and the pause before it.
	err     error
	retryAt time.Time
	pause   time.Duration
}

// New makes a sender and begins to connect. It does not wait for the broker: until the broker is reachable, Send
// returns [callbacks.Unavailable]. Options that can never work, such as a malformed URL or an unreadable file, are an
// error at once.
func New(o Options) (*Sender, error) {
	uri, err := parseURL(o.URL)
	if err != nil {
		return nil, err
	}
	config, err := tlsConfig(o, uri)
	if err != nil {
		return nil, err
	}
	o.Channels = cmp.Or(o.Channels, 2)
	o.Window = cmp.Or(o.Window, 1000)
	if o.Channels < 1 || o.Window < 1 {
		return nil, errors.New("rabbitmq: Channels and Window must not be negative")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &Sender{
		options:   o,
		tls:       config,
		server:    uri,
		address:   fmt.Sprintf("%s:%d, vhost %s", uri.Host, uri.Port, uri.Vhost),
		dialLimit: cmp.Or(time.Duration(uri.ConnectionTimeout)*time.Millisecond, dialLimit),
		stop:      stop,
	}
	s.link.Store(&link{err: errors.New("not connected yet")})
	s.work.Go(func() { s.run(ctx) })
	return s, nil
}

// Close ends the connection, and returns when all of the sender's own goroutines have. Attempts that are still under
// way end with [callbacks.Unavailable], as do later ones.
func (s *Sender) Close() error {
	s.stop()
	s.work.Wait()
	return nil
}

// Type returns "rabbitmq".
func (s *Sender) Type() string { return "rabbitmq" }

// Validate checks the callback data of a message.
func (s *Sender) Validate(data []byte) error { return validate(data) }

// Granted checks that a tenant may use the queue or the exchange.
func (s *Sender) Granted(tenant string, data []byte) error {
	c, err := job.ParseTrusted[callback](data)
	if err != nil {
		return err // can't happen to data that was accepted
	}
	pointer, name := c.granted()
	if s.options.Allow.Allow(tenant, name) {
		return nil
	}
	return job.InvalidField(pointer, notAllowed(tenant))
}

func notAllowed(tenant string) string {
	return fmt.Sprintf("is not one that the tenant %q may use; --rabbitmq-allow has those", tenant)
}

// Destination returns the queue, or the exchange.
func (s *Sender) Destination(data []byte) string {
	c, err := job.ParseTrusted[struct {
		Queue    string `json:"queue"`
		Exchange string `json:"exchange"`
	}](data)
	switch {
	case err != nil: // can't happen to data that was accepted
		return ""
	case c.Exchange != "":
		return "exchange " + c.Exchange
	default:
		return "queue " + c.Queue
	}
}

// References returns the references in headers.
func (s *Sender) References(data []byte) []callbacks.Reference {
	c, err := job.ParseTrusted[callback](data)
	if err != nil {
		return nil // can't happen to data that was accepted
	}
	texts := make(map[string]callbacks.Text)
	for name, v := range c.Headers {
		if text, err := headerText(v); v.Kind() == jsontext.KindBeginObject && err == nil {
			texts[name] = text
		}
	}
	return callbacks.HeaderReferences(texts)
}

// Envelopes returns all envelopes.
func (s *Sender) Envelopes() []job.Envelope {
	return []job.Envelope{job.EnvelopeStructured, job.EnvelopeBinary}
}

// Send publishes the message and waits for the broker's confirm. A fault of the connection costs the job no attempt: if
// the connection is lost before the confirm, the message may have arrived, and the delivery id lets the consumer drop
// the duplicate. A queue or exchange that does not exist costs one, since it may never be created.
func (s *Sender) Send(ctx context.Context, d callbacks.Delivery) error {
	c, err := job.ParseTrusted[callback](d.Data)
	if err != nil {
		return callbacks.Permanent(fmt.Errorf("callback data: %w", err))
	}
	if pointer, name := c.granted(); !s.options.Allow.Allow(d.Name.Tenant, name) {
		return callbacks.Refused(fmt.Errorf("rabbitmq: the %s %s", pointer[1:], notAllowed(d.Name.Tenant)))
	}
	p, err := newPublish(ctx, s, c, &d)
	if failure, ok := errors.AsType[*callbacks.Failure](err); ok {
		return failure
	}
	if err != nil {
		return callbacks.Permanent(fmt.Errorf("callback data: %w", err))
	}
	s.describe(ctx, c, &d)
	if err := ctx.Err(); err != nil {
		return callbacks.Unavailable(fmt.Errorf("rabbitmq: nothing was sent: %w", err), soon())
	}
	l := s.link.Load()
	if l.session == nil {
		return callbacks.Unavailable(fmt.Errorf("rabbitmq at %s: %w", s.address, l.err), l.wait(time.Now()))
	}
	return l.session.send(ctx, p)
}

// describe notes the destination on the attempt's span. The conventions name a destination by the exchange and the
// routing key, if it has them; with the default exchange, the routing key is the queue.
func (s *Sender) describe(ctx context.Context, c callback, d *callbacks.Delivery) {
	exchange, key := c.target()
	destination := exchange + ":" + key
	if exchange == "" || key == "" {
		destination = exchange + key
	}
	callbacks.DescribeMessage(ctx, semconv.MessagingSystemRabbitMQ, destination, "publish",
		semconv.MessagingRabbitMQDestinationRoutingKey(key), semconv.MessagingMessageID(d.ID.String()),
		semconv.ServerAddress(s.server.Host), semconv.ServerPort(s.server.Port))
}

// wait returns the time until about the next try to connect is over, spread so that not all come back at once.
func (l *link) wait(now time.Time) time.Duration {
	if wait := l.retryAt.Sub(now); wait > 0 {
		return wait + soon()
	}
	return l.pause/2 + soon() // that try is under way
}

// soon returns a short random pause, for trouble that is expected to pass at once.
func soon() time.Duration { return 50*time.Millisecond + rand.N(200*time.Millisecond) }

// dialLimit bounds a try to connect, unless the URL has another bound.
const dialLimit = 10 * time.Second

// errURL never quotes the URL, any part of which may contain the password.
var errURL = errors.New("rabbitmq: the URL must be of the form amqp://user:password@host:port/vhost, or amqps://..., " +
	"with the special characters of each part percent-encoded")

func parseURL(raw string) (amqp.URI, error) {
	_, rest, _ := strings.Cut(raw, "://")
	if i := strings.IndexAny(rest, "/?#"); i >= 0 && strings.ContainsAny(rest[i:], "@#") {
		return amqp.URI{}, errURL // a password with a bare / ? or # would else end up in the host's name
	}
	uri, err := amqp.ParseURI(raw)
	if err != nil || uri.Port < 1 || uri.Port > 65535 || uri.ConnectionTimeout < 0 {
		return amqp.URI{}, errURL
	}
	for _, mechanism := range uri.AuthMechanism {
		switch strings.ToUpper(mechanism) {
		case "PLAIN", "AMQPLAIN", "EXTERNAL":
		default:
			return amqp.URI{}, errors.New("rabbitmq: the URL's auth_mechanism must be PLAIN, AMQPLAIN or EXTERNAL")
		}
	}
	return uri, nil
}

// tlsConfig reads the files that the options or the URL name; nil for a connection without TLS.
func tlsConfig(o Options, uri amqp.URI) (*tls.Config, error) {
	ca, cert, key := cmp.Or(o.CAFile, uri.CACertFile), cmp.Or(o.CertFile, uri.CertFile), cmp.Or(o.KeyFile, uri.KeyFile)
	if uri.Scheme != "amqps" {
		if o.TLS != nil || ca != "" || cert != "" || key != "" {
			return nil, errors.New("rabbitmq: TLS is set up, but the URL begins with amqp://; it must be amqps://")
		}
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.TLS != nil {
		config = o.TLS.Clone()
	}
	config.ServerName = cmp.Or(config.ServerName, uri.ServerName, uri.Host)
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("rabbitmq: CA file: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("rabbitmq: CA file %s has no PEM certificate", ca)
		}
	}
	if cert != "" || key != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("rabbitmq: client certificate: %w", err)
		}
		config.Certificates = append(config.Certificates, pair)
	}
	return config, nil
}
