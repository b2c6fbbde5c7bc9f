package postgres

import (
	"context"
	"embed"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/carillon-scheduler/carillon/store"
)

// The migrations. The file with number N takes the schema from format N-1 to format N. A released file is never
// changed. Unless the file says otherwise, replicas of the previous version may run during and after the migration.
//
//go:embed migrations/*.sql
var migrations embed.FS

// format is the number of the last migration. The table format holds the number of each that was applied.
const format = 5

var (
	errMigrate    = errors.New("make the tables")
	errPrivileges = errors.New("a privilege on the tables is missing")
)

// migrate gives the schema the present format. Replicas that start together migrate one after the other.
func (s *Store) migrate(ctx context.Context) error {
	var version int
	look := func(ctx context.Context, tx *conversation) (err error) {
		version, err = tx.version(ctx)
		return err
	}
	if err := s.converse(ctx, look); err != nil {
		return err
	}
	if version < format {
		if err := s.converse(ctx, upgrade); err != nil {
			return fmt.Errorf("%w: %w", errMigrate, err)
		}
		if err := s.converse(ctx, look); err != nil { // another replica may be newer
			return err
		}
	}
	if version > format {
		return fmt.Errorf("%w: its format is %d, this one reads up to %d; upgrade carillon", store.ErrFormat, version, format)
	}
	return s.checkPrivileges(ctx)
}

// version returns the format; zero if there is none yet.
func (c *conversation) version(ctx context.Context) (version int, err error) {
	var exists bool
	err = c.do(ctx, func(t *transaction) {
		t.row(`SELECT EXISTS (SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
			WHERE nspname = $1 AND relname = 'format')`,
			func(row pgx.Row) error { return row.Scan(&exists) }, c.store.schema)
	})
	if err != nil || !exists {
		return 0, err
	}
	err = c.do(ctx, func(t *transaction) {
		t.row(`SELECT coalesce(max(version), 0) FROM carillon.format`, func(row pgx.Row) error { return row.Scan(&version) })
	})
	return version, err
}

// upgrade applies the missing migrations. The lock is held until the transaction ends, so it needs no session.
func upgrade(ctx context.Context, tx *conversation) error {
	schema := tx.store.schema
	var there bool
	err := tx.do(ctx, func(t *transaction) {
		t.exec(`SELECT pg_advisory_xact_lock(hashtextextended('carillon ' || $1, 0))`, schema)
		t.row(`SELECT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = $1)`,
			func(row pgx.Row) error { return row.Scan(&there) }, schema)
	})
	if err != nil {
		return err
	}
	if !there { // CREATE SCHEMA IF NOT EXISTS needs the privilege even if the schema exists
		if err := tx.script(ctx, `CREATE SCHEMA `+quote(schema)); err != nil {
			return err
		}
	}
	present, err := tx.version(ctx)
	if err != nil {
		return err
	}
	if present == 0 {
		err := tx.script(ctx, `CREATE TABLE carillon.format (
			version integer PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now())`)
		if err != nil {
			return err
		}
	}
	for version := present + 1; version <= format; version++ {
		script, err := migrations.ReadFile(fmt.Sprintf("migrations/%d.sql", version))
		if err != nil {
			return err
		}
		if err := tx.script(ctx, string(script)); err != nil {
			return fmt.Errorf("migration %d: %w", version, err)
		}
		if err := tx.script(ctx, fmt.Sprintf(`INSERT INTO carillon.format (version) VALUES (%d)`, version)); err != nil {
			return err
		}
	}
	return nil
}

// script runs SQL without parameters. It may have several statements.
func (c *conversation) script(ctx context.Context, sql string) error {
	_, err := c.conn.Exec(ctx, c.store.in(sql))
	return err
}

// checkPrivileges checks that the user has all privileges of a store, so that a missing one shows before the first
// submission.
func (s *Store) checkPrivileges(ctx context.Context) error {
	var granted bool
	err := s.transact(ctx, func(t *transaction) {
		t.row(`SELECT bool_and(has_table_privilege(name::regclass, privilege))
				AND has_function_privilege('carillon.judge(bigint)', 'EXECUTE')
			FROM unnest(ARRAY['carillon.jobs', 'carillon.occurrences', 'carillon.records']) name,
				unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) privilege`,
			func(row pgx.Row) error { return row.Scan(&granted) })
	})
	if err == nil && !granted {
		return errPrivileges
	}
	return err
}
