package service

import (
	"flag"
	"fmt"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/carillon-scheduler/carillon/access/limits"
)

// Limits are options that bound what keys and tenants may ask for.
type Limits struct{ Key, Tenant limits.Limits }

// Flags declares the options, and sets them to their defaults, which are no limits.
func (o *Limits) Flags(f *flag.FlagSet) {
	f.Var((*rateOption)(&o.Key.Requests), "limit-key-requests",
		"`RATE[/BURST]`: How many requests each key may make in a second, and at once, on each replica; 0 for any number.")
	f.Var((*rateOption)(&o.Tenant.Requests), "limit-tenant-requests",
		"`RATE[/BURST]`: How many requests may be about each tenant in a second, and at once, on each replica. This and what "+
			"follows is for tenants that have no limits of their own.")
	number := func(to *int, name, usage string) { f.Var((*bound)(to), name, usage+" 0 for any number.") }
	number(&o.Key.BatchBytes, "limit-key-batch-bytes",
		"`BYTES`: How much of each key's batches is read in a second, on each replica.")
	number(&o.Tenant.BatchBytes, "limit-tenant-batch-bytes",
		"`BYTES`: How much of each tenant's batches is read in a second, on each replica.")
	number(&o.Tenant.Jobs, "limit-tenant-jobs", "`N`: How many jobs each tenant may have.")
	number(&o.Tenant.Pending, "limit-tenant-pending", "`N`: How many pending occurrences each tenant may have.")
	number(&o.Tenant.Payload, "limit-tenant-payload",
		"`BYTES`: How large the callback data of one job may be, if that is less than --max-payload.")
}

// config is how the options configure a limiter.
func (o *Limits) config(own *limits.Own, count limits.Counter, registerer prometheus.Registerer) limits.Config {
	return limits.Config{Key: o.Key, Tenant: o.Tenant, Own: own, Count: count, Registerer: registerer}
}

// rateOption is an option such as "50/100", or "50" for as many at once.
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

// bound is an option for a number that is not negative.
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
