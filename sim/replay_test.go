//go:build replay

package sim_test

import _ "unsafe" // for go:linkname

// simulate seeds the runtime's randomness: the order of select, of maps and of timers. Only the runtime that
// carillon-sim builds has it.
//
//go:linkname simulate runtime.simulate
func simulate(seed uint64)

func init() { seedRuntime = simulate }
