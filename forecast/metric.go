package forecast

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// nextHour is the last value of the metric.
type nextHour struct {
	of    *Plan
	value float64
	until time.Time
}

// The value of the metric is counted again after hourAge. The definitions are read for it at most a hundredth of the
// time, and a plan of more than oldestPlan says nothing.
const (
	hourAge      = time.Minute
	metricRest   = 100
	oldestPlan   = time.Hour
	metricPeriod = time.Hour
)

// Collector returns the metric of the occurrences that fall due in the next hour. Now is the clock. Every is the age of
// a plan from which on a scrape starts a new reading, in the background; with zero, only forecasts read plans.
func (r *Reader) Collector(now func() time.Time, every time.Duration) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "carillon_forecast_next_hour",
		Help: "Occurrences that fall due in the next hour, by the definitions that this replica has read within the last " +
			"hour. NaN if it has read none.",
	}, func() float64 { return r.nextHour(now(), every) })
}

// nextHour returns the value of the metric.
func (r *Reader) nextHour(now time.Time, every time.Duration) float64 {
	r.lock.Lock()
	defer r.lock.Unlock()
	p := r.plan
	if every > 0 && r.reading == nil && now.After(r.rested) &&
		(p == nil || now.Sub(p.At) >= max(every, metricRest*p.Took)) {
		r.rested = now.Add(every) // also if it fails
		r.begin(now)
	}
	if p == nil || now.Sub(p.At) > oldestPlan {
		return math.NaN()
	}
	if h := &r.hour; h.of != p || now.After(h.until) {
		from := now.Truncate(time.Millisecond)
		if from.Before(p.At) {
			from = p.At
		}
		sum := 0
		p.tally(from, metricPeriod, 1, func(f *Flow) bool { return !f.Paused }, func(_ int, _ int32, n int) { sum += n })
		*h = nextHour{p, float64(sum), now.Add(hourAge)}
	}
	return r.hour.value
}
