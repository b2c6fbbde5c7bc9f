package main

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// queryCounter counts the statements of a pool, BEGIN and COMMIT among them.
type queryCounter struct{ sum atomic.Int64 }

func (c *queryCounter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.sum.Add(1)
	return ctx
}

func (c *queryCounter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// openPool opens a pool of connections whose statements are counted.
func openPool(ctx context.Context, rawURL string, size int32, counter *queryCounter) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(rawURL)
	if err != nil {
		return nil, fmt.Errorf("--postgres: %w", err)
	}
	cfg.MaxConns = size
	cfg.ConnConfig.Tracer = counter
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("--postgres: %w", err)
	}
	return pool, nil
}

// executor is a connection or a pool.
type executor interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// takeSchema makes sure that no schema has that name: it returns errNotEmpty if one has, or drops it if force is set.
func takeSchema(ctx context.Context, db executor, schema string, force bool) error {
	if force {
		_, err := db.Exec(ctx, `DROP SCHEMA IF EXISTS `+pgx.Identifier{schema}.Sanitize()+` CASCADE`)
		return err
	}
	var there bool
	err := db.QueryRow(ctx, `SELECT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = $1)`, schema).Scan(&there)
	if err == nil && there {
		err = fmt.Errorf("the schema %s: %w", schema, errNotEmpty)
	}
	return err
}

// newSchema creates a schema after takeSchema has made sure that there is none.
func newSchema(ctx context.Context, db executor, schema string, force bool) error {
	if err := takeSchema(ctx, db, schema, force); err != nil {
		return err
	}
	_, err := db.Exec(ctx, `CREATE SCHEMA `+pgx.Identifier{schema}.Sanitize())
	return err
}

// versionOfPostgres returns a server's version, and whether a commit waits for the disk.
func versionOfPostgres(ctx context.Context, db executor) (string, error) {
	var version, commit string
	err := db.QueryRow(ctx, `SELECT current_setting('server_version'), current_setting('synchronous_commit')`).
		Scan(&version, &commit)
	version, _, _ = strings.Cut(version, " ") // without the package's version
	return fmt.Sprintf("PostgreSQL %s (synchronous_commit %s)", version, commit), err
}
