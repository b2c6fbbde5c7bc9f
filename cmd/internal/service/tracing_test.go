package service

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
)

const (
	callersTrace = "4bf92f3577b34da6a3ce929d0e0e4736"
	callersSpan  = "00f067aa0ba902b7"
	callersState = "a=1"
)

// TestTraces: a submission's span is a child of its caller's. Its firing is a trace of its own, which is linked to it
// and continues at the receiver. When the service has stopped, the collector has all spans.
func TestTraces(t *testing.T) {
	for name, variables := range map[string]func(c *collector) map[string]string{
		"by default": func(c *collector) map[string]string {
			return map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": c.http, "OTEL_EXPORTER_OTLP_HEADERS": "x-key=secret%201"}
		},
		"named": func(c *collector) map[string]string {
			return map[string]string{
				"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": c.http + "/v1/traces",
				"OTEL_EXPORTER_OTLP_TRACES_HEADERS": "x-key=secret%201", "OTEL_TRACES_EXPORTER": "otlp", "OTEL_SERVICE_NAME": "bells",
				"OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test,service.name=other",
			}
		},
		"grpc": func(c *collector) map[string]string {
			return map[string]string{
				"OTEL_EXPORTER_OTLP_ENDPOINT": c.grpc, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_HEADERS": "x-key=secret%201",
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCollector(t)
			variables := variables(c)
			setOTEL(t, variables)
			s := startTraced(t, filepath.Join(t.TempDir(), "carillon.db"))
			s.call("PUT", "/v1/jobs/a", `{"delay":"1ms","callback":{"type":"http","data":{"url":"`+s.receiver.URL+`"}}}`)
			received := <-s.received
			exemplars := s.exemplars()
			s.stop()

			submission, firing := c.span(t, "PUT /v1/jobs/:key"), c.span(t, "fire http")
			if hex.EncodeToString(submission.TraceId) != callersTrace || hex.EncodeToString(submission.ParentSpanId) != callersSpan ||
				submission.Kind != tracepb.Span_SPAN_KIND_SERVER {
				t.Errorf("the submission's span is %v", submission)
			}
			if bytes.Equal(firing.TraceId, submission.TraceId) || len(firing.ParentSpanId) > 0 || firing.Kind != tracepb.Span_SPAN_KIND_CLIENT {
				t.Errorf("the firing's span is %v", firing)
			}
			if l := firing.Links; len(l) != 1 || !bytes.Equal(l[0].TraceId, submission.TraceId) || !bytes.Equal(l[0].SpanId, submission.SpanId) {
				t.Errorf("the firing's links are %v", l)
			}
			if parent, want := received.Get("traceparent"), fmt.Sprintf("00-%x-%x-0", firing.TraceId, firing.SpanId); !strings.HasPrefix(parent, want) || !sampled(t, parent) {
				t.Errorf("the receiver got the traceparent %s, want %s and sampled", parent, want)
			}
			for metric, span := range map[string]*tracepb.Span{
				"carillon_http_request_duration_seconds": submission, "carillon_delivery_duration_seconds": firing, "carillon_deviation_seconds": firing,
			} {
				if want := fmt.Sprintf("%x %x", span.TraceId, span.SpanId); exemplars[metric] != want {
					t.Errorf("the exemplar of %s is %q, want %q", metric, exemplars[metric], want)
				}
			}
			wanted := map[string]string{"service.name": "carillon", "telemetry.sdk.name": "opentelemetry"}
			if variables["OTEL_SERVICE_NAME"] != "" {
				wanted["service.name"], wanted["deployment.environment.name"] = "bells", "test"
			}
			for key, want := range wanted {
				if got := c.resource[key]; got != want {
					t.Errorf("the service's %s is %q, want %q", key, got, want)
				}
			}
			if got := received.Get("User-Agent"); got != userAgent(moduleVersion()) {
				t.Errorf("the receiver got the User-Agent %q", got)
			}
			if c.resource["service.version"] == "" || c.resource["service.instance.id"] == "" || c.resource["host.name"] == "" || c.key != "secret 1" {
				t.Errorf("the service is %v; the header has %q", c.resource, c.key)
			}
		})
	}
}

// TestTraceThatIsKeptWithoutTracing: a replica that does not trace keeps its caller's context for one that does.
func TestTraceThatIsKeptWithoutTracing(t *testing.T) {
	c := newCollector(t)
	file := filepath.Join(t.TempDir(), "carillon.db")
	setOTEL(t, nil)
	s := startTraced(t, file)
	body := func(delay string) string {
		return `{"delay":"` + delay + `","callback":{"type":"http","data":{"url":"` + s.receiver.URL + `"}}}`
	}
	s.call("PUT", "/v1/jobs/a", body("1h"))
	s.call("POST", "/v1/jobs/a/pause", "")
	s.call("PUT", "/v1/jobs/a", body("0s")) // so that the other one fires it
	s.call("PUT", "/v1/jobs/b", body("0s"))
	if h := <-s.received; len(h.Values("traceparent"))+len(h.Values("tracestate")) > 0 {
		t.Errorf("without tracing the receiver got %v", h)
	}
	s.stop()
	if n := c.count(); n > 0 {
		t.Errorf("without tracing there are %d spans", n)
	}

	setOTEL(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": c.http})
	s.start(file)
	s.call("POST", "/v1/jobs/a/resume", "")
	<-s.received
	s.stop()
	firing := c.span(t, "fire http")
	if l := firing.Links; len(l) != 1 || hex.EncodeToString(l[0].TraceId) != callersTrace || hex.EncodeToString(l[0].SpanId) != callersSpan {
		t.Errorf("the firing's links are %v", l)
	}
}

// TestTracesThatAreNotSampled: they are not exported, and receivers get an unsampled trace.
func TestTracesThatAreNotSampled(t *testing.T) {
	c := newCollector(t)
	setOTEL(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": c.http, "OTEL_TRACES_SAMPLER": "always_off"})
	s := startTraced(t, filepath.Join(t.TempDir(), "carillon.db"))
	s.call("PUT", "/v1/jobs/a", `{"delay":"1ms","callback":{"type":"http","data":{"url":"`+s.receiver.URL+`"}}}`)
	if parent := (<-s.received).Get("traceparent"); sampled(t, parent) {
		t.Errorf("the receiver got %s", parent)
	}
	s.stop()
	if n := c.count(); n > 0 {
		t.Errorf("there are %d spans", n)
	}
}

// TestTracesThatAreAskedFor: only variables of the environment turn traces on, and a fault there is only reported.
func TestTracesThatAreAskedFor(t *testing.T) {
	at := map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
	with := func(pairs ...string) map[string]string {
		all := maps.Clone(at)
		for i := 0; i < len(pairs); i += 2 {
			all[pairs[i]] = pairs[i+1]
		}
		return all
	}
	for name, c := range map[string]struct {
		variables map[string]string
		want      bool
		says      string // in the log, at the level of a warning; empty for nothing
	}{
		"nothing":                  {nil, false, ""},
		"empty":                    {map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": " ", "OTEL_TRACES_EXPORTER": ""}, false, ""},
		"only a name":              {map[string]string{"OTEL_SERVICE_NAME": "bells"}, false, ""},
		"an endpoint":              {at, true, ""},
		"an endpoint for traces":   {map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1/x"}, true, ""},
		"an endpoint for metrics":  {map[string]string{"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://127.0.0.1:1"}, false, ""},
		"an exporter":              {map[string]string{"OTEL_TRACES_EXPORTER": "otlp"}, true, ""},
		"no exporter":              {with("OTEL_TRACES_EXPORTER", "none"), false, ""},
		"another exporter":         {with("OTEL_TRACES_EXPORTER", "zipkin"), false, "OTEL_TRACES_EXPORTER"},
		"disabled":                 {with("OTEL_SDK_DISABLED", "TRUE", "OTEL_TRACES_EXPORTER", "otlp"), false, ""},
		"not disabled":             {with("OTEL_SDK_DISABLED", "false"), true, ""},
		"json":                     {with("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"), true, ""},
		"another protocol":         {with("OTEL_EXPORTER_OTLP_PROTOCOL", "pigeon"), false, "OTEL_EXPORTER_OTLP_PROTOCOL"},
		"no scheme":                {map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"}, false, "http://collector:4318"},
		"no host":                  {map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "/traces"}, false, "http://collector:4318"},
		"no scheme, by grpc":       {map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "localhost:1", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"}, true, ""},
		"no URL, by grpc":          {map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "127.0.0.1:1", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"}, false, "http://collector:4317"},
		"another sampler":          {with("OTEL_TRACES_SAMPLER", "dice"), true, "dice"},
		"attributes that are none": {with("OTEL_RESOURCE_ATTRIBUTES", "nonsense"), true, "nonsense"},
	} {
		t.Run(name, func(t *testing.T) {
			setOTEL(t, c.variables)
			var log bytes.Buffer
			traces := newTracing(t.Context(), time.Second, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})))
			if (traces != nil) != c.want || (traces.spans() != nil) != c.want {
				t.Errorf("there are traces: %t, want %t", traces != nil, c.want)
			}
			if traces != nil {
				if err := traces.Close(); err != nil {
					t.Error(err)
				}
			}
			if !strings.Contains(log.String(), c.says) || c.says == "" && log.Len() > 0 {
				t.Errorf("the log has %q, want %q", &log, c.says)
			}
		})
	}
}

// A collector that takes no spans does not keep the service from ending.
func TestCollectorThatHangs(t *testing.T) {
	hanging := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hanging }))
	defer server.Close()
	defer close(hanging)
	setOTEL(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": server.URL})
	var log lockedLog
	traces := newTracing(t.Context(), 50*time.Millisecond, slog.New(slog.NewTextHandler(&log, nil)))
	_, span := traces.spans().Tracer("test").Start(t.Context(), "x")
	span.End()
	if err := traces.Close(); err != nil {
		t.Error(err)
	}
	if !strings.Contains(log.String(), "the last traces could not be exported") {
		t.Errorf("the log has %s", log.String())
	}
}

// TestCollectorThatIsAway: the log reports it once a minute, with the number of lost spans.
func TestCollectorThatIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		away := failingExporter{err: errors.New("nobody listens")}
		e := &quietExporter{SpanExporter: &away, log: slog.New(slog.NewTextHandler(&log, nil))}
		batch := make([]sdktrace.ReadOnlySpan, 3)
		export := func() {
			if err := e.ExportSpans(t.Context(), batch); err != nil {
				t.Errorf("the library is told too: %v", err)
			}
		}
		for range 25 { // two minutes
			export()
			time.Sleep(5 * time.Second)
		}
		away.err = nil
		export()
		if got := strings.Count(log.String(), "nobody listens"); got != 3 {
			t.Errorf("it was told %d times: %s", got, &log)
		}
		for _, lost := range []string{`"lost spans"=3 `, `"lost spans"=36 `} {
			if !strings.Contains(log.String(), lost) {
				t.Errorf("the log has no %s: %s", lost, &log)
			}
		}
	})
}

type failingExporter struct {
	tracetest.NoopExporter
	err error
}

func (e *failingExporter) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error { return e.err }

// sampled reads the flag of a traceparent.
func sampled(t *testing.T, parent string) bool {
	t.Helper()
	flags, err := hex.DecodeString(parent[max(len(parent)-2, 0):])
	if err != nil || len(parent) != 55 {
		t.Fatalf("%q is no traceparent", parent)
	}
	return flags[0]&1 == 1
}

// setOTEL sets the environment's variables of OpenTelemetry, and no others of them.
func setOTEL(t *testing.T, variables map[string]string) {
	t.Helper()
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "OTEL_") {
			t.Setenv(name, "")
		}
	}
	for name, value := range variables {
		t.Setenv(name, value)
	}
}

// tracedService is a service whose callers have a trace, and a receiver for its webhooks.
type tracedService struct {
	*testing.T
	receiver *httptest.Server
	received chan http.Header
	api      string
	stop     func()
}

func startTraced(t *testing.T, file string, settings ...string) *tracedService {
	t.Helper()
	s := &tracedService{T: t, received: make(chan http.Header, 10)}
	s.receiver = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { s.received <- r.Header }))
	t.Cleanup(s.receiver.Close)
	s.start(file, settings...)
	return s
}

func (s *tracedService) start(file string, settings ...string) {
	s.Helper()
	all := map[string]string{"store": "sqlite:" + file}
	for i := 0; i < len(settings); i += 2 {
		all[settings[i]] = settings[i+1]
	}
	options, err := Configure(all)
	if err != nil {
		s.Fatal(err)
	}
	service, err := New(s.Context(), options, slog.New(slog.DiscardHandler))
	if err != nil {
		s.Fatal(err)
	}
	api, stop, err := service.Start(s.Context(), service.Run)
	if err != nil {
		s.Fatal(err)
	}
	s.api = api
	s.stop = sync.OnceFunc(func() {
		if err := stop(); err != nil {
			s.Error(err)
		}
	})
	s.Cleanup(s.stop)
}

// exemplars answers the trace and the span that each histogram which has any names last, when three of them have.
func (s *tracedService) exemplars() map[string]string {
	s.Helper()
	line := regexp.MustCompile(`(?m)^(\w+)_bucket\{.* # \{(?:trace_id="(\w+)",?|span_id="(\w+)",?){2}\} `)
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		request, err := http.NewRequestWithContext(s.Context(), http.MethodGet, s.api+"/metrics", http.NoBody)
		if err != nil {
			s.Fatal(err)
		}
		request.Header.Set("Accept", "application/openmetrics-text")
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			s.Fatal(err)
		}
		text, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil || !strings.HasPrefix(response.Header.Get("Content-Type"), "application/openmetrics-text") {
			s.Fatalf("%v: %v", response.Header, err)
		}
		found := map[string]string{}
		for _, m := range line.FindAllSubmatch(text, -1) {
			found[string(m[1])] = string(m[2]) + " " + string(m[3])
		}
		if len(found) == 3 {
			return found
		}
		if time.Now().After(end) {
			s.Fatalf("there are the exemplars %v in\n%s", found, text)
		}
	}
}

func (s *tracedService) call(method, path, body string) {
	s.Helper()
	request, err := http.NewRequestWithContext(s.Context(), method, s.api+path, strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("traceparent", "00-"+callersTrace+"-"+callersSpan+"-01")
	request.Header.Set("tracestate", callersState)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		s.Fatal(err)
	}
	defer response.Body.Close()
	if answer, _ := io.ReadAll(response.Body); response.StatusCode >= 300 {
		s.Fatalf("%s %s: %s %s", method, path, response.Status, answer)
	}
}

// TestUserAgent: receivers get the version, if it is valid there.
func TestUserAgent(t *testing.T) {
	for version, want := range map[string]string{
		"v1.2.3": "carillon/v1.2.3", "v0.0.0-20260101000000-0123456789ab+dirty": "carillon/v0.0.0-20260101000000-0123456789ab+dirty",
		"(devel)": "carillon", "": "carillon",
	} {
		if got := userAgent(version); got != want {
			t.Errorf("version %q makes %q, want %q", version, got, want)
		}
	}
}
