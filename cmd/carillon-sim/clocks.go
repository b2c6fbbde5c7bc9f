package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/carillon-scheduler/carillon/sim/chaos"
)

// settable has the patches of Go's own files by which a program reads how far its wall clock is set from a file. The
// monotonic clock is not changed. Go's programs ask the kernel themselves, so a library can't come between.
var settable = map[string][]patch{
	"time/time.go": {{
		"\tsec, nsec, mono := runtimeNow()\n",
		"\tsec, nsec, mono := runtimeNow()\n\tsec, nsec = set(sec, nsec)\n",
	}},
	"time/sys_unix.go": {{"import (\n", "import (\n\t\"sync/atomic\"\n\t\"unsafe\"\n"}},
}

const settableSource = `
// ahead is a number of nanoseconds, which another process writes to a file. It is nil without that file.
var ahead = func() *int64 {
	name, _ := syscall.Getenv("` + chaos.ClockVariable + `")
	if name == "" {
		return nil
	}
	file, err := syscall.Open(name, syscall.O_RDONLY, 0)
	if err != nil {
		panic("the file of the clock can't be opened: " + err.Error())
	}
	mapped, err := syscall.Mmap(file, 0, 8, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		panic("the file of the clock can't be mapped: " + err.Error())
	}
	return (*int64)(unsafe.Pointer(&mapped[0]))
}()

// set sets a time of the wall clock ahead.
func set(sec int64, nsec int32) (int64, int32) {
	if ahead == nil {
		return sec, nsec
	}
	all := int64(nsec) + atomic.LoadInt64(ahead)
	sec, all = sec+all/1e9, all%1e9
	if all < 0 {
		sec, all = sec-1, all+1e9
	}
	return sec, int32(all)
}
`

// buildSettable builds the service's program with a clock that can be set, into a folder. The program of a release has
// no such clock.
func buildSettable(ctx context.Context, folder string) (program string, err error) {
	overlayFile, err := settableOverlay(ctx, folder)
	if err != nil {
		return "", err
	}
	program = filepath.Join(folder, "carillon")
	c := exec.CommandContext(ctx, ".ci/build", program)
	c.Env = append(os.Environ(), "GOFLAGS="+os.Getenv("GOFLAGS")+" -overlay="+overlayFile)
	c.Stdout, c.Stderr = os.Stderr, os.Stderr
	if err := c.Run(); err != nil {
		return "", fmt.Errorf("the program can't be built: %w", err)
	}
	return program, nil
}

// settableOverlay writes the patched sources to a folder, and returns the file for the option -overlay.
func settableOverlay(ctx context.Context, folder string) (file string, err error) {
	goroot, err := goEnv(ctx, "GOROOT")
	if err != nil {
		return "", err
	}
	replaced := map[string]string{}
	more := map[string]string{"time/sys_unix.go": settableSource}
	if err := replace(goroot, folder, settable, more, replaced); err != nil {
		return "", err
	}
	file = filepath.Join(folder, "overlay.json")
	return file, writeOverlay(file, replaced)
}
