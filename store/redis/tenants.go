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

// tenantsKey has the tenants, in a sorted set whose scores are all the same. Each is one entry: its name, a NUL, when
// it was first seen, a space and its settings. So they sort by the bytes of their names, and a page of them is one
// command. It is of no shard, since they are few, and listed together.
func (s *Store) tenantsKey() string { return s.prefix + ":tenants" }

// setTenantsKey has the names of the tenants that have, or had, settings of their own, in a sorted set whose scores are
// all the same. A name is there before the settings are.
func (s *Store) setTenantsKey() string { return s.prefix + ":tenants-set" }

// noteSet notes the names of those tenants that have settings of their own.
func (s *Store) noteSet(ctx context.Context, tenants []job.Tenant) error {
	var names []any
	for _, t := range tenants {
		if len(t.Settings.Encode()) > 0 {
			names = append(names, t.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	err := redis.NewScript(noteSetScript).Run(ctx, s.client, []string{s.setTenantsKey()}, names...).Err()
	return undone(mapError(err)) // a name alone says nothing
}

// noteAllSet does that for all tenants, since an older version does not.
func (s *Store) noteAllSet(ctx context.Context) error {
	for f := (store.TenantFilter{Limit: chunk}); ; {
		page, err := s.Tenants(ctx, f)
		if err == nil {
			err = s.noteSet(ctx, page)
		}
		if err != nil || len(page) < f.Limit {
			return err
		}
		f.After = page[len(page)-1].Name
	}
}

// MeetTenants implements [store.Tenants].
func (s *Store) MeetTenants(ctx context.Context, tenants []job.Tenant) (inserted int, err error) {
	var calls []call
	for part := range slices.Chunk(tenants, chunk) {
		if err := s.noteSet(ctx, part); err != nil {
			return inserted, err
		}
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
	if err := s.noteSet(ctx, []job.Tenant{t}); err != nil {
		return err
	}
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
	switch {
	case len(f.Names) > 0:
		names := slices.DeleteFunc(slices.Sorted(slices.Values(f.Names)), func(name string) bool { return name <= f.After })
		found, err := s.tenantsNamed(ctx, names, f.Set)
		return found[:min(f.Limit, len(found))], err
	case f.Set:
		return s.tenantsSet(ctx, f)
	}
	return s.tenantEntries(ctx, "("+f.After+"\x01", "+", f.Limit) // no name has a control character in it, see separator
}

// tenantsSet reads a page of those that have settings of their own.
func (s *Store) tenantsSet(ctx context.Context, f store.TenantFilter) (page []job.Tenant, err error) {
	for after, more := f.After, true; more && len(page) < f.Limit; {
		names, err := s.client.ZRangeArgs(ctx, redis.ZRangeArgs{
			Key: s.setTenantsKey(), ByLex: true, Start: "(" + after, Stop: "+", Count: int64(min(f.Limit, chunk)),
		}).Result()
		if err != nil {
			return nil, mapError(err)
		}
		found, err := s.tenantsNamed(ctx, names, true)
		if err != nil {
			return nil, err
		}
		page = append(page, found...)
		if more = len(names) == min(f.Limit, chunk); more {
			after = names[len(names)-1]
		}
	}
	return page[:min(f.Limit, len(page))], nil
}

// tenantsNamed reads those of these names that there are, in order; if set is true only those that have settings of
// their own.
func (s *Store) tenantsNamed(ctx context.Context, names []string, set bool) (found []job.Tenant, err error) {
	for part := range slices.Chunk(names, chunk) {
		pipe := s.client.Pipeline()
		entries := make([]*redis.StringSliceCmd, len(part))
		for i, name := range part {
			entries[i] = pipe.ZRangeArgs(ctx, redis.ZRangeArgs{
				Key: s.tenantsKey(), ByLex: true, Start: "[" + name + separator, Stop: "(" + name + "\x01", Count: 1,
			})
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return nil, mapError(err)
		}
		for _, of := range entries {
			for _, entry := range of.Val() { // at most one
				t, err := decodeTenant(entry)
				if err != nil {
					return nil, err
				}
				if !set || len(t.Settings.Encode()) > 0 {
					found = append(found, t)
				}
			}
		}
	}
	return found, nil
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
