package handlers_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/audit"
	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// auditLine is a line of the audit trail.
type auditLine struct {
	Time                                            time.Time
	RequestID, Principal, From, Action, Tenant, Key string
	Target, Query, Result, Version                  string
	Status, Changed, Failed                         int
}

// brief returns the line in a form that is easy to compare.
func (l auditLine) brief() string {
	text := fmt.Sprintf("%s %s %s", l.Principal, l.Action, l.Result)
	for _, f := range []struct{ name, value string }{{"tenant", l.Tenant}, {"key", l.Key}, {"target", l.Target}, {"query", l.Query}} {
		if f.value != "" {
			text += " " + f.name + "=" + f.value
		}
	}
	if l.Changed+l.Failed > 0 {
		text += fmt.Sprintf(" %d+%d", l.Changed, l.Failed)
	}
	return text
}

// auditedAPI returns an API with an audit trail; the func ends the trail and returns its text.
func auditedAPI(t *testing.T, configure ...func(*handlers.Config)) (*api, func() string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "audit")
	trail, err := audit.Open(path, slog.Default(), nil)
	if err != nil {
		t.Fatal(err)
	}
	a := newAPI(t, append(configure, func(c *handlers.Config) { c.Audit = trail })...)
	return a, func() string {
		if err := trail.Close(); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
}

func auditLines(t *testing.T, text string) (all []auditLine) {
	t.Helper()
	for text := range strings.Lines(text) {
		decoder := json.NewDecoder(strings.NewReader(text))
		decoder.DisallowUnknownFields()
		var l auditLine
		if err := decoder.Decode(&l); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		all = append(all, l)
	}
	return all
}

// TestAuditTellsWhoChangedWhat makes every kind of change, and compares the lines of the trail.
func TestAuditTellsWhoChangedWhat(t *testing.T) {
	t.Parallel()
	a, end := auditedAPI(t)
	const secret = "hunter2"
	withSecret := strings.Replace(body("k", time.Hour), `"data":1`, `"data":"`+secret+`"`, 1)
	put := a.call("PUT", "/v1/jobs/k", withSecret).want(201)
	if got := a.call("GET", "/v1/jobs/k", ""); !strings.Contains(string(got.body), secret) {
		t.Fatalf("the secret is not in the job: %s", got.body)
	}
	a.call("POST", "/v1/jobs", body("in-body", time.Hour), ofAcme).want(201)
	a.call("PATCH", "/v1/jobs/k", `{"deadline":"2h"}`, "Content-Type: application/merge-patch+json").want(200)
	a.call("PUT", "/v1/jobs/a%2Fb", "{}").want(422)
	a.call("POST", "/v1/jobs/k/pause", "").want(200)
	a.call("POST", "/v1/jobs/k/resume", "").want(200)
	a.call("POST", "/v1/jobs/k/trigger", "").want(202)
	a.call("POST", "/v1/jobs/batch", body("x", time.Hour)+"\n{}\n"+body("y", time.Hour), "Content-Type: application/x-ndjson").want(200)
	a.call("DELETE", "/v1/jobs/none", "").want(404)
	a.call("DELETE", "/v1/jobs?prefix=x", "").want(200)
	a.call("POST", "/v1/dead-letters/redrive?all=true", "").want(200)
	a.call("DELETE", "/v1/dead-letters/none", "").want(404)
	a.call("PUT", "/v1/tenants/acme", `{"weight":2}`).want(200)
	for _, look := range []string{"/v1/jobs", "/v1/jobs/k", "/v1/jobs/none", "/v1/tenants", "/healthz", "/nowhere", "/v1/backlog"} {
		a.call("GET", look, "") // which changes nothing, and is not refused
	}
	a.call("POST", "/v1/preview", `{"delay":"1h"}`)
	text := end()
	lines := auditLines(t, text)
	var got []string
	for _, l := range lines {
		got = append(got, l.brief())
		if l.RequestID == "" || !strings.HasPrefix(l.From, "127.0.0.1:") || !l.Time.Equal(start) {
			t.Errorf("it has %+v", l)
		}
	}
	want := []string{
		"anyone PUT /v1/jobs/:key done tenant=default key=k",
		"anyone POST /v1/jobs done tenant=acme key=in-body",
		"anyone PATCH /v1/jobs/:key done tenant=default key=k",
		"anyone PUT /v1/jobs/:key refused tenant=default key=a/b",
		"anyone POST /v1/jobs/:key/pause done tenant=default key=k",
		"anyone POST /v1/jobs/:key/resume done tenant=default key=k",
		"anyone POST /v1/jobs/:key/trigger done tenant=default key=k",
		"anyone POST /v1/jobs/batch done tenant=default key=x",
		"anyone POST /v1/jobs/batch done tenant=default key=y",
		"anyone POST /v1/jobs/batch done tenant=default 2+1",
		"anyone DELETE /v1/jobs/:key refused tenant=default key=none",
		"anyone DELETE /v1/jobs done tenant=default query=prefix=x 1+0",
		"anyone POST /v1/dead-letters/redrive done tenant=default query=all=true",
		"anyone DELETE /v1/dead-letters/:id refused tenant=default target=none",
		"anyone PUT /v1/tenants/:tenant done target=acme",
	}
	if !slices.Equal(got, want) {
		t.Errorf("it has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if lines[0].Version != strings.Trim(put.header.Get("ETag"), `"`) || lines[0].RequestID != put.header.Get("X-Request-Id") || lines[7].Version == "" {
		t.Errorf("the first line is %+v", lines[0])
	}
	if strings.Contains(text, secret) {
		t.Errorf("it has a payload: %s", text)
	}
}

// TestAuditOfKeys: the trail has the id of each used key and of each refused one, but never a key.
func TestAuditOfKeys(t *testing.T) {
	t.Parallel()
	written := make(lineByLine, 100)
	trail := audit.New(written, slog.Default(), nil)
	t.Cleanup(func() { _ = trail.Close() })
	a := newKeyedAPI(t, func(c *handlers.Config) { c.Audit = trail })
	admin, viewer := a.key(access.Admin, "", access.AllTenants), a.key(access.Viewer, "mail/", "acme")
	created := a.call("POST", "/v1/keys", `{"role":"submitter","tenants":["acme","bolt"]}`, admin).want(201)
	key := decode[struct{ ID, Key string }](created)
	submitter := "Authorization: Bearer " + key.Key
	line := func(status int, want string, headers ...string) {
		t.Helper()
		text := written.next(t)
		l := auditLines(t, text)[0]
		if got := strings.TrimPrefix(l.brief(), l.Principal); got != want || l.Status != status {
			t.Errorf("it has %q with status %d, want %q with %d", got, l.Status, want, status)
		}
		for _, token := range append(headers, admin, viewer, submitter) {
			if _, token, _ = strings.Cut(token, "Bearer "); token != "" && (strings.Contains(text, token) || l.Principal != "" && !strings.Contains(admin+viewer+submitter, "carillon_"+l.Principal+"_")) {
				t.Errorf("it has %s", text)
			}
		}
	}
	line(201, " POST /v1/keys done target="+key.ID)
	a.call("PUT", "/v1/jobs/k", body("k", time.Hour), submitter, ofAcme).want(201)
	line(201, " PUT /v1/jobs/:key done tenant=acme key=k")
	a.call("PUT", "/v1/jobs/k", body("k", time.Hour), submitter, ofOther).want(403)
	line(403, " PUT /v1/jobs/:key refused tenant=Other_2.eu key=k")
	a.call("POST", "/v1/jobs/k/pause", "", submitter, ofAcme).want(403)
	line(403, " POST /v1/jobs/:key/pause refused tenant=acme key=k")
	a.call("GET", "/v1/jobs", "").want(401)
	line(401, " GET /v1/jobs refused")
	wrong := "Authorization: Bearer " + strings.Replace(key.Key, "_", "_x", 1)
	a.call("GET", "/v1/backlog", "", wrong).want(401)
	line(401, " GET /v1/backlog refused", wrong)
	a.call("GET", "/v1/jobs/k", "", viewer).want(404) // which exists, beyond its scope
	line(404, " GET /v1/jobs/:key refused tenant=acme key=k")
	a.call("GET", "/v1/tenants/bolt", "", viewer).want(404)
	line(404, " GET /v1/tenants/:tenant refused target=bolt")
	a.call("GET", "/v1/dead-letters?key=k", "", viewer).want(200)
	line(200, " GET /v1/dead-letters done tenant=acme query=key=k")
	a.call("GET", "/v1/jobs/mail%2Fk", "", viewer).want(404) // there is no such job: no line
	a.call("GET", "/v1/jobs?prefix=k", "", viewer).want(200)
	a.call("POST", "/v1/keys/"+key.ID+"/rotate", `{"overlap":"1h"}`, admin).want(200)
	line(200, " POST /v1/keys/:id/rotate done target="+key.ID)
	a.call("DELETE", "/v1/keys/"+key.ID, "", admin).want(204)
	line(204, " DELETE /v1/keys/:id done target="+key.ID)
}

// aToken has the form of an API key.
const aToken = "carillon_4iC0dQxYb7Zr_Hk2mZ8rT0aVbQ1pLwX5nJcYsE3uGfD07Cfao"

// TestNoKeysInRecords: a key that a client sends in a wrong place is neither in the audit trail nor in the log.
func TestNoKeysInRecords(t *testing.T) {
	t.Parallel()
	written := make(lineByLine, 100)
	trail := audit.New(written, slog.Default(), nil)
	t.Cleanup(func() { _ = trail.Close() })
	a := newKeyedAPI(t, func(c *handlers.Config) { c.Audit = trail })
	admin := a.key(access.Admin, "", access.AllTenants)
	const masked = "carillon_4iC0dQxYb7Zr_***"
	line := func(want string) {
		t.Helper()
		text := written.next(t)
		if strings.Contains(text, aToken) || !strings.Contains(text, want) {
			t.Errorf("it has %s, want %s", text, want)
		}
	}
	a.call("DELETE", "/v1/keys/"+aToken, "", admin).want(404)
	line(`"target":"` + masked)
	a.call("GET", "/v1/jobs?access_token="+aToken, "").want(401)
	line(`"query":"access_token=` + masked)
	a.call("PUT", "/v1/jobs/"+aToken, body(aToken, time.Hour), admin).want(201)
	line(`"key":"` + masked)
	a.call("GET", "/v1/jobs", "", "Carillon-Tenant: "+aToken).want(401)
	line(`"tenant":"` + masked)
	a.call("DELETE", "/"+aToken, "", admin).want(404)
	a.store.setFault(errors.New("broken"))
	a.call("GET", "/v1/jobs/"+aToken, "", admin).want(500)
	if text := a.log.String(); strings.Contains(text, aToken) || !strings.Contains(text, masked) {
		t.Errorf("the log has %s", text)
	}
}

// lineByLine passes on the lines that are written.
type lineByLine chan string

func (w lineByLine) Write(p []byte) (int, error) { w <- string(p); return len(p), nil }

// next waits for the next line, and returns it.
func (w lineByLine) next(t *testing.T) string {
	t.Helper()
	select {
	case text := <-w:
		return text
	case <-time.After(time.Minute):
		t.Fatal("the trail has no more lines")
		return ""
	}
}

// TestAuditOfFailures: requests that failed, panicked or broke off are in the trail too.
func TestAuditOfFailures(t *testing.T) {
	t.Parallel()
	written := make(lineByLine, 100)
	trail := audit.New(written, slog.Default(), nil)
	t.Cleanup(func() { _ = trail.Close() })
	a := newAPI(t, func(c *handlers.Config) { c.Audit = trail })
	next := func() auditLine { return auditLines(t, written.next(t))[0] }

	a.store.setFault(store.ErrUnavailable)
	a.call("PUT", "/v1/jobs/k", body("k", time.Hour)).want(503)
	if l := next(); l.Status != 503 || l.Result != "failed" || l.Key != "k" || l.Version != "" {
		t.Errorf("of a store that is away it has %+v", l)
	}
	a.store.setFault(nil)
	a.call("PUT", "/v1/jobs/k", strings.Replace(body("k", time.Hour), `"data":1`, `"data":"panic"`, 1)).want(500)
	if l := next(); l.Status != 500 || l.Result != "failed" || l.Key != "k" {
		t.Errorf("of a panic it has %+v", l)
	}

	items, send := io.Pipe()
	ctx, leave := context.WithCancel(t.Context())
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, a.url+"/v1/jobs/batch", items)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", asLines)
	go func() {
		if response, err := http.DefaultClient.Do(request); err == nil {
			response.Body.Close()
		}
	}()
	if _, err := io.WriteString(send, body("first", time.Hour)+"\n"); err != nil {
		t.Fatal(err)
	}
	if l := next(); l.Key != "first" || l.Status != 201 || l.Result != "done" {
		t.Errorf("of an item it has %+v", l)
	}
	leave()
	if l := next(); l.Action != "POST /v1/jobs/batch" || l.Result != "broken" || l.Changed != 1 {
		t.Errorf("of a batch that broke off it has %+v", l)
	}
}

// blocked is a place where nothing can be written, until it is freed.
type blocked chan struct{}

func (b blocked) Write(p []byte) (int, error) { <-b; return len(p), nil }

// TestRequestsNeverWaitForTheAuditTrail: many more than its queue has room for are answered while it takes nothing.
func TestRequestsNeverWaitForTheAuditTrail(t *testing.T) {
	t.Parallel()
	stuck := make(blocked)
	trail := audit.New(stuck, slog.Default(), nil)
	a := newAPI(t, func(c *handlers.Config) { c.Audit = trail })
	lines := strings.Repeat(body("k", time.Hour)+"\n", 500)
	for range 20 {
		a.call("POST", "/v1/jobs/batch", lines, "Content-Type: application/x-ndjson").want(200)
	}
	a.call("PUT", "/v1/jobs/k", body("k", time.Hour)).want(200)
	close(stuck)
	_ = trail.Close() // on a slow machine it does not wait for all lines
}

// TestRequestIDs: each answer has one, and so have its problem, the log and the audit trail. A client's own is taken if
// it is harmless.
func TestRequestIDs(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	seen := map[string]bool{}
	for _, c := range []struct {
		given []string
		taken bool
	}{
		{nil, false},
		{[]string{"0af7651916cd43dd8448eb211c80319c"}, true},
		{[]string{"A-Za-z0_9.:/+=@"}, true},
		{[]string{strings.Repeat("x", 128)}, true},
		{[]string{strings.Repeat("x", 129)}, false},
		{[]string{""}, false},
		{[]string{"a b"}, false},
		{[]string{"a,b"}, false},
		{[]string{"a\tb"}, false},
		{[]string{`"`}, false},
		{[]string{"é"}, false},
		{[]string{"a", "b"}, false},
		{[]string{aToken}, false},
	} {
		for _, path := range []string{"/healthz", "/v1/jobs", "/v1/jobs/none", "/nowhere", "/openapi.yaml"} {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, a.url+path, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			request.Header["X-Request-Id"] = c.given
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			var p struct{ RequestID string }
			isProblem := response.StatusCode >= 400
			if isProblem {
				if err := json.NewDecoder(response.Body).Decode(&p); err != nil {
					t.Fatal(err)
				}
			}
			response.Body.Close()
			got := response.Header["X-Request-Id"]
			if len(got) != 1 || got[0] == "" || c.taken != slices.Equal(got, c.given) || isProblem && p.RequestID != got[0] {
				t.Errorf("%q: %s is answered with %q, and the problem %+v", c.given, path, got, p)
			}
			if !c.taken && seen[got[0]] {
				t.Errorf("%q was there before", got)
			}
			seen[got[0]] = true
		}
	}
	for _, path := range []string{"/healthz", "/nowhere"} { // of the listener for metrics
		recorder := httptest.NewRecorder()
		handlers.Observe(handlers.Config{Records: a.store}).ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody))
		if recorder.Header().Get("X-Request-Id") == "" {
			t.Errorf("%s is answered with %q", path, recorder.Header())
		}
	}
	a.store.setFault(store.ErrUnavailable)
	got := a.call("PUT", "/v1/jobs/k", body("k", time.Hour), "X-Request-Id: find-me").want(503)
	if !strings.Contains(a.log.String(), "request=find-me") || !bytes.Contains(got.body, []byte("find-me")) {
		t.Errorf("the log has %s", a.log)
	}
}

// BenchmarkAudit measures a request that is audited, beside one that is not.
func BenchmarkAudit(b *testing.B) {
	for name, trail := range map[string]*audit.Log{"off": nil, "on": audit.New(discard{}, slog.Default(), nil)} {
		b.Run(name, func(b *testing.B) {
			benchmarkPost(b, handlers.Config{Audit: trail})
		})
	}
}

// benchmarkPost submits jobs one by one to an API whose store does nothing.
func benchmarkPost(b *testing.B, config handlers.Config) {
	config.Store, config.Records, config.Callbacks = storesNothing{}, storesNothing{}, callbacks.NewRegistry(sender("discard"))
	config.Limits, config.MaxBody, config.Retain = job.Limits{Instants: 1000, Payload: 1 << 20}, 1<<20, retain
	api := handlers.New(config)
	text := `{"key":"k","delay":"1h","callback":{"type":"discard","data":{}}}`
	b.ReportAllocs()
	before := processorTime(b)
	for b.Loop() {
		request := httptest.NewRequestWithContext(b.Context(), http.MethodPost, "/v1/jobs", strings.NewReader(text))
		request.Header.Set("Content-Type", asArray)
		answer := httptest.NewRecorder()
		answer.Body = nil
		api.ServeHTTP(answer, request)
		if answer.Code > http.StatusCreated {
			b.Fatalf("status %d", answer.Code)
		}
	}
	b.ReportMetric((processorTime(b)-before).Seconds()*1e6/float64(b.N), "us-cpu/op")
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
