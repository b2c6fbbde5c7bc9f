package jobfiles_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/cmd/internal/jobfiles"
	"github.com/carillon-scheduler/carillon/openapi"
)

var now = time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)

const callback = `"callback":{"type":"http","data":{"url":"https://example.com/a","payload":{"b": 1.50, "a":12345678901234567890}}}`

func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestRead(t *testing.T) {
	dir := write(t, map[string]string{
		"a.json":        `{"$schema":"x","key":"a","crontab":"@daily",` + callback + `}`,
		"list.json":     `[{"key":"c","crontab":"@daily",` + callback + `},{"key":"b","schedules":["2029-01-01T00:00:00Z"],` + callback + `}]`,
		"below/two.yml": "key: e\ncrontab: '@daily'\n" + "callback:\n  type: http\n  data:\n    url: https://example.com/a\n    payload: |\n      one\n      --- two\n---\n# nothing\n---\nkey: d\nsteps: [{type: job}]\nstartAt: 2030-02-01T00:00:00Z\n" + yamlCallback,
		"empty.yaml":    "# nothing\n",
		".hidden.yaml":  "crontabb: x",
		".git/x.yaml":   "crontabb: x",
		"README.md":     "# Jobs",
	})
	jobs, err := jobfiles.Read(dir, now)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, j := range jobs {
		got = append(got, j.Key)
		if j.Ended != (j.Key == "b") {
			t.Errorf("%s: ended is %t", j.Key, j.Ended)
		}
		if !json.Valid(j.Body) {
			t.Errorf("%s: %s", j.Key, j.Body)
		}
	}
	if want := []string{"a", "b", "c", "d", "e"}; !slices.Equal(got, want) {
		t.Errorf("it has the keys %v, want %v", got, want)
	}
	if body := string(jobs[0].Body); !strings.Contains(body, `{"b": 1.50, "a":12345678901234567890}`) || strings.Contains(body, "schema") {
		t.Errorf("the payload has other bytes, or the schema is left: %s", body)
	}
	if body := string(jobs[1].Body); !strings.Contains(body, `"past":"skip"`) {
		t.Errorf("instants that have passed may fire: %s", body)
	}
	if body := string(jobs[4].Body); !strings.Contains(body, `"one\n--- two\n"`) {
		t.Errorf("the text is another: %s", body)
	}
	one, err := jobfiles.Read(filepath.Join(dir, "a.json"), now)
	if err != nil || len(one) != 1 {
		t.Errorf("one file has %d jobs, %v", len(one), err)
	}
}

const yamlCallback = "callback: {type: http, data: {url: 'https://example.com/a'}}\n"

func TestRefused(t *testing.T) {
	for content, want := range map[string]string{
		"key: a\ncrontabb: x\n" + yamlCallback:          "x.yaml: /crontabb: is not a known field",
		"crontab: '@daily'\n" + yamlCallback:            "x.yaml: /key: is required",
		"key: a\ndelay: 1h\n" + yamlCallback:            "/delay: begins whenever it is submitted",
		"key: a\nsteps: [{type: job}]\n" + yamlCallback: "/startAt: is required beside steps",
		"key: [": "neither JSON nor YAML",
		"key: a\ncrontab: '@daily'\n" + yamlCallback + "--- # again\nkey: a\ncrontab: '@hourly'\n" + yamlCallback: `the key "a" is also in`,
		"- 5": "x.yaml",
	} {
		_, err := jobfiles.Read(write(t, map[string]string{"x.yaml": content}), now)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", content, err, want)
		}
	}
	if _, err := jobfiles.Read(t.TempDir(), now); err == nil || !strings.Contains(err.Error(), "has no file") {
		t.Errorf("an empty folder: %v", err)
	}
}

func TestChanges(t *testing.T) {
	const shown = `{"key":"a","revision":"r","version":"v","state":"scheduled","schedules":["2030-02-01T00:00:00.000Z"],
		"retry":{"maxAttempts":5,"initial":"1s","factor":2,"max":"1h0m0s"},"createdAt":"x","pending":1,"occurrences":[],
		"newField":{"of":"a later version"},"callback":{"type":"http","data":{"url":"https://example.com/a","payload":{"x":[1,2]}}}}`
	for _, c := range []struct{ name, file, want string }{
		{"the same in another form",
			`{"key":"a","schedules":["2030-02-01T01:00:00+01:00"],"retry":{"maxAttempts":5},"past":"skip","callback":{"data":{"payload": {"x": [1, 2]},"url":"https://example.com/a"},"type":"http"}}`, ""},
		{"another payload",
			`{"key":"a","schedules":["2030-02-01T00:00:00Z"],"retry":{"maxAttempts":5},"callback":{"type":"http","data":{"url":"https://example.com/a","payload":{"x":[1,3]}}}}`,
			`/callback/data/payload/x: [1,2] -> [1,3]`},
		{"several",
			`{"key":"a","crontab":"@daily","deadline":"1d","callback":{"type":"http","data":{"url":"https://example.com/b","headers":{"a/b~c":"x"}}}}`,
			`/callback/data/headers:  -> {"a/b~c":"x"}; /callback/data/payload: {"x":[1,2]} -> ; ` +
				`/callback/data/url: "https://example.com/a" -> "https://example.com/b"; /crontab:  -> "@daily"; /deadline:  -> "24h"; ` +
				`/retry/maxAttempts: 5 -> 100; /schedules: ["2030-02-01T00:00:00.000Z"] -> `},
	} {
		t.Run(c.name, func(t *testing.T) {
			jobs, err := jobfiles.Read(filepath.Join(write(t, map[string]string{"a.json": c.file}), "a.json"), now)
			if err != nil {
				t.Fatal(err)
			}
			present, err := jobfiles.Normal(json.RawMessage(shown), openapi.JobFields())
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, change := range jobs[0].Changes(present) {
				got = append(got, change.Field+": "+change.From+" -> "+change.To)
			}
			if all := strings.Join(got, "; "); all != c.want {
				t.Errorf("the changes are\n%s, want\n%s", all, c.want)
			}
		})
	}
}
