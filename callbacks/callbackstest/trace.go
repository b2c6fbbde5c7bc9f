package callbackstest

import (
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/carillon-scheduler/carillon/job"
)

// Receivers get the delivery's trace, unless its job has one of its own; [testEnvelope] tests deliveries without a
// trace.
func testTrace(t *testing.T, s suite) {
	const ours = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	const theirs = "00-11111111111111111111111111111111-2222222222222222-00"
	for _, c := range []struct {
		name          string
		trace         job.Trace
		headers       map[string]string // the job's own
		envelope      job.Envelope
		parent, state string
	}{
		{name: "parent", trace: ours, parent: ours},
		{name: "state", trace: ours + ",a=1,b@c=x y", parent: ours, state: "a=1,b@c=x y"},
		{name: "beside other headers", trace: ours + ",a=1", headers: map[string]string{"x-trace": "1"},
			parent: ours, state: "a=1"},
		{name: "with an event", trace: ours + ",a=1", envelope: job.EnvelopeStructured, parent: ours, state: "a=1"},
		{name: "the job's parent", trace: ours + ",a=1", headers: map[string]string{"traceparent": theirs}, parent: theirs},
		{name: "the job's, in another case", trace: ours + ",a=1", headers: map[string]string{"TraceParent": theirs},
			parent: theirs},
		{name: "the job's state", trace: ours, headers: map[string]string{"Tracestate": "b=2"}, state: "b=2"},
		{name: "the job's, and none", headers: map[string]string{"traceparent": theirs, "tracestate": "b=2"},
			parent: theirs, state: "b=2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx := limited(t)
			d := s.delivery(`{}`)
			d.Trace, d.Envelope = c.trace, c.envelope
			if c.headers != nil {
				headers, err := json.Marshal(c.headers)
				if err != nil {
					t.Fatal(err)
				}
				d.Data = []byte(s.edited(t, func(members map[string]jsontext.Value) { members["headers"] = headers }))
			}
			if err := s.Sender.Validate(d.Data); err != nil {
				t.Fatalf("the data is not accepted: %v", err)
			}
			s.deliver(ctx, t, d)
			if got := s.Await(ctx, t, d.ID); got.TraceParent != c.parent || got.TraceState != c.state {
				t.Errorf("the receiver got the parent %q and the state %q, and not %q and %q",
					got.TraceParent, got.TraceState, c.parent, c.state)
			}
		})
	}
}

// The attempt's span describes the message and its destination, by OpenTelemetry's conventions, without secrets.
func testSpan(t *testing.T, s suite) {
	ctx := limited(t)
	spans := tracetest.NewSpanRecorder()
	ctx, span := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("test").Start(ctx, "fire")
	d := s.delivery(`{}`)
	s.deliver(ctx, t, d)
	span.End()
	got, want := attribute.NewSet(spans.Ended()[0].Attributes()...), attribute.NewSet(s.Span(d.ID)...)
	if !got.Equals(&want) {
		t.Errorf("the span has\n%v, and not\n%v", got.ToSlice(), want.ToSlice())
	}
	for _, a := range got.ToSlice() {
		for _, secret := range s.Secrets {
			if strings.Contains(a.Value.String(), secret) {
				t.Errorf("the attribute %s has the secret %q", a.Key, secret)
			}
		}
	}
}
