package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// MeetTenants implements [store.Tenants].
func (s *Store) MeetTenants(ctx context.Context, tenants []job.Tenant) (inserted int, err error) {
	var names []string
	var seen []int64
	var settings [][]byte
	for _, t := range tenants {
		names, seen, settings = append(names, t.Name), append(seen, t.FirstSeen.UnixMilli()), append(settings, t.Settings.Encode())
	}
	err = s.transact(ctx, func(t *transaction) {
		// In one order, so that those who meet the same tenants at the same time do not wait in a circle.
		t.affected(&inserted, `INSERT INTO carillon.tenants (name, first_seen, settings)
			SELECT name, first_seen, settings FROM unnest($1::text[], $2::bigint[], $3::bytea[])
				WITH ORDINALITY AS t (name, first_seen, settings, place) ORDER BY name, place
			ON CONFLICT (name) DO NOTHING`, names, seen, settings)
	})
	return inserted, err
}

// SetTenant implements [store.Tenants].
func (s *Store) SetTenant(ctx context.Context, tenant job.Tenant) error {
	return s.changeOnce(ctx, func(t *transaction) {
		t.exec(`INSERT INTO carillon.tenants (name, first_seen, settings) VALUES ($1, $2, $3)
			ON CONFLICT (name) DO UPDATE SET settings = excluded.settings`,
			tenant.Name, tenant.FirstSeen.UnixMilli(), tenant.Settings.Encode())
	})
}

// Tenant implements [store.Tenants].
func (s *Store) Tenant(ctx context.Context, name string) (job.Tenant, error) {
	if !storable(name) {
		return job.Tenant{}, store.ErrNotFound
	}
	found, err := s.tenants(ctx, `name = $1`, name)
	if err == nil && len(found) == 0 {
		err = store.ErrNotFound
	}
	if err != nil {
		return job.Tenant{}, err
	}
	return found[0], nil
}

// Tenants implements [store.Tenants].
func (s *Store) Tenants(ctx context.Context, f store.TenantFilter) ([]job.Tenant, error) {
	return s.tenants(ctx, `name > $1 ORDER BY name LIMIT $2`, text(f.After), f.Limit)
}

// tenants reads those that a condition selects.
func (s *Store) tenants(ctx context.Context, where string, args ...any) (found []job.Tenant, err error) {
	err = s.transact(ctx, func(t *transaction) {
		found = nil
		t.rows(`SELECT name, first_seen, settings FROM carillon.tenants WHERE `+where, func(rows pgx.Rows) error {
			var tenant job.Tenant
			var seen int64
			var settings []byte
			err := rows.Scan(&tenant.Name, &seen, &settings)
			if err != nil {
				return err
			}
			tenant.FirstSeen = time.UnixMilli(seen).UTC()
			if tenant.Settings, err = job.DecodeTenantSettings(settings); err != nil {
				return fmt.Errorf("tenant %s: %w", tenant.Name, err)
			}
			found = append(found, tenant)
			return nil
		}, args...)
	})
	return found, err
}
