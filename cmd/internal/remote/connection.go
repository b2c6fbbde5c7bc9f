package remote

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
	"github.com/carillon-scheduler/carillon/job"
)

// Variables are the environment variables of these commands. Each can also be given by a file that the variable of the
// same name with _FILE names.
var Variables = []string{"CARILLON_URL", "CARILLON_KEY", "CARILLON_TENANT", "CARILLON_CONTEXT", "CARILLON_CONFIG"}

// defaultURL is the address of a service with default options.
const defaultURL = "http://127.0.0.1:8080"

// connection says which service to ask, and as whom.
type connection struct {
	url, keyFile, tenant, caFile, context string
	attempts                              int
}

func (c *connection) flags(f *flag.FlagSet) {
	f.StringVar(&c.url, "url", "", "`URL`: The service. (CARILLON_URL, else that of the context, else "+defaultURL+")")
	f.StringVar(&c.keyFile, "key-file", "",
		"`FILE`: File with the API key. (the key in CARILLON_KEY, else the file of the context)")
	f.StringVar(&c.tenant, "tenant", "", "`NAME`: Whose jobs it is about. (CARILLON_TENANT, else that of the context)")
	f.StringVar(&c.caFile, "ca-file", "", "`FILE`: Certificates (PEM) to trust besides those of this machine.")
	f.StringVar(&c.context, "context", "", "`NAME`: A service by the name that \"carillon context add\" gave it.")
	c.attempts = 6
}

// service is a service to ask.
type service struct {
	base, key, tenant string
	http              *http.Client
	attempts          int
	pause             time.Duration
}

// open reads the options, the variables and the contexts. A key of a context is for the URL of that context only.
func (c *connection) open(stderr io.Writer) (*service, error) {
	at, err := c.at()
	if err != nil {
		return nil, err
	}
	key := ""
	if c.keyFile == "" {
		if key, err = variable("CARILLON_KEY"); err != nil {
			return nil, err
		}
	}
	if file := cmp.Or(c.keyFile, at.KeyFile); key == "" && file != "" {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, cli.Usagef("--key-file: %w", err)
		}
		key = strings.TrimSpace(string(content))
	}
	u, err := url.Parse(at.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, cli.Usagef("--url: must be absolute, such as https://carillon.example.com, not %q", at.URL)
	}
	if key != "" && u.Scheme == "http" && !isLoopback(u.Hostname()) {
		fmt.Fprintf(stderr, "carillon: warning: the key is sent to %s without encryption; use https\n", u.Host)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.ResponseHeaderTimeout = 75 * time.Second // the service answers within 30 s of a request's arrival
	transport.MaxIdleConnsPerHost = parallel
	if file := cmp.Or(c.caFile, at.CAFile); file != "" {
		pool, err := trusted(file)
		if err != nil {
			return nil, cli.Usagef("--ca-file: %w", err)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	return &service{
		base: strings.TrimRight(at.URL, "/"), key: key, tenant: at.Tenant, http: &http.Client{Transport: transport},
		attempts: c.attempts, pause: 200 * time.Millisecond,
	}, nil
}

// at returns the address in effect.
func (c *connection) at() (address, error) {
	var from [3]string
	for i, name := range []string{"CARILLON_URL", "CARILLON_TENANT", "CARILLON_CONTEXT"} {
		var err error
		if from[i], err = variable(name); err != nil {
			return address{}, err
		}
	}
	given, tenant := cmp.Or(c.url, from[0]), cmp.Or(c.tenant, from[1])
	if given != "" && c.context == "" {
		return address{URL: given, Tenant: tenant}, nil
	}
	all, err := readContexts()
	if err != nil {
		return address{}, err
	}
	name := cmp.Or(c.context, from[2], all.Current)
	if name == "" {
		return address{URL: defaultURL, Tenant: tenant}, nil
	}
	at, ok := all.Contexts[name]
	if !ok {
		return address{}, cli.Usagef("there is no context %q; \"carillon context list\" shows all", name)
	}
	if c.url != "" && c.url != at.URL {
		return address{}, cli.Usagef("--url and --context name different services; give one of them")
	}
	at.Tenant = cmp.Or(tenant, at.Tenant)
	return at, nil
}

// variable returns an environment variable, or the content of the file that it names with _FILE.
func variable(name string) (string, error) {
	value, path := os.Getenv(name), os.Getenv(name+"_FILE")
	if value != "" || path == "" {
		return value, nil
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return "", cli.Usagef("%s_FILE: %w", name, err)
	}
	return strings.TrimSpace(string(content)), nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func trusted(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s has no certificate in the form of PEM", file)
	}
	return pool, nil
}

// request is one request to the service.
type request struct {
	method, path string
	query        url.Values
	header       map[string]string
	body         []byte
	// several is true for requests about several tenants, which take no header with one.
	several bool
	// unpaged is true if the answer has items, but no pages.
	unpaged bool
	// once is true if a second request might do something twice.
	once bool
}

// Exit codes of these commands, besides those of package cli.
const (
	exitDifferent = 3 // carillon diff: something would be changed
	exitConflict  = 4 // another client has changed the job meanwhile
	exitUnknown   = 5 // the service can't be reached, or its answer was lost
)

// refusal is a problem document (RFC 9457).
type refusal struct {
	Status int    `json:"status"`
	Title  string `json:"title"`
	Detail string `json:"detail"`
	Errors []struct {
		Pointer, Parameter, Message string
	} `json:"errors"`
	RequestID string `json:"requestId"`
	after     time.Duration
}

// Error implements error.
func (r *refusal) Error() string {
	text := cmp.Or(r.Detail, r.Title)
	if len(r.Errors) > 0 {
		text = "the request is invalid"
	}
	for _, f := range r.Errors {
		text += "\n  " + strings.TrimSpace(f.Pointer+f.Parameter+" "+f.Message)
	}
	return fmt.Sprintf("%d %s: %s", r.Status, http.StatusText(r.Status), text)
}

// lost is the error of a request whose outcome is not known.
type lost struct {
	err  error
	once bool
}

// Error implements error.
func (l *lost) Error() string {
	if l.once {
		return "it is not known whether this was done: " + l.err.Error() +
			"\nIt is done within 30 s, or never. Look before you repeat it."
	}
	return l.err.Error()
}

// Unwrap returns the reason.
func (l *lost) Unwrap() error { return l.err }

// away is the error of a service that can't be reached.
type away struct {
	url string
	err error
}

// Error implements error.
func (a *away) Error() string {
	return fmt.Sprintf("there is no service at %s (%v); name it by --url, CARILLON_URL or a context", a.url, a.err)
}

// Unwrap returns the reason.
func (a *away) Unwrap() error { return a.err }

// exit gives an error of the service its exit code.
func exit(err error) error {
	if isStatus(err, http.StatusPreconditionFailed) || isStatus(err, http.StatusConflict) {
		return &cli.ExitError{Code: exitConflict, Err: err}
	}
	_, isLost := errors.AsType[*lost](err)
	if _, isAway := errors.AsType[*away](err); isLost || isAway {
		return &cli.ExitError{Code: exitUnknown, Err: err}
	}
	return err
}

// answer is the answer to a request.
type answer struct {
	status int
	etag   string
	body   json.RawMessage
	at     time.Time // the service's time; zero if it is unknown
	// repeated is true if an attempt before may have taken effect.
	repeated bool
}

// do makes a request, and again if that is harmless and may help.
func (s *service) do(ctx context.Context, r request) (answer, error) {
	repeated := false
	for n := 1; ; n++ {
		a, err := s.attempt(ctx, r)
		a.repeated = repeated
		if err == nil {
			return a, nil
		}
		unknown, again := judge(err)
		if unknown {
			repeated = true
			err = &lost{err, r.once && r.method != http.MethodGet}
		}
		if !again || unknown && r.once || n >= s.attempts || ctx.Err() != nil {
			return a, err
		}
		if !s.wait(ctx, n, err) {
			return a, err
		}
	}
}

// wait waits before the attempt after the n-th, which failed. It returns false if ctx ends.
func (s *service) wait(ctx context.Context, n int, err error) bool {
	longest := min(s.pause<<min(n-1, 20), 10*time.Second)
	pause := rand.N(longest + 1) //nolint:gosec // it spreads requests, and hides nothing
	if refused, ok := errors.AsType[*refusal](err); ok {
		pause += min(refused.after, time.Minute)
	}
	select {
	case <-time.After(pause):
		return true
	case <-ctx.Done():
		return false
	}
}

// judge reports whether a failed request may have taken effect, and whether another try may help.
func judge(err error) (unknown, again bool) {
	if r, ok := errors.AsType[*refusal](err); ok {
		switch r.Status {
		case http.StatusTooManyRequests:
			return false, true
		case http.StatusServiceUnavailable, http.StatusBadGateway, http.StatusGatewayTimeout:
			return true, true
		}
		return false, false
	}
	_, isAway := errors.AsType[*away](err)
	return !isAway, true
}

func (s *service) attempt(ctx context.Context, r request) (answer, error) {
	target := s.base + r.path
	if len(r.query) > 0 {
		target += "?" + r.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, r.method, target, bytes.NewReader(r.body))
	if err != nil {
		return answer{}, err
	}
	if r.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for name, value := range r.header {
		req.Header.Set(name, value)
	}
	if s.key != "" {
		req.Header.Set("Authorization", "Bearer "+s.key)
	}
	if s.tenant != "" && !r.several {
		req.Header.Set("Carillon-Tenant", s.tenant)
	}
	req.Header.Set("User-Agent", "carillon")
	res, err := s.http.Do(req)
	if err != nil {
		if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
			return answer{}, &away{s.base, op.Err}
		}
		return answer{}, err
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	a := answer{status: res.StatusCode, etag: res.Header.Get("Etag"), body: body}
	a.at, _ = http.ParseTime(res.Header.Get("Date"))
	if res.StatusCode < 300 {
		return a, err
	}
	refused := &refusal{}
	if strings.HasPrefix(res.Header.Get("Content-Type"), "application/problem+json") {
		_ = json.Unmarshal(body, refused)
	}
	refused.Status = res.StatusCode
	if refused.Title == "" {
		refused.Detail = "the answer at " + s.base + " is none of Carillon's"
	}
	seconds, _ := strconv.Atoi(res.Header.Get("Retry-After"))
	refused.after = time.Duration(max(seconds, 0)) * time.Second
	return a, refused
}

// parallel is the maximum number of requests of one command under way.
const parallel = 8

// path joins segments to a path of the API, each of them encoded. Proxies take out dots that stand alone, even encoded
// ones, so the service has another form for names of dots.
func path(segments ...string) string {
	p := "/v1"
	for _, s := range segments {
		if s == "." || s == ".." {
			s = job.ReservedPrefix + s
		}
		p += "/" + url.PathEscape(s)
	}
	return p
}
