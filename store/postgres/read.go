package postgres

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Jobs implements [store.Jobs].
func (s *Store) Jobs(ctx context.Context, f store.JobFilter) (page []store.JobStatus, err error) {
	if !storable(f.Tenant, f.Key, f.Prefix) {
		return nil, nil
	}
	columns := jobColumnsSQL
	if f.Whole {
		columns += `, j.callback_data, j.options, j.schedule`
	}
	where, args := `tenant = $1 AND key > $2`, []any{f.Tenant, text(f.After), f.Limit}
	switch {
	case f.Key != "":
		where, args = where+` AND key = $4`, append(args, f.Key)
	case f.Prefix != "":
		where, args = where+` AND key >= $4 AND key < $5`, append(args, f.Prefix, afterPrefix(f.Prefix))
	}
	var names []job.Name
	err = s.transact(ctx, func(t *transaction) {
		page, names = nil, nil
		var r jobRow
		t.rows(`SELECT `+columns+` FROM carillon.jobs j WHERE `+where+` ORDER BY key LIMIT $3`,
			func(rows pgx.Rows) error {
				status, err := r.scanListed(rows, f.Whole)
				page = append(page, status)
				return err
			}, args...)
		if !f.Standalone {
			return
		}
		t.rows(`SELECT DISTINCT key FROM carillon.occurrences WHERE due_at IS NOT NULL AND `+where+` ORDER BY key LIMIT $3`,
			func(rows pgx.Rows) error {
				name := job.Name{Tenant: f.Tenant}
				err := rows.Scan(&name.Key)
				names = append(names, name)
				return err
			}, args...)
	})
	return store.WithStandalone(page, names, f.Limit), err
}

// storable reports whether columns can hold the texts. Documents with other texts can't exist.
func storable(texts ...string) bool {
	return !slices.ContainsFunc(texts, func(s string) bool { return !utf8.ValidString(s) || strings.Contains(s, "\x00") })
}

// afterPrefix returns a bound above every key with the prefix, in the order of code points, which is the order of
// UTF-8's bytes. Without such a code point it returns a text above all keys, which exceeds the length of a key.
func afterPrefix(prefix string) string {
	runes := []rune(prefix)
	for len(runes) > 0 {
		last := &runes[len(runes)-1]
		if *last++; *last == 0xD800 {
			*last = 0xE000 // surrogates are not valid text
		}
		if *last <= utf8.MaxRune {
			return string(runes)
		}
		runes = runes[:len(runes)-1]
	}
	return strings.Repeat(string(utf8.MaxRune), 256)
}

// Occurrences implements [store.Jobs].
func (s *Store) Occurrences(
	ctx context.Context, f store.OccurrenceFilter,
) (page []job.Occurrence, total int, err error) {
	if !storable(f.Name.Tenant, f.Name.Key) {
		return nil, 0, nil
	}
	err = s.transact(ctx, func(t *transaction) {
		page = nil
		var r occurrenceRow
		t.rows(`SELECT * FROM (
				(SELECT $2::text, $3::text, `+occurrenceColumnsSQL+` FROM carillon.occurrences o
					WHERE o.revision = $1 AND o.id > $4 ORDER BY o.id LIMIT $5)
				UNION ALL
				(SELECT o.tenant, o.key, `+occurrenceColumnsSQL+` FROM carillon.occurrences o
					WHERE o.due_at IS NOT NULL AND o.tenant = $2 AND o.key = $3 AND o.id > $4 ORDER BY o.id LIMIT $5)
			) AS of_both ORDER BY id LIMIT $5`,
			func(rows pgx.Rows) error {
				o, err := r.scan(rows)
				page = append(page, o)
				return err
			}, revisionOf(f.Revision), f.Name.Tenant, f.Name.Key, uuid(f.After), f.Limit)
		if !f.Count {
			return
		}
		t.row(`SELECT
			(SELECT count(*) FROM carillon.occurrences WHERE revision = $1) +
			(SELECT count(*) FROM carillon.occurrences WHERE due_at IS NOT NULL AND tenant = $2 AND key = $3)`,
			func(row pgx.Row) error { return row.Scan(&total) }, revisionOf(f.Revision), f.Name.Tenant, f.Name.Key)
	})
	return page, total, err
}

// DeadLetters implements [store.Jobs].
func (s *Store) DeadLetters(ctx context.Context, f store.DeadLetterFilter) (page []job.Occurrence, err error) {
	if !storable(f.Tenant, f.Key, f.Prefix) {
		return nil, nil
	}
	where, args := "o.due_at IS NULL AND o.tenant = $1 AND o.id > $2", []any{f.Tenant, uuid(f.After), f.Limit}
	if f.Key != "" {
		where, args = where+" AND o.key = $"+strconv.Itoa(len(args)+1), append(args, f.Key)
	}
	if f.ID != (job.ID{}) {
		where, args = "o.id = $"+strconv.Itoa(len(args)+1)+" AND "+where, append(args, uuid(f.ID))
	}
	if f.Prefix != "" {
		where, args = where+" AND starts_with(o.key, $"+strconv.Itoa(len(args)+1)+")", append(args, f.Prefix)
	}
	dataColumn := "o.callback_data"
	if f.Brief {
		dataColumn = "NULL::bytea"
	}
	err = s.transact(ctx, func(t *transaction) {
		page = nil
		var r occurrenceRow
		var targets targetReader
		t.rows(`SELECT o.tenant, o.key, `+occurrenceColumnsSQL+`, o.callback_type, `+dataColumn+`, o.options
			FROM carillon.occurrences o
			WHERE `+where+` ORDER BY o.id LIMIT $3`,
			func(rows pgx.Rows) error {
				var callbackType *string
				var callbackData, options []byte
				o, err := r.scan(rows, &callbackType, &callbackData, &options)
				if err != nil {
					return err
				}
				own, err := targets.read(callbackType, callbackData, options)
				o.Own = &own
				page = append(page, o)
				return err
			}, args...)
	})
	return page, err
}
