// Package limits bounds what keys and tenants may ask for: how often, how much at once, and how much they may have
// stored. Rates are judged by each replica for itself; what is stored is counted in the store, see [Limiter.Admit].
package limits

import (
	"context"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
)

// Limits are those of one key, or of one tenant. Each field is no limit if it is zero.
type Limits struct {
	// Requests is how many requests are answered.
	Requests Rate
	// BatchBytes is how many bytes of batches are read in a second.
	BatchBytes int
	// Quota is how much may be stored. A key has none of its own.
	Quota
	// Payload is how many bytes the callback data of one job may have, if that is less than all jobs may.
	Payload int
}

// Config says what is bounded.
type Config struct {
	// Key bounds each key, and Tenant each tenant that has no limits of its own.
	Key, Tenant Limits
	// Own are the limits that tenants have of their own; nil has none.
	Own *Own
	// Count counts what tenants have; nil if there are no quotas.
	Count Counter
	// Registerer registers the metrics; nil has none.
	Registerer prometheus.Registerer
}

// Limiter applies limits. It is safe for concurrent use. A nil Limiter allows everything.
type Limiter struct {
	config   Config
	requests *buckets
	bytes    *buckets
	quotas   *quotas
	refused  *prometheus.CounterVec
	background
}

// New makes a limiter. It panics if the registerer has its metrics already.
func New(config Config) *Limiter {
	l := &Limiter{
		config: config, requests: newBuckets(), bytes: newBuckets(), quotas: newQuotas(config.Count),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "carillon_limited_total",
			Help: "Requests and submissions that were refused because a limit was reached, by the limit.",
		}, []string{"limit"}),
	}
	l.begin()
	for _, limit := range []string{KeyRequests, TenantRequests, TenantJobs, TenantPending} {
		l.refused.WithLabelValues(limit)
	}
	if config.Registerer != nil {
		config.Registerer.MustRegister(l.refused)
	}
	return l
}

// Effective are all limits of a tenant that has these of its own.
func (l *Limiter) Effective(own Draft) Draft {
	all := Limits{}
	if l != nil {
		all = l.config.Tenant
	}
	all = own.instead(all)
	return Draft{
		&all.Requests.PerSecond, &all.Requests.Burst, &all.BatchBytes, &all.Jobs, &all.Pending, &all.Payload,
	}
}

// The names of limits, as clients see them.
const (
	KeyRequests    = "key-requests"
	TenantRequests = "tenant-requests"
	TenantJobs     = "tenant-jobs"
	TenantPending  = "tenant-pending"
)

// Of are the limits of a tenant.
func (l *Limiter) Of(tenant string) Limits {
	if l == nil {
		return Limits{}
	}
	return l.config.Own.instead(l.config.Tenant, tenant)
}

// Standing is where a key or a tenant stands with its limit of requests.
type Standing struct {
	Name string
	Rate
	// Left is how many requests are allowed at once now.
	Left int
	// Reset is how long it takes until there are as many as can be, or, if there are none, until there is one.
	Reset time.Duration
	// Exceeded tells that it is this limit that the request exceeds.
	Exceeded bool
}

// Window is how long it takes from none left to as many as can be.
func (s *Standing) Window() time.Duration { return inTime(float64(s.Burst), s.PerSecond) }

// Take takes one request of a key, about a tenant, which is empty if it is about none or many. It returns where the two
// stand with the limits that they have. If one is exceeded, the request must be refused, and counts nowhere.
func (l *Limiter) Take(key, tenant string, now time.Time) []Standing {
	if l == nil {
		return nil
	}
	own := Limits{}
	if tenant != "" {
		own = l.Of(tenant)
	}
	if !l.config.Key.Requests.limited() && !own.Requests.limited() {
		return nil
	}
	standings, taken := make([]Standing, 0, 2), make([]bucket, 0, 2)
	for _, limit := range []struct {
		name, of string
		Rate
	}{{KeyRequests, key, l.config.Key.Requests}, {TenantRequests, tenant, own.Requests}} {
		if limit.limited() {
			standings = append(standings, Standing{Name: limit.name, Rate: limit.Rate})
			taken = append(taken, bucket{l.requests.of(limit.name+" "+limit.of, limit.Rate, now), nil})
		}
	}
	for i := range taken {
		taken[i].one = taken[i].ReserveN(now, 1)
		if taken[i].one.DelayFrom(now) > 0 {
			for _, t := range taken[:i+1] {
				t.one.CancelAt(now)
			}
			standings[i].Exceeded = true
			l.refused.WithLabelValues(standings[i].Name).Inc()
			break
		}
	}
	for i := range standings {
		standings[i].look(taken[i].TokensAt(now))
	}
	return standings
}

// bucket is one of which a token may have been taken.
type bucket struct {
	*rate.Limiter
	one *rate.Reservation
}

// look reads how many tokens there are.
func (s *Standing) look(tokens float64) {
	s.Left = max(0, int(math.Floor(tokens)))
	missing := float64(s.Burst) - tokens
	if s.Left == 0 {
		missing = 1 - tokens
	}
	s.Reset = max(0, inTime(missing, s.PerSecond))
}

// Flow is the limit of the bytes that a key sends in batches of a tenant's jobs. A nil Flow has none.
type Flow struct {
	limiter     *Limiter
	key, tenant string
}

// Flow is that of a key and a tenant; nil if neither has a limit now.
func (l *Limiter) Flow(key, tenant string) *Flow {
	if l == nil || l.config.Key.BatchBytes == 0 && l.Of(tenant).BatchBytes == 0 {
		return nil
	}
	return &Flow{l, key, tenant}
}

// Wait waits until n bytes more may be read, or until ctx ends, with its error.
func (f *Flow) Wait(ctx context.Context, n int) error {
	if f == nil {
		return nil
	}
	for _, limit := range []struct {
		name  string
		bytes int
	}{{"key " + f.key, f.limiter.config.Key.BatchBytes}, {"tenant " + f.tenant, f.limiter.Of(f.tenant).BatchBytes}} {
		if limit.bytes == 0 {
			continue
		}
		// A second's worth at once: what is more waits for it.
		bucket := f.limiter.bytes.of(limit.name, Rate{float64(limit.bytes), limit.bytes}, time.Now())
		for left := n; left > 0; left -= limit.bytes {
			if err := wait(ctx, bucket, min(left, limit.bytes)); err != nil {
				return err
			}
		}
	}
	return nil
}

// wait takes tokens, once they are there.
func wait(ctx context.Context, bucket *rate.Limiter, n int) error {
	now := time.Now()
	r := bucket.ReserveN(now, n)
	if !r.OK() { // its burst was made smaller meanwhile
		return nil
	}
	delay := r.DelayFrom(now)
	if delay == 0 {
		return nil
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		r.Cancel()
		return ctx.Err()
	}
}
