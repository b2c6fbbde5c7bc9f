package service

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// The garbage that triggers a collection: eight times the live heap, but at most 48 MiB, or the size of the live heap
// if that is more. A replica's live heap is some megabytes. By Go's default, garbage of the size of the live heap, a
// busy replica would collect dozens of times a second, and spend up to a quarter of its processor time on it.
const (
	mostGarbage = 48 << 20 // bytes
	leastShare  = 100      // % of the live heap, Go's default
	mostShare   = 800
)

// CollectRarely makes the garbage collector follow that rule from now on. GOGC overrides it; GOMEMLIMIT always applies
// (https://pkg.go.dev/runtime#hdr-Environment_Variables).
func CollectRarely() {
	if os.Getenv("GOGC") == "" {
		pace(struct{}{})
	}
}

// pace sets the collector's target from the results of the last collection, and runs again after the next one.
func pace(struct{}) {
	live := uint64(0)
	found := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"},
		{Name: "/gc/scan/globals:bytes"}}
	metrics.Read(found)
	for _, s := range found {
		live += s.Value.Uint64()
	}
	debug.SetGCPercent(shareFor(live))
	runtime.AddCleanup(new([64]byte), pace, struct{}{}) // unreachable, so the next collection finds it
}

// shareFor returns the garbage that triggers a collection, as a percentage of live memory including stacks and globals.
// The collector uses the same measure (https://go.dev/doc/gc-guide#GOGC).
func shareFor(live uint64) int {
	return int(min(mostShare, max(leastShare, mostGarbage*100/max(live, 1))))
}
