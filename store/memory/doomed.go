package memory

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// roster is who is known: tenants and replicas.
type roster struct {
	tenants  map[string]job.Tenant
	replicas map[string]time.Time // until when each may be claiming
}

func newRoster() roster { return roster{map[string]job.Tenant{}, map[string]time.Time{}} }

// MeetTenants implements [store.Tenants].
func (s *Store) MeetTenants(ctx context.Context, tenants []job.Tenant) (inserted int, err error) {
	if err := s.begin(ctx); err != nil {
		return 0, err
	}
	defer s.mutex.Unlock()
	for _, t := range tenants {
		if _, there := s.tenants[t.Name]; !there {
			t.FirstSeen = millis(t.FirstSeen)
			s.tenants[t.Name] = t
			inserted++
		}
	}
	return inserted, nil
}

// SetTenant implements [store.Tenants].
func (s *Store) SetTenant(ctx context.Context, t job.Tenant) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.mutex.Unlock()
	t.FirstSeen = millis(t.FirstSeen)
	if there, ok := s.tenants[t.Name]; ok {
		t.FirstSeen = there.FirstSeen
	}
	s.tenants[t.Name] = t
	return nil
}

// Tenant implements [store.Tenants].
func (s *Store) Tenant(ctx context.Context, name string) (job.Tenant, error) {
	if err := s.begin(ctx); err != nil {
		return job.Tenant{}, err
	}
	defer s.mutex.Unlock()
	t, ok := s.tenants[name]
	if !ok {
		return t, store.ErrNotFound
	}
	return t, nil
}

// Tenants implements [store.Tenants].
func (s *Store) Tenants(ctx context.Context, f store.TenantFilter) (all []job.Tenant, err error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	defer s.mutex.Unlock()
	for name, t := range s.tenants {
		if name > f.After && (!f.Set || t.Settings != job.TenantSettings{}) && (len(f.Names) == 0 || slices.Contains(f.Names, name)) {
			all = append(all, t)
		}
	}
	slices.SortFunc(all, func(a, b job.Tenant) int { return cmp.Compare(a.Name, b.Name) })
	return page(all, f.Limit), nil
}

// Beat implements [store.Queue].
func (s *Store) Beat(ctx context.Context, replica string, until time.Time) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	defer s.mutex.Unlock()
	if until.IsZero() {
		delete(s.replicas, replica)
	} else {
		s.replicas[replica] = until
	}
	return nil
}

// Replicas implements [store.Queue].
func (s *Store) Replicas(ctx context.Context, now time.Time) (n int, err error) {
	if err := s.begin(ctx); err != nil {
		return 0, err
	}
	defer s.mutex.Unlock()
	maps.DeleteFunc(s.replicas, func(_ string, until time.Time) bool { return !until.After(now.Add(-time.Hour)) })
	for _, until := range s.replicas {
		if until.After(now) {
			n++
		}
	}
	return n, nil
}
