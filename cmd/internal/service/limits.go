package service

import (
	"flag"
	"fmt"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/carillon-scheduler/carillon/access/limits"
	"github.com/carillon-scheduler/carillon/history"
)

// Limits has the options for the rates and quotas of keys and tenants.
type Limits struct{ Key, Tenant limits.Limits }

// Flags declares the options, and sets them to their defaults, which are no limits.
func (o *Limits) Flags(f *flag.FlagSet) {
	f.Var((*rateOption)(&o.Key.Requests), "limit-key-requests",
		"`RATE[/BURST]`: Maximum requests of each key per second, and at once, on each replica; 0 for no limit.")
	f.Var((*rateOption)(&o.Tenant.Requests), "limit-tenant-requests",
		"`RATE[/BURST]`: Maximum requests about each tenant per second, and at once, on each replica. This and the other "+
			"options --limit-tenant-* are defaults for tenants without limits of their own.")
	number := func(to *int, name, usage string) { f.Var((*bound)(to), name, usage+" 0 for no limit.") }
	number(&o.Key.BatchBytes, "limit-key-batch-bytes",
		"`BYTES`: Bytes of each key's batches that are read per second, on each replica.")
	number(&o.Tenant.BatchBytes, "limit-tenant-batch-bytes",
		"`BYTES`: Bytes of each tenant's batches that are read per second, on each replica.")
	number(&o.Tenant.Jobs, "limit-tenant-jobs", "`N`: Maximum number of jobs of each tenant.")
	number(&o.Tenant.Pending, "limit-tenant-pending", "`N`: Maximum number of pending occurrences of each tenant.")
	number(&o.Tenant.Payload, "limit-tenant-payload",
		"`BYTES`: Maximum size of a job's callback data, if that is less than --max-payload.")
}

// config returns the configuration of a limiter.
func (o *Limits) config(
	own *limits.Own, kept history.Policy, count limits.Counter, registerer prometheus.Registerer,
) limits.Config {
	return limits.Config{
		Key: o.Key, Tenant: o.Tenant, History: kept, Own: own, Count: count, Registerer: registerer,
	}
}

// rateOption is an option of the form "50/100"; "50" means a burst of one second.
type rateOption limits.Rate

// Set implements [flag.Value].
func (r *rateOption) Set(s string) error {
	per, burst, both := strings.Cut(s, "/")
	rate, err := strconv.ParseFloat(per, 64)
	n := 0
	if err == nil && both {
		n, err = strconv.Atoi(burst)
	}
	if err != nil || !(rate >= 0 && rate <= 1e6) || both && (n < 1 || n > 1e6 || rate == 0) {
		return fmt.Errorf("must be a rate from 0 to 1000000, or with a burst as in 50/100, not %q", s)
	}
	*r = rateOption(limits.RateOf(rate, n))
	return nil
}

// String implements [flag.Value].
func (r *rateOption) String() string {
	if r.PerSecond == 0 {
		return "0"
	}
	return fmt.Sprintf("%g/%d", r.PerSecond, r.Burst)
}

// bound is an option for a non-negative number.
type bound int

// Set implements [flag.Value].
func (b *bound) Set(s string) error {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 {
		return fmt.Errorf("must be a whole number, or 0 for no limit, not %q", s)
	}
	*b = bound(n)
	return nil
}

// String implements [flag.Value].
func (b *bound) String() string { return strconv.Itoa(int(*b)) }
