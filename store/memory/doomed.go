package memory

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Strays implements [store.Jobs].
func (s *Store) Strays(ctx context.Context, f store.JobFilter) (all []job.Name, err error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	defer s.mutex.Unlock()
	for n, pending := range s.pending {
		own := func(o *job.Occurrence) bool { return o.Revision == "" }
		if n.Tenant == f.Tenant && n.Key > f.After && strings.HasPrefix(n.Key, f.Prefix) && slices.ContainsFunc(byID(pending), own) {
			all = append(all, n)
		}
	}
	slices.SortFunc(all, func(a, b job.Name) int { return cmp.Compare(a.Key, b.Key) })
	return page(all, f.Limit), nil
}

// Lanes implements [store.Inspector].
func (s *Store) Lanes(ctx context.Context, after store.LaneDue, limit int) ([]store.LaneDue, error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	defer s.mutex.Unlock()
	var due []store.LaneDue
	for _, pending := range s.pending {
		for _, o := range pending {
			if job.CompareLanes(o.Lane(), after.Lane) > 0 {
				due = append(due, store.LaneDue{Lane: o.Lane(), DueAt: o.DueAt})
			}
		}
	}
	slices.SortFunc(due, store.LaneDue.Compare)
	due = store.FirstOfEach(due)
	slices.SortFunc(due, func(a, b store.LaneDue) int { return job.CompareLanes(a.Lane, b.Lane) })
	return page(due, limit), nil
}

// Sample implements [store.Inspector].
func (s *Store) Sample(ctx context.Context, lane job.Lane, from time.Time, limit int) (all []store.Sampled, err error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	defer s.mutex.Unlock()
	for _, o := range s.inLane(lane) {
		if o.DueAt.Before(from) {
			continue
		}
		callback := store.Sampled{DueAt: o.DueAt}
		if o.Own != nil {
			callback.Callback = o.Own.Callback
		} else {
			callback.Callback = s.jobs[o.Name].Callback
		}
		all = append(all, callback)
	}
	return page(all, limit), nil
}
