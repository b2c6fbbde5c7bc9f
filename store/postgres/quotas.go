package postgres

import (
	"math"

	"github.com/carillon-scheduler/carillon/store"
)

// quotas are the statements for the quotas of a claim. They refer to a quota by its place, and get the quotas as
// parameters.
//
// Without a backlog most claims have one quota. A claim of a few occurrences takes a sixth less time if that quota is
// not passed as a list: there is less to execute, and through a pooler, where nothing stays prepared, less to plan.
type quotas struct{ claim, next, due, paused string }

var (
	oneQuota = quotasOf(`(VALUES ($1::text, $2::bigint, $3::bigint, $4::bigint, 1::bigint))
		AS q (lane, after, until, most, place)`)
	manyQuotas = quotasOf(`unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[])
		WITH ORDINALITY AS q (lane, after, until, most, place)`)
)

func quotasOf(q string) quotas {
	// The quotas in their order, each joined with the longest due occurrences o of its lane, up to its limit. The
	// caller appends the locking clause and a parenthesis.
	due := q + ` CROSS JOIN LATERAL (SELECT o.ctid, o.revision, o.id, o.due_at, o.scheduled_at FROM carillon.occurrences o
		WHERE o.lane = q.lane AND o.due_at > q.after AND o.due_at <= q.until ORDER BY o.due_at, o.timestamp LIMIT q.most`
	return quotas{
		// Locks the longest due occurrences without a lock, and stamps them, except those of paused jobs. Returns them as
		// they were before, except their attempt, with their targets, and the total number of locked ones.
		//
		// It does not lock an occurrence that has been deleted since the statement began, or is no longer due. A locked
		// one has the revision that its job had when the statement began, since both change in one transaction; and its
		// job can't be replaced or cancelled before this transaction ends, since that deletes the occurrence.
		//
		// Locked occurrences are stamped by their physical position, which saves a second lookup, and can't change
		// while they are locked. An occurrence that was written after the statement began, and is still due, is locked
		// in its new version, but not visible at that position: it is left to the next claim.
		//
		// The subquery for the job can't be made a join of another kind, see prepareSQL.
		//
		// Of consecutive occurrences of a job, only the first has the target, which may be large. The stamped rows are
		// returned at once rather than gathered: as part of a larger query they would be copied twice more.
		claim: `WITH due AS MATERIALIZED (
				SELECT q.place, o.ctid, o.revision, o.due_at, o.scheduled_at FROM ` + due + ` FOR UPDATE SKIP LOCKED) o
			)
			UPDATE carillon.occurrences o SET token = $5, scheduled_at = $6, due_at = $7, attempt = o.attempt + 1
			FROM (SELECT *, lag(revision) OVER () IS NOT DISTINCT FROM revision AS follows FROM due) d
				LEFT JOIN LATERAL (SELECT * FROM carillon.jobs j WHERE j.revision = d.revision OFFSET 0) j ON true
			WHERE o.ctid = d.ctid AND j.paused_at IS NULL
			RETURNING coalesce(j.tenant, o.tenant), coalesce(j.key, o.key), o.lane, o.revision, o.id, o.position,
				o.step, o.subscriber, o.timestamp, d.due_at, d.scheduled_at, NULL, o.attempt, o.last_error, o.failed_at,
				CASE WHEN j.revision IS NULL THEN o.callback_type WHEN NOT d.follows THEN j.callback_type END,
				CASE WHEN j.revision IS NULL THEN o.callback_data WHEN NOT d.follows THEN j.callback_data END,
				CASE WHEN j.revision IS NULL THEN o.options WHEN NOT d.follows THEN j.options END,
				d.place, (SELECT count(*) FROM due), o.ctid`,
		// Returns for each quota the time at which the lane's next occurrence that is not due yet becomes due. It
		// includes the occurrences that this claim has made due at its lease's end.
		next: `SELECT (SELECT o.due_at FROM carillon.occurrences o WHERE o.lane = q.lane AND o.due_at > $5
				ORDER BY o.due_at LIMIT 1)
			FROM ` + q + ` ORDER BY q.place`,
		// Returns the places of the quotas that have due occurrences without a lock.
		due: `SELECT q.place FROM ` + due + ` FOR UPDATE SKIP LOCKED) o`,
		// Locks the due occurrences of paused jobs, and these jobs.
		paused: `WITH first AS MATERIALIZED (SELECT o.revision, o.id, q.until FROM ` + due + `) o)
			SELECT o.revision, o.id, o.timestamp, j.paused_at FROM first f
			JOIN carillon.jobs j ON j.revision = ANY (ARRAY[f.revision]) AND j.paused_at IS NOT NULL
			JOIN carillon.occurrences o ON o.revision = ANY (ARRAY[f.revision]) AND o.id = f.id AND o.due_at <= f.until
			FOR SHARE OF j SKIP LOCKED FOR UPDATE OF o SKIP LOCKED`,
	}
}

// quotaColumns are quotas, by column.
type quotaColumns struct {
	lane               []string
	after, until, most []int64
}

func (c *quotaColumns) add(p store.ClaimParams, q store.Quota, most int) {
	after, until := p.Range(q)
	bound := int64(math.MinInt64)
	if !after.IsZero() {
		bound = after.UnixMilli()
	}
	c.lane, c.most = append(c.lane, q.Lane.String()), append(c.most, int64(most))
	c.after, c.until = append(c.after, bound), append(c.until, until.UnixMilli())
}

// statements returns the statements for this number of quotas, and their parameters: the quotas, and then more.
func (c *quotaColumns) statements(more ...any) (sql *quotas, args []any) {
	if len(c.lane) == 1 {
		return &oneQuota, append([]any{c.lane[0], c.after[0], c.until[0], c.most[0]}, more...)
	}
	return &manyQuotas, append([]any{c.lane, c.after, c.until, c.most}, more...)
}
