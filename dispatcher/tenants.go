package dispatcher

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/carillon-scheduler/carillon/dispatcher/fairqueue"
	"github.com/carillon-scheduler/carillon/job"
)

// tenantsInterval is the interval at which a replica reads the tenants' settings. New settings apply within that time.
const tenantsInterval = 5 * time.Second

// tenancy has the tenants' settings and automatic priorities that this replica needs.
type tenancy struct {
	known atomic.Pointer[map[string]fairqueue.Tenant] // those with settings; nil until the store has answered
	auto  autoPriorities

	reading chan struct{} // has room for one: the reader, which owns the fields below
	next    time.Time     // no reading before this
	faults  faults
}

// treat returns a tenant's settings. A tenant without an automatic priority has appeared since the last due scan, so it
// counts as new.
func (d *Dispatcher) treat(name string) (t fairqueue.Tenant) {
	if known := d.tenants.known.Load(); known != nil {
		t = (*known)[name]
	}
	if d.cfg.Auto.on() && t.Priority == job.PriorityDefault {
		t.Priority = job.PriorityHigh
		if priority, has := d.tenants.auto.of(name); has {
			t.Priority = priority
		}
	}
	return t
}

// Priorities returns the priorities for jobs without their own, in the order of the tenants. Those of tenants with due
// occurrences are known; for the others, the pending occurrences are counted now.
func (d *Dispatcher) Priorities(ctx context.Context, tenants []job.Tenant) []job.Priority {
	all := make([]job.Priority, len(tenants))
	now := d.now()
	var uncounted []string
	places := make(map[string]int)
	for i, t := range tenants {
		all[i] = cmp.Or(t.Settings.Priority, d.treat(t.Name).Priority, job.PriorityNormal)
		if !d.cfg.Auto.on() || t.Settings.Priority != job.PriorityDefault ||
			t.FirstSeen.IsZero() || now.Sub(t.FirstSeen) < d.cfg.Auto.New {
			continue
		}
		if _, has := d.tenants.auto.of(t.Name); !has {
			uncounted, places[t.Name] = append(uncounted, t.Name), i
		}
	}
	counted, _ := d.classify(ctx, uncounted, now) // on an error, the rest count as new
	for name, priority := range counted {
		all[places[name]] = priority
	}
	return all
}

// readTenants reads the tenants' settings. While the store does not answer, the last ones apply.
func (d *Dispatcher) readTenants(ctx context.Context) {
	d.tenants.reading <- struct{}{} // no mutex: it is held while the store is asked
	defer func() { <-d.tenants.reading }()
	start := d.now()
	if start.Before(d.tenants.next) {
		return
	}
	known, err := d.askTenants(ctx)
	if errors.Is(ctx.Err(), context.Canceled) || !d.tenants.faults.note(d.log, "list the tenants' settings", err) {
		return
	}
	d.tenants.known.Store(&known)
	if d.cfg.Auto.on() {
		d.recount(ctx, start)
	}
	end := d.now()
	const pauseFactor = 20 // so that this takes the store at most a twentieth of its time
	d.tenants.next = end.Add(min(pauseFactor*end.Sub(start), time.Minute))
}

// askTenants reads all tenants that have settings.
func (d *Dispatcher) askTenants(ctx context.Context) (map[string]fairqueue.Tenant, error) {
	all, err := d.cfg.Tenants.All(ctx, 0)
	if err != nil {
		return nil, err
	}
	known := make(map[string]fairqueue.Tenant, len(all.Settings))
	for name, s := range all.Settings {
		known[name] = fairqueue.Tenant{
			Weight: s.Weight, Priority: s.Priority, MaxInFlight: s.MaxInFlight, Paused: s.Paused,
		}
	}
	return known, nil
}
