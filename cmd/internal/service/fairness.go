package service

import (
	"flag"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
	"github.com/carillon-scheduler/carillon/dispatcher"
	"github.com/carillon-scheduler/carillon/dispatcher/destinations"
	"github.com/carillon-scheduler/carillon/dispatcher/fairqueue"
)

// Fairness has the options that share the slots while more is due than can be fired.
type Fairness struct {
	PriorityShares priorityShares
	OverdueAfter   time.Duration
	OverdueShare   float64

	AutoPriority      bool
	AutoPriorityNew   time.Duration
	AutoPrioritySmall int

	DestinationMaxInFlight     int
	SlowDestinationMaxInFlight int
	CircuitFailures            int
	CircuitProbe               time.Duration
	CircuitLongestProbe        time.Duration

	TenantLabels int
}

// Flags declares the options, and sets them to their defaults.
func (o *Fairness) Flags(f *flag.FlagSet) {
	policy, limits := dispatcher.Defaults.Policy, dispatcher.Defaults.Destinations
	o.PriorityShares = priorityShares{policy.High, policy.Normal, policy.Low}
	f.Var(&o.PriorityShares, "priority-shares",
		"`HIGH/NORMAL/LOW`: The priorities' shares of the slots while all have due occurrences.")
	cli.Duration(f, &o.OverdueAfter, "overdue-after", policy.OverdueAfter,
		"`DURATION`: Time after which a due occurrence is overdue, for example after an outage.")
	f.Float64Var(&o.OverdueShare, "overdue-share", policy.OverdueShare,
		"`SHARE`: Part of a tenant's slots for overdue occurrences while others of it are due: more than 0, less than 1.")

	f.BoolVar(&o.AutoPriority, "auto-priority", false,
		"Give tenants without a priority one: high while they are new, else normal if they have few pending, else low.")
	cli.Duration(f, &o.AutoPriorityNew, "auto-priority-new", 7*24*time.Hour,
		"`DURATION`: Time for which a tenant is new, from its first job or settings, with --auto-priority.")
	f.IntVar(&o.AutoPrioritySmall, "auto-priority-small", 1000,
		"`N`: Maximum number of few pending occurrences, with --auto-priority.")

	f.IntVar(&o.DestinationMaxInFlight, "destination-max-in-flight", 0,
		"`N`: Maximum number of callbacks under way to one webhook host, queue or topic, and to all slow ones "+
			"together, from each replica. (three quarters of --concurrency)")
	f.IntVar(&o.SlowDestinationMaxInFlight, "slow-destination-max-in-flight", 0,
		"`N`: The same maximum for a destination that takes more than 250 ms on average, or has not answered yet. "+
			"(half of --concurrency)")
	f.IntVar(&o.CircuitFailures, "circuit-failures", limits.Failures,
		"`N`: Consecutive failures that open a destination's circuit. It is then probed by one callback at a time.")
	cli.Duration(f, &o.CircuitProbe, "circuit-probe", limits.Probe,
		"`DURATION`: First pause of an open circuit between two probes. Each failure doubles it.")
	cli.Duration(f, &o.CircuitLongestProbe, "circuit-longest-probe", limits.LongestProbe,
		"`DURATION`: Longest pause of an open circuit between two probes.")

	f.IntVar(&o.TenantLabels, "tenant-labels", dispatcher.Defaults.TenantLabels,
		"`N`: Maximum number of tenants with metrics of their own.")
}

// configure copies the options into the dispatcher's configuration.
func (o *Fairness) configure(c *dispatcher.Config) {
	c.Policy = fairqueue.Policy{
		High: o.PriorityShares.high, Normal: o.PriorityShares.normal, Low: o.PriorityShares.low,
		OverdueAfter: o.OverdueAfter, OverdueShare: o.OverdueShare,
	}
	if o.AutoPriority {
		c.Auto = dispatcher.AutoPriority{New: o.AutoPriorityNew, Small: o.AutoPrioritySmall}
	}
	c.Destinations = destinations.Policy{
		InFlight: o.DestinationMaxInFlight, SlowInFlight: o.SlowDestinationMaxInFlight,
		SlowAfter: dispatcher.Defaults.Destinations.SlowAfter, Patience: dispatcher.Defaults.Destinations.Patience,
		Failures: o.CircuitFailures, Probe: o.CircuitProbe, LongestProbe: o.CircuitLongestProbe,
	}
	c.TenantLabels = o.TenantLabels
}

// priorityShares is an option of the form "70/25/5".
type priorityShares struct{ high, normal, low float64 }

// Set implements [flag.Value].
func (p *priorityShares) Set(s string) error {
	parts := strings.Split(s, "/")
	if len(parts) != 3 {
		return fmt.Errorf("must be three numbers with slashes between them, as in 70/25/5, not %q", s)
	}
	for i, to := range []*float64{&p.high, &p.normal, &p.low} {
		var err error
		if *to, err = strconv.ParseFloat(parts[i], 64); err != nil {
			return fmt.Errorf("must be three numbers with slashes between them, as in 70/25/5, not %q", s)
		}
	}
	return nil
}

// String implements [flag.Value].
func (p *priorityShares) String() string { return fmt.Sprintf("%g/%g/%g", p.high, p.normal, p.low) }
