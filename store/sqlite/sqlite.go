// Package sqlite keeps Carillon's documents in one SQLite file: the default store, which needs nothing installed.
// Several processes on one machine may share the file; over a network file system they must not
// (https://sqlite.org/wal.html).
//
// Every change is a transaction, so a job and its occurrences always change together and no occurrence is ever without
// its job. A commit is on disk when it returns (synchronous=FULL).
package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"runtime"
	"strings"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/storeurl"
)

const (
	// format is the version of the schema below, kept as the file's user_version.
	format = 6
	// applicationID marks the file as ours: "Crln", kept as its application_id.
	applicationID = 0x43726c6e

	// laneDead is the lane of dead letters, so that one index serves them and the pending occurrences.
	laneDead = ""
)

// oldest is the oldest format that Open upgrades to the present one.
const oldest = 4

// Each file upgradeN.sql upgrades a database of format N to format N+1.
//
//go:embed upgrade*.sql
var upgrades embed.FS

//go:embed schema.sql
var schema string

//go:embed indexes.sql
var indexes string

// Store implements [store.Store]. SQLite has one writer at a time, so there is one connection that writes, and a few
// that read concurrently. The queries of the claim loop have a connection of their own, so that they never wait for a
// long listing.
type Store struct {
	writer *sql.DB
	reader *sql.DB
	peeker *sql.DB
	stmt   statements
}

// Open opens or creates the file that a URL such as "sqlite:carillon.db" or "sqlite:/var/lib/carillon/jobs.db" names.
// If this user can't use a file there, now or on any later attempt, the error has the reason and does not wrap
// [store.ErrUnavailable].
func Open(ctx context.Context, rawURL string) (*Store, error) {
	path, err := filePath(rawURL)
	if err != nil {
		return nil, err
	}
	return openFile(ctx, path)
}

// OpenExisting opens a store as [Open] does, but creates none: a file that is missing or empty is an error.
func OpenExisting(ctx context.Context, rawURL string) (*Store, error) {
	path, err := filePath(rawURL)
	if err != nil {
		return nil, err
	}
	switch info, err := os.Stat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("there is no SQLite file %s", path)
	case err == nil && info.Mode().IsRegular() && info.Size() == 0:
		return nil, fmt.Errorf("the SQLite file %s is empty", path)
	}
	return openFile(ctx, path)
}

func openFile(ctx context.Context, path string) (_ *Store, err error) {
	s := &Store{}
	// SQLite would make a file that all users of the machine can read, and gives its other files the same permissions. An
	// existing file keeps its own. If the file can't be made, SQLite has the better error.
	if file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); err == nil {
		giveToFolder(file)
		_ = file.Close() // nothing was written
	}
	if s.writer, err = open(path, "immediate", 1, writerCache); err != nil {
		return nil, err
	}
	if s.reader, err = open(path, "deferred", max(2, runtime.GOMAXPROCS(0)), readerCache); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if s.peeker, err = open(path, "deferred", 1, readerCache); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if err := s.prepare(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open SQLite file %s: %w", path, explain(path, err)), s.Close())
	}
	return s, nil
}

func filePath(rawURL string) (string, error) {
	path, ok := strings.CutPrefix(rawURL, "sqlite:")
	if !ok {
		return "", fmt.Errorf("store URL %q: must begin with \"sqlite:\"", storeurl.Redact(rawURL))
	}
	path = strings.TrimPrefix(path, "//") // sqlite:///absolute/path
	if path == "" || strings.HasPrefix(path, ":") {
		return "", fmt.Errorf("store URL %q: must name a file, as in sqlite:carillon.db", rawURL)
	}
	return path, nil
}

// The page cache of each connection, in KiB. Larger caches made no measured operation faster, not even with a million
// pending occurrences; the system caches the file as well. Each write invalidates the caches of the connections that
// only read.
const (
	writerCache = 16 << 10
	readerCache = 2 << 10
)

func open(path, txlock string, connections, cache int) (*sql.DB, error) {
	query := url.Values{
		"_txlock": {txlock},
		"_pragma": {
			"busy_timeout(100)", // SQLite's own wait ignores the context, so it is short, and begin repeats it
			"journal_mode(wal)",
			"synchronous(full)", // a commit is on disk when it is acknowledged
			fmt.Sprintf("cache_size(-%d)", cache),
			// In pages, so 16 MB, a fourth of the limit below. A checkpoint writes each page once, however often it was
			// changed since the last one.
			"wal_autocheckpoint(4000)",
			"journal_size_limit(67108864)",
			"temp_store(memory)",
		},
	}
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: path}).EscapedPath()+"?"+query.Encode())
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	return db, nil
}

// prepare creates the schema if the file is new, upgrades an older format, refuses a file that it can't use, and
// prepares the statements.
func (s *Store) prepare(ctx context.Context) error {
	if err := s.switchToWAL(ctx); err != nil {
		return err
	}
	stamp := fmt.Sprintf("PRAGMA user_version=%d; PRAGMA application_id=%d", format, applicationID)
	err := s.write(ctx, func(tx *sql.Tx) error {
		var version, application, tables int
		row := tx.QueryRowContext(ctx, `SELECT user_version, application_id, (SELECT count(*) FROM sqlite_schema)
			FROM pragma_user_version, pragma_application_id`)
		if err := row.Scan(&version, &application, &tables); err != nil {
			return err
		}
		switch {
		case tables > 0 && application != applicationID:
			return errors.New("it is a database of another program; name a file of its own")
		case version > format:
			return fmt.Errorf("%w: its format is %d, this one reads up to %d; upgrade carillon",
				store.ErrFormat, version, format)
		case tables > 0 && version < oldest:
			return fmt.Errorf("its format is %d, which only a pre-release of carillon wrote and this one does not read; "+
				"name a new file", version)
		}
		script := schema
		if tables > 0 {
			script = "" // write the stamp again, to test that the file is writable
		}
		for ; tables > 0 && version < format; version++ {
			upgrade, err := upgrades.ReadFile(fmt.Sprintf("upgrade%d.sql", version))
			if err != nil {
				return err
			}
			script += string(upgrade) + ";"
		}
		_, err := tx.ExecContext(ctx, script+";"+indexes+";"+stamp)
		return err
	})
	if err != nil {
		return err
	}
	return s.stmt.prepare(ctx, s)
}

// switchToWAL opens the first connection, which changes the journal mode of a new file. SQLite does not wait for other
// processes that do the same at this moment, so switchToWAL repeats it.
func (s *Store) switchToWAL(ctx context.Context) error {
	for attempt := 1; ; attempt++ {
		err := s.writer.PingContext(ctx)
		if err == nil || attempt == 100 || resultCode(err) != sqlite3.SQLITE_BUSY {
			return mapError(ctx, err)
		}
		select {
		case <-ctx.Done():
			return mapError(ctx, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Close closes the file. No call may be under way.
func (s *Store) Close() error {
	var errs []error
	for _, db := range []*sql.DB{s.peeker, s.reader, s.writer} {
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	return errors.Join(errs...)
}

// Now returns this machine's time: all processes that share the file run on it.
func (s *Store) Now(ctx context.Context) (time.Time, error) {
	var one int
	if err := s.peeker.QueryRowContext(ctx, "SELECT 1 FROM sqlite_schema LIMIT 1").Scan(&one); err != nil {
		return time.Time{}, mapError(ctx, err)
	}
	return time.Now(), nil
}

// write runs f in a transaction that has the write lock from its beginning, and commits it if f returns nil and ctx has
// not ended. An error that marks the store as unavailable is [store.ErrNotDone], unless the commit itself
// has failed.
func (s *Store) write(ctx context.Context, f func(tx *sql.Tx) error) error {
	return s.writeOr(ctx, store.ErrNotDone, f)
}

// writeMore is like write, for a call that may have changed something already.
func (s *Store) writeMore(ctx context.Context, f func(tx *sql.Tx) error) error {
	return s.writeOr(ctx, store.ErrUnavailable, f)
}

// writeOr is like write, but wraps the error of a transaction that was rolled back in undone.
//
// The deadline is checked last, since this process may have been stopped for long at any point, and a context's timer
// may fire late after that. If the process is stopped between the check and the end of the commit, the commit is late
// too. But the process has the write lock until then, so there is no later change that it could undo.
func (s *Store) writeOr(ctx context.Context, undone error, f func(tx *sql.Tx) error) error {
	ctx, cancel := within(ctx)
	defer cancel()
	tx, err := s.begin(ctx)
	if err != nil {
		return mark(ctx, undone, err)
	}
	if err = f(tx); err == nil {
		err = over(ctx)
	}
	if err != nil {
		_ = tx.Rollback() // the cause matters, not the rollback's own error
		return mark(ctx, undone, err)
	}
	err = tx.Commit()
	if resultCode(err) == 0 { // the commit was not begun
		return mark(ctx, undone, err)
	}
	return mapError(ctx, err)
}

// within returns ctx with the time limit of a mutation, unless it has a deadline.
func within(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, store.Within)
}

// over returns the reason why ctx has ended; nil if it has not. It compares the deadline with the time, because the
// context's timer may not have fired yet.
func over(ctx context.Context) error {
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

// begin waits for the write lock, which another process may have, until ctx ends.
func (s *Store) begin(ctx context.Context) (*sql.Tx, error) {
	for {
		tx, err := s.writer.BeginTx(ctx, nil)
		if resultCode(err) != sqlite3.SQLITE_BUSY || over(ctx) != nil {
			return tx, err
		}
	}
}

// largestTransaction is the number of rows of occurrences after which a transaction takes no more items, because no
// other change, and no claim, can be made until it ends.
const largestTransaction = 10_000

// writeEach runs f for each of n items, in as few transactions as largestTransaction allows. F returns the number of
// rows that it wrote. End, unless it is nil, runs last in each transaction. The error is that of the transaction that
// failed; done is the number of items that were committed before it.
func (s *Store) writeEach(
	ctx context.Context, n int, f func(tx *sql.Tx, i int) (rows int, err error), end func() error,
) (done int, err error) {
	ctx, cancel := within(ctx)
	defer cancel()
	write := s.write
	for ; done < n; write = s.writeMore {
		next := done
		err := write(ctx, func(tx *sql.Tx) error {
			for rows := 0; next < n && rows < largestTransaction; next++ {
				wrote, err := f(tx, next)
				if err != nil {
					return err
				}
				rows += wrote
			}
			if end == nil {
				return nil
			}
			return end()
		})
		if err != nil {
			return done, err
		}
		done = next
	}
	return done, nil
}

// mapError wraps transient faults in [store.ErrUnavailable].
func mapError(ctx context.Context, err error) error { return mark(ctx, store.ErrUnavailable, err) }

// mark wraps a transient fault in the error by.
//
// An error after the end of ctx counts as transient, since the end of ctx caused it. [database/sql] closes rows,
// statements and transactions at that moment, and its errors then say no more than that.
func mark(ctx context.Context, by, err error) error {
	if err == nil {
		return nil
	}
	if ended := over(ctx); ended != nil {
		return fmt.Errorf("%w: %w", by, ended)
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, sql.ErrTxDone) {
		return fmt.Errorf("%w: %w", by, err) // of a context that ends a moment before ctx
	}
	switch resultCode(err) {
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR,
		sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_NOMEM:
		return fmt.Errorf("%w: %w", by, err)
	}
	return err
}

// resultCode returns SQLite's primary result code (https://sqlite.org/rescode.html); zero if the error is not SQLite's.
func resultCode(err error) int {
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		return e.Code() & 0xff
	}
	return 0
}
