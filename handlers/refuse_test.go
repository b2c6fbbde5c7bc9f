package handlers_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/store"
)

func TestSubmissionsThatAreRefused(t *testing.T) {
	t.Parallel()
	good := body("a", time.Hour)
	instants := make([]string, 11)
	for i := range instants {
		instants[i] = at(time.Duration(i) * time.Minute)
	}
	tests := map[string]struct {
		body    string
		status  int
		named   []string
		message string // a part of the detail, or of the first field's message
	}{
		"empty body":        {" ", 400, nil, "empty"},
		"not JSON":          {`{"key":`, 400, nil, "not valid JSON"},
		"two documents":     {good + good, 400, nil, "not valid JSON"},
		"not UTF-8":         {strings.Replace(good, `"a"`, "\"\xff\"", 1), 400, nil, "UTF-8"},
		"not an object":     {`[]`, 422, []string{""}, "must be an object"},
		"nothing given":     {`{}`, 422, []string{"/key", "/callback", "/schedules"}, "is required"},
		"unknown field":     {with(good, "shedules", 1), 422, []string{"/shedules"}, "not a known field; the fields here are key, type, schedules"},
		"unknown inside":    {with(good, "callback", map[string]any{"type": "http", "data": 1, "url": 2}), 422, []string{"/callback/url"}, "type, data"},
		"other case":        {with(good, "Past", "fire"), 422, []string{"/Past"}, "not a known field"},
		"repeated field":    {`{"key":"b",` + good[1:], 422, []string{"/key"}, "twice"},
		"key of wrong type": {with(good, "key", 1), 422, []string{"/key"}, "must be a string"},
		"empty key":         {with(good, "key", ""), 422, []string{"/key"}, "is required"},
		"long key":          {with(good, "key", strings.Repeat("é", 128)), 422, []string{"/key"}, "1 to 255 bytes"},
		"control in key":    {with(good, "key", "a\u0085b"), 422, []string{"/key"}, "control characters"},
		"no schedules":      {with(good, "schedules", []string{}), 422, []string{"/schedules"}, "must not be empty"},
		"before 1970":       {with(good, "schedules", []string{"1970-01-01T00:00:00+01:00"}), 422, []string{"/schedules/0"}, "before 1970"},
		"no offset":         {with(good, "schedules", []string{at(0), "2030-01-01T00:00:00"}), 422, []string{"/schedules/1"}, "RFC 3339"},
		"instant a number":  {with(good, "schedules", []any{at(0), 5}), 422, []string{"/schedules/1"}, "must be a string"},
		"too many instants": {with(good, "schedules", instants), 422, []string{"/schedules"}, "has 11 instants; at most 10 are allowed (--max-instants)"},
		"large payload":     {with(good, "callback", map[string]any{"type": "http", "data": strings.Repeat("x", 2000)}), 422, []string{"/callback/data"}, "at most 2000 are allowed (--max-payload)"},
		"unknown past":      {with(good, "past", "later"), 422, []string{"/past"}, "fire, skip, reject"},
		"no data":           {with(good, "callback", map[string]any{"type": "http"}), 422, []string{"/callback/data"}, "is required"},
		"unknown type":      {with(good, "callback", map[string]any{"type": "fax", "data": 1}), 422, []string{"/callback/type"}, "the types are http, rabbitmq"},
		"refused by sender": {with(good, "callback", map[string]any{"type": "http", "data": map[string]any{"refuse": 1}}), 422, []string{"/callback/data/refuse"}, "is refused"},
		"retry out of range": {with(good, "retry", map[string]any{"maxAttempts": 0, "initial": "31d", "factor": 0.5, "max": "0s"}), 422,
			[]string{"/retry/maxAttempts", "/retry/initial", "/retry/factor", "/retry/max"}, "at least 1"},
		"retry not a duration": {with(good, "retry", map[string]any{"initial": 5}), 422, []string{"/retry/initial"}, "duration in a string"},
		"retry max below":      {with(good, "retry", map[string]any{"initial": "2h", "max": "1h"}), 422, []string{"/retry/max"}, "initial, which is 2h"},
		"large body":           {with(good, "key", strings.Repeat("x", 4000)), 413, nil, "at most 4000 bytes are allowed (--max-body)"},
	}
	a := newAPI(t)
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			check := func(p problem) {
				t.Helper()
				if !slices.Equal(p.named(), test.named) {
					t.Errorf("names %q, want %q", p.named(), test.named)
				}
				said := p.Detail
				if len(p.Errors) > 0 {
					said = p.Errors[0].Message
				}
				if !strings.Contains(said, test.message) {
					t.Errorf("says %q, want %q", said, test.message)
				}
			}
			check(a.call("POST", "/v1/jobs", test.body).want(test.status).problem())
			if test.body != " " && !strings.Contains(name, "two documents") {
				line := a.call("POST", "/v1/jobs/batch", test.body, "Content-Type: application/jsonl").want(200)
				result := decode[problem](line)
				if result.Status != test.status {
					t.Errorf("as a batch item: %s", line.body)
				}
				check(result)
			}
		})
	}
	if puts := a.store.takePuts(); len(puts) > 0 {
		t.Errorf("%d were put", len(puts))
	}
}

func TestKeyInBodyAndPath(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.call("PUT", "/v1/jobs/a", with(body("", time.Hour), "key", nil)).want(201)
	a.call("PUT", "/v1/jobs/a", body("a", time.Hour)).want(200)
	p := a.call("PUT", "/v1/jobs/a", body("b", time.Hour)).want(422).problem()
	if !slices.Equal(p.named(), []string{"/key"}) {
		t.Errorf("%+v", p)
	}
	for _, bad := range []string{"%FF", "%00", "a%0Ab", strings.Repeat("x", 256)} {
		for _, request := range []string{"PUT", "GET", "DELETE", "PATCH", "GET /preview", "POST /pause", "POST /resume", "POST /trigger"} {
			method, behind, _ := strings.Cut(request, " ")
			sent := map[string]string{"PUT": with(body("", time.Hour), "key", nil), "PATCH": "{}"}[method]
			if p := a.call(method, "/v1/jobs/"+bad+behind, sent).want(422).problem(); !slices.Equal(p.named(), []string{"?key"}) {
				t.Errorf("%s %s: %+v", method, bad, p)
			}
		}
	}
}

func TestContentTypes(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	single, many := body("a", time.Hour), "["+body("a", time.Hour)+"]"
	for header, status := range map[string]int{
		"Content-Type: application/json; charset=utf-8":    200,
		"Content-Type: APPLICATION/JSON":                   200,
		"Content-Type: ":                                   415,
		"Content-Type: text/plain":                         415,
		"Content-Type: application/x-www-form-urlencoded":  415,
		"Content-Type: application/json, application/json": 415,
		"Content-Encoding: gzip":                           415,
		"Content-Encoding: identity":                       200,
	} {
		t.Run(header, func(*testing.T) {
			a.call("PUT", "/v1/jobs/a", single) // so that it is 200 below
			a.call("PUT", "/v1/jobs/a", single, header).want(status)
			a.call("POST", "/v1/jobs", single, header).want(status)
			a.call("POST", "/v1/jobs/batch", many, header).want(status)
		})
	}
	a.call("POST", "/v1/jobs", single, "Content-Type: application/x-ndjson").want(415)
}

func TestQueriesThatAreRefused(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	for request, named := range map[string]string{
		"GET /v1/jobs?limit=0":                         "?limit",
		"GET /v1/jobs?=":                               "?",
		"GET /v1/jobs?=1":                              "?",
		"GET /v1/jobs?limit=1001":                      "?limit",
		"GET /v1/jobs?limit=ten":                       "?limit",
		"GET /v1/jobs?limit=":                          "?limit",
		"GET /v1/jobs?cursor=%21":                      "?cursor",
		"GET /v1/jobs?cursor=":                         "?cursor",
		"GET /v1/jobs?cursor=AAAA":                     "?cursor",
		"GET /v1/jobs?prefx=a":                         "?prefx",
		"GET /v1/jobs?prefix=a&prefix=b":               "?prefix",
		"GET /v1/jobs?prefix=%FF":                      "?prefix",
		"GET /v1/jobs/a?cursor=b":                      "?cursor",
		"GET /v1/jobs/a?limit=-1":                      "?limit",
		"DELETE /v1/jobs":                              "?prefix",
		"DELETE /v1/jobs?prefix=":                      "?prefix",
		"DELETE /v1/jobs?prefx=a":                      "?prefx",
		"DELETE /v1/jobs?prefix=a&key=b":               "?key",
		"DELETE /v1/jobs/a?force=1":                    "?force",
		"GET /v1/dead-letters?key=a&prefix=a":          "?prefix",
		"GET /v1/dead-letters?key=":                    "?key",
		"GET /v1/dead-letters?cursor=x":                "?cursor",
		"POST /v1/dead-letters/redrive":                "?key",
		"POST /v1/dead-letters/redrive?prefix=":        "?prefix",
		"POST /v1/dead-letters/redrive?key=%00":        "?key",
		"POST /v1/dead-letters/redrive?key=a&prefix=a": "?prefix",
		"POST /v1/dead-letters/redrive?kee=a":          "?kee",
		"POST /v1/dead-letters/01JF/redrive?key=a":     "?key",
		"DELETE /v1/dead-letters/01JF?key=a":           "?key",
		"GET /v1/jobs/a/preview?count=0":               "?count",
		"GET /v1/jobs/a/preview?count=1001":            "?count",
		"GET /v1/jobs/a/preview?count=":                "?count",
		"GET /v1/jobs/a/preview?limit=1":               "?limit",
		"POST /v1/preview?count=-1":                    "?count",
		"POST /v1/preview?counts=1":                    "?counts",
	} {
		t.Run(request, func(t *testing.T) {
			method, path, _ := strings.Cut(request, " ")
			if p := a.call(method, path, "").want(422).problem(); !slices.Equal(p.named(), []string{named}) {
				t.Errorf("names %q, want %q", p.named(), named)
			}
		})
	}
	a.call("GET", "/v1/jobs?limit=%zz", "").want(400)
	for _, path := range []string{"/v1/jobs?past=skip", "/v1/jobs/batch?past=skip"} {
		a.call("POST", path, "[]").want(422)
	}
	a.call("PUT", "/v1/jobs/a?past=skip", "{}").want(422)
}

// requests are one of each kind that uses the store.
var requests = []string{
	"POST /v1/jobs", "PUT /v1/jobs/a", "GET /v1/jobs/a", "GET /v1/jobs", "DELETE /v1/jobs/a", "DELETE /v1/jobs?prefix=a",
	"PATCH /v1/jobs/a", "GET /v1/jobs/a/preview", "POST /v1/jobs/a/pause", "POST /v1/jobs/a/resume", "POST /v1/jobs/a/trigger",
	"GET /v1/dead-letters", "POST /v1/dead-letters/redrive?key=a",
	"POST /v1/dead-letters/01JF0000003Q8Z6C1V5B7N9M2K/redrive", "DELETE /v1/dead-letters/01JF0000003Q8Z6C1V5B7N9M2K",
}

func TestStoreFaults(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fault  error
		status int
	}{
		"down":   {fmt.Errorf("dial 10.0.0.1: %w", store.ErrUnavailable), 503},
		"broken": {errors.New("table 10.0.0.1 does not exist"), 500},
	} {
		for _, request := range requests {
			t.Run(name+" "+request, func(t *testing.T) {
				a := newAPI(t)
				a.store.setFault(test.fault)
				method, path, _ := strings.Cut(request, " ")
				submitted := ""
				if strings.Contains(request, "PUT") || request == "POST /v1/jobs" {
					submitted = body("a", time.Hour)
				}
				if method == "PATCH" {
					submitted = `{"callback":{"data":2}}`
				}
				got := a.call(method, path, submitted).want(test.status)
				if strings.Contains(string(got.body), "10.0.0.1") {
					t.Errorf("the answer shows internals: %s", got.body)
				}
				if !strings.Contains(a.log.String(), "10.0.0.1") {
					t.Errorf("the log does not tell the cause: %s", a.log)
				}
				a.store.setFault(nil)
				if status := a.call(method, path, submitted).status; status >= 500 {
					t.Errorf("status %d after the store has come back", status)
				}
			})
		}
	}
}

// A document that is too large for the store is the client's fault, in every kind of submission.
func TestTooLargeForTheStore(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.call("PUT", "/v1/jobs/a", body("a", time.Hour)).want(201)
	fault := fmt.Errorf("insert at 10.0.0.1: %w", store.ErrTooLarge)
	a.store.setFault(fault)
	for kind, batch := range map[string]string{asArray: "[" + body("a", 2*time.Hour) + "]", asLines: body("a", 2*time.Hour)} {
		got := a.call("POST", "/v1/jobs/batch", batch, "Content-Type: "+kind).want(200)
		if results := a.results(kind, got.body); len(results) != 1 || results[0].Status != 413 || !strings.Contains(results[0].Detail, "fewer instants") {
			t.Errorf("as %s: %s", kind, got.body)
		}
	}
	a.call("POST", "/v1/jobs", body("a", 2*time.Hour)).want(413)
	a.call("PUT", "/v1/jobs/a", body("a", 2*time.Hour)).want(413)
	a.store.setFault(nil)
	a.store.onAmend = func() { a.store.setFault(fault) } // a patch reads the job first
	got := a.call("PATCH", "/v1/jobs/a", `{"callback":{"data":2}}`).want(413)
	if p := got.problem(); !strings.Contains(p.Detail, "larger than the store can keep") || strings.Contains(p.Detail, "10.0.0.1") {
		t.Errorf("detail %q", p.Detail)
	}
	if a.log.String() != "" {
		t.Errorf("what is the client's to mend is logged: %s", a.log)
	}
}

func TestPanicIsAnswered(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	dangerous := with(body("a", time.Hour), "callback", map[string]any{"type": "http", "data": map[string]any{"panic": 1}})
	a.call("POST", "/v1/jobs", dangerous).want(500)
	got := a.call("POST", "/v1/jobs/batch", "["+dangerous+","+body("b", time.Hour)+"]").want(200)
	results := decode[[]struct{ Status int }](got)
	if len(results) != 2 || results[0].Status != 500 || results[1].Status != 201 {
		t.Errorf("%s", got.body)
	}
	if strings.Contains(string(got.body), "as asked") || strings.Count(a.log.String(), "as asked") != 2 {
		t.Errorf("panics are for the log: %s\n%s", got.body, a.log)
	}
}
