package remote_test

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/callbacks/webhook"
	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
	"github.com/carillon-scheduler/carillon/cmd/internal/remote"
	"github.com/carillon-scheduler/carillon/forecast"
	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/secrets"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/memory"
)

// now is the time of the service's clock.
var now = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

// world is a service, and a folder in which commands run.
type world struct {
	*testing.T
	url   string
	store store.Store
	// before is called before each request, and may answer it.
	mu     sync.Mutex
	before func(http.ResponseWriter, *http.Request) (answered bool)
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, store: memory.New()}
	hooks := webhook.New(webhook.Options{})
	t.Cleanup(func() { _ = hooks.Close() })
	text, _ := secrets.NewKey()
	key := filepath.Join(t.TempDir(), "encryption.key")
	if err := os.WriteFile(key, []byte(text+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	keyring, err := secrets.ReadKeyring([]string{key})
	if err != nil {
		t.Fatal(err)
	}
	api := handlers.New(handlers.Config{
		Secrets: secrets.New(w.store, keyring, slog.New(slog.DiscardHandler)),
		Store:   w.store, Inspector: w.store, Records: w.store, Callbacks: callbacks.NewRegistry(hooks),
		Expansion: job.Expansion{Horizon: time.Minute, CatchUpLimit: 100}, Retain: time.Hour,
		Limits: job.Limits{Instants: 100, Payload: 10_000}, MaxBody: 1 << 20, Version: "v1.2.3",
		Forecast: handlers.Forecast{Definitions: w.store, Policy: forecast.Policy{High: 70, Normal: 25, Low: 5}},
		Now:      func() time.Time { return now }, Logger: slog.New(slog.DiscardHandler),
	})
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Date", now.Add(90*time.Second).Format(http.TimeFormat)) // answers are relative to this later time
		w.mu.Lock()
		before := w.before
		w.mu.Unlock()
		if before == nil || !before(rw, r) {
			api.ServeHTTP(rw, r)
		}
	}))
	t.Cleanup(server.Close)
	w.url = server.URL
	t.Chdir(t.TempDir())
	for _, name := range []string{
		"CARILLON_KEY", "CARILLON_TENANT", "CARILLON_CONTEXT", "CARILLON_KEY_FILE", "NO_COLOR", "HTTP_PROXY", "http_proxy",
	} {
		t.Setenv(name, "")
	}
	t.Setenv("CARILLON_URL", w.url)
	t.Setenv("CARILLON_CONFIG", filepath.Join(t.TempDir(), "contexts.json"))
	t.Setenv("TERM", "xterm")
	w.file("digest.yaml", digest)
	w.file("job.yaml", strings.TrimPrefix(digest, "key: digest\n"))
	return w
}

const digest = `key: digest
crontab: 0 9 * * MON-FRI
timezone: Europe/Paris
callback:
  type: http
  data:
    url: https://example.com/digest
    payload: {team: 7, b: 1.50, a: "x"}
`

func (w *world) file(name, content string) {
	w.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		w.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		w.Fatal(err)
	}
}

func program() cli.Program {
	return cli.Program{Name: "carillon", Commands: remote.Commands(program)}
}

// result is the result of a command.
type result struct {
	code           int
	stdout, stderr string
}

// run runs a command line.
func (w *world) run(line string) result {
	w.Helper()
	return w.with(nil, line)
}

func (w *world) with(stdin io.Reader, line string) result {
	w.Helper()
	var stdout, stderr bytes.Buffer
	p := program()
	p.Stdin = stdin
	if stdin == nil {
		p.Stdin = strings.NewReader("")
	}
	code := p.Run(words(line), &stdout, &stderr)
	return result{code, stdout.String(), stderr.String()}
}

var (
	word   = regexp.MustCompile(`('[^']*'|"[^"]*"|[^ '"])+`)
	quoted = regexp.MustCompile(`'([^']*)'|"([^"]*)"`)
)

// words parts a command line as a shell does, if nothing in it is special but quotes.
func words(line string) (all []string) {
	for _, one := range word.FindAllString(line, -1) {
		all = append(all, quoted.ReplaceAllString(one, "$1$2"))
	}
	return all
}

// ok runs a command that must succeed, and returns its output.
func (w *world) ok(line string) string {
	w.Helper()
	r := w.run(line)
	if r.code != 0 {
		w.Fatalf("%s: exit code %d\n%s%s", line, r.code, r.stdout, r.stderr)
	}
	return r.stdout
}

// want runs a command and checks its exit code, and that its output and errors contain the texts.
func (w *world) want(line string, code int, texts ...string) {
	w.Helper()
	r := w.run(line)
	if r.code != code {
		w.Errorf("%s: exit code %d, want %d\n%s%s", line, r.code, code, r.stdout, r.stderr)
	}
	for _, text := range texts {
		if !strings.Contains(r.stdout+r.stderr, text) {
			w.Errorf("%s does not say %q:\n%s%s", line, text, r.stdout, r.stderr)
		}
	}
}

// bury makes dead letters of jobs with these keys.
func (w *world) bury(failure string, keys ...string) {
	w.Helper()
	for _, key := range keys {
		w.file("dead.json", `{"schedules":["2030-01-01T11:59:00Z"],"past":"fire","callback":{"type":"http","data":{"url":"https://example.com/x"}}}`)
		w.ok("job put " + key + " -f dead.json")
	}
	claim, err := w.store.Claim(w.Context(), store.ClaimParams{
		Now: now, Lease: time.Minute, Quotas: []store.Quota{{Lane: job.DefaultLane, Limit: 1000}},
	})
	if err != nil {
		w.Fatal(err)
	}
	for _, held := range claim.Occurrences {
		err := w.store.Settle(w.Context(), []store.Settlement{{
			ID: held.ID, Token: held.Token, Outcome: store.Bury, Error: failure, Target: held.Target, At: now,
			Name: held.Name, Revision: held.Revision, KeepUntil: now.Add(time.Hour),
		}})
		if err != nil {
			w.Fatal(err)
		}
	}
}

var (
	ulid  = regexp.MustCompile(`\b[0-9A-Z]{26}\b`)
	keyID = regexp.MustCompile(`\b[0-9A-Za-z]{12}(: it is not shown again|\s+viewer)`)
	token = regexp.MustCompile(`(carillon_|whsec_)[^\s:]{20,}`)
)

// masked replaces the texts that differ from run to run.
func (w *world) masked(s string) string {
	s = strings.ReplaceAll(s, w.url, "http://SERVICE")
	s = keyID.ReplaceAllString(token.ReplaceAllString(s, "${1}SECRET"), "KEY.........$1")
	return ulid.ReplaceAllString(s, "ULID......................")
}
