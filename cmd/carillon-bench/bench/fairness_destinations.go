package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"
)

// slowAnswer is the time that the slow destination takes to answer. It is shorter than a callback's timeout.
const slowAnswer = 20 * time.Second

// destinations fires at a steady rate to a destination that answers at once: alone, and beside backlogs for one that is
// slow and one that refuses connections. All occurrences have the same tenant and priority.
func (f Fairness) destinations(ctx context.Context, b *Bench) error {
	var rates, rawRates []float64
	var late, rawLate []spread
	for round := range b.Rounds {
		rate, s, err := f.healthy(ctx, b, round, 0)
		if err != nil {
			return err
		}
		b.progress("round %d: alone %.0f/s, deviation p99 %.2f ms", round+1, rate, s.p99)
		rawRates, rawLate = append(rawRates, rate), append(rawLate, s)
		if rate, s, err = f.healthy(ctx, b, round, max(1, f.Count/40)); err != nil {
			return err
		}
		b.progress("round %d: beside the others %.0f/s, deviation p99 %.2f ms", round+1, rate, s.p99)
		rates, late = append(rates, rate), append(late, s)
	}
	b.figure("destinations: to the healthy one", "1/s", rates, rawRates, ratioOf(0.8))
	for _, q := range []struct {
		name string
		at   func(s spread) float64
		goal *goal
	}{
		{"p50", func(s spread) float64 { return s.p50 }, nil},
		{"p99", func(s spread) float64 { return s.p99 }, atMost(100)},
		{"max", func(s spread) float64 { return s.most }, nil},
	} {
		var values, raw []float64
		for i := range late {
			values, raw = append(values, q.at(late[i])), append(raw, q.at(rawLate[i]))
		}
		b.figure("destinations: its deviation "+q.name, "ms", values, raw, q.goal)
	}
	b.note("destinations: %g/s by http to a receiver that answers at once, for %s, beside %d that are due for one that "+
		"answers after %s and as many for "+
		"one that refuses connections. Raw: without these.", f.Rate, f.Duration, max(1, f.Count/40), slowAnswer)
	return nil
}

// healthy fires to the healthy destination, beside backlogs for others unless backlog is 0. It returns the firings per
// second of the time in which they fell due, and their deviations.
func (f Fairness) healthy(ctx context.Context, b *Bench, round, backlog int) (rate float64, late spread, err error) {
	w := b.work(round, int(f.Rate*f.Duration.Seconds()))
	w.Callback, w.Every = "http", time.Duration(float64(time.Second)/f.Rate)
	receiver, err := b.startPart(ctx, receiverRole, ReceiverOptions{Track: true}, &w.Target)
	if err != nil {
		return 0, late, err
	}
	var others []*Work
	var slow *part
	if backlog > 0 {
		sluggish, down := *w, *w
		sluggish.Prefix, down.Prefix = w.Prefix+"slow-", w.Prefix+"down-"
		sluggish.Count, down.Count = backlog, backlog
		sluggish.Every, down.Every = 0, 0
		if slow, err = b.startPart(ctx, receiverRole, ReceiverOptions{Delay: slowAnswer}, &sluggish.Target); err != nil {
			return 0, late, err
		}
		if down.Target, err = nobody(ctx); err != nil {
			return 0, late, err
		}
		others = []*Work{&sluggish, &down}
	}
	if err := b.fillAhead(ctx, w, others...); err != nil {
		return 0, late, err
	}
	replica, _, err := b.startReplica(ctx, ReplicaOptions{Sparse: true, Firings: true})
	if err != nil {
		return 0, late, err
	}
	b.progress("the first of %d falls due in %s", w.Count, time.Until(w.Start).Round(100*time.Millisecond))
	if err := errors.Join(sleep(ctx, time.Until(w.instant(w.Count))), b.awaitArrived(ctx, receiver, w.Count)); err != nil {
		return 0, late, err
	}
	fired, err := firingsOf(ctx, replica, []*Work{w})
	if err != nil {
		return 0, late, err
	}
	if slow != nil { // first, so that the replica does not wait for its answers
		err = slow.stop()
	}
	rate = fired[0].within(w.Start.UnixMicro(), w.instant(w.Count).UnixMicro()) / f.Duration.Seconds()
	return rate, spreadOf(fired[0].Deviations), errors.Join(err, replica.stop(), receiver.stop(), b.clean(ctx))
}

// nobody returns a URL with a port on which no process listens.
func nobody(ctx context.Context) (string, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return "http://" + l.Addr().String() + "/", l.Close()
}

// awaitArrived waits until a receiver has count deliveries. It fails if none arrives for a minute.
func (b *Bench) awaitArrived(ctx context.Context, receiver *part, count int) error {
	last, since := -1, time.Now()
	for {
		var got Received
		if err := receiver.call(ctx, "received", nil, &got); err != nil {
			return err
		}
		switch {
		case got.Deliveries >= count:
			return nil
		case got.Deliveries > last:
			last, since = got.Deliveries, time.Now()
		case time.Since(since) > time.Minute:
			return fmt.Errorf("%d of %d deliveries have arrived, and none for a minute", got.Deliveries, count)
		}
		if err := sleep(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}
