// Package webhook sends callbacks of type "http": one HTTP request for each attempt. docs/receivers.md describes the
// requests, and the meaning of the answers.
package webhook

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/callbacks/webhook/guard"
	"github.com/carillon-scheduler/carillon/job"
)

// Options set up a [Sender]. The zero value is fit for production.
type Options struct {
	// TLS is the configuration that verifies receivers; nil trusts the system's authorities. It must not be changed
	// afterwards.
	TLS *tls.Config
	// IdleConns is the maximum number of idle connections to one receiver; zero means 1024. It should be at least the
	// number of concurrent attempts: with fewer, connections to a busy receiver are not reused.
	IdleConns int
	// UserAgent is the User-Agent of requests, unless the job's headers have one; empty means "carillon".
	UserAgent string
	// Guard are the rules for addresses of receivers.
	Guard guard.Guard
	// Proxy is the treatment of a proxy that the environment names (HTTP_PROXY, HTTPS_PROXY, NO_PROXY) when the sender is
	// made; empty is [ProxyRefuse].
	Proxy ProxyMode
	// Resolver looks up the names of receivers; nil is [net.DefaultResolver].
	Resolver *net.Resolver
	// Dial replaces the package's own dialling; nil dials with a timeout of 10 s. It must call check with each address
	// that it is about to connect to, and must not connect to one for which check returns an error.
	Dial func(ctx context.Context, network, address string, check func(netip.AddrPort) error) (net.Conn, error)
}

// Sender sends callbacks over HTTP. Its methods are safe for concurrent use.
type Sender struct {
	ways      *ways
	userAgent string
}

// New makes a sender. It connects to nothing yet.
func New(o Options) *Sender {
	return &Sender{userAgent: cmp.Or(o.UserAgent, "carillon"), ways: newWays(&o)}
}

// transport makes requests over connections that dial makes.
func transport(o *Options, dial dialer) *http.Transport {
	return &http.Transport{
		DialContext:         dial,
		TLSClientConfig:     o.TLS,
		TLSHandshakeTimeout: 10 * time.Second,
		ForceAttemptHTTP2:   true,
		MaxIdleConnsPerHost: idleConns(o),
		IdleConnTimeout:     idleLimit,
		// The answers are not read, so receivers should not compress them.
		DisableCompression:     true,
		MaxResponseHeaderBytes: mostHeader,
	}
}

func idleConns(o *Options) int { return cmp.Or(o.IdleConns, 1024) }

// Close drops the idle connections. Attempts under way end by themselves.
func (s *Sender) Close() error {
	s.ways.Close()
	return nil
}

// Responds marks the sender as a [callbacks.Responder]: a status is the receiver's answer.
func (s *Sender) Responds() {}

// Type returns "http".
func (s *Sender) Type() string { return "http" }

// Validate checks a request that a client wants made.
func (s *Sender) Validate(data []byte) error {
	c, err := callbacks.Parse[callback](data)
	if err != nil {
		return err
	}
	u, err := url.Parse(c.URL)
	if err != nil {
		return job.InvalidField("/url", err.Error()) // can't happen: it was checked
	}
	if err := s.ways.guard.CheckHost(target(u)); err != nil {
		return job.InvalidField("/url", "must not be called: "+err.Error())
	}
	return nil
}

// Destination returns the URL's scheme and host, with its port.
func (s *Sender) Destination(data []byte) string {
	destination, _ := s.Place(data)
	return destination
}

// Place returns the URL's scheme and host, with its port, and its path. The query is left out: it does not change the
// called part.
func (s *Sender) Place(data []byte) (destination, path string) {
	c, err := job.ParseTrusted[struct {
		URL string `json:"url"`
	}](data)
	if err != nil {
		return "", "" // can't happen to data that was accepted
	}
	scheme, rest, _ := strings.Cut(c.URL, "://")
	host := rest
	if end := strings.IndexAny(rest, "/?"); end >= 0 {
		host = rest[:end]
		path, _, _ = strings.Cut(rest[end:], "?")
	}
	host = host[strings.LastIndexByte(host, '@')+1:] // the user is not part of the name
	scheme = strings.ToLower(scheme)
	host = strings.TrimSuffix(host, map[string]string{"http": ":80", "https": ":443"}[scheme])
	return scheme + "://" + strings.ToLower(host), cmp.Or(path, "/")
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

// latePause is the pause before the next attempt if a request could not be written in time, so that a slow machine does
// not get slower.
const latePause = 5 * time.Second

// Send makes the request and judges the answer by its status. A redirect is an answer like any other; it is not
// followed, because only the job decides about the receiver. Errors name the receiver by its host only: a path or a
// query may be a secret.
func (s *Sender) Send(ctx context.Context, d callbacks.Delivery) error {
	on := timed(ctx)
	defer on.done()
	r, err := s.newRequest(ctx, &d)
	if failure, ok := errors.AsType[*callbacks.Failure](err); ok {
		return failure
	}
	if err != nil {
		// Can't happen to data that was accepted. The error is left out for it would quote the URL.
		return callbacks.Permanent(errors.New("callback data: no request can be made of it"))
	}
	span := trace.SpanFromContext(ctx)
	describeRequest(span, r)
	resp, err := s.ways.send(ctx, r, on)
	if err != nil {
		err = fmt.Errorf("%s %s: %w", r.method, r.url.Host, err)
		if _, refused := errors.AsType[*guard.Refusal](err); refused {
			return callbacks.Refused(err)
		}
		if errors.Is(err, errLate) { // so the receiver did not get the whole request
			return callbacks.Unavailable(err, latePause)
		}
		return err
	}
	defer func() {
		drain(resp.Body)
		_ = resp.Body.Close() // only the status matters
	}()
	if span.IsRecording() {
		span.SetAttributes(semconv.HTTPResponseStatusCode(resp.StatusCode))
	}
	if 200 <= resp.StatusCode && resp.StatusCode <= 299 {
		return nil
	}
	return failure(r, resp, on.quotable())
}

// drain reads the rest of an answer, so that the connection can be used again. A receiver that sends too much loses its
// connection.
func drain(body io.Reader) {
	const most = 64 << 10
	if body != http.NoBody {
		_, _ = io.CopyN(io.Discard, body, most)
	}
}
