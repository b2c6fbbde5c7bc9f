package postgres

import (
	"cmp"
	"context"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// ClaimJobs implements [store.Queue]. It skips jobs that another transaction has locked: they are being claimed,
// advanced or changed.
func (s *Store) ClaimJobs(ctx context.Context, p store.ClaimJobsParams) (store.ClaimedJobs, error) {
	type claimed struct {
		job.Job
		expandAt int64
	}
	var found []claimed
	var unreadable []job.Name
	var n int
	token, until := job.NewToken(), p.Now.Add(p.Lease)
	err := s.transact(ctx, func(t *transaction) {
		found, unreadable, n = nil, nil, 0
		var r jobRow
		t.rows(`WITH due AS MATERIALIZED (
				SELECT tenant, key, expand_at FROM carillon.jobs WHERE expand_at <= $1 ORDER BY expand_at LIMIT $2
				FOR NO KEY UPDATE SKIP LOCKED
			)
			UPDATE carillon.jobs j SET expand_at = $3, expand_token = $4 FROM due d
			WHERE j.tenant = ANY (ARRAY[d.tenant]) AND j.key = d.key
			RETURNING `+jobColumnsSQL+`, d.expand_at, j.options, j.schedule`,
			func(rows pgx.Rows) error {
				var c claimed
				var options, schedule []byte
				status, err := r.scan(rows, &c.expandAt, &options, &schedule)
				if err != nil {
					return err
				}
				n++
				c.Job = status.Job
				var optionsErr, scheduleErr error
				c.Options, optionsErr = job.DecodeOptions(options)
				c.Schedule, scheduleErr = job.DecodeSchedule(schedule)
				if optionsErr == nil && scheduleErr == nil {
					found = append(found, c)
				} else { // it stays claimed, so that it does not hold up claims of the others
					unreadable = append(unreadable, c.Name)
				}
				return nil
			}, p.Now.UnixMilli(), p.Limit, until.UnixMilli(), token)
	})
	if err != nil || n == 0 {
		return store.ClaimedJobs{}, err
	}
	slices.SortStableFunc(found, func(a, b claimed) int { return cmp.Compare(a.expandAt, b.expandAt) })
	jobs := store.ClaimedJobs{Unreadable: unreadable, Token: token, More: n == p.Limit}
	for _, c := range found {
		jobs.Jobs = append(jobs.Jobs, c.Job)
	}
	return jobs, nil
}

// Advance implements [store.Queue]. Many jobs share a transaction. A pause, a replacement and an advance clear the
// token, and another claim sets another one.
func (s *Store) Advance(ctx context.Context, advances []store.Advance) error {
	for undone := store.ErrNotDone; len(advances) > 0; undone = store.ErrUnavailable {
		n, rows := 0, 0
		names := make(map[job.Name]bool)
		for n < len(advances) && !names[advances[n].Name] && (n == 0 || rows+len(advances[n].Occurrences) <= chunk) {
			rows += len(advances[n].Occurrences)
			names[advances[n].Name] = true
			n++
		}
		if err := s.advance(ctx, undone, advances[:n]); err != nil {
			return err
		}
		advances = advances[n:]
	}
	return nil
}

func (s *Store) advance(ctx context.Context, undone error, advances []store.Advance) error {
	ordered := slices.Clone(advances)
	slices.SortStableFunc(ordered, func(a, b store.Advance) int { return compareNames(a.Name, b.Name) })
	var revisions []pgtype.UUID
	var tokens []string
	var from, missed, planned []int64
	var troubles []string
	var cursors, expandAt, expiresAt []*int64
	occurrences := make(map[pgtype.UUID][]job.Occurrence, len(advances))
	for i := range ordered {
		a := &ordered[i]
		revisions, tokens = append(revisions, revisionOf(a.Revision)), append(tokens, a.Token)
		from, missed = append(from, a.From.UnixMilli()), append(missed, int64(a.Missed))
		planned, troubles = append(planned, int64(a.Planned())), append(troubles, a.Trouble.Encode())
		cursors, expandAt = append(cursors, millis(a.Cursor)), append(expandAt, millis(a.ExpandAt))
		expiresAt = append(expiresAt, millis(a.ExpiresAt))
		occurrences[revisionOf(a.Revision)] = a.Occurrences
	}
	return s.change(ctx, undone, func(ctx context.Context, tx *conversation) error {
		var advanced []pgtype.UUID
		err := tx.do(ctx, func(t *transaction) {
			t.rows(`UPDATE carillon.jobs j SET cursor_at = CASE WHEN n.expand_at IS NOT NULL THEN n.cursor_at END,
					expand_at = n.expand_at, expand_token = NULL,
					missed = j.missed + n.missed, planned = CASE WHEN j.planned > 0 THEN j.planned + n.planned ELSE 0 END,
					trouble = greatest(j.trouble, n.trouble COLLATE "C"), expires_at = coalesce(n.expires_at, j.expires_at)
				FROM unnest($1::uuid[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[],
					$8::bigint[], $9::text[])
					AS n (revision, token, cursor_from, cursor_at, expand_at, expires_at, missed, planned, trouble)
				WHERE j.revision = ANY (ARRAY[n.revision]) AND j.expand_token = n.token AND j.cursor_at = n.cursor_from
				RETURNING j.revision`,
				func(rows pgx.Rows) error {
					var revision pgtype.UUID
					err := rows.Scan(&revision)
					advanced = append(advanced, revision)
					return err
				}, revisions, tokens, from, cursors, expandAt, expiresAt, missed, planned, troubles)
		})
		if err != nil {
			return err
		}
		var batch occurrenceColumns
		for _, revision := range advanced {
			for o := range once(occurrences[revision]) {
				batch.add(o)
			}
		}
		if len(batch.id) == 0 {
			return nil
		}
		return tx.do(ctx, batch.insert)
	})
}
