package handlers_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/openapi"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/memory"
)

// start is what the clock of every test shows at first.
var start = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

const (
	retain  = 24 * time.Hour
	horizon = 2 * time.Minute
)

// api is the API on a real store, behind a real server. What its requests and answers are, is checked against the
// specification.
type api struct {
	testing.TB
	url   string
	spec  *openapi3.T
	store *faultyStore
	log   *lockedBuffer

	mu    sync.Mutex
	now   time.Time
	wakes []store.LaneDue
	ready error
	// expanding counts how often the expander was woken.
	expanding int
}

func newAPI(t testing.TB, configure ...func(*handlers.Config)) *api {
	t.Helper()
	a := &api{TB: t, store: &faultyStore{Store: memory.New()}, now: start, spec: withAnyData(t), log: &lockedBuffer{}}
	config := handlers.Config{
		Store:     a.store,
		Inspector: a.store,
		Records:   a.store,
		Callbacks: callbacks.NewRegistry(sender("http"), sender("rabbitmq")),
		Wake: func(lane job.Lane, at time.Time) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.wakes = append(a.wakes, store.LaneDue{Lane: lane, DueAt: at})
		},
		WakeExpander: func() {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.expanding++
		},
		Ready: func(context.Context) error {
			a.mu.Lock()
			defer a.mu.Unlock()
			return a.ready
		},
		Limits:    job.Limits{Instants: 10, Payload: 2000},
		MaxBody:   4000,
		Expansion: job.Expansion{Horizon: horizon, CatchUpLimit: 1000},
		Retain:    retain,
		Now:       a.clock,
		Logger:    slog.New(slog.NewTextHandler(a.log, nil)),
	}
	for _, c := range configure {
		c(&config)
	}
	server := httptest.NewServer(handlers.New(config))
	t.Cleanup(server.Close)
	a.url = server.URL
	return a
}

// withAnyData is the specification without the schemas of callback data: the senders of most tests take anything. It is
// read once, since that takes longer than most tests, and never changed.
func withAnyData(t testing.TB) *openapi3.T {
	t.Helper()
	spec, err := loadWithAnyData()
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

var loadWithAnyData = sync.OnceValues(func() (*openapi3.T, error) {
	spec, err := openapi3.NewLoader().LoadFromData(openapi.YAML)
	if err != nil {
		return nil, err
	}
	for name, schema := range spec.Components.Schemas {
		if strings.Contains(name, "CallbackData") {
			*schema.Value = openapi3.Schema{}
		}
	}
	return spec, nil
})

func (a *api) clock() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.now
}

func (a *api) advance(d time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.now = a.now.Add(d)
}

// takeWakes answers the wakes of the default lane since it was last called.
func (a *api) takeWakes() []time.Time { return a.takeWakesOf(job.DefaultLane) }

// takeWakesOf answers the wakes of a lane since it was last called.
func (a *api) takeWakesOf(lane job.Lane) (wakes []time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, w := range a.wakes {
		if w.Lane == lane {
			wakes = append(wakes, w.DueAt)
		}
	}
	a.wakes = nil
	return wakes
}

// takeExpanding answers how often the expander was woken since it was last called.
func (a *api) takeExpanding() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := a.expanding
	a.expanding = 0
	return n
}

// answer is an HTTP answer that has been read.
type answer struct {
	api    *api
	status int
	header http.Header
	body   []byte
}

// call makes a request and checks request and answer against the specification. Headers are "Name: value"; a body
// without a Content-Type is JSON.
func (a *api) call(method, path, body string, headers ...string) answer {
	a.Helper()
	request, err := http.NewRequestWithContext(a.Context(), method, a.url+path, strings.NewReader(body))
	if err != nil {
		a.Fatal(err)
	}
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		request.Header.Del(name)
		if value != "" {
			request.Header.Set(name, value)
		}
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		a.Fatal(err)
	}
	defer response.Body.Close()
	read, err := io.ReadAll(response.Body)
	if err != nil {
		a.Fatal(err)
	}
	got := answer{api: a, status: response.StatusCode, header: response.Header, body: read}
	a.conforms(request, body, got)
	return got
}

// conforms checks an exchange against the specification: the answer always, the request if it was accepted.
func (a *api) conforms(request *http.Request, body string, got answer) {
	a.Helper()
	path, parameters := a.specPath(request.URL)
	operation := (*openapi3.Operation)(nil)
	if path != "" {
		operation = a.spec.Paths.Value(path).GetOperation(request.Method)
	}
	if operation == nil { // 404 and 405 of what is not there, HEAD and OPTIONS
		if got.status >= 400 && request.Method != http.MethodHead {
			a.isProblem(got)
		}
		return
	}
	if got.status >= 400 {
		a.isProblem(got)
	}
	input := &openapi3filter.RequestValidationInput{
		Request:     request.Clone(context.Background()),
		PathParams:  parameters,
		QueryParams: request.URL.Query(),
		Route: &routers.Route{
			Spec: a.spec, Path: path, PathItem: a.spec.Paths.Value(path), Method: request.Method, Operation: operation,
		},
		Options: &openapi3filter.Options{
			IncludeResponseStatus: true, RejectWhenRequestBodyNotSpecified: true,
			AuthenticationFunc: openapi3filter.NoopAuthenticationFunc,
		},
	}
	if path == "/v1/jobs/batch" { // a batch that is broken in part is accepted in part
		input.Options.ExcludeRequestBody = body == "" || bytes.Contains(got.body, []byte(`"title":`))
	}
	if request.Header.Get("Content-Type") == "" { // then nothing is specified but that it may be so
		input.Options.ExcludeRequestBody = true
	}
	input.Request.Body = io.NopCloser(strings.NewReader(body))
	if body == "" {
		input.Request.Body = http.NoBody
	}
	if err := openapi3filter.ValidateRequest(context.Background(), input); err != nil && got.status < 400 {
		a.Errorf("%s %s was answered with %d, but the specification refuses it: %v", request.Method, request.URL, got.status, err)
	}
	output := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: input, Status: got.status, Header: got.header, Options: input.Options,
	}
	output.SetBodyBytes(got.body)
	if err := openapi3filter.ValidateResponse(context.Background(), output); err != nil {
		a.Errorf("%s %s: the answer is not as specified: %v\n%s", request.Method, request.URL, err, got.body)
	}
}

// isProblem checks that an answer is a problem document whose status is the answer's.
func (a *api) isProblem(got answer) {
	a.Helper()
	if media := got.header.Get("Content-Type"); media != "application/problem+json" {
		a.Fatalf("status %d has Content-Type %q: %s", got.status, media, got.body)
	}
	a.matches(a.spec.Components.Schemas["Problem"], got.body)
	if p := got.problem(); p.Status != got.status {
		a.Errorf("status %d has a problem with status %d", got.status, p.Status)
	}
}

// matches checks a document against a schema of the specification.
func (a *api) matches(schema *openapi3.SchemaRef, document []byte) {
	a.Helper()
	var v any
	if err := json.Unmarshal(document, &v); err != nil {
		a.Fatalf("not JSON: %v: %s", err, document)
	}
	if err := schema.Value.VisitJSON(v, openapi3.EnableJSONSchema2020()); err != nil {
		a.Errorf("not as specified (%s): %v: %s", schema.Ref, err, document)
	}
}

// specPath finds the specification's path for a URL, static segments before parameters.
func (a *api) specPath(u *url.URL) (path string, parameters map[string]string) {
	segments := strings.Split(u.EscapedPath(), "/")
	for _, candidate := range slices.Backward(a.spec.Paths.InMatchingOrder()) {
		found, ok := map[string]string{}, true
		parts := strings.Split(candidate, "/")
		if len(parts) != len(segments) {
			continue
		}
		for i, part := range parts {
			switch {
			case strings.HasPrefix(part, "{") && segments[i] != "":
				value, err := url.PathUnescape(segments[i])
				if err != nil {
					a.Fatal(err)
				}
				found[strings.Trim(part, "{}")] = value
			case part != segments[i]:
				ok = false
			}
		}
		if ok && (path == "" || len(found) < len(parameters)) {
			path, parameters = candidate, found
		}
	}
	return path, parameters
}

// want checks the status.
func (g answer) want(status int) answer {
	g.api.Helper()
	if g.status != status {
		g.api.Fatalf("status %d, want %d: %s", g.status, status, g.body)
	}
	return g
}

// versionTag is the version that the entity tag begins with, as an entity tag of its own.
func (g answer) versionTag() string {
	version, _, _ := strings.Cut(strings.Trim(g.header.Get("ETag"), `"`), "-")
	return `"` + version + `"`
}

// decode reads the body as JSON.
func decode[T any](g answer) T {
	g.api.Helper()
	var v T
	if err := json.Unmarshal(g.body, &v); err != nil {
		g.api.Fatalf("%v: %s", err, g.body)
	}
	return v
}

type problem struct {
	Status int
	Title  string
	Detail string
	Errors []struct {
		Pointer   *string
		Parameter *string
		Message   string
	}
}

func (g answer) problem() problem { g.api.Helper(); return decode[problem](g) }

// named lists the fields and parameters that a problem names: "/pointer" or "?parameter".
func (p problem) named() []string {
	var names []string
	for _, e := range p.Errors {
		if e.Pointer != nil {
			names = append(names, *e.Pointer)
		}
		if e.Parameter != nil {
			names = append(names, "?"+*e.Parameter)
		}
	}
	return names
}

type accepted struct {
	Key, Revision, Version, State, NextInstant string
	Occurrences, Skipped, Settled, Missed      int
	InFlight                                   *int
}

type definition struct {
	Key, Revision, Version, State, PausedAt, CreatedAt, UpdatedAt, NextCursor string
	Schedules                                                                 []string
	Pending, Missed                                                           int
	Outcomes                                                                  *struct{ Delivered, Failed, Missed int }
	LastOutcome                                                               struct{ Outcome, Instant, At, Error string }
	Deadline                                                                  string
	data                                                                      []byte // the callback's, as [api.definition] found it
	Retry                                                                     struct {
		MaxAttempts  int
		Initial, Max string
		Factor       float64
	}
	Callback    struct{ Type string }
	Occurrences []occurrence
}

type occurrence struct {
	ID, DeliveryID, Timestamp, State, DueAt, ScheduledAt, LastError, Subscriber string
	Attempt                                                                     int
	Step                                                                        *int
}

func pathOf(key string) string { return "/v1/jobs/" + url.PathEscape(key) }

func name(key string) job.Name { return job.Name{Tenant: job.DefaultTenant, Key: key} }

// claim takes everything that is due.
func (a *api) claim() []store.Claimed {
	a.Helper()
	page, err := a.store.DueLanes(a.Context(), store.DueParams{Until: a.clock(), Limit: 1000})
	if err != nil {
		a.Fatal(err)
	}
	params := store.ClaimParams{Now: a.clock(), Lease: time.Minute, Quotas: []store.Quota{{Lane: job.DefaultLane, Limit: 100}}}
	for _, l := range page.Lanes {
		if l.Lane != job.DefaultLane {
			params.Quotas = append(params.Quotas, store.Quota{Lane: l.Lane, Limit: 100})
		}
	}
	c, err := a.store.Claim(a.Context(), params)
	if err != nil {
		a.Fatal(err)
	}
	return c.Occurrences
}

// settle ends a claim.
func (a *api) settle(c store.Claimed, outcome store.Outcome, failure string) {
	a.Helper()
	err := a.store.Settle(a.Context(), []store.Settlement{{
		ID: c.ID, Token: c.Token, Outcome: outcome, DueAt: a.clock().Add(time.Hour), Error: failure, Target: c.Target,
		At: a.clock(), Name: c.Name, Revision: c.Revision, KeepUntil: a.clock().Add(time.Hour + retain),
	}})
	if err != nil {
		a.Fatal(err)
	}
}

// lockedBuffer gathers what is logged.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestMain(m *testing.M) {
	for _, media := range []string{"application/x-ndjson", "application/jsonl"} {
		openapi3filter.RegisterBodyDecoder(media, openapi3filter.PlainBodyDecoder)
	}
	m.Run()
}
