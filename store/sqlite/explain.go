package sqlite

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// explain adds advice for the operator to an error of Open. An error caused by the file's place or permissions then no
// longer wraps [store.ErrUnavailable], as it would after Open, because it is not transient.
func explain(path string, err error) error {
	cause, ok := errors.AsType[*sqlite.Error](err)
	if !ok {
		return err
	}
	switch resultCode(cause) {
	case sqlite3.SQLITE_NOTADB:
		return fmt.Errorf("it is not a SQLite database; name another file: %w", cause)
	case sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_IOERR:
		if why := unusable(path); why != "" {
			return fmt.Errorf("%s: %w", why, cause)
		}
	}
	return err
}

// unusable returns the reason why this user can't use a file as a database, or "" if none is visible. Call it only for
// a file that SQLite has failed to open: opening and closing a file beside SQLite would release this process's locks on
// it.
func unusable(path string) (why string) {
	folder := filepath.Dir(path)
	switch info, err := os.Stat(folder); {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Sprintf("there is no folder %s; make it, or name another file", folder)
	case errors.Is(err, syscall.ENOTDIR) || err == nil && !info.IsDir():
		return folder + " is no folder; name another file"
	}
	switch info, err := os.Stat(path); {
	case denied(err):
		return fmt.Sprintf("this user may not enter the folder %s; permit it, or name another file", folder)
	case err == nil && !info.Mode().IsRegular():
		return "it is no file, but a folder or the like; name a file in a folder"
	}
	// A process that was killed leaves the last two files.
	for _, name := range []string{path, path + "-wal", path + "-shm"} {
		file, err := os.OpenFile(name, os.O_RDWR, 0)
		if err == nil {
			_ = file.Close()
		} else if denied(err) {
			return fmt.Sprintf("this user may not read and write %s; make it the owner of the file", name)
		}
	}
	file, err := os.CreateTemp(folder, ".carillon-*")
	if err == nil {
		_ = errors.Join(file.Close(), os.Remove(file.Name()))
	} else if denied(err) {
		return fmt.Sprintf("this user may not make files in the folder %s, where SQLite has others beside this one; "+
			"permit it, or name another file", folder)
	}
	return ""
}

// denied reports whether an operation failed for lack of permission, or because the file system is read-only.
func denied(err error) bool { return errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) }
