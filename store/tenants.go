package store

import (
	"context"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

// Tenants is the side of a store that keeps what is known of tenants. It has nothing to do with their jobs: those of a tenant
// that is not known fire as any others.
type Tenants interface {
	// MeetTenants inserts tenants and answers how many there were not before. Those that are there already stay as they are.
	// Names may repeat; the first is met.
	MeetTenants(ctx context.Context, tenants []job.Tenant) (inserted int, err error)

	// SetTenant gives a tenant settings in place of those that it had, and inserts it if it is not there. When one is there,
	// its FirstSeen stays. Of racing calls, one's settings are left, whole.
	SetTenant(ctx context.Context, tenant job.Tenant) error

	// Tenant reads one tenant, or answers ErrNotFound.
	Tenant(ctx context.Context, name string) (job.Tenant, error)

	// Tenants lists tenants in the order of the bytes of their names. One that exists throughout is on exactly one page.
	Tenants(ctx context.Context, filter TenantFilter) ([]job.Tenant, error)
}

// TenantFilter selects a page of tenants: those whose name sorts after After.
type TenantFilter struct {
	After string
	Limit int
}

// Stock is the side of a store that tells how much there is to fire. It changes nothing and holds up nobody.
type Stock interface {
	// Lanes answers the lanes that have pending occurrences, each with the earliest time at which one becomes due, in no
	// particular order. It costs about as much as there are lanes, however many occurrences there are. Of a store that is in several
	// parts, of which some can't be reached, it answers the others' lanes, and the error.
	Lanes(ctx context.Context) ([]LaneDue, error)

	// CountLanes counts what lanes have at now, and answers for each in order. It reads nothing but an index, and of each lane
	// no more than the limit, which is at least 1.
	CountLanes(ctx context.Context, now time.Time, lanes []job.Lane, limit int) ([]LaneCount, error)

	// Backlog counts what the store has to fire at now. It may read as much as there is of it, though nothing but indexes:
	// whoever asks again and again takes care not to ask too often.
	Backlog(ctx context.Context, now time.Time) (Backlog, error)
}

// LaneDue is when a lane's next occurrence becomes due.
type LaneDue struct {
	Lane  job.Lane
	DueAt time.Time
}

// LaneCount is how much a lane has.
type LaneCount struct {
	// Pending is how many occurrences are to fire, now or later, or are held; the limit, if there are more.
	Pending int
	// Due is how many of them are due, and so not held; the limit, if there are more.
	Due int
}
