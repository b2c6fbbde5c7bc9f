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

// detach keeps an interruption of the bench, which a terminal sends to all of its processes, from its parts: it ends
// them itself. If it is killed, their input ends, and so do they.
func detach(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
}

// usage is what this process has used so far: time of all cores, and bytes of memory, now and at most.
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
