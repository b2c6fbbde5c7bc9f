package service

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
	"github.com/carillon-scheduler/carillon/dispatcher"
	"github.com/carillon-scheduler/carillon/dispatcher/destinations"
	"github.com/carillon-scheduler/carillon/dispatcher/fairqueue"
)

// Fairness is options that say who is served when, while more is due than can be fired.
type Fairness struct {
	PriorityShares prioritySharesOption `default:"70/25/5" placeholder:"HIGH/NORMAL/LOW" help:"How the priorities share what can be fired while all have something due. (${default})"`
	OverdueAfter   cli.Duration         `default:"10s" placeholder:"DURATION" help:"How long something must have been due to be overdue, as after an outage. (${default})"`
	OverdueShare   float64              `default:"0.5" placeholder:"SHARE" help:"How much goes to what is overdue while something else of the same tenant is due: more than 0 and less than 1. (${default})"`

	AutoPriority      bool         `help:"Give tenants a priority that have none: high while they are new, else normal if they have little to fire, else low."`
	AutoPriorityNew   cli.Duration `default:"7d" placeholder:"DURATION" help:"For how long a tenant is new, from its first job or settings, with --auto-priority. (${default})"`
	AutoPrioritySmall int          `default:"1000" placeholder:"N" help:"How many pending occurrences are little, with --auto-priority. (${default})"`

	DestinationMaxInFlight     int          `placeholder:"N" help:"How many callbacks may be under way at once to one webhook host, queue or topic, and to all slow ones together, from each replica. (three quarters of --concurrency)"`
	SlowDestinationMaxInFlight int          `placeholder:"N" help:"How many, to one whose callbacks take longer than 250 ms on average, or that has not answered yet. (half of --concurrency)"`
	CircuitFailures            int          `default:"20" placeholder:"N" help:"How many failures in a row open a destination's circuit: it is then tried by one callback at a time. (${default})"`
	CircuitProbe               cli.Duration `default:"5s" placeholder:"DURATION" help:"How long an open circuit waits between two of them, at first; each failure doubles it. (${default})"`
	CircuitLongestProbe        cli.Duration `default:"1m" placeholder:"DURATION" help:"The longest that it waits. (${default})"`

	TenantLabels int `default:"100" placeholder:"N" help:"How many tenants have metrics of their own. (${default})"`
}

// configure sets what the options say.
func (o Fairness) configure(c *dispatcher.Config) {
	c.Policy = fairqueue.Policy{
		High: o.PriorityShares.high, Normal: o.PriorityShares.normal, Low: o.PriorityShares.low,
		OverdueAfter: o.OverdueAfter.Std(), OverdueShare: o.OverdueShare,
	}
	if o.AutoPriority {
		c.Auto = dispatcher.AutoPriority{New: o.AutoPriorityNew.Std(), Small: o.AutoPrioritySmall}
	}
	c.Destinations = destinations.Policy{
		InFlight: o.DestinationMaxInFlight, SlowInFlight: o.SlowDestinationMaxInFlight,
		SlowAfter: dispatcher.Defaults.Destinations.SlowAfter, Patience: dispatcher.Defaults.Destinations.Patience,
		Failures: o.CircuitFailures, Probe: o.CircuitProbe.Std(), LongestProbe: o.CircuitLongestProbe.Std(),
	}
	c.TenantLabels = o.TenantLabels
}

// prioritySharesOption is "70/25/5".
type prioritySharesOption struct{ high, normal, low float64 }

func (p *prioritySharesOption) UnmarshalText(b []byte) error {
	parts := strings.Split(string(b), "/")
	if len(parts) != 3 {
		return fmt.Errorf("must be three numbers with slashes between them, as in 70/25/5, not %q", b)
	}
	for i, to := range []*float64{&p.high, &p.normal, &p.low} {
		var err error
		if *to, err = strconv.ParseFloat(parts[i], 64); err != nil {
			return fmt.Errorf("must be three numbers with slashes between them, as in 70/25/5, not %q", b)
		}
	}
	return nil
}
