package callbacks

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
)

// Header is a header that goes with a delivery.
type Header struct {
	Name  string
	Value string
}

// TraceHeaders returns W3C's headers with which a receiver continues the delivery's trace, with names in lower case.
// Own are the headers in the job's callback data: if one of them has such a name, the job has its own trace, and the
// result is empty.
func TraceHeaders[V any](d *Delivery, own map[string]V) []Header {
	if d.Trace == "" {
		return nil
	}
	for name := range own {
		if strings.EqualFold(name, traceParent) || strings.EqualFold(name, traceState) {
			return nil
		}
	}
	headers := []Header{{traceParent, d.Trace.Parent()}}
	if state := d.Trace.State(); state != "" {
		headers = append(headers, Header{traceState, state})
	}
	return headers
}

// DescribeMessage sets the attributes of a sent message on the attempt's span, if ctx has one, as OpenTelemetry's
// conventions say: the system, the destination there, and the system's word for sending.
func DescribeMessage(
	ctx context.Context, system attribute.KeyValue, destination, operation string, more ...attribute.KeyValue,
) {
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.SetAttributes(system, semconv.MessagingDestinationName(destination), semconv.MessagingOperationTypeSend,
			semconv.MessagingOperationName(operation))
		span.SetAttributes(more...)
	}
}

const (
	traceParent = "traceparent"
	traceState  = "tracestate"
)
