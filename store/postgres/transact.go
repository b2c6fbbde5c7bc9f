package postgres

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// prepareSQL is what each transaction begins with. All of it ends with the transaction, so poolers need not know of it.
//
// Statements here look rows up by an index, in its order, and nothing else is ever good: a plan that was made while a table
// was small would read it from end to end once it is large. So the planner is left nothing else to choose from, and need
// choose only once.
//
// Without sorting, whatever is joined with a list must not be ordered by its own columns: the planner would rather walk the
// whole of their index, and look at the list for each row, than sort. It is ordered by its place in a list that is sorted,
// or found by a subquery that is OFFSET 0, which the planner can't turn round.
//
// What a list names is looked up by = ANY (ARRAY[...]) of one element in an index's first column rather than by =, for the same
// reason: of a table that was empty when the server last looked the planner expects one row, and would rather walk the whole of an
// index and look at the list for each. That it can do by equality alone, since it takes such an index for one to merge by.
const prepareSQL = `SELECT
	set_config('statement_timeout', $1, true),
	set_config('idle_in_transaction_session_timeout', $1, true), -- who has vanished must keep no locks, nor commit late
	set_config('synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'on'), true),
	set_config('plan_cache_mode', 'force_generic_plan', true),
	set_config('enable_seqscan', 'off', true),
	set_config('enable_bitmapscan', 'off', true),
	set_config('enable_sort', 'off', true),
	set_config('enable_hashjoin', 'off', true),
	set_config('enable_mergejoin', 'off', true),
	set_config('jit', 'off', true)`

const beginSQL = `BEGIN ISOLATION LEVEL READ COMMITTED`

// attempts is how often a transaction is done in all if the server says that it could not be done beside others.
const attempts = 10

// transaction gathers the statements of a transaction that is sent to the server all at once, so that it takes one round
// trip. What reads their results may run again, if the transaction is done again.
type transaction struct {
	store *Store
	batch pgx.Batch
}

// exec adds a statement.
func (t *transaction) exec(sql string, args ...any) { t.batch.Queue(t.store.in(sql), args...) }

// affected counts the rows that a statement changed.
func (t *transaction) affected(n *int, sql string, args ...any) {
	t.batch.Queue(t.store.in(sql), args...).Exec(func(tag pgconn.CommandTag) error {
		*n = int(tag.RowsAffected())
		return nil
	})
}

// row adds a statement whose one row scan reads.
func (t *transaction) row(sql string, scan func(pgx.Row) error, args ...any) {
	t.batch.Queue(t.store.in(sql), args...).QueryRow(scan)
}

// rows adds a statement whose rows scan reads, one at a time.
func (t *transaction) rows(sql string, scan func(pgx.Rows) error, args ...any) {
	t.batch.Queue(t.store.in(sql), args...).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			if err := scan(rows); err != nil {
				return err
			}
		}
		return rows.Err()
	})
}

// transact does the statements that fill adds in one transaction.
func (s *Store) transact(ctx context.Context, fill func(t *transaction)) error {
	return s.retried(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		t := &transaction{store: s}
		t.exec(beginSQL)
		t.exec(prepareSQL, remaining(ctx))
		fill(t)
		t.exec(`COMMIT`)
		err := conn.SendBatch(ctx, &t.batch).Close()
		if err != nil {
			rollback(ctx, conn)
		}
		return err
	})
}

// converse runs f in one transaction, in which what is done next depends on what was answered before. F may run again.
func (s *Store) converse(ctx context.Context, f func(ctx context.Context, tx *conversation) error) error {
	return s.retried(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		tx := &conversation{store: s, conn: conn}
		err := f(ctx, tx)
		if err == nil && tx.begun && !tx.ended {
			_, err = conn.Exec(ctx, `COMMIT`)
		}
		if err != nil {
			rollback(ctx, conn)
		}
		return err
	})
}

// rollback ends a transaction that has failed, if it is still under way. If that fails too, the pool drops the connection.
func rollback(ctx context.Context, conn *pgx.Conn) {
	if conn.IsClosed() || conn.PgConn().TxStatus() == 'I' {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	_, _ = conn.Exec(ctx, `ROLLBACK`)
}

// conversation is a transaction under way. It begins with its first statements, without a round trip of its own.
type conversation struct {
	store *Store
	conn  *pgx.Conn
	begun bool
	ended bool
}

// do does the statements that fill adds.
func (c *conversation) do(ctx context.Context, fill func(t *transaction)) error {
	t := &transaction{store: c.store}
	if !c.begun {
		c.begun = true
		t.exec(beginSQL)
		t.exec(prepareSQL, remaining(ctx))
	}
	fill(t)
	return c.conn.SendBatch(ctx, &t.batch).Close()
}

// end does the last statements, and commits. Nothing may be done after it.
func (c *conversation) end(ctx context.Context, fill func(t *transaction)) error {
	c.ended = true
	return c.do(ctx, func(t *transaction) {
		fill(t)
		t.exec(`COMMIT`)
	})
}

// retried runs f on a connection, again if the server asks for it.
func (s *Store) retried(ctx context.Context, f func(ctx context.Context, conn *pgx.Conn) error) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	for attempt := 1; ; attempt++ {
		err := s.connected(ctx, f)
		if err == nil || attempt == attempts || !conflicted(err) {
			return mapError(err)
		}
		select {
		case <-ctx.Done():
			return mapError(err)
		case <-time.After(time.Duration(rand.Int64N(int64(attempt) * int64(10*time.Millisecond)))):
		}
	}
}

// connected runs f on a connection of the pool. After a fault of the connection or of its server all of the pool's are
// replaced: the others are likely to have the same. That nothing was said in time may be
// this call's own fault; if it is the server's, [Store.shouldPing] finds out.
func (s *Store) connected(ctx context.Context, f func(ctx context.Context, conn *pgx.Conn) error) error {
	conn, err := s.pool.Acquire(ctx)
	for errors.Is(err, errPooler) {
		conn, err = s.pool.Acquire(ctx)
	}
	if err != nil {
		return err
	}
	defer conn.Release()
	err = f(ctx, conn.Conn())
	if unprepared(err) {
		s.pooled.Store(true) // a pooler that was not recognized as one
	}
	if err != nil && ctx.Err() == nil && (conn.Conn().IsClosed() || wrongServer(err) || unprepared(err)) {
		s.pool.Reset()
	}
	return err
}

// remaining is the time until the context's deadline, in milliseconds, as the server's statement_timeout: if this side gives
// up, so does the other.
func remaining(ctx context.Context) string {
	deadline, _ := ctx.Deadline()
	return strconv.FormatInt(max(1, time.Until(deadline).Milliseconds()), 10)
}
