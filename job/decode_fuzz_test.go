package job_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

// FuzzDecode reads any bytes as a job. An accepted job keeps the domain's rules and the payload's bytes: it begins, is
// read back from a store, previewed and drafted again, and stays the same. A refused one is refused in the API's terms,
// at whatever point.
func FuzzDecode(f *testing.F) {
	for _, text := range allKinds() {
		f.Add([]byte(text))
	}
	for _, text := range []string{
		`{"key":"a","schedules":["2030-01-01T12:00:00Z"],"callback":{"type":"http","data":{"a": 1.0}}}`,
		`{"key":"a","schedules":["1970-01-01T00:00:00.0001+00:00"],"past":"reject","callback":{"type":"x","data":null},"retry":{"max":"2w"}}`,
		`{"key":"\u0000"}`, `[`, ``, `null`, `{"retry":{"factor":1e999}}`, "\xef\xbb\xbf{}", `{"schedules":[[]]}`,
		body(`"steps":[{"type":"wait_certain_period","delay_period":-1,"delay_unit":"month"},{"type":"wait"},{},{"type":"job","weekdays":[]}]`),
		body(`"steps":[{"type":"wait_certain_period","delay_period":1e9,"delay_unit":"seconds"},{"type":"job"}],"startAt":"9999-12-31T00:00:00Z"`),
		body(`"steps":[{"type":"wait_weekday","weekdays":["friday"]},{"type":"job"}],"timezone":"Pacific/Apia","startAt":"2011-12-29T12:00:00-10:00"`),
		body(`"steps":[{"type":"job"}],"subscribers":[1,"1",{"a":1,"a":2},[],null,""]`), body(`"steps":[{"type":"job"}],"subscribers":1e99`),
		body(`"crontab":"*/40 2 25-31 3 */7","timezone":"Europe/Paris","endAt":"2020-01-01T00:00:00Z"`), body(`"crontab":"0 0 30 2 *","delay":"1w"`),
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		few := job.Limits{Instants: 50, Payload: 200}
		d, err := job.Decode(text)
		var j job.Job
		if err == nil {
			j, err = d.Job("t", few)
		}
		var submitted job.Schedule
		var b job.Beginning
		if err == nil {
			checkAccepted(t, string(text), j)
			submitted = j.Schedule
			j.Revision = job.NewRevision(start)
			b, err = j.Begin(start, d.PastOrDefault(), expansion)
		}
		if err != nil {
			invalid, ok := errors.AsType[*job.Invalid](err)
			if _, malformed := errors.AsType[*job.Malformed](err); ok == malformed || ok && len(invalid.Fields) == 0 {
				t.Fatalf("%T: %v", err, err)
			}
			return
		}
		checkBegun(t, j, b)

		again, err := job.DecodeSchedule(j.Schedule.Encode())
		if err != nil || !again.Same(&j.Schedule) || string(again.Encode()) != string(j.Schedule.Encode()) {
			t.Fatalf("%s is read back as %s, %v", j.Schedule.Encode(), again.Encode(), err)
		}
		if options, err := job.DecodeOptions(j.Options.Encode()); err != nil || !sameOptions(options, j.Options) {
			t.Fatalf("%s is read back as %+v, %v", j.Options.Encode(), options, err)
		}
		checkPreview(t, submitted, b)
		if !j.Schedule.Recurs() {
			checkPreview(t, again, b)
		}

		draft, err := j.Patch([]byte(`{}`))
		if err != nil {
			t.Fatal(err)
		}
		same, err := draft.Job("t", few)
		if err != nil || !same.Schedule.Same(&j.Schedule) || same.Key != j.Key || string(same.Callback.Data) != string(j.Callback.Data) {
			t.Fatalf("%s is drafted as %+v, %v", j.Schedule.Encode(), draft, err)
		}
		if same.Options.Recurrence = j.Options.Recurrence; !sameOptions(same.Options, j.Options) {
			t.Fatalf("%s is drafted as %s", j.Options.Encode(), same.Options.Encode())
		}
	})
}

// checkAccepted checks a job that has not begun.
func checkAccepted(t *testing.T, text string, j job.Job) {
	if n := j.Schedule.Weight(); !job.ValidKey(j.Key) || n < 1 || n > 50 && !j.Schedule.Recurs() {
		t.Fatalf("%+v", j)
	}
	kinds := 0
	for _, is := range []bool{
		len(j.Schedule.Instants) > 0 && j.Schedule.Crontab == (job.Crontab{}), j.Schedule.Delay != nil, j.Schedule.Crontab != (job.Crontab{}), len(j.Schedule.Steps) > 0,
	} {
		if is {
			kinds++
		}
	}
	if kinds != 1 {
		t.Fatalf("it is of %d kinds: %s", kinds, j.Schedule.Encode())
	}
	for i, at := range j.Schedule.Instants {
		if at.UnixMilli() < 0 || !at.Equal(at.Truncate(time.Millisecond)) || i > 0 && !at.After(j.Schedule.Instants[i-1]) {
			t.Fatalf("instants %v", j.Schedule.Instants)
		}
	}
	if r := j.Options.Retry.WithDefaults(); r.MaxAttempts < 1 || r.Max < r.Initial || r.Delay(r.MaxAttempts, 0.5) < 0 {
		t.Fatalf("retry %+v", r)
	}
	if !json.Valid(j.Callback.Data) || !strings.Contains(text, string(j.Callback.Data)) {
		t.Fatalf("data %s", j.Callback.Data)
	}
}

// checkBegun checks the occurrences of a job that began at the start.
func checkBegun(t *testing.T, j job.Job, b job.Beginning) {
	ids := make(map[job.ID]bool)
	for _, o := range b.Occurrences {
		if at := o.Timestamp; at.UnixMilli() < 0 || at.Year() > 9999 || !at.Equal(at.Truncate(time.Millisecond)) || at.Location() != time.UTC || !o.DueAt.Equal(at) {
			t.Fatalf("%+v", o)
		}
		if ids[o.ID] || ids[o.DeliveryID()] {
			t.Fatalf("%+v shares an id", o)
		}
		ids[o.ID], ids[o.DeliveryID()] = true, true
		if j.Schedule.Recurs() && o.Timestamp.Before(start) {
			t.Fatalf("%s fires at %v", j.Schedule.Encode(), o.Timestamp)
		}
	}
	if n := len(b.Occurrences) + b.Skipped + len(b.Missed); !j.Schedule.Recurs() && n != j.Schedule.Weight() || n == 0 {
		t.Fatalf("%d occurrences of %s", n, j.Schedule.Encode())
	}
	if !j.Schedule.Recurs() {
		return
	}
	// An hour later, the expansion continues.
	x, err := j.Expand(j.Cursor.Add(time.Hour), expansion)
	if err != nil || j.ExpandAt.IsZero() != (len(x.Occurrences)+x.Missed == 0) || x.Cursor.Before(j.Cursor) {
		t.Fatalf("%s expands to %+v, %v", j.Schedule.Encode(), x, err)
	}
}

// checkPreview checks that a preview as of the beginning shows the occurrences that begin.
func checkPreview(t *testing.T, s job.Schedule, b job.Beginning) {
	p, err := s.Preview(start, 100)
	if err != nil {
		t.Fatal(err)
	}
	shown := p.Passed * max(1, s.Subscribers.Len())
	for _, u := range p.Upcoming {
		shown += u.Count
	}
	if n := len(b.Occurrences) + b.Skipped + len(b.Missed); !s.Recurs() && shown != n || s.Recurs() && !p.Upcoming[0].At.Equal(b.Occurrences[0].Timestamp) {
		t.Fatalf("%s: %d are previewed, of %d", s.Encode(), shown, n)
	}
}
