// Package tenants keeps the known tenants as records of a store: the time when each was first seen, and the settings of
// tenants that have settings of their own. It is independent of their jobs: the jobs of an unknown tenant fire like any
// others.
package tenants

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// The collections of records. Their keys are the tenants' names. Each store's upgrade of older formats uses these names
// and bodies.
const (
	known    = "tenants"         // a seen for each known tenant
	settings = "tenant-settings" // the settings of tenants that have any, as [job.TenantSettings.Encode] encodes them
)

// seen is the body of a record of a known tenant.
type seen struct {
	FirstSeen int64 `json:"firstSeen"` // Unix milliseconds
}

// Tenants reads and writes the tenants of one store. Its methods are safe for concurrent use, by any number of
// processes. They return the errors of [store.Records]; their mutations are bounded like all mutations of a store.
type Tenants struct {
	records store.Records

	lock sync.Mutex
	met  map[string]bool // some known tenants; a tenant stays known

	last atomic.Pointer[Listing] // nil before the first listing
}

// Listing has the settings of all tenants that have settings of their own, by name. It is immutable.
type Listing struct {
	At       time.Time // when it began
	Settings map[string]job.TenantSettings
}

// mostMet bounds the number of names remembered as known. Inserting a known tenant again does no harm.
const mostMet = 100_000

// New returns the tenants in a store's records.
func New(records store.Records) *Tenants { return &Tenants{records: records} }

// Meet inserts tenants, and returns how many were unknown before. Known tenants stay unchanged. If a name repeats, the
// first one is inserted.
func (t *Tenants) Meet(ctx context.Context, all []job.Tenant) (inserted int, err error) {
	strangers := t.strangers(all)
	if err := t.settle(ctx, strangers); err != nil {
		return 0, err
	}
	changes := make([]store.RecordChange, len(strangers))
	for i, s := range strangers {
		body, err := json.Marshal(seen{s.FirstSeen.UnixMilli()})
		if err != nil {
			return 0, err
		}
		changes[i] = insertion(known, s.Name, body)
	}
	inserted, err = t.insert(ctx, changes)
	if err == nil {
		t.remember(strangers)
	}
	return inserted, err
}

// settle inserts the settings of unknown tenants before the tenants themselves. So an interrupted insertion is repeated
// for those still unknown. Tenants that have become known meanwhile are left alone.
func (t *Tenants) settle(ctx context.Context, strangers []job.Tenant) error {
	var names []string
	for _, s := range strangers {
		if s.Settings != (job.TenantSettings{}) {
			names = append(names, s.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	knownNow, err := t.FirstSeen(ctx, names)
	if err != nil {
		return err
	}
	var changes []store.RecordChange
	for _, s := range strangers {
		if _, is := knownNow[s.Name]; !is && s.Settings != (job.TenantSettings{}) {
			changes = append(changes, insertion(settings, s.Name, s.Settings.Encode()))
		}
	}
	_, err = t.insert(ctx, changes)
	return err
}

// insertion returns the change that inserts a tenant's record if there is none.
func insertion(collection, name string, body []byte) store.RecordChange {
	c := change(collection, name, body)
	c.If.Absent = true
	return c
}

// change returns the change that writes a tenant's record, or deletes it if body is nil. The records do not expire, so
// the change needs no time.
func change(collection, name string, body []byte) store.RecordChange {
	now := time.Now()
	return store.RecordChange{Collection: collection, Key: name, Version: job.NewRevision(now), Body: body, Now: now}
}

// insert makes insertions and returns the number of new records. It tries all of them, and returns the first error.
func (t *Tenants) insert(ctx context.Context, changes []store.RecordChange) (inserted int, err error) {
	if len(changes) == 0 {
		return 0, nil
	}
	for _, answer := range t.records.WriteRecords(ctx, changes) {
		switch {
		case answer == nil:
			inserted++
		case err == nil && !errors.Is(answer, store.ErrPrecondition):
			err = answer
		}
	}
	return inserted, err
}

// Met reports whether a tenant is remembered as known. False means that it may or may not be known.
func (t *Tenants) Met(name string) bool {
	t.lock.Lock()
	defer t.lock.Unlock()
	return t.met[name]
}

// strangers returns the tenants that are not remembered as known, each once.
func (t *Tenants) strangers(all []job.Tenant) (strangers []job.Tenant) {
	t.lock.Lock()
	defer t.lock.Unlock()
	told := make(map[string]bool)
	for _, one := range all {
		if !t.met[one.Name] && !told[one.Name] {
			strangers, told[one.Name] = append(strangers, one), true
		}
	}
	return strangers
}

func (t *Tenants) remember(all []job.Tenant) {
	t.lock.Lock()
	defer t.lock.Unlock()
	if t.met == nil || len(t.met)+len(all) > mostMet {
		t.met = make(map[string]bool)
	}
	for _, one := range all {
		t.met[one.Name] = true
	}
}

// Set replaces a tenant's settings. An unknown tenant becomes known, first seen at now. Of racing calls, the settings
// of one remain, complete.
func (t *Tenants) Set(ctx context.Context, name string, s job.TenantSettings, now time.Time) error {
	if _, err := t.Meet(ctx, []job.Tenant{{Name: name, FirstSeen: now}}); err != nil {
		return err
	}
	// The defaults have no body.
	return t.records.WriteRecords(ctx, []store.RecordChange{change(settings, name, s.Encode())})[0]
}

// Tenant returns one tenant, or [store.ErrNotFound].
func (t *Tenants) Tenant(ctx context.Context, name string) (job.Tenant, error) {
	found, err := t.Named(ctx, []string{name})
	if err == nil && len(found) == 0 {
		err = store.ErrNotFound
	}
	if err != nil {
		return job.Tenant{}, err
	}
	return found[0], nil
}

// List returns up to limit known tenants whose names sort after a name, in the order of the bytes of their names. A
// tenant that is known throughout the listing is on exactly one page.
func (t *Tenants) List(ctx context.Context, after string, limit int) ([]job.Tenant, error) {
	return t.read(ctx, store.RecordFilter{Collection: known, After: after, Limit: limit})
}

// Named returns those of the named tenants that are known, in the order of the bytes of their names. The names are
// distinct.
func (t *Tenants) Named(ctx context.Context, names []string) ([]job.Tenant, error) {
	if len(names) == 0 {
		return nil, nil
	}
	return t.read(ctx, store.RecordFilter{Collection: known, Keys: names, Limit: len(names)})
}

// ByName returns the named tenants, by name, however many there are. A name may repeat. A tenant that is not known has
// no settings.
func (t *Tenants) ByName(ctx context.Context, names []string) (map[string]job.Tenant, error) {
	all := make(map[string]job.Tenant)
	for _, name := range names {
		all[name] = job.Tenant{Name: name}
	}
	const page = 1000
	for some := range slices.Chunk(slices.Collect(maps.Keys(all)), page) {
		found, err := t.Named(ctx, some)
		if err != nil {
			return nil, err
		}
		for _, of := range found {
			all[of.Name] = of
		}
	}
	return all, nil
}

// read reads known tenants, and then their settings.
func (t *Tenants) read(ctx context.Context, filter store.RecordFilter) ([]job.Tenant, error) {
	records, err := t.records.Records(ctx, filter)
	if err != nil || len(records) == 0 {
		return nil, err
	}
	all, names := make([]job.Tenant, len(records)), make([]string, len(records))
	for i, r := range records {
		first, err := firstSeen(r)
		if err != nil {
			return nil, err
		}
		all[i], names[i] = job.Tenant{Name: r.Key, FirstSeen: first}, r.Key
	}
	own, err := t.settings(ctx, store.RecordFilter{Collection: settings, Keys: names, Limit: len(names)})
	if err != nil {
		return nil, err
	}
	for i := range all {
		if len(own) > 0 && own[0].Tenant == all[i].Name { // both lists have the same order
			all[i].Settings, own = own[0].TenantSettings, own[1:]
		}
	}
	return all, nil
}

// FirstSeen returns the times at which the tenants were first seen. It leaves out unknown tenants. The names are
// distinct.
func (t *Tenants) FirstSeen(ctx context.Context, names []string) (map[string]time.Time, error) {
	if len(names) == 0 {
		return nil, nil
	}
	records, err := t.records.Records(ctx, store.RecordFilter{Collection: known, Keys: names, Limit: len(names)})
	if err != nil {
		return nil, err
	}
	all := make(map[string]time.Time, len(records))
	for _, r := range records {
		if all[r.Key], err = firstSeen(r); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func firstSeen(r store.Record) (time.Time, error) {
	var s seen
	if err := json.Unmarshal(r.Body, &s); err != nil {
		return time.Time{}, fmt.Errorf("tenant %s: %w", r.Key, err)
	}
	return time.UnixMilli(s.FirstSeen).UTC(), nil
}

// Settings are those of one tenant.
type Settings struct {
	Tenant string
	job.TenantSettings
}

// Settings returns the settings of up to limit tenants that have settings of their own and whose names sort after a
// name, in the order of the bytes of their names. Its cost follows the number of such tenants.
func (t *Tenants) Settings(ctx context.Context, after string, limit int) ([]Settings, error) {
	return t.settings(ctx, store.RecordFilter{Collection: settings, After: after, Limit: limit})
}

// A listing reads pages of this size, each within this time.
const (
	pageSize = 1000
	pageTime = 10 * time.Second
)

// All returns the settings of all tenants that have settings of their own. A listing of any caller that began less than
// an age ago is enough.
func (t *Tenants) All(ctx context.Context, age time.Duration) (*Listing, error) {
	begun := time.Now()
	if last := t.last.Load(); last != nil && begun.Sub(last.At) < age {
		return last, nil
	}
	all := &Listing{At: begun, Settings: make(map[string]job.TenantSettings)}
	for after := ""; ; {
		call, cancel := context.WithTimeout(ctx, pageTime)
		page, err := t.Settings(call, after, pageSize)
		cancel()
		if err != nil {
			return nil, err
		}
		for _, s := range page {
			all.Settings[s.Tenant] = s.TenantSettings
		}
		if len(page) < pageSize {
			t.last.Store(all)
			return all, nil
		}
		after = page[len(page)-1].Tenant
	}
}

func (t *Tenants) settings(ctx context.Context, filter store.RecordFilter) ([]Settings, error) {
	records, err := t.records.Records(ctx, filter)
	if err != nil {
		return nil, err
	}
	all := make([]Settings, len(records))
	for i, r := range records {
		all[i].Tenant = r.Key
		if all[i].TenantSettings, err = job.DecodeTenantSettings(r.Body); err != nil {
			return nil, fmt.Errorf("tenant %s: %w", r.Key, err)
		}
	}
	return all, nil
}
