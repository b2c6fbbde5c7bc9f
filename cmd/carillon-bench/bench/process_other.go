//go:build !linux

package bench

import (
	"os/exec"
	"runtime"
	"time"
)

func detach(*exec.Cmd) {}

// usage is what this process has used so far, as far as can be told here: bytes of memory.
func usage() (cpu time.Duration, memory, peak int64) {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return 0, int64(m.Sys), int64(m.Sys)
}
