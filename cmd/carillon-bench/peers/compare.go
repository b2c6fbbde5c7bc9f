package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"
)

// errNotEmpty reports that something exists already that a run would create.
var errNotEmpty = errors.New("it is there already; say --force to delete it, if it is an earlier run's")

// comparison is a run of all modes and subjects.
type comparison struct {
	options
	started time.Time
	out     io.Writer // of progress
}

// compare measures each mode in rounds. All subjects take turns within a round, so that other load on the machine
// affects all of them. It returns the complete and the partial reports, in the order of modes and subjects.
func compare(ctx context.Context, o options, progress io.Writer) ([]Report, error) {
	c := &comparison{options: o, started: time.Now(), out: progress}
	var reports []Report
	for _, mode := range o.modes {
		first := len(reports)
		for round := range o.rounds {
			n := first
			for _, subject := range o.subjects {
				for _, settings := range settingsFor(mode, subject) {
					c.progress("%s, round %d: %s, %s", mode, round+1, subject, settings)
					r, err := c.measure(ctx, mode, subject, settings)
					if err != nil {
						return reports, fmt.Errorf("%s, %s, %s: %w", mode, subject, settings, err)
					}
					if round == 0 {
						reports = append(reports, r)
					} else if err := reports[n].join(r); err != nil {
						return reports, err
					}
					n++
					c.progress("%s, round %d: %s, %s: %s %s", mode, round+1, subject, settings, number(r.Figures[0].Median),
						r.Figures[0].Unit)
				}
			}
		}
	}
	return reports, nil
}

// settingsFor returns the names of the settings to measure a subject with. Carillon has the same settings in all modes.
func settingsFor(mode, subject string) []string {
	switch {
	case strings.HasPrefix(subject, "carillon"):
		return []string{byDefault}
	case mode == "drain":
		return []string{throughput}
	default:
		return []string{byDefault, tuned}
	}
}

// measure measures one round.
func (c *comparison) measure(ctx context.Context, mode, subject, settings string) (r Report, err error) {
	if store, is := strings.CutPrefix(subject, "carillon-"); is {
		return c.carillonRound(ctx, mode, store)
	}
	begun := time.Now()
	r = newReport(mode)
	r.Subject, r.Settings = subject, settings
	p, err := newPeer(ctx, &c.options, subject, settings)
	if err != nil {
		return r, err
	}
	prepared := false
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Minute) // also after an interruption
		defer cancel()
		err = errors.Join(err, p.stop(ctx))
		if prepared { // otherwise the server's data is not ours
			err = errors.Join(err, p.remove(ctx))
		}
		r.Seconds = time.Since(begun).Seconds()
	}()
	if err := p.prepare(ctx, c.force); err != nil {
		return r, err
	}
	prepared = true
	a, err := p.about(ctx)
	if err != nil {
		return r, err
	}
	r.Version, r.Store, r.Server, r.How = a.version, a.store, a.server, a.how
	switch mode {
	case "drain":
		err = c.drain(ctx, p, &r)
	case "steady":
		err = c.steady(ctx, p, &r)
	default:
		err = c.idleRound(ctx, p, &r)
	}
	return r, err
}

// drain measures how many jobs are done in a second. All are due when the worker starts.
func (c *comparison) drain(ctx context.Context, p peer, r *Report) error {
	w := &work{count: c.count, payload: c.payload, start: time.Now().Add(-time.Second).Truncate(time.Millisecond)}
	if err := p.insert(ctx, w); err != nil {
		return err
	}
	c.progress("inserted %d", w.count)
	debug.FreeOSMemory() // the memory that inserting took
	start := time.Now()
	if err := p.start(ctx, func([]byte) {}); err != nil {
		return err
	}
	done, err := c.await(ctx, p, w.count, start.Add(c.limit))
	if err != nil {
		return err
	}
	r.add("drained", "1/s", float64(done)/time.Since(start).Seconds())
	if done < w.count {
		r.Notes = append(r.Notes, fmt.Sprintf("%d of %d jobs were done within %s.", done, w.count, c.limit))
	}
	return nil
}

// steady measures the deviations of jobs that fall due at a steady rate.
func (c *comparison) steady(ctx context.Context, p peer, r *Report) error {
	w := &work{count: int(c.rate * c.duration.Seconds()), payload: c.payload,
		every: time.Duration(float64(time.Second) / c.rate)}
	// Inserting takes a while, and all jobs must be on the server before the first instant.
	for attempt := 1; ; attempt++ {
		ahead := time.Duration(attempt*attempt) * (c.lead + time.Duration(w.count)*400*time.Microsecond)
		w.start = time.Now().Add(ahead).Truncate(time.Second)
		if err := p.insert(ctx, w); err != nil {
			return err
		}
		if time.Until(w.start) > 2*c.lead/5 {
			break
		}
		if attempt == 4 {
			return errors.New("inserting takes too long to have it all in the store in time")
		}
		c.progress("inserting took longer than thought; once more, with later instants")
		if err := p.prepare(ctx, true); err != nil {
			return err
		}
	}
	seen := newObserver(w)
	if err := p.start(ctx, seen.handle); err != nil {
		return err
	}
	if err := sleep(ctx, time.Until(w.instant(w.count))); err != nil {
		return err
	}
	if _, err := c.await(ctx, p, w.count, time.Time{}); err != nil {
		return err
	}
	if err := p.stop(ctx); err != nil {
		return err
	}
	deviations, lost, doubled := seen.seen()
	slices.Sort(deviations)
	early, _ := slices.BinarySearch(deviations, 0)
	for _, q := range []struct {
		name  string
		share float64
	}{{"p50", 0.5}, {"p95", 0.95}, {"p99", 0.99}, {"p99.9", 0.999}, {"max", 1}} {
		r.add("deviation "+q.name, "ms", float64(quantile(deviations, q.share))/1000)
	}
	r.add("early", "", float64(early))
	r.add("lost", "", float64(lost))
	r.add("doubled", "", float64(doubled))
	// The figures above begin at the median, and do not show how early a job may be.
	r.add("earliest", "ms", float64(quantile(deviations, 0))/1000)
	return nil
}

// idleRound measures the cost of a worker while all jobs wait.
func (c *comparison) idleRound(ctx context.Context, p peer, r *Report) error {
	w := &work{count: c.waiting, payload: c.payload, start: time.Now().Add(24 * time.Hour), every: time.Millisecond}
	if err := p.insert(ctx, w); err != nil {
		return err
	}
	debug.FreeOSMemory()
	if err := p.start(ctx, func([]byte) {}); err != nil {
		return err
	}
	if err := sleep(ctx, c.settle); err != nil {
		return err
	}
	start, cpu, queries := time.Now(), processorTime(), p.queries()
	if err := sleep(ctx, c.idle); err != nil {
		return err
	}
	took := time.Since(start).Seconds()
	r.add("processor", "% of a core", 100*(processorTime()-cpu).Seconds()/took)
	r.add("queries of the store", "1/s", float64(p.queries()-queries)/took)
	return nil
}

// await waits until count jobs are settled, or until a time, unless that is zero, and returns the number of settled
// jobs. It fails if there is no progress for a minute.
func (c *comparison) await(ctx context.Context, p peer, count int, until time.Time) (int, error) {
	last, since, told := -1, time.Now(), time.Now()
	for {
		n, err := p.settled(ctx)
		if err != nil {
			return n, err
		}
		now := time.Now()
		switch {
		case n >= count, !until.IsZero() && now.After(until):
			return n, nil
		case n > last:
			last, since = n, now
		case now.Sub(since) > time.Minute:
			return n, fmt.Errorf("%d of %d jobs are done, and there was no progress for a minute", n, count)
		}
		if now.Sub(told) > 5*time.Second {
			c.progress("done %d of %d", n, count)
			told = now
		}
		if err := sleep(ctx, 2*time.Millisecond); err != nil {
			return n, err
		}
	}
}

// progress reports a step.
func (c *comparison) progress(format string, args ...any) {
	fmt.Fprintf(c.out, "%6.1fs  %s\n", time.Since(c.started).Seconds(), fmt.Sprintf(format, args...))
}

// processorTime returns this process's use of all cores so far.
func processorTime() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
