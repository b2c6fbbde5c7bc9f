// Package dispatcher fires occurrences: it wakes at the instant, claims due occurrences, fires their callbacks and
// settles the claims. Replicas that share a store need nothing else in common; each runs one Dispatcher.
//
// A Dispatcher has four parts, and each goroutine owns its state: the claim loop (claim.go); one goroutine for each
// callback under way (fire.go); the settler, which writes outcomes in batches (settle.go); and the expander, which
// keeps the next occurrences of recurring jobs in the store (expand.go). Claimed occurrences are fired at once, so none
// waits in memory. A slot is free again only when its outcome is written.
package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-co-op/gocron/v2"
	"go.opentelemetry.io/otel/trace"

	"github.com/carillon-scheduler/carillon/dispatcher/destinations"
	"github.com/carillon-scheduler/carillon/dispatcher/fairqueue"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store/tenants"
)

// Bounds of one call to the store and of a batch.
const (
	storeTimeout = 10 * time.Second
	largestBatch = 1000
)

// Dispatcher claims and fires. Its methods are safe for concurrent use; Run is called once.
type Dispatcher struct {
	cfg     Config
	log     *slog.Logger
	tracer  trace.Tracer // nil if there are no traces
	metrics *metrics     // nil if there is no registerer

	work  chan firing   // to idle goroutines
	fired chan ended    // from firings to the settler
	freed chan freed    // slots, from the settler to the claim loop
	polls chan struct{} // signals the claim loop to poll the store

	expand chan struct{} // signals the expander to look for jobs

	wake     chan struct{} // signals the claim loop that wakeAts is not empty
	wakeLock sync.Mutex
	wakeAts  map[job.Lane]time.Time

	destinations *destinations.Set
	tenants      tenancy
	finished     throughput

	replica string // its random id
	clock   clock
	outages map[string]*outage // by callback type, fixed once made; "" is for all types without a sender
	// Times with the monotonic clock: the claim loop's last success; the first failure to write outcomes that still wait,
	// nil if none wait; and the expander's last success, or its start.
	progress, unsettled, expanded atomic.Pointer[time.Time]
	beaten                        atomic.Pointer[time.Time] // when the last heartbeat began that the store took
	met                           atomic.Pointer[meeting]   // at the last heartbeat
	stopping                      atomic.Bool
}

// New makes a Dispatcher. The error names the wrong option and a valid value.
func New(cfg Config) (*Dispatcher, error) {
	if cfg.Store == nil || cfg.Callbacks == nil {
		return nil, errors.New("store and callbacks must be set")
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Tenants == nil {
		cfg.Tenants = tenants.New(cfg.Store)
	}
	outages := map[string]*outage{"": {}}
	for _, t := range cfg.Callbacks.Types() {
		outages[t] = &outage{}
	}
	d := &Dispatcher{
		replica: job.NewToken(),
		tenants: tenancy{reading: make(chan struct{}, 1)},

		destinations: destinations.New(cfg.DestinationPolicy(), cfg.Now),
		finished:     throughput{begun: cfg.Now()},
		outages:      outages,

		cfg:    cfg,
		log:    cfg.Logger,
		tracer: tracerOf(cfg.Traces),
		work:   make(chan firing),
		fired:  make(chan ended, cfg.Concurrency),
		freed:  make(chan freed, cfg.Concurrency), // large enough that the settler never waits for the claim loop
		polls:  make(chan struct{}, 1),
		expand: make(chan struct{}, 1),
		wake:   make(chan struct{}, 1),
	}
	var err error
	if d.metrics, err = newMetrics(d, cfg.Registerer); err != nil {
		return nil, fmt.Errorf("register the metrics: %w", err)
	}
	return d, nil
}

// now reads both clocks. All code here uses it, so that a test can set the wall clock.
func (d *Dispatcher) now() time.Time { return d.cfg.Now() }

// Wake notes that an occurrence of a lane becomes due at t, so that this replica need not wait for its next poll.
func (d *Dispatcher) Wake(lane job.Lane, t time.Time) {
	if t.IsZero() {
		return
	}
	t = job.CeilMilli(t).Round(0) // claims are by whole milliseconds, and by the wall clock
	d.wakeLock.Lock()
	if at, known := d.wakeAts[lane]; !known || t.Before(at) {
		if d.wakeAts == nil {
			d.wakeAts = make(map[job.Lane]time.Time)
		}
		d.wakeAts[lane] = t
	}
	d.wakeLock.Unlock()
	select {
	case d.wake <- struct{}{}:
	default: // the waiting signal covers this one too
	}
}

func (d *Dispatcher) takeWakeAts() map[job.Lane]time.Time {
	d.wakeLock.Lock()
	defer d.wakeLock.Unlock()
	taken := d.wakeAts
	d.wakeAts = nil
	return taken
}

// WakeExpander notes that a recurring job is to be expanded now, so that it need not wait for the expander's next look.
func (d *Dispatcher) WakeExpander() {
	select {
	case d.expand <- struct{}{}:
	default: // a look is about to begin
	}
}

// forgetAfter is the time after which an unused destination is forgotten.
const forgetAfter = 10 * time.Minute

// Destinations returns the state of each destination that this replica has lately sent to, by name.
func (d *Dispatcher) Destinations() []destinations.State { return d.destinations.States() }

// Replica returns this replica's random id, the key of its heartbeats.
func (d *Dispatcher) Replica() string { return d.replica }

// DownSince returns the time since which this replica considers a destination, or a part of it, to be down: its circuit
// is open. The time is zero if it is up. Whole reports that the whole destination is down.
func (d *Dispatcher) DownSince(destination string) (since time.Time, whole bool) {
	return d.destinations.OpenSince(destination)
}

// Rate returns the occurrences per second that this replica has lately finished: delivered, buried or dropped.
func (d *Dispatcher) Rate() float64 { return d.finished.rate(d.now()) }

// Ready returns the reason that the replica can't do its work, or nil if the store answers the claim loop and the clock
// is right. A failure to expand recurring jobs is a reason once their next occurrences may be late because of it.
func (d *Dispatcher) Ready() error {
	if d.stopping.Load() {
		return errors.New("shutting down")
	}
	if err := d.clock.err(d.cfg.permittedSkew()); err != nil {
		return err
	}
	now, last := d.now(), d.progress.Load()
	if last == nil {
		return errors.New("the claim loop has not reached the store yet")
	}
	patience := max(storeTimeout, 3*d.cfg.Tick)
	if age := now.Sub(*last); age > patience {
		return fmt.Errorf("the claim loop has had no success for %s", age.Round(time.Second))
	}
	if since := d.unsettled.Load(); since != nil {
		if age := now.Sub(*since); age > patience {
			return fmt.Errorf("outcomes could not be written for %s", age.Round(time.Second))
		}
	}
	if since := d.expanded.Load(); since != nil {
		if age := now.Sub(*since); age > max(storeTimeout, d.cfg.Expansion().Lead()) {
			return fmt.Errorf("recurring jobs could not be expanded for %s", age.Round(time.Second))
		}
	}
	return nil
}

// Run claims and fires until ctx ends. Then it hands over to the other replicas if they take turns, stops claiming, and
// lets callbacks under way end, all within ShutdownTimeout. It cancels the rest, and writes every outcome. The error is
// nil unless outcomes could not be written; those occurrences are claimed again when their leases end.
func (d *Dispatcher) Run(ctx context.Context) error {
	d.beat(ctx) // before anything counts the replicas
	stopJobs, err := d.startJobs(ctx)
	if err != nil {
		return err
	}
	firing, cancelFiring := context.WithCancel(context.WithoutCancel(ctx))
	defer cancelFiring()
	settling, cancelSettling := context.WithCancel(context.WithoutCancel(ctx))
	defer cancelSettling()
	allFired, settled := make(chan struct{}), make(chan int, 1)
	go func() { settled <- d.settleLoop(settling, allFired) }()
	expanded := make(chan struct{})
	go func() {
		defer close(expanded)
		e := expander{Dispatcher: d, size: newSize(jobsAtOnce)}
		e.run(ctx)
	}()

	l := claimLoop{
		Dispatcher: d, firing: firing, free: d.cfg.Concurrency, queue: fairqueue.New(d.cfg.Policy, d.treat),
		turns: newTurns(d.replica, d.cfg.Tick), size: newSize(largestBatch),
		scanner: scanner{store: d.cfg.Store, poll: d.cfg.Tick, early: d.cfg.Early, now: d.now, onPage: d.prioritizeNew},
		pages:   make(chan scanPage, 1), woken: make(map[job.Lane]time.Time),
	}
	l.run(ctx)
	stopped := d.now()
	d.stopping.Store(true)
	l.handOver(ctx)
	stopJobs()

	if underWay := d.cfg.Concurrency - l.free; underWay > 0 {
		d.log.Info("stopping: waiting for callbacks under way", "callbacks", underWay)
	}
	if !l.waitIdle(d.cfg.ShutdownTimeout - d.now().Sub(stopped)) {
		d.log.Warn("stopping: cancelling callbacks under way", "callbacks", d.cfg.Concurrency-l.free)
		cancelFiring()
	}
	if !l.waitIdle(storeTimeout) {
		cancelSettling()
	}
	close(d.work)
	close(allFired)
	lost := <-settled
	l.collectFreed()
	lost += d.cfg.Concurrency - l.free // the senders that did not return
	<-expanded
	d.lastBeat(context.WithoutCancel(ctx))
	if lost > 0 {
		return fmt.Errorf("%d outcomes could not be written; those occurrences are claimed again when their leases end", lost)
	}
	return nil
}

// startJobs starts the periodic jobs; stop ends them.
func (d *Dispatcher) startJobs(ctx context.Context) (stop func(), err error) {
	cron, err := gocron.NewScheduler(gocron.WithLogger(gocronLogger{d.log}), gocron.WithClock(steadyClock(d.cfg.Now)))
	if err != nil {
		return nil, fmt.Errorf("start periodic work: %w", err)
	}
	housekeeping, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var running periodic
	for _, j := range []struct {
		every gocron.JobDefinition
		run   func()
	}{
		{gocron.DurationJob(d.cfg.Tick), d.poll},
		{gocron.DurationJob(d.cfg.expandInterval()), d.WakeExpander},
		{gocron.DurationJob(clockInterval), func() { d.checkClock(housekeeping) }},
		{gocron.DurationJob(beatInterval), func() { d.beat(housekeeping) }},
		{gocron.DurationJob(tenantsInterval), func() { d.readTenants(housekeeping) }},
		{gocron.DurationJob(time.Minute), d.forgetDestinations},
		{gocron.OneTimeJob(gocron.OneTimeJobStartImmediately()), func() { d.readBacklog(housekeeping) }},
		{gocron.DurationJob(backlogInterval), func() { d.readBacklog(housekeeping) }},
		// A random interval, so that replicas that start together do not all sweep together.
		{gocron.DurationRandomJob(sweepInterval/2, sweepInterval*3/2), func() { d.sweep(housekeeping) }},
	} {
		once := gocron.WithSingletonMode(gocron.LimitModeReschedule)
		_, err := cron.NewJob(j.every, gocron.NewTask(running.job(j.run)), once)
		if err != nil {
			cancel()
			return nil, errors.Join(fmt.Errorf("start periodic work: %w", err), cron.Shutdown())
		}
	}
	cron.Start()
	return func() {
		cancel()
		running.stop() // first: while a job runs, Shutdown keeps one processor busy with polling its state
		if err := cron.Shutdown(); err != nil {
			d.log.Warn("stopping periodic work failed", "error", err)
		}
	}, nil
}

// periodic counts the periodic jobs that run.
type periodic struct {
	lock    sync.Mutex
	stopped bool
	running sync.WaitGroup
}

// job returns run, as it does nothing once p is stopped.
func (p *periodic) job(run func()) func() {
	return func() {
		p.lock.Lock()
		if p.stopped {
			p.lock.Unlock()
			return
		}
		p.running.Add(1)
		p.lock.Unlock()
		defer p.running.Done()
		run()
	}
}

// stop lets no more jobs begin, and returns when none runs.
func (p *periodic) stop() {
	p.lock.Lock()
	p.stopped = true
	p.lock.Unlock()
	p.running.Wait()
}

func (d *Dispatcher) forgetDestinations() {
	d.destinations.Forget(d.now().Add(-max(forgetAfter, 2*d.cfg.Destinations.LongestProbe)))
}

func (d *Dispatcher) poll() {
	select {
	case d.polls <- struct{}{}:
	default: // the last poll has not been taken yet
	}
}
