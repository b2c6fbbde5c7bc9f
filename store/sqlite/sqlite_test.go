package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	_ "modernc.org/sqlite"

	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/sqlite"
	"github.com/carillon-scheduler/carillon/store/storetest"
)

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Opener {
		file := "sqlite:" + filepath.Join(t.TempDir(), "carillon.db")
		return func() (store.Store, error) { return sqlite.Open(context.Background(), file) }
	})
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
	if _, err := sqlite.Open(t.Context(), "sqlite:"+dir+"/none/c.db"); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("a missing folder answers %v", err)
	}
}
