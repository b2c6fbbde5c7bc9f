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
	"github.com/carillon-scheduler/carillon/history"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/status"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/tenants"
)

// Store is the part of a store that a Dispatcher needs.
type Store interface {
	store.Queue
	store.Inspector
	store.Records
}

// Recorder keeps entries of history. Record must not block, and must be safe for concurrent use.
type Recorder interface {
	Record(entries ...*history.Entry)
}

// Config configures a Dispatcher. Store and Callbacks must be set; [Defaults] has sane values for the rest.
type Config struct {
	Store     Store
	Callbacks *callbacks.Registry
	Logger    *slog.Logger
	// Tenants caches the settings of the store's tenants, and may be shared; nil for a cache of its own.
	Tenants *tenants.Tenants
	// Now reads the machine's wall clock, by which occurrences are due, and its monotonic clock, which measures pauses,
	// timeouts and ages. Nil is [time.Now]. It must be safe for concurrent use.
	Now func() time.Time
	// Registerer registers the metrics. If it is nil, there are none, and the store's backlog is not read.
	Registerer prometheus.Registerer
	// Traces makes a span for each attempt, in a trace of its own; nil makes none.
	Traces trace.TracerProvider
	// Secrets has the secrets that are joined to callbacks when they are sent, and sign them; nil has none.
	Secrets callbacks.Secrets

	// Status counts the lateness of occurrences. It may be nil.
	Status *status.Watch
	// Tells returns this replica's report on itself for its heartbeats, without its readiness. It may be nil.
	Tells func() status.Heartbeat

	// History records each attempt after its outcome was written; nil records none.
	History Recorder

	// Tick is the poll interval: the interval between two requests to the store for the next due times. It bounds the
	// delay of noticing an occurrence that another replica submitted. Occurrences submitted through this replica fire at
	// their instants.
	Tick time.Duration
	// Early is the time before its instant from which an occurrence may fire. All replicas must agree on it.
	Early time.Duration
	// Lease is the time for which a claim is exclusive. All replicas should agree on it.
	Lease time.Duration
	// CallbackTimeout bounds one attempt, from the moment of the claim.
	CallbackTimeout time.Duration
	// Concurrency is the largest number of callbacks under way.
	Concurrency int
	// ShutdownTimeout is the longest time that Run hands over, and waits for callbacks under way, when its context ends.
	ShutdownTimeout time.Duration
	// CatchUpLimit is the largest number of a recurring job's instants that fire late, of those that fell due while
	// nothing ran. All replicas should agree on it.
	CatchUpLimit int
	// Policy divides the slots while more occurrences are due than there are slots.
	Policy fairqueue.Policy
	// Destinations has the limits of destinations and the rules of their circuits. If its InFlight is zero, it becomes
	// three quarters of Concurrency, and a zero SlowInFlight one half.
	Destinations destinations.Policy
	// Auto gives a priority to tenants without one.
	Auto AutoPriority
	// TenantLabels is the number of tenants with metrics of their own; the others share one label.
	TenantLabels int
	// Retain is the time that a job stays readable after its last occurrence. DeadLetterRetain is the time that dead
	// letters are kept; zero is for ever.
	Retain           time.Duration
	DeadLetterRetain time.Duration
}

// Defaults are the default values of a Config.
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

// margin returns the part of the lease that is left when a callback has timed out.
func (c *Config) margin() time.Duration { return c.Lease - c.CallbackTimeout - c.Early }

// permittedSkew returns the largest permitted difference between this machine's clock and the store's. Two replicas
// that are both off by it still keep the lease: a callback ends before another replica can claim, and an expansion,
// which has half a lease, before another replica can expand.
func (c *Config) permittedSkew() time.Duration { return min(c.margin(), c.Lease/2) / 2 }

// Expansion returns the bounds of expanding recurring jobs. They follow from the lease: if a replica dies during an
// expansion, the lead leaves another one enough time.
func (c *Config) Expansion() job.Expansion {
	return job.Expansion{Horizon: 2 * c.Lease, CatchUpLimit: c.CatchUpLimit}
}

// expandInterval returns the interval between two looks for jobs to expand: short enough for the lead, and long enough
// to spare the store.
func (c *Config) expandInterval() time.Duration {
	return max(c.Expansion().Horizon/24, 100*time.Millisecond)
}

// Validate checks all but Store and Callbacks. The error names the wrong option and a valid value.
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
	of := c.DestinationPolicy()
	return errors.Join(c.Policy.Validate(), of.Validate(), c.Auto.validate())
}

// DestinationPolicy returns the policy with the limits that follow from the number of slots.
func (c *Config) DestinationPolicy() destinations.Policy {
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
