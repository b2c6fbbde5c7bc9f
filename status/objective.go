// Package status measures how well the service fires: the lateness of occurrences, whether they meet objectives, and
// how fast these burn their error budgets. Each replica counts its own firings, and reports the counts to the others in
// its heartbeats.
package status

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

// Objective is the part of the occurrences that is to fire in time.
type Objective struct {
	// Tenant is the tenant that it is about; empty for all tenants together.
	Tenant string
	// Target is the part that is to fire within the time: more than 0 and less than 1.
	Target float64
	// Within is the longest time after an instant at which its occurrence is in time.
	Within time.Duration
}

// ParseObjective reads an objective such as "99.9%<1s" or, for one tenant, "acme:99.9%<1s".
func ParseObjective(text string) (o Objective, err error) {
	bad := fmt.Errorf(
		`%q must be a percentage, "<" and a duration, as in 99.9%%<1s, or for one tenant acme:99.9%%<1s`, text)
	rest := text
	if tenant, after, named := strings.Cut(text, ":"); named {
		if !job.ValidTenant(tenant) {
			return o, bad
		}
		o.Tenant, rest = tenant, after
	}
	percentage, within, ok := strings.Cut(rest, "%<")
	if !ok {
		return o, bad
	}
	target, err := strconv.ParseFloat(percentage, 64)
	if err != nil || !(target > 0 && target < 100) {
		return o, fmt.Errorf("%w; the percentage must be more than 0 and less than 100", bad)
	}
	d, err := job.ParseDuration(within)
	if err != nil || d < job.Duration(time.Millisecond) {
		return o, fmt.Errorf("%w; the duration must be at least 1ms", bad)
	}
	const digits = 1e9 // so that 99.9 becomes 0.999
	o.Target, o.Within = math.Round(target/100*digits)/digits, time.Duration(d)
	return o, nil
}

// String returns the objective without its tenant, as it is written: "99.9%<1s".
func (o Objective) String() string {
	return strconv.FormatFloat(o.Target*100, 'g', 9, 64) + "%<" + job.Duration(o.Within).String()
}
