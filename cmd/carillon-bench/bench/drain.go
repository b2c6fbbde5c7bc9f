package bench

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Drain measures how many due occurrences are fired in a second. Each belongs to a job of one instant and goes through
// its whole life: claim, callback, and settlement on disk.
type Drain struct {
	// Count is the number of occurrences in each round.
	Count int
	// Replicas is the number of replicas that fire at the same time.
	Replicas int
	// look starts viewers of a replica's web page, and returns a function that stops them. It is nil without viewers.
	look func(ctx context.Context, address string) (stop func() (Browsed, error), err error)
}

// Run implements [Mode].
func (d Drain) Run(ctx context.Context, b *Bench) error {
	raw, err := b.openLimit(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = raw.Close(context.WithoutCancel(ctx)) }()
	var rates, limits, shares, claims, costs []float64
	for round := range b.Rounds {
		w := b.work(round, d.Count)
		w.Target = raw.Target()
		limit, err := raw.Run(ctx, w)
		if err != nil {
			return fmt.Errorf("the bare client: %w", err)
		}
		b.progress("round %d: the bare client %.0f/s", round+1, limit)
		done, err := d.round(ctx, b, w)
		if err != nil {
			return err
		}
		b.progress("round %d: carillon %.0f/s", round+1, done.rate)
		rates, limits = append(rates, done.rate), append(limits, limit)
		shares, claims, costs = append(shares, done.share), append(claims, done.claim), append(costs, done.cost)
	}
	b.figure("drained", "1/s", rates, limits, raw.Goal())
	b.figure("processor time", "µs each", costs, nil, nil)
	b.figure("found by a claim, on average", "", claims, nil, nil)
	if d.Replicas > 1 {
		b.figure("smallest share of a replica", "", shares, nil, nil)
	}
	b.note("raw: %s", raw.About())
	return nil
}

// drainOnce drains one backlog, without measuring the bare client.
func (d Drain) drainOnce(ctx context.Context, b *Bench, round int) (drained, error) {
	w, where, err := b.timedWork(ctx, round, timed{count: d.Count})
	if err != nil {
		return drained{}, err
	}
	done, err := d.round(ctx, b, w)
	return done, errors.Join(err, where.close(ctx))
}

// drained is the result of one drain: occurrences per second; the smallest share of a replica, where 1 is an equal
// share; occurrences per claim, without empty claims; microseconds of processor time per occurrence.
type drained struct {
	rate, share, claim, cost float64
	// browsed is the result of browsing; zero without viewers.
	browsed Browsed
}

// round submits the jobs to a replica that fires nothing, and then starts replicas that fire them all.
func (d Drain) round(ctx context.Context, b *Bench, w *Work) (drained, error) {
	if err := b.fill(ctx, w); err != nil {
		return drained{}, err
	}
	var replicas []*part
	address := ""
	for range d.Replicas {
		r, at, err := b.startReplica(ctx, ReplicaOptions{Sparse: true})
		if err != nil {
			return drained{}, err
		}
		replicas, address = append(replicas, r), at
	}
	end := func() (Browsed, error) { return Browsed{}, nil }
	if d.look != nil {
		var err error
		if end, err = d.look(ctx, address); err != nil {
			return drained{}, err
		}
	}
	all, err := b.awaitAcked(ctx, replicas, w.Count)
	if err != nil {
		return drained{}, err
	}
	var begun, ended int64
	least, claims := w.Count, 0
	var cpu time.Duration
	for _, s := range all {
		claims, cpu = claims+s.Claims, cpu+s.CPU
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
	browsed, err := end()
	for _, r := range replicas {
		err = errors.Join(err, r.stop())
	}
	return drained{
		browsed: browsed,
		rate:    float64(w.Count) / time.Duration(ended-begun).Seconds(),
		share:   float64(least*d.Replicas) / float64(w.Count),
		claim:   float64(w.Count) / float64(max(claims, 1)),
		cost:    float64(cpu.Microseconds()) / float64(w.Count),
	}, errors.Join(err, b.clean(ctx))
}
