// Package contract_test proves the Go client against the API itself, on a store in memory, and through a proxy that
// loses requests and answers.
package contract_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/callbacks/webhook"
	"github.com/carillon-scheduler/carillon/client"
	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/secrets"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/memory"
)

// service is the API on a store in memory, behind a proxy.
type service struct {
	url   string
	store store.Store
	calls sync.Map // the routes that were called, as "METHOD /path"

	mu    sync.Mutex
	fates []fate // of the next requests
	count atomic.Int32
}

// fate is the proxy's treatment of a request.
type fate uint8

const (
	passed      fate = iota
	requestLost      // it never arrives
	answerLost       // it arrives, and its answer does not
	unavailable      // a proxy answers 503, and the request never arrives
	halfAnswer       // the connection breaks amid the answer
	refused          // 429
)

func newService(t *testing.T, configure ...func(*handlers.Config)) *service {
	t.Helper()
	st := memory.New()
	hooks := webhook.New(webhook.Options{})
	t.Cleanup(func() { _ = hooks.Close() })
	config := handlers.Config{
		Store: st, Inspector: st, Records: st, Callbacks: callbacks.NewRegistry(hooks),
		Expansion: job.Expansion{Horizon: time.Minute, CatchUpLimit: 100}, Retain: time.Hour,
		Limits: job.Limits{Instants: 100, Payload: 10_000}, MaxBody: 1 << 20, Version: "v1.2.3",
		Logger: slog.New(slog.DiscardHandler),
	}
	for _, c := range configure {
		c(&config)
	}
	s := &service{store: st}
	api := handlers.New(config)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.serve(api, w, r) }))
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

func (s *service) serve(api http.Handler, w http.ResponseWriter, r *http.Request) {
	s.count.Add(1)
	s.mu.Lock()
	next := passed
	if len(s.fates) > 0 {
		next, s.fates = s.fates[0], s.fates[1:]
	}
	s.mu.Unlock()
	problem := func(status int) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"type":"about:blank","title":"x","status":%d,"detail":"the proxy says so"}`, status)
	}
	s.calls.Store(r.Method+" "+r.URL.EscapedPath(), true)
	switch next {
	case passed:
		api.ServeHTTP(w, r)
	case requestLost:
		panic(http.ErrAbortHandler)
	case answerLost:
		api.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	case halfAnswer:
		rec := httptest.NewRecorder()
		api.ServeHTTP(rec, r)
		w.Header().Set("Content-Length", fmt.Sprint(rec.Body.Len()+10))
		w.WriteHeader(rec.Code)
		_, _ = w.Write(rec.Body.Bytes())
		panic(http.ErrAbortHandler)
	case unavailable:
		problem(503)
	case refused:
		problem(429)
	}
}

// fate decides about the next requests, and counts from now on.
func (s *service) fate(of ...fate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fates = of
	s.count.Store(0)
}

func (s *service) client(t *testing.T, configure ...func(*client.Config)) *client.Client {
	t.Helper()
	config := client.Config{URL: s.url, Pause: time.Millisecond}
	for _, c := range configure {
		c(&config)
	}
	c, err := client.New(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// hook is a callback of all tests.
var hook = client.HTTP(client.HTTPData{URL: "https://example.com/hook", Payload: map[string]any{"user": 42}})

func at(d time.Duration) time.Time { return time.Now().Add(d).UTC().Truncate(time.Millisecond) }

func all[T any](t *testing.T, items iter.Seq2[T, error]) (list []T) {
	t.Helper()
	for item, err := range items {
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, item)
	}
	return list
}

// must returns a value, and fails the test if there is an error.
func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// withSecrets gives the API a key for secrets.
func withSecrets(t *testing.T) func(*handlers.Config) {
	return func(c *handlers.Config) {
		name := filepath.Join(t.TempDir(), "key")
		text, _ := secrets.NewKey()
		if err := os.WriteFile(name, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		c.Secrets = secrets.New(c.Records, must(secrets.ReadKeyring([]string{name}))(t), slog.New(slog.DiscardHandler))
	}
}

// TestEveryOperation calls each method once, and checks that together they call each operation of the specification.
func TestEveryOperation(t *testing.T) {
	s := newService(t, withSecrets(t))
	c, ctx := s.client(t), t.Context()

	accepted := must(c.Put(ctx, client.Job{Key: "a/b c", Schedules: []time.Time{at(time.Hour)}, Callback: hook}))(t)
	if !accepted.Created || accepted.Occurrences != 1 || accepted.State != "scheduled" {
		t.Errorf("put: %+v", accepted)
	}
	view := must(c.Job(ctx, "a/b c"))(t)
	if view.Version != accepted.Version || view.Pending != 1 || view.Callback.Type != "http" || view.ETag == "" {
		t.Errorf("job: %+v", view)
	}
	var data client.HTTPData
	if err := json.Unmarshal(view.Callback.Data.(json.RawMessage), &data); err != nil || data.URL != "https://example.com/hook" {
		t.Errorf("callback: %s, %v", view.Callback.Data, err)
	}
	// A job that was read can be put again.
	if again := must(c.Put(ctx, view.Job, client.IfVersion(view.Version)))(t); again.Created || again.InFlight == nil {
		t.Errorf("put again: %+v", again)
	}
	view = must(c.Job(ctx, "a/b c"))(t)
	if _, changed, err := c.JobIfChanged(ctx, "a/b c", view.ETag); changed || err != nil {
		t.Errorf("job if changed: %t, %v", changed, err)
	}
	if list := all(t, c.Jobs(ctx, client.JobFilter{Prefix: "a/", State: "scheduled", Kind: "instants"})); len(list) != 1 || list[0].Key != "a/b c" {
		t.Errorf("jobs: %+v", list)
	}
	if list := all(t, c.Occurrences(ctx, "a/b c")); len(list) != 1 || list[0].State != "scheduled" {
		t.Errorf("occurrences: %+v", list)
	}
	patched := must(c.Patch(ctx, "a/b c", map[string]any{"deadline": client.Duration(90 * time.Minute)}))(t)
	if patched.Version == view.Version {
		t.Errorf("patch: %+v", patched)
	}
	if v := must(c.Job(ctx, "a/b c"))(t); v.Deadline != client.Duration(90*time.Minute) {
		t.Errorf("the patched deadline is %s", v.Deadline)
	}
	if p := must(c.Pause(ctx, "a/b c"))(t); p.State != "paused" || p.PausedAt.IsZero() {
		t.Errorf("pause: %+v", p)
	}
	if p := must(c.Resume(ctx, "a/b c"))(t); p.State != "scheduled" {
		t.Errorf("resume: %+v", p)
	}
	if p := must(c.Trigger(ctx, "a/b c"))(t); p.DeliveryID == "" {
		t.Errorf("trigger: %+v", p)
	}
	due := at(time.Hour).Truncate(time.Second)
	must(c.Put(ctx, client.Job{Key: "expected", Schedules: []time.Time{due}, Callback: hook, ExpectBy: client.Duration(time.Hour)}))(t)
	if got := must(c.CheckIn(ctx, "expected", due))(t); !got.Cancelled || !got.At.Equal(due) {
		t.Errorf("check-in: %+v", got)
	}
	if got := must(c.CheckIn(ctx, "expected", time.Time{}))(t); got.Cancelled {
		t.Errorf("check-in for an instant that has not passed: %+v", got)
	}
	must(c.Cancel(ctx, "expected"))(t)
	if p := must(c.Preview(ctx, "a/b c", 3))(t); len(p.Items) != 1 {
		t.Errorf("preview: %+v", p)
	}
	if p := must(c.PreviewJob(ctx, client.Job{Crontab: "30 2 * * *", Timezone: "Europe/Paris", Callback: hook}, 5))(t); len(p.Items) != 5 {
		t.Errorf("preview of a job: %+v", p)
	}
	if e := must(c.Explain(ctx, "a/b c", ""))(t); e.Code == "" || e.Summary == "" || len(e.Facts) == 0 {
		t.Errorf("explain: %+v", e)
	}
	all(t, c.JobHistory(ctx, "a/b c", client.HistoryFilter{Outcome: "failed", Since: at(-time.Hour)}))
	all(t, c.History(ctx, client.HistoryFilter{Prefix: "a", Until: at(time.Hour)}))
	if got := must(c.Cancel(ctx, "a/b c"))(t); got.Cancelled != 2 || got.CountsLost {
		t.Errorf("cancel: %+v", got)
	}

	var results []client.BatchResult
	jobs := slices.Values([]client.Job{
		{Key: "x1", Schedules: []time.Time{at(time.Hour)}, Callback: hook}, {Key: "bad", Callback: hook},
		{Key: "x2", Crontab: "@daily", Callback: hook},
	})
	for r, err := range c.Batch(ctx, jobs) {
		if err != nil {
			t.Fatal(err)
		}
		results = append(results, r)
	}
	if len(results) != 3 || !results[0].Created || !errors.Is(results[1].Err, client.ErrInvalid) || results[2].Key != "x2" {
		t.Errorf("batch: %+v", results)
	}
	version := results[0].Version
	for _, key := range []string{".", "..", "a/../b", "100%"} {
		if got := must(c.Put(ctx, client.Job{Key: key, Crontab: "@daily", Callback: hook}))(t); got.Key != key || !got.Created {
			t.Errorf("%q: %+v", key, got)
		}
		must(c.Cancel(ctx, key))(t)
	}
	conditional := func(yield func(client.Job, client.Condition) bool) {
		x1 := client.Job{Key: "x1", Crontab: "@daily", Callback: hook}
		_ = yield(x1, client.IfNone()) && yield(x1, client.IfVersion(version)) && yield(x1, client.Condition{})
	}
	results = nil
	for r, err := range c.BatchIf(ctx, conditional) {
		if err != nil {
			t.Fatal(err)
		}
		results = append(results, r)
	}
	if len(results) != 3 || !errors.Is(results[0].Err, client.ErrPreconditionFailed) || results[1].Err != nil || results[2].Err != nil {
		t.Errorf("batch on conditions: %+v", results)
	}
	if got := must(c.CancelPrefix(ctx, "x"))(t); got.Jobs != 2 {
		t.Errorf("cancel of a prefix: %+v", got)
	}

	s.bury(t, "dead1", "dead2", "dead3", "dead4")
	letters := all(t, c.DeadLetters(ctx, client.Selection{Prefix: "dead"}))
	if len(letters) != 4 || letters[0].Error == "" {
		t.Fatalf("dead letters: %+v", letters)
	}
	noError(t, c.RedriveDeadLetter(ctx, letters[0].ID))
	noError(t, c.DeleteDeadLetter(ctx, letters[1].ID))
	if n := must(c.RedriveDeadLetters(ctx, client.Selection{Key: letters[2].Key}))(t); n != 1 {
		t.Errorf("%d are redriven", n)
	}
	if n := must(c.DeleteDeadLetters(ctx, client.Selection{All: true}))(t); n != 1 {
		t.Errorf("%d are deleted", n)
	}

	tenant := must(c.PutTenant(ctx, "acme", client.TenantSettings{
		Weight: 3, MaxInFlight: 50, Events: &client.EventSettings{Callback: hook, Types: []string{"carillon.job.finished"}},
	}))(t)
	if tenant.Settings.Events == nil || len(tenant.Settings.Events.Types) != 1 || tenant.Settings.Weight != 3 || must(c.Tenant(ctx, "acme"))(t).Settings.MaxInFlight != 50 {
		t.Errorf("tenant: %+v", tenant)
	}
	if list := all(t, c.Tenants(ctx)); len(list) == 0 {
		t.Error("no tenants")
	}
	if got := must(c.ResetTenant(ctx, "acme"))(t); got.Settings.Weight != 1 {
		t.Errorf("reset: %+v", got)
	}
	most := 10
	if got := must(c.PutTenantLimits(ctx, "acme", client.Limits{MaxJobs: &most}))(t); *got.Own.MaxJobs != 10 {
		t.Errorf("limits: %+v", got)
	}
	if got := must(c.TenantLimits(ctx, "acme"))(t); *got.Effective.MaxJobs != 10 {
		t.Errorf("limits: %+v", got)
	}
	if got := must(c.ResetTenantLimits(ctx, "acme"))(t); got.Own.MaxJobs != nil {
		t.Errorf("limits: %+v", got)
	}

	key := must(c.CreateKey(ctx, client.NewKey{Role: "viewer", Tenants: []string{"acme"}, Note: "x"}))(t)
	if key.Key == "" || must(c.Key(ctx, key.ID))(t).Role != "viewer" || len(all(t, c.Keys(ctx))) != 1 {
		t.Errorf("key: %+v", key)
	}
	if rotated := must(c.RotateKey(ctx, key.ID, time.Hour))(t); rotated.Key == key.Key {
		t.Errorf("rotated: %+v", rotated)
	}
	if got := must(c.PutKeyLimits(ctx, key.ID, client.Limits{MaxJobs: &most}))(t); got.Limits == nil || *got.Limits.MaxJobs != 10 {
		t.Errorf("key's limits: %+v", got)
	}
	noError(t, c.RevokeKey(ctx, key.ID))

	if got := must(c.PutSecret(ctx, "token", "t0ken", "http https://example.com"))(t); got.Name != "token" {
		t.Errorf("secret: %+v", got)
	}
	if list := all(t, c.Secrets(ctx)); len(list) != 1 || len(list[0].Destinations) != 1 {
		t.Errorf("secrets: %+v", list)
	}
	noError(t, c.DeleteSecret(ctx, "token"))
	signing := must(c.CreateSigningSecret(ctx, client.NewSigningSecret{Name: "default", Ed25519: true}))(t)
	if signing.Secret == "" || len(all(t, c.SigningSecrets(ctx))) != 1 {
		t.Errorf("signing secret: %+v", signing)
	}
	if got := must(c.RotateSigningSecret(ctx, "default", time.Hour))(t); got.Secret == signing.Secret || len(got.Valid) != 2 {
		t.Errorf("rotated: %+v", got)
	}
	noError(t, c.DeleteSigningSecret(ctx, "default"))

	if b := must(c.Backlog(ctx, 5))(t); len(b.Priorities) != 3 {
		t.Errorf("backlog: %+v", b)
	}
	if st := must(c.Status(ctx))(t); st.AsOf.IsZero() {
		t.Errorf("status: %+v", st)
	}
	if who := must(c.Session(ctx))(t); who.Role != "admin" || len(who.Permissions) == 0 {
		t.Errorf("session: %+v", who)
	}
	must(c.Ready(ctx))(t)
	if v := must(c.Version(ctx))(t); v != "v1.2.3" {
		t.Errorf("version %q", v)
	}
	var spec struct {
		Paths map[string]map[string]any
	}
	if err := json.Unmarshal(must(c.Specification(ctx))(t), &spec); err != nil {
		t.Fatal(err)
	}
	if doc := must(c.Document(ctx, "GET", "/v1/jobs?limit=1", nil))(t); !strings.Contains(string(doc), `"items"`) {
		t.Errorf("document: %s", doc)
	}
	if schema := must(c.JobSchema(ctx))(t); !strings.Contains(string(schema), `"NewJob"`) {
		t.Errorf("schema: %s", schema)
	}
	s.coversAll(t, spec.Paths)
}

// left are operations that the client has no method for.
var left = []string{
	"POST /v1/jobs", // PUT does the same
	"GET /healthz", "GET /metrics", "GET /openapi.yaml", "GET /v1/forecast", "POST /v1/forecast",
	"POST /v1/session", "DELETE /v1/session", // for browsers
}

// coversAll checks that every operation was called, except those that are left out on purpose.
func (s *service) coversAll(t *testing.T, paths map[string]map[string]any) {
	t.Helper()
	if len(paths) < 20 {
		t.Fatal("the specification has hardly any path")
	}
	for path, operations := range paths {
		for method := range operations {
			method = strings.ToUpper(method)
			if !slices.Contains([]string{"GET", "PUT", "POST", "PATCH", "DELETE"}, method) {
				continue
			}
			called := false
			s.calls.Range(func(key, _ any) bool {
				m, p, _ := strings.Cut(key.(string), " ")
				called = called || m == method && matches(path, p)
				return !called
			})
			if operation := method + " " + path; called == slices.Contains(left, operation) {
				t.Errorf("%s: called is %t; the client needs a method for it, or it must stand in left", operation, called)
			}
		}
	}
}

// matches reports whether a path is one of the template.
func matches(template, path string) bool {
	want, got := strings.Split(template, "/"), strings.Split(path, "/")
	if len(want) != len(got) {
		return false
	}
	exact := true
	for i := range want {
		if strings.HasPrefix(want[i], "{") {
			exact = false
			if got[i] == "redrive" || got[i] == "batch" {
				return false // a path of its own
			}
		} else if want[i] != got[i] {
			return false
		}
	}
	return exact || !strings.Contains(path, "{")
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// bury puts jobs that are due, and gives them up.
func (s *service) bury(t *testing.T, keys ...string) {
	t.Helper()
	c := s.client(t)
	for _, key := range keys {
		must(c.Put(t.Context(), client.Job{Key: key, Schedules: []time.Time{at(-time.Second)}, Callback: hook}))(t)
	}
	now := at(0)
	claim := must(s.store.Claim(t.Context(), store.ClaimParams{
		Now: now, Lease: time.Minute, Quotas: []store.Quota{{Lane: job.DefaultLane, Limit: 100}},
	}))(t)
	for _, held := range claim.Occurrences {
		noError(t, s.store.Settle(t.Context(), []store.Settlement{{
			ID: held.ID, Token: held.Token, Outcome: store.Bury, Error: "410 Gone", Target: held.Target, At: now,
			Name: held.Name, Revision: held.Revision, KeepUntil: now.Add(time.Hour),
		}}))
	}
}

// of returns the error of a call.
func of[T any](_ T, err error) error { return err }

// TestLostRequestsAndAnswers: if a request or an answer is lost, the change is made once, or the error says that this
// is unknown.
func TestLostRequestsAndAnswers(t *testing.T) {
	s := newService(t)
	c, ctx := s.client(t), t.Context()
	crontab := client.Job{Key: "k", Crontab: "@daily", Callback: hook}
	delayed := client.Job{Key: "k", Delay: client.Duration(time.Hour), Callback: hook}
	exists := func() { must(c.Put(ctx, crontab))(t) }
	for _, test := range []struct {
		name  string
		setUp func()
		call  func() error
		fates []fate
		// unknown, or how many requests there are, and the error's kind.
		unknown  bool
		requests int32
		err      error
		pending  int // occurrences of the job afterwards; -1 if there is no job
	}{
		{"put whose request is lost", nil, func() error { return of(c.Put(ctx, crontab)) }, []fate{requestLost, unavailable, refused}, false, 4, nil, 1},
		{"put whose answer is lost", nil, func() error { return of(c.Put(ctx, crontab)) }, []fate{answerLost, halfAnswer}, false, 3, nil, 1},
		{"delay whose answer is lost", nil, func() error { return of(c.Put(ctx, delayed)) }, []fate{answerLost}, true, 1, nil, 1},
		{"delay whose request is lost", nil, func() error { return of(c.Put(ctx, delayed)) }, []fate{requestLost}, true, 1, nil, -1},
		{"delay that is refused first", nil, func() error { return of(c.Put(ctx, delayed)) }, []fate{refused, refused}, false, 3, nil, 1},
		{"delay with a condition, whose request is lost", nil, func() error { return of(c.Put(ctx, delayed, client.IfNone())) }, []fate{requestLost}, false, 2, nil, 1},
		{"delay with a condition, whose answer is lost", nil, func() error { return of(c.Put(ctx, delayed, client.IfNone())) }, []fate{answerLost}, true, 2, client.ErrPreconditionFailed, 1},
		{"patch", exists, func() error { return of(c.Patch(ctx, "k", map[string]any{"deadline": "1h"})) }, []fate{answerLost}, true, 1, nil, 1},
		{"patch with a condition", exists, func() error { return of(c.Patch(ctx, "k", map[string]any{"deadline": "1h"}, client.IfExists())) }, []fate{unavailable, answerLost}, false, 3, nil, 1},
		{"cancel whose answer is lost", exists, func() error { return of(c.Cancel(ctx, "k")) }, []fate{answerLost}, false, 2, nil, -1},
		{"cancel on a condition whose answer is lost", exists, func() error { return of(c.Cancel(ctx, "k", client.IfExists())) }, []fate{answerLost}, false, 2, nil, -1},
		{"cancel of another version", exists, func() error { return of(c.Cancel(ctx, "k", client.IfVersion("01KBX2Q7ZJ7Q1H8Z5V0T9W3M4N"))) }, nil, false, 1, client.ErrPreconditionFailed, 1},
		{"cancel of nothing", nil, func() error { return of(c.Cancel(ctx, "k")) }, nil, false, 1, client.ErrNotFound, -1},
		{"pause", exists, func() error { return of(c.Pause(ctx, "k")) }, []fate{answerLost, requestLost}, false, 3, nil, 1},
		{"trigger whose answer is lost", exists, func() error { return of(c.Trigger(ctx, "k")) }, []fate{answerLost}, true, 1, nil, 2},
		{"trigger that is refused first", exists, func() error { return of(c.Trigger(ctx, "k")) }, []fate{refused}, false, 2, nil, 2},
		{"a key", nil, func() error { return of(c.CreateKey(ctx, client.NewKey{Role: "viewer", Tenants: []string{"a"}})) }, []fate{answerLost}, true, 1, nil, -1},
		{"read", exists, func() error { return of(c.Job(ctx, "k")) }, []fate{requestLost, answerLost, halfAnswer, unavailable, refused}, false, 6, nil, 1},
		{"read, too often", exists, func() error { return of(c.Job(ctx, "k")) }, slices.Repeat([]fate{unavailable}, 6), true, 6, client.ErrUnavailable, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			s.fate()
			_, _ = c.Cancel(ctx, "k")
			if test.setUp != nil {
				test.setUp()
			}
			s.fate(test.fates...)
			err := test.call()
			if n := s.count.Load(); n != test.requests {
				t.Errorf("%d requests, want %d", n, test.requests)
			}
			if client.OutcomeUnknown(err) != test.unknown || test.err != nil && !errors.Is(err, test.err) ||
				test.err == nil && !test.unknown && err != nil {
				t.Errorf("error %v, want unknown %t, %v", err, test.unknown, test.err)
			}
			s.fate()
			view, err := c.Job(ctx, "k")
			if test.pending < 0 {
				if !errors.Is(err, client.ErrNotFound) {
					t.Errorf("there is a job: %v", err)
				}
			} else if err != nil || view.Pending != test.pending {
				t.Errorf("%d occurrences are pending, want %d; %v", view.Pending, test.pending, err)
			}
		})
	}
}
