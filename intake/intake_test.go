package intake_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/access/limits"
	"github.com/carillon-scheduler/carillon/audit"
	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/history"
	"github.com/carillon-scheduler/carillon/intake"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/clock"
	"github.com/carillon-scheduler/carillon/store/memory"
)

const tenant = "acme"

// desk is a door to an API on a store that can be down.
type desk struct {
	testing.TB
	*intake.Door
	store *flaky
	reg   *prometheus.Registry

	mu  sync.Mutex
	now time.Time
}

// flaky is a store that fails a set number of times.
type flaky struct {
	store.Store
	mu    sync.Mutex
	fails int
	puts  int
}

func (f *flaky) Put(ctx context.Context, puts []store.Put) []store.PutResult {
	f.mu.Lock()
	f.puts++
	down := f.fails > 0
	if down {
		f.fails--
	}
	f.mu.Unlock()
	results := f.Store.Put(ctx, puts)
	if down { // the answer was lost
		for i := range results {
			results[i] = store.PutResult{Err: store.ErrUnavailable}
		}
	}
	return results
}

func (d *desk) clock() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.now
}

func (d *desk) advance(by time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.now = d.now.Add(by)
}

func newDesk(t testing.TB, configure ...func(*handlers.Config)) *desk {
	d := &desk{TB: t, store: &flaky{Store: memory.New()}, reg: prometheus.NewRegistry(), now: time.Now()}
	config := handlers.Config{
		Store: d.store, Inspector: d.store, Records: d.store, Callbacks: callbacks.NewRegistry(sender{}),
		Limits: job.Limits{Instants: 10, Payload: 2000}, MaxBody: 4000,
		Expansion: job.Expansion{Horizon: time.Minute, CatchUpLimit: 10}, Retain: time.Hour, Now: d.clock,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	for _, c := range configure {
		c(&config)
	}
	d.Door = d.door(handlers.New(config))
	return d
}

func (d *desk) door(api http.Handler) *intake.Door {
	return intake.NewDoor(intake.Config{
		API: api, Source: "queue jobs", Address: "broker:5672", Tenant: tenant, Patience: time.Minute,
		Metrics: intake.NewMetrics(d.reg), Logger: slog.New(slog.DiscardHandler),
	})
}

type sender struct{}

func (sender) Type() string { return "http" }
func (sender) Validate(data []byte) error {
	if strings.Contains(string(data), "forbidden") {
		return job.InvalidField("/url", "is not allowed")
	}
	return nil
}
func (sender) Destination([]byte) string                      { return "there" }
func (sender) Send(context.Context, callbacks.Delivery) error { return nil }

func held(context.Context) error { return nil }

// apply applies messages, and expects all of them to be done.
func (d *desk) apply(messages ...intake.Message) []intake.Answer {
	d.Helper()
	answers, err := d.Apply(d.Context(), held, messages)
	if err != nil || len(answers) != len(messages) {
		d.Fatalf("%d of %d messages are done: %v", len(answers), len(messages), err)
	}
	return answers
}

// applied applies messages, none of which may be refused.
func (d *desk) applied(messages ...intake.Message) {
	d.Helper()
	for i, a := range d.apply(messages...) {
		if a.Refused != nil {
			d.Fatalf("message %d is refused: %s", i, a.Refused.Encode())
		}
	}
}

func (d *desk) job(key string) (store.JobStatus, bool) {
	d.Helper()
	status, err := store.ReadJob(d.Context(), d.store, job.Name{Tenant: tenant, Key: key})
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		d.Fatal(err)
	}
	return status, err == nil
}

// instants returns the instants of a job's occurrences.
func (d *desk) instants(key string) (all []string) {
	d.Helper()
	status, _ := d.job(key)
	found, _, err := d.store.Occurrences(d.Context(), store.OccurrenceFilter{Name: status.Name, Revision: status.Revision, Limit: 100})
	if err != nil {
		d.Fatal(err)
	}
	for _, o := range found {
		all = append(all, job.FormatTime(o.Timestamp))
	}
	return all
}

// body returns a job that is due after a time.
func body(key, after string) []byte {
	return fmt.Appendf(nil, "{\n\"key\": %q, \"delay\": %q, \"callback\": {\"type\": \"http\", \"data\": {}}\r\n}", key, after)
}

func message(key, after string) intake.Message { return intake.Message{Body: body(key, after)} }

func operation(name, key, body string) intake.Message {
	return intake.Message{Body: []byte(body), Headers: map[string]string{"carillon-operation": name, "carillon-key": key}}
}

// TestOperations: each operation changes the job as its request to the API would, in the order of the messages.
func TestOperations(t *testing.T) {
	d := newDesk(t)
	d.applied(
		message("a", "1h"), message("b", "1h"), operation("cancel", "a", ""), operation("pause", "b", ""), message("c", "1h"),
		operation("patch", "c", `{"deadline": "5m"}`), message("a", "2h"), operation("trigger", "c", ""),
		operation("put", "ü/ .", string(body("", "1h"))), operation("put", ".", string(body(".", "1h"))),
		operation("cancel", "never there", ""),
	)
	for key, check := range map[string]func(store.JobStatus) bool{
		"a": func(j store.JobStatus) bool {
			return time.Duration(*j.Schedule.Delay) == 2*time.Hour && j.Tenant == tenant
		},
		"b":    func(j store.JobStatus) bool { return !j.PausedAt.IsZero() },
		"c":    func(j store.JobStatus) bool { return time.Duration(j.Options.Deadline) == 5*time.Minute },
		"ü/ .": func(j store.JobStatus) bool { return j.Live() },
		".":    func(j store.JobStatus) bool { return j.Live() },
	} {
		if j, there := d.job(key); !there || !check(j) {
			t.Errorf("job %q is %+v", key, j)
		}
	}
	d.applied(operation("resume", "b", ""), operation("cancel", "c", ""))
	if j, _ := d.job("b"); !j.PausedAt.IsZero() {
		t.Error("b is still paused")
	}
	if _, there := d.job("c"); there {
		t.Error("c is still there")
	}
	if n := counted(t, d.reg, "applied"); n != 13 {
		t.Errorf("%v messages are counted, want 13", n)
	}
}

// counted returns the number of messages with an outcome.
func counted(t *testing.T, reg *prometheus.Registry, outcome string) (n float64) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "outcome" && l.GetValue() == outcome {
					n += m.GetCounter().GetValue()
				}
			}
		}
	}
	return n
}

func TestCloudEvents(t *testing.T) {
	structured := func(attributes, data string) intake.Message {
		return intake.Message{
			ContentType: "application/cloudevents+json; charset=utf-8",
			Body:        []byte(`{"specversion":"1.0","id":"1","source":"/shop","type":"order",` + attributes + `"data` + data + `}`),
		}
	}
	d := newDesk(t)
	d.applied(
		structured("", `":`+string(body("structured", "1h"))),
		structured(`"extra":1,"time":"2026-01-01T00:00:00Z",`, `_base64":"eyJrZXkiOiJpbiBiYXNlNjQiLCJkZWxheSI6IjFoIiwiY2FsbGJhY2siOnsidHlwZSI6Imh0dHAiLCJkYXRhIjp7fX19"`),
		intake.Message{ContentType: "application/json", Body: body("binary", "1h"), Headers: map[string]string{
			"cloudevents:specversion": "1.0", "cloudevents:id": "1", "cloudevents:source": "/shop", "cloudevents:type": "order",
		}},
		structured(`"operation":"pause","subject":"structured",`, `":null`),
		intake.Message{Headers: map[string]string{"ce_specversion": "1.0", "ce_operation": "pause", "ce_subject": "binary"}},
		intake.Message{Headers: map[string]string{"carillon-operation": "pause"}, Key: "in base64"},
	)
	for _, key := range []string{"structured", "binary", "in base64"} {
		if j, there := d.job(key); !there || j.PausedAt.IsZero() {
			t.Errorf("%q is there: %v, paused at %v", key, there, j.PausedAt)
		}
	}
}

// TestRefusals: an invalid message is refused with the API's own problem, and holds up no other.
func TestRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		message intake.Message
		status  int
		says    string
	}{
		"malformed":           {intake.Message{Body: []byte("{\n")}, 400, ""},
		"a line's end inside": {intake.Message{Body: []byte("{\"key\": \"a\nb\"}")}, 400, ""},
		"empty":               {intake.Message{Body: []byte(" ")}, 400, "empty"},
		"unknown field":       {intake.Message{Body: []byte(`{"key":"k","delai":"1h"}`)}, 422, "/delai"},
		"no schedule":         {intake.Message{Body: []byte(`{"key":"k","callback":{"type":"http","data":{}}}`)}, 422, "/schedules"},
		"forbidden target":    {intake.Message{Body: []byte(`{"key":"k","delay":"1h","callback":{"type":"http","data":{"url":"forbidden"}}}`)}, 422, "/callback/data/url"},
		"too large":           {intake.Message{Body: []byte(`{"key":"` + strings.Repeat("k", 5000) + `"}`)}, 413, "--max-body"},
		"unknown operation":   {operation("delete", "k", ""), 422, "carillon-operation"},
		"no key":              {operation("cancel", "", ""), 422, "carillon-key"},
		"key too long":        {operation("cancel", strings.Repeat("k", 2000), ""), 422, "key"},
		"two keys":            {operation("put", "k", string(body("other", "1h"))), 422, "/key"},
		"no such job":         {operation("pause", "none", ""), 404, "no job"},
		"a patch of nothing":  {operation("patch", "k", ""), 400, "empty"},
		"another tenant":      {intake.Message{Body: body("k", "1h"), Headers: map[string]string{"carillon-tenant": "other"}}, 422, "carillon-tenant"},
		"content type":        {intake.Message{Body: body("k", "1h"), ContentType: "text/plain"}, 415, "application/json"},
		"content encoding":    {intake.Message{Body: body("k", "1h"), ContentEncoding: "gzip"}, 415, "gzip"},
		"a batch of events":   {intake.Message{Body: []byte("[]"), ContentType: "application/cloudevents-batch+json"}, 415, ""},
		"no event":            {intake.Message{Body: []byte("[]"), ContentType: "application/cloudevents+json"}, 400, "CloudEvent"},
		"event without id":    {intake.Message{Body: []byte(`{"specversion":"1.0","source":"s","type":"t"}`), ContentType: "application/cloudevents+json"}, 422, "id"},
		"old event":           {intake.Message{Body: body("k", "1h"), Headers: map[string]string{"ce_specversion": "0.3"}}, 422, "0.3"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t)
			answers := d.apply(message("before", "1h"), c.message, message("after", "1h"))
			refused := answers[1].Refused
			if refused == nil {
				t.Fatal("it is not refused")
			}
			var p struct {
				Type, Title, Detail string
				Status              int
			}
			if text := refused.Encode(); json.Unmarshal(text, &p) != nil || p.Status != c.status || p.Title == "" || p.Detail == "" || !strings.Contains(string(text), c.says) {
				t.Errorf("the problem is %s; want status %d and %q in it", text, c.status, c.says)
			}
			for i, key := range map[int]string{0: "before", 2: "after"} {
				if _, there := d.job(key); !there || answers[i].Refused != nil {
					t.Errorf("%s it is not applied", key)
				}
			}
		})
	}
}

// TestRepeated: a message that comes again changes nothing, also if its schedule begins with its submission. The same
// message published again does.
func TestRepeated(t *testing.T) {
	for name, c := range map[string]struct {
		repeated  bool
		published time.Duration // since the first one; zero if it is unknown
		same      bool
	}{
		"delivered again":                                           {true, 0, true},
		"delivered again, published before":                         {true, -time.Minute, true},
		"may be delivered again, but was published after the other": {true, 10 * time.Second, false},
		"another one": {false, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t)
			began := d.clock()
			keys := []string{"delay", "instants", "crontab"}
			messages := []intake.Message{message("delay", "1h")}
			for key, schedule := range map[string]string{"instants": `"schedules":["2099-01-01T00:00:00Z"]`, "crontab": `"crontab":"@every 1h"`} {
				messages = append(messages, intake.Message{Body: []byte(`{"key":"` + key + `",` + schedule + `,"callback":{"type":"http","data":{}}}`)})
			}
			d.applied(messages...)
			before := map[string]string{}
			for _, key := range keys {
				j, _ := d.job(key)
				before[key] = fmt.Sprint(j.Version, d.instants(key))
			}
			d.advance(time.Minute)
			for i := range messages {
				messages[i].Repeated = c.repeated
				if c.published != 0 {
					messages[i].Published = began.Add(c.published)
				}
			}
			d.applied(messages...)
			for _, key := range keys {
				j, _ := d.job(key)
				if same := before[key] == fmt.Sprint(j.Version, d.instants(key)); same != c.same && key != "crontab" {
					t.Errorf("%s is unchanged: %v, want %v", key, same, c.same)
				}
			}
		})
	}
}

// TestRepeatedCondition: a message with a condition, which it has met, meets it again when it is repeated.
func TestRepeatedCondition(t *testing.T) {
	d := newDesk(t)
	d.applied(message("changed", "1h"))
	old, _ := d.job("changed")
	conditional := func(key, delay, condition string) intake.Message {
		return intake.Message{Body: fmt.Appendf(nil, `{%s,%s`, condition, body(key, delay)[1:])}
	}
	for _, m := range []intake.Message{
		conditional("new", "1h", `"ifNoneMatch":"*"`), conditional("changed", "2h", fmt.Sprintf(`"ifMatch":%q`, old.Version)),
	} {
		d.applied(m)
		if again := d.apply(m)[0]; again.Refused == nil || again.Refused.Status != http.StatusPreconditionFailed {
			t.Errorf("another message of the same condition is answered with %+v", again.Refused)
		}
		m.Repeated = true
		d.applied(m)
	}
}

// TestRepeatedAfterFiring: a message that comes again when its job has fired does not fire it again.
func TestRepeatedAfterFiring(t *testing.T) {
	d := newDesk(t)
	d.applied(message("k", "1s"))
	d.advance(2 * time.Second)
	d.settle(d.claim(1)[0], store.Ack)
	again := message("k", "1s")
	again.Repeated = true
	d.applied(again)
	if left := d.instants("k"); len(left) > 0 {
		t.Errorf("it fires again at %v", left)
	}
}

// TestRepeatedTrigger: a trigger that comes again is the same occurrence, if its message has an identity and a time. So
// it changes nothing while the occurrence waits or is held, nor if it has failed for good, nor if history tells its end.
// If it has fired unnoticed, it fires once more by the same delivery id.
func TestRepeatedTrigger(t *testing.T) {
	type change func(*desk, *intake.Message)
	published := func(since time.Duration) change {
		return func(d *desk, m *intake.Message) { m.Published = d.clock().Add(since) }
	}
	identity := func(id string) change { return func(_ *desk, m *intake.Message) { m.Identity = id } }
	for name, c := range map[string]struct {
		first, again change // nil for none
		same, early  bool   // the occurrence is the same; it waits for its instant
	}{
		"delivered again":                  {same: true},
		"by a client with a fast clock":    {first: published(3 * time.Second), same: true, early: true},
		"of CloudEvents":                   {first: asEvent, same: true},
		"sent by the client once more":     {again: func(_ *desk, m *intake.Message) { m.Repeated = false }, same: true},
		"another message of the same time": {again: identity("2")},
		"published again":                  {again: published(0)},
		"without an identity":              {first: identity("")},
		"without a time":                   {first: func(_ *desk, m *intake.Message) { m.Published = time.Time{} }},
		"by a client with a wrong clock":   {first: published(time.Hour)},
		"of a time that no id has":         {first: func(_ *desk, m *intake.Message) { m.Published = time.Unix(-2, 0) }},
	} {
		for fate, end := range map[string]func(*desk, store.Claimed){
			"waits": nil, "is held": func(*desk, store.Claimed) {},
			"is dead":                           func(d *desk, o store.Claimed) { d.settle(o, store.Bury) },
			"is gone":                           func(d *desk, o store.Claimed) { d.settle(o, store.Ack) },
			"is gone, and delivered by history": func(d *desk, o store.Claimed) { d.settle(o, store.Ack); d.recorded(o, history.Delivered) },
			"is gone, and buried by history":    func(d *desk, o store.Claimed) { d.settle(o, store.Ack); d.recorded(o, history.Buried) },
			"is gone, and retried by history":   func(d *desk, o store.Claimed) { d.settle(o, store.Ack); d.recorded(o, history.Retried) },
		} {
			t.Run(name+", "+fate, func(t *testing.T) {
				d := newDesk(t)
				m := operation("trigger", "k", "")
				m.Identity, m.Published = "1", d.clock().Add(-5*time.Second)
				if c.first != nil {
					c.first(d, &m)
				}
				d.applied(message("k", "24h"), m)
				if c.early {
					d.claim(0)
					d.advance(3 * time.Second)
				}
				ids, due := map[job.ID]bool{}, 1
				if end != nil {
					for _, o := range d.claim(1) {
						ids[o.DeliveryID()] = true
						end(d, o)
					}
					due = 0
				}
				d.advance(10 * time.Second)
				m.Repeated = true
				if c.again != nil {
					c.again(d, &m)
				}
				d.applied(m)
				ended := m.Repeated && (strings.Contains(fate, "delivered") || strings.Contains(fate, "buried"))
				if !c.same || strings.HasPrefix(fate, "is gone") && !ended {
					due++
				}
				for _, o := range d.claim(due) {
					ids[o.DeliveryID()] = true
				}
				if (len(ids) == 1) != c.same {
					t.Errorf("receivers see %d delivery ids; the same one: %v", len(ids), c.same)
				}
			})
		}
	}
}

// asEvent makes a message a CloudEvent of the same identity and time.
func asEvent(_ *desk, m *intake.Message) {
	m.Headers["cloudevents:specversion"], m.Headers["cloudevents:source"] = "1.0", "shop"
	m.Headers["cloudevents:id"], m.Headers["cloudevents:time"] = m.Identity, m.Published.Format(time.RFC3339Nano)
	m.Identity, m.Published = "", time.Time{}
}

// claim claims all due occurrences, and expects a number of them.
func (d *desk) claim(want int) []store.Claimed {
	d.Helper()
	claim, err := d.store.Claim(d.Context(), store.ClaimParams{
		Now: d.clock(), Lease: time.Minute, Quotas: []store.Quota{{Lane: job.Lane{Tenant: tenant}, Limit: 10}},
	})
	if err != nil || len(claim.Occurrences) != want {
		d.Fatalf("claimed %+v, %v; want %d", claim, err, want)
	}
	return claim.Occurrences
}

// recorded writes the outcome of a claim to history.
func (d *desk) recorded(o store.Claimed, kind history.Kind) {
	d.Helper()
	w := history.NewWriter(history.Config{Records: d.store, Policy: history.Policy{Keep: time.Hour}, Now: d.clock})
	e := history.Entry{Kind: kind, At: d.clock(), Attempt: 1}
	e.About(&o.Occurrence)
	w.Record(&e)
	if err := w.Close(); err != nil {
		d.Fatal(err)
	}
}

// settle ends a claim.
func (d *desk) settle(o store.Claimed, outcome store.Outcome) {
	d.Helper()
	if err := d.store.Settle(d.Context(), []store.Settlement{{ID: o.ID, Token: o.Token, Outcome: outcome}}); err != nil {
		d.Fatal(err)
	}
}

// TestStoreDown: while the store is down, messages wait. Then all are applied, in order, and those whose answer was lost
// are left as they were stored.
func TestStoreDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t)
		d.store.fails = 20
		began := time.Now()
		d.applied(message("a", "1h"), message("b", "1h"), operation("cancel", "b", ""), message("c", "1h"), message("a", "3h"))
		if time.Since(began) < time.Second {
			t.Errorf("it tried again without pauses: %v for 20 failures", time.Since(began))
		}
		for key, want := range map[string]bool{"a": true, "b": false, "c": true} {
			if _, there := d.job(key); there != want {
				t.Errorf("%s is there: %v", key, there)
			}
		}
		if j, _ := d.job("a"); time.Duration(*j.Schedule.Delay) != 3*time.Hour {
			t.Errorf("the last message about a does not count: %v", *j.Schedule.Delay)
		}
	})
}

// TestStop: a door that is stopped while messages wait returns the answers of those that are done, and leaves the
// others to the broker.
func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute, cancel)
		d.store.fails = 1 << 30
		answers, err := d.Apply(ctx, held, []intake.Message{operation("delete", "k", ""), message("a", "1h")})
		if !errors.Is(err, context.Canceled) || len(answers) != 1 {
			t.Errorf("%d are done, %v", len(answers), err)
		}
	})
}

// TestNotHeld: messages that the broker regards as another consumer's are not applied.
func TestNotHeld(t *testing.T) {
	d := newDesk(t)
	lost := errors.New("lost")
	tries := 0
	hold := func(context.Context) error {
		if tries++; tries > 1 {
			return lost
		}
		return nil
	}
	answers, err := d.Apply(t.Context(), hold, []intake.Message{message("a", "1h"), operation("pause", "a", ""), message("b", "1h")})
	if !errors.Is(err, lost) || len(answers) != 1 {
		t.Errorf("%d are done, %v", len(answers), err)
	}
	if j, there := d.job("a"); !there || !j.PausedAt.IsZero() {
		t.Error("a is gone, or was paused")
	}
}

// known gives an API a reading of its store's clock, without which it can't distinguish later versions from earlier
// ones.
func known(t *testing.T) func(*handlers.Config) {
	return func(c *handlers.Config) {
		theirs := &clock.Clock{}
		if _, err := theirs.Watch(c.Store.(store.Store)).Now(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.Clock, c.Now = theirs, time.Now
	}
}

// TestFarApart: a later message of a group replaces the job of an earlier one, however many are between them.
func TestFarApart(t *testing.T) {
	d := newDesk(t, known(t))
	messages := []intake.Message{message("k", "1h")}
	for i := range 2500 {
		messages = append(messages, message(fmt.Sprint(i), "1h"))
	}
	d.applied(append(messages, message("k", "2h"))...)
	if j, _ := d.job("k"); time.Duration(*j.Schedule.Delay) != 2*time.Hour {
		t.Errorf("the earlier message won: the delay is %v", *j.Schedule.Delay)
	}
}

// TestLateWriter: messages that this process held before another one changed their job change nothing.
func TestLateWriter(t *testing.T) {
	d := newDesk(t, known(t))
	other := newDesk(t, known(t), func(c *handlers.Config) { c.Store, c.Inspector, c.Records = d.store, d.store, d.store })
	slow := func(context.Context) error { // this process is stopped for a while after it took the time
		time.Sleep(100 * time.Millisecond)
		other.applied(message("k", "2h"))
		return nil
	}
	if _, err := d.Apply(t.Context(), slow, []intake.Message{message("k", "1h")}); err != nil {
		t.Fatal(err)
	}
	if j, _ := d.job("k"); time.Duration(*j.Schedule.Delay) != 2*time.Hour {
		t.Errorf("the older message won: the delay is %v", *j.Schedule.Delay)
	}
}

func (d *desk) door2(api http.Handler) *intake.Door {
	return intake.NewDoor(intake.Config{
		API: api, Source: "queue jobs", Tenant: tenant, Patience: time.Minute, Metrics: intake.NewMetrics(prometheus.NewRegistry()),
		Logger: slog.New(slog.DiscardHandler),
	})
}

// TestFault: a message at which the service fails again and again is refused in the end; the others have their turn.
func TestFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t)
		tries := 0
		api := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.URL.Path, "bad") {
				tries++
				panic("bad")
			}
			w.WriteHeader(http.StatusOK)
		})
		answers, err := d.door2(api).Apply(t.Context(), held, []intake.Message{
			operation("pause", "good", ""), operation("pause", "bad", ""), operation("pause", "good", ""),
		})
		if err != nil || len(answers) != 3 || answers[1].Refused == nil || answers[1].Refused.Status != 500 || answers[2].Refused != nil {
			t.Errorf("answers %+v, %v", answers, err)
		}
		if tries != 5 {
			t.Errorf("it was tried %d times, want 5", tries)
		}
	})
}

// TestRate: messages beyond a rate wait for their turn, and each is applied once.
func TestRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := limits.New(limits.Config{Tenant: limits.Limits{Requests: limits.Rate{PerSecond: 1, Burst: 2}}})
		defer limiter.Close()
		changes := &recorder{}
		d := newDesk(t, func(c *handlers.Config) { c.Limiter, c.Now, c.History = limiter, time.Now, changes })
		var puts, triggers []intake.Message
		for i := range 6 {
			puts = append(puts, message(fmt.Sprint(i), "1h"))
			triggers = append(triggers, operation("trigger", fmt.Sprint(i), ""))
		}
		began := time.Now()
		d.applied(append(puts, triggers...)...)
		if took := time.Since(began); took < 4*time.Second {
			t.Errorf("7 requests at one per second took %v", took)
		}
		if len(changes.by) != 12 {
			t.Errorf("there are %d changes, want 12", len(changes.by))
		}
	})
}

// TestAudit: the trail and history name the queue, not a key.
func TestAudit(t *testing.T) {
	var trail strings.Builder
	log := audit.New(&trail, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	changes := &recorder{}
	d := newDesk(t, func(c *handlers.Config) { c.Audit, c.History, c.Auth = log, changes, nobody{} })
	d.applied(message("a", "1h"), operation("pause", "a", ""))
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{`"principal":"queue jobs"`, `"key":"a"`, `"tenant":"acme"`, `"from":"broker:5672"`} {
		if strings.Count(trail.String(), part) < 2 {
			t.Errorf("the trail has no %s for each message:\n%s", part, trail.String())
		}
	}
	if len(changes.by) != 2 || slices.ContainsFunc(changes.by, func(by string) bool { return by != "queue jobs" }) {
		t.Errorf("history has changes by %q", changes.by)
	}
}

// recorder notes the principals of the changes in history.
type recorder struct {
	mu sync.Mutex
	by []string
}

func (r *recorder) Record(entries ...*history.Entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range entries {
		r.by = append(r.by, e.By)
	}
}

// nobody authenticates nobody.
type nobody struct{}

func (nobody) Authenticate(context.Context, string, time.Time) (access.Principal, error) {
	return access.Principal{}, access.ErrUnauthenticated
}
func (nobody) Knows(string, time.Time) bool { return false }
