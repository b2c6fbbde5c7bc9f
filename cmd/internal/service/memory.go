package service

import (
	"log/slog"
	"math"
	"runtime"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// heapShare is the part of a container's memory for Go's heap. The rest is for memory that Go does not manage, such as
// SQLite's pages, and for allocations while a collection runs.
const heapShare = 0.8

// LimitMemory makes the garbage collector keep the process within the memory of its container, if that is limited: it
// collects more often near heapShare of the limit. GOMEMLIMIT overrides it. A limit that can't be read is none.
func LimitMemory(limit memlimit.Provider) {
	_, _ = memlimit.Set(memlimit.WithProvider(limit), memlimit.WithRatio(heapShare))
}

// LogResources logs the processors and the memory that the process uses. Go itself takes the processors from the
// container's limit.
func LogResources(log *slog.Logger) {
	attributes := []any{"processors", runtime.GOMAXPROCS(0)}
	if limit := debug.SetMemoryLimit(-1); limit < math.MaxInt64 {
		attributes = append(attributes, "memoryMiB", limit>>20)
	}
	log.Info("resources", attributes...)
}
