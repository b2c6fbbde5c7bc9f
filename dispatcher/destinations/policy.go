package destinations

import (
	"fmt"
	"time"
)

// Policy is what destinations are treated by.
type Policy struct {
	// InFlight is how many callbacks of one destination may be under way at once; at least 1. It is also how many may
	// be of all those together that are slow, or have not answered yet.
	InFlight int
	// SlowInFlight is how many may be of one that is slow, or has not answered yet; at least 1.
	SlowInFlight int
	// FirstInFlight is how many more may be of slow ones together that have nothing else under way.
	FirstInFlight int
	// SlowAfter is how long callbacks take, on average, to a destination that is slow.
	SlowAfter time.Duration
	// Patience is how long a callback that has been claimed may wait for its turn. If it is likely to be longer, it is
	// given back.
	Patience time.Duration
	// Failures is how many in a row open a circuit; at least 1. Of those of one part, half as many count for the whole
	// destination.
	Failures int
	// Probe is how long an open circuit waits before it lets one callback through, at first; each that fails doubles
	// it, up to LongestProbe. What is given back meanwhile is not claimed again before Probe is over.
	Probe, LongestProbe time.Duration
}

// Validate checks the policy. The error names the option at fault and what would be right.
func (p *Policy) Validate() error {
	switch {
	case p.InFlight < 1:
		return fmt.Errorf("destination-max-in-flight is %d; it must be at least 1", p.InFlight)
	case p.SlowInFlight < 1:
		return fmt.Errorf("slow-destination-max-in-flight is %d; it must be at least 1", p.SlowInFlight)
	case p.SlowAfter <= 0 || p.Patience <= 0:
		return fmt.Errorf("the times after which a destination is slow, %s, and not waited for, %s, must be more than 0", p.SlowAfter, p.Patience)
	case p.Failures < 1:
		return fmt.Errorf("circuit-failures is %d; it must be at least 1", p.Failures)
	case p.Probe < time.Millisecond || p.LongestProbe < p.Probe:
		return fmt.Errorf("circuit-probe is %s and circuit-longest-probe %s; the one must be at least 1ms, and the other no shorter", p.Probe, p.LongestProbe)
	}
	return nil
}

// Limits are what one callback asks for beside the policy, and what tells its turn. Zero asks for nothing.
type Limits struct {
	Part     string  // of the destination, with a circuit of its own; it may be secret; empty is one like any other
	InFlight int     // at most so many of its destination are under way
	Rate     float64 // at most so many begin in a second
	Of       Whose
	Again    bool // it has been given back before
}
