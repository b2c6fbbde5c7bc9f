package dispatcher

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// tracerOf returns the provider's tracer; nil if there is no provider. Then attempts have no spans.
func tracerOf(provider trace.TracerProvider) trace.Tracer {
	if provider == nil {
		return nil
	}
	return provider.Tracer("github.com/carillon-scheduler/carillon/dispatcher")
}

// startSpan begins the span of an attempt. The span begins a trace of its own, with a link to the request that
// submitted the job: that may be years ago, and a crontab's trace would never end.
func (d *Dispatcher) startSpan(
	ctx context.Context, sender callbacks.Sender, c *store.Claimed, now time.Time,
) (context.Context, trace.Span) {
	kind := trace.SpanKindProducer
	if _, responds := sender.(callbacks.Responder); responds {
		kind = trace.SpanKindClient
	}
	options := []trace.SpanStartOption{
		trace.WithNewRoot(), trace.WithSpanKind(kind), trace.WithTimestamp(now),
		trace.WithAttributes(
			attribute.String("carillon.job.tenant", c.Name.Tenant),
			attribute.String("carillon.job.key", c.Name.Key),
			attribute.String("carillon.callback.type", c.Callback.Type),
			attribute.String("carillon.delivery.id", c.DeliveryID().String()),
			attribute.String("carillon.timestamp", job.FormatTime(c.Timestamp)),
			attribute.Float64("carillon.deviation", now.Sub(c.Options.FiresAt(&c.Occurrence)).Seconds()),
			attribute.Int("carillon.attempt", c.Attempt),
		),
	}
	if submission := c.Options.Trace.SpanContext(); submission.IsValid() {
		options = append(options, trace.WithLinks(trace.Link{SpanContext: submission}))
	}
	return d.tracer.Start(ctx, "fire "+c.Callback.Type, options...)
}

// endSpan ends an attempt's span with its outcome and its error. Span is nil if no attempt was made, or there are no
// traces.
func endSpan(span trace.Span, s *store.Settlement, err error) {
	if span == nil {
		return
	}
	span.SetAttributes(attribute.String("carillon.outcome", outcomeName(s.Outcome)))
	if err != nil {
		span.SetAttributes(errorType(err))
		span.SetStatus(codes.Error, s.Error)
	}
	span.End()
}

// spanContext returns a span's context; empty if there is no span.
func spanContext(span trace.Span) trace.SpanContext {
	if span == nil {
		return trace.SpanContext{}
	}
	return span.SpanContext()
}

// errorType names the kind of an error in one of a few words: by its ErrorType method if it has one, else by its Go
// type.
func errorType(err error) attribute.KeyValue {
	if u, ok := errors.AsType[*unfired](err); ok {
		err = u.error
	}
	if failure, ok := errors.AsType[*callbacks.Failure](err); ok {
		err = failure.Err
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return semconv.ErrorTypeKey.String("timeout")
	case errors.Is(err, context.Canceled):
		return semconv.ErrorTypeKey.String("canceled")
	}
	return semconv.ErrorType(err)
}

func outcomeName(o store.Outcome) string {
	switch o {
	case store.Ack:
		return "ack"
	case store.Retry:
		return "retry"
	case store.Bury:
		return "bury"
	case store.Release:
		return "release"
	default:
		return "miss"
	}
}
