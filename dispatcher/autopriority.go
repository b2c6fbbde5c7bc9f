package dispatcher

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// AutoPriority gives a priority to tenants whose settings name none: high while they are new, then normal while they
// have few pending occurrences, else low. With the zero value all are normal.
type AutoPriority struct {
	// New is the age up to which a tenant is new, counted from the time at which it was first seen. If both fields are
	// zero, there are no automatic priorities.
	New time.Duration
	// Small is the largest number of pending occurrences with which a tenant has normal priority.
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

// Bounds of counting, the most expensive part for the store. Its cost must not grow with the number of tenants with due
// occurrences.
const (
	// countedPerPage is the number of tenants that are counted before a page of the due scan is used: as many as one call
	// counts. The others of the page are normal until a later round counts them.
	countedPerPage = countedPerCall
	// countedPerRound is the number of tenants that a round counts, see [Dispatcher.readTenants].
	countedPerRound = 2000
	countedPerCall  = 100
	// pruneInterval is the interval at which tenants without due occurrences are forgotten.
	pruneInterval = time.Minute
)

// autoPriorities are the automatic priorities of tenants with occurrences that are due, or soon will be. A tenant
// enters when the due scan first finds it. It is counted at once or in a later round, and then again in turn. It leaves
// when the fair queue has forgotten it.
type autoPriorities struct {
	lock  sync.RWMutex
	given map[string]job.Priority // read at every firing

	// The tenants in the fair queue at some moment; nil once a round has used them.
	known  atomic.Pointer[knownTenants]
	pruned time.Time // when they were last taken; the claim loop's

	counting  sync.Mutex // held during calls to the store; guards the fields below
	tenants   map[string]autoTenant
	uncounted []string // never counted
	counted   []string // the others, those counted longest ago first
	faults    faults
}

// autoTenant is a tenant with an automatic priority.
type autoTenant struct {
	first time.Time // when it was first seen; zero if the store does not know it
	found time.Time // when the due scan found it
}

// knownTenants are the fair queue's tenants.
type knownTenants struct {
	names map[string]bool
	at    time.Time
}

// of returns a tenant's priority; ok is false if it has none yet.
func (a *autoPriorities) of(tenant string) (p job.Priority, ok bool) {
	a.lock.RLock()
	defer a.lock.RUnlock()
	p, ok = a.given[tenant]
	return p, ok
}

// give sets priorities. Tenants among the names without a priority, old or new, become normal.
func (a *autoPriorities) give(priorities map[string]job.Priority, names []string) {
	a.lock.Lock()
	defer a.lock.Unlock()
	if a.given == nil {
		a.given = make(map[string]job.Priority)
	}
	for _, name := range names {
		a.given[name] = cmp.Or(priorities[name], a.given[name], job.PriorityNormal)
	}
}

// drop forgets a tenant.
func (a *autoPriorities) drop(name string) {
	delete(a.tenants, name)
	a.lock.Lock()
	defer a.lock.Unlock()
	delete(a.given, name)
}

// publishKnown passes the fair queue's tenants to the next round, once per pruneInterval. The function tenants copies
// their names.
func (a *autoPriorities) publishKnown(tenants func() map[string]bool, now time.Time) {
	if now.Sub(a.pruned) >= pruneInterval {
		a.pruned = now
		a.known.Store(&knownTenants{tenants(), now})
	}
}

// prioritizeNew gives priorities to the tenants of a page of the due scan that have none yet. It makes one call to the
// store for each thousand of them, and one call that counts.
func (d *Dispatcher) prioritizeNew(ctx context.Context, page []store.LaneDue) {
	if !d.cfg.Auto.on() {
		return
	}
	a := &d.tenants.auto
	a.counting.Lock()
	defer a.counting.Unlock()
	var names []string
	twice := make(map[string]bool)
	for _, l := range page {
		name := l.Lane.Tenant
		if _, has := a.of(name); !has && !twice[name] && !d.hasOwnPriority(name) {
			names, twice[name] = append(names, name), true
		}
	}
	d.assign(ctx, names, d.now(), countedPerPage)
}

// recount makes one round: it forgets tenants without due occurrences, adds those that the due scan has not found, and
// counts some of the others again.
func (d *Dispatcher) recount(ctx context.Context, now time.Time) {
	a := &d.tenants.auto
	a.counting.Lock()
	defer a.counting.Unlock()
	if known := a.known.Swap(nil); known != nil {
		d.assign(ctx, a.prune(known), now, 0)
	}
	names := a.next(countedPerRound)
	d.assign(ctx, slices.DeleteFunc(names, func(name string) bool {
		own := d.hasOwnPriority(name)
		if own {
			a.drop(name)
		}
		return own
	}), now, len(names))
}

// prune forgets the tenants that are not in the fair queue, and returns the tenants that are only there.
func (a *autoPriorities) prune(known *knownTenants) (missing []string) {
	for name, of := range a.tenants {
		if !known.names[name] && of.found.Before(known.at) {
			a.drop(name)
		}
	}
	dropped := func(name string) bool {
		_, has := a.tenants[name]
		return !has
	}
	a.uncounted, a.counted = slices.DeleteFunc(a.uncounted, dropped), slices.DeleteFunc(a.counted, dropped)
	for name := range known.names {
		if dropped(name) {
			missing = append(missing, name)
		}
	}
	return missing
}

// next takes the next tenants to count.
func (a *autoPriorities) next(most int) (names []string) {
	n := min(most, len(a.uncounted))
	names, a.uncounted = append(names, a.uncounted[:n]...), a.uncounted[n:]
	n = min(most-n, len(a.counted))
	names, a.counted = append(names, a.counted[:n]...), a.counted[n:]
	return names
}

// assign gives priorities to tenants: high to new ones, and to at most the given number of others by their pending
// occurrences. The rest keep their priority, or become normal, and are counted in a later round. So are tenants that
// the store does not return.
func (d *Dispatcher) assign(ctx context.Context, names []string, now time.Time, most int) {
	if len(names) == 0 {
		return
	}
	a := &d.tenants.auto
	priorities := make(map[string]job.Priority, len(names))
	var old []string
	err := d.firstSeen(ctx, names, now)
	for _, name := range names {
		switch of := a.tenants[name]; {
		case err == nil && (of.first.IsZero() || now.Sub(of.first) < d.cfg.Auto.New):
			priorities[name] = job.PriorityHigh
			a.counted = append(a.counted, name) // it is counted when it is no longer new
		case err == nil && len(old) < most:
			old = append(old, name)
		default:
			a.uncounted = append(a.uncounted, name)
		}
	}
	if len(old) > 0 {
		counted, err := d.classify(ctx, old, now)
		a.faults.note(d.log, "count the tenants' pending occurrences", err)
		for _, name := range old {
			if p, is := counted[name]; is {
				priorities[name] = p
				a.counted = append(a.counted, name)
			} else {
				a.uncounted = append(a.uncounted, name)
			}
		}
	}
	a.give(priorities, names)
}

// firstSeen asks the store for the times at which tenants were first seen, where they are unknown.
func (d *Dispatcher) firstSeen(ctx context.Context, names []string, now time.Time) (err error) {
	a := &d.tenants.auto
	if a.tenants == nil {
		a.tenants = make(map[string]autoTenant)
	}
	var unknown []string
	for _, name := range names {
		if of, is := a.tenants[name]; of.first.IsZero() {
			unknown = append(unknown, name)
			if !is {
				a.tenants[name] = autoTenant{found: now}
			}
		}
	}
	for part := range slices.Chunk(unknown, largestBatch) {
		call, cancel := context.WithTimeout(ctx, storeTimeout)
		found, err := d.cfg.Tenants.FirstSeen(call, part)
		cancel()
		if err != nil {
			return err
		}
		for name, first := range found {
			a.tenants[name] = autoTenant{first: first, found: a.tenants[name].found}
		}
	}
	return nil
}

// hasOwnPriority reports whether a tenant's settings name a priority.
func (d *Dispatcher) hasOwnPriority(name string) bool {
	settings := d.tenants.known.Load()
	return settings != nil && (*settings)[name].Priority != job.PriorityDefault
}

// classify returns the priorities of tenants that are not new. On an error it returns those known so far.
func (d *Dispatcher) classify(
	ctx context.Context, names []string, now time.Time,
) (map[string]job.Priority, error) {
	priorities := make(map[string]job.Priority, len(names))
	all := []job.Priority{job.PriorityDefault, job.PriorityHigh, job.PriorityNormal, job.PriorityLow}
	for part := range slices.Chunk(names, countedPerCall) {
		lanes := make([]job.Lane, 0, len(part)*len(all))
		for _, name := range part {
			for _, p := range all {
				lanes = append(lanes, job.Lane{Tenant: name, Priority: p})
			}
		}
		call, cancel := context.WithTimeout(ctx, storeTimeout)
		counts, err := d.cfg.Store.Count(call, now.Truncate(time.Millisecond), lanes, d.cfg.Auto.Small+1)
		cancel()
		if err != nil {
			return priorities, err
		}
		for i, name := range part {
			pending := 0
			for _, n := range counts[i*len(all) : (i+1)*len(all)] {
				pending += n.Pending
			}
			priorities[name] = job.PriorityLow
			if pending <= d.cfg.Auto.Small {
				priorities[name] = job.PriorityNormal
			}
		}
	}
	return priorities, nil
}
