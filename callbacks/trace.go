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

// DescribeMessage notes on the attempt's span, which ctx has if the replica traces, what OpenTelemetry's conventions
// say of a message that is sent: by which system, to which destination there, and what that system calls sending.
func DescribeMessage(ctx context.Context, system attribute.KeyValue, destination, operation string, more ...attribute.KeyValue) {
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
