package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Put implements [store.Jobs]. Each job is put within one transaction, and many jobs share one.
func (s *Store) Put(ctx context.Context, puts []store.Put) []store.PutResult {
	results := make([]store.PutResult, len(puts))
	var w putter
	done, err := s.writeEach(ctx, len(puts), func(tx *sql.Tx, i int) (rows int, err error) {
		if w.tx != tx {
			w = putter{tx: tx, stmt: &s.stmt, jobInsert: tx.Stmt(s.stmt.jobInsert), occurrences: newInserter(tx, &s.stmt)}
		}
		results[i], rows, err = w.put(&puts[i])
		if errors.Is(err, store.ErrPrecondition) || errors.Is(err, store.ErrSuperseded) {
			results[i].Err = err
			return rows, nil
		}
		return rows, err
	}, w.occurrences.flush)
	for i := done; i < len(results); i++ {
		results[i] = store.PutResult{Err: err}
	}
	return results
}

// putter makes puts within one transaction. The statements use the transaction's context.
type putter struct {
	tx          *sql.Tx
	stmt        *statements
	jobInsert   *sql.Stmt
	occurrences inserter
}

// put puts one job and returns the number of rows written, at least one.
func (w *putter) put(p *store.Put) (result store.PutResult, rows int, err error) {
	rows = 1 + len(p.Occurrences) + len(p.Carried)
	only := sole(p)
	var row int64
	created := false
	// Most jobs are new. For these, one statement both checks that and inserts.
	if p.From == (store.Replaced{}) && (p.If.Always() || p.If.Absent) {
		if row, created, err = w.insert(&p.Job, only); err != nil {
			return result, rows, err
		}
	}
	if !created {
		var replaced int
		if result, row, replaced, err = w.replace(p, only); err != nil {
			return result, rows, err
		}
		rows += replaced
	}
	for i := range p.Occurrences {
		if err := w.occurrences.add(&p.Occurrences[i], row, only == nil); err != nil {
			return result, rows, err
		}
	}
	return result, rows, nil
}

// insert creates the job unless its name has one, and returns its row.
func (w *putter) insert(j *job.Job, only any) (row int64, created bool, err error) {
	result, err := w.jobInsert.Exec(jobValues(j, time.Time{}, only)...)
	n, err := affected(result, err)
	if n == 0 || err != nil {
		return 0, false, err
	}
	row, err = result.LastInsertId()
	return row, true, err
}

// sole returns the id of a job's only occurrence, as it is stored. It returns nil if the job will get more occurrences,
// or may have carried some over; all its occurrences are listed then.
func sole(p *store.Put) any {
	if len(p.Occurrences) != 1 || len(p.Carried) > 0 || !p.Job.ExpandAt.IsZero() {
		return nil
	}
	return p.Occurrences[0].ID[:]
}

// replace replaces the present job. It deletes the job's occurrences except the carried-over ones. Held ones are
// deleted too: their settlements will find nothing, so they are never retried.
func (w *putter) replace(p *store.Put, only any) (result store.PutResult, row int64, replaced int, err error) {
	if err := w.occurrences.flush(); err != nil { // some of them may belong to the replaced job
		return result, 0, 0, err
	}
	now, err := w.stmt.present(w.tx, p.Job.Name)
	if err != nil {
		return result, 0, 0, err
	}
	if err := p.Judge(now.version, now.cursor); err != nil {
		return result, 0, 0, err
	}
	if !now.exists() {
		return result, 0, 0, store.ErrPrecondition
	}
	row = now.row
	result.Replaced = now.revision
	if err := w.tx.Stmt(w.stmt.jobCount).QueryRow(row, p.Now.UnixMilli()).Scan(&replaced, &result.InFlight); err != nil {
		return result, 0, 0, err
	}
	if replaced > 0 {
		if result.Carried, err = w.carry(p, row); err != nil {
			return result, 0, 0, err
		}
	}
	j := &p.Job
	err = w.tx.Stmt(w.stmt.jobReplace).QueryRow(p.StartsOver, j.Tenant, j.Key, string(j.Revision), string(j.Version),
		j.CreatedAt.UnixMilli(), j.UpdatedAt.UnixMilli(), j.ExpiresAt.UnixMilli(), millis(j.Cursor), millis(j.ExpandAt),
		j.Missed, j.Callback.Type, j.Callback.Data, j.Options.Encode(), only, j.Schedule.Encode(),
		p.Planned(result.Carried), j.Failed, j.Trouble.Encode()).Scan(&result.Paused)
	return result, row, replaced, err
}

// carry deletes the occurrences of the job with this row, except those that the put carries over. The new job has the
// same row, so these become its own.
func (w *putter) carry(p *store.Put, row int64) (carried int, err error) {
	carry := w.tx.Stmt(w.stmt.carry)
	for i := range p.Carried {
		c := &p.Carried[i]
		step, subscriber := partValues(&c.As)
		priority, lane := laneValues(&c.As)
		n, err := affected(carry.Exec(row, c.ID[:], c.As.Position, step, subscriber, priority, lane, p.Now.UnixMilli()))
		if err != nil {
			return 0, err
		}
		carried += n
	}
	if _, err := w.tx.Stmt(w.stmt.jobEmpty).Exec(row); err != nil || carried == 0 {
		return 0, err
	}
	_, err = w.tx.Stmt(w.stmt.carried).Exec(row)
	return carried, err
}

// stamps identify one state of a job. The row is the job's within the transaction only: after the job's deletion,
// another job may get it. There is no row 0.
type stamps struct {
	row               int64
	revision, version job.Revision
	cursor            time.Time
}

func (s *stamps) exists() bool { return s.row != 0 }

// present reads the stamps of a job; all are zero if there is none.
func (s *statements) present(tx *sql.Tx, name job.Name) (now stamps, err error) {
	var cursor sql.NullInt64
	err = tx.Stmt(s.jobStamps).QueryRow(name.Tenant, name.Key).Scan(&now.row, &now.revision, &now.version, &cursor)
	if errors.Is(err, sql.ErrNoRows) {
		return stamps{}, nil
	}
	now.cursor = fromMillis(cursor)
	return now, err
}

// Cancel implements [store.Jobs]. Each job is cancelled within one transaction, and many jobs share one.
func (s *Store) Cancel(ctx context.Context, names []job.Name, asked store.Asked) ([]store.CancelResult, error) {
	results := make([]store.CancelResult, len(names))
	_, err := s.writeEach(ctx, len(names), func(tx *sql.Tx, i int) (rows int, err error) {
		results[i], err = s.cancel(tx, names[i], asked)
		return 1 + results[i].Cancelled + results[i].InFlight, err
	}, nil)
	if err != nil {
		return nil, err
	}
	return results, nil
}

func (s *Store) cancel(tx *sql.Tx, name job.Name, asked store.Asked) (store.CancelResult, error) {
	present, err := s.stmt.present(tx, name)
	if err != nil {
		return store.CancelResult{}, err
	}
	if why := asked.Judge(present.version); why != nil {
		return store.CancelResult{Err: why}, nil //nolint:nilerr // it is the result of this job alone
	}
	row, now := present.row, asked.Now.UnixMilli()
	var total, held, ownTotal, ownHeld int
	if err := tx.Stmt(s.stmt.jobCount).QueryRow(row, now).Scan(&total, &held); err != nil {
		return store.CancelResult{}, err
	}
	if err := tx.Stmt(s.stmt.ownCount).QueryRow(now, name.Tenant, name.Key).Scan(&ownTotal, &ownHeld); err != nil {
		return store.CancelResult{}, err
	}
	for _, deletion := range []struct {
		stmt *sql.Stmt
		args []any
	}{
		{s.stmt.jobEmpty, []any{row}},
		{s.stmt.ownDelete, []any{name.Tenant, name.Key}},
		{s.stmt.jobDelete, []any{name.Tenant, name.Key}},
	} {
		if _, err := tx.Stmt(deletion.stmt).Exec(deletion.args...); err != nil {
			return store.CancelResult{}, err
		}
	}
	inFlight := held + ownHeld
	return store.CancelResult{
		Found:     present.exists() || ownTotal > 0,
		Cancelled: total + ownTotal - inFlight,
		InFlight:  inFlight,
	}, nil
}

// Jobs implements [store.Jobs].
func (s *Store) Jobs(ctx context.Context, f store.JobFilter) ([]store.JobStatus, error) {
	from, to := keyRange(f)
	stmt, scan := s.stmt.jobList, func(r scanner) (store.JobStatus, error) { return scanJob(r) }
	if f.Whole {
		stmt, scan = s.stmt.jobListWhole, scanWholeJob
	}
	rows, err := stmt.QueryContext(ctx, f.Tenant, from, to, f.Limit)
	page, err := read(ctx, rows, err, scan)
	if err != nil || !f.Standalone {
		return page, err
	}
	rows, err = s.stmt.standaloneList.QueryContext(ctx, f.Tenant, from, to, f.Limit)
	names, err := read(ctx, rows, err, func(r scanner) (job.Name, error) {
		name := job.Name{Tenant: f.Tenant}
		return name, r.Scan(&name.Key)
	})
	return store.WithStandalone(page, names, f.Limit), err
}

// keyRange returns the range of the keys that a filter selects: from the first, to before the second. Keys are UTF-8
// without control characters, so no key lies between a key and the same key with a zero byte, and none has a byte 0xff.
func keyRange(f store.JobFilter) (from, to string) {
	from, to = f.Prefix, afterPrefix(f.Prefix)
	if f.Key != "" {
		from, to = f.Key, f.Key+"\x00"
	}
	if f.After != "" {
		from = max(from, f.After+"\x00")
	}
	return from, to
}

// afterPrefix returns a bound above every key with the prefix.
func afterPrefix(prefix string) string { return prefix + "\xff" }

// Occurrences implements [store.Jobs].
func (s *Store) Occurrences(
	ctx context.Context, f store.OccurrenceFilter,
) (page []job.Occurrence, total int, err error) {
	revision, tenant, key := string(f.Revision), f.Name.Tenant, f.Name.Key
	rows, err := s.stmt.occurrenceList.QueryContext(ctx, f.After[:], tenant, key, revision, f.Limit)
	if page, err = read(ctx, rows, err, func(r scanner) (job.Occurrence, error) { return scanOccurrence(r) }); err != nil {
		return nil, 0, err
	}
	if !f.Count {
		return page, 0, nil
	}
	err = s.stmt.occurrenceCount.QueryRowContext(ctx, tenant, key, revision).Scan(&total)
	return page, total, mapError(ctx, err)
}

// DeadLetters implements [store.Jobs].
func (s *Store) DeadLetters(ctx context.Context, f store.DeadLetterFilter) ([]job.Occurrence, error) {
	where := []string{"lane = ?", "due_at IS NULL", "job IS NULL", "tenant = ?", "id > ?"}
	args := []any{laneDead, f.Tenant, f.After[:]}
	if f.Key != "" {
		where, args = append(where, "key = ?"), append(args, f.Key)
	}
	if f.Prefix != "" {
		where, args = append(where, "key >= ? AND key < ?"), append(args, f.Prefix, afterPrefix(f.Prefix))
	}
	if f.ID != (job.ID{}) {
		where, args = append(where, "id = ?"), append(args, f.ID[:])
	}
	columns := occurrenceColumns
	if f.Brief {
		columns = strings.Replace(columns, "o.callback_data", "NULL", 1)
	}
	// Select the ids first: an index is sufficient to find and sort them.
	//nolint:gosec // none of the parts comes from a client
	query := "SELECT " + columns + " FROM " + occurrenceTables + " WHERE o.id IN (SELECT id FROM occurrences WHERE " +
		strings.Join(where, " AND ") + " ORDER BY id LIMIT ?) ORDER BY o.id"
	rows, err := s.reader.QueryContext(ctx, query, append(args, f.Limit)...)
	return read(ctx, rows, err, func(r scanner) (job.Occurrence, error) { return scanOccurrence(r) })
}

// SettleDead implements [store.Jobs].
func (s *Store) SettleDead(ctx context.Context, d store.DeadSettlement) (int, error) {
	if d.Outcome == store.Discard {
		return s.forEach(ctx, s.stmt.deadDelete, d.IDs, func(id job.ID) []any { return []any{id[:], d.Tenant} })
	}
	return s.forEach(ctx, s.stmt.redrive, d.IDs, func(id job.ID) []any {
		return []any{d.Now.UnixMilli(), id[:], d.Tenant}
	})
}

// forEach runs a statement for each id in one transaction and counts the rows it changed.
func (s *Store) forEach(
	ctx context.Context, stmt *sql.Stmt, ids []job.ID, args func(job.ID) []any,
) (changed int, err error) {
	err = s.write(ctx, func(tx *sql.Tx) error {
		changed = 0
		each := tx.Stmt(stmt)
		for _, id := range ids {
			n, err := affected(each.Exec(args(id)...))
			if err != nil {
				return err
			}
			changed += n
		}
		return nil
	})
	return changed, err
}
