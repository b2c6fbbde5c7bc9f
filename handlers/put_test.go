package handlers_test

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

func TestPostCreatesAndReplaces(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	created := a.call("POST", "/v1/jobs", body("a+b/c", 2*time.Hour, time.Hour, 2*time.Hour)).want(201)
	first := decode[accepted](created)
	if first.Key != "a+b/c" || first.State != "scheduled" || first.Occurrences != 2 || first.NextInstant != at(time.Hour) || first.InFlight != nil {
		t.Errorf("created: %s", created.body)
	}
	if got := created.header.Get("ETag"); got != `"`+first.Revision+`"` {
		t.Errorf("ETag %s", got)
	}
	if got := created.header.Get("Location"); got != "/v1/jobs/a+b%2Fc" {
		t.Errorf("Location %s", got)
	}
	if got := a.takeWakes(); !slices.Equal(got, []time.Time{start.Add(time.Hour)}) {
		t.Errorf("woken for %v", got)
	}

	a.advance(time.Minute)
	second := decode[accepted](a.call("POST", "/v1/jobs", body("a+b/c", 3*time.Hour)).want(200))
	if second.Revision == first.Revision || second.Occurrences != 1 || second.InFlight == nil || *second.InFlight != 0 {
		t.Errorf("replaced: %+v", second)
	}
	got := decode[definition](a.call("GET", pathOf("a+b/c"), "").want(200))
	if got.Revision != second.Revision || got.CreatedAt != at(0) || got.UpdatedAt != at(time.Minute) ||
		got.Pending != 1 || len(got.Occurrences) != 1 || got.Occurrences[0].Timestamp != at(3*time.Hour) {
		t.Errorf("read: %+v", got)
	}
}

func TestReplaceTellsWhatIsInFlight(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.call("PUT", "/v1/jobs/a", body("a", 0, time.Hour)).want(201)
	if n := len(a.claim()); n != 1 {
		t.Fatalf("claimed %d", n)
	}
	if got := decode[accepted](a.call("PUT", "/v1/jobs/a", body("a", time.Hour)).want(200)); *got.InFlight != 1 {
		t.Errorf("inFlight %d, want 1", *got.InFlight)
	}
}

func TestFixturesWorkAsTheyStand(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		occurrences, due int
		next             string
	}{
		"training-invitations": {4, 4, "2020-12-24T14:00:00.000Z"}, // they have passed, and the job is new
		"renewal-reminder":     {1, 0, at(time.Hour)},
		"marketing-sequence":   {60, 20, "2023-12-29T18:48:34.200Z"}, // its last step goes back
	} {
		t.Run(name, func(t *testing.T) {
			fixture, err := os.ReadFile("testdata/" + name + ".json")
			if err != nil {
				t.Fatal(err)
			}
			a := newAPI(t, func(c *handlers.Config) {
				c.Limits.Instants = 60
				c.Callbacks = callbacks.NewRegistry(sender("http"), sender("rabbitmq"), sender("kafka"))
			})
			got := decode[accepted](a.call("POST", "/v1/jobs", string(fixture)).want(201))
			if got.Occurrences != test.occurrences || got.NextInstant != test.next {
				t.Errorf("%+v", got)
			}
			if n := len(a.claim()); n != test.due {
				t.Errorf("%d occurrences are due, want %d", n, test.due)
			}
		})
	}
}

func TestPayloadsAreKeptByteForByte(t *testing.T) {
	t.Parallel()
	payloads := []string{
		`{ "b" : 1.0,` + "\n\t" + `"a" : 12345678901234567890123, "e": 1E40 }`,
		`"<script>&amp; é \u00e9 \/ 😀 \ud83d\ude00"`,
		`[ ]`, `0`, `-0.0`, `false`, `""`,
		`{"":{"~":[[[{}]]]}}`,
	}
	a := newAPI(t)
	for _, payload := range payloads {
		submitted := `{"callback":{"data": ` + payload + ` ,"type":"http"},"schedules":["` + at(0) + `"]}`
		a.call("PUT", "/v1/jobs/single", submitted).want(201)
		a.call("POST", "/v1/jobs/batch", "["+with(body("other", 0))+","+withKey(submitted, "batch")+"]").want(200)

		for _, key := range []string{"single", "batch"} {
			shown := a.call("GET", pathOf(key), "").want(200)
			if got := rawData(t, shown.body); got != payload {
				t.Errorf("%s is shown as %s, want %s", key, got, payload)
			}
		}
		for _, c := range a.claim() {
			if c.Name.Key != "other" && string(c.Callback.Data) != payload {
				t.Errorf("%s is delivered as %s, want %s", c.Name.Key, c.Callback.Data, payload)
			}
			a.settle(c, store.Bury, "no")
		}
		for _, letter := range rawItems(t, a.call("GET", "/v1/dead-letters?prefix=single", "").want(200).body) {
			if got := rawData(t, letter); got != payload {
				t.Errorf("the dead letter shows %s, want %s", got, payload)
			}
			a.call("DELETE", "/v1/dead-letters/"+member(t, letter, "id"), "").want(204)
		}
		for _, key := range []string{"single", "batch"} {
			a.call("DELETE", pathOf(key), "").want(200)
		}
	}
}

// withKey adds a key to an object without touching its other bytes.
func withKey(object, key string) string { return `{"key":"` + key + `",` + object[1:] }

func rawData(t *testing.T, object []byte) string {
	t.Helper()
	var v struct {
		Callback struct{ Data json.RawMessage }
	}
	if err := json.Unmarshal(object, &v); err != nil {
		t.Fatal(err)
	}
	return string(v.Callback.Data)
}

func rawItems(t *testing.T, page []byte) [][]byte {
	t.Helper()
	var v struct{ Items []json.RawMessage }
	if err := json.Unmarshal(page, &v); err != nil {
		t.Fatal(err)
	}
	items := make([][]byte, len(v.Items))
	for i, item := range v.Items {
		items[i] = bytes.Clone(item)
	}
	return items
}

func member(t *testing.T, object []byte, name string) string {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal(object, &v); err != nil {
		t.Fatal(err)
	}
	return v[name].(string)
}

// TestPast puts a job with one instant that has passed and one to come.
func TestPast(t *testing.T) {
	t.Parallel()
	type want struct{ status, occurrences, skipped int }
	fired, skipped, refused := want{0, 2, 0}, want{0, 1, 1}, want{422, 0, 0}
	tests := []struct {
		past           string
		creates, after want // when it creates the job, and when it replaces one
	}{
		{"", fired, skipped},
		{"fire", fired, fired},
		{"skip", skipped, skipped},
		{"reject", refused, refused},
	}
	for _, test := range tests {
		for _, condition := range []string{"", "If-None-Match: *", "If-Match: *", "If-Match: current"} {
			for _, replaces := range []bool{false, true} {
				for _, batch := range []bool{false, true} {
					if (condition == "If-None-Match: *" && replaces) || (strings.HasPrefix(condition, "If-Match") && !replaces) ||
						(condition != "" && batch) {
						continue // these answer 412, or conditions can't be given
					}
					t.Run(strings.Join([]string{test.past, condition, map[bool]string{true: "replaces"}[replaces],
						map[bool]string{true: "batch"}[batch]}, ","), func(t *testing.T) {
						a := newAPI(t)
						w, status := test.creates, 201
						header := condition
						if replaces {
							w, status = test.after, 200
							tag := a.call("PUT", "/v1/jobs/a", body("a", 3*time.Hour)).want(201).header.Get("ETag")
							header = strings.Replace(header, "current", tag, 1)
						}
						if w.status != 0 {
							status = w.status
						}
						submitted := body("a", -time.Hour, time.Hour)
						if test.past != "" {
							submitted = with(submitted, "past", test.past)
						}
						var got answer
						switch {
						case batch:
							got = a.call("POST", "/v1/jobs/batch", submitted, "Content-Type: application/x-ndjson").want(200)
							got.status = decode[struct{ Status int }](got).Status
						case header != "":
							got = a.call("PUT", "/v1/jobs/a", submitted, header)
						default:
							got = a.call("PUT", "/v1/jobs/a", submitted)
						}
						got.want(status)
						if status == 422 {
							return
						}
						v := decode[accepted](got)
						if v.Occurrences != w.occurrences || v.Skipped != w.skipped {
							t.Errorf("%d occurrences and %d skipped, want %d and %d", v.Occurrences, v.Skipped, w.occurrences, w.skipped)
						}
						if due := len(a.claim()); due != w.occurrences-1 {
							t.Errorf("%d are due, want %d", due, w.occurrences-1)
						}
					})
				}
			}
		}
	}
}

func TestRejectedPastNamesTheInstant(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	p := a.call("PUT", "/v1/jobs/a", with(body("a", -time.Hour, time.Hour), "past", "reject")).want(422).problem()
	if !slices.Equal(p.named(), []string{"/schedules"}) || !strings.Contains(p.Errors[0].Message, at(-time.Hour)) {
		t.Errorf("%+v", p)
	}
}

// TestPastIsDecidedByTheStore lets another client create or delete the job between this one's steps.
func TestPastIsDecidedByTheStore(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		exists      bool
		interfere   []string // the change before each of the first Puts: "create" or "delete"
		status      int
		occurrences int
	}{
		"created before the first":              {false, []string{"create"}, 200, 1},
		"deleted after the first":               {true, []string{"", "delete"}, 201, 2},
		"deleted after, created again":          {true, []string{"", "delete", "create"}, 200, 1},
		"created and deleted and created":       {false, []string{"create", "delete", "create", ""}, 200, 1},
		"again and again, until it is given up": {false, slices.Repeat([]string{"create", "delete"}, 20), 503, 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t)
			if test.exists {
				a.call("PUT", "/v1/jobs/a", body("a", 3*time.Hour)).want(201)
			}
			round := 0
			a.store.onPut = func([]store.Put) {
				if round < len(test.interfere) {
					switch test.interfere[round] {
					case "create":
						createDirectly(t, a, "a")
					case "delete":
						if _, err := a.store.Cancel(t.Context(), []job.Name{{Tenant: job.DefaultTenant, Key: "a"}}, store.Asked{Now: a.clock()}); err != nil {
							t.Error(err)
						}
					}
				}
				round++
			}
			got := a.call("PUT", "/v1/jobs/a", body("a", -time.Hour, time.Hour)).want(test.status)
			if v := decode[accepted](got); v.Occurrences != test.occurrences {
				t.Errorf("%d occurrences, want %d", v.Occurrences, test.occurrences)
			}
		})
	}
}

func createDirectly(t *testing.T, a *api, key string) {
	t.Helper()
	later := a.clock().Add(time.Hour)
	j := job.Job{
		Name: name(key), Revision: job.NewRevision(a.clock()), Callback: job.Callback{Type: "http", Data: []byte("1")},
		Schedule: job.Schedule{Instants: []time.Time{later}}, CreatedAt: a.clock(), UpdatedAt: a.clock(), ExpiresAt: later,
	}
	j.Version = j.Revision
	begun, err := j.Begin(a.clock(), job.PastFire, job.Expansion{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range a.store.Store.Put(t.Context(), []store.Put{{Job: j, Occurrences: begun.Occurrences, Now: a.clock()}}) {
		if r.Err != nil {
			t.Error(r.Err)
		}
	}
}

func TestNothingPastIsOnePut(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	for range 2 {
		a.call("PUT", "/v1/jobs/a", body("a", time.Hour))
		if puts := a.store.takePuts(); len(puts) != 1 || !puts[0][0].If.Always() {
			t.Errorf("%d puts: %+v", len(puts), puts)
		}
	}
}

func TestConditions(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		header         []string // "current" stands for the job's entity tag
		absent, exists int      // the status when there is no such job, and when there is
	}{
		"none":               {nil, 201, 200},
		"absent":             {[]string{"If-None-Match: *"}, 201, 412},
		"present":            {[]string{"If-Match: *"}, 412, 200},
		"current":            {[]string{`If-Match: current`}, 412, 200},
		"one of several":     {[]string{`If-Match: "x", current ,"y"`}, 412, 200},
		"none of several":    {[]string{`If-Match: "x","y"`}, 412, 412},
		"weak":               {[]string{`If-Match: W/current`}, 412, 412},
		"weak or current":    {[]string{`If-Match: W/"x", current`}, 412, 200},
		"empty tag":          {[]string{`If-Match: ""`}, 412, 412},
		"both":               {[]string{"If-Match: *", "If-None-Match: *"}, 400, 400},
		"not a tag":          {[]string{"If-Match: abc"}, 400, 400},
		"not closed":         {[]string{`If-Match: "abc`}, 400, 400},
		"no comma":           {[]string{`If-Match: "a" "b"`}, 400, 400},
		"weak alone":         {[]string{`If-Match: W/`}, 400, 400},
		"commas only":        {[]string{`If-Match: ,`}, 400, 400},
		"none of a revision": {[]string{`If-None-Match: current`}, 400, 400},
		"not ASCII":          {[]string{"If-Match: \"\xff\""}, 400, 400},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t)
			apply := func(tag string) []string {
				var headers []string
				for _, h := range test.header {
					headers = append(headers, strings.ReplaceAll(h, "current", tag))
				}
				return headers
			}
			for _, past := range []time.Duration{time.Hour, -time.Hour} { // each way a default past is decided
				a.call("PUT", "/v1/jobs/a", body("a", past), apply(`"01KBX2Q7ZJ7Q1H8Z5V0T9W3M4N"`)...).want(test.absent)
				a.call("DELETE", "/v1/jobs/a", "")
			}
			tag := a.call("PUT", "/v1/jobs/a", body("a", time.Hour)).want(201).header.Get("ETag")
			before := a.call("GET", "/v1/jobs/a", "").want(200).body
			got := a.call("PUT", "/v1/jobs/a", body("a", 2*time.Hour), apply(tag)...).want(test.exists)
			after := a.call("GET", "/v1/jobs/a", "").want(200).body
			if changed := !bytes.Equal(before, after); changed != (test.exists == 200) {
				t.Errorf("changed is %t after status %d", changed, got.status)
			}
		})
	}
}

func TestConditionsAreRefusedWhereTheyAreNotHonoured(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.call("PUT", "/v1/jobs/a", body("a", time.Hour)).want(201)
	for _, header := range []string{"If-Match: *", "If-None-Match: *"} {
		a.call("DELETE", "/v1/jobs?prefix=a", "", header).want(400)
		for _, verb := range verbs {
			a.call("POST", "/v1/jobs/a/"+verb, "", header).want(400)
		}
		a.call("POST", "/v1/jobs/batch", "["+body("a", time.Hour)+"]", header).want(400)
	}
	a.call("DELETE", "/v1/jobs/a", "", "If-None-Match: *").want(400)
	a.call("GET", "/v1/jobs/a", "").want(200)
}

// TestAfterRetentionThereIsNoJob puts a job whose predecessor has finished and lost its retention, but was not swept.
func TestAfterRetentionThereIsNoJob(t *testing.T) {
	t.Parallel()
	for _, header := range []string{"If-Match: ", "If-None-Match: *"} {
		a := newAPI(t, func(c *handlers.Config) { c.Retain = 0 })
		a.call("PUT", "/v1/jobs/a", body("a", 0)).want(201)
		a.advance(time.Second)
		a.call("GET", "/v1/jobs/a", "").want(200) // it waits to fire
		for _, c := range a.claim() {
			a.settle(c, store.Ack, "")
		}
		a.call("GET", "/v1/jobs/a", "").want(404)
		if got := decode[accepted](a.call("PUT", "/v1/jobs/a", body("a", -time.Hour, time.Hour), header).want(201)); got.Occurrences != 2 {
			t.Errorf("%s: %d occurrences, want 2: for its client the job is new", header, got.Occurrences)
		}
	}
}
