package sqlite

import (
	"context"
	"database/sql"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Lanes implements [store.Stock].
func (s *Store) Lanes(ctx context.Context) ([]store.LaneDue, error) {
	rows, err := s.stmt.lanes.QueryContext(ctx)
	return collect(rows, err, func(r scanner) (l store.LaneDue, err error) {
		var lane string
		var due int64
		if err := r.Scan(&lane, &due); err != nil {
			return l, err
		}
		l.DueAt = time.UnixMilli(due).UTC()
		l.Lane, err = job.ParseLane(lane)
		return l, err
	})
}

// Backlog implements [store.Stock]. It is exact, and reads the claim index beside the writer: of ten million occurrences,
// that takes a second or two.
func (s *Store) Backlog(ctx context.Context, now time.Time) (store.Backlog, error) {
	var b store.Backlog
	var oldest sql.NullInt64
	if err := s.stmt.backlog.QueryRowContext(ctx, now.UnixMilli()).Scan(&b.Pending, &b.Due, &oldest, &b.DeadLetters); err != nil {
		return store.Backlog{}, mapError(err)
	}
	if oldest.Valid {
		b.OldestDue = time.UnixMilli(oldest.Int64).UTC()
	}
	return b, nil
}

// CountLanes implements [store.Stock].
func (s *Store) CountLanes(ctx context.Context, now time.Time, lanes []job.Lane, limit int) ([]store.LaneCount, error) {
	counts := make([]store.LaneCount, len(lanes))
	for i, l := range lanes {
		row := s.stmt.laneCount.QueryRowContext(ctx, now.UnixMilli(), l.String(), limit)
		if err := row.Scan(&counts[i].Pending, &counts[i].Due); err != nil {
			return nil, mapError(err)
		}
	}
	return counts, nil
}
