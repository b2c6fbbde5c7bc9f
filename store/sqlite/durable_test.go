package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"

	"github.com/carillon-scheduler/carillon/store"
)

// A commit must be on disk when it is acknowledged. A test can't cut the power, so this one asks the writing connection
// for its setting: with anything less than FULL (2), SQLite does not sync each commit (https://sqlite.org/pragma.html).
func TestCommitsAreSynced(t *testing.T) {
	s, err := Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "carillon.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	var synchronous int
	var journal string
	row := s.writer.QueryRowContext(t.Context(), "SELECT synchronous, journal_mode FROM pragma_synchronous, pragma_journal_mode")
	if err := row.Scan(&synchronous, &journal); err != nil {
		t.Fatal(err)
	}
	if synchronous < 2 || journal != "wal" {
		t.Errorf("synchronous is %d and the journal %s, want 2 and wal", synchronous, journal)
	}
}

// Any error of a statement whose transaction the context has ended is transient.
func TestTransactionEndedMeanwhile(t *testing.T) {
	s, err := Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "carillon.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	ctx, cancel := context.WithCancel(t.Context())
	err = s.write(ctx, func(tx *sql.Tx) error {
		del := tx.Stmt(s.stmt.jobDelete)
		cancel()
		for {
			_, err := del.Exec("t", "k")
			if err != nil && !errors.Is(err, sql.ErrTxDone) && !errors.Is(err, context.Canceled) {
				return err // the transaction was closed
			}
		}
	})
	if !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("the write answers %v", err)
	}
}
