package dispatcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carillon-scheduler/carillon/dispatcher/fairqueue"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/tenants"
)

// AutoPriority gives tenants a priority whose settings name none: a high one while they are new, else a normal one
// while they have little to fire, else a low one. The zero value leaves all at normal.
type AutoPriority struct {
	// New is for how long a tenant is new, from when it was first seen. Zero with Small zero is no automatic priority.
	New time.Duration
	// Small is how many occurrences one may have pending to be served before those that have more.
	Small int
}

func (a AutoPriority) on() bool { return a != AutoPriority{} }

func (a AutoPriority) validate() error {
	switch {
	case a.New < 0:
		return fmt.Errorf("auto-priority-new is %s; it must not be negative", a.New)
	case a.on() && a.Small < 1:
		return fmt.Errorf("auto-priority-small is %d; it must be at least 1", a.Small)
	}
	return nil
}

// tenantsInterval is how often a replica looks at the tenants: within that time it goes by new settings.
const tenantsInterval = 5 * time.Second

// tenancy is what is known of the tenants.
type tenancy struct {
	stored  *tenants.Tenants
	known   atomic.Pointer[map[string]fairqueue.Tenant] // those that have settings; nil until the store has told
	classes atomic.Pointer[map[string]job.Priority]     // by automatic priority, of those that matter and whose settings name none

	lock     sync.Mutex      // guards the next
	mattered map[string]bool // those that have something due, or soon will

	reading   sync.Mutex // guards what follows
	next      time.Time  // not before this
	seen      map[string]seenTenant
	faults    faults
	uncounted faults
}

// seenTenant is what is remembered of a tenant that matters.
type seenTenant struct {
	first   time.Time // when it was first seen; zero if the store does not know it
	counted time.Time // when what it has was last counted
}

// matter notes which tenants have something due, or soon will.
func (t *tenancy) matter(names map[string]bool) {
	t.lock.Lock()
	defer t.lock.Unlock()
	t.mattered = names
}

func (t *tenancy) mattering() []string {
	t.lock.Lock()
	defer t.lock.Unlock()
	return slices.Sorted(maps.Keys(t.mattered))
}

// treat is how a tenant is treated. One that is not classed yet has come since, and so is new.
func (d *Dispatcher) treat(name string) (t fairqueue.Tenant) {
	if known := d.tenants.known.Load(); known != nil {
		t = (*known)[name]
	}
	if d.cfg.Auto.on() && t.Priority == job.PriorityDefault {
		t.Priority = job.PriorityHigh
		if class, is := d.class(name); is {
			t.Priority = class
		}
	}
	return t
}

// anyPaused tells whether any tenant is.
func (d *Dispatcher) anyPaused() bool {
	if known := d.tenants.known.Load(); known != nil {
		for _, t := range *known {
			if t.Paused {
				return true
			}
		}
	}
	return false
}

// Priorities are those of tenants' jobs which have none of their own, in the order of the tenants. What has something
// due, or soon will, is known; of the others, as many as that takes are looked at.
func (d *Dispatcher) Priorities(ctx context.Context, tenants []job.Tenant) []job.Priority {
	all := make([]job.Priority, len(tenants))
	var unknown []string
	places := make(map[string]int)
	seen := make(map[string]seenTenant)
	for i, t := range tenants {
		all[i] = cmp.Or(t.Settings.Priority, d.treat(t.Name).Priority, job.PriorityNormal)
		if !d.cfg.Auto.on() || t.Settings.Priority != job.PriorityDefault || t.FirstSeen.IsZero() {
			continue
		}
		if _, is := d.class(t.Name); is {
			continue
		}
		unknown, places[t.Name], seen[t.Name] = append(unknown, t.Name), i, seenTenant{first: t.FirstSeen}
	}
	classed, _ := d.classify(ctx, d.now(), unknown, seen) // of the others it is not known
	for name, class := range classed {
		all[places[name]] = class
	}
	return all
}

// readTenants reads the tenants' settings. While the store does not answer, what was known of them holds.
func (d *Dispatcher) readTenants(ctx context.Context) {
	d.tenants.reading.Lock()
	defer d.tenants.reading.Unlock()
	start := d.now()
	if start.Before(d.tenants.next) {
		return
	}
	known, err := d.askTenants(ctx)
	if errors.Is(ctx.Err(), context.Canceled) || !d.tenants.faults.note(d.log, "tell the tenants", err) {
		return
	}
	d.tenants.known.Store(&known)
	if d.cfg.Auto.on() {
		d.classifyMattering(ctx, start)
	}
	end := d.now()
	const share = 20 // of the time that the store may be busy with it: one part in so many
	d.tenants.next = end.Add(min(share*end.Sub(start), time.Minute))
}

// askTenants reads all tenants that have settings of their own.
func (d *Dispatcher) askTenants(ctx context.Context) (map[string]fairqueue.Tenant, error) {
	known := make(map[string]fairqueue.Tenant)
	for after := ""; ; {
		call, cancel := context.WithTimeout(ctx, storeTimeout)
		page, err := d.tenants.stored.Settings(call, after, largestBatch)
		cancel()
		if err != nil {
			return nil, err
		}
		for _, s := range page {
			known[s.Tenant] = fairqueue.Tenant{Weight: s.Weight, Priority: s.Priority, MaxInFlight: s.MaxInFlight, Paused: s.Paused}
		}
		if len(page) < largestBatch {
			return known, nil
		}
		after = page[len(page)-1].Tenant
	}
}

// mostClassed bounds how many tenants are counted at a time.
const mostClassed = 2000

// classifyMattering gives those tenants a priority that matter and whose settings name none: as many as may be counted
// at a time, those first that were not yet, or not for the longest. The others keep what they had.
func (d *Dispatcher) classifyMattering(ctx context.Context, now time.Time) {
	known, seen, classes := *d.tenants.known.Load(), make(map[string]seenTenant), make(map[string]job.Priority)
	names := slices.DeleteFunc(d.tenants.mattering(), func(name string) bool { return known[name].Priority != job.PriorityDefault })
	for _, name := range names {
		if class, is := d.class(name); is {
			classes[name] = class
		}
		if of, is := d.tenants.seen[name]; is {
			seen[name] = of
		}
	}
	d.tenants.seen = seen
	slices.SortStableFunc(names, func(a, b string) int { return seen[a].counted.Compare(seen[b].counted) })
	d.classifyNamed(ctx, now, names[:min(mostClassed, len(names))], classes)
}

// classifyTold gives those tenants of lanes a priority that have none yet.
func (d *Dispatcher) classifyTold(ctx context.Context, lanes []store.LaneDue) {
	if !d.cfg.Auto.on() {
		return
	}
	d.tenants.reading.Lock()
	defer d.tenants.reading.Unlock()
	var names []string
	told := make(map[string]bool)
	for _, l := range lanes {
		if _, is := d.class(l.Lane.Tenant); !is && !told[l.Lane.Tenant] {
			names, told[l.Lane.Tenant] = append(names, l.Lane.Tenant), true
		}
	}
	if len(names) == 0 {
		return
	}
	classes := make(map[string]job.Priority)
	if before := d.tenants.classes.Load(); before != nil {
		maps.Copy(classes, *before)
	}
	d.classifyNamed(ctx, d.now(), names, classes)
}

// class is the one that a tenant has been given.
func (d *Dispatcher) class(name string) (class job.Priority, is bool) {
	if classes := d.tenants.classes.Load(); classes != nil {
		class, is = (*classes)[name]
	}
	return class, is
}

// classifyNamed gives some tenants a priority, and stores that with the classes of others. What the store does not tell
// stays as it is.
func (d *Dispatcher) classifyNamed(ctx context.Context, now time.Time, names []string, classes map[string]job.Priority) {
	if d.tenants.seen == nil {
		d.tenants.seen = make(map[string]seenTenant)
	}
	seen := d.tenants.seen
	strangers := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !seen[name].first.IsZero() })
	for part := range slices.Chunk(strangers, largestBatch) {
		call, cancel := context.WithTimeout(ctx, storeTimeout)
		met, err := d.tenants.stored.FirstSeen(call, part)
		cancel()
		if err != nil {
			return
		}
		for name, first := range met {
			seen[name] = seenTenant{first: first}
		}
	}
	classed, err := d.classify(ctx, now, names, seen)
	d.tenants.uncounted.note(d.log, "count what tenants have", err)
	maps.Copy(classes, classed)
	for name := range classed {
		seen[name] = seenTenant{seen[name].first, now}
	}
	d.tenants.classes.Store(&classes)
}

// classify gives tenants a priority that have none of their own. Those of which the store does not tell how much they
// have are left out.
func (d *Dispatcher) classify(ctx context.Context, now time.Time, names []string, seen map[string]seenTenant) (map[string]job.Priority, error) {
	classes := make(map[string]job.Priority, len(names))
	var lanes []job.Lane
	for _, name := range names {
		if first := seen[name].first; first.IsZero() || now.Sub(first) < d.cfg.Auto.New {
			classes[name] = job.PriorityHigh
			continue
		}
		for _, p := range []job.Priority{job.PriorityDefault, job.PriorityHigh, job.PriorityNormal, job.PriorityLow} {
			lanes = append(lanes, job.Lane{Tenant: name, Priority: p})
		}
	}
	const ofOne, atOnce = 4, 4 * 100 // lanes
	for part := range slices.Chunk(lanes, atOnce) {
		call, cancel := context.WithTimeout(ctx, storeTimeout)
		counts, err := d.cfg.Store.CountLanes(call, now.Truncate(time.Millisecond), part, d.cfg.Auto.Small+1)
		cancel()
		if err != nil {
			return classes, err
		}
		for i := 0; i < len(part); i += ofOne {
			pending := 0
			for _, n := range counts[i : i+ofOne] {
				pending += n.Pending
			}
			classes[part[i].Tenant] = job.PriorityLow
			if pending <= d.cfg.Auto.Small {
				classes[part[i].Tenant] = job.PriorityNormal
			}
		}
	}
	return classes, nil
}
