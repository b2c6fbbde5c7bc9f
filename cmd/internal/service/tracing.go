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

// tracing sends spans to a collector, configured by the environment variables of OpenTelemetry. It never delays the
// service: it logs errors, and drops spans that can't be sent.
type tracing struct {
	provider *sdktrace.TracerProvider
	patience time.Duration // at the end
	log      *slog.Logger
}

// tracesPatience bounds the export of the last spans at the end, if the shutdown timeout is not shorter. An unreachable
// collector must not delay a rolling upgrade.
const tracesPatience = 3 * time.Second

// newTracing starts tracing; nil if the environment does not ask for it, or asks for an unknown exporter.
func newTracing(ctx context.Context, patience time.Duration, log *slog.Logger) *tracing {
	if !wanted(log) {
		return nil
	}
	// The library has one error handler per process. No other code here uses it.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("OpenTelemetry", "error", err) }))
	otel.SetLogger(logr.FromSlogHandler(log.Handler()))
	exporter, protocol, err := newExporter(ctx)
	if err != nil {
		log.Warn("tracing is off", "error", err)
		return nil
	}
	who, err := resource.New(ctx, resource.WithAttributes(semconv.ServiceName("carillon"),
		semconv.ServiceVersion(moduleVersion()),
		semconv.ServiceInstanceID(rand.Text())), // else replicas on one machine have the same id
		resource.WithTelemetrySDK(), resource.WithHost(), resource.WithFromEnv()) // later ones override
	if err != nil {
		log.Warn("some resource attributes of traces are missing", "error", err)
	}
	log.Info("traces are exported", "protocol", protocol)
	return &tracing{
		provider: sdktrace.NewTracerProvider(sdktrace.WithBatcher(&quietExporter{SpanExporter: exporter, log: log}),
			sdktrace.WithResource(who)),
		patience: patience,
		log:      log,
	}
}

// wanted reports whether the environment asks for traces.
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
		log.Warn("tracing is off: OTEL_TRACES_EXPORTER must be otlp or none", "is", exporter)
		return false
	}
}

// newExporter makes the exporter for the protocol that the environment names. It connects to nothing yet.
func newExporter(ctx context.Context) (exporter sdktrace.SpanExporter, protocol string, err error) {
	// The library would ignore a malformed URL, or send spans elsewhere.
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

// endpoint returns the configured URL for spans; "" if there is none.
func endpoint() string { return variant("ENDPOINT") }

// variant returns an option of the exporter: the one for traces, or else the general one.
func variant(option string) string {
	if value := env("OTEL_EXPORTER_OTLP_TRACES_" + option); value != "" {
		return value
	}
	return env("OTEL_EXPORTER_OTLP_" + option)
}

func env(name string) string { return strings.TrimSpace(os.Getenv(name)) }

// spans returns the provider; nil if tracing is off.
func (t *tracing) spans() trace.TracerProvider {
	if t == nil {
		return nil
	}
	return t.provider
}

// Close exports the last spans, up to the patience. Lost spans are no failure of the service.
func (t *tracing) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), t.patience)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		t.log.Warn("the last traces could not be exported", "error", err)
	}
	return nil
}

// quietExporter logs lost spans at most once a minute, not for each batch.
type quietExporter struct {
	sdktrace.SpanExporter
	log      *slog.Logger
	lost     int // since the last log line
	loggedAt time.Time
}

// ExportSpans is never called concurrently.
func (e *quietExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	if err == nil {
		return nil
	}
	e.lost += len(spans)
	if now := time.Now(); now.Sub(e.loggedAt) >= time.Minute {
		e.log.Warn("traces can't be exported", "lost spans", e.lost, "error", err)
		e.lost, e.loggedAt = 0, now
	}
	return nil // else the library would log it too
}
