package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// DueLanes implements [store.Inspector].
func (s *Store) DueLanes(ctx context.Context, p store.DueParams) (store.DuePage, error) {
	var found []store.DueEntries
	err := s.transact(ctx, func(t *transaction) {
		found = nil
		t.rows(`SELECT lane, min(due_at), max(due_at), count(*) FROM (
				SELECT o.due_at, o.lane FROM carillon.occurrences o WHERE (o.due_at, o.lane) > ($1, $2) AND o.due_at <= $3
				ORDER BY o.due_at, o.lane LIMIT $4) page GROUP BY lane`,
			func(rows pgx.Rows) error {
				var text string
				var first, last int64
				var e store.DueEntries
				if err := rows.Scan(&text, &first, &last, &e.N); err != nil {
					return err
				}
				lane, err := job.ParseLane(text)
				e.Lane, e.First, e.Last = lane, time.UnixMilli(first).UTC(), time.UnixMilli(last).UTC()
				found = append(found, e)
				return err
			}, p.After.DueAt.UnixMilli(), p.After.Lane.String(), p.Until.UnixMilli(), p.Limit)
	})
	return store.DuePageOf(found, p.Limit), err
}

// Count implements [store.Inspector]. Due occurrences come first in a lane, so one scan of it gives both counts.
func (s *Store) Count(
	ctx context.Context, now time.Time, lanes []job.Lane, limit int,
) (counts []store.Count, err error) {
	if len(lanes) == 0 {
		all, err := s.countAll(ctx, now)
		return []store.Count{all}, err
	}
	names := make([]string, len(lanes))
	for i, l := range lanes {
		names[i] = l.String()
	}
	err = s.transact(ctx, func(t *transaction) {
		counts = make([]store.Count, 0, len(lanes))
		t.rows(`SELECT n.pending, n.due FROM unnest($1::text[]) WITH ORDINALITY AS q (lane, place)
			CROSS JOIN LATERAL (SELECT count(*) AS pending, count(*) FILTER (WHERE first.due_at <= $2) AS due FROM (
				SELECT o.due_at FROM carillon.occurrences o WHERE o.lane = q.lane AND o.due_at IS NOT NULL
				ORDER BY o.due_at LIMIT $3) first) n
			ORDER BY q.place`,
			func(rows pgx.Rows) error {
				var c store.Count
				err := rows.Scan(&c.Pending, &c.Due)
				counts = append(counts, c)
				return err
			}, names, now.UnixMilli(), limit)
	})
	return counts, err
}

// sampleSQL returns the callback of consecutive occurrences of one job only with the first of them, since it may be
// large.
const sampleSQL = `SELECT o.due_at, j.revision IS NOT NULL AND o.follows,
		CASE WHEN j.revision IS NULL THEN o.callback_type WHEN NOT o.follows THEN j.callback_type END,
		CASE WHEN j.revision IS NULL THEN o.callback_data WHEN NOT o.follows THEN j.callback_data END
	FROM (SELECT *, row_number() OVER w AS place,
			lag(first.revision) OVER w IS NOT DISTINCT FROM first.revision AS follows FROM (
			SELECT o.due_at, o.timestamp, o.revision, o.id, o.callback_type, o.callback_data FROM carillon.occurrences o
			WHERE o.lane = $1 AND o.due_at >= $2 ORDER BY o.due_at, o.timestamp LIMIT $3) first
		WINDOW w AS (ORDER BY first.due_at, first.timestamp, first.revision, first.id)) o
	LEFT JOIN carillon.jobs j ON j.revision = ANY (ARRAY[o.revision]) ORDER BY o.place`

// Sample implements [store.Inspector].
func (s *Store) Sample(
	ctx context.Context, lane job.Lane, from time.Time, limit int,
) (found []store.Sampled, err error) {
	err = s.transact(ctx, func(t *transaction) {
		found = nil
		t.rows(sampleSQL, func(rows pgx.Rows) error {
			var due int64
			var follows bool
			var callbackType *string
			var o store.Sampled
			if err := rows.Scan(&due, &follows, &callbackType, &o.Callback.Data); err != nil {
				return err
			}
			o.DueAt, o.Callback.Type = time.UnixMilli(due).UTC(), orEmpty(callbackType)
			if follows {
				o.Callback = found[len(found)-1].Callback
			}
			found = append(found, o)
			return nil
		}, lane.String(), from.UnixMilli(), limit)
	})
	return found, err
}

// countable bounds the occurrences, and the dead letters, that are counted one by one.
const countable = 100_000

// countAllSQL counts the due occurrences, and up to one more than $2 of the pending ones and of the dead letters, all
// in their own indexes. Above $2 it returns two estimates. One is the server's number of rows in the table, which it
// updates with each transaction's inserts and deletes but loses in a crash. The other is the number of entries that the
// server found in either index when it last vacuumed or analyzed the table.
const countAllSQL = `SELECT
	(SELECT count(*) FROM carillon.occurrences WHERE due_at <= $1),
	(SELECT count(*) FROM (SELECT FROM carillon.occurrences WHERE due_at IS NOT NULL ORDER BY lane LIMIT $2 + 1) first),
	(SELECT count(*) FROM (SELECT FROM carillon.occurrences WHERE due_at IS NULL ORDER BY tenant LIMIT $2 + 1) first),
	pg_stat_get_live_tuples('carillon.occurrences'::regclass),
	(SELECT reltuples::bigint FROM pg_class WHERE oid = 'carillon.occurrences_claim'::regclass),
	(SELECT reltuples::bigint FROM pg_class WHERE oid = 'carillon.occurrences_dead'::regclass)`

// countAll returns the counts of the whole store.
func (s *Store) countAll(ctx context.Context, now time.Time) (c store.Count, err error) {
	var live, pendingEntries, deadEntries int
	err = s.transact(ctx, func(t *transaction) {
		t.row(countAllSQL, func(row pgx.Row) error {
			return row.Scan(&c.Due, &c.Pending, &c.DeadLetters, &live, &pendingEntries, &deadEntries)
		}, now.UnixMilli(), countable)
	})
	if err != nil {
		return store.Count{}, err
	}
	if c.DeadLetters > countable {
		c.DeadLetters = max(c.DeadLetters, deadEntries)
	}
	if c.Pending > countable {
		estimate := live - c.DeadLetters
		if live == 0 {
			estimate = pendingEntries
		}
		c.Pending = max(c.Pending, c.Due, estimate)
	}
	return c, nil
}
