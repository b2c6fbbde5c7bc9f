package job_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

func TestDelayBounds(t *testing.T) {
	const most = 1 - 1.0/(1<<53)
	second, hour := job.Duration(time.Second), job.Duration(time.Hour)
	for name, test := range map[string]struct {
		retry job.Retry
		n     int
		bound time.Duration
	}{
		"default, first":       {job.Retry{}, 1, time.Second},
		"default, fourth":      {job.Retry{}, 4, 8 * time.Second},
		"default, capped":      {job.Retry{}, 13, time.Hour},
		"default, last":        {job.Retry{}, 99, time.Hour},
		"constant":             {job.Retry{Initial: second, Factor: 1}, 1000, time.Second},
		"beyond what fits":     {job.Retry{Factor: 100}, 1000, time.Hour},
		"initial above max":    {job.Retry{Initial: 2 * hour}, 1, 2 * time.Hour},
		"capped at its own":    {job.Retry{Initial: second, Factor: 3, Max: 5 * second}, 3, 5 * time.Second},
		"not capped before it": {job.Retry{Initial: second, Factor: 3, Max: 5 * second}, 2, 3 * time.Second},
	} {
		if got := test.retry.Delay(test.n, 0); got != 0 {
			t.Errorf("%s: at the least %v, want 0", name, got)
		}
		if got := test.retry.Delay(test.n, 0.5); got != test.bound/2 {
			t.Errorf("%s: in the middle %v, want %v", name, got, test.bound/2)
		}
		if got := test.retry.Delay(test.n, most); got > test.bound || got < test.bound-time.Millisecond {
			t.Errorf("%s: at the most %v, want about %v", name, got, test.bound)
		}
	}
}

// TestDefaultRetryOutlastsADay checks the claims of DefaultRetry's comment: the mean by simulation, and the chance of
// less than 24 hours by Chernoff's bound, since no simulation shows one case in ten billion.
func TestDefaultRetryOutlastsADay(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	const runs = 5000
	pauses := job.DefaultRetry.MaxAttempts - 1
	total, least := 0.0, math.Inf(1)
	for range runs {
		spread := 0.0
		for n := 1; n <= pauses; n++ {
			spread += job.DefaultRetry.Delay(n, random.Float64()).Hours()
		}
		total, least = total+spread, min(least, spread)
	}
	if mean := total / runs; math.Abs(mean-44) > 0.5 {
		t.Errorf("the attempts spread over %.1f hours on average, not 44", mean)
	}
	if least < 24 {
		t.Errorf("in one of %d runs the attempts spread over only %.1f hours", runs, least)
	}

	// P(sum ≤ 24) ≤ exp(24s) · Π E[exp(-s·pause)] for every s > 0; a pause is uniform on [0, bound).
	chance := 1.0
	for s := 0.1; s < 20; s += 0.1 {
		log := 24 * s
		for n := 1; n <= pauses; n++ {
			bound := 2 * job.DefaultRetry.Delay(n, 0.5).Hours()
			log += math.Log(-math.Expm1(-s*bound) / (s * bound))
		}
		chance = min(chance, math.Exp(log))
	}
	if chance > 1e-10 {
		t.Errorf("the chance of less than 24 hours is bounded by %g only", chance)
	}
}
