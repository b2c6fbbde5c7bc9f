package dispatcher

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon/history"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// gatherTime is the longest time that an outcome waits for others to be written with it, unless slots become scarce. A
// write costs about as much for one outcome as for many.
const gatherTime = 5 * time.Millisecond

// settleLoop writes outcomes until allFired is closed. The outcomes that arrive while a batch is written, and for a
// moment after that, make the next batch. Slots are freed only here, so the unwritten outcomes are bounded. It returns
// the number of outcomes that could not be written before ctx ended. Senders that have not returned by the end are
// abandoned; the channel fired has room for their outcomes.
func (d *Dispatcher) settleLoop(ctx context.Context, allFired <-chan struct{}) (lost int) {
	for {
		batch := d.gather(allFired)
		if batch.len() == 0 {
			return lost
		}
		lost += d.settle(ctx, batch.settlements)
		if len(batch.entries) > 0 {
			d.cfg.History.Record(batch.entries...)
		}
	}
}

// ended is the end of a claim: its outcome, and its entry of history.
type ended struct {
	store.Settlement
	entry *history.Entry // nil if there is none, or no history
}

// gathered are outcomes that are written together.
type gathered struct {
	settlements []store.Settlement
	entries     []*history.Entry
}

func (g *gathered) len() int { return len(g.settlements) }

func (g *gathered) add(e ended) {
	g.settlements = append(g.settlements, e.Settlement)
	if e.entry != nil {
		g.entries = append(g.entries, e.entry)
	}
}

// gather waits for an outcome, and then for further ones, until gatherTime is over. It ends earlier if an eighth of all
// slots wait for their outcomes to be written, since free slots may soon be lacking. While the dispatcher stops, it
// does not wait for more. It returns none if allFired is closed and none waits.
func (d *Dispatcher) gather(allFired <-chan struct{}) (batch gathered) {
	var over <-chan time.Time
	for enough, yielded := false, false; ; {
		for len(d.fired) > 0 { // there is no other reader
			batch.add(<-d.fired)
			if batch.len() == largestBatch {
				return batch
			}
		}
		if !yielded && batch.len() > 0 {
			yielded = true
			runtime.Gosched() // lets firings that are about to end come along
			continue
		}
		enough = enough || batch.len() > 0 && d.stopping.Load()
		if enough || batch.len() >= max(1, d.cfg.Concurrency/8) {
			return batch
		}
		if over == nil && batch.len() > 0 {
			over = time.After(gatherTime)
		}
		select {
		case e := <-d.fired:
			batch.add(e)
		case <-over:
			enough = true
		case <-allFired:
			enough = true
		}
	}
}

// settle writes outcomes, and frees their slots.
func (d *Dispatcher) settle(ctx context.Context, batch []store.Settlement) (lost int) {
	lost = d.settleBatch(ctx, batch)
	now := d.now()
	resumed := d.unsettled.Swap(nil) != nil
	var slots freed
	finished := 0
	for i := range batch {
		s := &batch[i]
		if s.Outcome != store.Retry && s.Outcome != store.Release {
			finished++
		}
		slots.add(s.Name.Tenant)
		if resumed { // claiming has waited for this
			d.Wake(job.Lane{Tenant: s.Name.Tenant, Priority: s.Priority}, now)
		}
		d.Wake(job.Lane{Tenant: s.Name.Tenant, Priority: s.Priority}, s.DueAt) // zero unless it is due again
	}
	d.metrics.freed(len(batch))
	d.finished.add(max(0, finished-lost), now)
	d.freed <- slots
	return lost
}

// throughput counts the occurrences finished in each of the last seconds.
type throughput struct {
	begun   time.Time // seconds are counted from here, by the monotonic clock
	lock    sync.Mutex
	seconds [16]struct{ second, n int }
}

func (t *throughput) add(n int, now time.Time) {
	t.lock.Lock()
	defer t.lock.Unlock()
	second := t.second(now)
	s := &t.seconds[second%len(t.seconds)]
	if s.second != second {
		s.second, s.n = second, 0
	}
	s.n += n
}

func (t *throughput) second(now time.Time) int { return int(now.Sub(t.begun) / time.Second) }

// rate returns the mean per second over the last ten seconds, counted from the first of them that had any.
func (t *throughput) rate(now time.Time) float64 {
	t.lock.Lock()
	defer t.lock.Unlock()
	const last = 10
	second, n := t.second(now), 0
	first := second
	for _, s := range t.seconds {
		if age := second - s.second; s.n > 0 && 0 < age && age <= last { // without the present second, which is not over
			first, n = min(first, s.second), n+s.n
		}
	}
	if n == 0 {
		return 0
	}
	return float64(n) / float64(second-first)
}

// freed are the freed slots, by tenant.
type freed []struct {
	tenant string
	n      int
}

func (f *freed) add(tenant string) {
	for i := range *f {
		if of := &(*f)[i]; of.tenant == tenant {
			of.n++
			return
		}
	}
	*f = append(*f, struct {
		tenant string
		n      int
	}{tenant, 1})
}

// settleBatch writes a batch. It tries again while the store is unavailable, even after the leases have ended: a
// settlement still holds if no replica has claimed the occurrence again, and then prevents a second delivery. It
// returns the number of settlements that were given up because ctx ended.
func (d *Dispatcher) settleBatch(ctx context.Context, batch []store.Settlement) (lost int) {
	for failures := 0; ; failures++ {
		// Longer after each failure: outcomes may be large, and none may stay unwritten for ever.
		call, cancel := context.WithTimeout(ctx, storeTimeout*time.Duration(min(1+failures, 12)))
		err := d.cfg.Store.Settle(call, batch)
		cancel()
		switch {
		case err == nil:
			return 0
		case !errors.Is(err, store.ErrUnavailable) && len(batch) > 1: // one may be the cause of the others' failure
			for i := range batch {
				lost += d.settleBatch(ctx, batch[i:i+1])
			}
			return lost
		case !errors.Is(err, store.ErrUnavailable):
			d.log.Error("an outcome can't be written; the occurrence is claimed again when its lease ends",
				"occurrence", batch[0].ID.String(), "error", err)
			return 0
		case failures == 0:
			now := d.now()
			d.unsettled.CompareAndSwap(nil, &now)
			d.log.Error("outcomes can't be written yet", "outcomes", len(batch), "error", err)
		}
		select {
		case <-ctx.Done():
			return len(batch)
		case <-time.After(min(time.Duration(failures+1)*50*time.Millisecond, time.Second)):
		}
	}
}
