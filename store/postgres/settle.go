package postgres

import (
	"bytes"
	"cmp"
	"context"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Settle implements [store.Queue]: all settlements are one transaction, unless the dead letters are large, since the
// server accepts at most 1 GB at once, or some claimed rows have moved.
func (s *Store) Settle(ctx context.Context, settlements []store.Settlement) error {
	for len(settlements) > 0 {
		part := upTo(settlements, func(t store.Settlement) int {
			if t.Outcome != store.Bury {
				return 0
			}
			return len(t.Target.Callback.Data)
		})
		settlements = settlements[len(part):]
		done, err := s.ackPlaced(ctx, part)
		if err != nil {
			return err
		}
		for !done && len(part) > 0 {
			found, err := s.settle(ctx, part)
			if err != nil {
				return err
			}
			if found == len(part) {
				break
			}
			if part, err = s.carriedOver(ctx, part); err != nil {
				return err
			}
		}
	}
	return nil
}

// ackPlaced deletes delivered occurrences where their claims have left them, which takes no look-up in an index. It
// reports whether that was all: a row has another place if it was written since, such as carried over, or if the table
// was rewritten. If there are other outcomes, or unknown places, it does nothing.
func (s *Store) ackPlaced(ctx context.Context, settlements []store.Settlement) (all bool, err error) {
	for i := range settlements {
		if t := &settlements[i]; t.Outcome != store.Ack || t.Hint == 0 {
			return false, nil
		}
	}
	ordered := inOrder(settlements)
	at, ids := make([]pgtype.TID, len(ordered)), make([]pgtype.UUID, len(ordered))
	tokens := make([]string, len(ordered))
	for i, t := range ordered {
		at[i], ids[i], tokens[i] = positionOf(t.Hint), uuid(t.ID), t.Token
	}
	deleted := 0
	err = s.transact(ctx, func(t *transaction) {
		t.affected(&deleted, `DELETE FROM carillon.occurrences o
			USING unnest($1::tid[], $2::uuid[], $3::text[]) AS s (place, id, token)
			WHERE o.ctid = s.place AND o.id = s.id AND o.token = s.token`, at, ids, tokens)
	})
	return deleted == len(settlements), err
}

// carriedOver returns the settlements whose occurrences their claims still hold, but which have been carried over to
// another revision. The returned settlements name that revision. Settled occurrences are no longer found.
func (s *Store) carriedOver(ctx context.Context, settlements []store.Settlement) (moved []store.Settlement, err error) {
	var c settlementColumns
	var tenants, keys []string
	for i := range settlements {
		t := &settlements[i]
		if t.Revision != "" {
			c.name(t)
			tenants, keys = append(tenants, t.Name.Tenant), append(keys, t.Name.Key)
		}
	}
	if len(tenants) == 0 {
		return nil, nil
	}
	type claim struct {
		id    job.ID
		token string
	}
	now := make(map[claim]job.Revision)
	err = s.transact(ctx, func(t *transaction) {
		t.rows(`SELECT o.id, o.token, o.revision FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[])
				AS s (revision, id, token, tenant, key)
			JOIN carillon.jobs j ON j.tenant = ANY (ARRAY[s.tenant]) AND j.key = s.key AND j.revision <> s.revision
			JOIN carillon.occurrences o ON o.revision = ANY (ARRAY[j.revision]) AND o.id = s.id AND o.token = s.token`,
			func(rows pgx.Rows) error {
				var id, revision pgtype.UUID
				var token string
				err := rows.Scan(&id, &token, &revision)
				now[claim{id.Bytes, token}] = revisionFrom(revision)
				return err
			}, c.revision, c.id, c.token, tenants, keys)
	})
	for _, t := range settlements {
		if revision, ok := now[claim{t.ID, t.Token}]; ok {
			t.Revision = revision
			moved = append(moved, t)
		}
	}
	return moved, err
}

// heldSQL is the condition that selects the occurrences of settlements s whose claims still hold.
const heldSQL = `o.revision = ANY (ARRAY[s.revision]) AND o.id = s.id AND o.token = s.token`

// settle runs one statement for each outcome. It returns the number of occurrences found.
func (s *Store) settle(ctx context.Context, settlements []store.Settlement) (found int, err error) {
	ordered := inOrder(settlements)
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
	err = s.transact(ctx, func(t *transaction) {
		if len(acks.id) < len(ordered) {
			lockJobs(t, again, misses, buries)
			all := settlementColumns{}
			for _, s := range ordered {
				all.name(s)
			}
			t.affected(&found, `SELECT FROM unnest($1::uuid[], $2::uuid[], $3::text[]) WITH ORDINALITY
					AS s (revision, id, token, place)
				JOIN carillon.occurrences o ON `+heldSQL+` ORDER BY s.place FOR UPDATE OF o`, all.revision, all.id, all.token)
		}
		if len(acks.id) > 0 {
			deleted := new(int)
			if len(acks.id) == len(ordered) {
				deleted = &found
			}
			t.affected(deleted, `DELETE FROM carillon.occurrences o
				USING unnest($1::uuid[], $2::uuid[], $3::text[]) AS s (revision, id, token)
				WHERE `+heldSQL, acks.revision, acks.id, acks.token)
		}
		if len(misses.id) > 0 {
			t.exec(`WITH missed AS (
					DELETE FROM carillon.occurrences o
					USING unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[]) AS s (revision, id, token, trouble)
					WHERE `+heldSQL+` RETURNING s.revision, s.trouble
				)
				UPDATE carillon.jobs j SET missed = j.missed + m.n, trouble = greatest(j.trouble, m.trouble)
				FROM (SELECT revision, count(*) AS n, max(trouble COLLATE "C") AS trouble FROM missed GROUP BY revision) m
				WHERE j.revision = ANY (ARRAY[m.revision])`, misses.revision, misses.id, misses.token, misses.trouble)
		}
		if len(again.id) > 0 {
			t.exec(`WITH again AS (
					UPDATE carillon.occurrences o SET due_at = s.due_at,
						last_error = coalesce(s.error, CASE WHEN s.undo THEN o.last_error END),
						attempt = o.attempt - CASE WHEN s.undo THEN 1 ELSE 0 END, scheduled_at = NULL, token = NULL
					FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::bigint[], $5::text[], $6::boolean[], $7::bigint[])
						AS s (revision, id, token, due_at, error, undo, keep_until)
					WHERE `+heldSQL+` RETURNING o.revision, s.keep_until
				)
				UPDATE carillon.jobs j SET expires_at = a.keep_until
				FROM (SELECT revision, max(keep_until) AS keep_until FROM again GROUP BY revision) a
				WHERE j.revision = ANY (ARRAY[a.revision]) AND j.expires_at < a.keep_until`,
				again.revision, again.id, again.token, again.dueAt, again.lastError, again.undo, again.keepUntil)
		}
		if len(buries.id) > 0 {
			t.exec(`WITH buried AS (
				UPDATE carillon.occurrences o SET revision = $11, tenant = s.tenant, key = s.key,
						due_at = NULL, scheduled_at = NULL, token = NULL, failed_at = s.failed_at, last_error = s.error,
						callback_type = s.callback_type, callback_data = s.callback_data, options = s.options
					FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::text[],
						$8::text[], $9::bytea[], $10::bytea[], $12::text[])
						AS s (revision, id, token, tenant, key, failed_at, error,
							callback_type, callback_data, options, trouble)
					WHERE `+heldSQL+` RETURNING s.revision, s.trouble
				)
				UPDATE carillon.jobs j SET failed = j.failed + b.n, trouble = greatest(j.trouble, b.trouble)
				FROM (SELECT revision, count(*) AS n, max(trouble COLLATE "C") AS trouble FROM buried GROUP BY revision) b
				WHERE j.revision = ANY (ARRAY[b.revision])`, buries.revision, buries.id, buries.token,
				buries.tenant, buries.key, buries.failedAt, buries.lastError,
				buries.callbackType, buries.callbackData, buries.options, own, buries.trouble)
		}
	})
	return found, err
}

// inOrder returns settlements in the order of row locks.
func inOrder(settlements []store.Settlement) []*store.Settlement {
	ordered := make([]*store.Settlement, len(settlements)) // pointers, since settlements are large
	for i := range settlements {
		ordered[i] = &settlements[i]
	}
	slices.SortStableFunc(ordered, func(a, b *store.Settlement) int {
		return compareKept(a.Revision, b.Revision, a.ID, b.ID)
	})
	return ordered
}

// lockJobs locks the jobs that settlements will write, before any occurrence: those that would expire too soon, and
// those that count missed or failed occurrences.
func lockJobs(t *transaction, again settlementColumns, counted ...settlementColumns) {
	type name struct {
		tenant, key string
		revision    pgtype.UUID
		keepUntil   int64
	}
	var all []name
	for _, c := range counted {
		for i := range c.id {
			all = append(all, name{c.tenant[i], c.key[i], c.revision[i], maxMillis})
		}
	}
	for i := range again.id {
		all = append(all, name{again.tenant[i], again.key[i], again.revision[i], again.keepUntil[i]})
	}
	slices.SortFunc(all, func(a, b name) int {
		return cmp.Or(cmp.Compare(a.tenant, b.tenant), cmp.Compare(a.key, b.key),
			bytes.Compare(a.revision.Bytes[:], b.revision.Bytes[:]), cmp.Compare(b.keepUntil, a.keepUntil))
	})
	var revisions []pgtype.UUID
	var keepUntil []int64
	for i, n := range all {
		if n.revision != own && (i == 0 || n.revision != all[i-1].revision) {
			revisions, keepUntil = append(revisions, n.revision), append(keepUntil, n.keepUntil)
		}
	}
	if len(revisions) == 0 {
		return
	}
	t.exec(`SELECT FROM unnest($1::uuid[], $2::bigint[]) WITH ORDINALITY AS n (revision, keep_until, place)
		JOIN carillon.jobs j ON j.revision = ANY (ARRAY[n.revision]) AND j.expires_at < n.keep_until
		ORDER BY n.place FOR NO KEY UPDATE OF j`, revisions, keepUntil)
}

// maxMillis is later than any time.
const maxMillis = 1 << 62

// settlementColumns are settlements, by column.
type settlementColumns struct {
	revision, id               []pgtype.UUID
	token, tenant, key         []string
	dueAt, keepUntil, failedAt []int64
	lastError                  []*string
	undo                       []bool
	trouble                    []string
	callbackType               []string
	callbackData, options      [][]byte
}

func (c *settlementColumns) add(t *store.Settlement) {
	c.name(t)
	if t.Outcome == store.Ack { // the usual outcome
		return
	}
	c.tenant, c.key = append(c.tenant, t.Name.Tenant), append(c.key, t.Name.Key)
	c.lastError = append(c.lastError, nullable(text(t.Error)))
	if t.Outcome == store.Bury || t.Outcome == store.Miss {
		c.trouble = append(c.trouble, t.Trouble().Encode())
	}
	if t.Outcome == store.Bury {
		c.failedAt = append(c.failedAt, t.At.UnixMilli())
		c.callbackType = append(c.callbackType, t.Target.Callback.Type)
		c.callbackData = append(c.callbackData, data(t.Target.Callback))
		c.options = append(c.options, t.Target.Options.Encode())
		return
	}
	c.dueAt, c.keepUntil = append(c.dueAt, t.DueAt.UnixMilli()), append(c.keepUntil, t.KeepUntil.UnixMilli())
	c.undo = append(c.undo, t.Outcome == store.Release)
}

// name adds the columns that identify the claim that a settlement ends.
func (c *settlementColumns) name(t *store.Settlement) {
	c.revision, c.id = append(c.revision, keptUnder(t.Revision)), append(c.id, uuid(t.ID))
	c.token = append(c.token, t.Token)
}
