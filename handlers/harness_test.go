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
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/forecast"
	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/openapi"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/memory"
)

// start is the time at which every test begins.
var start = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

const (
	retain  = 24 * time.Hour
	horizon = 2 * time.Minute
)

// api is the API on a real store, behind a real server. Requests and answers are checked against the specification.
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
		Forecast: handlers.Forecast{
			Definitions: a.store,
			Policy:      forecast.Policy{High: 70, Normal: 25, Low: 5, OverdueAfter: 10 * time.Second, OverdueShare: .5},
		},
		Now:    a.clock,
		Logger: slog.New(slog.NewTextHandler(a.log, nil)),
	}
	for _, c := range configure {
		c(&config)
	}
	server := httptest.NewServer(handlers.New(config))
	t.Cleanup(server.Close)
	a.url = server.URL
	return a
}

// withAnyData returns the specification without the schemas of callback data: the senders of most tests take anything.
// It is read once, since that takes longer than most tests, and never changed.
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

// want checks the status.
func (g answer) want(status int) answer {
	g.api.Helper()
	if g.status != status {
		g.api.Fatalf("status %d, want %d: %s", g.status, status, g.body)
	}
	return g
}

// versionTag returns the version that the entity tag begins with, as an entity tag of its own.
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
	Key, Revision, Version, State, PausedAt, CreatedAt, UpdatedAt, NextCursor, NextInstant string
	Schedules                                                                              []string
	Pending, Missed                                                                        int
	Outcomes                                                                               *struct{ Delivered, Failed, Missed int }
	LastOutcome                                                                            struct{ Outcome, Instant, At, Error string }
	Deadline                                                                               string
	data                                                                                   []byte // the callback's, as [api.definition] found it
	Retry                                                                                  struct {
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

// lockedBuffer gathers the log.
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
