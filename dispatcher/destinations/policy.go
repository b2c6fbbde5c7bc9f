package destinations

import (
	"fmt"
	"time"
)

// Policy is the limits of destinations.
type Policy struct {
	// InFlight is how many callbacks to one destination may be under way at once; at least 1. It is also the limit of
	// all slow destinations together, and of those that have not answered yet.
	InFlight int
	// SlowInFlight is the limit of one destination that is slow, or has not answered yet; at least 1.
	SlowInFlight int
	// FirstInFlight is how many more callbacks may be under way to slow destinations that have no other.
	FirstInFlight int
	// SlowAfter is how long callbacks take, on average, to a destination that is slow.
	SlowAfter time.Duration
	// Patience is how long a claimed callback may wait to be sent. If it is likely to be longer, it is deferred.
	Patience time.Duration
	// Failures is how many failures in a row open a circuit; at least 1. At most half as many of one part count for the
	// whole destination.
	Failures int
	// Probe is how long an open circuit waits before it lets one callback through, at first; each probe that fails
	// doubles it, up to LongestProbe. A callback that is deferred meanwhile is not claimed again before Probe is over.
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
		return fmt.Errorf("the times after which a destination is slow, %s, and not waited for, %s, must be more than 0",
			p.SlowAfter, p.Patience)
	case p.Failures < 1:
		return fmt.Errorf("circuit-failures is %d; it must be at least 1", p.Failures)
	case p.Probe < time.Millisecond || p.LongestProbe < p.Probe:
		return fmt.Errorf("circuit-probe is %s and circuit-longest-probe %s; the one must be at least 1ms, "+
			"and the other no shorter", p.Probe, p.LongestProbe)
	}
	return nil
}

// Limits are the limits of one callback's job beside the policy, and whose turn it is. Zero is no limit.
type Limits struct {
	Part     string  // of the destination, with a circuit of its own; it may be secret; empty is one like any other
	InFlight int     // at most so many of its destination are under way
	Rate     float64 // at most so many begin in a second
	Flow     Flow
	Again    bool // it has been deferred before
}
