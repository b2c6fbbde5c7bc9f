package dispatcher

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/carillon-scheduler/carillon/store"
)

// otherTenants is the label of all tenants that have none of their own. No tenant has that name.
const otherTenants = "(other)"

// tenantMetrics are those by tenant. The first that have anything to fire on this replica have a label of their own, so
// that there are never more than so many.
type tenantMetrics struct {
	deviation  *prometheus.SummaryVec
	deliveries *prometheus.CounterVec

	most int
	lock sync.RWMutex
	of   map[string]*oneTenant
}

// oneTenant are those of one tenant, or of all others.
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

// tenant finds the metrics of a tenant.
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

// settled notes how a claim ended that was fired some time after its instant; less than zero says nothing of that.
func (t *tenantMetrics) settled(tenant string, outcome store.Outcome, deviation float64) {
	one := t.tenant(tenant)
	one.outcomes[outcome].Inc()
	if deviation >= 0 {
		one.deviation.Observe(deviation)
	}
}
