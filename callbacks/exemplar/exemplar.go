// Package exemplar ties metrics to traces.
package exemplar

import (
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
)

// Observe observes a value. If the span is sampled, it becomes the value's exemplar.
func Observe(histogram prometheus.Observer, value float64, span trace.SpanContext) {
	if !span.IsSampled() {
		histogram.Observe(value)
		return
	}
	histogram.(prometheus.ExemplarObserver).ObserveWithExemplar(value, prometheus.Labels{
		"trace_id": span.TraceID().String(), "span_id": span.SpanID().String(),
	})
}
