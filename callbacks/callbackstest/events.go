package callbackstest

import (
	"maps"
	"slices"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/job"
)

// event is one case of a delivery as a CloudEvent 1.0.
type event struct {
	name    string
	key     string
	payload string // empty for none
	step    string // a step's own payload
	part    *job.Part
	// want are the attributes beside those that all have; step is a number in JSON.
	source     string
	number     string
	subscriber string
}

func events() []event {
	return []event{
		{name: "plain", key: "plain", payload: `{"a":1}`, source: "/default/plain"},
		{name: "bytes", key: "k", payload: "{ \"b\" : 1.50,\n \"a\": \"\\u00e9<\" }", source: "/default/k"},
		{name: "null", key: "k", payload: `null`, source: "/default/k"},
		{name: "no payload", key: "k", source: "/default/k"},
		{name: "odd key", key: `a/b?c#d %"ü`, payload: `1`, source: "/default/a%2Fb%3Fc%23d%20%25%22%C3%BC"},
		{name: "step", key: "k", payload: `1`, part: &job.Part{Step: 0}, source: "/default/k", number: "0"},
		{name: "step's payload", key: "k", payload: `1`, step: `[ 2 ]`, part: &job.Part{Step: 12},
			source: "/default/k", number: "12"},
		{
			name: "subscriber", key: "k", payload: `1`, part: &job.Part{Step: 3, Subscriber: `{"name":"Zoë \"Z\" 1%"}`},
			source: "/default/k", number: "3", subscriber: `{"name":"Zoë \"Z\" 1%"}`,
		},
	}
}

func (s suite) eventDelivery(t *testing.T, e event, envelope job.Envelope) callbacks.Delivery {
	d := s.delivery(e.payload)
	if e.payload == "" {
		d.Data = s.withoutPayload(t)
	}
	if e.step != "" {
		d.Payload = []byte(e.step)
	}
	d.Name.Key, d.Part, d.Envelope = e.key, e.part, envelope
	return d
}

// body returns the body of the event.
func (e event) body() string {
	if e.step != "" {
		return e.step
	}
	return e.payload
}

// attributes returns all attributes of the event, except the content type of its data.
func (e event) attributes(d callbacks.Delivery) map[string]string {
	all := map[string]string{
		"specversion": "1.0", "id": d.ID.String(), "source": e.source,
		"type": "carillon.occurrence", "time": job.FormatTime(d.Timestamp),
	}
	if e.number != "" {
		all["carillonstep"] = e.number
	}
	if e.subscriber != "" {
		all["carillonsubscriber"] = e.subscriber
	}
	return all
}

// takes reports whether the sender supports an envelope.
func (s suite) takes(envelope job.Envelope) bool {
	e, ok := s.Sender.(callbacks.Enveloper)
	return ok && slices.Contains(e.Envelopes(), envelope)
}

// The body is the whole event as JSON, in which the payload stands byte for byte. The headers beside the body stay.
func testStructured(t *testing.T, s suite) {
	if !s.takes(job.EnvelopeStructured) {
		t.Fatal("every sender must take structured events: they need only a body and a content type")
	}
	for _, e := range events() {
		t.Run(e.name, func(t *testing.T) {
			ctx := limited(t)
			d := s.eventDelivery(t, e, job.EnvelopeStructured)
			s.deliver(ctx, t, d)
			got := s.Await(ctx, t, d.ID)
			if got.ContentType != "application/cloudevents+json" || got.Key != e.key || got.Attempt != d.Attempt {
				t.Errorf("the receiver got %+v", got)
			}
			var members map[string]jsontext.Value
			if err := json.Unmarshal([]byte(got.Payload), &members); err != nil {
				t.Fatalf("%v: %s", err, got.Payload)
			}
			want := map[string]string{}
			for name, value := range e.attributes(d) {
				quoted, err := jsontext.AppendQuote(nil, value)
				if err != nil {
					t.Fatal(err)
				}
				want[name] = string(quoted)
			}
			if e.number != "" {
				want["carillonstep"] = e.number
			}
			if e.body() != "" {
				want["datacontenttype"], want["data"] = `"application/json"`, e.body()
			}
			have := map[string]string{}
			for name, value := range members {
				have[name] = string(value)
			}
			if !maps.Equal(have, want) {
				t.Errorf("the receiver got\n%q, and not\n%q", have, want)
			}
		})
	}
}

// The body is the payload, and the attributes are sent beside it.
func testBinary(t *testing.T, s suite) {
	if !s.takes(job.EnvelopeBinary) {
		if s.Attributes != nil {
			t.Error("the receiver knows of binary events, and the sender does not")
		}
		return
	}
	for _, e := range events() {
		t.Run(e.name, func(t *testing.T) {
			ctx := limited(t)
			d := s.eventDelivery(t, e, job.EnvelopeBinary)
			s.deliver(ctx, t, d)
			got := s.Await(ctx, t, d.ID)
			contentType := "application/json"
			if e.body() == "" {
				contentType = ""
			}
			if got.ContentType != contentType || got.Payload != e.body() || got.Key != e.key || got.Attempt != d.Attempt {
				t.Errorf("the receiver got %+v", got)
			}
			if have, want := s.Attributes(ctx, t, d.ID), e.attributes(d); !maps.Equal(have, want) {
				t.Errorf("the receiver got\n%q, and not\n%q", have, want)
			}
		})
	}
}

// Without an envelope there is no trace of one.
func testNoEvents(t *testing.T, s suite) {
	ctx := limited(t)
	d := s.delivery(`{}`)
	s.deliver(ctx, t, d)
	if got := s.Await(ctx, t, d.ID); got.ContentType != "application/json" || got.Payload != `{}` {
		t.Errorf("the receiver got %+v", got)
	}
	if s.Attributes != nil {
		if have := s.Attributes(ctx, t, d.ID); len(have) > 0 {
			t.Errorf("the receiver got %q", have)
		}
	}
}
