//go:build !linux

package bench

import (
	"os/exec"
	"runtime"
	"time"
)

func detach(*exec.Cmd) {}

// usage returns this process's bytes of memory. Processor time and peak memory are not available here.
func usage() (cpu time.Duration, memory, peak int64) {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return 0, int64(m.Sys), int64(m.Sys)
}
