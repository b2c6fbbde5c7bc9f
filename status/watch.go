package status

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/carillon-scheduler/carillon/job"
)

// Watch counts how late one replica fires. Its methods are safe for concurrent use. A nil Watch does nothing.
type Watch struct {
	now        func() time.Time
	lock       sync.Mutex
	lateness   [latenessSlots]slot
	hours      [hoursKept]hourSlot
	objectives []*watched
}

// watched is an objective with its counts.
type watched struct {
	Objective
	minutes     [longestWindow + 1]minute
	fired, late prometheus.Counter
}

// minute has the counts of one minute.
type minute struct {
	number      int64 // since the Unix epoch
	fired, late int
}

// Windows are the times over which burn rates are computed, as multiwindow alerts need them.
var Windows = []time.Duration{5 * time.Minute, 30 * time.Minute, time.Hour, 6 * time.Hour}

const longestWindow = 6 * 60 // minutes

// LatenessWindow is the time over which lateness is reported.
const LatenessWindow = 5 * time.Minute

// Lateness is counted in slots of ten seconds.
const (
	latenessSlots = int(LatenessWindow/latenessStep) + 1
	latenessStep  = 10 * time.Second
)

// slot has the counts of one of many equal times, such as ten seconds.
type slot struct {
	number int64 // of the time since the Unix epoch
	counts [len(bounds) + 1]int
	max    time.Duration
}

// count counts an occurrence that was so late, in the time of a number.
func (s *slot) count(number int64, late time.Duration) {
	if s.number != number {
		*s = slot{number: number}
	}
	bucket, _ := slices.BinarySearch(bounds[:], late)
	s.counts[bucket]++
	s.max = max(s.max, late)
}

// bounds are the upper bounds of the counted lateness.
var bounds = [...]time.Duration{
	time.Millisecond, 2 * time.Millisecond, 3 * time.Millisecond, 5 * time.Millisecond, 7500 * time.Microsecond,
	10 * time.Millisecond, 15 * time.Millisecond, 20 * time.Millisecond, 30 * time.Millisecond, 50 * time.Millisecond,
	75 * time.Millisecond, 100 * time.Millisecond, 150 * time.Millisecond, 250 * time.Millisecond,
	500 * time.Millisecond, time.Second, 2500 * time.Millisecond, 5 * time.Second, 10 * time.Second, 30 * time.Second,
	time.Minute, 5 * time.Minute, 15 * time.Minute, time.Hour, 6 * time.Hour, 24 * time.Hour,
}

// allTenants is the label of objectives for all tenants together. It is not a valid tenant name.
const allTenants = "(all)"

// NewWatch makes a watch, and registers the metrics of its objectives unless the registerer is nil. Now is a clock.
func NewWatch(objectives []Objective, now func() time.Time, registerer prometheus.Registerer) (*Watch, error) {
	w := &Watch{now: now}
	vector := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{"tenant", "objective"})
	}
	fired := vector("carillon_objective_occurrences_total",
		"Occurrences that an objective of --objective is about: fired for the first time, or dropped as too late.")
	late := vector("carillon_objective_late_total",
		"Those of carillon_objective_occurrences_total that were fired later than the objective allows, or dropped.")
	target := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "carillon_objective_target", Help: "The part of the occurrences that is to be fired in time, less than 1.",
	}, []string{"tenant", "objective"})
	for _, o := range objectives {
		tenant := o.Tenant
		if tenant == "" {
			tenant = allTenants
		}
		w.objectives = append(w.objectives, &watched{
			Objective: o, fired: fired.WithLabelValues(tenant, o.String()), late: late.WithLabelValues(tenant, o.String()),
		})
		target.WithLabelValues(tenant, o.String()).Set(o.Target)
	}
	if registerer == nil || len(objectives) == 0 {
		return w, nil
	}
	return w, errors.Join(registerer.Register(fired), registerer.Register(late), registerer.Register(target))
}

// Fired notes the first firing of an occurrence of a job, and its lateness. Jobs of the service itself, such as events,
// count for no objective.
func (w *Watch) Fired(of job.Name, late time.Duration) {
	if w == nil || job.Reserved(of.Key) {
		return
	}
	now := w.now()
	w.lock.Lock()
	defer w.lock.Unlock()
	number := now.UnixMilli() / latenessStep.Milliseconds()
	w.lateness[number%int64(len(w.lateness))].count(number, late)
	w.countHour(now, late)
	for _, o := range w.objectives {
		o.count(of.Tenant, 1, late > o.Within, now)
	}
}

// Missed notes that occurrences of a job were dropped as too late. They count as late for all objectives.
func (w *Watch) Missed(of job.Name, n int) {
	if w == nil || job.Reserved(of.Key) {
		return
	}
	now := w.now()
	w.lock.Lock()
	defer w.lock.Unlock()
	for _, o := range w.objectives {
		o.count(of.Tenant, n, true, now)
	}
}

func (o *watched) count(tenant string, n int, late bool, now time.Time) {
	if o.Tenant != "" && o.Tenant != tenant {
		return
	}
	number := now.Unix() / 60
	m := &o.minutes[number%int64(len(o.minutes))]
	if m.number != number {
		*m = minute{number: number}
	}
	m.fired += n
	o.fired.Add(float64(n))
	if late {
		m.late += n
		o.late.Add(float64(n))
	}
}

// Counts are the counts of one or more replicas.
type Counts struct {
	// Lateness has the number of occurrences up to each bound, and above all: of the last five minutes, or of an hour.
	Lateness []int `json:"lateness"`
	// Max is the largest lateness, in nanoseconds.
	Max        time.Duration `json:"max"`
	Objectives []Met         `json:"objectives,omitempty"`
}

// Met is the degree to which an objective was met.
type Met struct {
	Objective
	// Windows has the counts of each of the [Windows].
	Windows []Window `json:"windows"`
}

// Window has the counts of an objective in the last part of the time.
type Window struct {
	Fired int `json:"fired"`
	Late  int `json:"late"`
}

// Met returns the part that was fired in time; ok is false if there was nothing to fire.
func (w Window) Met() (part float64, ok bool) {
	if w.Fired == 0 {
		return 0, false
	}
	return 1 - float64(w.Late)/float64(w.Fired), true
}

// BurnRate returns how fast the error budget burns: at 1, exactly as many are late as the objective allows.
func (w Window) BurnRate(o Objective) float64 {
	if w.Fired == 0 {
		return 0
	}
	return float64(w.Late) / float64(w.Fired) / (1 - o.Target)
}

// Counts returns the present counts.
func (w *Watch) Counts() Counts {
	c := Counts{Lateness: make([]int, len(bounds)+1)}
	if w == nil {
		return c
	}
	now := w.now()
	w.lock.Lock()
	defer w.lock.Unlock()
	oldest := now.Add(-LatenessWindow).UnixMilli() / latenessStep.Milliseconds()
	for i := range w.lateness {
		s := &w.lateness[i]
		if s.number <= oldest {
			continue
		}
		for bucket, n := range s.counts {
			c.Lateness[bucket] += n
		}
		c.Max = max(c.Max, s.max)
	}
	for _, o := range w.objectives {
		met := Met{Objective: o.Objective, Windows: make([]Window, len(Windows))}
		for i, length := range Windows {
			oldest := now.Add(-length).Unix() / 60
			for _, m := range o.minutes {
				if m.number > oldest {
					met.Windows[i].Fired += m.fired
					met.Windows[i].Late += m.late
				}
			}
		}
		c.Objectives = append(c.Objectives, met)
	}
	return c
}

// Add adds the counts of another replica. Objectives that only one of them has are kept.
func (c *Counts) Add(other Counts) {
	if more := len(other.Lateness) - len(c.Lateness); more > 0 {
		c.Lateness = append(c.Lateness, make([]int, more)...)
	}
	for i := range other.Lateness {
		c.Lateness[i] += other.Lateness[i]
	}
	c.Max = max(c.Max, other.Max)
	for _, met := range other.Objectives {
		i := slices.IndexFunc(c.Objectives, func(m Met) bool { return m.Objective == met.Objective })
		if i < 0 {
			c.Objectives = append(c.Objectives, met)
			continue
		}
		for k := range min(len(c.Objectives[i].Windows), len(met.Windows)) {
			c.Objectives[i].Windows[k].Fired += met.Windows[k].Fired
			c.Objectives[i].Windows[k].Late += met.Windows[k].Late
		}
	}
}

// Fired returns how many occurrences the lateness is of.
func (c *Counts) Fired() (n int) {
	for _, count := range c.Lateness {
		n += count
	}
	return n
}

// Quantile returns the lateness that a part of the occurrences does not exceed, rounded up to a bound, and at most
// the largest one; ok is false if there were none.
func (c *Counts) Quantile(part float64) (late time.Duration, ok bool) {
	all := c.Fired()
	if all == 0 {
		return 0, false
	}
	n := 0
	for i, bound := range bounds[:min(len(bounds), len(c.Lateness))] {
		if n += c.Lateness[i]; float64(n) >= part*float64(all) {
			return min(bound, c.Max), true
		}
	}
	return c.Max, true
}
