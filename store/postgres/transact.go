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
// know of them.
//
// Statements here look rows up by an index, in its order, and nothing else is ever good: a plan that was made while a
// table was small would read it from end to end once it is large. So the planner is left nothing else to choose from,
// and need choose only once.
//
// Without sorting, whatever is joined with a list must not be ordered by its own columns: the planner would rather walk
// the whole of their index, and look at the list for each row, than sort. It is ordered by its place in a list that is
// sorted, or found by a subquery that is OFFSET 0, which the planner can't turn round.
//
// What a list names is looked up by = ANY (ARRAY[...]) of one element in an index's first column rather than by =, for
// the same reason: of a table that was empty when the server last looked the planner expects one row, and would rather
// walk the whole of an index and look at the list for each. That it can do by equality alone, since it takes such an
// index for one to merge by.
//
// It answers the time of the server's clock.
const prepareSQL = `SELECT ` + microsSQL + ` WHERE num_nonnulls(` + settingsSQL + `) > 0`

// prepareChangeSQL is what a change begins with, which is judged by its deadline at its commit, see [Store.change].
const prepareChangeSQL = `SELECT ` + microsSQL + ` WHERE num_nonnulls(
	set_config('carillon_change.deadline', $2, true),
	set_config('carillon_change.unjudged', 'yes', true),` + settingsSQL + `) > 0`

const settingsSQL = `
	set_config('statement_timeout', $1, true),
	set_config('idle_in_transaction_session_timeout', $1, true), -- who has vanished must keep no locks
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

// attempts is how often a transaction is done in all if the server says that it could not be done beside others.
const attempts = 10

// transaction gathers the statements of a transaction that is sent to the server all at once, so that it takes one
// round trip. What reads their results may run again, if the transaction is done again.
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

// timeout is the time until a deadline, in milliseconds, as the server's statement_timeout: if this side gives up, so
// does the other.
func timeout(deadline time.Time) string {
	return strconv.FormatInt(max(1, time.Until(deadline).Milliseconds()), 10)
}

// onConnection does the work of a call on one connection. The answer committing tells whether the error, if any, may be
// that of a commit.
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

// converse runs f in one transaction, in which what is done next depends on what was answered before. F may run again.
func (s *Store) converse(ctx context.Context, f func(ctx context.Context, tx *conversation) error) error {
	return s.retried(ctx, limit, store.ErrUnavailable, func(ctx context.Context, conn *pgx.Conn) (bool, error) {
		return (&conversation{store: s, conn: conn}).run(ctx, f)
	})
}

// change is converse for what a client asks for, which takes effect before ctx ends or never. An error that marks the
// store as unavailable is undone, which may be [store.ErrNotDone], if it is certain that nothing was changed.
//
// A message may be held up on its way, and come after this side has given up, or before others that were sent later on
// another connection. So the server judges by its own clock, in the very step that commits: either in the message that
// says COMMIT, or, where that message is on its way together with others, at the COMMIT itself, by a trigger. What the
// judgement refuses is done again if there is time left: then what is known of the server's clock was not good enough.
//
// A commit that was judged may still take long, while the server waits for its disk or for a standby. All that it
// changes stays locked until then, so nobody can come in between.
func (s *Store) change(ctx context.Context, undone error, f func(ctx context.Context, tx *conversation) error) error {
	return s.retried(ctx, store.Within, undone, func(ctx context.Context, conn *pgx.Conn) (bool, error) {
		return (&conversation{store: s, conn: conn, change: true}).run(ctx, f)
	})
}

// changeOnce does the statements that fill adds in one transaction that is a change, and nothing else is.
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

// run runs f, and commits unless f has. The answer committing is that of [onConnection].
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

// do does the statements that fill adds.
func (c *conversation) do(ctx context.Context, fill func(t *transaction)) error {
	t := &transaction{store: c.store}
	if !c.begun {
		c.begun = true
		t.begin(ctx, c.change)
	}
	fill(t)
	return c.conn.SendBatch(ctx, &t.batch).Close()
}

// end does the last statements of what inserts jobs, and commits. Nothing may be done after it.
func (c *conversation) end(ctx context.Context, fill func(t *transaction)) error {
	c.ended = true
	return c.do(ctx, func(t *transaction) {
		fill(t)
		t.exec(`COMMIT`)
	})
}

// commit commits. Nothing may be done after it.
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

// retried runs f on a connection, at most attempts times: again after a conflict with other transactions, or if the
// server judged a change late. Without a deadline of ctx, all of it may take limit. An error that marks the store as
// unavailable is undone, or [store.ErrUnavailable] if the outcome of a commit is not known.
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

// over tells why ctx has ended; nil if it has not. Its deadline counts even if its timer has not come yet, as in a
// process that goes on after it was stopped.
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
		s.pooled.Store(true) // a pooler that was not recognized as one
	}
	if err != nil && ctx.Err() == nil && (conn.Conn().IsClosed() || wrongServer(err) || unprepared(err)) {
		s.pool.Reset()
	}
	return committing, err
}
