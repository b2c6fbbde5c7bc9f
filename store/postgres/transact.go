package postgres

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/carillon-scheduler/carillon/store"
)

// prepareSQL is the first statement of each transaction. Its settings end with the transaction, so poolers need not
// know them.
//
// All statements here look rows up by an index, in its order, and no other plan is ever good: a plan made while a table
// was small would read the whole table once it is large. So the settings leave the planner no other choice, and it
// needs to plan only once.
//
// Since sorting is off, a query that joins a table with a list must not order by the table's columns: the planner would
// scan the whole of their index, and search the list for each row, rather than sort. Such a query orders by the place
// in a sorted list, or uses a subquery with OFFSET 0, which the planner can't reorder.
//
// For the same reason, a statement looks up the members of a list in an index's first column by = ANY (ARRAY[...]) with
// one element rather than by =. For a table that was empty at its last analysis, the planner expects one row, and would
// rather scan a whole index and search the list for each row. It can do that only with an equality, for which it
// considers the index for a merge join.
//
// It returns the time of the server's clock.
const prepareSQL = `SELECT ` + microsSQL + ` WHERE num_nonnulls(` + settingsSQL + `) > 0`

// prepareChangeSQL is the first statement of a change, whose deadline is checked at its commit, see [Store.change].
const prepareChangeSQL = `SELECT ` + microsSQL + ` WHERE num_nonnulls(
	set_config('carillon_change.deadline', $2, true),
	set_config('carillon_change.unjudged', 'yes', true),` + settingsSQL + `) > 0`

const settingsSQL = `
	set_config('statement_timeout', $1, true),
	set_config('idle_in_transaction_session_timeout', $1, true), -- a vanished client must keep no locks
	set_config('synchronous_commit', replace(current_setting('synchronous_commit'), 'off', 'on'), true),
	set_config('plan_cache_mode', 'force_generic_plan', true),
	set_config('enable_seqscan', 'off', true),
	set_config('enable_bitmapscan', 'off', true),
	set_config('enable_sort', 'off', true),
	set_config('enable_hashjoin', 'off', true),
	set_config('enable_mergejoin', 'off', true),
	set_config('jit', 'off', true)
`

const beginSQL = `BEGIN ISOLATION LEVEL READ COMMITTED`

// attempts is the total number of tries of a transaction that the server refuses because of concurrent ones.
const attempts = 10

// transaction gathers the statements of a transaction that is sent to the server at once, so that it takes one round
// trip. The functions that read the results may run again, if the transaction is repeated.
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

// begin adds the first statements of a transaction. A change has the deadline of the context, by the server's clock.
func (t *transaction) begin(ctx context.Context, change bool) {
	t.exec(beginSQL)
	deadline, _ := ctx.Deadline()
	sql, args := prepareSQL, []any{timeout(deadline)}
	if change {
		sql, args = prepareChangeSQL, append(args, strconv.FormatInt(t.store.clock.at(deadline), 10))
	}
	t.row(sql, func(row pgx.Row) error {
		var micros int64
		err := row.Scan(&micros)
		if err == nil {
			t.store.clock.note(micros)
		}
		return err
	}, args...)
}

// timeout returns the milliseconds until a deadline, for the server's statement_timeout: when this side gives up, so
// does the server.
func timeout(deadline time.Time) string {
	return strconv.FormatInt(max(1, time.Until(deadline).Milliseconds()), 10)
}

// onConnection runs a call on one connection. Committing reports whether err may be that of a commit.
type onConnection func(ctx context.Context, conn *pgx.Conn) (committing bool, err error)

// transact runs the statements that fill adds in one transaction. It may call fill again, see attempts.
func (s *Store) transact(ctx context.Context, fill func(t *transaction)) error {
	return s.retried(ctx, limit, store.ErrUnavailable, func(ctx context.Context, conn *pgx.Conn) (bool, error) {
		t := &transaction{store: s}
		t.begin(ctx, false)
		fill(t)
		t.exec(`COMMIT`)
		err := conn.SendBatch(ctx, &t.batch).Close()
		if err != nil {
			rollback(ctx, conn)
		}
		return true, err
	})
}

// converse runs f in one transaction whose later statements depend on earlier answers. F may run again.
func (s *Store) converse(ctx context.Context, f func(ctx context.Context, tx *conversation) error) error {
	return s.retried(ctx, limit, store.ErrUnavailable, func(ctx context.Context, conn *pgx.Conn) (bool, error) {
		return (&conversation{store: s, conn: conn}).run(ctx, f)
	})
}

// change is converse for a client's change, which takes effect before ctx ends or never. If it is certain that nothing
// was changed, a transient error is wrapped in undone, which may be [store.ErrNotDone].
//
// A message may be delayed on its way. It may arrive after this side has given up, or after later messages on another
// connection. So the server checks the deadline by its own clock, in the step that commits: in the message with the
// COMMIT, or, if that message is sent together with others, in a trigger at the COMMIT itself. A refused change is
// repeated if there is time left, because the estimate of the server's clock was wrong then.
//
// A commit that passed the check may still take long, while the server waits for its disk or for a standby. All its
// rows stay locked until then, so no other change can come in between.
func (s *Store) change(ctx context.Context, undone error, f func(ctx context.Context, tx *conversation) error) error {
	return s.retried(ctx, store.Within, undone, func(ctx context.Context, conn *pgx.Conn) (bool, error) {
		return (&conversation{store: s, conn: conn, change: true}).run(ctx, f)
	})
}

// changeOnce runs the statements that fill adds as a complete change in one transaction.
func (s *Store) changeOnce(ctx context.Context, fill func(t *transaction)) error {
	return s.change(ctx, store.ErrNotDone, func(ctx context.Context, tx *conversation) error { return tx.do(ctx, fill) })
}

// rollback ends a transaction that has failed, if it is still under way. If that fails too, the pool drops the
// connection.
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
	store  *Store
	conn   *pgx.Conn
	change bool
	begun  bool
	ended  bool
}

// run runs f, and commits unless f has committed. Committing is that of [onConnection].
func (c *conversation) run(
	ctx context.Context, f func(ctx context.Context, tx *conversation) error,
) (committing bool, err error) {
	err = f(ctx, c)
	if err == nil && c.begun && !c.ended {
		err = c.commit(ctx)
	}
	if err != nil {
		rollback(ctx, c.conn)
	}
	return c.ended, err
}

// do runs the statements that fill adds.
func (c *conversation) do(ctx context.Context, fill func(t *transaction)) error {
	t := &transaction{store: c.store}
	if !c.begun {
		c.begun = true
		t.begin(ctx, c.change)
	}
	fill(t)
	return c.conn.SendBatch(ctx, &t.batch).Close()
}

// end runs the last statements of a transaction that inserts jobs, and commits. Nothing may follow it.
func (c *conversation) end(ctx context.Context, fill func(t *transaction)) error {
	c.ended = true
	return c.do(ctx, func(t *transaction) {
		fill(t)
		t.exec(`COMMIT`)
	})
}

// commit commits. Nothing may follow it.
func (c *conversation) commit(ctx context.Context) error {
	c.ended = true
	sql := `COMMIT`
	if c.change { // one message, so that nothing comes between
		deadline, _ := ctx.Deadline()
		sql = c.store.in(`SELECT carillon.judge(` + strconv.FormatInt(c.store.clock.at(deadline), 10) + `); COMMIT`)
	}
	_, err := c.conn.Exec(ctx, sql)
	return err
}

// retried runs f on a connection, at most attempts times. It repeats f after a conflict with other transactions, and if
// the server refused a change as late. If ctx has no deadline, limit bounds all tries together. A transient error is
// wrapped in undone, or in [store.ErrUnavailable] if the outcome of a commit is unknown.
func (s *Store) retried(ctx context.Context, limit time.Duration, undone error, f onConnection) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	for attempt := 1; ; attempt++ {
		committing, err := s.connected(ctx, f)
		if err == nil {
			return nil
		}
		if committing && !refused(err) {
			undone = store.ErrUnavailable
		}
		again := conflicted(err)
		if micros, late := lateAt(err); late {
			s.clock.note(micros)
			again = true
		}
		if !again || attempt == attempts || over(ctx) != nil {
			return mark(ctx, undone, err)
		}
		select {
		case <-ctx.Done():
			return mark(ctx, undone, err)
		case <-time.After(time.Duration(rand.Int64N(int64(attempt) * int64(10*time.Millisecond)))):
		}
	}
}

// over returns the reason why ctx has ended; nil if it has not. It compares the deadline with the time, because the
// context's timer may not have fired yet after a stop of this process.
func over(ctx context.Context) error {
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// connected runs f on a connection of the pool. After a fault of the connection or of its server, it replaces all
// connections of the pool: the others are likely to have the same fault. A time-out may be this call's own fault; if it
// is the server's, [Store.shouldPing] finds out.
func (s *Store) connected(ctx context.Context, f onConnection) (committing bool, err error) {
	conn, err := s.pool.Acquire(ctx)
	for errors.Is(err, errPooler) {
		conn, err = s.pool.Acquire(ctx)
	}
	if err == nil {
		err = over(ctx)
	}
	if err != nil {
		if conn != nil {
			conn.Release()
		}
		return false, err
	}
	defer conn.Release()
	committing, err = f(ctx, conn.Conn())
	if unprepared(err) {
		s.pooled.Store(true) // a pooler was not detected
	}
	if err != nil && ctx.Err() == nil && (conn.Conn().IsClosed() || wrongServer(err) || unprepared(err)) {
		s.pool.Reset()
	}
	return committing, err
}
