package store

import (
	"context"

	"github.com/carillon-scheduler/carillon/job"
)

// Tenants is the side of a store that keeps what is known of tenants. It has nothing to do with their jobs: those of a
// tenant that is not known fire as any others.
type Tenants interface {
	// MeetTenants inserts tenants and answers how many there were not before. Those that are there already stay as they
	// are. Names may repeat; the first is met.
	MeetTenants(ctx context.Context, tenants []job.Tenant) (inserted int, err error)

	// SetTenant gives a tenant settings in place of those that it had, and inserts it if it is not there. When one is
	// there, its FirstSeen stays. Of racing calls, one's settings are left, whole.
	SetTenant(ctx context.Context, tenant job.Tenant) error

	// Tenant reads one tenant, or answers ErrNotFound.
	Tenant(ctx context.Context, name string) (job.Tenant, error)

	// Tenants lists tenants in the order of the bytes of their names. One that exists throughout is on exactly one
	// page.
	Tenants(ctx context.Context, filter TenantFilter) ([]job.Tenant, error)
}

// TenantFilter selects a page of tenants: those whose name sorts after After, if Set is true only those that have
// settings of their own, if there are Names only those that have one of them.
type TenantFilter struct {
	After string
	Limit int
	// Set costs no more than there are such tenants.
	Set bool
	// Names are distinct.
	Names []string
}
