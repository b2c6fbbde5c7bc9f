// Package limits has the rates and quotas of keys and tenants. Each replica applies rates by itself. Quotas are checked
// by counts of the store, see [Limiter.Admit].
package limits

import (
	"context"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
)

// Limits are the limits of one key or one tenant. A zero field is no limit.
type Limits struct {
	// Requests is the rate of requests.
	Requests Rate
	// BatchBytes is the number of bytes of batches that are read per second.
	BatchBytes int
	// Quota bounds the stored objects of a tenant. Keys have no quota.
	Quota
	// Payload is the maximum size of one job's callback data, in bytes. It applies if it is less than the maximum of all
	// jobs.
	Payload int
}

// Config is the configuration of a Limiter.
type Config struct {
	// Key has the limits of each key, and Tenant those of each tenant without its own.
	Key, Tenant Limits
	// Own has the limits of single tenants; nil means none.
	Own *Own
	// Count counts the objects of tenants; nil if there are no quotas.
	Count Counter
	// Near is called when a tenant has used four fifths of a quota, with the quota's name, the quota, and the number that
	// counts; again and again while that is so. It must not block. It may be nil.
	Near func(tenant, quota string, limit, present int)
	// Registerer registers the metrics; nil means none.
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

// Effective returns all limits of a tenant, with its own ones given by a draft.
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

// Of returns the limits of a tenant.
func (l *Limiter) Of(tenant string) Limits {
	if l == nil {
		return Limits{}
	}
	return l.config.Own.instead(l.config.Tenant, tenant)
}

// Standing is the state of a key's or a tenant's limit of requests.
type Standing struct {
	Name string
	Rate
	// Left is the number of requests that are allowed at once now.
	Left int
	// Reset is the time until the whole burst is allowed; if none is left, the time until one request is allowed.
	Reset time.Duration
	// Exceeded reports that the request exceeds this limit.
	Exceeded bool
}

// Window returns the time from none left to the whole burst.
func (s *Standing) Window() time.Duration { return inTime(float64(s.Burst), s.PerSecond) }

// Take counts one request of a key about a tenant; the tenant is empty for a request about none or several. It returns
// the state of the limits of both. If one is exceeded, the request must be refused, and it does not count for either.
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

// bucket is a bucket from which a token may have been taken.
type bucket struct {
	*rate.Limiter
	one *rate.Reservation
}

// look reads the number of tokens.
func (s *Standing) look(tokens float64) {
	s.Left = max(0, int(math.Floor(tokens)))
	missing := float64(s.Burst) - tokens
	if s.Left == 0 {
		missing = 1 - tokens
	}
	s.Reset = max(0, inTime(missing, s.PerSecond))
}

// Flow limits the bytes per second in a key's batches of a tenant's jobs. A nil Flow has no limit.
type Flow struct {
	limiter     *Limiter
	key, tenant string
}

// Flow returns the limit of a key and a tenant; nil if neither has one now.
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
		// At most the bytes of one second at a time; the rest waits.
		bucket := f.limiter.bytes.of(limit.name, Rate{float64(limit.bytes), limit.bytes}, time.Now())
		for left := n; left > 0; left -= limit.bytes {
			if err := wait(ctx, bucket, min(left, limit.bytes)); err != nil {
				return err
			}
		}
	}
	return nil
}

// wait waits for tokens and takes them.
func wait(ctx context.Context, bucket *rate.Limiter, n int) error {
	now := time.Now()
	r := bucket.ReserveN(now, n)
	if !r.OK() { // its burst has shrunk meanwhile
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
