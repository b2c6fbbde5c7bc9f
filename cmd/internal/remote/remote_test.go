package remote_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/carillon-scheduler/carillon/cmd/internal/remote"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// TestContexts: a name stands for a URL, a key and a tenant. Options and variables have precedence, and the key of a
// context is sent to no other service.
func TestContexts(t *testing.T) {
	w := newWorld(t)
	t.Setenv("CARILLON_URL", "")
	var seen []string
	w.before = func(_ http.ResponseWriter, r *http.Request) bool {
		seen = append(seen, strings.TrimSpace(r.Header.Get("Authorization")+" "+r.Header.Get("Carillon-Tenant")))
		return false
	}
	w.file("key", "carillon_a_b\n")
	w.want("context add prod not-a-url", 2, "must be absolute")
	w.want("context add prod "+w.url+" --key-file=none", 2, "none")
	w.want("context add prod "+w.url+" --key-file=key --tenant=acme", 0, "the current one is prod")
	w.want("context add test "+w.url+"/", 0, "the current one is prod")
	w.want("job list", 0)
	w.want("job list --tenant=bolt", 0)
	w.want("job list --context=test", 0)
	w.want("job list --url="+w.url, 0)
	t.Setenv("CARILLON_TENANT", "corp")
	w.want("job list --context=prod", 0)
	t.Setenv("CARILLON_KEY", "other")
	w.want("job list", 0)
	t.Setenv("CARILLON_URL", w.url)
	w.want("job list", 0)
	w.want("tenant list", 0) // about several tenants
	want := []string{
		"Bearer carillon_a_b acme", "Bearer carillon_a_b bolt", "", "", "Bearer carillon_a_b corp", "Bearer other corp",
		"Bearer other corp", "Bearer other",
	}
	if !slices.Equal(seen, want) {
		t.Errorf("the service saw\n%q, want\n%q", seen, want)
	}
	w.want("job list --context=prod --url=http://127.0.0.1:1", 2, "different services")
	w.want("job list --context=none", 2, `no context "none"`)
	w.want("context use none", 2, "no context")
	w.want("context use test", 0)
	w.want("context list -o json", 0, `"current": "*"`)
	w.want("context remove test", 0)
	if content, err := os.ReadFile(os.Getenv("CARILLON_CONFIG")); err != nil || strings.Contains(string(content), "carillon_a_b") {
		t.Errorf("the file of contexts: %s, %v", content, err)
	}
	if info, err := os.Stat(os.Getenv("CARILLON_CONFIG")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file of contexts: %v, %v", info.Mode(), err)
	}
}

// TestKeyInTheClear: a key that goes to another machine without TLS is warned of.
func TestKeyInTheClear(t *testing.T) {
	w := newWorld(t)
	t.Setenv("CARILLON_KEY", "secret")
	w.want("context add x http://carillon.example.com", 0, "without encryption")
	if r := w.run("status"); strings.Contains(r.stderr, "without encryption") {
		t.Errorf("it warns on loopback: %s", r.stderr)
	}
}

// TestExitCodes are those that docs/cli.md names.
func TestExitCodes(t *testing.T) {
	w := newWorld(t)
	w.want("job put digest -f digest.yaml", 0)
	w.want("job get none", 1, "there is no job")
	w.want("job get", 2, "name one job")
	w.want("job get a b", 2, "name one job")
	w.want("job put x", 2, "-f is missing")
	w.want("job put x -f none.yaml", 2, "none.yaml")
	w.want("job list -o xml", 2, "-o: must be one of table, json, yaml, ndjson")
	w.want("dead-letter redrive", 2, "--all")
	w.want("dead-letter redrive --all", 2, "Give --yes")
	w.want("job cancel --prefix=d", 2, "Give --yes")
	w.want("tenant set acme", 2, "give settings")
	w.want("job put digest -f digest.yaml --if-version=01ARZ3NDEKTSV4RRFFQ69G5FAV", 4)
	w.want("job cancel digest --if-version=01ARZ3NDEKTSV4RRFFQ69G5FAV", 4)
	w.want("job cancel --prefix=d --if-version=01ARZ3NDEKTSV4RRFFQ69G5FAV --yes", 2, "--prefix alone")
	w.want("job list --url=http://127.0.0.1:1", 5, "there is no service at http://127.0.0.1:1")
	w.want("job explain digest --at=tomorrow", 1)
	w.want("job explain digest --at=2030-01-02T08:30:00Z", 0, "\nno_such_instant\t-\t")
	w.want("job explain digest -o json", 0, `"code": "waiting"`)
}

// TestOddKeys: keys that mean something in paths are keys like others.
func TestOddKeys(t *testing.T) {
	w := newWorld(t)
	for _, key := range []string{".", "..", "a/../b", "100%", "?x=1#y", "a b"} {
		quoted := "'" + key + "'"
		w.want("job put "+quoted+" -f job.yaml", 0)
		w.want("job get "+quoted+" -o json", 0, `"key": "`+key+`"`)
		w.want("job cancel "+quoted, 0)
		w.want("job get "+quoted, 1, "404")
	}
}

// TestLostAnswers: a harmless request is repeated, and any other one ends with an error.
func TestLostAnswers(t *testing.T) {
	w := newWorld(t)
	w.file("delay.yaml", strings.Replace(strings.TrimPrefix(digest, "key: digest\n"), "crontab: 0 9 * * MON-FRI\ntimezone: Europe/Paris", "delay: 1h", 1))
	var left atomic.Int32
	w.before = func(rw http.ResponseWriter, _ *http.Request) bool {
		if left.Add(-1) < 0 {
			return false
		}
		rw.Header().Set("Content-Type", "application/problem+json")
		rw.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprintf(rw, `{"title":"Service Unavailable","status":503,"detail":"the store is away"}`)
		return true
	}
	for line, code := range map[string]int{
		"job put digest -f digest.yaml": 0, "job list": 0, "job pause digest": 0, "job trigger digest": 5,
		"job put delayed -f delay.yaml": 5, "job put delayed -f delay.yaml --create": 0, "job cancel digest": 0,
		"key create --role=viewer --tenants=a": 5,
	} {
		left.Store(0)
		w.run("job put digest -f digest.yaml")
		w.run("job cancel delayed")
		left.Store(1)
		r := w.run(line)
		if r.code != code || code == 5 && !strings.Contains(r.stderr, "it is not known whether this was done") {
			t.Errorf("%s: exit code %d, want %d: %s", line, r.code, code, r.stderr)
		}
	}
}

// TestApply: the jobs in files are applied, a second time changes nothing, and no other client's change is overwritten.
func TestApply(t *testing.T) {
	w := newWorld(t)
	w.file("jobs/a.yaml", strings.Replace(digest, "key: digest", "key: mail/a", 1))
	w.file("jobs/b.json", `[{"key":"mail/b","schedules":["2040-01-01T00:00:00Z"],"callback":{"type":"http","data":{"url":"https://example.com/b","payload":{"b": 1.50,"a":1}}}}]`)
	w.ok("job put mail/old -f job.yaml")
	w.ok("job put news/old -f job.yaml")
	w.want("diff -f jobs", 3, "2 to create, 0 to change, 0 to delete")
	w.want("diff -f jobs -o json", 3, `"action": "create"`)
	w.want("apply -f jobs --dry-run=server", 0, "2 to create")
	w.want("apply -f jobs", 2, "Give --yes")
	w.want("job get mail/a", 1)
	w.want("apply -f jobs --prune=mail/ --yes", 0, "2 to create, 0 to change, 1 to delete", "3 of 3 are done")
	for _, line := range []string{"diff -f jobs --prune=mail/", "apply -f jobs --prune=mail/", "apply -f jobs"} {
		w.want(line, 0, "0 to create, 0 to change, 0 to delete, 2 as they are")
	}
	w.want("job get mail/old", 1)
	w.want("job get news/old", 0)
	if out := w.ok("job get mail/b -o ndjson"); !strings.Contains(out, `{"b":1.50,"a":1}`) {
		t.Errorf("the payload has other bytes: %s", out)
	}

	// The shown definition can be applied.
	w.file("shown/a.yaml", w.ok("job get mail/a --definition -o yaml"))
	w.want("diff -f shown", 0, "1 as they are")

	// Another client changes a job after it was compared, right before it is put.
	w.file("jobs/a.yaml", strings.Replace(digest, "key: digest", "key: mail/a\ndeadline: 5m", 1))
	var busy atomic.Bool
	w.before = func(_ http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/v1/jobs/batch" && busy.CompareAndSwap(false, true) {
			w.ok(`job patch mail/a -p '{"deadline":"7m"}'`)
		}
		return false
	}
	w.want("apply -f jobs --yes", 4, "mail/a: somebody has changed it meanwhile", "0 of 1 are done")
	if out := w.ok("job get mail/a -o json"); !strings.Contains(out, `"7m"`) {
		t.Errorf("the other's change is lost: %s", out)
	}
	w.want("diff -f jobs", 3, `/deadline: "7m" -> "5m"`)
	w.want("apply -f jobs --yes", 0)

	// A job that is to be deleted is changed meanwhile.
	w.ok("job put mail/old -f job.yaml")
	busy.Store(false)
	w.before = func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodDelete && busy.CompareAndSwap(false, true) {
			w.ok("job pause mail/old") // the last moment there is
		}
		return false
	}
	w.want("apply -f jobs --prune=mail/ --yes", 4, "mail/old: somebody has changed it meanwhile")
	w.want("job get mail/old", 0, "paused")

	// The answer is lost, and the next attempt finds the change of the first.
	w.before = nil
	w.file("jobs/a.yaml", strings.Replace(digest, "key: digest", "key: mail/a\ndeadline: 9m", 1))
	busy.Store(false)
	w.before = func(rw http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/v1/jobs/batch" && busy.CompareAndSwap(false, true) {
			w.ok(`job patch mail/a -p '{"deadline":"9m"}'`)
			rw.WriteHeader(http.StatusBadGateway)
			return true
		}
		return false
	}
	w.want("apply -f jobs --yes", 0, "1 of 1 are done")
}

// TestApplyInBatches: more jobs than one batch holds are created, changed and deleted. Items that the store fails to
// write are sent again, and a batch that is not read to its end is completed.
func TestApplyInBatches(t *testing.T) {
	w := newWorld(t)
	const many = 510 // three batches
	files := func(deadline string) {
		var text strings.Builder
		for i := range many {
			fmt.Fprintf(&text, "%s{\"key\":\"mail/%03d\",\n\"crontab\":\"@daily\",\"deadline\":%q,\"callback\":{\"type\":\"http\",\"data\":{\"url\":\"https://example.com/a\"}}}",
				map[bool]string{true: "[", false: ",\n"}[i == 0], i, deadline)
		}
		w.file("jobs/many.json", text.String()+"]")
	}
	files("5m")
	var batches atomic.Int32
	w.before = func(rw http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/v1/jobs/batch" {
			return false
		}
		if batches.Add(1) == 1 { // the first item is unavailable, and nothing was read from the third on
			rw.Header().Set("Content-Type", "application/json")
			fmt.Fprint(rw, `[{"index":0,"key":"mail/000","status":503,"title":"Service Unavailable","detail":"away"},`+
				`{"index":1,"key":"mail/001","status":422,"title":"Unprocessable Entity","detail":"refused"},`+
				`{"index":2,"status":503,"title":"Service Unavailable","detail":"gone"}]`)
			return true
		}
		return false
	}
	w.want("apply -f jobs --yes", 1, "mail/001: 422", "509 of 510 are done")
	if n := batches.Load(); n < 4 || n > 5 {
		t.Errorf("%d requests", n)
	}
	w.want("apply -f jobs --yes", 0, "1 of 1 are done")
	files("6m")
	w.want("apply -f jobs --yes", 0, "510 of 510 are done")
	w.want("diff -f jobs", 0)

	// All batches are answered that the store is away.
	w.before = func(rw http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/v1/jobs/batch" {
			return false
		}
		fmt.Fprint(rw, `[{"index":0,"status":503,"title":"Service Unavailable","detail":"away"}]`)
		return true
	}
	w.file("jobs/more.yaml", digest)
	w.want("apply -f jobs --yes", 5, "digest and 0 more: 503", "0 of 1 are done")
}

// TestApplyRefused: a job that the service refuses is named with its file, and the others are applied.
func TestApplyRefused(t *testing.T) {
	w := newWorld(t)
	w.file("jobs/good.yaml", digest)
	w.file("jobs/bad.yaml", strings.NewReplacer("digest", "bad", "https://", "gopher://").Replace(digest))
	w.want("apply -f jobs --dry-run=server", 1, "bad.yaml", "/callback/data/url")
	w.want("job get digest", 1)
	w.want("apply -f jobs --yes", 1, "bad: 422", "1 of 2 are done")
	w.want("job get digest", 0)
	w.file("jobs/worse.yaml", "key: x\ncrontabb: y\n")
	w.want("diff -f jobs", 2, "worse.yaml: /crontabb")
	w.want("apply -f none", 2, "none")
	w.want("apply", 2, "-f is missing")
	w.want("apply jobs", 2, "takes no argument")
}

// TestEnded: a job that is over and was swept is not made again because it is in a file.
func TestEnded(t *testing.T) {
	w := newWorld(t)
	w.file("jobs/past.yaml", strings.Replace(digest, "crontab: 0 9 * * MON-FRI\ntimezone: Europe/Paris", "schedules: ['2020-01-01T00:00:00Z']", 1))
	w.want("diff -f jobs", 0, "0 to create")
}

func TestDeadLetters(t *testing.T) {
	w := newWorld(t)
	w.bury("410 Gone", "a", "b")
	w.bury("400 Bad Request", "c", "d", "e")
	if out := w.ok("dead-letter list --error=410"); strings.Count(out, "\n") != 3 {
		t.Errorf("the list is\n%s", out)
	}
	if out := w.ok("dead-letter delete --all --error=410 --yes -o json"); !strings.Contains(out, `"deleted": 2`) {
		t.Errorf("it says %s", out)
	}
	var items []struct{ ID, Key string }
	if err := json.Unmarshal([]byte(w.ok("dead-letter list -o json")), &items); err != nil || len(items) != 3 {
		t.Fatalf("%d are left, %v", len(items), err)
	}
	w.want("dead-letter redrive "+items[0].ID+" "+items[1].ID, 0, "redriven\t2")
	w.want("dead-letter redrive "+items[0].ID, 1, "404")
	w.want("dead-letter delete --yes --key="+items[2].Key, 0, "deleted\t1")
}

// TestCancelByPages: very many jobs are cancelled a page at a time. An interrupted command prints the place from which
// another one continues.
func TestCancelByPages(t *testing.T) {
	w := newWorld(t)
	var lines strings.Builder
	for i := range 703 {
		fmt.Fprintf(&lines, `{"key":"p/%04d","schedules":["2999-01-01T00:00:00Z"],"callback":{"type":"http","data":{"url":"http://127.0.0.1/"}}}`+"\n", i)
	}
	response, err := http.Post(w.url+"/v1/jobs/batch", "application/x-ndjson", strings.NewReader(lines.String()))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(response.Body)
	_ = response.Body.Close()
	if n := bytes.Count(answer, []byte(`"status":201`)); err != nil || n != 703 {
		t.Fatalf("%d are created, %v: %.300s", n, err, answer)
	}
	requests := 0
	w.before = func(rw http.ResponseWriter, _ *http.Request) bool {
		if requests++; requests != 2 {
			return false
		}
		rw.Header().Set("Content-Type", "application/problem+json")
		rw.WriteHeader(http.StatusForbidden)
		fmt.Fprint(rw, `{"title":"Forbidden","status":403,"detail":"the key was revoked"}`)
		return true
	}
	r := w.run("job cancel --prefix=p/ --yes")
	told := regexp.MustCompile(`500 jobs are cancelled; the same command with (--cursor=\S+) goes on with the rest: 403`).FindStringSubmatch(r.stderr)
	if r.code != 1 || told == nil {
		t.Fatalf("exit code %d: %s", r.code, r.stderr)
	}
	w.want("job cancel --prefix=p/ --yes "+told[1], 0, "jobs\t203")
	w.want("job cancel x --cursor=y", 2, "--cursor needs --prefix")
}

// TestDeadLettersByPages: very many are redriven or deleted a page at a time. An interrupted command prints the place
// from which another one continues.
func TestDeadLettersByPages(t *testing.T) {
	w := newWorld(t)
	const many = 1203
	for i := range many {
		o := job.Occurrence{Name: job.Name{Tenant: job.DefaultTenant, Key: fmt.Sprintf("k%d", i%7)}, Position: i, Timestamp: now}
		o.ID = job.OccurrenceID(o.Name, "", now, i, "")
		o.FailedAt, o.LastError, o.Own = now, "410 Gone", &job.Target{Callback: job.Callback{Type: "http", Data: []byte(`{}`)}}
		if _, err := w.store.Import(w.Context(), []store.Document{{Occurrence: &o}}); err != nil {
			t.Fatal(err)
		}
	}
	requests := 0
	var broken bool
	w.before = func(rw http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet {
			return false
		}
		if requests++; requests == 2 && broken {
			rw.Header().Set("Content-Type", "application/problem+json")
			rw.WriteHeader(http.StatusForbidden)
			fmt.Fprint(rw, `{"title":"Forbidden","status":403,"detail":"the key was revoked"}`)
			return true
		}
		return false
	}
	broken = true
	r := w.run("dead-letter redrive --all --yes")
	told := regexp.MustCompile(`500 are redriven; the same command with (--cursor=\S+) goes on with the rest: 403`).FindStringSubmatch(r.stderr)
	if r.code != 1 || told == nil {
		t.Fatalf("exit code %d: %s", r.code, r.stderr)
	}
	broken, requests = false, 0
	w.want("dead-letter redrive --all --yes "+told[1], 0, "redriven\t703")
	if requests != 2 {
		t.Errorf("%d requests", requests)
	}
	w.bury("410 Gone", "a", "b") // and of those that are due, as many as one claim takes
	w.want("dead-letter delete --prefix=a --yes", 0, "deleted\t1")
	w.want("dead-letter delete --all --yes", 0, "deleted\t999")
	w.want("dead-letter delete x --cursor=y", 2, "--cursor need")
}

// TestPages: all pages are listed, or as many as asked for.
func TestPages(t *testing.T) {
	w := newWorld(t)
	var lines strings.Builder
	for i := range 1003 {
		fmt.Fprintf(&lines, `{"key":"k%04d","crontab":"@daily","callback":{"type":"http","data":{"url":"https://example.com/a"}}}`+"\n", i)
	}
	res, err := http.Post(w.url+"/v1/jobs/batch", "application/x-ndjson", strings.NewReader(lines.String()))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil || res.StatusCode != http.StatusOK {
		t.Fatal(res.Status, err)
	}
	for limit, want := range map[string]int{"0": 1003, "1001": 1001, "5": 5} {
		if got := strings.Count(w.ok("job list -o ndjson --limit="+limit), "\n"); got != want {
			t.Errorf("--limit=%s lists %d", limit, got)
		}
	}
}

// TestCompletion: commands, options, values and keys of jobs, which the service knows.
func TestCompletion(t *testing.T) {
	w := newWorld(t)
	for _, key := range []string{"digest", "mail/a", "mail/b"} {
		w.ok("job put " + key + " -f job.yaml")
	}
	for line, want := range map[string]string{
		"":                     "status backlog forecast job apply diff dead-letter tenant key secret signing-secret context completion man",
		"de":                   "dead-letter",
		"job p":                "put pause patch preview",
		"job get ":             "digest mail/a mail/b",
		"job get mail/":        "mail/a mail/b",
		"job get mail/a ":      "",
		"job get --def":        "--definition",
		"job get --o":          "",
		"job list --state ":    "any scheduled paused finished",
		"job list --state=pa":  "--state=paused",
		"job get -o y":         "yaml",
		"tenant get d":         "default",
		"completion ":          "bash zsh fish",
		"job list --prefix ma": "",
		"nonsense x":           "",
	} {
		typed := strings.Split(line, " ")
		if got := strings.Join(program().Complete(context.Background(), typed), " "); got != want {
			t.Errorf("%q is completed by %q, want %q", line, got, want)
		}
	}
	if out := w.ok("__complete -- job get --url " + w.url + " mail/"); out != "mail/a\nmail/b\n" {
		t.Errorf("it prints %q", out)
	}
	t.Setenv("CARILLON_URL", "http://127.0.0.1:1")
	if got := program().Complete(context.Background(), []string{"job", "get", ""}); got != nil {
		t.Errorf("without a service: %v", got)
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if out := w.ok("completion " + shell); !strings.Contains(out, "carillon") || strings.Contains(out, "PROGRAM") {
			t.Errorf("%s: %s", shell, out)
		}
	}
	w.want("completion tcsh", 2, "bash, zsh, fish")
}

// TestManual: the page has every command, and no line that would be taken for a request by accident.
func TestManual(t *testing.T) {
	w := newWorld(t)
	page := w.ok("man")
	for _, c := range remote.Commands(program) {
		if c.Help != "" && !strings.Contains(page, ".SS carillon "+strings.ReplaceAll(c.Name, "-", `\-`)) {
			t.Errorf("the page lacks %s", c.Name)
		}
	}
	known := []string{".TH", ".SH", ".SS", ".PP", ".TP", ".B", ".nf", ".fi"}
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, ".") && !slices.Contains(known, strings.Fields(line)[0]) {
			t.Errorf("the page has the request %s", line)
		}
	}
}

func TestSecrets(t *testing.T) {
	w := newWorld(t)
	r := w.with(strings.NewReader("t0ken\n"), "secret put token --destination='http https://example.com'")
	if r.code != 0 || strings.Contains(r.stdout, "t0ken") {
		t.Errorf("%+v", r)
	}
	signing := w.ok("signing-secret create default")
	if !strings.HasPrefix(signing, "whsec_") || w.ok("signing-secret rotate default") == signing {
		t.Errorf("the signing secret is %s", signing)
	}
	token := strings.TrimSpace(w.ok("key create --role=viewer --tenants=acme,bolt --key-prefix=mail/"))
	if !strings.HasPrefix(token, "carillon_") {
		t.Errorf("the key is %s", token)
	}
	id := strings.Split(token, "_")[1]
	if out := w.ok("key list"); !strings.Contains(out, id+"\tviewer\tacme,bolt\tmail/") {
		t.Errorf("the list is\n%s", out)
	}
	if again := w.ok("key rotate " + id + " --overlap=0s"); again == token {
		t.Error("it is the same key")
	}
	w.want("key revoke "+id, 0, "is revoked")
	w.want("key create --role=viewer", 2, "--tenants")
	w.want("key create --role=viewer --tenants=", 2, "--tenants: must not be empty")
	w.want("key create --role=viewer --tenants=a --key-prefix=", 2, "--key-prefix: must not be empty")
}

func TestCertificates(t *testing.T) {
	w := newWorld(t)
	w.file("ca.pem", "nothing")
	w.want("job list --ca-file=ca.pem", 2, "--ca-file: ca.pem has no certificate")
	w.want("job list --ca-file="+filepath.Join(t.TempDir(), "none"), 2, "--ca-file")
}

// TestExamples runs the example of each command's help. Each has a service of its own, with a job, dead letters, secrets
// and a key.
func TestExamples(t *testing.T) {
	for _, c := range remote.Commands(program) {
		if c.Help == "" {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			w := newWorld(t)
			w.bury("410 Gone", "dead", "mail/dead")
			w.file("expecting.yaml", digest+"expectBy: 15m\n")
			w.ok("job put digest -f expecting.yaml")
			w.file("jobs/digest.yaml", digest+"expectBy: 15m\n")
			w.file("token.txt", "t0ken\n")
			w.file(".carillon-key", "carillon_a_b")
			w.ok("secret put billing-token -f token.txt")
			if c.Name != "signing-secret create" {
				w.ok("signing-secret create default")
			}
			id := strings.Split(w.ok("key create --role=viewer --tenants=acme"), "_")[1]
			if strings.HasPrefix(c.Name, "context ") && c.Name != "context add" {
				w.ok("context add prod " + w.url)
			}
			for line := range strings.Lines(c.Example) {
				line = strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(line), "source <("), ")")
				line, _, _ = strings.Cut(line, " |") // into the program that shows manual pages
				line = strings.NewReplacer("4iC0dQxYb7Zr", id, "~/", "").Replace(line)
				args, ok := strings.CutPrefix(line, "carillon ")
				if !ok {
					t.Fatalf("the example does not begin with carillon: %s", line)
				}
				if r := w.run(args); r.code != 0 {
					t.Errorf("%s: exit code %d\n%s%s", line, r.code, r.stdout, r.stderr)
				}
			}
			if c.Example == "" {
				t.Error("its help has no example")
			}
		})
	}
}
