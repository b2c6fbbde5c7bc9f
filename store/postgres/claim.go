package postgres

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// claimSQL locks the longest due occurrences that nobody else has locked, and stamps them, but for those of paused jobs. It
// answers the former as they were, with their targets, and the latter with nothing but that they are paused.
//
// An occurrence that has been deleted since the statement began is not locked, nor is one that is no longer due. One that
// is locked is of the revision that its job had when the statement began, since both change in one transaction; and its job
// can't be replaced or cancelled before this transaction ends, since that deletes the occurrence.
//
// Of a job that has several of them in a row only the first has its target, which may be large.
const claimSQL = `WITH due AS MATERIALIZED (
		SELECT ` + occurrenceColumnsSQL + `, o.callback_type, o.callback_data, o.options
		FROM carillon.occurrences o WHERE o.due_at <= $1 ORDER BY o.due_at, o.id LIMIT $2 FOR UPDATE SKIP LOCKED
	), joined AS MATERIALIZED (
		SELECT d.*, j.callback_type AS job_callback_type, j.callback_data AS job_callback_data, j.options AS job_options,
			d.revision <> '' AND j.paused_at IS NOT NULL AS paused
		FROM (SELECT *, lag(revision) OVER () IS NOT DISTINCT FROM revision AS follows FROM due) d LEFT JOIN carillon.jobs j ON d.revision <> '' AND j.tenant = d.tenant AND j.key = d.key AND j.revision = d.revision
	), stamped AS (
		UPDATE carillon.occurrences o SET token = $3, scheduled_at = $4, due_at = $5, attempt = o.attempt + 1
		FROM joined d WHERE o.id = d.id AND NOT d.paused
		RETURNING d.id, d.tenant, d.key, d.revision, d.position, d.step, d.subscriber, d.timestamp, d.due_at, d.scheduled_at,
			d.token, d.attempt, d.last_error, d.failed_at,
			CASE WHEN d.revision = '' THEN d.callback_type WHEN NOT d.follows THEN d.job_callback_type END AS callback_type,
			CASE WHEN d.revision = '' THEN d.callback_data WHEN NOT d.follows THEN d.job_callback_data END AS callback_data,
			CASE WHEN d.revision = '' THEN d.options WHEN NOT d.follows THEN d.job_options END AS options, false AS paused
	)
	SELECT * FROM stamped
	UNION ALL
	SELECT d.id, '', '', '', 0, NULL, NULL, 0, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, true FROM joined d WHERE d.paused`

// Claim implements [store.Queue]. There are no orphans, and nothing is beyond its job's cursor.
func (s *Store) Claim(ctx context.Context, p store.ClaimParams) (store.Claim, error) {
	type target struct {
		job.Target
		fault error
	}
	type claimed struct {
		store.Claimed
		dueAt time.Time
	}
	var found []claimed
	var targetsOf map[job.Revision]target
	var paused bool
	token, until := job.NewToken(), p.Now.Add(p.Lease)
	err := s.transact(ctx, func(t *transaction) {
		found, targetsOf, paused = nil, make(map[job.Revision]target), false
		var r occurrenceRow
		var targets targetReader
		t.rows(claimSQL, func(rows pgx.Rows) error {
			var c claimed
			var callbackType *string
			var callbackData, options []byte
			var isPaused bool
			var err error
			if c.Occurrence, err = r.scan(rows, &callbackType, &callbackData, &options, &isPaused); err != nil {
				return err
			}
			if isPaused {
				paused = true
				return nil
			}
			if callbackType != nil {
				c.Target, c.Fault = targets.read(callbackType, callbackData, options)
				if c.Revision == "" {
					own := c.Target
					c.Own = &own
				} else {
					targetsOf[c.Revision] = target{c.Target, c.Fault}
				}
			}
			c.dueAt, c.Reclaimed = c.DueAt, !c.ScheduledAt.IsZero()
			c.Token, c.ScheduledAt, c.DueAt = token, p.Now, until
			c.Attempt++
			found = append(found, c)
			return nil
		}, p.Now.Add(p.Early).UnixMilli(), p.Limit, token, p.Now.UnixMilli(), until.UnixMilli())
	})
	if err != nil {
		return store.Claim{}, err
	}
	slices.SortFunc(found, func(a, b claimed) int {
		if c := a.dueAt.Compare(b.dueAt); c != 0 {
			return c
		}
		return a.ID.Compare(b.ID)
	})
	claim := store.Claim{More: paused || len(found) == p.Limit}
	for i := range found {
		if of, ok := targetsOf[found[i].Revision]; ok {
			found[i].Target, found[i].Fault = of.Target, of.fault
		}
		claim.Occurrences = append(claim.Occurrences, found[i].Claimed)
	}
	if paused {
		// What was claimed is claimed; if putting back fails, the next claim does it.
		if err := s.putBackPaused(ctx, p); err != nil && len(found) == 0 {
			return store.Claim{}, err
		}
	}
	return claim, nil
}

// mostPutBack is among how many due occurrences those of paused jobs are looked for. It is more than most claims find, so
// that a paused backlog is soon out of the way of others.
const mostPutBack = 5000

// putBackPaused makes due occurrences of paused jobs due later. Their jobs stay locked until that is done, so that a job is
// resumed before, and its occurrences are not put back, or after, and they are brought forward. It waits for nobody: what
// is locked is resumed or claimed at this moment, and the next claim will see.
func (s *Store) putBackPaused(ctx context.Context, p store.ClaimParams) error {
	return s.converse(ctx, func(ctx context.Context, tx *conversation) error {
		var ids []pgtype.UUID
		var dues []int64
		err := tx.do(ctx, func(t *transaction) {
			t.rows(`WITH first AS MATERIALIZED (
					SELECT id, tenant, key, revision FROM carillon.occurrences WHERE due_at <= $1 ORDER BY due_at, id LIMIT $2
				)
				SELECT o.id, o.timestamp, j.paused_at FROM first f
				JOIN carillon.jobs j ON j.tenant = f.tenant AND j.key = f.key AND j.revision = f.revision AND j.paused_at IS NOT NULL
				JOIN carillon.occurrences o ON o.id = f.id AND o.due_at <= $1
				FOR SHARE OF j SKIP LOCKED FOR UPDATE OF o SKIP LOCKED`,
				func(rows pgx.Rows) error {
					var id pgtype.UUID
					var timestamp, pausedAt int64
					err := rows.Scan(&id, &timestamp, &pausedAt)
					ids = append(ids, id)
					dues = append(dues, store.PutBackPaused(time.UnixMilli(timestamp), time.UnixMilli(pausedAt), p).UnixMilli())
					return err
				}, p.Now.Add(p.Early).UnixMilli(), mostPutBack)
		})
		if err != nil || len(ids) == 0 {
			return err
		}
		return tx.do(ctx, func(t *transaction) {
			t.exec(`UPDATE carillon.occurrences o SET due_at = n.due_at, scheduled_at = NULL, token = NULL
				FROM unnest($1::uuid[], $2::bigint[]) AS n (id, due_at) WHERE o.id = n.id`, ids, dues)
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
