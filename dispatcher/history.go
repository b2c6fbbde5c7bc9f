package dispatcher

import (
	"fmt"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/history"
	"github.com/carillon-scheduler/carillon/store"
)

// entry returns the entry of history of a claim's end. It is nil if no history is kept, or if nothing was sent and the
// occurrence stays.
func (d *Dispatcher) entry(c *store.Claimed, b *batch, made *attempt, s *store.Settlement, err error) *history.Entry {
	sent := !made.at.IsZero()
	if d.cfg.History == nil || !sent && s.Outcome != store.Bury && s.Outcome != store.Miss {
		return nil
	}
	e := &history.Entry{
		Kind:        kindOf(s.Outcome),
		At:          b.time(d.now()),
		Attempt:     c.Attempt,
		Claimed:     b.start,
		Took:        made.took,
		Destination: made.to,
		Status:      callbacks.StatusOf(err),
		Replica:     d.replica,
		Trace:       spanContext(made.span).TraceID(),
	}
	e.About(&c.Occurrence)
	if !s.DueAt.IsZero() {
		e.Next = s.DueAt.Add(-d.cfg.Early) // when the next claim comes
	}
	if sent {
		e.At = b.time(made.at)
	}
	if e.Status == 0 { // the status alone is recorded, without the receiver's text
		e.Error = s.Error
	}
	return e
}

// recordMissed records the instants that an expansion has dropped, in one entry about the last of them.
func (d *Dispatcher) recordMissed(a *store.Advance) {
	if d.cfg.History == nil {
		return
	}
	n := a.Missed - a.Left
	reason := "it fell due while nothing ran, and its job does not catch up on it"
	if n > 1 {
		reason = fmt.Sprintf("%d instants up to this one fell due while nothing ran, and its job does not catch up on them",
			n)
	}
	d.cfg.History.Record(&history.Entry{
		Name: a.Name, Kind: history.Missed, At: a.Trouble.At, Instant: a.Trouble.Instant, Count: n,
		Error: reason, Replica: d.replica,
	})
}

// unknown records that the attempt before this claim has no outcome: the replica that made it has died, or it has lost
// the store for longer than the lease.
func (d *Dispatcher) unknown(c *store.Claimed, b *batch, to string) {
	if d.cfg.History == nil || !c.Reclaimed || c.Attempt < 2 {
		return
	}
	e := &history.Entry{
		Kind: history.Unknown, At: b.start, Attempt: c.Attempt - 1, Destination: to, Replica: d.replica, Next: b.start,
	}
	e.About(&c.Occurrence)
	d.cfg.History.Record(e)
}

// kindOf returns the kind of an outcome in history.
func kindOf(o store.Outcome) history.Kind {
	switch o {
	case store.Ack:
		return history.Delivered
	case store.Retry:
		return history.Retried
	case store.Bury:
		return history.Buried
	case store.Release:
		return history.Released
	default:
		return history.Missed
	}
}
