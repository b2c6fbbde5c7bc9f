package dispatcher

import (
	"fmt"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// catchUp is a result of [job.Options.CatchUpFrom].
type catchUp struct {
	from time.Time
	any  bool
	err  error
}

// missed is the reason for dropping an occurrence unfired: its job's rules say that it is too late.
type missed struct{ error }

// inTime returns an error if an occurrence must not be attempted now: [missed] if it is too late, or [unfired] if its
// spread moves it further ahead, or if this replica can't decide. A triggered or redriven occurrence is always in time.
func (d *Dispatcher) inTime(c *store.Claimed, b *batch) error {
	now := b.start.Truncate(time.Millisecond)
	fires := c.Options.FiresAt(&c.Occurrence)
	// A resume makes occurrences due at their instants. So does an earlier version of this program, which moves none.
	if fires.Sub(now) > d.cfg.Early {
		return &unfired{error: errEarly, due: fires}
	}
	if overdue(c, now) {
		return missed{fmt.Errorf("its deadline of %s has passed", c.Options.Deadline)}
	}
	// After an outage shorter than a lease, all occurrences fire late. So do those that were attempted in time.
	if c.Revision == "" || c.Options.Recurrence == nil || c.Attempt > 1 || now.Sub(fires) <= d.cfg.Lease {
		return nil
	}
	switch up := b.catchUp(c, now, d.cfg.CatchUpLimit); {
	case up.err != nil:
		err := fmt.Errorf("this replica can't compute whether it is caught up: %w", up.err)
		return &unfired{error: err, after: d.outages[""].begun(d.now(), tooLatePause)}
	case !up.any:
		return missed{fmt.Errorf("it is %s late, and its job does not catch up", now.Sub(fires))}
	case c.Timestamp.Before(up.from):
		return missed{fmt.Errorf("its job catches up from %s on", job.FormatTime(up.from))}
	}
	return nil
}

// overdue reports whether an occurrence's deadline has passed at a time.
func overdue(c *store.Claimed, at time.Time) bool {
	return c.Revision != "" && c.Options.Overdue(c.Timestamp, at)
}

// catchUp returns the instant from which an occurrence's job catches up. It is computed once for all occurrences of a
// revision in the batch: after an outage, that may be all of them.
func (b *batch) catchUp(c *store.Claimed, now time.Time, limit int) catchUp {
	b.lock.Lock()
	compute, known := b.catchUps[c.Revision]
	if !known {
		compute = sync.OnceValue(func() (up catchUp) {
			up.from, up.any, up.err = c.Options.CatchUpFrom(now, limit)
			return up
		})
		if b.catchUps == nil {
			b.catchUps = make(map[job.Revision]func() catchUp)
		}
		b.catchUps[c.Revision] = compute
	}
	b.lock.Unlock()
	return compute()
}
