//go:build unix

package sqlite

import (
	"os"
	"path/filepath"
	"syscall"
)

// giveToFolder gives a file that root makes to the owner of its folder, as SQLite gives its other files to the owner of
// the database. Otherwise a command that root runs before the service's first start would lock the service out.
func giveToFolder(file *os.File) {
	if os.Geteuid() != 0 {
		return
	}
	if folder, err := os.Stat(filepath.Dir(file.Name())); err == nil {
		if of, ok := folder.Sys().(*syscall.Stat_t); ok {
			_ = file.Chown(int(of.Uid), int(of.Gid)) // if that is impossible, it remains root's
		}
	}
}
