package service_test

import (
	"bytes"
	"errors"
	"log/slog"
	"math"
	"os"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"github.com/carillon-scheduler/carillon/cmd/internal/service"
)

// The heap's limit follows the container's, unless there is none, or the operator has set one.
func TestMemoryLimit(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(-1))
	for _, name := range []string{"AUTOMEMLIMIT", "GOMEMLIMIT"} {
		t.Setenv(name, "") // so that the caller's is put back at the end
		if err := os.Unsetenv(name); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name  string
		limit memlimit.Provider
		want  int64
		said  string
	}{
		{"limited", memlimit.Limit(500 << 20), 400 << 20, "memoryMiB=400"},
		{"unlimited", func() (uint64, error) { return 0, memlimit.ErrNoLimit }, math.MaxInt64, ""},
		{"unreadable", func() (uint64, error) { return 0, errors.New("no cgroups here") }, math.MaxInt64, ""},
	} {
		debug.SetMemoryLimit(math.MaxInt64)
		service.LimitMemory(c.limit)
		if got := debug.SetMemoryLimit(-1); got != c.want {
			t.Errorf("%s: the limit is %d, want %d", c.name, got, c.want)
		}
		var log bytes.Buffer
		service.LogResources(slog.New(slog.NewTextHandler(&log, nil)))
		if said := log.String(); !strings.Contains(said, "processors=") || !strings.Contains(said, c.said) ||
			strings.Contains(said, "memoryMiB") != (c.said != "") {
			t.Errorf("%s: the log says %s", c.name, said)
		}
	}
	t.Setenv("GOMEMLIMIT", "300MiB")
	debug.SetMemoryLimit(300 << 20)
	service.LimitMemory(memlimit.Limit(500 << 20))
	if got := debug.SetMemoryLimit(-1); got != 300<<20 {
		t.Errorf("the operator's limit became %d", got)
	}
}
