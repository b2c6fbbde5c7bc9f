package postgres

import (
	"context"
	"errors"
	"math"
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
		SELECT q.place, o.* FROM ` + quotasSQL + ` CROSS JOIN LATERAL (
			SELECT o.ctid, o.revision, o.due_at, o.scheduled_at FROM carillon.occurrences o
			WHERE o.lane = q.lane AND o.due_at > q.after AND o.due_at <= q.until
			ORDER BY o.due_at, o.timestamp LIMIT q.most FOR UPDATE SKIP LOCKED) o
	)
	UPDATE carillon.occurrences o SET token = $5, scheduled_at = $6, due_at = $7, attempt = o.attempt + 1
	FROM (SELECT *, lag(revision) OVER () IS NOT DISTINCT FROM revision AS follows FROM due) d
		LEFT JOIN carillon.jobs j ON j.revision = ANY (ARRAY[d.revision])
	WHERE o.ctid = d.ctid AND j.paused_at IS NULL
	RETURNING coalesce(j.tenant, o.tenant), coalesce(j.key, o.key), o.lane, o.revision, o.id, o.position, o.step, o.subscriber, o.timestamp,
		d.due_at, d.scheduled_at, NULL, o.attempt, o.last_error, o.failed_at,
		CASE WHEN j.revision IS NULL THEN o.callback_type WHEN NOT d.follows THEN j.callback_type END,
		CASE WHEN j.revision IS NULL THEN o.callback_data WHEN NOT d.follows THEN j.callback_data END,
		CASE WHEN j.revision IS NULL THEN o.options WHEN NOT d.follows THEN j.options END,
		d.place, (SELECT count(*) FROM due)`

// quotasSQL are quotas q, in their order.
const quotasSQL = `unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[]) WITH ORDINALITY AS q (lane, after, until, most, place)`

// nextSQL answers for each quota when the next of its lane becomes due that is not due yet, with what this claim has made due at
// its lease's end.
const nextSQL = `SELECT (SELECT o.due_at FROM carillon.occurrences o WHERE o.lane = q.lane AND o.due_at > $2
	ORDER BY o.due_at LIMIT 1) FROM unnest($1::text[]) WITH ORDINALITY AS q (lane, place) ORDER BY q.place`

// splitFrom is the smallest number of occurrences for which a claim is made as two.
const splitFrom = 200

// Claim implements [store.Queue]. There are no orphans, and nothing is beyond its job's cursor.
//
// While there is more due than claims have room for, a claim is made as two at the same time, each of one half: the server has
// one core for each connection, and one half is written to its disk while the other is looked up. What the two lock they
// pass over, as those of two replicas do.
func (s *Store) Claim(ctx context.Context, p store.ClaimParams) (store.Claim, error) {
	parts := []*part{newPart(p, p.Quotas, 0)}
	if s.behind.Load() {
		parts = halves(p)
	}
	token := job.NewToken()
	errs := make([]error, len(parts))
	var group sync.WaitGroup
	for i, part := range parts[1:] {
		group.Go(func() { errs[i+1] = s.claim(ctx, p, part, token) })
	}
	errs[0] = s.claim(ctx, p, parts[0], token)
	group.Wait()

	claim := store.Claim{Quotas: make([]store.QuotaLeft, len(p.Quotas))}
	found, unseen := make([][]store.Claimed, len(p.Quotas)), 0
	for i, part := range parts {
		if errs[i] == nil {
			part.answer(found, claim.Quotas)
			unseen += part.locked - len(part.found)
		}
	}
	claim.Occurrences = slices.Concat(found...)
	if len(claim.Occurrences) == 0 { // what one part has claimed is claimed, whatever the other says
		if err := errors.Join(errs...); err != nil {
			return store.Claim{}, err
		}
		any, err := s.anyDue(ctx, p) // nothing has told whether some were locked
		if err != nil {
			return store.Claim{}, err
		}
		if any {
			unseen++
		}
	}
	full := len(claim.Occurrences) > 0
	for i, q := range p.Quotas {
		left := &claim.Quotas[i]
		left.Found = len(found[i])
		left.More = left.Found == q.Limit
		full = full && left.More
		// Parts come in this order as long as the planner joins in the order that was locked in.
		if longestDue := func(a, b store.Claimed) int { return a.DueAt.Compare(b.DueAt) }; !slices.IsSortedFunc(found[i], longestDue) {
			slices.SortStableFunc(found[i], longestDue)
		}
	}
	claim.Occurrences = slices.Concat(found...)
	s.behind.Store(full)
	for i := range claim.Occurrences {
		c := &claim.Occurrences[i]
		c.Token, c.ScheduledAt, c.DueAt = token, p.Now, p.Now.Add(p.Lease)
	}
	if unseen > 0 { // of paused jobs, most likely
		// If putting back fails, the next claim does it.
		if err := s.putBackEach(ctx, p, claim.Quotas, unseen); err != nil && len(claim.Occurrences) == 0 {
			return store.Claim{}, err
		}
	}
	return claim, nil
}

// part is one of the transactions that a claim is made as.
type part struct {
	first              int // of the claim's quotas; the others follow
	lanes              []string
	after, until, most []int64
	found              []store.Claimed // as they were, but for their attempt
	of                 []int           // which of the part's quotas each was found by
	locked             int             // how many there were, with those that were not claimed, unless all were
	next               []time.Time     // by quota
	params             store.ClaimParams
}

func newPart(p store.ClaimParams, quotas []store.Quota, first int) *part {
	t := &part{first: first, params: p}
	for _, q := range quotas {
		after, until := p.Range(q)
		bound := int64(math.MinInt64)
		if !after.IsZero() {
			bound = after.UnixMilli()
		}
		t.lanes, t.after, t.until = append(t.lanes, q.Lane.String()), append(t.after, bound), append(t.until, until.UnixMilli())
		t.most = append(t.most, int64(q.Limit))
	}
	return t
}

// halves are the two parts of a claim that is large enough: each of one half of its only quota, or of its quotas.
func halves(p store.ClaimParams) []*part {
	all := 0
	for _, q := range p.Quotas {
		all += q.Limit
	}
	switch {
	case all < splitFrom:
		return []*part{newPart(p, p.Quotas, 0)}
	case len(p.Quotas) == 1:
		one, two := p.Quotas[0], p.Quotas[0]
		two.Limit = one.Limit / 2
		one.Limit -= two.Limit
		return []*part{newPart(p, []store.Quota{one}, 0), newPart(p, []store.Quota{two}, 0)}
	default:
		middle := len(p.Quotas) / 2
		return []*part{newPart(p, p.Quotas[:middle], 0), newPart(p, p.Quotas[middle:], middle)}
	}
}

// answer adds what was found, and when the next is due, to those of the claim's quotas.
func (t *part) answer(found [][]store.Claimed, quotas []store.QuotaLeft) {
	for i, c := range t.found {
		of := t.first + t.of[i]
		found[of] = append(found[of], c)
	}
	for i, next := range t.next {
		// Of two parts of one quota, the one that ended first may not have seen what the other made due at its lease's end.
		if left := &quotas[t.first+i]; left.Next.IsZero() || !next.IsZero() && next.Before(left.Next) {
			left.Next = next
		}
	}
}

// claim makes one part of a claim.
func (s *Store) claim(ctx context.Context, p store.ClaimParams, t *part, token string) error {
	err := s.transact(ctx, func(tx *transaction) {
		t.found, t.of, t.locked, t.next = nil, nil, 0, nil
		var r occurrenceRow
		var targets targetReader
		tx.rows(claimSQL, func(rows pgx.Rows) error {
			var c store.Claimed
			var callbackType *string
			var callbackData, options []byte
			var place int
			var err error
			if c.Occurrence, err = r.scan(rows, &callbackType, &callbackData, &options, &place, &t.locked); err != nil {
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
			if t.found == nil {
				t.found, t.of = make([]store.Claimed, 0, t.locked), make([]int, 0, t.locked)
			}
			t.found, t.of = append(t.found, c), append(t.of, place-1)
			return nil
		}, t.lanes, t.after, t.until, t.most, token, p.Now.UnixMilli(), p.Now.Add(p.Lease).UnixMilli())
		tx.rows(nextSQL, func(rows pgx.Rows) error {
			var next *int64
			err := rows.Scan(&next)
			t.next = append(t.next, fromMillis(next))
			return err
		}, t.lanes, p.Due().UnixMilli())
	})
	if err != nil {
		t.found, t.of, t.locked, t.next = nil, nil, 0, nil
		return err
	}
	if share(t.found) {
		return nil
	}
	return s.readTargets(ctx, t)
}

// readTargets reads the targets that are still missing. Where there is no such job any more, the occurrence went with it.
func (s *Store) readTargets(ctx context.Context, t *part) error {
	var revisions []pgtype.UUID
	found := t.found
	for i := range found {
		if found[i].Callback.Type == "" {
			revisions = append(revisions, revisionOf(found[i].Revision))
		}
	}
	err := s.transact(ctx, func(tx *transaction) {
		var targets targetReader
		tx.rows(`SELECT j.revision, j.callback_type, j.callback_data, j.options FROM (SELECT DISTINCT unnest($1::uuid[]) AS revision OFFSET 0) r
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
	t.found = nil
	of := t.of
	t.of = nil
	for i, c := range found {
		if c.Callback.Type != "" {
			t.found, t.of = append(t.found, c), append(t.of, of[i])
		}
	}
	return err
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

// pausedDueSQL finds due occurrences of paused jobs among the first of a quota.
const pausedDueSQL = `WITH first AS MATERIALIZED (
		SELECT revision, id FROM carillon.occurrences WHERE lane = $1 AND due_at > $2 AND due_at <= $3 ORDER BY due_at, timestamp LIMIT $4
	)
	SELECT o.revision, o.id, o.timestamp, j.paused_at FROM first f
	JOIN carillon.jobs j ON j.revision = ANY (ARRAY[f.revision]) AND j.paused_at IS NOT NULL
	JOIN carillon.occurrences o ON o.revision = ANY (ARRAY[f.revision]) AND o.id = f.id AND o.due_at <= $3`

// mostPutBack is among how many due occurrences those of paused jobs are looked for. It is more than most claims find, so
// that a paused backlog is soon out of the way of others.
const mostPutBack = 5000

// anyDue tells whether any occurrence is due by the quotas that nobody has locked.
func (s *Store) anyDue(ctx context.Context, p store.ClaimParams) (found bool, err error) {
	all := newPart(p, p.Quotas, 0)
	err = s.transact(ctx, func(t *transaction) {
		t.row(`WITH due AS (SELECT FROM `+quotasSQL+` CROSS JOIN LATERAL (SELECT FROM carillon.occurrences o
				WHERE o.lane = q.lane AND o.due_at > q.after AND o.due_at <= q.until ORDER BY o.due_at LIMIT least(q.most, 1)
				FOR UPDATE SKIP LOCKED) o)
			SELECT EXISTS (SELECT FROM due)`, func(row pgx.Row) error { return row.Scan(&found) }, all.lanes, all.after, all.until, all.most)
	})
	return found, err
}

// putBackEach puts back what is of paused jobs by each quota, and says so. Unseen is how many were locked and not claimed; if
// they are not all of such, any quota may have left some.
func (s *Store) putBackEach(ctx context.Context, p store.ClaimParams, left []store.QuotaLeft, unseen int) error {
	all := newPart(p, p.Quotas, 0)
	var errs []error
	for i := range p.Quotas {
		n, err := s.putBackPaused(ctx, p, all.lanes[i], all.after[i], all.until[i])
		left[i].More = left[i].More || n > 0
		unseen -= n
		errs = append(errs, err)
	}
	for i := range left {
		left[i].More = left[i].More || unseen > 0
	}
	return errors.Join(errs...)
}

// putBackPaused makes due occurrences of paused jobs due later. Their jobs stay locked until that is done, so that a job is
// resumed before, and its occurrences are not put back, or after, and they are brought forward. It waits for nobody: what
// is locked is resumed or claimed at this moment, and the next claim will see.
func (s *Store) putBackPaused(ctx context.Context, p store.ClaimParams, lane string, after, until int64) (n int, err error) {
	err = s.converse(ctx, func(ctx context.Context, tx *conversation) error {
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
				}, lane, after, until, mostPutBack)
		})
		if n = len(ids); err != nil || n == 0 {
			return err
		}
		return tx.do(ctx, func(t *transaction) {
			t.exec(`UPDATE carillon.occurrences o SET due_at = n.due_at, scheduled_at = NULL, token = NULL
				FROM unnest($1::uuid[], $2::uuid[], $3::bigint[]) AS n (revision, id, due_at)
				WHERE o.revision = ANY (ARRAY[n.revision]) AND o.id = n.id`, revisions, ids, dues)
		})
	})
	return n, err
}
