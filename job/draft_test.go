package job_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

var limits = job.Limits{Instants: 3, Payload: 20}

func TestDraftMakesAJob(t *testing.T) {
	d, err := job.Decode([]byte(`{
		"key": "a+b/c", "schedules": ["2030-01-01T13:00:00+01:00", "2029-01-01T00:00:00.0001Z", "2030-01-01T12:00:00Z"],
		"past": "skip", "callback": {"type": "http", "data": { "n" : 1.0 } }, "retry": {"initial": "1d", "factor": 1.5},
		"priority": "low", "destination": {"maxInFlight": 3, "ratePerSecond": 0.5}}`))
	if err != nil {
		t.Fatal(err)
	}
	j, err := d.Job("acme", limits)
	if err != nil {
		t.Fatal(err)
	}
	want := []time.Time{time.Date(2029, 1, 1, 0, 0, 0, 1_000_000, time.UTC), start}
	if j.Name != (job.Name{Tenant: "acme", Key: "a+b/c"}) || !slices.Equal(j.Schedule.Instants, want) || d.PastOrDefault() != job.PastSkip {
		t.Errorf("%+v", j)
	}
	if string(j.Callback.Data) != `{ "n" : 1.0 }` || j.Callback.Type != "http" {
		t.Errorf("callback %s %s", j.Callback.Type, j.Callback.Data)
	}
	if want := (job.DestinationLimits{MaxInFlight: 3, RatePerSecond: 0.5}); j.Options.Destination != want || j.Options.Priority != job.PriorityLow {
		t.Errorf("%+v", j.Options)
	}
	if want := (job.Retry{Initial: job.Duration(24 * time.Hour), Factor: 1.5}); j.Options.Retry != want || j.Revision != "" {
		t.Errorf("%+v", j)
	}
}

func TestDecodedDataOutlivesTheBody(t *testing.T) {
	body := []byte(`{"key":"a","schedules":["2030-01-01T12:00:00Z"],"callback":{"type":"http","data":"abc"}}`)
	d, err := job.Decode(body)
	if err != nil {
		t.Fatal(err)
	}
	for i := range body {
		body[i] = 'x'
	}
	if string(d.Callback.Data) != `"abc"` || d.Key != "a" || d.Schedules[0] != "2030-01-01T12:00:00Z" {
		t.Errorf("%+v", d)
	}
}

func TestDraftsThatAreRefused(t *testing.T) {
	const at = `"2030-01-01T12:00:00Z"`
	object := func(key, schedules, data, rest string) string {
		return `{"key":` + key + `,"schedules":[` + schedules + `],"callback":{"type":"http","data":` + data + `}` + rest + `}`
	}
	tests := map[string]struct {
		body     string
		pointers []string // nil if it is malformed
		message  string
	}{
		"empty":             {"", nil, "the body is empty"},
		"half":              {`{"key":"a"`, nil, "not valid JSON"},
		"bad number":        {object(`"a"`, at, `01`, ""), nil, "not valid JSON"},
		"bad text":          {object(`"a"`, at, `"\ud800"`, ""), nil, "not valid JSON"},
		"an array":          {`[]`, []string{""}, "must be an object"},
		"all missing":       {`{}`, []string{"/key", "/callback", "/schedules"}, "is required"},
		"nulls":             {`{"key":null,"schedules":null,"callback":null}`, []string{"/key", "/callback", "/schedules"}, "is required"},
		"parts missing":     {`{"key":"a","schedules":[` + at + `],"callback":{}}`, []string{"/callback/type", "/callback/data"}, "is required"},
		"unknown":           {object(`"a"`, at, `1`, `,"a/b~c":1`), []string{"/a~1b~0c"}, "not a known field"},
		"twice":             {object(`"a"`, at, `1`, `,"key":"b"`), []string{"/key"}, "twice"},
		"twice in data":     {object(`"a"`, at, `{"x":{"y":1,"y":2}}`, ""), []string{"/callback/data/x/y"}, "twice"},
		"bad instants":      {object(`"a"`, `"x",`+at+`,"1969-01-01T00:00:00Z"`, `1`, ""), []string{"/schedules/0", "/schedules/2"}, `"x" must be an RFC 3339`},
		"too many instants": {object(`"a"`, distinct(4), `1`, ""), []string{"/schedules"}, "--max-instants"},
		"instants that collapse to few enough, and a bad one": {object(`"a"`, strings.Join([]string{at, at, at, at, `"x"`}, ","), `1`, ""),
			[]string{"/schedules/4"}, "RFC 3339"},
		"too large a payload": {object(`"a"`, at, `"`+strings.Repeat("x", 19)+`"`, ""), []string{"/callback/data"}, "is 21 bytes; at most 20"},
		"both too much": {object(`"a"`, distinct(4), `"`+strings.Repeat("x", 19)+`"`, ""),
			[]string{"/schedules", "/callback/data"}, "--max-instants"},
		"key too long": {object(`"`+strings.Repeat("x", 256)+`"`, at, `1`, ""), []string{"/key"}, "255 bytes"},
		"key with DEL": {object(`"a\u007f"`, at, `1`, ""), []string{"/key"}, "control"},
		"past":         {object(`"a"`, at, `1`, `,"past":"FIRE"`), []string{"/past"}, `not "FIRE"`},
		"attempts":     {object(`"a"`, at, `1`, `,"retry":{"maxAttempts":1001}`), []string{"/retry/maxAttempts"}, "at most 1000"},
		"no attempts":  {object(`"a"`, at, `1`, `,"retry":{"maxAttempts":0}`), []string{"/retry/maxAttempts"}, "must be at least 1"},
		"factor below": {object(`"a"`, at, `1`, `,"retry":{"factor":0.5}`), []string{"/retry/factor"}, "must be at least 1"},
		"factor above": {object(`"a"`, at, `1`, `,"retry":{"factor":100.5}`), []string{"/retry/factor"}, "must be at most 100"},
		"type":         {object(`"a"`, at, `1`, `,"type":"sequel"`), []string{"/type", "/type"}, `must be "sequence", or left out, not "sequel"`},
		"empty texts": {object(`"a"`, at, `1`, `,"past":"","priority":""`), []string{"/past", "/priority"},
			`/past: must be one of fire, skip, reject, or left out, not ""; /priority: must be one of high, normal, low, or left out, not ""`},
		"an empty type": {`{"key":"a","steps":[{"type":"job"}],"type":"","callback":{"type":"http","data":1}}`, []string{"/type"},
			`/type: must be "sequence", or left out, not ""`},
		"an empty catch-up": {`{"key":"a","crontab":"@daily","catchUp":"","callback":{"type":"http","data":1}}`, []string{"/catchUp"},
			`/catchUp: must be one of latest, all, none, or left out, not ""`},
		"an empty envelope": {`{"key":"a","delay":"1s","callback":{"type":"http","data":1,"envelope":""}}`, []string{"/callback/envelope"},
			`/callback/envelope: must be one of none, cloudevents, cloudevents-binary, or left out, not ""`},
		"start and end": {`{"key":"a","crontab":"@daily","startAt":"","endAt":"soon","callback":{"type":"http","data":1}}`,
			[]string{"/startAt", "/endAt"}, `/startAt: "" must be an RFC 3339 instant`},
		"in order": {`{"retry":{"max":"31d"},"callback":{"envelope":"box"},"catchUp":"x","past":"x","schedules":["x"],"key":""}`,
			[]string{"/key", "/schedules/0", "/past", "/catchUp", "/retry/max", "/callback/type", "/callback/data", "/callback/envelope", "/catchUp"},
			`/callback/envelope: must be one of none, cloudevents, cloudevents-binary, or left out, not "box"`},
		"attempts in part": {object(`"a"`, at, `1`, `,"retry":{"maxAttempts":1.5}`), []string{"/retry/maxAttempts"}, "whole number"},
		"initial":          {object(`"a"`, at, `1`, `,"retry":{"initial":"1us"}`), []string{"/retry/initial"}, "from 1ms to 30d"},
		"not a duration":   {object(`"a"`, at, `1`, `,"retry":{"max":"soon"}`), []string{"/retry/max"}, `not "soon"`},
		"priority":         {object(`"a"`, at, `1`, `,"priority":"urgent"`), []string{"/priority"}, `must be one of high, normal, low, or left out, not "urgent"`},
		"destination": {object(`"a"`, at, `1`, `,"destination":{"maxInFlight":0,"ratePerSecond":0}`),
			[]string{"/destination/maxInFlight", "/destination/ratePerSecond"}, "must be at least 0.001"},
		"destination above": {object(`"a"`, at, `1`, `,"destination":{"maxInFlight":10001,"ratePerSecond":100000.5}`),
			[]string{"/destination/maxInFlight", "/destination/ratePerSecond"}, "must be at most 10000"},
		"destination of other types": {object(`"a"`, at, `1`, `,"destination":{"maxInFlight":1.5,"ratePerSecond":"1","rate":1}`),
			[]string{"/destination/maxInFlight", "/destination/ratePerSecond", "/destination/rate"}, "the fields here are maxInFlight, ratePerSecond"},
		"no destination": {object(`"a"`, at, `1`, `,"destination":"here"`), []string{"/destination"}, "must be an object"},
		"max below":      {object(`"a"`, at, `1`, `,"retry":{"max":"500ms"}`), []string{"/retry/max"}, "which is 1s"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			d, err := job.Decode([]byte(test.body))
			if err == nil {
				_, err = d.Job("t", limits)
			}
			if err == nil || !strings.Contains(err.Error(), test.message) {
				t.Fatalf("%v, want %q", err, test.message)
			}
			invalid, _ := errors.AsType[*job.Invalid](err)
			if _, malformed := errors.AsType[*job.Malformed](err); malformed != (test.pointers == nil) {
				t.Fatalf("%T %v", err, err)
			}
			if invalid == nil {
				return
			}
			var pointers []string
			for _, f := range invalid.Fields {
				pointers = append(pointers, f.Pointer)
			}
			if !slices.Equal(pointers, test.pointers) {
				t.Errorf("names %q, want %q", pointers, test.pointers)
			}
		})
	}
}

func TestLimitsAreInclusive(t *testing.T) {
	body := `{"key":"` + strings.Repeat("x", 255) + `","schedules":["2030-01-01T12:00:00Z","2031-01-01T12:00:00Z","2032-01-01T12:00:00Z"],` +
		`"callback":{"type":"http","data":"` + strings.Repeat("x", 18) + `"},"retry":{"maxAttempts":1000,"initial":"1ms","factor":100,"max":"30d"}}`
	d, err := job.Decode([]byte(body))
	if err == nil {
		_, err = d.Job("t", limits)
	}
	if err != nil {
		t.Error(err)
	}
}

// TestParseSaysWhatTypeIsRight covers the kinds of fields in the callback data of senders.
func TestParseSaysWhatTypeIsRight(t *testing.T) {
	type document struct {
		Text    string            `json:"text"`
		Flag    bool              `json:"flag"`
		Small   uint8             `json:"small"`
		Part    int32             `json:"part"`
		Ratio   float32           `json:"ratio"`
		Wait    job.Duration      `json:"wait"`
		List    []string          `json:"list"`
		Headers map[string]string `json:"headers"`
		Inner   *struct {
			A int `json:"a"`
		} `json:"inner"`
	}
	for body, want := range map[string]string{
		`{"text":1}`:            "/text: must be a string",
		`{"flag":"true"}`:       "/flag: must be true or false",
		`{"small":"1"}`:         "/small: must be a whole number",
		`{"small":300}`:         "/small: must be a whole number",
		`{"part":1.5}`:          "/part: must be a whole number",
		`{"ratio":"1"}`:         "/ratio: must be a number",
		`{"wait":1}`:            "/wait: must be a duration in a string",
		`{"list":{}}`:           "/list: must be an array",
		`{"list":["a",2]}`:      "/list/1: must be a string",
		`{"headers":[]}`:        "/headers: must be an object",
		`{"headers":{"a/b":1}}`: "/headers/a~1b: must be a string",
		`{"inner":{"b":1}}`:     "/inner/b: is not a known field; the fields here are a",
	} {
		_, err := job.Parse[document]([]byte(body))
		if invalid, ok := errors.AsType[*job.Invalid](err); !ok || !strings.HasPrefix(invalid.Error(), want) {
			t.Errorf("%s: %v, want %s", body, err, want)
		}
	}
}

func TestValidKey(t *testing.T) {
	for key, want := range map[string]bool{
		"a": true, "a+b/c": true, "%": true, ".": true, " ": true, "é😀": true, strings.Repeat("x", 255): true, strings.Repeat("é", 127): true,
		"": false, strings.Repeat("x", 256): false, strings.Repeat("é", 128): false, "a\x00": false, "\n": false, "\x7f": false, "\u0085": false,
		"\xff": false, "a\xc3": false,
	} {
		if got := job.ValidKey(key); got != want {
			t.Errorf("%q: %t", key, got)
		}
	}
}

func TestValidTenant(t *testing.T) {
	for name, want := range map[string]bool{
		"default": true, "a": true, "A-z_0.9": true, ".": true, strings.Repeat("x", 64): true,
		"": false, strings.Repeat("x", 65): false, "a b": false, "a/b": false, "é": false, "a\n": false, "a:b": false, "a%41": false, "{a}": false,
	} {
		if got := job.ValidTenant(name); got != want {
			t.Errorf("%q: %t", name, got)
		}
	}
}

// One answer names every field at fault.
func TestDecodeNamesAllFields(t *testing.T) {
	for _, c := range []struct{ name, body, want string }{
		{
			"unknown, mistyped and invalid",
			`{"callbcak": {"type": ["x"]}, "schedules": ["tomorrow", 3, "2026-01-01T00:00:00Z", {"a": [1]}], "foo": 1, "past": "never"}`,
			"/callbcak /schedules/1 /schedules/3 /foo /schedules/0 /past /callback",
		},
		{"nested", `{"schedules": ["x"], "retry": {"max": 1, "min": 2}, "callback": {"type": 7, "data": 1}}`, "/retry/max /retry/min /callback/type /schedules/0"},
		{"one", `{"schedules": 1}`, "/schedules /callback"},
		{"not an object", `[1]`, ""},
		{"very many", `{"a":1` + manyUnknown(300) + `}`, "/a /u0 /u1 /u2 /u3 /u4 /u5 /u6 /u7 /u8 /u9 /u10 /u11 /u12 /u13 /u14 /u15 /u16 /u17 /u18"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := job.Decode([]byte(c.body))
			invalid, ok := errors.AsType[*job.Invalid](err)
			if !ok {
				t.Fatalf("%v", err)
			}
			var pointers []string
			for _, f := range invalid.Fields {
				pointers = append(pointers, f.Pointer)
			}
			if got := strings.Join(pointers, " "); got != c.want {
				t.Errorf("named %s, want %s", got, c.want)
			}
		})
	}
}

// manyUnknown returns that many members that no job has.
func manyUnknown(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"u%d":1`, i)
	}
	return b.String()
}

// distinct returns that many different instants.
func distinct(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf(`"2030-01-01T00:00:%02dZ"`, i)
	}
	return strings.Join(all, ",")
}
