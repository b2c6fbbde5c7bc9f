package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/puddle/v2"
)

// The server's error codes that the store distinguishes
// (https://www.postgresql.org/docs/current/errcodes-appendix.html).
const (
	codeReadOnly          = "25006" // read_only_sql_transaction: a standby, or a primary that is about to be one
	codeSerialization     = "40001"
	codeDeadlock          = "40P01"
	codeNoStatement       = "26000" // a prepared statement is missing: a pooler has changed connections
	codeSameStatement     = "42P05" // a new statement exists already, for the same reason
	codePermission        = "42501"
	codeDuplicateTable    = "42P07"
	codeNoDatabase        = "3D000"
	codeWrongPassword     = "28P01"
	codeNotAuthorized     = "28000"
	codeLockNotAvailable  = "55P03"
	codeQueryCanceled     = "57014"
	codeIdleInTransaction = "25P03"
	codeTransactionTime   = "25P04" // transaction_timeout, which version 17 may set for all transactions
	codeProtocol          = "08P01" // protocol_violation, and all errors of PgBouncer, see poolerCode
	codeLate              = "CL001" // the store's own: the deadline of a change has passed
)

// transientClasses are the classes of faults that may go away by themselves: faults of connections (poolers answer with
// these too), of resources such as disk space, by an operator such as a shutdown, and of the system around the server.
var transientClasses = []string{"08", "53", "57", "58"}

// transientCodes are such codes in other classes.
var transientCodes = []string{
	codeReadOnly, codeSerialization, codeDeadlock, codeNoStatement, codeSameStatement, codeLockNotAvailable,
	codeQueryCanceled, codeIdleInTransaction, codeTransactionTime, codeLate,
}

// mark wraps a transient fault in the error by. An error after the end of ctx counts as transient, since the end of ctx
// caused it.
func mark(ctx context.Context, by, err error) error {
	if !transient(err) {
		ended := over(ctx)
		if ended == nil {
			return err
		}
		err = ended
	}
	return fmt.Errorf("%w: %w", by, err)
}

// lateAt reports whether the server has refused a change because its deadline had passed, and the time of the refusal,
// in Unix microseconds.
func lateAt(err error) (micros int64, late bool) {
	e, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || e.Code != codeLate {
		return 0, false
	}
	micros, err = strconv.ParseInt(e.Detail, 10, 64)
	return micros, err == nil
}

// refused reports whether the server itself has answered that a transaction failed, so that it will never be committed.
// An error that ends a connection, or comes from a pooler, may have come in the middle of a commit. The driver calls it
// safe to retry that a connection is closed, even if it finds that while it waits for the answer.
func refused(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && e.SeverityUnlocalized == "ERROR" && !strings.HasPrefix(e.Code, "08") ||
		pgconn.SafeToRetry(err) && !errors.Is(err, pgconn.ErrConnClosed)
}

func transient(err error) bool {
	if code := sqlState(err); code != "" {
		return slices.Contains(transientClasses, code[:2]) || slices.Contains(transientCodes, code)
	}
	for _, target := range []error{
		context.Canceled, context.DeadlineExceeded, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed,
		pgconn.ErrConnClosed, pgconn.ErrReadOnlyConnection, puddle.ErrClosedPool, errPooler, errRaced,
	} {
		if errors.Is(err, target) {
			return true
		}
	}
	if _, ok := errors.AsType[net.Error](err); ok {
		return true
	}
	// The remaining errors of connecting are about TLS, or about a protocol that isn't PostgreSQL's.
	return pgconn.Timeout(err)
}

// conflicted reports whether the transaction failed because of concurrent ones, and may succeed when it is repeated.
func conflicted(err error) bool {
	code := sqlState(err)
	return errors.Is(err, errRaced) || code == codeSerialization || code == codeDeadlock
}

// wrongServer reports whether the server takes no writes, or is about to end. Another server may then be in its place.
func wrongServer(err error) bool {
	code := sqlState(err)
	return code == codeReadOnly || strings.HasPrefix(code, "57P0")
}

// unprepared reports whether the statement reached another server connection than the one that prepared it.
func unprepared(err error) bool {
	code := sqlState(err)
	return code == codeNoStatement || code == codeSameStatement
}

// sqlState returns the server's error code; empty if the error is not the server's.
func sqlState(err error) string {
	e, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case !ok || len(e.Code) != 5:
		return ""
	case e.Code == codeProtocol:
		return poolerCode(e.Message)
	default:
		return e.Code
	}
}

// poolerCode returns the code that the server would give an error of PgBouncer. PgBouncer has one code for all errors,
// including those that it passes on from the server. Only the message shows whether a client may not connect or the
// fault is transient.
func poolerCode(message string) string {
	switch {
	case strings.HasSuffix(message, "authentication failed"), strings.HasPrefix(message, "password authentication failed"),
		strings.HasPrefix(message, "no such user"):
		return codeWrongPassword
	case strings.HasPrefix(message, "no such database"),
		strings.HasPrefix(message, "database ") && strings.HasSuffix(message, "does not exist"):
		return codeNoDatabase
	default:
		return codeProtocol
	}
}

// explain adds advice for the operator to an error of Open.
func (t *target) explain(err error) error {
	database, user, schema := t.config.ConnConfig.Database, t.config.ConnConfig.User, quote(t.schema)
	switch code := sqlState(err); {
	case code == codeWrongPassword || code == codeNotAuthorized:
		return fmt.Errorf("the server refuses the user; check user and password of the store URL, "+
			"and the server's pg_hba.conf, or its pooler's users: %w", err)
	case code == codeNoDatabase:
		return fmt.Errorf("there is no such database; name another, or run as an administrator: "+
			"CREATE DATABASE %s OWNER %s: %w", quote(database), quote(user), err)
	case code == codePermission && errors.Is(err, errMigrate):
		return fmt.Errorf("the user may not make its tables; run as an administrator: CREATE SCHEMA IF NOT EXISTS %s; "+
			"GRANT USAGE, CREATE ON SCHEMA %s TO %s: %w", schema, schema, quote(user), err)
	case code == codePermission || errors.Is(err, errPrivileges):
		return fmt.Errorf("the user may not use the tables; run as their owner: GRANT USAGE ON SCHEMA %s TO %s; "+
			"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA %s TO %s; "+
			"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA %s TO %s: %w",
			schema, quote(user), schema, quote(user), schema, quote(user), err)
	case code == codeDuplicateTable:
		return fmt.Errorf("the schema has tables of another program; "+
			"name one of its own by the option schema of the store URL: %w", err)
	}
	return err
}
