package record_test

import (
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/sim/checker"
	"github.com/carillon-scheduler/carillon/sim/record"
)

// TestRecord: a history has all that was recorded, in the order in which it began or ended.
func TestRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := record.New(checker.History{Slots: 3})
		r.Begin(time.Now().Add(-time.Minute))
		r.Op(checker.Op{Key: "a"}, checker.Op{Key: "b"})
		first := r.Delivery(checker.Delivery{Key: "a", Begun: time.Now()})
		time.Sleep(time.Second)
		r.Delivery(checker.Delivery{Key: "b", Begun: time.Now()})
		first.Ask(record.Pause)
		first.End(time.Now(), true, false)
		time.Sleep(time.Second)
		if idle := r.Idle(); idle != time.Second {
			t.Errorf("it is idle for %s", idle)
		}
		r.Note("it is %s", "noon")
		r.Op(checker.Op{Key: "c"})
		r.Calm()
		r.End(checker.Final{Unread: []string{"x"}}, r.Begun())
		h, lines := r.History()
		if h.Slots != 3 || len(h.Ops) != 3 || h.Ops[2].ID != 2 || h.Ops[2].Key != "c" || len(h.Final.Unread) != 1 {
			t.Errorf("it is %+v", h)
		}
		if d := h.Deliveries; len(d) != 2 || d[0].Asked != record.Pause || !d[0].Took || d[0].Told || d[0].Ended.Sub(d[0].Begun) != time.Second ||
			d[1].Took || d[1].Ended.Before(h.Ended) {
			t.Errorf("the deliveries are %+v", d)
		}
		if !slices.Equal(lines, []record.Line{{At: 62 * time.Second, Text: "it is noon"}}) {
			t.Errorf("the lines are %v", lines)
		}
	})
}

// TestTold: an operation has the values of its answer.
func TestTold(t *testing.T) {
	moved := func(by time.Duration) []checker.Moved {
		at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
		return []checker.Moved{{Instant: at, To: at.Add(by)}}
	}
	for _, one := range []struct {
		kind checker.Kind
		record.Answer
		next string
		want checker.Op
	}{
		{kind: checker.Put, want: checker.Op{}},
		{kind: checker.Put, Answer: record.Answer{Refused: true}, want: checker.Op{Unchanged: true}},
		{kind: checker.Put, Answer: record.Answer{Status: 412}, want: checker.Op{Status: 412, Unchanged: true}},
		{kind: checker.Put, Answer: record.Answer{Status: 503, Body: []byte(`{"detail":"a pity"}`)}, want: checker.Op{Status: 503}},
		{
			kind: checker.Put, Answer: record.Answer{Status: 503, Body: []byte(`{"detail":"a pity; nothing was changed"}`)},
			want: checker.Op{Status: 503, Unchanged: true},
		},
		{
			kind: checker.Put, Answer: record.Answer{Status: 200, Body: []byte(`{"skipped":1,"inFlight":2,"nextInstant":"x"}`)}, next: "x",
			want: checker.Op{Status: 200, Skipped: 1, InFlight: 2},
		},
		{
			kind: checker.Trigger, Answer: record.Answer{Status: 202, Body: []byte(`{"deliveryId":"i"}`)},
			want: checker.Op{Status: 202, DeliveryID: "i"},
		},
		{
			kind: checker.Discard, Answer: record.Answer{Status: 200, Body: []byte(`{"deleted":3}`)},
			want: checker.Op{Status: 200, Deleted: 3},
		},
		{
			kind: checker.Cancel, Answer: record.Answer{Status: 200, Body: []byte(`{"jobs":1,"cancelled":2,"inFlight":3}`)},
			want: checker.Op{Status: 200, Found: 1, Cancelled: 2, InFlight: 3},
		},
		{
			kind: checker.List, Answer: record.Answer{Status: 200, Body: []byte(`{"items":[{"key":"a"},{"key":"b"}]}`)},
			want: checker.Op{Status: 200, Listed: []string{"a", "b"}},
		},
		{
			kind: checker.Get, Answer: record.Answer{Status: 200, Body: []byte(`{"state":"scheduled","pending":3,"missed":1,
				"callback":{"data":{"payload":{"n":7}}},"outcomes":{"delivered":4,"failed":5,"missed":1},
				"occurrences":[{"state":"claimed"},{"state":"waiting"}],
				"lastOutcome":{"outcome":"failed","instant":"2026-03-01T12:00:00.000Z"}}`)},
			want: checker.Op{Status: 200, Shown: checker.Job{
				N: 7, State: "scheduled", Pending: 3, Missed: 1, Counted: true, Delivered: 4, Failed: 5, Held: 1,
				Last: checker.Outcome{Outcome: "failed", Instant: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)},
			}},
		},
		{
			kind: checker.Get, Answer: record.Answer{Status: 200, Body: []byte(`{"occurrences":[
				{"state":"scheduled","attempt":0,"timestamp":"2026-03-01T12:00:00.000Z","dueAt":"2026-03-01T12:00:02.000Z"},
				{"state":"scheduled","attempt":1,"timestamp":"2026-03-01T12:00:00.000Z","dueAt":"2026-03-01T12:00:03.000Z"},
				{"state":"claimed","attempt":0,"timestamp":"2026-03-01T12:00:00.000Z","dueAt":"2026-03-01T12:00:04.000Z"}]}`)},
			want: checker.Op{Status: 200, Moved: moved(2 * time.Second), Shown: checker.Job{Held: 1}},
		},
		{
			kind: checker.Preview, Answer: record.Answer{Status: 200, Body: []byte(`{"items":[{"timestamp":"2026-03-01T12:00:00.000Z",
				"firesAt":"2026-03-01T12:00:01.000Z"},{"timestamp":"2026-03-01T12:01:00.000Z"}]}`)},
			want: checker.Op{Status: 200, Moved: moved(time.Second)},
		},
	} {
		o := checker.Op{Kind: one.kind}
		next, err := record.Told(&o, one.Answer)
		if err != nil || next != one.next || o.Returned.IsZero() {
			t.Errorf("%s: the next instant is %q: %v", one.Body, next, err)
		}
		w := one.want
		if o.Status != w.Status || o.Unchanged != w.Unchanged || o.Skipped != w.Skipped || o.InFlight != w.InFlight ||
			o.Deleted != w.Deleted || o.Found != w.Found || o.Cancelled != w.Cancelled ||
			o.DeliveryID != w.DeliveryID || o.Shown != w.Shown || !slices.Equal(o.Listed, w.Listed) ||
			!slices.Equal(o.Moved, w.Moved) {
			t.Errorf("%s: it is %+v, want %+v", one.Body, o, w)
		}
	}
	if _, err := record.Told(&checker.Op{Kind: checker.Get}, record.Answer{Status: 200, Body: []byte("<html>")}); err == nil {
		t.Error("an answer that is no JSON can be read")
	}
}

// TestParts: a cancellation by prefix has a part for each key that begins with it, with the whole answer.
func TestParts(t *testing.T) {
	whole := checker.Op{Kind: checker.Cancel, Key: "ab", Prefix: "a", Status: 200, Cancelled: 3}
	parts := record.Parts(&whole, []string{"a", "ab", "b", "ba"})
	if len(parts) != 2 || parts[0].Key != "a" || parts[1].Key != "ab" {
		t.Fatalf("the parts are %+v", parts)
	}
	for i, p := range parts {
		if p.Part != i || !p.Several || p.Cancelled != 3 || p.Prefix != "a" || p.Status != 200 {
			t.Errorf("part %d is %+v", i, p)
		}
	}
}

// TestRead: a resource that can't be read, and a replica that is not ready, is told; a job that is not there is not.
func TestRead(t *testing.T) {
	answers := map[string]string{
		"/readyz":                             "",
		"/v1/jobs/a":                          `{"state":"finished","callback":{"data":{"payload":{"n":1}}}}`,
		"/v1/jobs/a/history?limit=1000":       `{"items":[{"deliveryId":"i","outcome":"delivered","attempt":2},{"outcome":"missed"}]}`,
		"/v1/dead-letters?limit=1000&key=a":   `{"items":[{"id":"d","deliveryId":"i","timestamp":"2026-03-01T12:00:00Z"}]}`,
		"/v1/dead-letters?limit=1000&key=b":   `{"items":[]}`,
		"/v1/jobs/there/history?limit=1000":   `{"items":[]}`,
		"/v1/dead-letters?limit=1000&key=odd": `<html>`,
	}
	ask := func(replica int, _, path string) record.Answer {
		body, there := answers[path]
		switch {
		case path == "/readyz" && replica == 1:
			return record.Answer{Status: 503}
		case !there:
			return record.Answer{Status: 404}
		}
		return record.Answer{Status: 200, Body: []byte(body)}
	}
	f := record.Read(1, []string{"a", "b"}, ask)
	if !record.Quiet(&f) || len(f.Jobs) != 1 || f.Jobs["a"].N != 1 || len(f.Dead["a"]) != 1 || f.Dead["a"][0].Instant.IsZero() ||
		!slices.Equal(f.Recorded, []checker.Recorded{{Key: "a", DeliveryID: "i", Attempt: 2, Outcome: "delivered"}}) {
		t.Errorf("it is %+v", f)
	}
	if f = record.Read(2, nil, ask); record.Quiet(&f) || len(f.Unready) != 1 {
		t.Errorf("with a replica that is not ready, it is %+v", f)
	}
	if f = record.Read(1, []string{"odd"}, ask); record.Quiet(&f) || len(f.Unread) != 1 {
		t.Errorf("with an answer that is no JSON, it is %+v", f)
	}
	answers["/v1/jobs/b"] = `{"state":"scheduled","pending":1}`
	if f = record.Read(1, []string{"a", "b"}, ask); record.Quiet(&f) {
		t.Error("it is quiet while a job has something to do")
	}
}

// TestBehave: receivers behave in each way; those that are not sick behave well most of the time.
func TestBehave(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, sick := range []bool{false, true} {
		counts := make(map[record.Behaviour]int)
		for range 1000 {
			counts[record.Behave(r, sick)]++
		}
		if len(counts) != 7 || counts[record.Well] > 700 == sick {
			t.Errorf("sick %v: the behaviours are %v", sick, counts)
		}
	}
}

// TestJob: a job is submitted with the schedule that it has.
func TestJob(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	instants := []time.Time{at, at.Add(2 * time.Second), at.Add(5 * time.Second)}
	for _, c := range []struct {
		record.Job
		want string
	}{
		{record.Job{Instants: instants[:2]}, `"schedules":["2026-03-01T12:00:00.000Z","2026-03-01T12:00:02.000Z"]`},
		{record.Job{Instants: instants[:1], Deadline: time.Minute}, `"deadline":"1m0s"`},
		{record.Job{Instants: instants[:1], Spread: 1500 * time.Millisecond}, `"spread":"1.5s"`},
		{record.Job{Wait: 1500 * time.Millisecond}, `"delay":"1.5s"`},
		{record.Job{Every: 5 * time.Second, End: at, CatchUp: "all"}, `"crontab":"*/5 * * * * *","endAt":"2026-03-01T12:00:00.000Z"`},
		{
			record.Job{Instants: instants, Steps: true},
			`"startAt":"2026-03-01T12:00:00.000Z","steps":[{"type":"job"},` +
				`{"delay_period":2,"delay_unit":"second","type":"wait_certain_period"},{"type":"job"},` +
				`{"delay_period":3,"delay_unit":"second","type":"wait_certain_period"},{"type":"job"}]`,
		},
		{
			record.Job{Attempts: 3, Retry: checker.Retry{Initial: time.Second, Max: 2 * time.Second, Factor: 3}},
			`"retry":{"factor":3,"initial":"1s","max":"2s","maxAttempts":3}`,
		},
	} {
		if b, err := json.Marshal(c.Body()); err != nil || !strings.Contains(string(b), c.want) {
			t.Errorf("%s, %v; want %s", b, err, c.want)
		}
	}
}

// TestPresent: an answer shows the present job's payload and tag, or none.
func TestPresent(t *testing.T) {
	job := `{"version":"v1","callback":{"data":{"payload":{"n":7}}}}`
	for _, c := range []struct {
		record.Answer
		n   int
		tag string
		bad bool
	}{
		{record.Answer{Status: 200, Body: []byte(job)}, 7, `"v1"`, false},
		{record.Answer{Status: 404, Body: []byte(`{}`)}, 0, "", false},
		{record.Answer{}, 0, "", false},
		{record.Answer{Status: 200, Body: []byte(`{"ver`)}, 0, `""`, true},
	} {
		if n, tag, err := record.Present(c.Answer); n != c.n || tag != c.tag || err != nil != c.bad {
			t.Errorf("%d %s: %d %s %v, want %d %s", c.Status, c.Body, n, tag, err, c.n, c.tag)
		}
	}
}

// TestKey: an answer shows a key with its id, or can't be read.
func TestKey(t *testing.T) {
	a := record.Answer{Status: 201, Body: []byte(`{"id":"i","key":"carillon_i_secret","role":"viewer"}`)}
	if id, key, err := record.Key(a); id != "i" || key != "carillon_i_secret" || err != nil {
		t.Errorf("it is %q %q: %v", id, key, err)
	}
	if _, _, err := record.Key(record.Answer{Status: 201, Body: []byte("<html>")}); err == nil {
		t.Error("an answer that is no JSON can be read")
	}
}

// TestWhole: a submission as a merge patch removes the members of any other kind of job, and keeps its own.
func TestWhole(t *testing.T) {
	job := record.Job{Every: 5 * time.Second, End: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), CatchUp: "all"}
	patch := record.Whole(job.Body())
	for _, m := range []string{"schedules", "delay", "startAt", "steps", "deadline", "spread"} {
		if v, removed := patch[m]; !removed || v != nil {
			t.Errorf("%s is %v, want null", m, v)
		}
	}
	for _, m := range []string{"crontab", "endAt", "catchUp"} {
		if want := job.Body()[m]; patch[m] != want || want == nil {
			t.Errorf("%s is %v, want %v", m, patch[m], want)
		}
	}
}

// TestBatch: each put of a batch has its own answer, or that of the batch, or none if the answer was cut off.
func TestBatch(t *testing.T) {
	begun := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	lines := `{"index":0,"status":201,"nextInstant":"x"}` + "\n" +
		`{"index":1,"status":503,"detail":"a pity; nothing was changed"}` + "\n" + `{"index":2,"stat`
	for _, c := range []struct {
		batch checker.Op
		want  []checker.Op
	}{
		{checker.Op{Status: 200, Body: []byte(lines)}, []checker.Op{{Status: 201}, {Status: 503, Unchanged: true}, {}}},
		{checker.Op{Status: 503, Unchanged: true}, slices.Repeat([]checker.Op{{Status: 503, Unchanged: true}}, 3)},
		{checker.Op{}, make([]checker.Op, 3)},
	} {
		c.batch.Invoked, c.batch.Arrived, c.batch.Returned = begun, begun.Add(1), begun.Add(2)
		c.batch.Ahead, c.batch.Behind = 3, 4
		c.batch.Caller, c.batch.Secret = "guest", 2
		puts := []checker.Op{{Key: "a"}, {Key: "b"}, {Key: "c"}}
		next := record.Batch(&c.batch, puts)
		if len(next) != 3 || (next[0] == "x") != (c.batch.Status == 200) {
			t.Errorf("the next instants are %q", next)
		}
		for i, o := range puts {
			if o.Status != c.want[i].Status || o.Unchanged != c.want[i].Unchanged || !o.Several || o.Ahead != 3 || o.Behind != 4 ||
				o.Caller != "guest" || o.Secret != 2 ||
				!o.Invoked.Equal(begun) || !o.Arrived.Equal(begun.Add(1)) || !o.Returned.Equal(begun.Add(2)) {
				t.Errorf("put %s of a batch with %d is %+v", o.Key, c.batch.Status, o)
			}
		}
	}
}

// TestSeen: a receiver sees all that a webhook's request tells about its attempt, and no other request is one.
func TestSeen(t *testing.T) {
	header := http.Header{}
	for name, value := range map[string]string{
		"Webhook-Id": "i", "Carillon-Key": "k", "Carillon-Tenant": "t", "Carillon-Timestamp": "2026-03-01T12:00:00Z",
		"Carillon-Attempt": "2",
	} {
		header.Set(name, value)
	}
	want := checker.Delivery{
		ID: "i", Key: "k", Tenant: "t", Instant: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), Attempt: 2, N: 7,
	}
	if d, err := record.Seen(header, []byte(`{"n":7}`)); err != nil || d != want {
		t.Errorf("it is %+v: %v", d, err)
	}
	if _, err := record.Seen(header, []byte("<html>")); err == nil {
		t.Error("a body that is no JSON can be read")
	}
	for _, name := range []string{"Carillon-Timestamp", "Carillon-Attempt"} {
		without := header.Clone()
		without.Del(name)
		if _, err := record.Seen(without, []byte(`{"n":7}`)); err == nil {
			t.Errorf("a request without %s is an attempt", name)
		}
	}
}

// TestPlaced: a job with a delay has the instant that its answer tells, or may have any within bounds.
func TestPlaced(t *testing.T) {
	begun := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	told := checker.Op{Invoked: begun}
	record.Placed(&told, time.Minute, time.Second, "2026-03-01T12:01:00.250Z")
	if at := begun.Add(time.Minute + 250*time.Millisecond); !told.Schedule.Has(at) || told.Schedule.Has(at.Add(1)) {
		t.Errorf("it is %+v", told.Schedule)
	}
	unknown := checker.Op{Invoked: begun}
	record.Placed(&unknown, time.Minute, time.Second, "")
	for after, want := range map[time.Duration]bool{
		44 * time.Second: false, 46 * time.Second: true, 75500 * time.Millisecond: true, 77 * time.Second: false,
	} {
		if unknown.Schedule.Has(begun.Add(after)) != want {
			t.Errorf("%s: want %v of %+v", after, want, unknown.Schedule)
		}
	}
	for _, o := range []checker.Op{{Invoked: begun, Unchanged: true}, {Invoked: begun}} {
		wait := time.Minute
		if !o.Unchanged { // it has instants
			wait = 0
		}
		if record.Placed(&o, wait, 0, "2026-03-01T12:01:00Z"); len(o.Schedule.Instants) > 0 || !o.Schedule.To.IsZero() {
			t.Errorf("it is %+v", o.Schedule)
		}
	}
}
