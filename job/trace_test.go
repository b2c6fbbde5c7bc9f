package job_test

import (
	"net/http"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/trace"

	"github.com/carillon-scheduler/carillon/job"
)

const (
	traceID = "4bf92f3577b34da6a3ce929d0e0e4736"
	spanID  = "00f067aa0ba902b7"
	parent  = "00-" + traceID + "-" + spanID + "-01"
)

// TestRequestSpan: the context of the headers is kept as W3C specifies, and a malformed one is ignored.
func TestRequestSpan(t *testing.T) {
	long := "a=" + strings.Repeat("x", 250)
	for name, c := range map[string]struct {
		headers []string // "Name: value"
		want    job.Trace
	}{
		"nothing":                   {nil, ""},
		"a parent":                  {[]string{"traceparent: " + parent}, parent},
		"not sampled":               {[]string{"traceparent: 00-" + traceID + "-" + spanID + "-00"}, "00-" + traceID + "-" + spanID + "-00"},
		"a random id":               {[]string{"traceparent: 00-" + traceID + "-" + spanID + "-03"}, "00-" + traceID + "-" + spanID + "-03"},
		"any case of the name":      {[]string{"TraceParent: " + parent, "TRACESTATE: a=1"}, parent + ",a=1"},
		"a state":                   {[]string{"traceparent: " + parent, "tracestate: a=1,b@c=x y"}, parent + ",a=1,b@c=x y"},
		"a state of several lines":  {[]string{"traceparent: " + parent, "tracestate: a=1", "tracestate: b=2"}, parent + ",a=1,b=2"},
		"a malformed state":         {[]string{"traceparent: " + parent, "tracestate: A B"}, parent},
		"a state of long members":   {[]string{"traceparent: " + parent, "tracestate: a=" + long[2:] + ",b=" + long[2:] + ",c=3"}, job.Trace(parent + ",a=" + long[2:] + ",b=" + long[2:] + ",c=3")},
		"a state that is longer":    {[]string{"traceparent: " + parent, "tracestate: a=" + long[2:] + ",b=" + long[2:] + ",c=3,d=4,e=5"}, job.Trace(parent + ",a=" + long[2:] + ",b=" + long[2:] + ",c=3")},
		"a state alone":             {[]string{"tracestate: a=1"}, ""},
		"a later version":           {[]string{"traceparent: 01-" + traceID + "-" + spanID + "-01-more"}, parent},
		"no version that can be":    {[]string{"traceparent: ff-" + traceID + "-" + spanID + "-01"}, ""},
		"more than its version has": {[]string{"traceparent: " + parent + "-more"}, ""},
		"capital letters":           {[]string{"traceparent: " + strings.ToUpper(parent)}, ""},
		"no trace":                  {[]string{"traceparent: 00-" + strings.Repeat("0", 32) + "-" + spanID + "-01"}, ""},
		"no span":                   {[]string{"traceparent: 00-" + traceID + "-" + strings.Repeat("0", 16) + "-01"}, ""},
		"too short":                 {[]string{"traceparent: " + parent[:50]}, ""},
		"nonsense":                  {[]string{"traceparent: hello"}, ""},
		"two parents":               {[]string{"traceparent: " + parent, "traceparent: " + parent}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			headers := http.Header{}
			for _, h := range c.headers {
				name, value, _ := strings.Cut(h, ": ")
				headers.Add(name, value)
			}
			span := job.RequestSpan(headers)
			got := job.TraceOf(span)
			if got != c.want {
				t.Errorf("%q is kept, want %q", got, c.want)
			}
			again := got.SpanContext()
			if again.IsValid() != (c.want != "") || job.TraceOf(again) != got || again.TraceID() != span.TraceID() || again.SpanID() != span.SpanID() {
				t.Errorf("%q is read as %+v", got, again)
			}
			if parent, state, _ := strings.Cut(string(c.want), ","); got.Parent() != parent || got.State() != state {
				t.Errorf("the parent is %q and the state %q", got.Parent(), got.State())
			}
		})
	}
}

// A stored trace may be anything, if it was imported.
func TestTraceThatIsNone(t *testing.T) {
	for _, text := range []job.Trace{"", ",", "nonsense", ",a=1", parent + "x", "00-,a"} {
		if span := text.SpanContext(); span.IsValid() {
			t.Errorf("%q is read as %+v", text, span)
		}
	}
	if got := job.TraceOf(trace.SpanContext{}); got != "" {
		t.Errorf("no span has the trace context %q", got)
	}
}

// TestOptionsKeepTheirTrace: the trace is stored, but is not one of the options that a client sees.
func TestOptionsKeepTheirTrace(t *testing.T) {
	plain, other := job.Options{}, job.Options{Deadline: 1000}
	traced := job.Options{Trace: parent + ",a=1"}
	if got, err := job.DecodeOptions(traced.Encode()); err != nil || got.Trace != traced.Trace {
		t.Errorf("decoded %+v, %v", got, err)
	}
	if len(plain.Encode()) != 0 {
		t.Errorf("options with nothing in them are encoded as %s", plain.Encode())
	}
	if !traced.Same(plain) || !plain.Same(traced) || traced.Same(other) || !other.Same(other) {
		t.Error("options are told apart by their traces, or not by what they ask for")
	}
	j := job.Job{Callback: job.Callback{Type: "http", Data: []byte(`{}`)}, Options: traced, Schedule: job.Schedule{Delay: new(job.Duration)}}
	draft, err := j.Patch([]byte(`{"deadline":"1h"}`))
	if err != nil {
		t.Fatal(err)
	}
	draft.Key = "k"
	patched, err := draft.Job("t", job.Limits{Payload: 100})
	if err != nil || patched.Options.Trace != "" {
		t.Errorf("a patched job has the trace %q, %v", patched.Options.Trace, err)
	}
}
