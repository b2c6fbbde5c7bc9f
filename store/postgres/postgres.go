// Package postgres keeps Carillon's documents in a PostgreSQL database, version 13 or later, in a schema of its own.
// Any number of replicas share it, directly or through a connection pooler such as PgBouncer, in transaction mode too.
//
// Every change is a transaction, so a job and its occurrences always change together and no occurrence is ever without
// its job. All transactions are READ COMMITTED: each statement sees the data that was committed before it began, and
// rows that it had to wait for in their newest version. A transaction locks the rows that must not change meanwhile:
//
//   - A claim locks the occurrences that it takes, and skips those that another transaction has locked. A put or
//     a cancel that deletes one of them waits for the claim, and then sees that the occurrence is held. In the same way
//     a claim sees deletions.
//   - Every transaction locks rows in one order, to prevent deadlocks: jobs by name, then occurrences by revision and
//     id. If a statement can't keep this order, the server detects a deadlock, and the transaction is repeated.
//
// Clients' changes are checked against the server's clock in the step that commits them, see [Store.change].
//
// A commit is on disk when it is acknowledged: synchronous_commit is turned on if it is off. The server's other
// settings stay, such as fsync and the number of synchronous standbys.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// oldest is the oldest supported server version, as its server_version_num.
	oldest = 130000

	// chunk bounds the occurrences that one statement writes.
	chunk = 10_000

	// limit bounds a call that makes no change for a client, if its context has no deadline.
	limit = time.Minute

	// grace bounds the time that a call whose context has ended waits for the server's answer about the outcome.
	grace = time.Second
)

// Store implements [store.Store].
type Store struct {
	pool   *pgxpool.Pool
	schema string

	// modeChosen reports whether the URL sets default_query_exec_mode.
	modeChosen bool
	// pooled is set when a pooler is detected between this process and the server.
	pooled atomic.Bool
	// clock estimates the server's clock.
	clock clock
	// behind reports whether the last claim found more than half of its limits.
	behind atomic.Bool
}

// Open connects to the database that a URL such as "postgres://user:password@host/database" names, and makes or
// migrates its tables. They are in the schema "carillon" unless the URL's option "schema" names another, so that
// several services can share a database. All other options are pgx's: those of libpq, default_query_exec_mode, and
// pool_max_conns (10 unless the URL says otherwise) and the like.
//
// A server that can't be reached within connect_timeout (5 s unless the URL says otherwise), or takes no writes, is an
// error that wraps [store.ErrUnavailable]. If the URL names several hosts, the one that takes writes is used. No error
// shows the URL's password.
func Open(ctx context.Context, rawURL string) (*Store, error) {
	target, err := parseURL(rawURL)
	if err != nil {
		return nil, err
	}
	s := &Store{schema: target.schema, modeChosen: target.modeChosen}
	target.config.BeforeConnect = s.beforeConnect
	target.config.AfterConnect = s.afterConnect
	target.config.ShouldPing = s.shouldPing
	if s.pool, err = pgxpool.NewWithConfig(context.WithoutCancel(ctx), target.config); err != nil {
		return nil, target.url.Fault(err)
	}
	if err := s.migrate(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open PostgreSQL database %s: %w", target.url, target.explain(err)), s.Close())
	}
	return s, nil
}

// Close ends all connections, once the calls under way have ended.
func (s *Store) Close() error {
	s.pool.Close()
	return nil
}

// Now implements [store.Queue]: it returns the time of the server's clock.
func (s *Store) Now(ctx context.Context) (now time.Time, err error) {
	err = s.transact(ctx, func(t *transaction) {
		t.row(`SELECT `+microsSQL, func(row pgx.Row) error {
			var micros int64
			err := row.Scan(&micros)
			now = time.UnixMicro(micros).UTC()
			return err
		})
	})
	return now, err
}

// in returns a statement for the store's own schema. Statements are written for the schema "carillon".
func (s *Store) in(sql string) string {
	if s.schema == defaultSchema {
		return sql
	}
	return strings.ReplaceAll(sql, defaultSchema+".", quote(s.schema)+".")
}

// millis returns a time as it is stored: Unix milliseconds, NULL for none.
func millis(t time.Time) *int64 {
	if t.IsZero() {
		return nil
	}
	ms := t.UnixMilli()
	return &ms
}

func fromMillis(ms *int64) time.Time {
	if ms == nil {
		return time.Time{}
	}
	return time.UnixMilli(*ms).UTC()
}

// nullable stores an empty text as NULL, which takes no room.
func nullable(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// text returns the part of a string that a column can hold: valid UTF-8 without U+0000.
func text(s string) string {
	return strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", "\uFFFD"), "\uFFFD")
}
