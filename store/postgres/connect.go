package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// errPooler is the error of a connection that turned out to go through a pooler. The next connection is configured for
// that.
var errPooler = errors.New("there is a connection pooler between here and the server")

// pingWithin bounds the time in which an idle connection must answer.
const pingWithin = time.Second

// suited marks connections that are configured for a pooler.
const suited = "carillon: made to suit a pooler"

// beforeConnect configures a connection for a pooler, if one was seen.
//
// Statements are normally prepared once per connection. But a pooler in transaction mode may run each transaction on
// another of its own connections, on which they are not prepared. So through a pooler each statement is prepared at
// each execution, and only its types are remembered. An explicit mode in the URL takes precedence.
//
// Cancel requests are not sent, because they end PgBouncer 1.18 when they cross the answer. Otherwise they would be
// sent for connections that are given up during a statement; the server's statement_timeout serves instead.
func (s *Store) beforeConnect(_ context.Context, config *pgx.ConnConfig) error {
	if !s.pooled.Load() {
		return nil
	}
	if !s.modeChosen {
		config.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	}
	var connected atomic.Bool
	dial, validate := config.DialFunc, config.ValidateConnect
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if connected.Load() {
			return nil, errors.New("no cancel requests to a pooler")
		}
		return dial(ctx, network, address)
	}
	config.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		if validate != nil {
			if err := validate(ctx, conn); err != nil {
				return err
			}
		}
		connected.Store(true)
		conn.CustomData()[suited] = true
		return nil
	}
	return nil
}

// afterConnect checks the server of a new connection, and detects a pooler: a pooler greets a client with a process id
// of its own making, which differs from the one that the server returns.
func (s *Store) afterConnect(ctx context.Context, conn *pgx.Conn) error {
	var pid uint32
	var version int
	var encoding string
	var micros int64
	row := conn.QueryRow(ctx, `SELECT pg_backend_pid(), current_setting('server_version_num')::int,
		current_setting('server_encoding'), `+microsSQL, pgx.QueryExecModeSimpleProtocol)
	if err := row.Scan(&pid, &version, &encoding, &micros); err != nil {
		return err
	}
	s.clock.set(micros)
	switch {
	case version < oldest:
		return fmt.Errorf("the server is PostgreSQL %d, and it must be %d or later; upgrade it", version/10000, oldest/10000)
	case encoding != "UTF8":
		return fmt.Errorf("the database's encoding is %s, and it must be UTF8; "+
			"make one by CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0", encoding)
	case pid != conn.PgConn().PID() && conn.PgConn().CustomData()[suited] == nil:
		s.pooled.Store(true)
		return errPooler
	}
	return nil
}

// shouldPing checks a connection that was idle for more than a second, before it is used. If the connection is lost,
// the others are probably lost too, and it drops them all: if the server's machine has vanished, each would take
// pingWithin to fail.
func (s *Store) shouldPing(ctx context.Context, p pgxpool.ShouldPingParams) bool {
	if p.IdleDuration <= time.Second {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, pingWithin)
	defer cancel()
	if err := p.Conn.Ping(ctx); err == nil {
		return false
	}
	if p.Conn.IsClosed() && !errors.Is(ctx.Err(), context.Canceled) {
		s.pool.Reset()
	}
	return true // the ping fails, and the pool drops the connection
}
