package handlers

import (
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/carillon-scheduler/carillon/callbacks/exemplar"
)

// metrics are the API's own metrics. A nil metrics keeps nothing.
type metrics struct {
	duration *prometheus.HistogramVec
	inFlight prometheus.Gauge
}

// newMetrics makes the metrics of the API and registers them; nil if there is no registerer. It panics if the
// registerer has them already.
func newMetrics(registerer prometheus.Registerer) *metrics {
	if registerer == nil {
		return nil
	}
	m := &metrics{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "carillon_http_request_duration_seconds",
			Help:    "Duration of requests, from their header to the end of the answer, by method, route and status.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
		}, []string{"method", "route", "status"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "carillon_http_requests_in_flight",
			Help: "Requests under way.",
		}),
	}
	registerer.MustRegister(m.duration, m.inFlight)
	return m
}

// measure measures a request, also one that panics. It must be the first handler.
func (a *api) measure(c *gin.Context) {
	m := a.metrics
	if m == nil || InsideOf(c.Request.Context()) != nil {
		return
	}
	start := time.Now() // durations go by the machine's clock, not the API's
	m.inFlight.Inc()
	defer func() {
		m.inFlight.Dec()
		route := c.FullPath()
		if route == "" {
			route = "none"
		}
		exemplar.Observe(m.duration.WithLabelValues(methodLabel(c.Request.Method), route, strconv.Itoa(c.Writer.Status())),
			time.Since(start).Seconds(), trace.SpanContextFromContext(c.Request.Context()))
	}()
	c.Next()
}

// methods are the methods of all paths, and OPTIONS.
var methods = []string{
	http.MethodGet, http.MethodPut, http.MethodPost, http.MethodDelete, http.MethodPatch, http.MethodOptions,
}

// methodLabel returns the label of a method. Clients can invent methods, and a label is never forgotten.
func methodLabel(method string) string {
	if slices.Contains(methods, method) {
		return method
	}
	return "other"
}

// showMetrics answers with the metrics of this replica.
func (a *api) showMetrics(c *gin.Context) error {
	if a.Metrics == nil {
		return noRoute(c)
	}
	a.Metrics.ServeHTTP(c.Writer, c.Request)
	return nil
}
