package dispatcher

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/carillon-scheduler/carillon/store"
)

const (
	// backlogInterval is the shortest interval between two readings of the store's backlog.
	backlogInterval = 15 * time.Second
	// backlogPauseFactor is the ratio of the pause after a reading to its duration. So readings take the store at most a
	// hundredth of its time.
	backlogPauseFactor = 100
	// backlogTimeout bounds one reading. Counting a large backlog may take longer than any other call to a store.
	backlogTimeout = 3 * storeTimeout
	// backlogMisses is the number of failed readings after which the last reading is no longer shown.
	backlogMisses = 3
)

// backlog is the last reading of the store's backlog. It is read at intervals, never on a request. So its cost does not
// depend on the number of requests, and these get an answer during an outage of the store.
type backlog struct {
	shown atomic.Pointer[reading] // nil until the first reading

	reading  sync.Mutex // held during a reading; guards the fields below
	next     time.Time  // no reading before this
	last     time.Time  // the last success, or the first attempt
	failures int        // in a row
}

// reading is a reading of the backlog at a time.
type reading struct {
	store.Count
	oldest   time.Duration // the time since the oldest due occurrence became due
	replicas int
	until    time.Time // it is not shown after this
}

// collectors returns the gauges that show the reading.
func (b *backlog) collectors(now func() time.Time) (all []prometheus.Collector) {
	for _, g := range []struct {
		name, help string
		value      func(r *reading) float64
	}{
		{
			"carillon_due_backlog", "Occurrences in the store that are due and unclaimed.",
			func(r *reading) float64 { return float64(r.Due) },
		},
		{
			"carillon_oldest_due_age_seconds", "How long the longest due occurrence in the store has been due; 0 if none is.",
			func(r *reading) float64 { return r.oldest.Seconds() },
		},
		{
			"carillon_pending", "Occurrences in the store that are to fire, now or later, or are held.",
			func(r *reading) float64 { return float64(r.Pending) },
		},
		{
			"carillon_dead_letters", "Dead letters in the store.",
			func(r *reading) float64 { return float64(r.DeadLetters) },
		},
		{
			"carillon_replicas", "Replicas that say that they run on this store.",
			func(r *reading) float64 { return float64(r.replicas) },
		},
	} {
		all = append(all, newGauge(g.name, g.help+" NaN if the store has not told for long.", func() float64 {
			r := b.shown.Load()
			if r == nil || !now().Before(r.until) {
				return math.NaN() // an old number would look current
			}
			return g.value(r)
		}))
	}
	return all
}

// readBacklog reads the store's backlog, unless there are no metrics or the last reading is recent.
func (d *Dispatcher) readBacklog(ctx context.Context) {
	if d.metrics == nil || !d.metrics.backlog.reading.TryLock() {
		return
	}
	b := &d.metrics.backlog
	defer b.reading.Unlock()
	start := d.now()
	if start.Before(b.next) {
		return
	}
	r, err := d.askBacklog(ctx, start)
	end := d.now()
	pause := backlogPauseFactor * end.Sub(start)
	if err == nil {
		b.failures, b.last = 0, end
		b.next = end.Add(max(pause, backlogInterval/2))              // gocron may run a job twice at one time
		periods := max(1, (pause+backlogInterval-1)/backlogInterval) // until the next reading
		r.until = end.Add(backlogMisses*periods*backlogInterval + storeTimeout)
		b.shown.Store(&r)
		return
	}
	if ctx.Err() != nil {
		return
	}
	if b.last.IsZero() {
		b.last = start
	}
	// After a failure the pause is no longer than the outage so far, so that the metrics recover soon after the store
	// does. A store that can't count in time is not kept busy with it.
	b.next = end.Add(min(pause, end.Sub(b.last)))
	if b.failures++; b.failures == backlogMisses {
		d.log.Warn("the store does not count its backlog, so the metrics don't show it", "failures", b.failures, "error", err)
	}
}

// askBacklog makes one reading.
func (d *Dispatcher) askBacklog(ctx context.Context, now time.Time) (r reading, err error) {
	ctx, cancel := context.WithTimeout(ctx, backlogTimeout)
	defer cancel()
	now = now.Truncate(time.Millisecond)
	if r.Count, err = store.CountAll(ctx, d.cfg.Store, now); err != nil {
		return r, err
	}
	if r.Due > 0 {
		if r.oldest, err = d.oldestUnpaused(ctx, now); err != nil {
			return r, err
		}
	}
	if met := d.met.Load(); met != nil {
		r.replicas = met.all
	}
	return r, nil
}

// oldestUnpaused returns the time since the oldest due occurrence of an unpaused tenant became due. It skips the
// occurrences of paused tenants, the oldest first.
func (d *Dispatcher) oldestUnpaused(ctx context.Context, now time.Time) (time.Duration, error) {
	for p := (store.DueParams{Until: now, Limit: 1}); ; p.Limit = scanPageSize { // one is enough if no tenant is paused
		page, err := d.cfg.Store.DueLanes(ctx, p)
		if err != nil {
			return 0, err
		}
		for _, l := range page.Lanes {
			if !d.treat(l.Lane.Tenant).Paused {
				return now.Sub(l.DueAt), nil
			}
		}
		if p.After = page.Next; p.After == (store.LaneDue{}) {
			return 0, nil
		}
	}
}
