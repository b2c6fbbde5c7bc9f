package limits

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Rate is how often something may happen. The zero value is no limit.
type Rate struct {
	// PerSecond is how much a second allows.
	PerSecond float64
	// Burst is how much may come at once, after a pause; at least 1 if PerSecond is not zero.
	Burst int
}

// limited reports whether there is a limit.
func (r Rate) limited() bool { return r.PerSecond > 0 }

// inTime is how long so much takes at a rate.
func inTime(n, perSecond float64) time.Duration {
	return time.Duration(n / perSecond * float64(time.Second))
}

// recent holds a value for each of the names that were seen lately, up to twice a bound. When there are more, those
// that were seen the longest ago are forgotten. The zero value is ready; the caller locks it.
type recent[V any] struct {
	most        int
	young, aged map[string]V
}

// of is the value of a name, made if there is none.
func (r *recent[V]) of(name string, made func() V) V {
	v, ok := r.young[name]
	if ok {
		return v
	}
	if v, ok = r.aged[name]; !ok {
		v = made()
	}
	if len(r.young) >= r.most || r.young == nil {
		r.young, r.aged = make(map[string]V), r.young
	}
	r.young[name] = v
	return v
}

// mostBuckets bounds the buckets of a kind that are kept, twice. A bucket that is forgotten is full when it is made
// again, as it would have been, unless so many others were used within seconds.
const mostBuckets = 10_000

// buckets are token buckets by name. They are safe for concurrent use.
type buckets struct {
	mu   sync.Mutex
	kept recent[*rate.Limiter]
}

func newBuckets() *buckets { return &buckets{kept: recent[*rate.Limiter]{most: mostBuckets}} }

// of is the bucket of a name, with a rate that may be another than it had.
func (b *buckets) of(name string, r Rate, now time.Time) *rate.Limiter {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.kept.of(name, func() *rate.Limiter { return rate.NewLimiter(rate.Limit(r.PerSecond), r.Burst) })
	if l.Limit() != rate.Limit(r.PerSecond) {
		l.SetLimitAt(now, rate.Limit(r.PerSecond))
	}
	if l.Burst() != r.Burst {
		l.SetBurstAt(now, r.Burst)
	}
	return l
}
