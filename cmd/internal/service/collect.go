package service

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// How much garbage may gather before it is collected: eight times what is live, but no more than 48 MiB, unless as much
// again is live. What a replica keeps is some megabytes, so by Go's own rule, which is as much as is live, a busy one
// would collect dozens of times a second, and spend up to a quarter of its processor time on it.
const (
	mostGarbage = 48 << 20 // bytes
	leastShare  = 100      // % of what is live, as Go has it
	mostShare   = 800
)

// CollectRarely has the garbage collector follow that rule from now on. GOGC, if it is set, holds instead; GOMEMLIMIT
// holds in any case (https://pkg.go.dev/runtime#hdr-Environment_Variables).
func CollectRarely() {
	if os.Getenv("GOGC") == "" {
		pace(struct{}{})
	}
}

// pace sets the collector's target from what the last collection found, and does so again after the next one.
func pace(struct{}) {
	live := uint64(0)
	found := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"},
		{Name: "/gc/scan/globals:bytes"}}
	metrics.Read(found)
	for _, s := range found {
		live += s.Value.Uint64()
	}
	debug.SetGCPercent(shareFor(live))
	runtime.AddCleanup(new([64]byte), pace, struct{}{}) // nobody has it, so the next collection finds it
}

// shareFor answers how much garbage may gather, as a percentage of what is live, stacks and globals included: that is
// what the collector goes by (https://go.dev/doc/gc-guide#GOGC).
func shareFor(live uint64) int {
	return int(min(mostShare, max(leastShare, mostGarbage*100/max(live, 1))))
}
