package redis

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// tenantsKey has the tenants, in a sorted set whose scores are all the same. Each is one entry: its name, a NUL, when it was
// first seen, a space and its settings. So they sort by the bytes of their names, and a page of them is one command. It is
// of no shard, since they are few, and listed together.
func (s *Store) tenantsKey() string { return s.prefix + ":tenants" }

// MeetTenants implements [store.Tenants].
func (s *Store) MeetTenants(ctx context.Context, tenants []job.Tenant) (inserted int, err error) {
	var calls []call
	for part := range slices.Chunk(tenants, chunk) {
		var args []any
		for _, t := range part {
			args = append(args, tenantArgs(t)...)
		}
		calls = append(calls, call{meetTenantsScript, noShard, args})
	}
	return s.sum(ctx, calls)
}

// SetTenant implements [store.Tenants].
func (s *Store) SetTenant(ctx context.Context, t job.Tenant) error {
	return s.run(ctx, []call{{setTenantScript, noShard, tenantArgs(t)}})[0].err
}

// tenantArgs are a tenant as the scripts take it.
func tenantArgs(t job.Tenant) []any {
	return []any{t.Name, t.FirstSeen.UnixMilli(), t.Settings.Encode()}
}

// Tenant implements [store.Tenants].
func (s *Store) Tenant(ctx context.Context, name string) (job.Tenant, error) {
	found, err := s.tenantEntries(ctx, "["+name+separator, "("+name+"\x01", 1)
	if err != nil {
		return job.Tenant{}, err
	}
	if len(found) == 0 {
		return job.Tenant{}, store.ErrNotFound
	}
	return found[0], nil
}

// Tenants implements [store.Tenants].
func (s *Store) Tenants(ctx context.Context, f store.TenantFilter) ([]job.Tenant, error) {
	return s.tenantEntries(ctx, "("+f.After+"\x01", "+", f.Limit) // no name has a control character in it, see separator
}

// tenantEntries reads the tenants between bounds, as Redis takes them.
func (s *Store) tenantEntries(ctx context.Context, from, to string, limit int) ([]job.Tenant, error) {
	entries, err := s.client.ZRangeArgs(ctx, redis.ZRangeArgs{
		Key: s.tenantsKey(), ByLex: true, Start: from, Stop: to, Count: int64(limit),
	}).Result()
	if err != nil {
		return nil, mapError(err)
	}
	tenants := make([]job.Tenant, len(entries))
	for i, entry := range entries {
		if tenants[i], err = decodeTenant(entry); err != nil {
			return nil, err
		}
	}
	return tenants, nil
}

func decodeTenant(entry string) (t job.Tenant, err error) {
	name, rest, _ := strings.Cut(entry, separator)
	seen, settings, _ := strings.Cut(rest, " ")
	ms, err := strconv.ParseInt(seen, 10, 64)
	if err == nil {
		t.Settings, err = job.DecodeTenantSettings([]byte(settings))
	}
	if err != nil {
		return t, fmt.Errorf("the stored tenant %.80q can't be understood: %w", entry, err)
	}
	t.Name, t.FirstSeen = name, time.UnixMilli(ms).UTC()
	return t, nil
}
