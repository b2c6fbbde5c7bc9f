package job

import (
	"context"
	"net/textproto"
	"strings"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Trace is a W3C trace context: a traceparent and, if there is a tracestate, a comma and the tracestate. It is empty if
// there is none.
type Trace string

// TraceOf returns the trace context of a span; empty if there is no such span.
func TraceOf(span trace.SpanContext) Trace {
	if !span.IsValid() {
		return ""
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), span), carrier)
	t := carrier[parentHeader]
	if state := shorten(carrier[stateHeader]); state != "" {
		t += "," + state
	}
	return Trace(t)
}

// RequestSpan returns the caller's span from a request's headers. Malformed headers are ignored, as the specification
// requires: no request fails because of its trace.
func RequestSpan(headers map[string][]string) trace.SpanContext {
	parents := headers[textproto.CanonicalMIMEHeaderKey(parentHeader)]
	if len(parents) != 1 {
		return trace.SpanContext{}
	}
	return spanContext(parents[0], strings.Join(headers[textproto.CanonicalMIMEHeaderKey(stateHeader)], ","))
}

// Parent returns the traceparent.
func (t Trace) Parent() string {
	parent, _, _ := strings.Cut(string(t), ",")
	return parent
}

// State returns the tracestate; empty if there is none.
func (t Trace) State() string {
	_, state, _ := strings.Cut(string(t), ",")
	return state
}

// SpanContext returns that of the span that the trace context names; not valid if it names none.
func (t Trace) SpanContext() trace.SpanContext { return spanContext(t.Parent(), t.State()) }

// The names of the headers; case does not matter in them.
const (
	parentHeader = "traceparent"
	stateHeader  = "tracestate"
)

func spanContext(parent, state string) trace.SpanContext {
	if parent == "" {
		return trace.SpanContext{}
	}
	carrier := propagation.MapCarrier{parentHeader: parent, stateHeader: state}
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), carrier))
}

// shorten cuts a tracestate to the number of members that W3C asks everyone to pass on. A client's tracestate is stored
// with its job, and could otherwise be many times as large.
func shorten(state string) string {
	const most = 512 // bytes
	for len(state) > most {
		state = state[:max(strings.LastIndexByte(state, ','), 0)]
	}
	return state
}
