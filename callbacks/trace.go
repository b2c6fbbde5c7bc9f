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

// TraceHeaders are the headers by which a delivery's receiver goes on with its trace, as W3C names them, in lower case.
// Own are the headers that the job's callback data has: if they name one of these, the job has a trace of its own, and
// there are none.
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
