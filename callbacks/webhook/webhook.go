// Package webhook sends callbacks of type "http": one HTTP request for each attempt. What reaches the receiver, and what
// its answers mean, is told to users in docs/receivers.md.
package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/job"
)

// Options set up a [Sender]. The zero value is fit for production.
type Options struct {
	// TLS is what receivers are verified with; nil trusts what the system trusts. It must not be changed afterwards.
	TLS *tls.Config
	// IdleConns is how many connections to one receiver are kept open for reuse; zero means 1024. It should be at least
	// the number of attempts made at once: with fewer, a busy receiver's connections are made anew all the time.
	IdleConns int
	// Dial connects to a receiver or a proxy; nil dials with a timeout of 10 s.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Sender sends callbacks over HTTP. Its methods are safe for concurrent use.
type Sender struct {
	transport *http.Transport
}

// New makes a sender. It connects to nothing yet. A proxy is taken from the environment, see [http.ProxyFromEnvironment].
func New(o Options) *Sender {
	if o.IdleConns == 0 {
		o.IdleConns = 1024
	}
	if o.Dial == nil {
		o.Dial = (&net.Dialer{Timeout: 10 * time.Second}).DialContext
	}
	return &Sender{transport: &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         o.Dial,
		TLSClientConfig:     o.TLS,
		TLSHandshakeTimeout: 10 * time.Second,
		ForceAttemptHTTP2:   true,
		MaxIdleConnsPerHost: o.IdleConns,
		// Below what common servers and load balancers allow, so that we rarely send on a connection just being closed.
		IdleConnTimeout: 50 * time.Second,
		// Nobody reads the answers, so nobody should compress them.
		DisableCompression:     true,
		MaxResponseHeaderBytes: 64 << 10,
	}}
}

// Close drops the idle connections. Attempts under way end by themselves.
func (s *Sender) Close() error {
	s.transport.CloseIdleConnections()
	return nil
}

// Type is "http".
func (s *Sender) Type() string { return "http" }

// Validate checks a request that a client wants made.
func (s *Sender) Validate(data []byte) error { return validate(data) }

// Envelopes are all there are.
func (s *Sender) Envelopes() []job.Envelope {
	return []job.Envelope{job.EnvelopeStructured, job.EnvelopeBinary}
}

// Send makes the request and judges the answer by its status. A redirect is an answer like any other; it is not followed,
// because whom to call is for the job to say. Errors name the receiver by its host only: a path or a query may be a secret.
func (s *Sender) Send(ctx context.Context, d callbacks.Delivery) error {
	c, err := parse(d.Data)
	if err != nil {
		return callbacks.Permanent(fmt.Errorf("callback data: %w", err))
	}
	req, err := newRequest(ctx, c, d)
	if err != nil {
		return callbacks.Permanent(err)
	}
	// The transport and not a client: that would follow redirects, and put the URL into its errors.
	resp, err := s.transport.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("%s %s: %w", req.Method, req.URL.Host, err)
	}
	defer func() {
		drain(resp.Body)
		_ = resp.Body.Close() // the status has been read, and that is all that counts
	}()
	if 200 <= resp.StatusCode && resp.StatusCode <= 299 {
		return nil
	}
	return failure(req, resp)
}

func newRequest(ctx context.Context, c callback, d callbacks.Delivery) (*http.Request, error) {
	m := d.Message(c.Payload)
	req, err := http.NewRequestWithContext(ctx, c.Method, c.URL, bytes.NewReader(m.Body))
	if err != nil {
		// Can't happen to data that was accepted. The error is left out for it would quote the URL.
		return nil, errors.New("callback data: no request can be made of it")
	}
	header := make(http.Header, len(c.Headers)+len(m.Attributes)+10)
	if m.ContentType != "" {
		header["Content-Type"] = []string{m.ContentType}
	}
	for name, value := range c.Headers {
		header.Set(name, value)
	}
	if d.Envelope == job.EnvelopeStructured {
		header["Content-Type"] = []string{m.ContentType}
	}
	if d.Envelope == job.EnvelopeBinary {
		header.Del("Ce-Datacontenttype") // CloudEvents forbids it: the Content-Type is it
	}
	for _, h := range callbacks.TraceHeaders(&d, c.Headers) {
		header.Set(h.Name, h.Value)
	}
	for _, a := range m.Attributes {
		header.Set("Ce-"+a.Name, strings.ReplaceAll(escape(a.Value), `"`, "%22")) // CloudEvents asks for that one too
	}
	if user := req.URL.User; user != nil {
		password, _ := user.Password()
		req.Header = header
		req.SetBasicAuth(user.Username(), password)
	}
	header["User-Agent"] = []string{"carillon"}
	header["Webhook-Id"] = []string{d.ID.String()}
	header["Webhook-Timestamp"] = []string{strconv.FormatInt(d.SentAt.Unix(), 10)}
	header["Carillon-Key"] = []string{escape(d.Name.Key)}
	if d.Name.Tenant != job.DefaultTenant {
		header["Carillon-Tenant"] = []string{d.Name.Tenant}
	}
	header["Carillon-Timestamp"] = []string{job.FormatTime(d.Timestamp)}
	header["Carillon-Attempt"] = []string{strconv.Itoa(d.Attempt)}
	if d.Part != nil {
		header["Carillon-Step"] = []string{strconv.Itoa(d.Part.Step)}
		if d.Part.Subscriber != "" {
			header["Carillon-Subscriber"] = []string{escape(d.Part.Subscriber)}
		}
	}
	// The receiver may close an idle connection just when it is used again. With this key the transport sends the request
	// once more on another connection, which the delivery id makes harmless. An empty list isn't sent.
	if _, own := header["Idempotency-Key"]; !own {
		header["Idempotency-Key"] = []string{}
	}
	req.Header = header
	return req, nil
}

// escape percent-encodes what can't stand in a header: all but visible ASCII, and the percent sign itself.
func escape(text string) string {
	const hex = "0123456789ABCDEF"
	plain := func(c byte) bool { return '!' <= c && c <= '~' && c != '%' }
	i := 0
	for i < len(text) && plain(text[i]) {
		i++
	}
	if i == len(text) {
		return text
	}
	b := make([]byte, i, 3*len(text))
	copy(b, text)
	for ; i < len(text); i++ {
		if c := text[i]; plain(c) {
			b = append(b, c)
		} else {
			b = append(b, '%', hex[c>>4], hex[c&15])
		}
	}
	return string(b)
}

// drain reads the rest of an answer, so that the connection can be used again. A receiver that sends more than is worth
// reading loses its connection.
func drain(body io.Reader) {
	const most = 64 << 10
	if body != http.NoBody {
		_, _ = io.CopyN(io.Discard, body, most)
	}
}
