package bench

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"
)

// Steady measures the deviations of occurrences that fall due at a steady rate. Each is a job of its own; all are
// submitted beforehand.
type Steady struct {
	// Rate is the number of occurrences that fall due in a second; Duration is the time for which they do.
	Rate     float64
	Duration time.Duration
}

// Run implements [Mode].
func (s Steady) Run(ctx context.Context, b *Bench) error {
	r := timed{every: time.Duration(float64(time.Second) / s.Rate), count: countOf(s.Rate, s.Duration)}
	var l lateness
	for round := range b.Rounds {
		if err := l.round(ctx, b, round, r); err != nil {
			return err
		}
	}
	l.report(b, &bounds{p50: 3, p99: 10})
	return nil
}

// timed is a number of occurrences and the interval between them.
type timed struct {
	every time.Duration
	count int
}

// lateness gathers the deviations of all rounds.
type lateness struct {
	fired, arrived, raw                []spread
	early, lost, doubled, spans, costs []float64
}

// spread is a summary of a round's deviations, in milliseconds.
type spread struct{ p50, p95, p99, p999, most float64 }

func spreadOf(micros []int64) spread {
	sorted := slices.Sorted(slices.Values(micros))
	at := func(share float64) float64 { return float64(quantile(sorted, share)) / 1000 }
	return spread{at(0.5), at(0.95), at(0.99), at(0.999), at(1)}
}

// bounds are the goals of deviations, in milliseconds.
type bounds struct{ p50, p95, p99 float64 }

// round submits the work, waits until all of it has fired, and then fires timers alone at the same intervals.
func (l *lateness) round(ctx context.Context, b *Bench, round int, t timed) error {
	w, where, err := b.timedWork(ctx, round, t)
	if err != nil {
		return err
	}
	if err := b.fillAhead(ctx, w); err != nil {
		return err
	}
	if err := l.fire(ctx, b, w, where.receiver); err != nil {
		return err
	}
	raw, err := bareTimers(ctx, w)
	if err != nil {
		return err
	}
	l.raw = append(l.raw, spreadOf(raw))
	return errors.Join(b.clean(ctx), where.close(ctx))
}

// fillAhead submits timed work, together with other work, and sets its start. All of it must be in the store before the
// first instant, but only shortly before: the system may drop pages that nobody reads for a while from its cache, and
// the bench would then measure the disk.
func (b *Bench) fillAhead(ctx context.Context, w *Work, others ...*Work) error {
	all := append([]*Work{w}, others...)
	count := 0
	for _, w := range all {
		count += w.Count
	}
	for attempt := 1; ; attempt++ {
		wait := time.Duration(attempt*attempt) * (ahead + time.Duration(count)*80*time.Microsecond)
		w.Start = time.Now().Add(wait).Truncate(time.Second)
		if err := b.fill(ctx, all...); err != nil {
			return err
		}
		if time.Until(w.Start) > 2*time.Second {
			return nil
		}
		if attempt == 4 {
			return errors.New("submitting takes too long to have it all in the store in time")
		}
		b.progress("submitting took longer than thought; once more, with later instants")
		if err := b.clean(ctx); err != nil {
			return err
		}
	}
}

// fire starts a replica, waits until it has fired the work, and collects the deviations.
func (l *lateness) fire(ctx context.Context, b *Bench, w *Work, receiver *part) error {
	replica, _, err := b.startReplica(ctx, ReplicaOptions{})
	if err != nil {
		return err
	}
	b.progress("the first of %d falls due in %s", w.Count, time.Until(w.Start).Round(100*time.Millisecond))
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Until(w.instant(w.Count))):
	}
	if _, err := b.awaitAcked(ctx, []*part{replica}, w.Count); err != nil {
		return err
	}
	return l.collect(ctx, b, w, replica, receiver)
}

// collect reads the observations of a replica and of the receiver, and stops the replica.
func (l *lateness) collect(ctx context.Context, b *Bench, w *Work, replica, receiver *part) error {
	var samples Samples
	if err := replica.call(ctx, "samples", nil, &samples); err != nil {
		return err
	}
	early := 0
	for _, d := range samples.Deviations {
		if d < 0 {
			early++
		}
	}
	var stats Stats
	if err := replica.call(ctx, "stats", nil, &stats); err != nil {
		return err
	}
	l.costs = append(l.costs, float64(stats.CPU.Microseconds())/float64(w.Count))
	l.fired = append(l.fired, spreadOf(samples.Deviations))
	l.early = append(l.early, float64(early))
	l.spans = append(l.spans, time.Unix(0, samples.Last).Sub(w.Start).Seconds())
	b.histogram(samples.Deviations)
	distinct, doubled := len(samples.Deviations), 0
	if receiver != nil {
		var got Received
		if err := receiver.call(ctx, "received", nil, &got); err != nil {
			return err
		}
		l.arrived = append(l.arrived, spreadOf(got.Deviations))
		distinct, doubled = got.Deliveries, got.Duplicates
	}
	l.lost = append(l.lost, float64(w.Count-distinct))
	l.doubled = append(l.doubled, float64(doubled))
	b.progress("deviation p50 %.2f ms, p99 %.2f ms", l.fired[len(l.fired)-1].p50, l.fired[len(l.fired)-1].p99)
	return replica.stop()
}

// report adds the figures.
func (l *lateness) report(b *Bench, goals *bounds) {
	add := func(name string, of, raw []spread, goals *bounds) {
		var g bounds
		if goals != nil {
			g = *goals
		}
		for _, q := range []struct {
			name string
			at   func(s spread) float64
			most float64
		}{
			{"p50", func(s spread) float64 { return s.p50 }, g.p50},
			{"p95", func(s spread) float64 { return s.p95 }, g.p95},
			{"p99", func(s spread) float64 { return s.p99 }, g.p99},
			{"p99.9", func(s spread) float64 { return s.p999 }, 0},
			{"max", func(s spread) float64 { return s.most }, 0},
		} {
			var values, limits []float64
			for i := range of {
				values = append(values, q.at(of[i]))
				if raw != nil {
					limits = append(limits, q.at(raw[i]))
				}
			}
			var bound *goal
			if q.most > 0 {
				bound = atMost(q.most)
			}
			b.figure(name+" "+q.name, "ms", values, limits, bound)
		}
	}
	add("deviation", l.fired, l.raw, goals)
	if l.arrived != nil {
		add("arrival", l.arrived, nil, nil)
	}
	b.figure("processor time", "µs each", l.costs, nil, nil)
	b.figure("early", "", l.early, nil, atMost(0))
	b.figure("lost", "", l.lost, nil, atMost(0))
	b.figure("doubled", "", l.doubled, nil, atMost(0))
	b.note("deviation: from the instant to the moment at which the callback is sent; arrival: to the moment at which " +
		"the receiver has its headers.")
	if l.raw != nil {
		b.note("raw: a timer for each instant and a goroutine that it starts, in a process that does nothing else.")
	}
}

// longestBare limits the time for which timers alone are measured.
const longestBare = 10 * time.Second

// bareTimers fires timers alone at the work's intervals, for at most longestBare, and returns their deviations.
func bareTimers(ctx context.Context, w *Work) ([]int64, error) {
	count := w.Count
	if w.Every > 0 {
		count = min(count, int(longestBare/w.Every))
	}
	deviations := make([]int64, count)
	begin := time.Now().Add(100 * time.Millisecond)
	var all sync.WaitGroup
	for i := range count {
		instant := begin.Add(time.Duration(i) * w.Every)
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Until(instant)):
		}
		all.Go(func() { deviations[i] = floorMicros(time.Since(instant)) })
	}
	all.Wait()
	return deviations, nil
}

// destination receives the deliveries of timed work.
type destination struct {
	limit    limit // of RabbitMQ or Kafka; nil for others
	receiver *part // of webhooks; nil for others
}

func (d *destination) close(ctx context.Context) error {
	var err error
	if d.limit != nil {
		err = d.limit.Close(ctx)
	}
	if d.receiver != nil {
		err = errors.Join(err, d.receiver.stop())
	}
	return err
}

// timedWork returns the work of a round and its destination.
func (b *Bench) timedWork(ctx context.Context, round int, t timed) (*Work, *destination, error) {
	w := b.work(round, t.count)
	w.Every = t.every
	d := &destination{}
	var err error
	switch b.Callback {
	case DiscardType:
	case "http":
		d.receiver, err = b.startPart(ctx, receiverRole, ReceiverOptions{Track: true}, &w.Target)
	default:
		if d.limit, err = b.openLimit(ctx); err == nil {
			w.Target = d.limit.Target()
		}
	}
	return w, d, err
}

// histogram adds the histogram of the last round's deviations to the report.
func (b *Bench) histogram(micros []int64) {
	limits := []int64{0, 500, 1000, 2000, 3000, 5000, 10_000, 20_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
		5_000_000}
	h := Histogram{Name: "deviation"}
	sorted := slices.Sorted(slices.Values(micros))
	done := 0
	for _, most := range limits {
		n, _ := slices.BinarySearch(sorted, most)
		h.Buckets = append(h.Buckets, Bucket{Below: float64(most) / 1000, Count: n - done})
		done = n
	}
	h.Beyond = len(sorted) - done
	b.report.Histogram = &h
}

// Burst measures how long many occurrences take that fall due within one second.
type Burst struct {
	Count int
}

// Run implements [Mode].
func (s Burst) Run(ctx context.Context, b *Bench) error {
	var l lateness
	var rates []float64
	for round := range b.Rounds {
		due, err := Drain{Count: s.Count, Replicas: 1}.drainOnce(ctx, b, 1000+round)
		if err != nil {
			return err
		}
		b.progress("round %d: as many that are due already: %.0f/s", round+1, due.rate)
		rates = append(rates, due.rate)
		if err := l.round(ctx, b, round, timed{every: time.Second / time.Duration(s.Count), count: s.Count}); err != nil {
			return err
		}
	}
	var times, ideal []float64
	for i := range rates {
		times = append(times, l.spans[i])
		ideal = append(ideal, max(1, float64(s.Count)/rates[i]))
	}
	b.figure("last fired after", "s", times, ideal, ratioAtMost(1.3))
	l.raw = nil
	l.report(b, nil)
	b.note("raw of the last fired: the time that as many take in the same round if they are all due already, or the " +
		"second itself.")
	return nil
}

// Mixed measures submission and firing at the same time, at the same rate.
type Mixed struct {
	Rate        float64
	Duration    time.Duration
	Connections int
}

// mixedAhead is the time from a job's submission to its instant: long enough for the job to be stored.
const mixedAhead = 5 * time.Second

// Run implements [Mode].
func (s Mixed) Run(ctx context.Context, b *Bench) error {
	var l lateness
	var rates, asked []float64
	for round := range b.Rounds {
		w, where, err := b.timedWork(ctx, round, timed{
			every: time.Duration(float64(time.Second) / s.Rate), count: countOf(s.Rate, s.Duration)})
		if err != nil {
			return err
		}
		replica, url, err := b.startReplica(ctx, ReplicaOptions{})
		if err != nil {
			return err
		}
		submitter, err := b.startPart(ctx, clientRole, b.security.token, nil)
		if err != nil {
			return err
		}
		b.progress("round %d: submitting %.0f/s for %s; each fires %s later", round+1, s.Rate, s.Duration, mixedAhead)
		w.Start = time.Now().Add(mixedAhead).Truncate(time.Millisecond)
		var done Submitted
		if err := submitter.call(ctx, "submit", Submission{URL: url, Work: *w, Connections: s.Connections, Rate: s.Rate},
			&done); err != nil {
			return err
		}
		rates, asked = append(rates, float64(done.Accepted)/done.Took.Seconds()), append(asked, s.Rate)
		if _, err := b.awaitAcked(ctx, []*part{replica}, w.Count); err != nil {
			return err
		}
		if err := l.collect(ctx, b, w, replica, where.receiver); err != nil {
			return err
		}
		if err := errors.Join(submitter.stop(), b.clean(ctx), where.close(ctx)); err != nil {
			return err
		}
	}
	b.figure("submitted", "1/s", rates, asked, ratioOf(0.98))
	l.report(b, &bounds{p95: 50, p99: 250})
	b.note("raw of submitted: the rate that was asked for. Jobs are submitted one by one on %d connections.",
		s.Connections)
	return nil
}
