package dispatcher

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/dispatcher/destinations"
	"github.com/carillon-scheduler/carillon/dispatcher/fairqueue"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Store is the part of a store that a Dispatcher needs.
type Store interface {
	store.Queue
	store.Inspector
	store.Records
}

// Config configures a Dispatcher. Store and Callbacks must be set; [Defaults] has sane values for the rest.
type Config struct {
	Store     Store
	Callbacks *callbacks.Registry
	Logger    *slog.Logger
	// Now reads both clocks of the machine, as [time.Now] does, which it is if nil: the wall clock by which things are
	// due, and the monotonic one by which pauses, timeouts and ages are measured. Safe for concurrent use.
	Now func() time.Time
	// Registerer is told of the metrics. Nil has none, and then the store is not asked for its backlog.
	Registerer prometheus.Registerer
	// Traces makes a span of each attempt, in a trace of its own; nil makes none.
	Traces trace.TracerProvider
	// Secrets are joined to callbacks when they are sent, and sign them; nil has none.
	Secrets callbacks.Secrets

	// Tick is how often to ask the store for the next due time. It bounds how late an occurrence is noticed that
	// another replica submitted; those that this replica knows of fire at their instants.
	Tick time.Duration
	// Early is how far ahead of its instant an occurrence may fire. All replicas must agree on it.
	Early time.Duration
	// Lease is how long a claim is exclusive. All replicas should agree on it.
	Lease time.Duration
	// CallbackTimeout bounds one attempt, from the moment of the claim.
	CallbackTimeout time.Duration
	// Concurrency is how many callbacks may be under way at once.
	Concurrency int
	// ShutdownTimeout bounds how long Run waits for callbacks under way when it is told to stop.
	ShutdownTimeout time.Duration
	// CatchUpLimit is how many instants of a recurring job fire late at most, of those that fell due while nothing ran.
	// All replicas should agree on it.
	CatchUpLimit int
	// Policy is how slots are shared out while more is due than there are.
	Policy fairqueue.Policy
	// Destinations is how many callbacks may go to one destination, and when its circuit opens. Its InFlight is
	// three quarters of Concurrency if it is zero, and its SlowInFlight one half.
	Destinations destinations.Policy
	// Auto gives tenants a priority that have none.
	Auto AutoPriority
	// TenantLabels is how many tenants have metrics of their own; the others share one label.
	TenantLabels int
	// Retain is how long a job stays readable after its last occurrence; DeadLetterRetain how long dead letters are
	// kept, zero for ever.
	Retain           time.Duration
	DeadLetterRetain time.Duration
}

// Defaults are a Config's values unless the operator says otherwise.
var Defaults = Config{
	Tick:            time.Second,
	Lease:           time.Minute,
	CallbackTimeout: 30 * time.Second,
	Concurrency:     256,
	ShutdownTimeout: 25 * time.Second,
	CatchUpLimit:    job.DefaultCatchUpLimit,
	Policy:          fairqueue.Policy{High: 70, Normal: 25, Low: 5, OverdueAfter: 10 * time.Second, OverdueShare: 0.5},
	Destinations: destinations.Policy{
		SlowAfter: 250 * time.Millisecond, Patience: 100 * time.Millisecond,
		Failures: 20, Probe: 5 * time.Second, LongestProbe: time.Minute,
	},
	TenantLabels: 100,
	Retain:       24 * time.Hour,
}

// margin is how much of the lease is left when a callback has timed out.
func (c *Config) margin() time.Duration { return c.Lease - c.CallbackTimeout - c.Early }

// permittedSkew is how far this machine's clock may be off the store's. Two replicas, each off by it, still keep the
// lease: a callback ends before another can claim, and an expansion, which has half a lease, before another can expand.
func (c *Config) permittedSkew() time.Duration { return min(c.margin(), c.Lease/2) / 2 }

// Expansion bounds how recurring jobs are expanded. It depends on the lease: the lead of an expansion leaves room for a
// replica that has died in it, so that another one still is in time.
func (c *Config) Expansion() job.Expansion {
	return job.Expansion{Horizon: 2 * c.Lease, CatchUpLimit: c.CatchUpLimit}
}

// expandInterval is how often to look for jobs that are to be expanded: often enough for the lead, and rarely for the
// store.
func (c *Config) expandInterval() time.Duration {
	return max(c.Expansion().Horizon/24, 100*time.Millisecond)
}

// Validate checks all but Store and Callbacks. The error names the option at fault and what would be right.
func (c *Config) Validate() error {
	least := max(time.Second, c.Lease/10)
	switch {
	case c.Tick < time.Millisecond:
		return fmt.Errorf("tick is %s; it must be at least 1ms", c.Tick)
	case c.Early < 0:
		return fmt.Errorf("early is %s; it must not be negative", c.Early)
	case c.CallbackTimeout <= 0:
		return fmt.Errorf("callback-timeout is %s; it must be more than 0", c.CallbackTimeout)
	case c.margin() < least:
		return fmt.Errorf("lease is %s; it must exceed callback-timeout (%s) and early (%s) together by at least %s, "+
			"so that no claim ends while its callback is under way", c.Lease, c.CallbackTimeout, c.Early, least)
	case c.Concurrency < 1:
		return fmt.Errorf("concurrency is %d; it must be at least 1", c.Concurrency)
	case c.ShutdownTimeout < 0:
		return fmt.Errorf("shutdown-timeout is %s; it must not be negative", c.ShutdownTimeout)
	case c.TenantLabels < 0:
		return fmt.Errorf("tenant-labels is %d; it must not be negative", c.TenantLabels)
	case c.CatchUpLimit < 1:
		return fmt.Errorf("catch-up-limit is %d; it must be at least 1", c.CatchUpLimit)
	case c.Retain < 0:
		return fmt.Errorf("retain is %s; it must not be negative", c.Retain)
	case c.DeadLetterRetain < 0:
		return fmt.Errorf("dead-letter-retain is %s; it must not be negative", c.DeadLetterRetain)
	}
	of := c.destinations()
	return errors.Join(c.Policy.Validate(), of.Validate(), c.Auto.validate())
}

// destinations is the policy with the limits that depend on the slots.
func (c *Config) destinations() destinations.Policy {
	p := c.Destinations
	if p.InFlight == 0 {
		p.InFlight = max(1, c.Concurrency*3/4)
	}
	if p.SlowInFlight == 0 {
		p.SlowInFlight = max(1, c.Concurrency/2)
	}
	p.FirstInFlight = max(0, c.Concurrency-p.InFlight) / 2
	return p
}
