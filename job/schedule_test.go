package job_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

// expansion has the dispatcher's defaults.
var expansion = job.Expansion{Horizon: 2 * time.Minute, CatchUpLimit: 1000}

var generous = job.Limits{Instants: 100_000, Payload: 1 << 20}

// body returns a job's body with the given members besides its key and callback.
func body(members string) string {
	return `{"key":"k","callback":{"type":"http","data":{"url":"http://localhost"}},` + members + `}`
}

// parsed returns the job of a body, before it begins.
func parsed(t testing.TB, body string) job.Job {
	t.Helper()
	d, err := job.Decode([]byte(body))
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	j, err := d.Job("t", generous)
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return j
}

// begun returns the job of a body, begun at a time.
func begun(t testing.TB, body string, now time.Time) (job.Job, job.Beginning) {
	t.Helper()
	j := parsed(t, body)
	j.Revision = job.NewRevision(now)
	b, err := j.Begin(now, job.PastFire, expansion)
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return j, b
}

// instantsOf writes the instants of occurrences.
func instantsOf(occurrences []job.Occurrence) string {
	all := make([]string, len(occurrences))
	for i, o := range occurrences {
		all[i] = job.FormatTime(o.Timestamp)
	}
	return strings.Join(all, " ")
}

// restored returns the schedule as it is read back from a store.
func restored(t testing.TB, s job.Schedule) job.Schedule {
	t.Helper()
	again, err := job.DecodeSchedule(s.Encode())
	if err != nil {
		t.Fatalf("%s: %v", s.Encode(), err)
	}
	return again
}

// allKinds returns bodies of jobs of all kinds, with all their fields.
func allKinds() map[string]string {
	const options = `"deadline":"90m","retry":{"maxAttempts":3,"initial":"2s","factor":1.5,"max":"2d"}`
	return map[string]string{
		"instants":         body(`"schedules":["2030-02-01T12:00:00Z","2030-01-02T12:00:00.001+01:00","1970-01-01T00:00:00Z"],` + options),
		"a delay":          body(`"delay":"1d12h",` + options),
		"no delay":         body(`"delay":"0s"`),
		"a crontab":        body(`"crontab":" 30  2 * * mon-fri","timezone":"Europe/Paris","startAt":"2029-12-01T00:00:00Z","endAt":"2031-01-01T00:00:00Z","catchUp":"all",` + options),
		"a plain crontab":  body(`"crontab":"@hourly"`),
		"@every":           body(`"crontab":"@every 7s","catchUp":"none","retry":{}`),
		"@every, epoch":    body(`"crontab":"@every 7s","startAt":"1970-01-01T00:00:00Z","catchUp":"latest"`),
		"@at":              body(`"crontab":"@at 1893499300","startAt":"2030-01-01T00:00:00Z","endAt":"2030-02-01T00:00:00Z","timezone":"Asia/Tokyo",` + options),
		"@at, epoch":       body(`"crontab":"@at 0"`),
		"steps":            body(`"type":"sequence",` + steps + `,"timezone":"Europe/Paris","startAt":"2030-01-01T12:00:00.5+01:00",` + options),
		"numbered":         body(steps + `,"subscribers":3`),
		"listed":           body(steps + `,"subscribers":["a","b/é",7,1.50,{"id": "\u00e9\/\u0041", "n": [1, 1.0, null]}]`),
		"steps from epoch": body(steps + `,"startAt":"1970-01-01T00:00:00Z"`),
	}
}

const steps = `"steps":[{"type":"job"},{"type":"wait_certain_period","delay_period":0.50,"delay_unit":"minutes"},` +
	`{"type":"job","metadata":{"a": [1.0, null, "\u00e9"]}},{"type":"wait_weekday","weekdays":["MON","friday"]},{"type":"job","metadata":null},` +
	`{"type":"wait_specific_date","date":"2030-05-01T00:00:00+02:00"},{"type":"job","metadata":"x"}]`

// A stored schedule is read back unchanged, before the job begins and after.
func TestSchedulesOfAllKindsAreReadBack(t *testing.T) {
	for name, body := range allKinds() {
		t.Run(name, func(t *testing.T) {
			j := parsed(t, body)
			for _, when := range []string{"submitted", "begun"} {
				s := restored(t, j.Schedule)
				if !s.Same(&j.Schedule) || !j.Schedule.Same(&s) || string(s.Encode()) != string(j.Schedule.Encode()) {
					t.Errorf("%s: %s is read back as %s", when, j.Schedule.Encode(), s.Encode())
				}
				if !s.StartAt.Equal(j.Schedule.StartAt) || !s.EndAt.Equal(j.Schedule.EndAt) || !s.Anchor.Equal(j.Schedule.Anchor) ||
					s.Zone != j.Schedule.Zone || s.Crontab != j.Schedule.Crontab {
					t.Errorf("%s: read back is %+v, want %+v", when, s, j.Schedule)
				}
				options, err := job.DecodeOptions(j.Options.Encode())
				if err != nil || !sameOptions(options, j.Options) {
					t.Errorf("%s: options %s are read back as %+v, %v", when, j.Options.Encode(), options, err)
				}
				j, _ = begun(t, body, start)
			}
			want := preview(t, j.Schedule, start.Add(-time.Hour), 20)
			if got := preview(t, restored(t, j.Schedule), start.Add(-time.Hour), 20); got != want {
				t.Errorf("read back, it fires at\n %s, want\n %s", got, want)
			}
		})
	}
}

// Lists of instants in existing stores are read as ever.
func TestStoredInstants(t *testing.T) {
	s := job.Schedule{Instants: []time.Time{time.UnixMilli(-1), time.UnixMilli(0), time.UnixMilli(1_896_177_600_001)}}
	if got, want := string(s.Encode()), `{"instants":[-1,0,1896177600001]}`; got != want {
		t.Errorf("stored as %s, want %s", got, want)
	}
	s.Zone = "Europe/Paris"
	if got, want := string(s.Encode()), `{"instants":[-1,0,1896177600001],"timezone":"Europe/Paris"}`; got != want {
		t.Errorf("stored as %s, want %s", got, want)
	}
}

// sameOptions compares options, payloads as JSON.
func sameOptions(a, b job.Options) bool {
	var pa, pb = map[int]any{}, map[int]any{}
	for _, side := range []struct {
		o *job.Options
		p map[int]any
	}{{&a, pa}, {&b, pb}} {
		for i, payload := range side.o.Payloads {
			var v any
			if err := json.Unmarshal(payload, &v); err != nil {
				return false
			}
			side.p[i] = v
		}
		side.o.Payloads = nil
	}
	return reflect.DeepEqual(a, b) && reflect.DeepEqual(pa, pb)
}

// A job's draft, submitted again, is the same job.
func TestDraftsAreTheJobAgain(t *testing.T) {
	for name, body := range allKinds() {
		t.Run(name, func(t *testing.T) {
			j, _ := begun(t, body, start)
			j.Schedule = restored(t, j.Schedule)
			text, err := json.Marshal(j.Draft())
			if err != nil {
				t.Fatal(err)
			}
			again, _ := begun(t, string(text), start.Add(time.Hour))
			if !again.Schedule.Same(&j.Schedule) || again.Key != j.Key {
				t.Errorf("%s is drafted as %s", j.Schedule.Encode(), text)
			}
			if r := again.Options.Recurrence; r != nil && j.Schedule.StartAt.IsZero() {
				r.Anchor = j.Options.Recurrence.Anchor // it is the anchor of the submission
			}
			if !sameOptions(again.Options, j.Options) {
				t.Errorf("options %s are drafted as %s", j.Options.Encode(), text)
			}
			if got, want := compact(t, again.Callback.Data), compact(t, j.Callback.Data); got != want || again.Callback.Type != j.Callback.Type {
				t.Errorf("the callback is %s, want %s", got, want)
			}
		})
	}
}

func compact(t testing.TB, data []byte) string {
	t.Helper()
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatalf("%s: %v", data, err)
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Schedules are the same if they were submitted with the same meaning; each of these differs from all others.
func TestSame(t *testing.T) {
	bodies := []string{
		`"schedules":["2030-02-01T12:00:00Z"]`, `"schedules":["2030-02-01T12:00:00.001Z"]`, `"schedules":["2030-02-01T12:00:00Z","2030-02-02T12:00:00Z"]`,
		`"delay":"1h"`, `"delay":"2h"`, `"delay":"0s"`, `"crontab":"@every 1h"`, `"crontab":"@hourly"`, `"crontab":"@at 1896177600"`,
		`"crontab":"@every 1h","startAt":"2030-01-01T00:00:00Z"`, `"crontab":"@every 1h","startAt":"1970-01-01T00:00:00Z"`,
		`"crontab":"@every 1h","endAt":"2031-01-01T00:00:00Z"`, `"crontab":"@every 1h","timezone":"Europe/Paris"`,
		`"steps":[{"type":"job"}]`, `"steps":[{"type":"job"},{"type":"job"}]`, `"steps":[{"type":"job","metadata":1}]`, `"steps":[{"type":"job","metadata":null}]`,
		`"steps":[{"type":"job"}],"startAt":"2030-01-01T00:00:00Z"`, `"steps":[{"type":"job"}],"timezone":"Europe/Paris"`, `"steps":[{"type":"job"}],"subscribers":1`,
		`"steps":[{"type":"job"}],"subscribers":2`, `"steps":[{"type":"job"}],"subscribers":["1","2"]`, `"steps":[{"type":"job"}],"subscribers":["2","1"]`,
		`"steps":[{"type":"job"}],"subscribers":[1,2]`,
		`"steps":[{"type":"wait_certain_period","delay_period":0,"delay_unit":"day"},{"type":"job"}]`,
		`"steps":[{"type":"wait_certain_period","delay_period":1,"delay_unit":"day"},{"type":"job"}]`,
	}
	for i, a := range bodies {
		for k, b := range bodies {
			// One has begun and was stored, the other was submitted just now.
			one, _ := begun(t, body(a), start)
			one.Schedule = restored(t, one.Schedule)
			other := parsed(t, body(b))
			if got := one.Schedule.Same(&other.Schedule); got != (i == k) {
				t.Errorf("%s and %s: %t", a, b, got)
			}
			if got := other.Schedule.Same(&one.Schedule); got != (i == k) {
				t.Errorf("%s and, stored, %s: %t", b, a, got)
			}
		}
	}
	// Different spellings of the same schedule.
	for _, pair := range [][2]string{
		{`"schedules":["2030-02-02T12:00:00Z","2030-02-01T12:00:00Z"]`, `"schedules":["2030-02-01T13:00:00.000+01:00","2030-02-02T12:00:00Z","2030-02-02T12:00:00Z"]`},
		{`"delay":"1w"`, `"delay":"7d"`},
		{`"crontab":"0 0  * * *"`, `"crontab":" 0 0 * * *","catchUp":"all"`},
		{`"steps":[{"type":"job","metadata":{"a":"\u0041"}}]`, `"type":"sequence","steps":[ {"metadata": { "a" : "A" } , "type":"job"}]`},
		{`"steps":[{"type":"job"}],"subscribers":[{"a":"\u0041"}]`, `"steps":[{"type":"job"}],"subscribers":[ { "a" : "A" } ]`},
	} {
		one, other := parsed(t, body(pair[0])), parsed(t, body(pair[1]))
		if !one.Schedule.Same(&other.Schedule) {
			t.Errorf("%s and %s are not the same", pair[0], pair[1])
		}
	}
}

func TestReachesThePastOfAllKinds(t *testing.T) {
	for members, want := range map[string]bool{
		`"schedules":["2030-01-01T12:00:00Z"]`:     false,
		`"schedules":["2030-01-01T11:59:59.999Z"]`: true,
		`"delay":"0s"`: false,
		`"crontab":"@hourly","startAt":"2020-01-01T00:00:00Z"`:                                                           true, // always true of a recurring schedule
		`"crontab":"@at 1893499199"`:                                                                                     true,
		`"crontab":"@at 1893499200"`:                                                                                     false,
		`"steps":[{"type":"job"}]`:                                                                                       false,
		`"steps":[{"type":"job"}],"startAt":"2030-01-01T11:59:59Z"`:                                                      true,
		`"steps":[{"type":"wait_specific_date","date":"2030-01-01T11:00:00Z"},{"type":"job"}]`:                           true,
		`"steps":[{"type":"wait_specific_date","date":"2030-01-01T11:00:00Z"}` + hour + `,{"type":"job"}]`:               false,
		`"steps":[{"type":"job"},{"type":"wait_specific_date","date":"2029-01-01T11:00:00Z"}]`:                           false,
		`"steps":[{"type":"job"}` + hour + `,{"type":"job"}],"startAt":"2030-01-01T11:30:00Z","timezone":"Europe/Paris"`: true,
		`"steps":[{"type":"wait_weekday","weekdays":["mon"]},{"type":"job"}],"startAt":"2029-12-31T12:00:00Z"`:           true,
		`"steps":[{"type":"wait_weekday","weekdays":["tue"]},{"type":"job"}],"startAt":"2029-12-31T12:00:00Z"`:           false,
		`"steps":[{"type":"job"},{"type":"wait_certain_period","delay_period":36600,"delay_unit":"day"},{"type":"job"}]`: false,
		`"steps":[{"type":"job"}` + strings.Repeat(century, 90) + `,{"type":"job"}],"startAt":"2020-01-01T00:00:00Z"`:    false, // Begin refuses it
		`"steps":[{"type":"job"}` + strings.Repeat(century, 70) + `,{"type":"job"}],"startAt":"2020-01-01T00:00:00Z"`:    true,
	} {
		j := parsed(t, body(members))
		if got := j.Schedule.Reaches(start.Add(-time.Millisecond), start.Add(900*time.Microsecond)); got != want {
			t.Errorf("%s: %t", members, got)
		}
	}
}

const (
	hour    = `,{"type":"wait_certain_period","delay_period":1,"delay_unit":"hour"}`
	century = `,{"type":"wait_certain_period","delay_period":36600,"delay_unit":"days"}`
)

func TestWeight(t *testing.T) {
	for members, want := range map[string]int{
		`"schedules":["2030-01-01T12:00:00Z","2030-01-01T12:00:00Z","2030-01-01T12:00:01Z"]`: 2,
		`"delay":"1s"`:                                 1,
		`"crontab":"@hourly"`:                          100,
		steps:                                          4,
		steps + `,"subscribers":10000`:                 40000,
		steps + `,"subscribers":["a","b"]`:             8,
		steps + `,"subscribers":null`:                  4,
		`"crontab":"@at 1"`:                            1,
		`"steps":[{"type":"job"}],"subscribers":["x"]`: 1,
	} {
		j := parsed(t, body(members))
		if got := j.Schedule.Weight(); got != want {
			t.Errorf("%s weighs %d, want %d", members, got, want)
		}
	}
}

// preview writes the next instants of a schedule.
func preview(t testing.TB, s job.Schedule, from time.Time, count int) string {
	t.Helper()
	p, err := s.Preview(from, count)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, u := range p.Upcoming {
		fmt.Fprintf(&b, "%s/%d/%d/%d ", job.FormatTime(u.At), u.Step, u.Position, u.Count)
	}
	return b.String()
}
