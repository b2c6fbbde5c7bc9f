package dispatcher

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/carillon-scheduler/carillon/store"
)

// otherTenants is the label of all tenants without a label of their own. It is not a valid tenant name.
const otherTenants = "(other)"

// tenantMetrics are the metrics by tenant. The first tenants that this replica fires for have a label of their own, so
// the number of labels is bounded.
type tenantMetrics struct {
	deviation  *prometheus.SummaryVec
	deliveries *prometheus.CounterVec

	most int
	lock sync.RWMutex
	of   map[string]*oneTenant
}

// oneTenant are the metrics of one tenant, or of all others.
type oneTenant struct {
	deviation prometheus.Observer
	outcomes  [len(outcomeLabels)]prometheus.Counter // by store.Outcome
}

func newTenantMetrics(most int) *tenantMetrics {
	t := &tenantMetrics{
		deviation: prometheus.NewSummaryVec(prometheus.SummaryOpts{
			Name: "carillon_tenant_deviation_seconds",
			Help: "How long after its instant an occurrence was fired, first attempts only, by tenant: " +
				"their sum and how many they are.",
		}, []string{"tenant"}),
		deliveries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "carillon_tenant_deliveries_total",
			Help: "Claims of occurrences that have ended, by tenant and how. " +
				"The tenants beyond --tenant-labels are one, \"" + otherTenants + "\".",
		}, []string{"tenant", "outcome"}),
		most: most,
		of:   make(map[string]*oneTenant),
	}
	t.of[otherTenants] = t.label(otherTenants)
	return t
}

func (t *tenantMetrics) label(tenant string) *oneTenant {
	one := &oneTenant{deviation: t.deviation.WithLabelValues(tenant)}
	for outcome, name := range outcomeLabels {
		one.outcomes[outcome] = t.deliveries.WithLabelValues(tenant, name)
	}
	return one
}

// tenant finds or makes the metrics of a tenant.
func (t *tenantMetrics) tenant(name string) *oneTenant {
	t.lock.RLock()
	one, full := t.of[name], len(t.of) > t.most
	if one == nil && full {
		one = t.of[otherTenants]
	}
	t.lock.RUnlock()
	if one != nil {
		return one
	}
	t.lock.Lock()
	defer t.lock.Unlock()
	if one := t.of[name]; one != nil {
		return one
	}
	if len(t.of) > t.most {
		return t.of[otherTenants]
	}
	t.of[name] = t.label(name)
	return t.of[name]
}

// settled notes the outcome of a claim and its deviation, unless that is negative.
func (t *tenantMetrics) settled(tenant string, outcome store.Outcome, deviation float64) {
	one := t.tenant(tenant)
	one.outcomes[outcome].Inc()
	if deviation >= 0 {
		one.deviation.Observe(deviation)
	}
}
