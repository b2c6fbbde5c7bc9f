package postgres

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// claimSQL locks the longest due occurrences that nobody else has locked, and stamps them, but for those of paused jobs. It
// answers them as they were, but for their attempt, with their targets, and how many were locked in all.
//
// An occurrence that has been deleted since the statement began is not locked, nor is one that is no longer due. One that
// is locked is of the revision that its job had when the statement began, since both change in one transaction; and its job
// can't be replaced or cancelled before this transaction ends, since that deletes the occurrence.
//
// What is locked is stamped by where it lies, which saves looking it up again, and can't change while it is locked. One that was
// written after the statement began, and is due still, is locked as it is now, but not seen there: it is left to the next claim.
//
// Of a job that has several of them in a row only the first has its target, which may be large. What is stamped is answered at
// once rather than gathered: as part of a larger query it would be copied twice more.
const claimSQL = `WITH due AS MATERIALIZED (
		SELECT o.ctid, o.revision, o.due_at, o.scheduled_at
		FROM carillon.occurrences o WHERE o.due_at <= $1 ORDER BY o.due_at, o.timestamp LIMIT $2 FOR UPDATE SKIP LOCKED
	)
	UPDATE carillon.occurrences o SET token = $3, scheduled_at = $4, due_at = $5, attempt = o.attempt + 1
	FROM (SELECT *, lag(revision) OVER () IS NOT DISTINCT FROM revision AS follows FROM due) d
		LEFT JOIN carillon.jobs j ON j.revision = ANY (ARRAY[d.revision])
	WHERE o.ctid = d.ctid AND j.paused_at IS NULL
	RETURNING coalesce(j.tenant, o.tenant), coalesce(j.key, o.key), o.revision, o.id, o.position, o.step, o.subscriber, o.timestamp,
		d.due_at, d.scheduled_at, NULL, o.attempt, o.last_error, o.failed_at,
		CASE WHEN j.revision IS NULL THEN o.callback_type WHEN NOT d.follows THEN j.callback_type END,
		CASE WHEN j.revision IS NULL THEN o.callback_data WHEN NOT d.follows THEN j.callback_data END,
		CASE WHEN j.revision IS NULL THEN o.options WHEN NOT d.follows THEN j.options END,
		(SELECT count(*) FROM due)`

// splitFrom is the smallest limit of which a claim makes two.
const splitFrom = 200

// Claim implements [store.Queue]. There are no orphans, and nothing is beyond its job's cursor.
//
// While there is more due than claims have room for, a claim is made as two at the same time, each of one half: the server has
// one core for each connection, and one half is written to its disk while the other is looked up. What the two lock they
// pass over, as those of two replicas do.
func (s *Store) Claim(ctx context.Context, p store.ClaimParams) (store.Claim, error) {
	limits := []int{p.Limit}
	if s.behind.Load() && p.Limit >= splitFrom {
		limits = []int{p.Limit - p.Limit/2, p.Limit / 2}
	}
	token := job.NewToken()
	parts, errs := make([][]store.Claimed, len(limits)), make([]error, len(limits))
	locked := make([]int, len(limits))
	var group sync.WaitGroup
	for i, limit := range limits[1:] {
		group.Go(func() { parts[i+1], locked[i+1], errs[i+1] = s.claim(ctx, p, limit, token) })
	}
	parts[0], locked[0], errs[0] = s.claim(ctx, p, limits[0], token)
	group.Wait()
	found, left := slices.Concat(parts...), false
	if len(found) == 0 { // what one part has claimed is claimed, whatever the other says
		if err := errors.Join(errs...); err != nil {
			return store.Claim{}, err
		}
		var err error
		if left, err = s.anyDue(ctx, p); err != nil { // nothing has told whether some were locked
			return store.Claim{}, err
		}
	}
	for i := range parts {
		left = left || locked[i] > len(parts[i])
	}
	s.behind.Store(len(found) == p.Limit)
	// Parts come in this order as long as the planner joins in the order that was locked in.
	longestDue := func(a, b store.Claimed) int { return a.DueAt.Compare(b.DueAt) }
	if !slices.IsSortedFunc(found, longestDue) {
		slices.SortStableFunc(found, longestDue)
	}
	for i := range found {
		c := &found[i]
		c.Token, c.ScheduledAt, c.DueAt = token, p.Now, p.Now.Add(p.Lease)
	}
	if left { // of paused jobs, most likely
		// If putting back fails, the next claim does it.
		if err := s.putBackPaused(ctx, p); err != nil && len(found) == 0 {
			return store.Claim{}, err
		}
	}
	return store.Claim{Occurrences: found, More: left || len(found) == p.Limit}, nil
}

// claim claims up to limit occurrences. They are answered as they were, but for their attempt; locked is how many were found,
// with those that were left, unless all were.
func (s *Store) claim(ctx context.Context, p store.ClaimParams, limit int, token string) (found []store.Claimed, locked int, err error) {
	err = s.transact(ctx, func(t *transaction) {
		found, locked = nil, 0
		var r occurrenceRow
		var targets targetReader
		t.rows(claimSQL, func(rows pgx.Rows) error {
			var c store.Claimed
			var callbackType *string
			var callbackData, options []byte
			var err error
			if c.Occurrence, err = r.scan(rows, &callbackType, &callbackData, &options, &locked); err != nil {
				return err
			}
			if callbackType != nil {
				c.Target, c.Fault = targets.read(callbackType, callbackData, options)
				if c.Revision == "" {
					own := c.Target
					c.Own = &own
				}
			}
			c.Reclaimed = !c.ScheduledAt.IsZero()
			if found == nil {
				found = make([]store.Claimed, 0, locked)
			}
			found = append(found, c)
			return nil
		}, p.Now.Add(p.Early).UnixMilli(), limit, token, p.Now.UnixMilli(), p.Now.Add(p.Lease).UnixMilli())
	})
	if err != nil {
		return nil, 0, err
	}
	if share(found) {
		return found, locked, nil
	}
	found, err = s.readTargets(ctx, found)
	return found, locked, err
}

// readTargets reads the targets that are still missing. Where there is no such job any more, the occurrence went with it.
func (s *Store) readTargets(ctx context.Context, found []store.Claimed) ([]store.Claimed, error) {
	var revisions []pgtype.UUID
	for i := range found {
		if found[i].Callback.Type == "" {
			revisions = append(revisions, revisionOf(found[i].Revision))
		}
	}
	err := s.transact(ctx, func(t *transaction) {
		var targets targetReader
		t.rows(`SELECT j.revision, j.callback_type, j.callback_data, j.options FROM (SELECT DISTINCT unnest($1::uuid[]) AS revision OFFSET 0) r
			JOIN carillon.jobs j ON j.revision = ANY (ARRAY[r.revision])`,
			func(rows pgx.Rows) error {
				var revision pgtype.UUID
				var callbackType *string
				var callbackData, options []byte
				err := rows.Scan(&revision, &callbackType, &callbackData, &options)
				target, fault := targets.read(callbackType, callbackData, options)
				for i := range found {
					if c := &found[i]; c.Revision == revisionFrom(revision) {
						c.Target, c.Fault = target, fault
					}
				}
				return err
			}, revisions)
	})
	return slices.DeleteFunc(found, func(c store.Claimed) bool { return c.Callback.Type == "" }), err
}

// share gives those that came without a target the one that came with another of their job, mostly the one before. It tells
// whether all have one: the first of a job may have been left.
func share(found []store.Claimed) (all bool) {
	all = true
	for i := range found {
		c := &found[i]
		if c.Revision == "" || c.Callback.Type != "" {
			continue
		}
		with := i - 1
		if with < 0 || found[with].Revision != c.Revision || found[with].Callback.Type == "" {
			with = slices.IndexFunc(found, func(o store.Claimed) bool { return o.Revision == c.Revision && o.Callback.Type != "" })
		}
		if with >= 0 {
			c.Target, c.Fault = found[with].Target, found[with].Fault
		} else {
			all = false
		}
	}
	return all
}

// pausedDueSQL finds due occurrences of paused jobs among the first.
const pausedDueSQL = `WITH first AS MATERIALIZED (
		SELECT revision, id FROM carillon.occurrences WHERE due_at <= $1 ORDER BY due_at, timestamp LIMIT $2
	)
	SELECT o.revision, o.id, o.timestamp, j.paused_at FROM first f
	JOIN carillon.jobs j ON j.revision = ANY (ARRAY[f.revision]) AND j.paused_at IS NOT NULL
	JOIN carillon.occurrences o ON o.revision = ANY (ARRAY[f.revision]) AND o.id = f.id AND o.due_at <= $1`

// mostPutBack is among how many due occurrences those of paused jobs are looked for. It is more than most claims find, so
// that a paused backlog is soon out of the way of others.
const mostPutBack = 5000

// anyDue tells whether any occurrence is due that nobody has locked.
func (s *Store) anyDue(ctx context.Context, p store.ClaimParams) (found bool, err error) {
	err = s.transact(ctx, func(t *transaction) {
		t.row(`WITH due AS (SELECT FROM carillon.occurrences WHERE due_at <= $1 ORDER BY due_at LIMIT 1 FOR UPDATE SKIP LOCKED)
			SELECT EXISTS (SELECT FROM due)`, func(row pgx.Row) error { return row.Scan(&found) }, p.Now.Add(p.Early).UnixMilli())
	})
	return found, err
}

// putBackPaused makes due occurrences of paused jobs due later. Their jobs stay locked until that is done, so that a job is
// resumed before, and its occurrences are not put back, or after, and they are brought forward. It waits for nobody: what
// is locked is resumed or claimed at this moment, and the next claim will see.
func (s *Store) putBackPaused(ctx context.Context, p store.ClaimParams) error {
	return s.converse(ctx, func(ctx context.Context, tx *conversation) error {
		var revisions, ids []pgtype.UUID
		var dues []int64
		err := tx.do(ctx, func(t *transaction) {
			t.rows(pausedDueSQL+` FOR SHARE OF j SKIP LOCKED FOR UPDATE OF o SKIP LOCKED`,
				func(rows pgx.Rows) error {
					var revision, id pgtype.UUID
					var timestamp, pausedAt int64
					err := rows.Scan(&revision, &id, &timestamp, &pausedAt)
					revisions, ids = append(revisions, revision), append(ids, id)
					dues = append(dues, store.PutBackPaused(time.UnixMilli(timestamp), time.UnixMilli(pausedAt), p).UnixMilli())
					return err
				}, p.Now.Add(p.Early).UnixMilli(), mostPutBack)
		})
		if err != nil || len(ids) == 0 {
			return err
		}
		return tx.do(ctx, func(t *transaction) {
			t.exec(`UPDATE carillon.occurrences o SET due_at = n.due_at, scheduled_at = NULL, token = NULL
				FROM unnest($1::uuid[], $2::uuid[], $3::bigint[]) AS n (revision, id, due_at)
				WHERE o.revision = ANY (ARRAY[n.revision]) AND o.id = n.id`, revisions, ids, dues)
		})
	})
}

// NextDue implements [store.Queue].
func (s *Store) NextDue(ctx context.Context) (due time.Time, err error) {
	err = s.transact(ctx, func(t *transaction) {
		due = time.Time{}
		t.rows(`SELECT due_at FROM carillon.occurrences WHERE due_at IS NOT NULL ORDER BY due_at LIMIT 1`,
			func(rows pgx.Rows) error {
				var ms int64
				err := rows.Scan(&ms)
				due = time.UnixMilli(ms).UTC()
				return err
			})
	})
	return due, err
}
