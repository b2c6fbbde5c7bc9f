package sqlite

import (
	"bytes"
	"context"
	"database/sql"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// DueLanes implements [store.Inspector].
func (s *Store) DueLanes(ctx context.Context, p store.DueParams) (store.DuePage, error) {
	rows, err := s.stmt.dueLanes.QueryContext(ctx, p.After.DueAt.UnixMilli(), p.After.Lane.String(), p.Until.UnixMilli(), p.Limit)
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

// Backlog implements [store.Inspector]. It is exact, and reads indexes beside the writer: of ten million occurrences,
// that takes a second or two.
func (s *Store) Backlog(ctx context.Context, now time.Time) (store.Backlog, error) {
	var b store.Backlog
	var oldest sql.NullInt64
	if err := s.stmt.backlog.QueryRowContext(ctx, now.UnixMilli()).Scan(&b.Pending, &b.Due, &oldest, &b.DeadLetters); err != nil {
		return store.Backlog{}, mapError(ctx, err)
	}
	if oldest.Valid {
		b.OldestDue = time.UnixMilli(oldest.Int64).UTC()
	}
	return b, nil
}

// CountLanes implements [store.Inspector].
func (s *Store) CountLanes(ctx context.Context, now time.Time, lanes []job.Lane, limit int) ([]store.LaneCount, error) {
	counts := make([]store.LaneCount, len(lanes))
	for i, l := range lanes {
		row := s.stmt.laneCount.QueryRowContext(ctx, now.UnixMilli(), l.String(), limit)
		if err := row.Scan(&counts[i].Pending, &counts[i].Due); err != nil {
			return nil, mapError(ctx, err)
		}
	}
	return counts, nil
}

// Sample implements [store.Inspector].
func (s *Store) Sample(ctx context.Context, lane job.Lane, from time.Time, limit int) ([]store.Sampled, error) {
	rows, err := s.stmt.laneSample.QueryContext(ctx, lane.String(), from.UnixMilli(), limit)
	var last []byte
	return read(ctx, rows, err, func(r scanner) (o store.Sampled, err error) {
		var due int64
		err = r.Scan(&due, &o.Callback.Type, &o.Callback.Data)
		o.DueAt = time.UnixMilli(due).UTC()
		if bytes.Equal(o.Callback.Data, last) { // neighbours often are of one job; it is kept once
			o.Callback.Data = last
		}
		last = o.Callback.Data
		return o, err
	})
}
