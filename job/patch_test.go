package job_test

import (
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

// The examples of RFC 7396, Appendix A. Each patches a callback's data, which may be any JSON.
func TestMergePatchOfTheRFC(t *testing.T) {
	for _, test := range [][3]string{
		{`{"a":"b"}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"b"}`, `{"b":"c"}`, `{"a":"b","b":"c"}`},
		{`{"a":"b"}`, `{"a":null}`, `{}`},
		{`{"a":"b","b":"c"}`, `{"a":null}`, `{"b":"c"}`},
		{`{"a":["b"]}`, `{"a":"c"}`, `{"a":"c"}`},
		{`{"a":"c"}`, `{"a":["b"]}`, `{"a":["b"]}`},
		{`{"a":{"b":"c"}}`, `{"a":{"b":"d","c":null}}`, `{"a":{"b":"d"}}`},
		{`{"a":[{"b":"c"}]}`, `{"a":[1]}`, `{"a":[1]}`},
		{`["a","b"]`, `["c","d"]`, `["c","d"]`},
		{`{"a":"b"}`, `["c"]`, `["c"]`},
		{`{"a":"foo"}`, `null`, ``}, // as a member, it is removed
		{`{"a":"foo"}`, `"bar"`, `"bar"`},
		{`{"e":null}`, `{"a":1}`, `{"e":null,"a":1}`},
		{`[1,2]`, `{"a":"b","c":null}`, `{"a":"b"}`},
		{`{}`, `{"a":{"bb":{"ccc":null}}}`, `{"a":{"bb":{}}}`},
		// More cases: order, arrays, names and bytes.
		{`{"a":1,"b":2,"c":3}`, `{"d":4,"b":{"x":null},"a":null}`, `{"b":{},"c":3,"d":4}`},
		{`{"a":[1]}`, `{"a":[null,{"b":null}]}`, `{"a":[null,{"b":null}]}`},
		{`{"a/b":{"\u0041":1}}`, `{"a\/b":{"A":2}}`, `{"a/b":{"A":2}}`},
		{`{"":{"":1}}`, `{"":{"":null}}`, `{"":{}}`},
		{`{ "kept" : [ 1.0 , "\u00e9\/" , 1e400 ] , "x" : 1 }`, ` { "x" : { "y" : 2.50 } } `, `{"kept":[ 1.0 , "\u00e9\/" , 1e400 ],"x":{"y":2.50}}`},
	} {
		j, _ := begun(t, `{"key":"k","delay":"1h","callback":{"type":"http","data":`+test[0]+`}}`, start)
		d, err := j.Patch([]byte(`{"callback":{"data":` + test[1] + `}}`))
		if err != nil || string(d.Callback.Data) != test[2] {
			t.Errorf("%s with %s is %s, %v, want %s", test[0], test[1], d.Callback.Data, err, test[2])
		}
	}
}

// Members that a patch does not name stay: the schedule is the same, and the callback's data the same byte for byte.
func TestPatchKeepsWhatItDoesNotName(t *testing.T) {
	const data = `{ "payload" : { "b" : 1.0, "a":[ 1e2 ,"\u00e9\/" ]} ,"url":"http:\/\/localhost" }`
	for name, text := range allKinds() {
		text = strings.Replace(text, `{"url":"http://localhost"}`, data, 1)
		j, _ := begun(t, text, start)
		j.Schedule = restored(t, j.Schedule)
		for _, patch := range []string{`{}`, ` { } `, `{"past":"skip"}`, `{"retry":{"maxAttempts":7}}`, `{"callback":{}}`, `{"callback":{"type":"other"}}`} {
			d, err := j.Patch([]byte(patch))
			if err != nil {
				t.Errorf("%s with %s: %v", name, patch, err)
				continue
			}
			if got := string(d.Callback.Data); got != data && !strings.Contains(patch, "callback") || !strings.Contains(got, `{ "b" : 1.0, "a":[ 1e2 ,"\u00e9\/" ]}`) {
				t.Errorf("%s with %s: the data is %s", name, patch, got)
			}
			again, err := d.Job("t", generous)
			if err != nil && (!strings.Contains(patch, "past") || pointers(err) != "/past") { // a crontab has no past
				t.Errorf("%s with %s: %v", name, patch, err)
			}
			if err == nil && !again.Schedule.Same(&j.Schedule) {
				t.Errorf("%s with %s becomes %s", name, patch, again.Schedule.Encode())
			}
		}
	}
}

func TestPatches(t *testing.T) {
	kinds := map[string]string{
		"instants": `"schedules":["2030-02-01T12:00:00Z","2030-02-02T12:00:00Z"],"deadline":"1h","retry":{"maxAttempts":3,"initial":"2s"}`,
		"delay":    `"delay":"1h"`,
		"crontab":  `"crontab":"0 9 * * *","timezone":"Europe/Paris","endAt":"2031-01-01T00:00:00Z","catchUp":"all"`,
		"steps":    steps + `,"subscribers":["a","b"],"timezone":"Europe/Paris"`,
	}
	for _, test := range []struct{ of, patch, want, wrong string }{
		{"instants", `{"schedules":["2030-03-01T12:00:00Z"]}`, `"schedules":["2030-03-01T12:00:00Z"],"deadline":"1h","retry":{"maxAttempts":3,"initial":"2s"}`, ""},
		{"instants", `{"deadline":null,"retry":{"maxAttempts":null,"factor":3}}`,
			`"schedules":["2030-02-01T12:00:00Z","2030-02-02T12:00:00Z"],"retry":{"initial":"2s","factor":3}`, ""},
		{"instants", `{"schedules":null,"crontab":"@daily","catchUp":"none"}`, `"crontab":"@daily","catchUp":"none","deadline":"1h","retry":{"maxAttempts":3,"initial":"2s"}`, ""},
		{"instants", `{"crontab":"@daily"}`, "", "/crontab"},
		{"instants", `{"schedules":null}`, "", "/schedules"},
		{"instants", `{"schedules":[]}`, "", "/schedules"},
		{"instants", `{"retry":null,"deadline":"2h"}`, `"schedules":["2030-02-01T12:00:00Z","2030-02-02T12:00:00Z"],"deadline":"2h"`, ""},
		{"instants", `{"deadlin":"2h"}`, "", "/deadlin"},
		{"instants", `{"deadline":2}`, "", "/deadline"},
		{"instants", `{"callback":null}`, "", "/callback"},
		{"instants", `{"key":null}`, "", "/key"},
		{"delay", `{"delay":"2h"}`, `"delay":"2h"`, ""},
		{"delay", `{"delay":null,"schedules":["2030-03-01T12:00:00Z"]}`, `"schedules":["2030-03-01T12:00:00Z"]`, ""},
		{"crontab", `{"crontab":"0 10 * * *"}`, `"crontab":"0 10 * * *","timezone":"Europe/Paris","endAt":"2031-01-01T00:00:00Z","catchUp":"all"`, ""},
		{"crontab", `{"timezone":null,"endAt":null,"startAt":"2030-06-01T00:00:00Z"}`, `"crontab":"0 9 * * *","startAt":"2030-06-01T00:00:00Z","catchUp":"all"`, ""},
		{"crontab", `{"crontab":null,"delay":"5m"}`, "", "/timezone /endAt /catchUp"},
		{"crontab", `{"crontab":null,"delay":"5m","timezone":null,"endAt":null,"catchUp":null}`, `"delay":"5m"`, ""},
		{"crontab", `{"timezone":"Europe/Atlantis"}`, "", "/timezone"},
		{"steps", `{"subscribers":null}`, steps + `,"timezone":"Europe/Paris"`, ""},
		{"steps", `{"subscribers":["c"],"timezone":"UTC"}`, steps + `,"subscribers":["c"],"timezone":"UTC"`, ""},
		{"steps", `{"steps":[{"type":"job","metadata":null}]}`, `"steps":[{"type":"job","metadata":null}],"subscribers":["a","b"],"timezone":"Europe/Paris"`, ""},
		{"steps", `{"steps":[{"type":"job","wait":1}]}`, "", "/steps/0/wait"},
		{"steps", `{"steps":null,"subscribers":null,"crontab":"@hourly"}`, `"crontab":"@hourly","timezone":"Europe/Paris"`, ""},
	} {
		j, _ := begun(t, body(kinds[test.of]), start)
		j.Schedule = restored(t, j.Schedule)
		d, err := j.Patch([]byte(test.patch))
		var got job.Job
		if err == nil {
			got, err = d.Job("t", generous)
		}
		if test.wrong != "" {
			if pointers(err) != test.wrong {
				t.Errorf("%s with %s: %v, want %s", test.of, test.patch, err, test.wrong)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s with %s: %v", test.of, test.patch, err)
			continue
		}
		want := parsed(t, body(test.want))
		if !got.Schedule.Same(&want.Schedule) || !sameOptions(got.Options, want.Options) || string(got.Callback.Data) != string(want.Callback.Data) || got.Key != "k" {
			t.Errorf("%s with %s is %s %s %s, want %s", test.of, test.patch, got.Schedule.Encode(), got.Options.Encode(), got.Callback.Data, test.want)
		}
	}
}

func TestPatchesThatAreRefused(t *testing.T) {
	j, _ := begun(t, body(`"delay":"1h"`), start)
	for _, test := range []struct {
		patch     string
		malformed bool
		want      string
	}{
		{``, true, "empty"}, {`{`, true, "not valid JSON"}, {`{} x`, true, "not valid JSON"}, {`{"a":01}`, true, "not valid JSON"},
		{`{"callback":{"data":"\ud800"}}`, true, "not valid JSON"}, {`{"callback":{"data":[}}`, true, "not valid JSON"},
		{`[]`, false, "must be an object"}, {`null`, false, "must be an object"}, {`"x"`, false, "must be an object"}, {`7`, false, "must be an object"},
		{`{"delay":"1h","delay":"2h"}`, false, "/delay: is given twice"}, {`{"callback":{"data":{"a":[{"b":1,"b":2}]}}}`, false, "/callback/data/a/0/b: is given twice"},
		{`{"delay":"soon"}`, false, "/delay: must be a duration"}, {`{"callback":"x"}`, false, "/callback: must be an object"},
	} {
		d, err := j.Patch([]byte(test.patch))
		_, malformed := errors.AsType[*job.Malformed](err)
		_, invalid := errors.AsType[*job.Invalid](err)
		if malformed != test.malformed || invalid == malformed || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %+v, %v, want %s", test.patch, d, err, test.want)
		}
	}
}

// A patch is read once, however large and deeply nested it and the job are: memory and time do not grow with the number
// of levels.
func TestLargePatches(t *testing.T) {
	j, _ := begun(t, `{"key":"k","delay":"1h","callback":{"type":"http","data":`+nested(`1`)+`}}`, start)
	var members strings.Builder
	for range 30_000 {
		members.WriteString(`"` + job.NewToken() + `":{"a":null},`)
	}
	for name, data := range map[string]string{"deep": nested(`"` + strings.Repeat("x", 1<<20) + `"`), "wide": "{" + members.String() + `"end":1}`} {
		patch := []byte(`{"callback":{"data":` + data + `}}`)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		d, err := j.Patch(patch)
		runtime.ReadMemStats(&after)
		if err != nil || len(d.Callback.Data) < len(data)/2 {
			t.Errorf("%s: %d bytes of %d, %v", name, len(d.Callback.Data), len(data), err)
		}
		if used := after.TotalAlloc - before.TotalAlloc; used > 100<<20 {
			t.Errorf("%s: a patch of %d KiB takes %d MiB of memory", name, len(patch)>>10, used>>20)
		}
	}
}

// nested returns a value as a member of a member, and so on.
func nested(value string) string {
	const depth = 1000
	return strings.Repeat(`{"a":`, depth) + value + strings.Repeat("}", depth)
}

// The draft does not share the bytes that it was made from.
func TestPatchesOutliveTheirBytes(t *testing.T) {
	j, _ := begun(t, body(`"delay":"1h"`), start)
	patch := []byte(`{"callback":{"data":{"a":[1]}},"delay":null,` + steps + `,"subscribers":["a"]}`)
	d, err := j.Patch(patch)
	if err != nil {
		t.Fatal(err)
	}
	for i := range patch {
		patch[i] = 'x'
	}
	again, err := d.Job("t", generous)
	if err != nil || string(again.Callback.Data) != `{"url":"http://localhost","a":[1]}` {
		t.Fatalf("%s, %v", again.Callback.Data, err)
	}
	if b, err := again.Begin(start.Add(time.Hour), job.PastFire, expansion); err != nil || b.Occurrences[0].Part.Subscriber != "a" || len(again.Options.Payloads) != 3 {
		t.Errorf("%+v %+v, %v", b, again.Options, err)
	}
}
