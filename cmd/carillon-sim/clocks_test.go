package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/sim/chaos"
)

// clockProgram writes by how much more its wall clock went on than its monotonic clock, at first and after each byte that
// it reads.
const clockProgram = `package main

import (
	"fmt"
	"os"
	"time"
)

func main() {
	begun := time.Now()
	for b := []byte{0}; ; {
		now := time.Now()
		fmt.Println(now.Round(0).Sub(begun.Round(0)) - now.Sub(begun))
		if n, _ := os.Stdin.Read(b); n == 0 {
			return
		}
	}
}
`

// TestClockCanBeSet: a file sets the wall clock of a program that is built for it, also while it runs, and not its
// monotonic clock. A program without the file has the machine's clock.
func TestClockCanBeSet(t *testing.T) {
	folder := t.TempDir()
	overlayFile, err := settableOverlay(t.Context(), folder)
	if err != nil {
		t.Fatal(err)
	}
	source, program, file := filepath.Join(folder, "main.go"), filepath.Join(folder, "program"), filepath.Join(folder, "clock")
	if err := os.WriteFile(source, []byte(clockProgram), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := command(t.Context(), folder, "build", "-trimpath", "-overlay", overlayFile, "-o", program, source); err != nil {
		t.Fatal(err)
	}
	set := func(by time.Duration) {
		// The program has mapped the file, which is not replaced.
		f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.Write(binary.NativeEndian.AppendUint64(nil, uint64(by))); err != nil {
			t.Fatal(err)
		}
	}
	for _, named := range []bool{true, false} {
		set(-time.Hour)
		c := exec.CommandContext(t.Context(), program)
		if named {
			c.Env = append(os.Environ(), chaos.ClockVariable+"="+file)
		}
		in, err := c.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		read := bufio.NewScanner(out)
		for _, by := range []time.Duration{-time.Hour, 1500 * time.Millisecond, -2 * time.Hour} {
			if by != -time.Hour { // which it began with
				set(by)
				if _, err := in.Write([]byte{'\n'}); err != nil {
					t.Fatal(err)
				}
			}
			want := by + time.Hour
			if !named {
				want = 0
			}
			read.Scan()
			if got, err := time.ParseDuration(read.Text()); err != nil || (got-want).Abs() > 500*time.Millisecond {
				t.Errorf("named %v, set by %s: the clock went %q ahead, want %s: %v", named, by, read.Text(), want, err)
			}
		}
		if err := errors.Join(in.Close(), c.Wait()); err != nil {
			t.Error(err)
		}
	}
}
