package service

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
)

// tracing sends spans to a collector, as the environment variables of OpenTelemetry say. Nothing of it may hold up the
// service: what is wrong there is logged, and what can't be sent is dropped.
type tracing struct {
	provider *sdktrace.TracerProvider
	patience time.Duration // at the end
	log      *slog.Logger
}

// tracesPatience is how long the last spans may take at the end, if the shutdown timeout is no shorter. A collector
// that is away must not hold up a rolling upgrade.
const tracesPatience = 3 * time.Second

// newTracing begins to trace; nil if the environment does not ask for it, or asks for what there is not.
func newTracing(ctx context.Context, patience time.Duration, log *slog.Logger) *tracing {
	if !wanted(log) {
		return nil
	}
	// The library has one place in a process for what its users do wrong. Nobody else here uses it.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("OpenTelemetry", "error", err) }))
	otel.SetLogger(logr.FromSlogHandler(log.Handler()))
	exporter, protocol, err := newExporter(ctx)
	if err != nil {
		log.Warn("there are no traces", "error", err)
		return nil
	}
	who, err := resource.New(ctx, resource.WithAttributes(semconv.ServiceName("carillon"),
		semconv.ServiceVersion(moduleVersion()),
		semconv.ServiceInstanceID(rand.Text())), // else replicas on one machine are one
		resource.WithTelemetrySDK(), resource.WithHost(), resource.WithFromEnv()) // what comes later wins
	if err != nil {
		log.Warn("not all that traces are to say of this service can be said", "error", err)
	}
	log.Info("traces are exported", "protocol", protocol)
	return &tracing{
		provider: sdktrace.NewTracerProvider(sdktrace.WithBatcher(&quietExporter{SpanExporter: exporter, log: log}),
			sdktrace.WithResource(who)),
		patience: patience,
		log:      log,
	}
}

// wanted tells whether the environment asks for traces.
func wanted(log *slog.Logger) bool {
	if strings.EqualFold(env("OTEL_SDK_DISABLED"), "true") {
		return false
	}
	switch exporter := env("OTEL_TRACES_EXPORTER"); exporter {
	case "otlp":
		return true
	case "none":
		return false
	case "":
		return endpoint() != ""
	default:
		log.Warn("there are no traces: OTEL_TRACES_EXPORTER must be otlp or none", "is", exporter)
		return false
	}
}

// newExporter makes the exporter for the protocol that the environment names. It connects to nothing yet.
func newExporter(ctx context.Context) (exporter sdktrace.SpanExporter, protocol string, err error) {
	// What the library can't read it would send nowhere, or elsewhere.
	at, malformed := url.Parse(endpoint())
	switch protocol = cmp.Or(variant("PROTOCOL"), "http/protobuf"); protocol {
	case "grpc":
		if malformed != nil {
			return nil, "", errors.New("OTEL_EXPORTER_OTLP_ENDPOINT must be a URL such as http://collector:4317")
		}
		exporter, err = otlptracegrpc.New(ctx)
	case "http/protobuf", "http/json":
		if malformed != nil || endpoint() != "" && (at.Host == "" || at.Scheme != "http" && at.Scheme != "https") {
			return nil, "", errors.New("OTEL_EXPORTER_OTLP_ENDPOINT must be a URL such as http://collector:4318")
		}
		exporter, err = otlptracehttp.New(ctx)
	default:
		return nil, "", fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL must be http/protobuf, http/json or grpc, not %q", protocol)
	}
	return exporter, protocol, err
}

// endpoint is where to send spans; empty if nothing is said.
func endpoint() string { return variant("ENDPOINT") }

// variant is an option of the exporter: that for traces, or else that for all that is exported.
func variant(option string) string {
	if value := env("OTEL_EXPORTER_OTLP_TRACES_" + option); value != "" {
		return value
	}
	return env("OTEL_EXPORTER_OTLP_" + option)
}

func env(name string) string { return strings.TrimSpace(os.Getenv(name)) }

// spans is the provider; nil if there are no traces.
func (t *tracing) spans() trace.TracerProvider {
	if t == nil {
		return nil
	}
	return t.provider
}

// Close exports the last spans, for as long as there is patience. That they are lost is no failure of the service.
func (t *tracing) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), t.patience)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		t.log.Warn("the last traces could not be exported", "error", err)
	}
	return nil
}

// quietExporter tells at most once a minute that spans are lost, and not for each batch of them.
type quietExporter struct {
	sdktrace.SpanExporter
	log  *slog.Logger
	lost int // since it was told
	told time.Time
}

// ExportSpans is never called concurrently.
func (e *quietExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	if err == nil {
		return nil
	}
	e.lost += len(spans)
	if now := time.Now(); now.Sub(e.told) >= time.Minute {
		e.log.Warn("traces can't be exported", "lost spans", e.lost, "error", err)
		e.lost, e.told = 0, now
	}
	return nil // or the library would log it too
}
