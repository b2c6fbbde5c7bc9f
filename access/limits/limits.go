// Package limits has the rates and quotas of keys and tenants. Each replica applies rates by itself. Quotas are checked
// by counts of the store, see [Limiter.Admit].
package limits

import (
	"context"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/carillon-scheduler/carillon/history"
)

// Limits are the limits of one key or one tenant. A zero field is no limit.
type Limits struct {
	// Requests is the rate of requests.
	Requests Rate
	// BatchBytes is the number of bytes of batches that are read per second.
	BatchBytes int
	// Quota bounds the stored objects of a tenant, or those in the scope of a key.
	Quota
	// Payload is the maximum size of one job's callback data, in bytes. It applies if it is less than the maximum of all
	// jobs.
	Payload int
}

// within reports whether no limit is higher than another one, or missing where the other one is not.
func (l Limits) within(other Limits) bool {
	narrower := func(n, most float64) bool { return most == 0 || 0 < n && n <= most }
	return narrower(l.Requests.PerSecond, other.Requests.PerSecond) &&
		narrower(float64(l.Requests.Burst), float64(other.Requests.Burst)) &&
		narrower(float64(l.BatchBytes), float64(other.BatchBytes)) &&
		narrower(float64(l.Jobs), float64(other.Jobs)) && narrower(float64(l.Pending), float64(other.Pending)) &&
		narrower(float64(l.Payload), float64(other.Payload))
}

// Key is the key of a request.
type Key struct {
	// ID names the key.
	ID string
	// Prefix is the required beginning of its jobs' keys.
	Prefix string
	// Own has the limits of its own. Missing ones are those of every key.
	Own Draft
}

// Config is the configuration of a Limiter.
type Config struct {
	// Key has the limits of each key, and Tenant those of each tenant, that have none of their own.
	Key, Tenant Limits
	// History is the retention policy of tenants that have none of their own. If it keeps none, no tenant has a history.
	History history.Policy
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
	for _, limit := range []string{KeyRequests, TenantRequests, KeyJobs, KeyPending, TenantJobs, TenantPending} {
		l.refused.WithLabelValues(limit)
	}
	if config.Registerer != nil {
		config.Registerer.MustRegister(l.refused)
	}
	return l
}

// Effective returns all limits of a tenant, with its own ones given by a draft.
func (l *Limiter) Effective(own TenantDraft) TenantDraft {
	all, kept := Limits{}, history.Policy{}
	if l != nil {
		all, kept = l.config.Tenant, l.config.History
	}
	all, kept = own.instead(all), own.history(kept)
	return TenantDraft{Draft{
		&all.Requests.PerSecond, &all.Requests.Burst, &all.BatchBytes, &all.Jobs, &all.Pending, &all.Payload,
	}, &kept}
}

// The names of limits, as clients see them.
const (
	KeyRequests    = "key-requests"
	TenantRequests = "tenant-requests"
	KeyJobs        = "key-jobs"
	KeyPending     = "key-pending"
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

// OfKey returns the limits of a key that has some of its own.
func (l *Limiter) OfKey(own Draft) Limits {
	if l == nil {
		return Limits{}
	}
	return own.instead(l.config.Key)
}

// Within reports whether a key with limits of its own may do no more than another one.
func (l *Limiter) Within(own, other Draft) bool { return l.OfKey(own).within(l.OfKey(other)) }

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
func (l *Limiter) Take(by Key, tenant string, now time.Time) []Standing {
	if l == nil {
		return nil
	}
	ofKey, ofTenant := l.OfKey(by.Own).Requests, Rate{}
	if tenant != "" {
		ofTenant = l.Of(tenant).Requests
	}
	if !ofKey.limited() && !ofTenant.limited() {
		return nil
	}
	standings, taken := make([]Standing, 0, 2), make([]bucket, 0, 2)
	for _, limit := range []struct {
		name, of string
		Rate
	}{{KeyRequests, by.ID, ofKey}, {TenantRequests, tenant, ofTenant}} {
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
	limiter *Limiter
	by      Key
	tenant  string
}

// Flow returns the limit of a key and a tenant; nil if neither has one now.
func (l *Limiter) Flow(by Key, tenant string) *Flow {
	if l == nil || l.OfKey(by.Own).BatchBytes == 0 && l.Of(tenant).BatchBytes == 0 {
		return nil
	}
	return &Flow{l, by, tenant}
}

// Wait waits until n bytes more may be read, or until ctx ends, with its error.
func (f *Flow) Wait(ctx context.Context, n int) error {
	if f == nil {
		return nil
	}
	for _, limit := range []struct {
		name  string
		bytes int
	}{
		{"key " + f.by.ID, f.limiter.OfKey(f.by.Own).BatchBytes},
		{"tenant " + f.tenant, f.limiter.Of(f.tenant).BatchBytes},
	} {
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
