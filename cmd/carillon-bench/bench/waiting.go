package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Idle measures the cost of a replica while nothing is due.
type Idle struct {
	// Pending is the number of occurrences that wait meanwhile, far from due.
	Pending  int
	Duration time.Duration
}

// settling is the time that a replica gets to settle down before it is watched.
const settling = 3 * time.Second

// Run implements [Mode].
func (s Idle) Run(ctx context.Context, b *Bench) error {
	w := b.work(0, s.Pending)
	w.Callback = DiscardType
	w.Start, w.Every = time.Now().Add(farAhead), time.Millisecond
	if err := b.fill(ctx, w); err != nil {
		return err
	}
	replica, _, err := b.startReplica(ctx, ReplicaOptions{Sparse: true})
	if err != nil {
		return err
	}
	b.progress("waiting until it has settled down")
	if err := sleep(ctx, settling); err != nil {
		return err
	}
	var cpu, calls, memory []float64
	for range b.Rounds {
		c, err := b.watch(ctx, replica, s.Duration)
		if err != nil {
			return err
		}
		cpu, calls, memory = append(cpu, c.cpu), append(calls, c.calls), append(memory, c.memory)
	}
	b.figure("processor", "% of a core", cpu, nil, atMost(1))
	b.figure("queries of the store", "1/s", calls, nil, atMost(2))
	b.figure("memory", "MiB", memory, nil, nil)
	return replica.stop()
}

// idleCost is the cost of a replica that has nothing to do: in percent of a core, queries of the store per second, and
// MiB.
type idleCost struct{ cpu, calls, memory float64 }

// watch watches a replica do nothing for a while.
func (b *Bench) watch(ctx context.Context, replica *part, d time.Duration) (idleCost, error) {
	var before, after Stats
	start := time.Now()
	if err := replica.call(ctx, "stats", nil, &before); err != nil {
		return idleCost{}, err
	}
	b.progress("watching it do nothing for %s", d)
	if err := sleep(ctx, d); err != nil {
		return idleCost{}, err
	}
	if err := replica.call(ctx, "stats", nil, &after); err != nil {
		return idleCost{}, err
	}
	took := time.Since(start).Seconds()
	return idleCost{
		cpu:    100 * (after.CPU - before.CPU).Seconds() / took,
		calls:  float64(after.Calls-before.Calls) / took,
		memory: float64(after.Memory) / (1 << 20),
	}, nil
}

// Pending measures the cost of a claim and of a put, a replica's memory, and its cost while it is idle. Meanwhile the
// number of waiting occurrences grows.
type Pending struct {
	// Sizes are the numbers of waiting occurrences, in ascending order.
	Sizes []int
	// Instants is the number of instants of each job.
	Instants int
	// Crontab is the crontab of the waiting jobs; empty for jobs with instants.
	Crontab string
	// Rate and Duration describe the occurrences that are fired beside them.
	Rate     float64
	Duration time.Duration
}

// Run implements [Mode].
func (s Pending) Run(ctx context.Context, b *Bench) error {
	waiting := b.work(0, 0)
	waiting.Prefix += "waiting-"
	waiting.Callback, waiting.Crontab, waiting.Instants = DiscardType, s.Crontab, s.Instants
	waiting.Start, waiting.Every = time.Now().Add(farAhead), time.Millisecond
	perJob := max(s.Instants, 1)
	if s.Crontab != "" {
		perJob = 1
	}
	var first map[string][]float64
	for _, size := range s.Sizes {
		waiting.From += waiting.Count
		waiting.Count = size/perJob - waiting.From
		if err := b.fill(ctx, waiting); err != nil {
			return err
		}
		measured := map[string][]float64{}
		for round := range b.Rounds {
			if err := s.round(ctx, b, round, size, measured); err != nil {
				return err
			}
		}
		if first == nil {
			first = measured
		}
		name := fmt.Sprintf("with %d waiting: ", size)
		for _, f := range []struct {
			name, unit string
			goal       *goal
		}{{"claim p50", "ms", nil}, {"claim p99", "ms", ratioAtMost(1.5)}, {"next due p99", "ms", nil},
			{"claims", "each", nil}, {"empty claims", "each", nil}, {"deviation p99", "ms", nil},
			{"put p50", "ms", nil}, {"put p99", "ms", nil}, {"memory", "MiB", ratioAtMost(1.2)},
			{"idle: processor", "% of a core", nil}, {"idle: queries", "1/s", nil}} {
			b.figure(name+f.name, f.unit, measured[f.name], first[f.name], f.goal)
		}
	}
	b.note("raw: the same with %d waiting. A claim is one of the firings at %g/s beside those that wait, for %s. "+
		"Claims, empty or not, are counted for each firing. A put is one of %d requests with a job each, %d at once, "+
		"after that. Then the replica is idle for as long again.",
		s.Sizes[0], s.Rate, s.Duration, puts, putsAtOnce)
	return nil
}

// puts is the number of jobs that a round puts one by one, and putsAtOnce the number of concurrent requests.
const (
	puts       = 2000
	putsAtOnce = 4
)

// round fires a few occurrences beside the waiting ones, and then puts some more jobs that wait.
func (s Pending) round(ctx context.Context, b *Bench, round, size int, measured map[string][]float64) error {
	w := b.work(round, countOf(s.Rate, s.Duration))
	w.Prefix += fmt.Sprintf("beside-%d-", size)
	w.Callback = DiscardType
	w.Every = time.Duration(float64(time.Second) / s.Rate)
	w.Start = time.Now().Add(5*time.Second + time.Duration(w.Count)*400*time.Microsecond).Truncate(time.Second)
	if err := b.fill(ctx, w); err != nil {
		return err
	}
	replica, url, err := b.startReplica(ctx, ReplicaOptions{})
	if err != nil {
		return err
	}
	if err := sleep(ctx, time.Until(w.instant(w.Count))); err != nil {
		return err
	}
	all, err := b.awaitAcked(ctx, []*part{replica}, w.Count)
	if err != nil {
		return err
	}
	var samples Samples
	if err := replica.call(ctx, "samples", nil, &samples); err != nil {
		return err
	}
	put, err := s.put(ctx, b, round, size, url)
	if err != nil {
		return err
	}
	b.progress("waiting until it has settled down")
	if err := sleep(ctx, settling); err != nil {
		return err
	}
	idle, err := b.watch(ctx, replica, s.Duration)
	if err != nil {
		return err
	}
	fired := float64(w.Count)
	at := func(values []int64, share float64) float64 {
		return float64(quantile(slices.Sorted(slices.Values(values)), share)) / 1000
	}
	for name, value := range map[string]float64{
		"claim p50": at(samples.Claims, 0.5), "claim p99": at(samples.Claims, 0.99), "next due p99": at(samples.Peeks, 0.99),
		"deviation p99": at(samples.Deviations, 0.99), "memory": float64(all[0].Peak) / (1 << 20),
		"claims": float64(all[0].Claims+all[0].Empty) / fired, "empty claims": float64(all[0].Empty) / fired,
		"put p50": at(put, 0.5), "put p99": at(put, 0.99),
		"idle: processor": idle.cpu, "idle: queries": idle.calls,
	} {
		measured[name] = append(measured[name], value)
	}
	b.progress("%d waiting, round %d: claim p99 %.2f ms", size, round+1, at(samples.Claims, 0.99))
	return errors.Join(replica.stop())
}

// put puts some jobs that wait, one by one, and returns the latency of each request in microseconds.
func (s Pending) put(ctx context.Context, b *Bench, round, size int, url string) ([]int64, error) {
	w := b.work(round, puts)
	w.Prefix += fmt.Sprintf("put-%d-", size)
	w.Callback = DiscardType
	w.Start, w.Every = time.Now().Add(farAhead), time.Millisecond
	submitter, err := b.startPart(ctx, clientRole, b.security.token, nil)
	if err != nil {
		return nil, err
	}
	var done Submitted
	if err := submitter.call(ctx, "submit", Submission{URL: url, Work: *w, Connections: putsAtOnce}, &done); err != nil {
		return nil, err
	}
	return done.Latencies, submitter.stop()
}

// sleep waits, unless ctx ends first.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
