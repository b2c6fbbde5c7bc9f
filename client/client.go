// Package client is a client of the HTTP API of Carillon, a scheduling service. It needs the standard library only.
//
// Each operation of the API is a method of [Client]. Lists are iterators that read page by page. A refused request is
// an [*Error], which carries the problem document of the answer.
//
// # Retries
//
// A request is sent again if that can do no harm by the service's contract (docs/guarantees.md, section 9):
//
//   - after 429, and if no connection could be made: nothing was done;
//   - after 502, 503, 504 and a lost answer, if the request can be repeated without another effect. That holds for all
//     reads, and for most changes; see the comment of each method.
//
// Other requests fail with an error for which [OutcomeUnknown] is true: they may have taken effect. The service makes a
// change within 30 s of the request's arrival, or never.
package client

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Config configures a client.
type Config struct {
	// URL is the address of the service, such as https://carillon.example.com. It may have a path, which is put before
	// those of the API.
	URL string
	// Key is the API key or the token; empty where the service asks for none.
	Key string
	// Tenant is the tenant of all requests; empty for the default, which depends on the key. [Client.For] makes a client
	// for another tenant.
	Tenant string
	// HTTP makes the requests. Nil is a client that waits up to 75 s for the beginning of an answer, and otherwise as
	// long as the context says. A client with a Timeout breaks long batches.
	HTTP *http.Client
	// Attempts is the maximum number of attempts of a request; 0 means 6, and 1 means no second attempt.
	Attempts int
	// Pause is the longest pause before the second attempt. It doubles with each further attempt, up to 30 s, and each
	// pause is random up to that. 0 means 200 ms. A Retry-After of the service is obeyed, up to a minute.
	Pause time.Duration
	// UserAgent is sent with each request; empty for one that names this package.
	UserAgent string
}

// Client makes requests to one service, about one tenant. It is safe for concurrent use.
type Client struct {
	config Config
	base   string // without a slash at its end
}

// New makes a client. It makes no request.
func New(config Config) (*Client, error) {
	u, err := url.Parse(config.URL)
	switch {
	case err != nil:
		return nil, fmt.Errorf("client: URL: %w", err)
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return nil, errors.New("client: URL: must be absolute, such as https://carillon.example.com")
	case u.RawQuery != "" || u.Fragment != "":
		return nil, errors.New("client: URL: must have neither a query nor a fragment")
	case config.Attempts < 0:
		return nil, errors.New("client: Attempts: must not be negative")
	}
	config.Attempts = cmp.Or(config.Attempts, 6)
	config.Pause = cmp.Or(config.Pause, 200*time.Millisecond)
	config.UserAgent = cmp.Or(config.UserAgent, "carillon-client-go")
	if config.HTTP == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.ResponseHeaderTimeout = 75 * time.Second // the service answers within 30 s of a request's arrival
		t.MaxIdleConnsPerHost = 32
		config.HTTP = &http.Client{Transport: t}
	}
	return &Client{config: config, base: strings.TrimRight(config.URL, "/")}, nil
}

// For returns a client of the same service that is about another tenant. Both share connections.
func (c *Client) For(tenant string) *Client {
	other := *c
	other.config.Tenant = tenant
	return &other
}

// effect says whether a request may be sent again.
type effect uint8

const (
	// again: the request may be sent again after its answer was lost.
	again effect = iota
	// once: a second request might do something twice.
	once
)

// request is one request with all its attempts.
type request struct {
	method, path string
	query        url.Values
	header       http.Header
	body         any // marshalled to JSON; nil for none
	// about is false for requests that are about several tenants, which take no header with one.
	about  bool
	effect effect
}

// path joins segments, each of them encoded. Proxies take out dots that stand alone, even encoded ones, so the service
// has another form for names of dots.
func path(segments ...string) string {
	var b strings.Builder
	b.WriteString("/v1")
	for _, s := range segments {
		b.WriteByte('/')
		if s == "." || s == ".." {
			b.WriteString("$carillon:")
		}
		b.WriteString(url.PathEscape(s))
	}
	return b.String()
}

// answer is a whole response.
type answer struct {
	status int
	header http.Header
	body   []byte
	// lost is true if an attempt before may have taken effect.
	lost bool
}

// maxAnswer bounds an answer that is read whole.
const maxAnswer = 256 << 20

// do makes a request, again and again if it may, and decodes the answer into out, if that is not nil.
func (c *Client) do(ctx context.Context, r request, out any) (answer, error) {
	var body []byte
	if r.body != nil {
		var err error
		if body, err = encode(r.body); err != nil {
			return answer{}, fmt.Errorf("client: %w", err)
		}
	}
	lost := false
	for n := 1; ; n++ {
		a, err := c.attempt(ctx, r, body)
		a.lost = lost
		if err == nil {
			if out != nil && len(a.body) > 0 && a.status != http.StatusNotModified {
				if err := json.Unmarshal(a.body, out); err != nil {
					return a, fmt.Errorf("client: the answer to %s %s can't be read: %w", r.method, r.path, err)
				}
			}
			return a, nil
		}
		verdict := judge(err)
		if verdict == mayHaveHappened {
			lost = true
			if r.effect == once {
				return a, &UnknownError{err}
			}
		}
		if verdict == final || n >= c.config.Attempts || ctx.Err() != nil {
			if lost && r.effect == again && verdict == final {
				markUnknown(err)
			}
			return a, err
		}
		if pauseErr := c.pause(ctx, n, err); pauseErr != nil {
			return a, err
		}
	}
}

// verdict classifies the error of an attempt.
type verdict uint8

const (
	final           verdict = iota // the service has refused the request
	nothingHappened                // it may be made again
	mayHaveHappened                // its answer was lost
)

func judge(err error) verdict {
	if e, ok := errors.AsType[*Error](err); ok {
		switch e.Status {
		case http.StatusTooManyRequests:
			return nothingHappened
		case http.StatusServiceUnavailable, http.StatusBadGateway, http.StatusGatewayTimeout:
			return mayHaveHappened
		}
		return final
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return nothingHappened
	}
	return mayHaveHappened
}

// pause waits before the attempt after the n-th.
func (c *Client) pause(ctx context.Context, n int, err error) error {
	longest := min(c.config.Pause<<min(n-1, 20), 30*time.Second)
	wait := rand.N(longest + 1) //nolint:gosec // it spreads requests, and hides nothing
	if e, ok := errors.AsType[*Error](err); ok && e.RetryAfter > 0 {
		wait += min(e.RetryAfter, time.Minute)
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// attempt makes a request once.
func (c *Client) attempt(ctx context.Context, r request, body []byte) (answer, error) {
	var reader io.Reader
	if body != nil {
		reader = bytes.NewReader(body)
	}
	res, err := c.send(ctx, r, reader)
	if err != nil {
		return answer{}, err
	}
	defer drain(res)
	read, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	a := answer{status: res.StatusCode, header: res.Header, body: read}
	if res.StatusCode >= 400 {
		return a, problem(res, read)
	}
	return a, err
}

// send makes a request once, with a given body, and returns the answer unread.
func (c *Client) send(ctx context.Context, r request, body io.Reader) (*http.Response, error) {
	target := c.base + r.path
	if len(r.query) > 0 {
		target += "?" + r.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, r.method, target, body)
	if err != nil {
		return nil, err
	}
	for name, values := range r.header {
		req.Header[name] = values
	}
	if body != nil && req.Header.Get("Content-Type") == "" {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("User-Agent", c.config.UserAgent)
	if c.config.Key != "" {
		req.Header.Set("Authorization", "Bearer "+c.config.Key)
	}
	if r.about && c.config.Tenant != "" {
		req.Header.Set("Carillon-Tenant", c.config.Tenant)
	}
	return c.config.HTTP.Do(req)
}

// drain closes an answer so that its connection can be used again.
func drain(res *http.Response) {
	_, _ = io.CopyN(io.Discard, res.Body, 64<<10)
	_ = res.Body.Close()
}

// encode writes JSON without escaping harmless characters, so that payloads keep their bytes.
func encode(v any) ([]byte, error) {
	if raw, ok := v.(json.RawMessage); ok {
		return raw, nil
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// retryAfter reads the header of that name: seconds, or a date.
func retryAfter(h http.Header) time.Duration {
	text := h.Get("Retry-After")
	if s, err := strconv.Atoi(text); err == nil {
		return time.Duration(max(s, 0)) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(time.Until(at), 0)
	}
	return 0
}
