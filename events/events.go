// Package events sends events to tenants: of dead letters, missed instants, destinations that are down, jobs that have
// finished or begin to fail, quotas that are nearly used up, and missing check-ins. An event is a job of the service's
// own with one instant. So it is stored, claimed, signed, sent and retried like every other job.
//
// [Events] gets notifications from the dispatcher and the API, turns them into events in a goroutine of its own, and
// stores these. It delays no caller: if the store is slow, notifications beyond a bound are dropped and counted. An
// event's key follows from its content, so that replicas that observe the same make one event. Jobs of the service's
// own cause no events, so events can't cause further events.
//
// [Watch] and [Watcher] are the dead man's switch of jobs with an ExpectBy.
package events

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/carillon-scheduler/carillon/history"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/tenants"
)

// Bounds of the events in memory, and the times of periodic work.
const (
	mostWaiting  = 4096   // happenings that wait to be stored as events; more are dropped
	mostChecks   = 10_000 // jobs that may have finished; more are dropped
	mostNoted    = 10_000 // entries of each memory of past events and users; then it is cleared
	mostAtOnce   = 100    // events in one call to the store
	storeTimeout = 10 * time.Second
	readInterval = 5 * time.Second // the age at which the tenants' settings are listed again
	tellInterval = time.Second     // between summaries, and between retries while the store is unavailable
	lastWords    = 5 * time.Second // for storing the waiting events when the replica stops
)

// Store is the part of a store that events need.
type Store interface {
	store.Jobs
	store.Records
}

// Config configures Events. Store must be set.
type Config struct {
	Store Store
	// Tenants caches the settings of the store's tenants, and may be shared; nil for a cache of its own.
	Tenants *tenants.Tenants
	// Wake is called with the lane of stored events, so that they fire at once. It must not block. It may be nil.
	Wake func(job.Lane, time.Time)
	// DownSince returns the time since which this replica considers a destination, or a part of it, to be down; zero if it
	// is up. Whole reports that the whole destination is down. It may be nil.
	DownSince func(destination string) (since time.Time, whole bool)
	// Replica distinguishes the summaries of replicas; empty for a random id.
	Replica string
	// Now is the clock; nil is [time.Now].
	Now func() time.Time
	// Logger logs failures; nil logs nothing.
	Logger *slog.Logger
	// Registerer registers the metrics; nil means none.
	Registerer prometheus.Registerer
}

// Events sends events to tenants. Its methods are safe for concurrent use.
type Events struct {
	cfg     Config
	metrics *metrics

	// The settings of tenants that get events, and the destinations that are known to be down. Other goroutines read them.
	// A map is never changed; a new one replaces it.
	settings atomic.Pointer[map[string]*job.EventSettings]
	down     atomic.Pointer[map[place]downRecord]

	lock    sync.Mutex
	waiting []happening
	checks  map[job.Name]time.Time  // jobs that may have finished, and the time
	users   map[place]use           // recent users of destinations
	noted   map[string]time.Time    // by event: until then, this replica does not send it again
	lives   map[job.Name]time.Time  // by job: until then, it can't have finished
	minutes map[string]*minuteCount // by tenant
	full    bool                    // events are dropped, and this was logged
	ended   bool

	wake chan struct{}
	done chan struct{}
	over chan struct{} // closed lastWords after ended was set
}

// place is a destination of a tenant.
type place struct{ tenant, destination string }

// happening is a possible event.
type happening struct {
	event
	// check is a destination that may be down; empty if the event needs no check.
	check string
	// told receives the result, if a caller waits for it. It is buffered for one.
	told chan<- error
}

// New returns Events, which Close ends. It panics if the registerer has the metrics already.
func New(cfg Config) *Events {
	if cfg.Wake == nil {
		cfg.Wake = func(job.Lane, time.Time) {}
	}
	if cfg.DownSince == nil {
		cfg.DownSince = func(string) (since time.Time, whole bool) { return since, whole }
	}
	if cfg.Tenants == nil {
		cfg.Tenants = tenants.New(cfg.Store)
	}
	if cfg.Replica == "" {
		cfg.Replica = job.NewToken()
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	e := &Events{
		cfg: cfg, metrics: newMetrics(cfg.Registerer),
		checks: make(map[job.Name]time.Time), users: make(map[place]use), noted: make(map[string]time.Time),
		lives: make(map[job.Name]time.Time), minutes: make(map[string]*minuteCount),
		wake: make(chan struct{}, 1), done: make(chan struct{}), over: make(chan struct{}),
	}
	go e.run()
	return e
}

// now returns the present time in whole milliseconds.
func (e *Events) now() time.Time { return e.cfg.Now().UTC().Truncate(time.Millisecond) }

// of returns the settings of a tenant; nil if it gets no events, or if its settings were not read yet.
func (e *Events) of(tenant string) *job.EventSettings {
	if all := e.settings.Load(); all != nil {
		return (*all)[tenant]
	}
	return nil
}

// Close stores the waiting events, as far as that succeeds within 5 s.
func (e *Events) Close() error {
	e.lock.Lock()
	ended := e.ended
	e.ended = true
	e.lock.Unlock()
	if !ended {
		limit := time.AfterFunc(lastWords, func() { close(e.over) })
		defer limit.Stop()
	}
	e.nudge()
	<-e.done
	return nil
}

func (e *Events) nudge() {
	select {
	case e.wake <- struct{}{}:
	default: // the waiting signal covers this one too
	}
}

// run stores events, until Close was called and nothing waits.
func (e *Events) run() {
	defer close(e.done)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { // ends calls to the store under way
		select {
		case <-e.over:
			cancel()
		case <-ctx.Done():
		}
	}()
	var readAt, toldAt time.Time
	var pause time.Duration
	for {
		now := e.cfg.Now()
		if now.Sub(readAt) >= pause {
			readAt, pause = now, e.read(ctx)
		}
		if now.Sub(toldAt) >= tellInterval {
			e.tellLeftOut(ctx, false)
			toldAt = now
		}
		more := e.tellSome(ctx)
		e.lock.Lock()
		ended := e.ended
		e.lock.Unlock()
		if ended && (!more || ctx.Err() != nil) {
			e.tellLeftOut(ctx, true)
			return
		}
		if more {
			continue
		}
		timer := time.NewTimer(tellInterval)
		select {
		case <-e.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// tellSome stores some of the waiting events, and reports whether more wait.
func (e *Events) tellSome(ctx context.Context) (more bool) {
	e.lock.Lock()
	taken := e.waiting[:min(len(e.waiting), mostAtOnce)]
	e.waiting = e.waiting[len(taken):]
	if len(e.waiting) == 0 {
		e.waiting, e.full = nil, false
	}
	e.lock.Unlock()
	var batch []happening
	for _, h := range taken {
		if h.check == "" {
			batch = append(batch, h)
			continue
		}
		batch = append(batch, e.checkDestination(h)...)
	}
	finished, unread := e.checkFinished(ctx)
	batch = append(batch, finished...)
	e.tell(ctx, batch)
	e.lock.Lock()
	defer e.lock.Unlock()
	return len(e.waiting) > 0 || len(e.checks) > 0 && !unread
}

// Record turns entries of attempts into events, where a tenant wants these. It implements the dispatcher's Recorder. It
// never blocks, and does not retain the entries.
func (e *Events) Record(entries ...*history.Entry) {
	all := e.settings.Load()
	if all == nil || len(*all) == 0 {
		return
	}
	for _, h := range entries {
		s := (*all)[h.Name.Tenant]
		if s == nil || !h.Kind.Attempt() || job.Reserved(h.Name.Key) {
			continue
		}
		e.note(s, h)
	}
}

// note turns an entry into events.
func (e *Events) note(s *job.EventSettings, h *history.Entry) {
	switch h.Kind {
	case history.Buried:
		e.add(s, event{kind: job.EventDeadLetter, id: h.DeliveryID().String() + "@" + job.FormatTime(h.At)}, h)
	case history.Missed:
		e.add(s, event{kind: job.EventMissed, id: h.DeliveryID().String()}, h)
	default:
	}
	if h.Kind == history.Buried || h.Kind == history.Retried {
		day := h.At.UTC().Truncate(24 * time.Hour)
		e.addOnce(s, event{
			kind: job.EventFailing, id: day.Format(time.DateOnly) + " " + h.Name.Key, keep: day.Add(25 * time.Hour),
		}, h)
	}
	if (h.Kind == history.Delivered || h.Kind == history.Buried || h.Kind == history.Missed) && s.Want(job.EventFinished) {
		e.mayHaveFinished(h.Name, ended(h))
	}
	if h.Destination != "" {
		e.noteDestination(s, h)
	}
}

// ended returns the time at which an attempt's outcome was known: h.At is the time at which it was sent.
func ended(h *history.Entry) time.Time { return h.At.Add(h.Took) }

// add adds an event about an entry, if the tenant wants it.
func (e *Events) add(s *job.EventSettings, v event, h *history.Entry) {
	if !s.Want(v.kind) {
		return
	}
	v.tenant, v.subject, v.at = h.Name.Tenant, h.Name.Key, ended(h)
	v.data = dataOf(h)
	e.enqueue(happening{event: v})
}

// addOnce is add for an event that is sent only once until v.keep.
func (e *Events) addOnce(s *job.EventSettings, v event, h *history.Entry) {
	if s.Want(v.kind) && e.first(string(v.kind)+" "+h.Name.Tenant+" "+v.id, v.keep) {
		e.add(s, v, h)
	}
}

// first reports whether an event is new to this replica, and remembers it until a time.
func (e *Events) first(id string, until time.Time) bool {
	now := e.cfg.Now()
	e.lock.Lock()
	defer e.lock.Unlock()
	if e.noted[id].After(now) {
		return false
	}
	if len(e.noted) >= mostNoted {
		clear(e.noted) // the store still refuses a second event of the same key
	}
	e.noted[id] = until
	return true
}

// enqueue queues or drops a happening. It reports whether it queued it.
func (e *Events) enqueue(h happening) bool {
	e.lock.Lock()
	taken, first := len(e.waiting) < mostWaiting && !e.ended, !e.full
	if taken {
		e.waiting = append(e.waiting, h)
	} else {
		e.full = true
	}
	e.lock.Unlock()
	if taken {
		e.nudge()
		return true
	}
	e.metrics.dropped.Inc()
	if first {
		e.cfg.Logger.Warn("events are dropped: too many wait for the store")
	}
	return false
}

// QuotaNear makes the event that a tenant has used most of a quota, at most once an hour. It never blocks.
func (e *Events) QuotaNear(tenant, quota string, limit, present int) {
	s := e.of(tenant)
	if !s.Want(job.EventQuotaNear) {
		return
	}
	now := e.now()
	hour := now.Truncate(time.Hour)
	if id := quota + " " + job.FormatTime(hour); e.first(tenant+" "+id, hour.Add(time.Hour)) {
		e.enqueue(happening{event: event{
			tenant: tenant, kind: job.EventQuotaNear, id: id, subject: quota, at: now, keep: hour.Add(2 * time.Hour),
			data: Data{Quota: quota, Limit: limit, Present: present},
		}})
	}
}

// read reads the settings of the tenants that get events, and the destinations that are known to be down. While the
// store is unavailable, the last ones apply. It returns the pause before the next reading. The dispatcher has mostly
// listed the settings again by then.
func (e *Events) read(ctx context.Context) (pause time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	all, err := e.cfg.Tenants.All(ctx, readInterval)
	if err != nil {
		if !errors.Is(err, context.Canceled) {
			e.cfg.Logger.Debug("the settings of events can't be read", "error", err)
		}
		return readInterval
	}
	found := make(map[string]*job.EventSettings)
	for name, s := range all.Settings {
		if s.Events != nil {
			found[name] = s.Events
		}
	}
	e.settings.Store(&found)
	if len(found) > 0 {
		e.readDown(ctx)
	}
	return readInterval + tellInterval - time.Since(all.At)
}
