// Package tenants keeps what is known of tenants, as records of a store: when each was first seen, and the settings of
// those that have settings of their own. It has nothing to do with their jobs: those of a tenant that is not known fire
// like any others.
package tenants

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// The collections of records. Their keys are the tenants' names. Stores of earlier versions are brought up to date by
// these names and bodies, see each store's.
const (
	known    = "tenants"         // a seen of each tenant that is known
	settings = "tenant-settings" // the settings, as [job.TenantSettings.Encode] writes them, of those that have any
)

// seen is the body of a record of a known tenant.
type seen struct {
	FirstSeen int64 `json:"firstSeen"` // Unix milliseconds
}

// Tenants reads and writes the tenants of one store. Its methods are safe for concurrent use, by any number of
// processes. Their errors are those of [store.Records]; the mutations are bounded as all of a store are.
type Tenants struct {
	records store.Records

	lock sync.Mutex
	met  map[string]bool // some that are known: a tenant stays known
}

// mostMet bounds how many are remembered as known. Inserting one again does no harm.
const mostMet = 100_000

// New are the tenants that a store's records hold.
func New(records store.Records) *Tenants { return &Tenants{records: records} }

// Meet inserts tenants, and answers how many were not known before. Those that are known stay as they are. Of a name
// that repeats, the first is inserted.
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

// settle inserts the settings that strangers come with, before they are known: an insertion that breaks off is repeated
// for whoever is not known yet. Those that are known by now are left alone.
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

// insertion is the change that inserts a record of a tenant if there is none.
func insertion(collection, name string, body []byte) store.RecordChange {
	c := change(collection, name, body)
	c.If.Absent = true
	return c
}

// change is the change that writes a record of a tenant, or deletes it if there is no body. None of them expires, so
// the time decides nothing.
func change(collection, name string, body []byte) store.RecordChange {
	now := time.Now()
	return store.RecordChange{Collection: collection, Key: name, Version: job.NewRevision(now), Body: body, Now: now}
}

// insert makes insertions and counts those of records that were not there. It answers the first error, after all were
// tried.
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

// Met tells whether a tenant is remembered as known. Of one that is not, it says nothing.
func (t *Tenants) Met(name string) bool {
	t.lock.Lock()
	defer t.lock.Unlock()
	return t.met[name]
}

// strangers are the tenants that are not remembered as known, each once.
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

// Set gives a tenant settings in place of those that it had. If it is not known, it is first seen now. Of racing calls,
// one's settings are left, whole.
func (t *Tenants) Set(ctx context.Context, name string, s job.TenantSettings, now time.Time) error {
	if _, err := t.Meet(ctx, []job.Tenant{{Name: name, FirstSeen: now}}); err != nil {
		return err
	}
	// The defaults have no body.
	return t.records.WriteRecords(ctx, []store.RecordChange{change(settings, name, s.Encode())})[0]
}

// Tenant reads one tenant, or answers [store.ErrNotFound].
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

// List reads up to limit of the known tenants whose names sort after a name, in the order of the bytes of their names.
// One that is known throughout is on exactly one page.
func (t *Tenants) List(ctx context.Context, after string, limit int) ([]job.Tenant, error) {
	return t.read(ctx, store.RecordFilter{Collection: known, After: after, Limit: limit})
}

// Named reads those of the tenants that are known, in the order of the bytes of their names. The names are distinct.
func (t *Tenants) Named(ctx context.Context, names []string) ([]job.Tenant, error) {
	if len(names) == 0 {
		return nil, nil
	}
	return t.read(ctx, store.RecordFilter{Collection: known, Keys: names, Limit: len(names)})
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
		if len(own) > 0 && own[0].Tenant == all[i].Name { // both are in one order
			all[i].Settings, own = own[0].TenantSettings, own[1:]
		}
	}
	return all, nil
}

// FirstSeen tells when those of the tenants were first seen that are known. The names are distinct.
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

// Settings reads the settings of up to limit tenants that have settings of their own and whose names sort after a name,
// in the order of the bytes of their names. It costs no more than there are such tenants.
func (t *Tenants) Settings(ctx context.Context, after string, limit int) ([]Settings, error) {
	return t.settings(ctx, store.RecordFilter{Collection: settings, After: after, Limit: limit})
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
