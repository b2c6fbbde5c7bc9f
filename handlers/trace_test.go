package handlers_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

const (
	caller = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	other  = "00-11111111111111111111111111111111-2222222222222222-01"
)

// traced returns an API that makes spans, and their recorder.
func traced(t *testing.T, sampler sdktrace.Sampler) (*api, *tracetest.SpanRecorder) {
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans), sdktrace.WithSampler(sampler))
	return newAPI(t, func(c *handlers.Config) { c.Traces = provider }), spans
}

// kept returns the trace context that is kept with the job a.
func (a *api) kept() job.Trace { return a.status().Options.Trace }

// TestCallersTraceIsKept: each request that changes the definition leaves its trace context there, even without a
// tracer.
func TestCallersTraceIsKept(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	put := func(headers ...string) { a.call("PUT", "/v1/jobs/a", body("a", time.Hour), headers...) }
	expect := func(what string, want job.Trace) {
		t.Helper()
		if got := a.kept(); got != want {
			t.Errorf("%s: %q is kept, want %q", what, got, want)
		}
	}
	put("traceparent: "+caller, "tracestate: a=1")
	expect("a put", caller+",a=1")
	put("traceparent: " + other)
	expect("another put", other)
	a.call("PATCH", "/v1/jobs/a", `{"deadline":"1h"}`, "traceparent: "+caller).want(200)
	expect("a patch", caller)
	a.call("PATCH", "/v1/jobs/a", `{"deadline":"1h"}`, "traceparent: "+other).want(200)
	expect("a patch that changes nothing", caller)
	a.call("PATCH", "/v1/jobs/a", `{"schedules":["2030-01-01T14:00:00Z"]}`, "traceparent: "+other).want(200)
	expect("a patch of the schedule", other)
	put()
	expect("a put without a trace", "")
	put("traceparent: nonsense", "tracestate: a=1")
	expect("a put with nonsense", "")
	for _, body := range []string{body("a", time.Hour), "[" + body("b", time.Hour) + "," + body("a", time.Hour) + "]"} {
		path := "/v1/jobs"
		if strings.HasPrefix(body, "[") {
			path += "/batch"
		}
		put()
		a.call("POST", path, body, "traceparent: "+caller).want(200)
		expect(path, caller)
	}
}

// TestKeptScheduleKeepsItsTrace: a crontab submitted again just as it was is not another one because its caller is
// another.
func TestKeptScheduleKeepsItsTrace(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	every := recurring("a", "@every 10m")
	first := decode[accepted](a.call("POST", "/v1/jobs", every, "traceparent: "+caller).want(201))
	again := decode[accepted](a.call("POST", "/v1/jobs", every, "traceparent: "+other).want(200))
	if again.Version != first.Version || a.kept() != caller {
		t.Errorf("submitted again: %+v with the trace %q, at first %+v", again, a.kept(), first)
	}
	changed := decode[accepted](a.call("POST", "/v1/jobs", recurring("a", "@every 10m", "deadline", "5m"), "traceparent: "+other).want(200))
	if changed.Version == first.Version || changed.Revision != first.Revision || a.kept() != other {
		t.Errorf("with a deadline: %+v with the trace %q, at first %+v", changed, a.kept(), first)
	}
}

// TestTriggerHasItsOwnTrace, and leaves the job's alone.
func TestTriggerHasItsOwnTrace(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.call("PUT", "/v1/jobs/a", body("a", 8760*time.Hour), "traceparent: "+caller).want(201)
	for _, c := range []struct {
		headers []string
		want    job.Trace
	}{{[]string{"traceparent: " + other}, other}, {nil, ""}} {
		a.call("POST", "/v1/jobs/a/trigger", "", c.headers...).want(202)
		if claimed := a.claim(); len(claimed) != 1 || claimed[0].Options.Trace != c.want {
			t.Errorf("claimed %+v, want one with the trace %q", claimed, c.want)
		}
	}
	if got := a.kept(); got != caller {
		t.Errorf("the job has the trace %q", got)
	}
}

// TestRequestsHaveSpans: a request's span is a child of the caller's, and the job keeps the request's span.
func TestRequestsHaveSpans(t *testing.T) {
	t.Parallel()
	a, spans := traced(t, sdktrace.ParentBased(sdktrace.AlwaysSample()))
	for _, c := range []struct {
		method, path, body, name string
		status                   int
	}{
		{"PUT", "/v1/jobs/a", body("a", time.Hour), "PUT /v1/jobs/:key", 201},
		{"GET", "/v1/jobs/a%2Fb?limit=1", "", "GET /v1/jobs/:key", 404},
		{"POST", "/v1/jobs/batch", "[]", "POST /v1/jobs/batch", 200},
		{"POST", "/v1/jobs", "{}", "POST /v1/jobs", 422},
		{"GET", "/healthz", "", "", 200},
		{"GET", "/readyz", "", "", 200},
		{"GET", "/nowhere", "", "", 404},
		{"DELETE", "/v1/preview", "", "", 405},
	} {
		t.Run(c.method+" "+c.path, func(t *testing.T) {
			spans.Reset()
			a.call(c.method, c.path, c.body, "traceparent: "+caller, "tracestate: x=1").want(c.status)
			ended := spans.Ended()
			if c.name == "" {
				if len(spans.Started()) > 0 {
					t.Errorf("there are %d spans", len(spans.Started()))
				}
				return
			}
			if len(ended) != 1 {
				t.Fatalf("%d spans have ended", len(ended))
			}
			got, parent := ended[0], job.Trace(caller+",x=1").SpanContext()
			if got.Name() != c.name || got.SpanKind() != trace.SpanKindServer || !got.Parent().Equal(parent) || got.SpanContext().TraceID() != parent.TraceID() {
				t.Errorf("the span is %s of kind %s, a child of %+v", got.Name(), got.SpanKind(), got.Parent())
			}
			path, _, _ := strings.Cut(c.path, "?")
			expectAttributes(t, got, map[string]any{
				"http.request.method": c.method, "http.route": strings.TrimPrefix(c.name, c.method+" "), "url.path": path,
				"url.scheme": "http", "http.response.status_code": int64(c.status),
			})
			if got.Status().Code != codes.Unset {
				t.Errorf("the span's status is %+v", got.Status())
			}
			if c.status == http.StatusCreated {
				if want := job.TraceOf(got.SpanContext()); a.kept() != want {
					t.Errorf("%q is kept, want %q", a.kept(), want)
				}
			}
		})
	}
}

// Without a caller that has a trace, a request begins one.
func TestRequestsBeginTraces(t *testing.T) {
	t.Parallel()
	a, spans := traced(t, sdktrace.AlwaysSample())
	a.call("PUT", "/v1/jobs/a", body("a", time.Hour), "traceparent: nonsense").want(201)
	if ended := spans.Ended(); len(ended) != 1 || ended[0].Parent().IsValid() || a.kept() != job.TraceOf(ended[0].SpanContext()) {
		t.Errorf("%d spans have ended; %q is kept", len(ended), a.kept())
	}
}

// A span that is not exported can't be linked to, but the caller's can.
func TestTraceThatIsNotSampled(t *testing.T) {
	t.Parallel()
	a, spans := traced(t, sdktrace.NeverSample())
	for _, c := range []struct {
		headers []string
		want    job.Trace
	}{{nil, ""}, {[]string{"traceparent: " + caller}, caller}} {
		a.call("PUT", "/v1/jobs/a", body("a", time.Hour), c.headers...)
		if got := a.kept(); got != c.want || len(spans.Ended()) > 0 {
			t.Errorf("%q is kept, want %q; %d spans have ended", got, c.want, len(spans.Ended()))
		}
	}
}

// Faults of ours are errors of their spans.
func TestFaultsOfSpans(t *testing.T) {
	t.Parallel()
	panics := with(body("a", time.Hour), "callback", map[string]any{"type": "http", "data": map[string]any{"panic": 1}})
	for status, c := range map[int]struct {
		fault error
		body  string
	}{503: {store.ErrUnavailable, body("a", time.Hour)}, 500: {nil, panics}} {
		a, spans := traced(t, sdktrace.AlwaysSample())
		a.store.setFault(c.fault)
		a.call("POST", "/v1/jobs", c.body, "traceparent: "+caller).want(status)
		ended := spans.Ended()
		if len(ended) != 1 || ended[0].Status().Code != codes.Error {
			t.Fatalf("%d: %d spans have ended: %+v", status, len(ended), ended)
		}
	}
}

func expectAttributes(t *testing.T, span sdktrace.ReadOnlySpan, want map[string]any) {
	t.Helper()
	got := attribute.NewSet(span.Attributes()...)
	for name, value := range want {
		if v, _ := got.Value(attribute.Key(name)); v.AsInterface() != value {
			t.Errorf("the attribute %s is %v, want %v", name, v.AsInterface(), value)
		}
	}
	if got.Len() != len(want) {
		t.Errorf("the attributes are %s", got.Encoded(attribute.DefaultEncoder()))
	}
}
