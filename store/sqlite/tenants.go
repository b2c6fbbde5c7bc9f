package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// MeetTenants implements [store.Tenants].
func (s *Store) MeetTenants(ctx context.Context, tenants []job.Tenant) (inserted int, err error) {
	err = s.write(ctx, func(tx *sql.Tx) error {
		inserted = 0
		for _, t := range tenants {
			n, err := affected(tx.Stmt(s.stmt.tenantMeet).Exec(t.Name, t.FirstSeen.UnixMilli(), t.Settings.Encode()))
			if err != nil {
				return err
			}
			inserted += n
		}
		return nil
	})
	return inserted, err
}

// SetTenant implements [store.Tenants].
func (s *Store) SetTenant(ctx context.Context, t job.Tenant) error {
	return s.write(ctx, func(tx *sql.Tx) error {
		_, err := tx.Stmt(s.stmt.tenantSet).Exec(t.Name, t.FirstSeen.UnixMilli(), t.Settings.Encode())
		return err
	})
}

// Tenant implements [store.Tenants].
func (s *Store) Tenant(ctx context.Context, name string) (job.Tenant, error) {
	t, err := scanTenant(s.stmt.tenantRead.QueryRowContext(ctx, name))
	if errors.Is(err, sql.ErrNoRows) {
		return t, store.ErrNotFound
	}
	return t, mapError(ctx, err)
}

// Tenants implements [store.Tenants].
func (s *Store) Tenants(ctx context.Context, filter store.TenantFilter) ([]job.Tenant, error) {
	list, args := s.stmt.tenantList, []any{filter.After, filter.Limit}
	switch {
	case len(filter.Names) > 0:
		names, err := json.Marshal(filter.Names)
		if err != nil {
			return nil, err
		}
		list, args = s.stmt.tenantNamed, append(args, filter.Set, string(names))
	case filter.Set:
		list = s.stmt.tenantSetList
	}
	rows, err := list.QueryContext(ctx, args...)
	return read(ctx, rows, err, scanTenant)
}

func scanTenant(r scanner) (t job.Tenant, err error) {
	var seen int64
	var settings []byte
	if err := r.Scan(&t.Name, &seen, &settings); err != nil {
		return t, err
	}
	t.FirstSeen = time.UnixMilli(seen).UTC()
	if t.Settings, err = job.DecodeTenantSettings(settings); err != nil {
		err = fmt.Errorf("tenant %s: %w", t.Name, err)
	}
	return t, err
}
