package handlers_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// result is one result of a batch.
type result struct {
	Index                                            int
	Key, Revision, State, NextInstant, Title, Detail string
	Status                                           int
	Occurrences                                      int
	Errors                                           []struct{ Pointer, Message string }
}

const (
	asArray = "application/json"
	asLines = "application/x-ndjson"
)

// batch sends items as an array or as lines, and reads the results.
func (a *api) batch(media string, items ...string) []result {
	a.Helper()
	text := strings.Join(items, "\n")
	if media == asArray {
		text = "[" + strings.Join(items, ",") + "]"
	}
	got := a.call("POST", "/v1/jobs/batch", text, "Content-Type: "+media).want(200)
	results := a.results(media, got.body)
	for _, r := range results {
		if r.Status < 400 {
			a.matches(a.spec.Components.Schemas["JobInBatch"], []byte(items[r.Index]))
		}
	}
	return results
}

// results decodes results and checks that they are as specified.
func (a *api) results(media string, text []byte) []result {
	a.Helper()
	documents := []json.RawMessage{}
	if media == asArray {
		if err := json.Unmarshal(text, &documents); err != nil {
			a.Fatalf("%v: %s", err, text)
		}
	} else {
		for line := range bytes.Lines(text) {
			documents = append(documents, line)
		}
	}
	content := a.spec.Paths.Value("/v1/jobs/batch").Post.Responses.Status(200).Value.Content
	whole, err := json.Marshal(documents)
	if err != nil {
		a.Fatal(err)
	}
	a.matches(content[asArray].Schema, whole)
	var results []result
	if err := json.Unmarshal(whole, &results); err != nil {
		a.Fatal(err)
	}
	return results
}

func TestBatchOfThousandsWithBadItemsBetween(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	t.Parallel()
	for _, media := range []string{asArray, asLines} {
		t.Run(media, func(t *testing.T) {
			a := newAPI(t)
			const n = 2500 // more than two chunks
			items, statuses := make([]string, n), make([]int, n)
			for i := range items {
				key := fmt.Sprintf("k%04d", i)
				items[i], statuses[i] = body(key, time.Hour), 201
				switch i % 500 {
				case 7:
					items[i], statuses[i] = with(items[i], "colour", "red"), 422
				case 8:
					items[i], statuses[i] = `{"key":"`+key+`" nonsense ]}`, 400
				case 9:
					items[i], statuses[i] = with(items[i], "pad", strings.Repeat("x", 100_000)), 413
				}
			}
			results := a.batch(media, items...)
			if len(results) != n {
				t.Fatalf("%d results, want %d", len(results), n)
			}
			stored := 0
			for i, r := range results {
				if r.Index != i || r.Status != statuses[i] {
					t.Fatalf("result %d: %+v, want status %d", i, r, statuses[i])
				}
				if r.Status == 201 {
					stored++
					if r.Key != fmt.Sprintf("k%04d", i) || r.Occurrences != 1 || r.NextInstant != at(time.Hour) {
						t.Fatalf("result %d: %+v", i, r)
					}
				}
			}
			if r := results[7]; len(r.Errors) != 1 || r.Errors[0].Pointer != "/colour" {
				t.Errorf("%+v", r)
			}
			a.advance(time.Hour)
			fired := 0
			for claimed := a.claim(); len(claimed) > 0; claimed = a.claim() {
				fired += len(claimed)
			}
			if fired != stored {
				t.Errorf("%d fire, want the %d that were stored", fired, stored)
			}
			if puts := len(a.store.takePuts()); puts > n/10 {
				t.Errorf("%d items took %d puts", n, puts)
			}
		})
	}
}

func TestBatchShapes(t *testing.T) {
	t.Parallel()
	good := body("a", time.Hour)
	tests := map[string]struct {
		media, text string
		status      int
		results     []int // the statuses of the results
	}{
		"empty array":                {asArray, " [ ] \n", 200, nil},
		"empty lines":                {asLines, "", 200, nil},
		"blank lines":                {asLines, "\n \r\n" + good + "\r\n\n", 200, []int{201}},
		"last line without its end":  {asLines, good + "\n" + good, 200, []int{201, 200}},
		"white space":                {asArray, "\n[\t" + good + "\r\n,\n" + good + " ]\n", 200, []int{201, 200}},
		"empty body":                 {asArray, "", 400, nil},
		"an object":                  {asArray, good, 400, nil},
		"lines sent as an array":     {asArray, good + "\n" + good, 400, nil},
		"array sent as a line":       {asLines, "[" + good + "]", 200, []int{422}},
		"not closed":                 {asArray, "[" + good + "," + good, 200, []int{201, 400}},
		"not closed after comma":     {asArray, "[" + good + ",", 200, []int{201, 400}},
		"ends in a string":           {asArray, "[" + good + `,{"key":"b]`, 200, []int{201, 400}},
		"text behind":                {asArray, "[" + good + "]]", 200, []int{201, 400}},
		"text behind an empty one":   {asArray, "[]x", 200, []int{400}},
		"missing element":            {asArray, "[" + good + ",," + good + "]", 200, []int{201, 400, 200}},
		"trailing comma":             {asArray, "[" + good + ",]", 200, []int{201, 400}},
		"leading comma":              {asArray, "[," + good + "]", 200, []int{400, 201}},
		"brackets in strings":        {asArray, "[" + strings.Replace(good, `"a"`, `"]},[{\"\\"`, 1) + "," + good + "]", 200, []int{201, 201}},
		"brackets that don't match":  {asArray, `[{"key":]],` + good + "]", 200, []int{400, 400}},
		"scalars":                    {asArray, `[1,"a",null,true,` + good + `]`, 200, []int{422, 422, 422, 422, 201}},
		"bad line between good ones": {asLines, good + "\n{\n" + good, 200, []int{201, 400, 200}},
		"too large line":             {asLines, strings.Repeat("x", 300_000) + "\n" + good, 200, []int{413, 201}},
		"too large last line":        {asLines, good + "\n" + strings.Repeat("x", 4001), 200, []int{201, 413}},
		"line as large as may be":    {asLines, good + strings.Repeat(" ", 4000-len(good)) + "\n" + good, 200, []int{201, 200}},
		"too large element":          {asArray, "[" + good + `,"` + strings.Repeat("]", 300_000) + `",` + good + "]", 200, []int{201, 413, 200}},
		"element as large as may be": {asArray, "[" + good + strings.Repeat(" ", 4000-len(good)) + "]", 200, []int{201}},
		"element one byte too large": {asArray, "[" + good + strings.Repeat(" ", 4001-len(good)) + "]", 200, []int{413}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t)
			got := a.call("POST", "/v1/jobs/batch", test.text, "Content-Type: "+test.media).want(test.status)
			if test.status != 200 {
				return
			}
			var statuses []int
			for i, r := range a.results(test.media, got.body) {
				if r.Index != i {
					t.Errorf("result %d has index %d", i, r.Index)
				}
				statuses = append(statuses, r.Status)
			}
			if !slices.Equal(statuses, test.results) {
				t.Errorf("statuses %v, want %v: %s", statuses, test.results, got.body)
			}
		})
	}
}

// TestBatchConditions: an item's condition is that of a header, and decides about this item alone.
func TestBatchConditions(t *testing.T) {
	t.Parallel()
	for _, media := range []string{asArray, asLines} {
		a := newAPI(t)
		version := a.batch(media, body("there", time.Hour))[0].Revision
		before := a.batch(media, body("other", time.Hour))[0].Revision
		a.batch(media, body("other", 2*time.Hour))
		for _, c := range []struct {
			key, name, value string
			status           int
		}{
			{"there", "ifNoneMatch", "*", 412},
			{"new", "ifNoneMatch", "*", 201},
			{"there", "ifNoneMatch", version, 422},
			{"absent", "ifMatch", "*", 412},
			{"absent", "ifMatch", version, 412},
			{"other", "ifMatch", "*", 200},
			{"other", "ifMatch", before, 412},
			{"there", "ifMatch", `"` + version + `"`, 422},
			{"there", "ifMatch", "a b", 422},
			{"there", "ifMatch", "", 422},
			{"there", "ifMatch", version, 200},
			{"there", "ifMatch", version, 412},
		} {
			for _, at := range []time.Duration{-time.Hour, 3 * time.Hour} { // it is read first, or put at once
				if c.status < 300 && at < 0 {
					continue // it would change the following items
				}
				items := []string{body("x", time.Hour), with(body(c.key, at), c.name, c.value), body("y", time.Hour)}
				got := a.batch(media, items...)
				if len(got) != 3 || got[1].Status != c.status || got[0].Status > 201 || got[2].Status > 201 {
					t.Errorf("%s: %q of %q: %+v, want %d", c.name, c.value, c.key, got, c.status)
				}
				if c.status == 422 && (len(got[1].Errors) != 1 || got[1].Errors[0].Pointer != "/"+c.name) {
					t.Errorf("%s: %q: %+v", c.name, c.value, got[1])
				}
			}
		}
		both := with(with(body("there", time.Hour), "ifMatch", "*"), "ifNoneMatch", "*")
		if got := a.batch(media, both)[0]; got.Status != 422 || got.Errors[0].Pointer != "/ifNoneMatch" {
			t.Errorf("%+v", got)
		}
		for _, single := range []string{"POST /v1/jobs", "PUT /v1/jobs/there"} {
			method, path, _ := strings.Cut(single, " ")
			a.call(method, path, with(body("there", time.Hour), "ifMatch", "*")).want(422)
		}
	}
}

func TestBatchItemFailsAlone(t *testing.T) {
	t.Parallel()
	a := newAPI(t, func(c *handlers.Config) { c.Store = &failsKey{apiSide: c.Store, key: "b"} })
	results := a.batch(asLines, body("a", time.Hour), body("b", time.Hour), body("c", time.Hour))
	if len(results) != 3 || results[0].Status != 201 || results[1].Status != 503 || results[2].Status != 201 {
		t.Errorf("%+v", results)
	}
}

// apiSide is embedded under a name other than that of one of its methods.
type apiSide = interface{ store.Jobs }

// failsKey is a store that is unavailable for one key.
type failsKey struct {
	apiSide
	key string
}

func (s *failsKey) Put(ctx context.Context, puts []store.Put) []store.PutResult {
	results := make([]store.PutResult, len(puts))
	for i, p := range puts {
		if p.Job.Key == s.key {
			results[i].Err = store.ErrUnavailable
		} else {
			results[i] = s.apiSide.Put(ctx, []store.Put{p})[0]
		}
	}
	return results
}

func TestConnectionIsReusedAfterABatch(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	for range 3 {
		a.batch(asLines, body("a", time.Hour))
		a.batch(asArray, body("a", time.Hour))
		a.call("GET", "/v1/jobs/a", "").want(200)
	}
}

func TestBatchWakes(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.batch(asLines, body("a", 3*time.Hour), body("b", time.Hour), body("c", 2*time.Hour))
	if wakes := a.takeWakes(); len(wakes) == 0 || !slices.ContainsFunc(wakes, start.Add(time.Hour).Equal) {
		t.Errorf("woken for %v", wakes)
	}
}

// TestPanicOverOneItem: a panic while one item's job is read costs that item alone, not the batch nor the process.
func TestPanicOverOneItem(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	var items, want []string
	for i := range 20 {
		key := fmt.Sprint("k", i)
		a.call("PUT", "/v1/jobs/"+key, body(key, time.Hour)).want(201)
		items, want = append(items, body(key, -time.Hour, time.Hour)), append(want, key+" 200")
	}
	want[13] = "k13 500"
	a.store.onJob = func(n job.Name) {
		if n.Key == "k13" {
			panic("as asked")
		}
	}
	got := a.call("POST", "/v1/jobs/batch", "["+strings.Join(items, ",")+"]").want(200)
	var results []string
	for _, r := range decode[[]struct {
		Key    string
		Status int
	}](got) {
		results = append(results, fmt.Sprint(r.Key, " ", r.Status))
	}
	if !slices.Equal(results, want) {
		t.Errorf("the results are %v", results)
	}
	if log := a.log.String(); !strings.Contains(log, "as asked") || !strings.Contains(log, "handlers/attempt.go") {
		t.Errorf("the log lacks the panic or its stack: %s", log)
	}
	if strings.Contains(string(got.body), "as asked") {
		t.Errorf("the client is shown the panic: %s", got.body)
	}
}
