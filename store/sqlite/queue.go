package sqlite

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Claim implements [store.Queue]. It reads the due occurrences of each quota with their jobs, and stamps exactly these
// rows; it takes the write lock first, so no other change comes in between. Before that it puts back the occurrences of
// paused jobs. No others need to be put back, since jobs and occurrences change together.
func (s *Store) Claim(ctx context.Context, p store.ClaimParams) (store.Claim, error) {
	var claim store.Claim
	err := s.write(ctx, func(tx *sql.Tx) error {
		c := claimer{Store: s, tx: tx, params: p, token: job.NewToken()}
		claim = store.Claim{Quotas: make([]store.QuotaLeft, len(p.Quotas))}
		for i, q := range p.Quotas {
			found, err := c.claim(ctx, q, &claim.Quotas[i])
			if err != nil {
				return err
			}
			claim.Occurrences = append(claim.Occurrences, found...)
		}
		return nil
	})
	return claim, err
}

// claimer claims within one transaction.
type claimer struct {
	*Store
	tx     *sql.Tx
	params store.ClaimParams
	token  string
	reader claimReader
}

// claim claims the occurrences of one quota, and sets left to the remainder of its lane.
func (c *claimer) claim(ctx context.Context, q store.Quota, left *store.QuotaLeft) ([]store.Claimed, error) {
	lane := q.Lane.String()
	after, until := c.params.Range(q)
	c.reader.paused = nil
	rows, err := c.tx.Stmt(c.stmt.claimRead).QueryContext(ctx, lane, bound(after), until.UnixMilli(), q.Limit)
	found, err := collect(rows, err, c.reader.scan)
	if err != nil {
		return nil, err
	}
	left.More = len(found) == q.Limit || len(c.reader.paused) > 0
	if len(c.reader.paused) > 0 {
		if err := c.putBackPaused(ctx, q); err != nil {
			return nil, err
		}
		found = slices.DeleteFunc(found, func(o store.Claimed) bool { return c.reader.paused[o.ID] })
	}
	if left.Found = len(found); left.Found > 0 {
		if err := c.stamp(q, found); err != nil {
			return nil, err
		}
	}
	var next sql.NullInt64
	err = c.tx.Stmt(c.stmt.laneNext).QueryRowContext(ctx, lane, c.params.Due().UnixMilli()).Scan(&next)
	left.Next = fromMillis(next)
	return found, err
}

// stamp claims the occurrences found. The write lock has kept them unchanged since they were read.
func (c *claimer) stamp(q store.Quota, found []store.Claimed) error {
	last, until := found[len(found)-1], c.params.Now.Add(c.params.Lease)
	n, err := affected(c.tx.Stmt(c.stmt.claimStamp).Exec(c.params.Now.UnixMilli(), c.token, until.UnixMilli(),
		q.Lane.String(), bound(q.After), last.DueAt.UnixMilli(), last.ID[:]))
	if err != nil {
		return err
	}
	if n != len(found) {
		return fmt.Errorf("claim stamped %d occurrences instead of %d", n, len(found))
	}
	for i := range found {
		o := &found[i]
		o.Reclaimed = !o.ScheduledAt.IsZero()
		o.Token, o.ScheduledAt, o.DueAt = c.token, c.params.Now, until
		o.Attempt++
	}
	return nil
}

// bound returns an exclusive lower bound of stored times, in Unix milliseconds. For the zero time it is below all of
// them.
func bound(after time.Time) int64 {
	if after.IsZero() {
		return math.MinInt64
	}
	return after.UnixMilli()
}

// mostPutBack bounds the due occurrences among which a claim looks for those of paused jobs, unless its limit is
// higher.
const mostPutBack = 1000

// putBackPaused puts back the occurrences of paused jobs among the first due ones. It searches more than the claim's
// limit, so that many of them do not hold up a claim with a small limit. They are not stamped yet, so there is no
// attempt to undo.
func (c *claimer) putBackPaused(ctx context.Context, q store.Quota) error {
	type paused struct {
		id               job.ID
		timestamp, since int64
	}
	after, until := c.params.Range(q)
	rows, err := c.tx.Stmt(c.stmt.pausedRead).QueryContext(ctx,
		q.Lane.String(), bound(after), until.UnixMilli(), max(q.Limit, mostPutBack))
	found, err := collect(rows, err, func(r scanner) (o paused, err error) {
		return o, r.Scan(&o.id, &o.timestamp, &o.since)
	})
	if err != nil {
		return err
	}
	putBack := c.tx.Stmt(c.stmt.putBack)
	for _, o := range found {
		dueAt := store.PutBackPaused(time.UnixMilli(o.timestamp), time.UnixMilli(o.since), c.params)
		if _, err := putBack.Exec(dueAt.UnixMilli(), o.id[:]); err != nil {
			return err
		}
	}
	return nil
}

// claimReader reads the rows of one claim.
type claimReader struct {
	// paused has the occurrences whose jobs are paused.
	paused map[job.ID]bool
	// encoded has the options that were decoded last. Most occurrences of a sequence are consecutive.
	encoded []byte
	options job.Options
	fault   error
}

// scan reads a row of claimRead: an occurrence, and its job's target unless it has its own.
func (r *claimReader) scan(row scanner) (store.Claimed, error) {
	var c store.Claimed
	var timestamp, due int64
	var scheduled, step sql.NullInt64
	var priority, subscriber, lastError, revision, callbackType sql.NullString
	var paused bool
	var options []byte
	err := row.Scan(&c.ID, &priority, &c.Position, &timestamp, &due, &scheduled, &c.Attempt, &step, &subscriber,
		&lastError, &c.Name.Tenant, &c.Name.Key, &revision, &paused, &callbackType, &c.Callback.Data, &options)
	if err != nil {
		return c, err
	}
	c.Timestamp, c.DueAt, c.ScheduledAt = time.UnixMilli(timestamp).UTC(), time.UnixMilli(due).UTC(), fromMillis(scheduled)
	c.Part, c.Priority = partOf(step, subscriber), job.PriorityOf(priority.String)
	c.Revision, c.LastError = job.Revision(revision.String), lastError.String
	if paused {
		if r.paused == nil {
			r.paused = make(map[job.ID]bool)
		}
		r.paused[c.ID] = true
		return c, nil
	}
	c.Callback.Type = callbackType.String
	if !bytes.Equal(options, r.encoded) {
		r.encoded = options
		r.options, r.fault = job.DecodeOptions(options)
	}
	c.Options, c.Fault = r.options, r.fault
	if !revision.Valid {
		own := c.Target
		c.Own = &own
	}
	return c, nil
}

// Settle implements [store.Queue]: all settlements are one transaction.
func (s *Store) Settle(ctx context.Context, settlements []store.Settlement) error {
	return s.write(ctx, func(tx *sql.Tx) error {
		acks := acker{one: tx.Stmt(s.stmt.ack), many: tx.Stmt(s.stmt.acks)}
		for i := range settlements {
			t := &settlements[i]
			var err error
			if t.Outcome == store.Ack { // the usual outcome
				err = acks.add(t)
			} else if err = acks.flush(); err == nil {
				err = s.settleOther(tx, t)
			}
			if err != nil {
				return err
			}
		}
		return acks.flush()
	})
}

// acker deletes acknowledged occurrences within one transaction. Consecutive settlements are mostly of one claim; one
// statement deletes atOnce of these.
type acker struct {
	one, many *sql.Stmt
	token     string
	waiting   []any // the token, and the ids that are yet to be deleted
}

// add deletes the occurrence of an acknowledgement, now or at the next flush.
func (a *acker) add(t *store.Settlement) error {
	if t.Token != a.token {
		if err := a.flush(); err != nil {
			return err
		}
		a.token = t.Token
	}
	if len(a.waiting) == 0 {
		a.waiting = append(a.waiting, t.Token)
	}
	a.waiting = append(a.waiting, t.ID[:])
	if len(a.waiting) <= atOnce {
		return nil
	}
	_, err := a.many.Exec(a.waiting...)
	a.waiting = a.waiting[:0]
	return err
}

// flush deletes the waiting occurrences.
func (a *acker) flush() error {
	for i := 1; i < len(a.waiting); i++ {
		if _, err := a.one.Exec(a.token, a.waiting[i]); err != nil {
			return err
		}
	}
	a.waiting = a.waiting[:0]
	return nil
}

func (s *Store) settleOther(tx *sql.Tx, t *store.Settlement) error {
	if t.Outcome == store.Bury {
		row, err := jobOf(tx.Stmt(s.stmt.heldJob).QueryRow(t.ID[:], t.Token))
		if err != nil {
			return err
		}
		if _, err = tx.Stmt(s.stmt.bury).Exec(t.At.UnixMilli(), t.Error, t.Target.Callback.Type, t.Target.Callback.Data,
			t.Target.Options.Encode(), t.ID[:], t.Token); !row.Valid || err != nil {
			return err
		}
		_, err = tx.Stmt(s.stmt.jobTrouble).Exec(row.Int64, 0, 1, t.Trouble().Encode())
		return err
	}
	if t.Outcome == store.Miss {
		row, err := jobOf(tx.Stmt(s.stmt.miss).QueryRow(t.Token, t.ID[:]))
		if !row.Valid || err != nil {
			return err
		}
		_, err = tx.Stmt(s.stmt.jobTrouble).Exec(row.Int64, 1, 0, t.Trouble().Encode())
		return err
	}
	again := s.stmt.retry
	if t.Outcome == store.Release {
		again = s.stmt.release
	}
	row, err := jobOf(tx.Stmt(again).QueryRow(t.DueAt.UnixMilli(), nullable(t.Error), t.ID[:], t.Token))
	if !row.Valid || err != nil {
		return err
	}
	_, err = tx.Stmt(s.stmt.jobKeep).Exec(t.KeepUntil.UnixMilli(), row.Int64)
	return err
}

// jobOf returns the row of the job of a settled occurrence; NULL if the occurrence is standalone, or nothing was
// settled.
func jobOf(settled *sql.Row) (row sql.NullInt64, err error) {
	if err = settled.Scan(&row); errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return row, err
}

// Sweep implements [store.Queue]. It takes the write lock only if there is something to sweep.
func (s *Store) Sweep(ctx context.Context, p store.SweepParams) (store.Swept, error) {
	rows, err := s.stmt.expired.QueryContext(ctx, p.Now.UnixMilli(), p.Limit)
	expired, err := read(ctx, rows, err, func(r scanner) (store.JobStatus, error) { return scanJob(r) })
	if err != nil {
		return store.Swept{}, err
	}
	dead, err := s.oldDeadLetters(ctx, p)
	if err != nil {
		return store.Swept{}, err
	}
	rows, err = s.stmt.recordsOld.QueryContext(ctx, p.Now.UnixMilli(), p.Limit)
	records, err := read(ctx, rows, err, func(r scanner) (row int64, err error) { return row, r.Scan(&row) })
	if err != nil || len(expired)+len(dead)+len(records) == 0 {
		return store.Swept{}, err
	}
	var swept store.Swept
	err = s.write(ctx, func(tx *sql.Tx) error {
		swept = store.Swept{More: max(len(expired), len(dead), len(records)) == p.Limit}
		for _, j := range expired {
			if err := s.sweepJob(tx, j, p, &swept); err != nil {
				return err
			}
		}
		for _, id := range dead {
			n, err := affected(tx.Stmt(s.stmt.deadSweep).Exec(id[:]))
			if err != nil {
				return err
			}
			swept.DeadLetters += n
		}
		for _, row := range records {
			n, err := affected(tx.Stmt(s.stmt.recordSweep).Exec(row, p.Now.UnixMilli()))
			if err != nil {
				return err
			}
			swept.Records += n
		}
		return nil
	})
	return swept, err
}

// sweepJob deletes an expired job, or postpones its expiry if it is still live.
func (s *Store) sweepJob(tx *sql.Tx, j store.JobStatus, p store.SweepParams, swept *store.Swept) error {
	n, err := affected(tx.Stmt(s.stmt.jobSweep).Exec(j.Tenant, j.Key, string(j.Revision), p.Now.UnixMilli()))
	swept.Jobs += n
	if n > 0 || err != nil || !j.Live() {
		return err
	}
	now, err := s.stmt.present(tx, j.Name)
	if now.revision != j.Revision || err != nil {
		return err
	}
	_, err = tx.Stmt(s.stmt.jobKeep).Exec(p.Now.Add(p.Again).UnixMilli(), now.row)
	return err
}

func (s *Store) oldDeadLetters(ctx context.Context, p store.SweepParams) ([]job.ID, error) {
	if p.FailedBefore.IsZero() {
		return nil, nil
	}
	var bound job.ID
	if err := bound.SetTime(ulid.Timestamp(p.FailedBefore) + 1); err != nil {
		return nil, err
	}
	rows, err := s.stmt.deadOld.QueryContext(ctx, bound[:], p.FailedBefore.UnixMilli(), p.Limit)
	return read(ctx, rows, err, func(r scanner) (id job.ID, err error) { return id, r.Scan(&id) })
}
