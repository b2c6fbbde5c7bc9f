package ui_test

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon/ui"
)

// page returns the page in front of an API that answers 418.
func page(method, path string, headers ...string) *http.Response {
	r := httptest.NewRequest(method, path, http.NoBody)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	ui.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })).ServeHTTP(w, r)
	return w.Result()
}

func TestPaths(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		method, path string
		status       int
		mediaType    string
	}{
		{"GET", "/ui/", 200, "text/html; charset=utf-8"},
		{"HEAD", "/ui/", 200, "text/html; charset=utf-8"},
		{"GET", "/ui/index.html", 200, "text/html; charset=utf-8"},
		{"GET", "/ui/app.js", 200, "text/javascript; charset=utf-8"},
		{"GET", "/ui/app.css", 200, "text/css; charset=utf-8"},
		{"GET", "/ui/icon.svg", 200, "image/svg+xml"},
		{"GET", "/ui", 301, ""},
		{"POST", "/ui/", 405, ""},
		{"GET", "/ui/nothing", 418, ""},
		{"GET", "/ui/../ui.go", 418, ""},
		{"GET", "/ui%2F", 418, ""},
		{"GET", "/v1/jobs/..%2Fui%2F", 418, ""},
		{"GET", "/", 418, ""},
	} {
		got := page(c.method, c.path)
		if got.StatusCode != c.status || got.Header.Get("Content-Type") != c.mediaType {
			t.Errorf("%s %s is answered %d, %q", c.method, c.path, got.StatusCode, got.Header.Get("Content-Type"))
		}
		if c.status != 200 {
			continue
		}
		policy := got.Header.Get("Content-Security-Policy")
		for _, part := range []string{"default-src 'none'", "script-src 'self';", "style-src 'self';", "frame-ancestors 'none'"} {
			if !strings.Contains(policy, part) {
				t.Errorf("%s: the policy has no %s: %s", c.path, part, policy)
			}
		}
		if strings.Contains(policy, "unsafe") || strings.Contains(policy, "http") {
			t.Errorf("%s: the policy is %s", c.path, policy)
		}
	}
	if got := page("GET", "/ui").Header.Get("Location"); got != "ui/" {
		t.Errorf("/ui leads to %q; it must be relative, for proxies that add a prefix", got)
	}
}

// Browsers revalidate the page each time, and receive it only if it has changed.
func TestTags(t *testing.T) {
	t.Parallel()
	plain, compressed := page("GET", "/ui/app.js"), page("GET", "/ui/app.js", "Accept-Encoding", "gzip, br")
	want, err := io.ReadAll(plain.Body)
	if err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(compressed.Body)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(z); err != nil || string(got) != string(want) {
		t.Errorf("the compressed file has %d bytes, the plain one %d; %v", len(got), len(want), err)
	}
	if plain.Header.Get("ETag") == compressed.Header.Get("ETag") {
		t.Error("both codings have one tag")
	}
	for _, r := range []*http.Response{plain, compressed} {
		again := page("GET", "/ui/app.js", "Accept-Encoding", r.Header.Get("Content-Encoding"), "If-None-Match", r.Header.Get("ETag"))
		if again.StatusCode != http.StatusNotModified || r.Header.Get("Cache-Control") != "no-cache" {
			t.Errorf("the same file is answered %d", again.StatusCode)
		}
	}
}

// The page's files load nothing from elsewhere, and its text contains no script or style.
func TestNothingFromElsewhere(t *testing.T) {
	t.Parallel()
	index, err := io.ReadAll(page("GET", "/ui/").Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, forbidden := range []string{"http:", "https:", "<style", "style=", "onload", "src=\"/", "href=\"/"} {
		if strings.Contains(string(index), forbidden) {
			t.Errorf("index.html has %s", forbidden)
		}
	}
}
