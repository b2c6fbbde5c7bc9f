package postgres

import (
	"cmp"
	"context"
	"slices"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/carillon-scheduler/carillon/store"
)

// Settle implements [store.Queue]: all settlements are one transaction, unless there is much to bury, since the server takes
// no more than 1 GB at once.
func (s *Store) Settle(ctx context.Context, settlements []store.Settlement) error {
	for len(settlements) > 0 {
		part := upTo(settlements, func(t store.Settlement) int {
			if t.Outcome != store.Bury {
				return 0
			}
			return len(t.Target.Callback.Data)
		})
		if err := s.settle(ctx, part); err != nil {
			return err
		}
		settlements = settlements[len(part):]
	}
	return nil
}

// settle has one statement for each way of ending.
func (s *Store) settle(ctx context.Context, settlements []store.Settlement) error {
	ordered := make([]*store.Settlement, len(settlements)) // they are large
	for i := range settlements {
		ordered[i] = &settlements[i]
	}
	slices.SortStableFunc(ordered, func(a, b *store.Settlement) int { return a.ID.Compare(b.ID) })
	var acks, misses, buries, again settlementColumns
	for _, t := range ordered {
		switch t.Outcome {
		case store.Ack:
			acks.add(t)
		case store.Miss:
			misses.add(t)
		case store.Bury:
			buries.add(t)
		case store.Retry, store.Release:
			again.add(t)
		}
	}
	return s.transact(ctx, func(t *transaction) {
		if len(acks.id) < len(ordered) {
			lockJobs(t, misses, again)
			all := settlementColumns{}
			for _, s := range ordered {
				all.id, all.token = append(all.id, uuid(s.ID)), append(all.token, s.Token)
			}
			t.exec(`SELECT FROM unnest($1::uuid[], $2::text[]) WITH ORDINALITY AS s (id, token, place)
				JOIN carillon.occurrences o ON o.id = ANY (ARRAY[s.id]) AND o.token = s.token ORDER BY s.place FOR UPDATE OF o`, all.id, all.token)
		}
		if len(acks.id) > 0 {
			t.exec(`DELETE FROM carillon.occurrences o USING unnest($1::uuid[], $2::text[]) AS s (id, token)
				WHERE o.id = ANY (ARRAY[s.id]) AND o.token = s.token`, acks.id, acks.token)
		}
		if len(misses.id) > 0 {
			t.exec(`WITH missed AS (
					DELETE FROM carillon.occurrences o USING unnest($1::uuid[], $2::text[]) AS s (id, token)
					WHERE o.id = ANY (ARRAY[s.id]) AND o.token = s.token
					RETURNING o.tenant, o.key, o.revision
				)
				UPDATE carillon.jobs j SET missed = j.missed + m.n
				FROM (SELECT tenant, key, revision, count(*) AS n FROM missed WHERE revision <> '' GROUP BY tenant, key, revision) m
				WHERE j.tenant = ANY (ARRAY[m.tenant]) AND j.key = m.key AND j.revision = m.revision`, misses.id, misses.token)
		}
		if len(again.id) > 0 {
			t.exec(`WITH again AS (
					UPDATE carillon.occurrences o SET due_at = s.due_at, last_error = coalesce(s.error, CASE WHEN s.undo THEN o.last_error END),
						attempt = o.attempt - CASE WHEN s.undo THEN 1 ELSE 0 END, scheduled_at = NULL, token = NULL
					FROM unnest($1::uuid[], $2::text[], $3::bigint[], $4::text[], $5::boolean[], $6::bigint[])
						AS s (id, token, due_at, error, undo, keep_until)
					WHERE o.id = ANY (ARRAY[s.id]) AND o.token = s.token
					RETURNING o.tenant, o.key, o.revision, s.keep_until
				)
				UPDATE carillon.jobs j SET expires_at = a.keep_until
				FROM (SELECT tenant, key, revision, max(keep_until) AS keep_until FROM again WHERE revision <> ''
					GROUP BY tenant, key, revision) a
				WHERE j.tenant = ANY (ARRAY[a.tenant]) AND j.key = a.key AND j.revision = a.revision AND j.expires_at < a.keep_until`,
				again.id, again.token, again.dueAt, again.lastError, again.undo, again.keepUntil)
		}
		if len(buries.id) > 0 {
			t.exec(`UPDATE carillon.occurrences o SET revision = '', due_at = NULL, scheduled_at = NULL, token = NULL,
					failed_at = s.failed_at, last_error = s.error, callback_type = s.callback_type, callback_data = s.callback_data,
					options = s.options
				FROM unnest($1::uuid[], $2::text[], $3::bigint[], $4::text[], $5::text[], $6::bytea[], $7::bytea[])
					AS s (id, token, failed_at, error, callback_type, callback_data, options)
				WHERE o.id = ANY (ARRAY[s.id]) AND o.token = s.token`,
				buries.id, buries.token, buries.failedAt, buries.lastError, buries.callbackType, buries.callbackData, buries.options)
		}
	})
}

// lockJobs locks the jobs that settlements will write, before any occurrence is: those that count a missed instant, and
// those that would expire too soon.
func lockJobs(t *transaction, misses, again settlementColumns) {
	type name struct {
		tenant, key, revision string
		keepUntil             int64
	}
	var all []name
	for i := range misses.id {
		all = append(all, name{misses.tenant[i], misses.key[i], misses.revision[i], maxMillis})
	}
	for i := range again.id {
		all = append(all, name{again.tenant[i], again.key[i], again.revision[i], again.keepUntil[i]})
	}
	slices.SortFunc(all, func(a, b name) int {
		return cmp.Or(cmp.Compare(a.tenant, b.tenant), cmp.Compare(a.key, b.key), cmp.Compare(a.revision, b.revision), cmp.Compare(b.keepUntil, a.keepUntil))
	})
	var tenants, keys, revisions []string
	var keepUntil []int64
	for i, n := range all {
		if n.revision == "" || i > 0 && n.tenant == all[i-1].tenant && n.key == all[i-1].key && n.revision == all[i-1].revision {
			continue
		}
		tenants, keys, revisions = append(tenants, n.tenant), append(keys, n.key), append(revisions, n.revision)
		keepUntil = append(keepUntil, n.keepUntil)
	}
	if len(tenants) == 0 {
		return
	}
	t.exec(`SELECT FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[]) WITH ORDINALITY AS n (tenant, key, revision, keep_until, place)
		JOIN carillon.jobs j ON j.tenant = ANY (ARRAY[n.tenant]) AND j.key = n.key AND j.revision = n.revision AND j.expires_at < n.keep_until
		ORDER BY n.place FOR NO KEY UPDATE OF j`, tenants, keys, revisions, keepUntil)
}

// maxMillis is later than any time.
const maxMillis = 1 << 62

// settlementColumns are settlements by column.
type settlementColumns struct {
	id                           []pgtype.UUID
	token, tenant, key, revision []string
	dueAt, keepUntil, failedAt   []int64
	lastError                    []*string
	undo                         []bool
	callbackType                 []string
	callbackData, options        [][]byte
}

func (c *settlementColumns) add(t *store.Settlement) {
	c.id, c.token = append(c.id, uuid(t.ID)), append(c.token, t.Token)
	if t.Outcome == store.Ack { // nearly all of them
		return
	}
	c.tenant, c.key, c.revision = append(c.tenant, t.Name.Tenant), append(c.key, t.Name.Key), append(c.revision, string(t.Revision))
	c.lastError = append(c.lastError, nullable(text(t.Error)))
	if t.Outcome == store.Bury {
		c.failedAt = append(c.failedAt, t.At.UnixMilli())
		c.callbackType, c.callbackData = append(c.callbackType, t.Target.Callback.Type), append(c.callbackData, data(t.Target.Callback))
		c.options = append(c.options, t.Target.Options.Encode())
		return
	}
	c.dueAt, c.keepUntil = append(c.dueAt, t.DueAt.UnixMilli()), append(c.keepUntil, t.KeepUntil.UnixMilli())
	c.undo = append(c.undo, t.Outcome == store.Release)
}
