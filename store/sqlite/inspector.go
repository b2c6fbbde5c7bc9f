package sqlite

import (
	"bytes"
	"context"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// DueLanes implements [store.Inspector].
func (s *Store) DueLanes(ctx context.Context, p store.DueParams) (store.DuePage, error) {
	rows, err := s.stmt.dueLanes.QueryContext(ctx,
		p.After.DueAt.UnixMilli(), p.After.Lane.String(), p.Until.UnixMilli(), p.Limit)
	found, err := read(ctx, rows, err, func(r scanner) (e store.DueEntries, err error) {
		var lane string
		var first, last int64
		if err := r.Scan(&lane, &first, &last, &e.N); err != nil {
			return e, err
		}
		e.First, e.Last = time.UnixMilli(first).UTC(), time.UnixMilli(last).UTC()
		e.Lane, err = job.ParseLane(lane)
		return e, err
	})
	return store.DuePageOf(found, p.Limit), err
}

// Count implements [store.Inspector].
func (s *Store) Count(ctx context.Context, now time.Time, lanes []job.Lane, limit int) ([]store.Count, error) {
	if len(lanes) == 0 {
		all, err := s.countAll(ctx, now)
		return []store.Count{all}, err
	}
	counts := make([]store.Count, len(lanes))
	for i, l := range lanes {
		row := s.stmt.laneCount.QueryRowContext(ctx, now.UnixMilli(), l.String(), limit)
		if err := row.Scan(&counts[i].Pending, &counts[i].Due); err != nil {
			return nil, mapError(ctx, err)
		}
	}
	return counts, nil
}

// countAll counts the occurrences of the whole store. The counts are exact, and read from indexes beside the writer:
// with ten million occurrences, that takes a second or two.
func (s *Store) countAll(ctx context.Context, now time.Time) (c store.Count, err error) {
	err = s.stmt.countAll.QueryRowContext(ctx, now.UnixMilli()).Scan(&c.Pending, &c.Due, &c.DeadLetters)
	return c, mapError(ctx, err)
}

// Sample implements [store.Inspector].
func (s *Store) Sample(ctx context.Context, lane job.Lane, from time.Time, limit int) ([]store.Sampled, error) {
	rows, err := s.stmt.laneSample.QueryContext(ctx, lane.String(), from.UnixMilli(), limit)
	var last []byte
	return read(ctx, rows, err, func(r scanner) (o store.Sampled, err error) {
		var due int64
		err = r.Scan(&due, &o.Callback.Type, &o.Callback.Data)
		o.DueAt = time.UnixMilli(due).UTC()
		if bytes.Equal(o.Callback.Data, last) { // consecutive ones are often of one job; keep one copy
			o.Callback.Data = last
		}
		last = o.Callback.Data
		return o, err
	})
}
