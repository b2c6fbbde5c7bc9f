package service

import (
	"flag"
	"fmt"
	"slices"
	"strings"

	"github.com/carillon-scheduler/carillon/status"
)

// objectives is the option of that name.
type objectives []status.Objective

// mostObjectives keeps heartbeats, which have the counts of all objectives, far below the size of a record.
const mostObjectives = 100

// Flags declares the option.
func (o *objectives) Flags(f *flag.FlagSet) {
	f.Var(o, "objective",
		"`[TENANT:]PERCENT%<DURATION`: Objective: the part of the occurrences of all tenants, or of one, that is to fire "+
			"within a time of its instant, as in 99.9%<1s or acme:99%<500ms. Several, with commas between them or by "+
			"repeating the option, are all watched. See docs/metrics.md. (none)")
}

// Set implements [flag.Value]. Each call adds objectives.
func (o *objectives) Set(s string) error {
	for text := range strings.SplitSeq(s, ",") {
		parsed, err := status.ParseObjective(strings.TrimSpace(text))
		switch {
		case err != nil:
			return err
		case slices.Contains(*o, parsed):
			return fmt.Errorf("%q is given twice", text)
		case len(*o) == mostObjectives:
			return fmt.Errorf("there are more than %d objectives", mostObjectives)
		}
		*o = append(*o, parsed)
	}
	return nil
}

// String implements [flag.Value].
func (o *objectives) String() string {
	if o == nil {
		return ""
	}
	var all []string
	for _, one := range *o {
		text := one.String()
		if one.Tenant != "" {
			text = one.Tenant + ":" + text
		}
		all = append(all, text)
	}
	return strings.Join(all, ",")
}
