package handlers_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/handlers"
)

func TestHealthAndReadiness(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.call("GET", "/healthz", "").want(200)
	a.call("GET", "/readyz", "").want(200)
	a.mu.Lock()
	a.ready = errors.New("the claim loop has not advanced for 30s")
	a.mu.Unlock()
	got := a.call("GET", "/readyz", "").want(503)
	if detail := got.problem().Detail; detail != "the claim loop has not advanced for 30s" {
		t.Errorf("detail %q", detail)
	}
	if got.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	a.call("GET", "/healthz", "").want(200)
}

// TestWarnings: the warnings are in the answer while the replica is ready, and only then.
func TestWarnings(t *testing.T) {
	t.Parallel()
	warnings := []string{"the server keeps nothing on disk", "its clock is coarse"}
	a := newAPI(t, func(c *handlers.Config) { c.Warnings = func(context.Context) []string { return warnings } })
	for _, want := range [][]string{warnings, nil} {
		warnings = want
		got := a.call("GET", "/readyz", "").want(200)
		readiness := decode[struct {
			Status   string
			Warnings []string
		}](got)
		if readiness.Status != "ready" || !slices.Equal(readiness.Warnings, want) || want == nil && strings.Contains(string(got.body), "warnings") {
			t.Errorf("answers %s, want the warnings %q", got.body, want)
		}
	}
	warnings = []string{"the server keeps nothing on disk"}
	a.mu.Lock()
	a.ready = errors.New("the claim loop has not advanced for 30s")
	a.mu.Unlock()
	if got := a.call("GET", "/readyz", "").want(503); strings.Contains(string(got.body), warnings[0]) {
		t.Errorf("what is not ready has the warnings too: %s", got.body)
	}
}

func TestWhatIsNotThere(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	for _, path := range []string{"/v1", "/v1/jobs/", "/v1/jobs/a/b", "//v1/jobs", "/V1/jobs", "/v1/dead-letters/x/y"} {
		a.call("GET", path, "").want(404)
	}
	for request, allow := range map[string]string{
		"PATCH /v1/jobs":                   "DELETE, GET, HEAD, OPTIONS, POST",
		"POST /v1/jobs/a":                  "DELETE, GET, HEAD, OPTIONS, PATCH, PUT",
		"GET /v1/jobs/a/pause":             "OPTIONS, POST",
		"POST /v1/jobs/a/preview":          "GET, HEAD, OPTIONS",
		"GET /v1/preview":                  "OPTIONS, POST",
		"GET /v1/dead-letters/redrive":     "DELETE, OPTIONS, POST",
		"GET /v1/dead-letters/x/redrive":   "OPTIONS, POST",
		"DELETE /healthz":                  "GET, HEAD, OPTIONS",
		"HEAD /v1/dead-letters/x/redrive":  "OPTIONS, POST",
		"OPTIONS /v1/jobs/a":               "DELETE, GET, HEAD, OPTIONS, PATCH, PUT",
		"OPTIONS /v1/dead-letters/redrive": "DELETE, OPTIONS, POST",
	} {
		method, path, _ := strings.Cut(request, " ")
		status := 405
		if method == "OPTIONS" {
			status = 204
		}
		if got := a.call(method, path, "").want(status).header.Get("Allow"); got != allow {
			t.Errorf("%s: Allow is %q, want %q", request, got, allow)
		}
	}
	a.call("OPTIONS", "/nothing", "").want(404)
	for path, want := range map[string]string{"/v1/jobs/a": "application/merge-patch+json, application/json", "/v1/jobs": ""} {
		if got := a.call("OPTIONS", path, "").header.Get("Accept-Patch"); got != want {
			t.Errorf("%s: Accept-Patch is %q, want %q", path, got, want)
		}
	}
}

// TestIndex: the index leads a client that knows only the address to the rest.
func TestIndex(t *testing.T) {
	t.Parallel()
	a := newAPI(t, func(c *handlers.Config) { c.Version = "v1.2.3" })
	got := decode[map[string]string](a.call("GET", "/", "").want(200))
	if got["service"] != "carillon" || got["version"] != "v1.2.3" || !strings.HasPrefix(got["documentation"], "https://") {
		t.Errorf("it says %v", got)
	}
	for _, name := range []string{"jobs", "specification", "readiness"} {
		a.call("GET", got[name], "").want(200)
	}
}

// TestSlashInKey: a path that is none because its key has a slash is answered with the one that is meant.
func TestSlashInKey(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	for request, want := range map[string]string{
		"PUT /v1/jobs/reminders/42":        "write them as %2F: /v1/jobs/reminders%2F42",
		"GET /v1/jobs/a%20b/c/d":           "write them as %2F: /v1/jobs/a%20b%2Fc%2Fd",
		"POST /v1/jobs/a/b/pause":          "write them as %2F: /v1/jobs/a%2Fb/pause",
		"GET /v1/jobs/a/b/preview?count=1": "write them as %2F: /v1/jobs/a%2Fb/preview",
		"DELETE /v1/jobs/a/":               "write them as %2F: /v1/jobs/a%2F",
		"GET /v1/jobs/":                    "nothing at this path; GET / lists the paths",
		"GET /v1/dead-letters/a/b":         "nothing at this path; GET / lists the paths",
	} {
		method, path, _ := strings.Cut(request, " ")
		if detail := a.call(method, path, "").want(404).problem().Detail; !strings.HasSuffix(detail, want) {
			t.Errorf("%s: %s, want %s", request, detail, want)
		}
	}
	a.call("PUT", "/v1/jobs/reminders%2F42", body("reminders/42", time.Hour)).want(201)
}

func TestHeadIsGetWithoutBody(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.call("PUT", "/v1/jobs/a", body("a", time.Hour)).want(201)
	for path, status := range map[string]int{"/v1/jobs/a": 200, "/v1/jobs": 200, "/v1/jobs/b": 404, "/healthz": 200} {
		get, head := a.call("GET", path, "").want(status), a.call("HEAD", path, "").want(status)
		if len(head.body) > 0 {
			t.Errorf("%s: HEAD has a body: %s", path, head.body)
		}
		for _, name := range []string{"Content-Type", "Content-Length", "ETag"} {
			if get.header.Get(name) != head.header.Get(name) {
				t.Errorf("%s: %s is %q for GET and %q for HEAD", path, name, get.header.Get(name), head.header.Get(name))
			}
		}
	}
}
