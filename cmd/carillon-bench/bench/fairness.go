package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/dispatcher"
	"github.com/carillon-scheduler/carillon/job"
)

// Fairness measures competition for a replica's slots: of a tenant with another tenant's backlog, of many tenants with
// backlogs, of priorities, and of a healthy destination with slow and unreachable ones.
type Fairness struct {
	// Only names the parts to measure, out of [FairnessParts].
	Only []string
	// Count is the size of the one tenant's backlog; the other backlogs are proportional to it.
	Count int
	// Tenants is the number of tenants that share.
	Tenants int
	// Spread is the ratio of their largest backlog to the smallest; at least 1.
	Spread float64
	// Rate and Duration describe the occurrences for the healthy destination.
	Rate     float64
	Duration time.Duration
}

// FairnessParts are the parts of a [Fairness], in order.
var FairnessParts = []string{"backlog", "shares", "priorities", "destinations"}

// Run implements [Mode].
func (f Fairness) Run(ctx context.Context, b *Bench) error {
	parts := map[string]func(context.Context, *Bench) error{"backlog": f.backlog, "shares": f.shares,
		"priorities": f.priorities, "destinations": f.destinations}
	for _, name := range FairnessParts {
		if !slices.Contains(f.Only, name) {
			continue
		}
		if err := parts[name](ctx, b); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	b.note("What fairness costs where nobody competes is not seen here: compare drain and steady of two versions.")
	return nil
}

// rival returns work like w for a tenant and a priority; its count occurrences have been due for an hour.
func rival(w *Work, tenant string, priority job.Priority, count int) *Work {
	r := *w
	r.Prefix += tenant + string(priority) + "-"
	r.Tenant, r.Priority, r.Count = tenant, priority, count
	r.Start, r.Every = time.Now().Add(-time.Hour).Truncate(time.Millisecond), 0
	return &r
}

// compete starts a replica, waits until it has fired all works, and returns the firings of each work, in order. During
// may be nil. It is called with the replica and the URL of its API when the replica starts, and may return more works.
func (b *Bench) compete(ctx context.Context, works []*Work,
	during func(replica *part, url string) ([]*Work, error)) ([]Firings, error) {
	if err := b.fill(ctx, works...); err != nil {
		return nil, err
	}
	replica, url, err := b.startReplica(ctx, ReplicaOptions{Sparse: true, Firings: true})
	if err != nil {
		return nil, err
	}
	if during != nil {
		more, err := during(replica, url)
		if err != nil {
			return nil, err
		}
		works = append(slices.Clone(works), more...)
	}
	count := 0
	for _, w := range works {
		count += w.Count
	}
	if _, err := b.awaitAcked(ctx, []*part{replica}, count); err != nil {
		return nil, err
	}
	fired, err := firingsOf(ctx, replica, works)
	return fired, errors.Join(err, replica.stop(), b.clean(ctx))
}

// firingsOf returns a replica's firings of each work, in order.
func firingsOf(ctx context.Context, replica *part, works []*Work) ([]Firings, error) {
	var found map[string]Firings
	if err := replica.call(ctx, "firings", nil, &found); err != nil {
		return nil, err
	}
	all := make([]Firings, len(works))
	for i, w := range works {
		all[i] = found[w.Prefix]
		if len(all[i].At) < w.Count {
			return nil, fmt.Errorf("%d occurrences were fired of %d, of %q", len(all[i].At), w.Count, w.Prefix)
		}
		slices.Sort(all[i].At)
	}
	return all, nil
}

func (f *Firings) first() int64 { return f.At[0] }
func (f *Firings) last() int64  { return f.At[len(f.At)-1] }

// within counts the firings from one time up to another.
func (f *Firings) within(from, to int64) float64 {
	i, _ := slices.BinarySearch(f.At, from)
	j, _ := slices.BinarySearch(f.At, to)
	return float64(j - i)
}

// shares drains the backlogs of many tenants, which differ in size by the factor Spread. It runs once: the worst of all
// windows counts, not the median.
func (f Fairness) shares(ctx context.Context, b *Bench) error {
	w, where, err := b.timedWork(ctx, 0, timed{})
	if err != nil {
		return err
	}
	works := make([]*Work, f.Tenants)
	for i := range works {
		works[i] = rival(w, fmt.Sprintf("bench-%d", i), job.PriorityDefault, f.share(i))
	}
	fired, err := b.compete(ctx, works, nil)
	if err != nil {
		return err
	}
	s := spreadShares(fired)
	b.progress("shares: the least Jain's index is %.3f in %d windows of %s", s.jain, s.windows, s.window)
	b.figure("shares: least Jain's index of a window", "", []float64{s.jain}, nil, atLeast(0.95))
	b.figure("shares: largest deviation of a tenant's share", "% of it", []float64{100 * s.deviation}, nil, atMost(20))
	b.figure("shares: drained", "1/s", []float64{s.rate}, nil, nil)
	b.note("shares: %d tenants of equal weight with backlogs of %d to %d, drained once, in %d windows of %s. In each, "+
		"those count that had something due all the while.",
		f.Tenants, works[0].Count, works[f.Tenants-1].Count, s.windows, s.window)
	return where.close(ctx)
}

// share returns the size of the i-th tenant's backlog in the part "shares".
func (f Fairness) share(i int) int {
	largest := float64(f.Count) / 2
	smallest := max(1, largest/f.Spread)
	return int(math.Round(smallest * math.Pow(largest/smallest, float64(i)/float64(f.Tenants-1))))
}

// sharing measures how equally tenants shared the firings.
type sharing struct {
	jain, deviation float64 // the worst of all windows
	rate            float64 // of all tenants together
	windows         int
	window          time.Duration
}

// spreadShares divides the time into windows, up to the last in which two tenants had something due throughout.
func spreadShares(fired []Firings) (s sharing) {
	slices.SortFunc(fired, func(a, b Firings) int { return int(a.last() - b.last()) })
	begin, count := fired[0].first(), 0
	for _, f := range fired {
		begin, count = min(begin, f.first()), count+len(f.At)
	}
	end := fired[len(fired)-1].last()
	s.rate = float64(count) / (float64(end-begin) / 1e6)
	const least = 10 // windows
	window := max(1, min(5e6, (fired[len(fired)-2].last()-begin)/least))
	s.window = (time.Duration(window) * time.Microsecond).Round(time.Millisecond)
	s.jain = 1
	for from := begin; ; from += window {
		to := from + window
		for len(fired) > 0 && fired[0].last() < to {
			fired = fired[1:]
		}
		if len(fired) < 2 {
			return s
		}
		var sum, squares float64
		for _, f := range fired {
			n := f.within(from, to)
			sum, squares = sum+n, squares+n*n
		}
		s.windows++
		if sum == 0 { // only tenants whose backlog ended in this window were fired
			s.jain, s.deviation = 0, 1
			continue
		}
		n := float64(len(fired))
		s.jain = min(s.jain, sum*sum/(n*squares))
		for _, f := range fired {
			s.deviation = max(s.deviation, math.Abs(f.within(from, to)*n/sum-1))
		}
	}
}

// priorities drains equal backlogs of all priorities of one tenant.
func (f Fairness) priorities(ctx context.Context, b *Bench) error {
	policy := dispatcher.Defaults.Policy
	all := []struct {
		priority job.Priority
		weight   float64
		shares   []float64
	}{{priority: job.PriorityHigh, weight: policy.High}, {priority: job.PriorityNormal, weight: policy.Normal},
		{priority: job.PriorityLow, weight: policy.Low}}
	for round := range b.Rounds {
		w, where, err := b.timedWork(ctx, round, timed{})
		if err != nil {
			return err
		}
		var works []*Work
		for _, p := range all {
			works = append(works, rival(w, "bench", p.priority, max(1, f.Count/4)))
		}
		fired, err := b.compete(ctx, works, nil)
		if err != nil {
			return err
		}
		begin, end := fired[0].first(), fired[0].last()
		for _, f := range fired {
			begin, end = min(begin, f.first()), min(end, f.last())
		}
		sum := 0.0
		for _, f := range fired {
			sum += f.within(begin, end)
		}
		for i := range all {
			all[i].shares = append(all[i].shares, 100*fired[i].within(begin, end)/sum)
		}
		b.progress("round %d: high has %.1f %%, normal %.1f %%, low %.1f %%", round+1, all[0].shares[round],
			all[1].shares[round], all[2].shares[round])
		if err := where.close(ctx); err != nil {
			return err
		}
	}
	for _, p := range all {
		told := make([]float64, b.Rounds)
		for i := range told {
			told[i] = 100 * p.weight / (policy.High + policy.Normal + policy.Low)
		}
		b.figure(fmt.Sprintf("priorities: share of %s", p.priority), "%", p.shares, told, ratioWithin(0.9, 1.1))
	}
	b.note("priorities: of what was fired while each had something due. Raw: what each is to have.")
	return nil
}
