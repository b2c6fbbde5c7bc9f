package bench

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// detach puts a part into a process group of its own, so that an interrupt from the terminal reaches the bench only.
// The bench ends its parts itself; if it is killed, their input ends, and so do they.
func detach(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
}

// usage returns this process's use so far: time of all cores, and bytes of memory, current and peak.
func usage() (cpu time.Duration, memory, peak int64) {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err == nil {
		cpu = time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	file, err := os.Open("/proc/self/status")
	if err != nil {
		return cpu, 0, 0
	}
	defer func() { _ = file.Close() }()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ":")
		var kib int64
		switch name {
		case "VmRSS":
			_, _ = fmt.Sscan(value, &kib)
			memory = kib << 10
		case "VmHWM":
			_, _ = fmt.Sscan(value, &kib)
			peak = kib << 10
		}
	}
	return cpu, memory, peak
}
