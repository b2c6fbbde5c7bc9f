package job

import (
	"context"
	"net/textproto"
	"strings"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Trace is a trace context as W3C has it: a traceparent and, if it has a tracestate, a comma and that. Empty for none.
type Trace string

// TraceOf is the trace context of a span; empty if there is no such span.
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

// RequestSpan is the span that a request's headers name as its caller. Malformed headers are ignored, as the
// specification says: no request fails because of its trace.
func RequestSpan(headers map[string][]string) trace.SpanContext {
	parents := headers[textproto.CanonicalMIMEHeaderKey(parentHeader)]
	if len(parents) != 1 {
		return trace.SpanContext{}
	}
	return spanContext(parents[0], strings.Join(headers[textproto.CanonicalMIMEHeaderKey(stateHeader)], ","))
}

// Parent is the traceparent.
func (t Trace) Parent() string {
	parent, _, _ := strings.Cut(string(t), ",")
	return parent
}

// State is the tracestate; empty if there is none.
func (t Trace) State() string {
	_, state, _ := strings.Cut(string(t), ",")
	return state
}

// SpanContext is that of the span that the trace context names; not valid if it names none.
func (t Trace) SpanContext() trace.SpanContext { return spanContext(t.Parent(), t.State()) }

// The names of the headers, in which case does not matter.
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

// shorten leaves of a tracestate as many members as W3C asks everyone to pass on. A client's state is stored with its
// job, and could otherwise be many times as large.
func shorten(state string) string {
	const most = 512 // bytes
	for len(state) > most {
		state = state[:max(strings.LastIndexByte(state, ','), 0)]
	}
	return state
}
