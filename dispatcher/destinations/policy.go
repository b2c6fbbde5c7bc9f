package destinations

import (
	"fmt"
	"time"
)

// Policy has the limits of destinations.
type Policy struct {
	// InFlight is the largest number of callbacks under way to one destination; at least 1. It is also the limit of all
	// slow destinations together, including those that have not answered yet.
	InFlight int
	// SlowInFlight is the limit of one destination that is slow, or has not answered yet; at least 1.
	SlowInFlight int
	// FirstInFlight is the number of additional callbacks for slow destinations with nothing else under way.
	FirstInFlight int
	// SlowAfter is the average duration of callbacks from which a destination is slow.
	SlowAfter time.Duration
	// Patience is the longest time that a claimed callback waits to be sent. If the wait is likely to be longer, it is
	// deferred.
	Patience time.Duration
	// Failures is the number of failures in a row that opens a circuit; at least 1. At most half as many of one part count
	// for the whole destination.
	Failures int
	// Probe is the first pause before an open circuit admits a callback. Each failed probe doubles it, up to LongestProbe.
	// A callback that is deferred meanwhile is not claimed again before Probe is over.
	Probe, LongestProbe time.Duration
}

// Validate checks the policy. The error names the wrong option and a valid value.
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

// Limits are the limits of one callback's job besides the policy, and its flow. Zero is no limit.
type Limits struct {
	Part     string  // a part of the destination, with a circuit of its own; it may be secret; empty is a part too
	InFlight int     // the most callbacks under way to the destination
	Rate     float64 // the most that begin in a second
	Flow     Flow
	Again    bool // it has been deferred before
}
