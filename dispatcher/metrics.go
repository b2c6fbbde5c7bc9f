package dispatcher

import (
	"errors"
	"math"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/carillon-scheduler/carillon/callbacks/exemplar"
	"github.com/carillon-scheduler/carillon/store"
)

// metrics are the metrics of a Dispatcher. Those that are written for each occurrence are looked up by the callback's
// type alone, and writing them allocates nothing. A nil metrics accepts every call and does nothing.
type metrics struct {
	types   map[string]*typeMetrics // by callback type, fixed once made; "" is for all types without a sender
	tenants *tenantMetrics
	missed  prometheus.Counter
	parked  prometheus.Counter
	claims  prometheus.Counter
	empty   prometheus.Counter
	reclaim prometheus.Counter
	batches prometheus.Observer

	inFlight atomic.Int64 // callbacks under way. A slot is in use longer: from the claim until the outcome is written
	backlog  backlog
}

// typeMetrics are the metrics of one callback type.
type typeMetrics struct {
	deviation prometheus.Observer
	duration  prometheus.Observer
	outcomes  [len(outcomeLabels)]prometheus.Counter // by store.Outcome
	refused   prometheus.Counter
}

// outcomeLabels are the labels of the outcomes. A miss has none: it is no delivery.
var outcomeLabels = [...]string{
	store.Ack: "delivered", store.Retry: "retried", store.Bury: "buried", store.Release: "released",
}

// otherType is the label of all callback types without a sender here: clients may submit any type.
const otherType = "other"

// newMetrics makes the metrics of a Dispatcher and registers them; nil if there is no registerer.
func newMetrics(d *Dispatcher, registerer prometheus.Registerer) (*metrics, error) {
	if registerer == nil {
		return nil, nil // a nil metrics does nothing
	}
	deviation := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "carillon_deviation_seconds",
		Help: "How long after its instant an occurrence was fired, first attempts only.",
		Buckets: []float64{.0005, .001, .002, .003, .005, .0075, .01, .015, .02, .03, .05, .075, .1, .25, .5,
			1, 2.5, 5, 10, 30, 60, 300, 900, 3600},
	}, []string{"type"})
	duration := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "carillon_delivery_duration_seconds",
		Help:    "How long sending a callback took, until it was answered, confirmed or given up.",
		Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
	}, []string{"type"})
	deliveries := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "carillon_deliveries_total",
		Help: "Claims of occurrences that have ended, by how: delivered, retried, buried or released.",
	}, []string{"type", "outcome"})
	refused := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "carillon_refused_total",
		Help: "Callbacks that were not sent because the operator does not allow their destination.",
	}, []string{"type"})
	missed := newCounter("carillon_missed_total",
		"Occurrences that were dropped by their deadline or by their job's rule for catching up.")
	claims := newCounter("carillon_claims_total", "Occurrences that were claimed.")
	empty := newCounter("carillon_empty_claims_total",
		"Claims that got nothing: another replica was faster, what was due was cancelled, or a turn began.")
	reclaims := newCounter("carillon_reclaims_total",
		"Occurrences that were claimed of which an earlier claim was never settled.")
	batches := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "carillon_claim_batch_size",
		Help:    "How many occurrences a claim got, of claims that got any.",
		Buckets: []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000},
	})
	parked := newCounter("carillon_parked_total",
		"Occurrences that were given back unsent, because their destination was down, slow or at its limit.")
	m := &metrics{
		types: make(map[string]*typeMetrics), tenants: newTenantMetrics(d.cfg.TenantLabels),
		missed: missed, parked: parked, claims: claims, empty: empty, reclaim: reclaims, batches: batches,
	}
	for _, t := range append(d.cfg.Callbacks.Types(), "") {
		label := t
		if t == "" {
			label = otherType
		}
		of := &typeMetrics{
			deviation: deviation.WithLabelValues(label), duration: duration.WithLabelValues(label),
			refused: refused.WithLabelValues(label),
		}
		for outcome, name := range outcomeLabels {
			of.outcomes[outcome] = deliveries.WithLabelValues(label, name)
		}
		m.types[t] = of
	}
	var errs []error
	for _, c := range append([]prometheus.Collector{
		deviation, duration, deliveries, refused, missed, parked, claims, empty, reclaims, batches,
		m.tenants.deviation, m.tenants.deliveries,
		newGauge("carillon_destinations_open", "Destinations that this replica tries, or paths of them, "+
			"with single callbacks only, since they have failed again and again.",
			func() float64 { return float64(d.destinations.Open()) }),
		newGauge("carillon_in_flight", "Callbacks under way on this replica, until their outcome is written.",
			func() float64 { return float64(m.inFlight.Load()) }),
		newGauge("carillon_concurrency", "How many callbacks may be under way on this replica at once.",
			func() float64 { return float64(d.cfg.Concurrency) }),
		newGauge("carillon_clock_skew_seconds",
			"This machine's clock minus the store's; NaN until the store has told its time.",
			d.clock.seconds),
	}, m.backlog.collectors(d.now)...) {
		errs = append(errs, registerer.Register(c))
	}
	return m, errors.Join(errs...)
}

func newCounter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

// newGauge makes a gauge whose value is read at each request.
func newGauge(name, help string, read func() float64) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, read)
}

// claimed counts the occurrences of a claim.
func (m *metrics) claimed(occurrences []store.Claimed) {
	if m == nil {
		return
	}
	if len(occurrences) == 0 {
		m.empty.Inc()
		return
	}
	reclaims := 0
	for i := range occurrences {
		if occurrences[i].Reclaimed {
			reclaims++
		}
	}
	m.claims.Add(float64(len(occurrences)))
	m.reclaim.Add(float64(reclaims))
	m.batches.Observe(float64(len(occurrences)))
	m.inFlight.Add(int64(len(occurrences)))
}

// freed notes that n outcomes were written, or given up.
func (m *metrics) freed(n int) {
	if m != nil {
		m.inFlight.Add(-int64(n))
	}
}

// sent notes the end of sending a callback, and its duration. Span is the attempt's, if there are traces.
func (m *metrics) sent(callbackType string, took time.Duration, span trace.SpanContext) {
	if m != nil {
		exemplar.Observe(m.of(callbackType).duration, took.Seconds(), span)
	}
}

// lateness returns the time from an occurrence's due time to its firing; negative if that does not count. A retry has
// its own delay, and a released occurrence fires another time. A triggered or redriven one has no instant. An
// unreadable one was not fired. An early one counts as on time: the metric's sum must not decrease.
func lateness(c *store.Claimed, outcome store.Outcome, firedAt time.Time) time.Duration {
	if c.Attempt != 1 || outcome == store.Release || outcome == store.Miss || c.Revision == "" || c.Fault != nil {
		return -1
	}
	return max(0, firedAt.Sub(c.Options.FiresAt(&c.Occurrence)))
}

// settled notes the outcome of a claim and its lateness. Span is the attempt's, if there was one and there are traces.
func (m *metrics) settled(c *store.Claimed, outcome store.Outcome, late time.Duration, span trace.SpanContext) {
	if m == nil {
		return
	}
	if outcome == store.Miss {
		m.missed.Inc()
		return
	}
	of := m.of(c.Callback.Type)
	of.outcomes[outcome].Inc()
	if late >= 0 {
		exemplar.Observe(of.deviation, late.Seconds(), span)
	}
	m.tenants.settled(c.Name.Tenant, outcome, late.Seconds())
}

// refuse notes that a callback was not sent because the operator does not allow its destination.
func (m *metrics) refuse(callbackType string) {
	if m != nil {
		m.of(callbackType).refused.Inc()
	}
}

// park notes that an occurrence is parked.
func (m *metrics) park() {
	if m != nil {
		m.parked.Inc()
	}
}

// miss notes occurrences that were dropped before they were in the store.
func (m *metrics) miss(n int) {
	if m != nil {
		m.missed.Add(float64(n))
	}
}

func (m *metrics) of(callbackType string) *typeMetrics {
	if of, ok := m.types[callbackType]; ok {
		return of
	}
	return m.types[""]
}

// seconds returns the last measured skew.
func (c *clock) seconds() float64 {
	last := c.checked.Load()
	if last == nil {
		return math.NaN()
	}
	return last.skew.Seconds()
}
