package job

import (
	"math"
	"time"
)

// Retry is a retry policy. A zero field stands for its default, see [DefaultRetry].
type Retry struct {
	// MaxAttempts is the number of all attempts, including the first.
	MaxAttempts int `json:"maxAttempts,omitzero"`
	// Initial bounds the pause after the first failed attempt; each later bound is Factor times the one before, up to
	// Max.
	Initial Duration `json:"initial,omitzero"`
	Factor  float64  `json:"factor,omitzero"`
	Max     Duration `json:"max,omitzero"`
}

// DefaultRetry is the policy of a job without one. With full jitter its attempts spread over 44 hours on average and,
// except for one case in ten billion, over more than 24. So an outage of a day buries nothing.
var DefaultRetry = Retry{
	MaxAttempts: 100,
	Initial:     Duration(time.Second),
	Factor:      2,
	Max:         Duration(time.Hour),
}

// WithDefaults fills the fields that are zero from [DefaultRetry].
func (r Retry) WithDefaults() Retry {
	if r.MaxAttempts == 0 {
		r.MaxAttempts = DefaultRetry.MaxAttempts
	}
	if r.Initial == 0 {
		r.Initial = DefaultRetry.Initial
	}
	if r.Factor == 0 {
		r.Factor = DefaultRetry.Factor
	}
	if r.Max == 0 {
		r.Max = max(DefaultRetry.Max, r.Initial)
	}
	return r
}

// Delay returns the pause after the n-th failed attempt, n from 1: exponential backoff with full jitter
// (https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/). Random is uniform in [0, 1).
func (r Retry) Delay(n int, random float64) time.Duration {
	r = r.WithDefaults()
	bound := float64(r.Initial) * math.Pow(r.Factor, float64(n-1))
	if !(bound < float64(r.Max)) { // also when Pow overflowed
		bound = float64(r.Max)
	}
	return time.Duration(bound * random)
}
