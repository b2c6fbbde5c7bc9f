package handlers

import (
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/carillon-scheduler/carillon/job"
)

// traced makes a span for each request to /v1. It leaves out health checks, which come every few seconds, and unknown
// paths, since clients can invent any name.
func traced(provider trace.TracerProvider) gin.HandlerFunc {
	tracer := provider.Tracer("github.com/carillon-scheduler/carillon/handlers")
	return func(c *gin.Context) {
		route := c.FullPath()
		if !strings.HasPrefix(route, "/v1/") {
			return
		}
		r := c.Request
		scheme := "http"
		if r.TLS != nil {
			scheme = "https"
		}
		ctx := r.Context()
		if caller := job.RequestSpan(r.Header); caller.IsValid() && !trace.SpanContextFromContext(ctx).IsValid() {
			ctx = trace.ContextWithRemoteSpanContext(ctx, caller) // unless an embedding program has made a span already
		}
		ctx, span := tracer.Start(ctx, r.Method+" "+route, trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(
			semconv.HTTPRequestMethodKey.String(r.Method),
			semconv.HTTPRoute(route),
			semconv.URLPath(shownPath(r)),
			semconv.URLScheme(scheme),
		))
		defer span.End() // also when the connection is broken by a panic
		c.Request = r.WithContext(ctx)
		c.Next()
		status := c.Writer.Status()
		span.SetAttributes(semconv.HTTPResponseStatusCode(status))
		if status >= http.StatusInternalServerError { // other statuses are the client's fault
			span.SetStatus(codes.Error, http.StatusText(status))
		}
	}
}

// traceOf returns the trace context to store with a submission: the request's own span if it is exported, otherwise its
// caller's. It does so even if this replica makes no spans: another replica, which makes them, may fire the job.
func traceOf(r *http.Request) job.Trace {
	if own := trace.SpanContextFromContext(r.Context()); own.IsSampled() {
		return job.TraceOf(own)
	}
	return job.TraceOf(job.RequestSpan(r.Header))
}
