package limits

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Rate is a rate with a burst. The zero value is no limit.
type Rate struct {
	// PerSecond is the average number per second.
	PerSecond float64
	// Burst is the number allowed at once after a pause; at least 1 if PerSecond is not zero.
	Burst int
}

// limited reports whether there is a limit.
func (r Rate) limited() bool { return r.PerSecond > 0 }

// inTime returns the time for an amount at a rate.
func inTime(n, perSecond float64) time.Duration {
	return time.Duration(n / perSecond * float64(time.Second))
}

// recent holds a value for each recently used name, up to twice a bound. When there are more, it forgets the longest
// unused ones. The zero value is ready to use. The caller locks it.
type recent[V any] struct {
	most        int
	young, aged map[string]V
}

// of returns the value of a name; it makes a missing one.
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

// mostBuckets is half of the maximum number of buckets of a kind. A forgotten bucket is full when it is made again. It
// would be full anyway, unless that number of others was used within seconds.
const mostBuckets = 10_000

// buckets are token buckets by name. They are safe for concurrent use.
type buckets struct {
	mu   sync.Mutex
	kept recent[*rate.Limiter]
}

func newBuckets() *buckets { return &buckets{kept: recent[*rate.Limiter]{most: mostBuckets}} }

// of returns the bucket of a name, and sets its rate, which may have changed.
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
