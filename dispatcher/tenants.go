package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carillon-scheduler/carillon/dispatcher/shares"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// AutoPriority gives tenants a priority whose settings name none: a high one while they are new, else a normal one while they have
// little to fire, else a low one. The zero value leaves all at normal.
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

// tenants is what is known of them.
type tenants struct {
	known atomic.Pointer[map[string]shares.Tenant] // nil until the store has told
	lanes atomic.Pointer[[]store.LaneDue]          // as the claim loop was last told

	reading   sync.Mutex // guards what follows
	next      time.Time  // not before this
	faults    faults
	uncounted faults
}

// treat is how a tenant is treated. One that the store has not told yet has come since, and so is new.
func (d *Dispatcher) treat(name string) (t shares.Tenant) {
	known := d.tenants.known.Load()
	if known != nil {
		var is bool
		if t, is = (*known)[name]; !is && d.cfg.Auto.on() {
			t.Priority = job.PriorityHigh
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

// Priority is that of a tenant's jobs which have none of their own.
func (d *Dispatcher) Priority(tenant string) job.Priority {
	if p := d.treat(tenant).Priority; p != job.PriorityDefault {
		return p
	}
	return job.PriorityNormal
}

// readTenants reads the tenants' settings. While the store does not answer, what was known of them holds.
func (d *Dispatcher) readTenants(ctx context.Context) {
	d.tenants.reading.Lock()
	defer d.tenants.reading.Unlock()
	start := d.now()
	if start.Before(d.tenants.next) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	known, err := d.askTenants(ctx, start)
	end := d.now()
	if errors.Is(ctx.Err(), context.Canceled) || !d.tenants.faults.note(d.log, "tell the tenants", err) {
		return
	}
	const share = 20 // of the time that the store may be busy with it: one part in so many
	d.tenants.next = end.Add(min(share*end.Sub(start), time.Minute))
	d.tenants.known.Store(&known)
}

// askTenants reads all tenants, and what it takes to give them a priority.
func (d *Dispatcher) askTenants(ctx context.Context, now time.Time) (map[string]shares.Tenant, error) {
	known := make(map[string]shares.Tenant)
	isNew := make(map[string]bool)
	for filter := (store.TenantFilter{Limit: largestBatch}); ; {
		page, err := d.cfg.Store.Tenants(ctx, filter)
		if err != nil {
			return nil, err
		}
		for _, t := range page {
			s := t.Settings
			known[t.Name] = shares.Tenant{Weight: s.Weight, Priority: s.Priority, MaxInFlight: s.MaxInFlight, Paused: s.Paused}
			isNew[t.Name] = now.Sub(t.FirstSeen) < d.cfg.Auto.New
		}
		if len(page) < filter.Limit {
			break
		}
		filter.After = page[len(page)-1].Name
	}
	if !d.cfg.Auto.on() {
		return known, nil
	}
	d.classify(ctx, now, known, isNew)
	return known, nil
}

// classify gives those tenants a priority that have none of their own. If the store does not tell how much they have, it is the one
// that they had.
func (d *Dispatcher) classify(ctx context.Context, now time.Time, known map[string]shares.Tenant, isNew map[string]bool) {
	var lanes []job.Lane
	if told := d.tenants.lanes.Load(); told != nil {
		for _, l := range *told {
			lanes = append(lanes, l.Lane)
		}
	}
	counts, err := d.cfg.Store.CountLanes(ctx, now.Truncate(time.Millisecond), lanes, d.cfg.Auto.Small+1)
	counted := d.tenants.uncounted.note(d.log, "count what tenants have", err)
	pending := make(map[string]int)
	for i, n := range counts {
		pending[lanes[i].Tenant] += n.Pending
	}
	for name, t := range known {
		switch {
		case t.Priority != job.PriorityDefault:
		case isNew[name]:
			t.Priority = job.PriorityHigh
		case !counted:
			t.Priority = d.Priority(name)
		case pending[name] <= d.cfg.Auto.Small:
			t.Priority = job.PriorityNormal
		default:
			t.Priority = job.PriorityLow
		}
		known[name] = t
	}
}
