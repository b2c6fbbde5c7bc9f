package sqlite_test

import (
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/carillon-scheduler/carillon/store/sqlite"
)

const nobody = 65534

// Jobs may have secrets, and other users of the machine are none of the operator's.
func TestFilesAreForTheirOwner(t *testing.T) {
	path := filepath.Join(t.TempDir(), "carillon.db")
	s, err := sqlite.Open(t.Context(), "sqlite:"+path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, name := range []string{path, path + "-wal", path + "-shm"} {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if mode := info.Mode().Perm(); mode != 0o600 {
			t.Errorf("%s has the mode %o", filepath.Base(name), mode)
		}
	}
}

// A service may have a user and a folder of its own, and root may use its file before it does.
func TestFileOfRoot(t *testing.T) {
	folder, owner := t.TempDir(), os.Geteuid()
	if owner == 0 {
		owner = nobody
		if err := os.Chown(folder, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(folder, "carillon.db")
	s, err := sqlite.Open(t.Context(), "sqlite:"+path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, name := range []string{path, path + "-wal", path + "-shm"} {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := int(info.Sys().(*syscall.Stat_t).Uid); got != owner {
			t.Errorf("%s belongs to %d, want %d", filepath.Base(name), got, owner)
		}
	}
}

// The error names missing permissions, and is not transient.
func TestOpenWithoutPermission(t *testing.T) {
	dir := t.TempDir()
	made := func(name string) string {
		t.Helper()
		path := filepath.Join(dir, name, "carillon.db")
		if err := os.Mkdir(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		s, err := sqlite.Open(t.Context(), "sqlite:"+path)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		return path
	}
	chmod := func(path string, mode os.FileMode) {
		t.Helper()
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	file, folder, closed, left := made("file"), made("folder"), made("closed"), made("left")
	for _, path := range []string{file, folder, closed, left} {
		chmod(path, 0o666)
		chmod(filepath.Dir(path), 0o777)
	}
	chmod(filepath.Dir(dir), 0o755) // the directory was made for its owner alone
	chmod(file, 0o444)
	chmod(filepath.Dir(folder), 0o555)
	chmod(filepath.Dir(closed), 0o600)
	t.Cleanup(func() { // so that the files can be removed
		chmod(filepath.Dir(folder), 0o777)
		chmod(filepath.Dir(closed), 0o777)
	})
	if err := os.WriteFile(left+"-wal", nil, 0); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		notAsRoot(t)
		expectUnusable(t, file, "may not read and write "+file)
		expectUnusable(t, folder, "may not make files in the folder "+filepath.Dir(folder))
		expectUnusable(t, filepath.Join(filepath.Dir(folder), "new.db"), "may not make files in the folder")
		expectUnusable(t, closed, "may not enter the folder "+filepath.Dir(closed))
		expectUnusable(t, left, "may not read and write "+left+"-wal")
	}()
	<-done
}

// notAsRoot takes root's way around all permissions from this goroutine, for the rest of its life. Its thread ends with
// it.
func notAsRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		return
	}
	runtime.LockOSThread()
	if _, _, errno := syscall.RawSyscall(syscall.SYS_SETFSUID, nobody, 0, 0); errno != 0 {
		t.Error(errno)
	}
}
