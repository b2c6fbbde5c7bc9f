package sqlite

import (
	"context"
	"database/sql"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Amend implements [store.Jobs].
func (s *Store) Amend(ctx context.Context, a store.Amendment) error {
	return s.write(ctx, func(tx *sql.Tx) error {
		now, err := s.stmt.present(tx, a.Name)
		switch {
		case err != nil:
			return err
		case !now.exists():
			return store.ErrNotFound
		case now.version != a.Of:
			return store.ErrPrecondition
		}
		_, err = tx.Stmt(s.stmt.jobAmend).Exec(string(a.Version), a.Now.UnixMilli(), a.Callback.Type, a.Callback.Data,
			a.Options.Encode(), a.Name.Tenant, a.Name.Key)
		return err
	})
}

// Pause implements [store.Jobs]. It writes the job only, however many occurrences the job has: claims put those back.
func (s *Store) Pause(ctx context.Context, name job.Name, version job.Revision, now time.Time) error {
	return s.write(ctx, func(tx *sql.Tx) error {
		present, err := s.stmt.present(tx, name)
		if err != nil {
			return err
		}
		if !present.exists() {
			return store.ErrNotFound
		}
		_, err = tx.Stmt(s.stmt.jobPause).Exec(now.UnixMilli(), string(version), name.Tenant, name.Key)
		return err
	})
}

// Resume implements [store.Jobs]. The job is one transaction; its occurrences may be several more, see
// largestTransaction.
func (s *Store) Resume(ctx context.Context, name job.Name, version job.Revision, now time.Time) error {
	ctx, cancel := within(ctx)
	defer cancel()
	var resumed stamps
	err := s.write(ctx, func(tx *sql.Tx) (err error) {
		if resumed, err = s.stmt.present(tx, name); err != nil {
			return err
		}
		if !resumed.exists() {
			return store.ErrNotFound
		}
		_, err = tx.Stmt(s.stmt.jobResume).Exec(now.UnixMilli(), string(version), name.Tenant, name.Key)
		return err
	})
	var last job.ID
	for more := true; more && err == nil; {
		err = s.writeMore(ctx, func(tx *sql.Tx) (err error) {
			last, more, err = s.bringForward(tx, name, resumed.revision, last, now)
			return err
		})
	}
	return err
}

// bringForward undoes the delay of a job's unclaimed occurrences: those due later than their instants become due at
// their instants, or at now if these have passed. It handles, in the order of ids, up to one transaction's worth of
// occurrences behind an id, and does nothing if the job has another revision now. It returns the last id, and whether
// there may be more.
func (s *Store) bringForward(
	tx *sql.Tx, name job.Name, revision job.Revision, after job.ID, now time.Time,
) (last job.ID, more bool, err error) {
	present, err := s.stmt.present(tx, name)
	if present.revision != revision || err != nil {
		return last, false, err
	}
	var n int
	found := tx.Stmt(s.stmt.delayedRead).QueryRow(now.UnixMilli(), present.row, after[:], largestTransaction)
	if err := found.Scan(&n, &last); n == 0 || err != nil {
		return last, false, err
	}
	_, err = tx.Stmt(s.stmt.delayedDue).Exec(now.UnixMilli(), present.row, after[:], last[:])
	return last, n == largestTransaction, err
}

// Trigger implements [store.Jobs].
func (s *Store) Trigger(ctx context.Context, o job.Occurrence) error {
	return s.write(ctx, func(tx *sql.Tx) error {
		present, err := s.stmt.present(tx, o.Name)
		if err != nil {
			return err
		}
		if !present.exists() {
			return store.ErrNotFound
		}
		_, err = tx.Stmt(s.stmt.ownInsert).Exec(append(ownValues(&o),
			o.Own.Callback.Type, o.Own.Callback.Data, o.Own.Options.Encode())...)
		return err
	})
}
