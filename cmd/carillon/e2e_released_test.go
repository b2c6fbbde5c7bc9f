//go:build services

package main_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

// The files of releases, which docs/released/README.md describes.
var releasedStores = filepath.Join("..", "..", "docs", "released", "stores")

// fixtureSecret is the secret in a header of a delivery, from a stored fixture that is kept with its key.
const fixtureSecret = "t0ken-of-a-fixture"

// TestReleasedFormats: the present program opens the store of a killed program of each format. Pending occurrences are
// delivered once, and delivered ones are not repeated. Paused jobs fire after they are resumed, and dead letters after
// they are redriven.
func TestReleasedFormats(t *testing.T) {
	t.Parallel()
	for _, s := range stores {
		files, err := filepath.Glob(filepath.Join(releasedStores, s.name+"-*.txt"))
		if err != nil || len(files) == 0 {
			t.Errorf("there is no store of %s: %v", s.name, err)
		}
		for _, file := range files {
			t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
				t.Parallel()
				text, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				url := s.url(t, "e2e_"+strings.ToLower(job.NewToken()))
				dumpers[s.name].restore(t, url, string(text))
				opensFormat(t, url)
			})
		}
	}
}

func opensFormat(t *testing.T, url string) {
	w := newRecipients(t)
	c := w.cluster(t, url)
	r := c.startProgram(present(t), "--encryption-key-file="+fixtureKey(t))
	c.replicas = append(c.replicas, r)
	c.call(r, http.MethodPost, "/v1/jobs/paused/resume", map[string]any{}, http.StatusOK)
	dead := c.call(r, http.MethodGet, "/v1/dead-letters", nil, http.StatusOK)["items"].([]any)
	if len(dead) != 1 {
		t.Fatalf("%d dead letters, want 1", len(dead))
	}
	id := dead[0].(map[string]any)["id"].(string)
	c.call(r, http.MethodPost, "/v1/dead-letters/"+id+"/redrive", map[string]any{}, http.StatusOK)

	want := map[string]int{"instants": 3, "crontab": 3, "sequence": 2, "acme": 1, "held": 1, "paused": 2, "dead": 1}
	if _, status := w.state(r, "signed"); status == http.StatusOK || w.counts()["signed"] > 0 { // formats that had secrets
		want["signed"] = 1
		keys, err := exec.Command(present(t), "keys", "list", "--store="+url).CombinedOutput()
		if err != nil || !strings.Contains(string(keys), "kept with its store") {
			t.Errorf("the API keys are\n%s, %v", keys, err)
		}
	}
	c.until("all is delivered", func() bool { return maps.Equal(w.counts(), want) || w.more(want) })
	if got := w.counts(); !maps.Equal(got, want) {
		t.Errorf("there were %v deliveries, want %v", got, want)
	}
	for _, key := range []string{"instants", "crontab", "sequence", "held", "paused"} {
		c.until(key+" has finished", func() bool {
			state, status := w.state(r, key)
			return state == "finished" || status == http.StatusNotFound // the store is older than jobs are kept
		})
	}
	tenant := c.call(r, http.MethodGet, "/v1/tenants/acme", nil, http.StatusOK)
	if settings, _ := tenant["settings"].(map[string]any); settings["weight"] != 2.0 {
		t.Errorf("the tenant is %v", tenant)
	}
	c.call(r, http.MethodGet, "/v1/history", nil, http.StatusOK)
	c.put(r, "new", 2, time.Second, w.callback("new"), http.StatusCreated)
	c.until("a job of the present is delivered", func() bool { return w.counts()["new"] == 2 })
	for _, fault := range w.faults() {
		t.Error(fault)
	}
}

// TestPresentFormatIsReleased: there is a store of the present format of each kind, and the present program writes the
// same structure. So a change of the format is noticed; see docs/released/README.md.
func TestPresentFormatIsReleased(t *testing.T) {
	t.Parallel()
	program, write := os.Getenv("CARILLON_TEST_PROGRAM"), os.Getenv("CARILLON_TEST_RELEASED") == "1"
	for _, s := range stores {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			url, first := s.url(t, "e2e_"+strings.ToLower(job.NewToken())), time.Now().Add(time.Hour)
			if write {
				first = time.Now().Add(30 * time.Second)
			}
			if program == "" {
				fill(t, present(t), url, first, true)
			} else {
				fill(t, program, url, first, false)
			}
			text := dumpers[s.name].dump(t, url)
			file := filepath.Join(releasedStores, fmt.Sprintf("%s-%d.txt", s.name, dumpers[s.name].formatOf(t, text)))
			if write {
				if time.Now().After(first) {
					t.Fatal("this took too long, and something may have fired: do it again")
				}
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			kept, err := os.ReadFile(file)
			if err != nil {
				t.Fatalf("no store of this format is kept: run make released, and say in the changelog that the format is raised (%v)", err)
			}
			before, now := structure(s.name, string(kept)), structure(s.name, text)
			for _, line := range slices.Sorted(maps.Keys(before)) {
				if !now[line] {
					t.Errorf("stores of this format have %q, and the program no longer writes it: raise the format", line)
				}
			}
			for _, line := range slices.Sorted(maps.Keys(now)) {
				if !before[line] {
					t.Errorf("stores of this format do not have %q: raise the format, or run make released if older programs ignore it", line)
				}
			}
		})
	}
}

// fill has a program write a store with jobs of all kinds in all states, and kills it. The first instants are those that
// are given.
func fill(t *testing.T, program, url string, first time.Time, secrets bool) {
	t.Helper()
	w := newRecipients(t)
	w.writing = true
	c := w.cluster(t, url)
	var options []string
	if secrets {
		options = append(options, "--encryption-key-file="+fixtureKey(t))
	}
	r := c.startProgram(program, options...)
	c.replicas = append(c.replicas, r)
	put := func(key string, schedule map[string]any, headers ...string) {
		t.Helper()
		if schedule["callback"] == nil {
			schedule["callback"] = w.callback(key)
		}
		c.call(r, http.MethodPut, "/v1/jobs/"+key, schedule, http.StatusCreated, headers...)
	}
	instants := func(n int) (all []string) {
		for i := range n {
			all = append(all, job.FormatTime(first.Add(time.Duration(i)*time.Second)))
		}
		return all
	}
	put("done", map[string]any{"delay": "1ms"})
	put("dead", map[string]any{"delay": "1ms", "retry": map[string]any{"maxAttempts": 1}})
	put("held", map[string]any{"delay": "1ms"})
	put("instants", map[string]any{"schedules": instants(3), "retry": map[string]any{"maxAttempts": 7, "initial": "2s"}})
	put("paused", map[string]any{"schedules": instants(2)})
	c.call(r, http.MethodPost, "/v1/jobs/paused/pause", map[string]any{}, http.StatusOK)
	put("crontab", map[string]any{
		"crontab": "@every 1s", "startAt": instants(1)[0], "endAt": instants(3)[2], "catchUp": "all", "priority": "high",
	})
	put("centuries", map[string]any{"crontab": "0 0 1 1 *", "timezone": "Europe/Paris", "startAt": "2999-01-01T00:00:00Z"})
	put("sequence", map[string]any{
		"startAt": instants(1)[0], "subscribers": []string{"ada", "grace"},
		"steps": []any{
			map[string]any{"type": "wait_certain_period", "delay_period": 1, "delay_unit": "second"},
			map[string]any{"type": "job", "metadata": map[string]any{"mail": "welcome"}},
		},
	})
	w.send(t, r, http.MethodPut, "/v1/tenants/acme", `{"weight": 2}`)
	put("acme", map[string]any{"schedules": instants(1)}, "Carillon-Tenant", "acme")
	if secrets {
		w.send(t, r, http.MethodPut, "/v1/secrets/token", fmt.Sprintf(`{"value": %q}`, fixtureSecret))
		w.send(t, r, http.MethodPost, "/v1/signing-secrets", `{"name": "default"}`)
		callback := w.callback("signed")
		data := callback["data"].(map[string]any)
		data["headers"] = map[string]any{"Authorization": map[string]any{"secret": "token"}}
		callback["signing"] = "default"
		put("signed", map[string]any{"schedules": instants(1), "callback": callback})
		if out, err := exec.Command(program, "keys", "create", "--store="+url, "--role=viewer", "--note=kept with its store").CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	c.until("the rest is done", func() bool {
		state, _ := w.state(r, "done")
		return state == "finished" && w.counts()["done"] == 1 && w.counts()["held"] == 1 &&
			len(c.call(r, http.MethodGet, "/v1/dead-letters", nil, http.StatusOK)["items"].([]any)) == 1
	})
	r.kill()
}

func present(t *testing.T) string {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// fixtureKey returns a copy of the key of the kept stores, which only its owner can read, unlike a file of a repository.
func fixtureKey(t *testing.T) string {
	t.Helper()
	key, err := os.ReadFile(filepath.Join(releasedStores, "carillon.key"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "carillon.key")
	if err := os.WriteFile(file, key, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// recipients are the receivers of all hosts: replicas reach them through a proxy, so that the addresses in a store are
// the same at any time.
type recipients struct {
	server *httptest.Server
	// writing has the host dead.test refuse, and held.test not answer.
	writing bool

	lock sync.Mutex
	ids  map[string]map[string]int // by job, then by delivery id
	bad  []string
}

func newRecipients(t *testing.T) *recipients {
	w := &recipients{ids: make(map[string]map[string]int)}
	w.server = httptest.NewServer(http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		_, _ = io.ReadAll(request.Body) // so that the server notices when the replica hangs up
		name := strings.TrimSuffix(request.Host, ".test")
		w.lock.Lock()
		if w.ids[name] == nil {
			w.ids[name] = make(map[string]int)
		}
		w.ids[name][request.Header.Get("Webhook-Id")]++
		if token := request.Header.Get("Authorization"); name == "signed" && (token != fixtureSecret || request.Header.Get("Webhook-Signature") == "") {
			w.bad = append(w.bad, fmt.Sprintf("the delivery has the secret %q, and the signature %q", token, request.Header.Get("Webhook-Signature")))
		}
		w.lock.Unlock()
		switch {
		case w.writing && name == "dead":
			response.WriteHeader(http.StatusGone)
		case w.writing && name == "held":
			<-request.Context().Done()
		}
	}))
	t.Cleanup(w.server.Close)
	return w
}

func (w *recipients) callback(name string) map[string]any {
	return map[string]any{"type": "http", "data": map[string]any{"url": "http://" + name + ".test/", "payload": map[string]any{"of": name}}}
}

// cluster returns a cluster without replicas, on a store that only replicas open.
func (w *recipients) cluster(t *testing.T, url string) *cluster {
	c := &cluster{T: t, url: url, receiver: newReceiver(t), environment: []string{"HTTP_PROXY=" + w.server.URL}}
	t.Cleanup(func() {
		for _, r := range c.replicas {
			r.kill()
		}
	})
	return c
}

// counts returns the number of distinct deliveries of each job.
func (w *recipients) counts() map[string]int {
	w.lock.Lock()
	defer w.lock.Unlock()
	all := make(map[string]int)
	for name, ids := range w.ids {
		all[name] = len(ids)
	}
	return all
}

// more reports whether there are more deliveries than wanted.
func (w *recipients) more(want map[string]int) bool {
	for name, n := range w.counts() {
		if n > want[name] {
			return true
		}
	}
	return false
}

// faults returns the faults of deliveries.
func (w *recipients) faults() []string {
	w.lock.Lock()
	defer w.lock.Unlock()
	for name, ids := range w.ids {
		for id, n := range ids {
			if n > 1 {
				w.bad = append(w.bad, fmt.Sprintf("delivery %s of %s came %d times", id, name, n))
			}
		}
	}
	return w.bad
}

// state returns the state of a job, and the status of the answer.
func (w *recipients) state(r *replica, key string) (state string, status int) {
	response, err := http.Get(r.url + "/v1/jobs/" + key)
	if err != nil {
		return "", 0
	}
	defer response.Body.Close()
	var answer struct{ State string }
	_ = json.NewDecoder(response.Body).Decode(&answer)
	return answer.State, response.StatusCode
}

// send sends a change that must succeed.
func (w *recipients) send(t *testing.T, r *replica, method, path, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, r.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if answer, _ := io.ReadAll(response.Body); response.StatusCode > 299 {
		t.Fatalf("%s %s: %s %s", method, path, response.Status, answer)
	}
}

var (
	sqlComment = regexp.MustCompile(`--[^\n]*`)
	sqlSpace   = regexp.MustCompile(`\s+`)
	mongoField = regexp.MustCompile(`"(\$?[A-Za-z_]\w*)":`)
	redisKey   = regexp.MustCompile(`^"(\w+)" "fixture:((?:\{\d+\}:)?\w*)`)
	redisField = regexp.MustCompile(`^"hset" "(?:[^"\\]|\\.)*" "([a-zA-Z]+)"`)
)

// structure returns the structure in the text of a store, without its content.
func structure(kind, text string) map[string]bool {
	all := make(map[string]bool)
	switch kind {
	case "sqlite", "postgres":
		for _, statement := range strings.Split(sqlComment.ReplaceAllString(text, ""), ";\n") {
			if statement = strings.TrimSpace(sqlSpace.ReplaceAllString(statement, " ")); !strings.HasPrefix(statement, "INSERT ") {
				all[statement] = true
			}
		}
	case "mongodb":
		for line := range strings.Lines(text) {
			words := strings.SplitN(line, " ", 3)
			if words[0] == "index" {
				all[strings.TrimSpace(line)] = true
				continue
			}
			for _, m := range mongoField.FindAllStringSubmatch(words[2], -1) {
				all[words[1]+" "+m[1]] = true
			}
		}
	case "redis":
		shard := regexp.MustCompile(`\{\d+\}`)
		for line := range strings.Lines(text) {
			key := redisKey.FindStringSubmatch(line)
			if key == nil {
				all[line] = true
				continue
			}
			name := key[1] + " " + shard.ReplaceAllString(key[2], "{}")
			if field := redisField.FindStringSubmatch(line); field != nil {
				name += " " + field[1]
			}
			all[name] = true
		}
	default:
		all[strconv.Quote(kind)] = true
	}
	return all
}
