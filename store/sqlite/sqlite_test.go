package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	_ "modernc.org/sqlite"

	"github.com/carillon-scheduler/carillon/history/historytest"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/memory"
	"github.com/carillon-scheduler/carillon/store/sqlite"
	"github.com/carillon-scheduler/carillon/store/storetest"
)

func TestStore(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		storetest.Races(t, newFile)
		return
	}
	storetest.Run(t, newFile)
}

// TestHistory: the store keeps history.
func TestHistory(t *testing.T) {
	t.Parallel()
	historytest.Run(t, newFile)
}

// TestDifferential: the store behaves like the reference store.
func TestDifferential(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	t.Parallel()
	storetest.Differential(t, 50, func() store.Store { return memory.New() }, newFile)
}

func newFile(t *testing.T) storetest.Opener {
	file := "sqlite:" + filepath.Join(t.TempDir(), "carillon.db")
	return func() (store.Store, error) { return sqlite.Open(context.Background(), file) }
}

func TestOpenRefuses(t *testing.T) {
	for _, c := range []struct {
		name    string
		prepare string // SQL run on the file first
		want    string
	}{
		{"a newer format", "PRAGMA user_version = 99", "newer version of carillon"},
		{"a pre-release's format", "PRAGMA user_version = 1", "name a new file"},
		{"another program's database", "PRAGMA application_id = 7", "another program"},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "x.db")
			s, err := sqlite.Open(t.Context(), "sqlite:"+file)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			db, err := sql.Open("sqlite", file)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := db.Exec(c.prepare); err != nil {
				t.Fatal(err)
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			_, err = sqlite.Open(t.Context(), "sqlite:"+file)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("open answers %v, want %q", err, c.want)
			}
		})
	}
}

func TestOpenURL(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		url string
		ok  bool
	}{
		{"sqlite:" + dir + "/a.db", true},
		{"sqlite://" + dir + "/b.db", true},
		{"sqlite:" + dir + "/with space?and #odd%.db", true},
		{"sqlite:", false},
		{"sqlite::memory:", false},
		{"postgres://x", false},
		{"sqlite:" + dir + "/none/c.db", false},
	} {
		s, err := sqlite.Open(t.Context(), c.url)
		if (err == nil) != c.ok {
			t.Errorf("open %q: %v", c.url, err)
		}
		if err == nil {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// The error names the fault of the file's place, and is not transient.
func TestOpenExplains(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/diary", []byte(strings.Repeat("dear diary\n", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ path, want string }{
		{dir + "/none/c.db", "there is no folder " + dir + "/none"},
		{dir + "/diary", "it is not a SQLite database"},
		{dir + "/diary/c.db", dir + "/diary is no folder"},
		{dir + "/diary/none/c.db", dir + "/diary/none is no folder"},
		{dir, "it is no file"},
	} {
		expectUnusable(t, c.path, c.want)
	}
	if content, err := os.ReadDir(dir); err != nil || len(content) != 1 {
		t.Errorf("%v is left, %v", content, err)
	}
}

// expectUnusable opens a file that can't be used.
func expectUnusable(t *testing.T, path, want string) {
	t.Helper()
	s, err := sqlite.Open(t.Context(), "sqlite:"+path)
	if err == nil {
		_ = s.Close()
	}
	if err == nil || !strings.Contains(err.Error(), want) || errors.Is(err, store.ErrUnavailable) {
		t.Errorf("open %s answers %v, want %q", path, err, want)
	}
}
