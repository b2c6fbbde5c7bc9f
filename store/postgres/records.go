package postgres

import (
	"cmp"
	"context"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Records implements [store.Records].
func (s *Store) Records(ctx context.Context, f store.RecordFilter) (page []store.Record, err error) {
	if len(f.Keys) > 0 {
		keys := slices.DeleteFunc(f.Wanted(), func(key string) bool { return !storable(key) })
		return s.records(ctx, `unnest($4::text[]) WITH ORDINALITY AS wanted (key, place)
			JOIN carillon.records r ON r.collection = ANY (ARRAY[$1]) AND r.key = wanted.key
			WHERE (r.expires_at IS NULL OR r.expires_at > $2) ORDER BY place LIMIT $3`,
			f.Collection, f.Now.UnixMilli(), f.Limit, keys)
	}
	if !storable(f.Prefix) {
		return nil, nil
	}
	return s.records(ctx, `carillon.records r
		WHERE r.collection = $1 AND r.key >= $4 AND r.key < $5 AND r.key > $6 AND (r.expires_at IS NULL OR r.expires_at > $2)
		ORDER BY r.key LIMIT $3`,
		f.Collection, f.Now.UnixMilli(), f.Limit, f.Prefix, afterPrefix(f.Prefix), text(f.After))
}

// records reads the selected records.
func (s *Store) records(ctx context.Context, from string, args ...any) (page []store.Record, err error) {
	err = s.transact(ctx, func(t *transaction) {
		page = nil
		t.rows(`SELECT r.key, r.version, r.expires_at, r.body FROM `+from, func(rows pgx.Rows) error {
			var r store.Record
			var expires *int64
			err := rows.Scan(&r.Key, &r.Version, &expires, &r.Body)
			r.ExpiresAt = fromMillis(expires)
			page = append(page, r)
			return err
		}, args...)
	})
	return page, err
}

// WriteRecords implements [store.Records]. It makes all changes in one transaction, in the order of their keys, so that
// concurrent changes of the same records do not deadlock.
func (s *Store) WriteRecords(ctx context.Context, changes []store.RecordChange) []error {
	answers := make([]error, len(changes))
	var order []int
	for i := range changes {
		if answers[i] = changes[i].Check(); answers[i] == nil {
			order = append(order, i)
		}
	}
	if len(order) == 0 {
		return answers
	}
	slices.SortStableFunc(order, func(a, b int) int {
		a1, b1 := &changes[a], &changes[b]
		return cmp.Or(cmp.Compare(a1.Collection, b1.Collection), cmp.Compare(a1.Key, b1.Key))
	})
	err := s.changeOnce(ctx, func(t *transaction) {
		for _, i := range order {
			t.changeRecord(&changes[i], &answers[i])
		}
	})
	if err != nil {
		for _, i := range order {
			answers[i] = err
		}
	}
	return answers
}

// changeRecord adds the statements that make a change and set its result. A change that was made before matches too,
// and writes the same values again.
func (t *transaction) changeRecord(c *store.RecordChange, answer *error) {
	now := c.Now.UnixMilli()
	if c.Body == nil {
		t.row(`SELECT coalesce((SELECT version FROM carillon.records
				WHERE collection = $1 AND key = $2 AND (expires_at IS NULL OR expires_at > $3) FOR UPDATE), '')`,
			func(row pgx.Row) error {
				var present job.Revision
				err := row.Scan(&present)
				_, *answer = c.Judge(present)
				return err
			}, c.Collection, c.Key, now)
		t.exec(`DELETE FROM carillon.records
			WHERE collection = $1 AND key = $2 AND (expires_at <= $3 OR NOT $4 AND $5 IN ('', version))`,
			c.Collection, c.Key, now, c.If.Absent, string(c.If.Version))
		return
	}
	const insert = `INSERT INTO carillon.records AS r (collection, key, version, expires_at, body)
		VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (collection, key) DO UPDATE
		SET version = excluded.version, expires_at = excluded.expires_at, body = excluded.body`
	args := []any{c.Collection, c.Key, string(c.Version), millis(c.ExpiresAt), c.Body}
	switch {
	case c.If.Absent:
		t.answer(answer, insert+` WHERE r.version = excluded.version OR r.expires_at <= $6`, append(args, now)...)
	case c.If.Version != "":
		t.answer(answer, `UPDATE carillon.records SET version = $3, expires_at = $4, body = $5
			WHERE collection = $1 AND key = $2 AND (expires_at IS NULL OR expires_at > $6) AND version IN ($3, $7)`,
			append(args, now, string(c.If.Version))...)
	default:
		t.answer(answer, insert, args...)
	}
}

// answer adds a statement that writes a record, or writes nothing if its condition does not hold.
func (t *transaction) answer(answer *error, sql string, args ...any) {
	t.batch.Queue(t.store.in(sql), args...).Exec(func(tag pgconn.CommandTag) error {
		*answer = nil
		if tag.RowsAffected() == 0 {
			*answer = store.ErrPrecondition
		}
		return nil
	})
}
