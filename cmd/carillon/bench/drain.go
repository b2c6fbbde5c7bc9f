package bench

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Drain measures how many due occurrences are fired in a second: jobs of one instant each, through their whole life, from
// the claim over the callback to the settlement on disk.
type Drain struct {
	// Count is how many there are in each round.
	Count int
	// Replicas fire at the same time.
	Replicas int
}

// Run is a [Mode].
func (d Drain) Run(ctx context.Context, b *Bench) error {
	raw, err := b.openLimit(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = raw.Close(context.WithoutCancel(ctx)) }()
	var rates, limits, shares, costs []float64
	for round := range b.Rounds {
		w := b.work(round, d.Count)
		w.Target = raw.Target()
		limit, err := raw.Run(ctx, w)
		if err != nil {
			return fmt.Errorf("the bare client: %w", err)
		}
		b.progress("round %d: the bare client %.0f/s", round+1, limit)
		rate, share, cost, err := d.round(ctx, b, w)
		if err != nil {
			return err
		}
		b.progress("round %d: carillon %.0f/s", round+1, rate)
		rates, limits, shares, costs = append(rates, rate), append(limits, limit), append(shares, share), append(costs, cost)
	}
	b.figure("drained", "1/s", rates, limits, raw.Goal())
	b.figure("processor time", "µs each", costs, nil, nil)
	if d.Replicas > 1 {
		b.figure("smallest share of a replica", "", shares, nil, nil)
	}
	b.note("raw: %s", raw.About())
	return nil
}

// drainOnce drains without a bare client beside it.
func (d Drain) drainOnce(ctx context.Context, b *Bench, round int) (rate, share float64, err error) {
	w, where, err := b.timedWork(ctx, round, timed{count: d.Count})
	if err != nil {
		return 0, 0, err
	}
	rate, share, _, err = d.round(ctx, b, w)
	return rate, share, errors.Join(err, where.close(ctx))
}

// round submits the jobs to a replica that fires nothing, has others fire them all, and answers how many they fired in a
// second, the smallest share of one, where 1 is an equal one, and the microseconds of processor time for each occurrence.
func (d Drain) round(ctx context.Context, b *Bench, w *Work) (rate, share, cost float64, err error) {
	if err := b.fill(ctx, w); err != nil {
		return 0, 0, 0, err
	}
	var replicas []*part
	for range d.Replicas {
		r, _, err := b.startReplica(ctx, ReplicaOptions{Sparse: true})
		if err != nil {
			return 0, 0, 0, err
		}
		replicas = append(replicas, r)
	}
	all, err := b.awaitAcked(ctx, replicas, w.Count)
	if err != nil {
		return 0, 0, 0, err
	}
	var begun, ended int64
	least := w.Count
	for _, s := range all {
		cost += float64(s.CPU.Microseconds()) / float64(w.Count)
		if s.Acked == 0 {
			least = 0
			continue
		}
		if begun == 0 || s.Begun < begun {
			begun = s.Begun
		}
		ended = max(ended, s.Ended)
		least = min(least, s.Acked)
	}
	for _, r := range replicas {
		err = errors.Join(err, r.stop())
	}
	return float64(w.Count) / time.Duration(ended-begun).Seconds(), float64(least*d.Replicas) / float64(w.Count), cost,
		errors.Join(err, b.clean(ctx))
}
