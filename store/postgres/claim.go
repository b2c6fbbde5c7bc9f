package postgres

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// splitFrom is the smallest number of occurrences for which a claim is divided into two.
const splitFrom = 200

// Claim implements [store.Queue]. There are no orphans, and no occurrence is beyond its job's cursor.
//
// While claims find more than half of their limits, a claim runs as two concurrent transactions, each for one half. The
// server uses one core for each connection, and writes one half to its disk while it looks up the other. Each
// transaction skips the occurrences that the other has locked, as the claims of two replicas do.
func (s *Store) Claim(ctx context.Context, p store.ClaimParams) (store.Claim, error) {
	parts := []*part{newPart(p.Quotas, 0)}
	if s.behind.Load() {
		parts = halves(p.Quotas)
	}
	token := job.NewToken()
	errs := make([]error, len(parts))
	var group sync.WaitGroup
	for i, t := range parts[1:] {
		group.Go(func() { errs[i+1] = s.claim(ctx, p, t, token) })
	}
	errs[0] = s.claim(ctx, p, parts[0], token)
	group.Wait()

	claim := store.Claim{Quotas: make([]store.QuotaLeft, len(p.Quotas))}
	room := 0
	for i, q := range p.Quotas {
		left := &claim.Quotas[i]
		before := len(claim.Occurrences)
		for n, t := range parts {
			if k := i - t.first; k >= 0 && k < len(t.quotas) {
				claim.Occurrences = append(claim.Occurrences, t.found[k]...)
				left.More = left.More || t.more[k] || errs[n] != nil
				if next := t.next[k]; left.Next.IsZero() || !next.IsZero() && next.Before(left.Next) {
					left.Next = next
				}
			}
		}
		found := claim.Occurrences[before:]
		left.Found = len(found)
		// If both parts have the same quota, neither need have seen the occurrences that the other made due at the lease's
		// end.
		if ends := p.Now.Add(p.Lease); left.Found > 0 && (left.Next.IsZero() || ends.Before(left.Next)) {
			left.Next = ends
		}
		room += q.Limit
		left.More = left.More || left.Found == q.Limit
		// The rows of a part have this order as long as the planner joins in the order of the locking subquery.
		longestDue := func(a, b store.Claimed) int { return a.DueAt.Compare(b.DueAt) }
		if !slices.IsSortedFunc(found, longestDue) {
			slices.SortStableFunc(found, longestDue)
		}
	}
	if len(claim.Occurrences) == 0 { // a part's claims stand, even if the other part failed
		if err := errors.Join(errs...); err != nil {
			return store.Claim{}, err
		}
	}
	s.behind.Store(len(claim.Occurrences) > room/2)
	for i := range claim.Occurrences {
		c := &claim.Occurrences[i]
		c.Token, c.ScheduledAt, c.DueAt = token, p.Now, p.Now.Add(p.Lease)
	}
	return claim, nil
}

// part is one of the transactions of a claim, with its result for each of its quotas.
type part struct {
	first  int // index of its first quota among the claim's
	quotas []store.Quota
	found  [][]store.Claimed // as they were before the claim, except their attempt
	next   []time.Time
	more   []bool // whether due occurrences were skipped
}

func newPart(quotas []store.Quota, first int) *part {
	t := &part{first: first, quotas: quotas, more: make([]bool, len(quotas))}
	t.clear()
	return t
}

// clear forgets the occurrences found.
func (t *part) clear() {
	t.found, t.next = make([][]store.Claimed, len(t.quotas)), make([]time.Time, len(t.quotas))
}

// halves returns the two parts of a large claim. They share a quota in the middle.
func halves(quotas []store.Quota) []*part {
	room := 0
	for _, q := range quotas {
		room += q.Limit
	}
	if room < splitFrom {
		return []*part{newPart(quotas, 0)}
	}
	room /= 2
	middle := 0
	for ; quotas[middle].Limit <= room; middle++ {
		room -= quotas[middle].Limit
	}
	one, two := slices.Clone(quotas[:middle+1]), slices.Clone(quotas[middle:])
	one[middle].Limit = room
	two[0].Limit -= room
	return []*part{newPart(one, 0), newPart(two, middle)}
}

// claim makes one part of a claim, and reads when each lane's next occurrence becomes due. The occurrences that it has
// found are claimed even if it returns an error.
func (s *Store) claim(ctx context.Context, p store.ClaimParams, t *part, token string) error {
	var c quotaColumns
	for _, q := range t.quotas {
		c.add(p, q, q.Limit)
	}
	sql, args := c.statements(token, p.Now.UnixMilli(), p.Now.Add(p.Lease).UnixMilli())
	_, nextArgs := c.statements(p.Due().UnixMilli())
	found, locked := 0, 0
	err := s.transact(ctx, func(tx *transaction) {
		t.clear()
		found, locked = 0, 0
		var r occurrenceRow
		var targets targetReader
		tx.rows(sql.claim, func(rows pgx.Rows) error {
			var c store.Claimed
			var callbackType *string
			var callbackData, options []byte
			var place int
			var at pgtype.TID
			var err error
			if c.Occurrence, err = r.scan(rows, &callbackType, &callbackData, &options, &place, &locked, &at); err != nil {
				return err
			}
			c.Hint = hintOf(at)
			if callbackType != nil {
				c.Target, c.Fault = targets.read(callbackType, callbackData, options)
				if c.Revision == "" {
					own := c.Target
					c.Own = &own
				}
			}
			c.Reclaimed = !c.ScheduledAt.IsZero()
			of := &t.found[place-1]
			if *of == nil {
				*of = make([]store.Claimed, 0, min(t.quotas[place-1].Limit, locked-found))
			}
			*of = append(*of, c)
			found++
			return nil
		}, args...)
		place := 0
		tx.rows(sql.next, func(rows pgx.Rows) error {
			var next *int64
			err := rows.Scan(&next)
			t.next[place] = fromMillis(next)
			place++
			return err
		}, nextArgs...)
	})
	if err != nil {
		t.clear()
		return err
	}
	if !share(t.found) {
		err = errors.Join(err, s.readTargets(ctx, t.found))
	}
	if found > 0 && found == locked {
		return err
	}
	return errors.Join(err, s.passedOver(ctx, p, t))
}

// share gives each occurrence without a target the target of the previous one, which is of the same job. It reports
// whether all have a target; the previous one may have been skipped.
func share(found [][]store.Claimed) (all bool) {
	all = true
	var before *store.Claimed
	for _, of := range found {
		for i := range of {
			c := &of[i]
			if c.Callback.Type == "" && before != nil && before.Revision == c.Revision {
				c.Target, c.Fault = before.Target, before.Fault
			}
			all = all && c.Callback.Type != ""
			before = c
		}
	}
	return all
}

// readTargets reads the targets that are still missing. If a job no longer exists, its occurrence was deleted with it.
func (s *Store) readTargets(ctx context.Context, found [][]store.Claimed) error {
	missing := make(map[pgtype.UUID][]*store.Claimed)
	for _, of := range found {
		for i := range of {
			if c := &of[i]; c.Callback.Type == "" {
				missing[revisionOf(c.Revision)] = append(missing[revisionOf(c.Revision)], c)
			}
		}
	}
	err := s.transact(ctx, func(tx *transaction) {
		var targets targetReader
		tx.rows(`SELECT j.revision, j.callback_type, j.callback_data, j.options FROM unnest($1::uuid[]) AS r (revision)
			JOIN carillon.jobs j ON j.revision = ANY (ARRAY[r.revision])`,
			func(rows pgx.Rows) error {
				var revision pgtype.UUID
				var callbackType *string
				var callbackData, options []byte
				err := rows.Scan(&revision, &callbackType, &callbackData, &options)
				target, fault := targets.read(callbackType, callbackData, options)
				for _, c := range missing[revision] {
					c.Target, c.Fault = target, fault
				}
				return err
			}, slices.Collect(maps.Keys(missing)))
	})
	for i := range found {
		found[i] = slices.DeleteFunc(found[i], func(c store.Claimed) bool { return c.Callback.Type == "" })
	}
	return err
}

// mostPutBack is the number of due occurrences that are searched for those of paused jobs. It exceeds the size of most
// claims, so that a paused backlog soon no longer delays others.
const mostPutBack = 5000

// passedOver finds the quotas whose lanes still have unlocked due occurrences although the quotas' limits left room.
// Most likely these are of paused jobs, and passedOver puts them back. If that fails, the next claim does it.
func (s *Store) passedOver(ctx context.Context, p store.ClaimParams, t *part) error {
	var open, left quotaColumns
	var opened, due []int
	for i, q := range t.quotas {
		if len(t.found[i]) < q.Limit {
			open.add(p, q, 1)
			opened = append(opened, i)
		}
	}
	sql, args := open.statements()
	err := s.transact(ctx, func(tx *transaction) {
		due = nil
		tx.rows(sql.due, func(rows pgx.Rows) error {
			var place int
			err := rows.Scan(&place)
			due = append(due, opened[place-1])
			return err
		}, args...)
	})
	if err != nil || len(due) == 0 {
		return err
	}
	for _, i := range due {
		t.more[i] = true
		left.add(p, t.quotas[i], max(t.quotas[i].Limit, mostPutBack/len(due)))
	}
	return s.putBackPaused(ctx, p, left)
}

// putBackPaused postpones due occurrences of paused jobs. The jobs stay locked until that is done: a resume comes
// either before, and the job's occurrences are not put back, or after, and brings them forward. It never waits for a
// lock: a locked job or occurrence is being resumed or claimed, and is left to the next claim.
func (s *Store) putBackPaused(ctx context.Context, p store.ClaimParams, c quotaColumns) error {
	sql, args := c.statements()
	return s.converse(ctx, func(ctx context.Context, tx *conversation) error {
		var revisions, ids []pgtype.UUID
		var dues []int64
		err := tx.do(ctx, func(t *transaction) {
			t.rows(sql.paused,
				func(rows pgx.Rows) error {
					var revision, id pgtype.UUID
					var timestamp, pausedAt int64
					err := rows.Scan(&revision, &id, &timestamp, &pausedAt)
					revisions, ids = append(revisions, revision), append(ids, id)
					dues = append(dues, store.PutBackPaused(time.UnixMilli(timestamp), time.UnixMilli(pausedAt), p).UnixMilli())
					return err
				}, args...)
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
