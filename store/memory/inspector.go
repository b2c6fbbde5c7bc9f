package memory

import (
	"context"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// DueLanes implements [store.Inspector].
func (s *Store) DueLanes(ctx context.Context, p store.DueParams) (store.DuePage, error) {
	if err := s.begin(ctx); err != nil {
		return store.DuePage{}, err
	}
	defer s.mutex.Unlock()
	var due []store.LaneDue
	for _, pending := range s.pending {
		for _, o := range pending {
			if l := (store.LaneDue{Lane: o.Lane(), DueAt: o.DueAt}); l.Compare(p.After) > 0 && !l.DueAt.After(p.Until) {
				due = append(due, l)
			}
		}
	}
	slices.SortFunc(due, store.LaneDue.Compare)
	var read []store.DueEntries
	for _, l := range page(due, p.Limit) {
		read = append(read, store.DueEntries{Lane: l.Lane, First: l.DueAt, Last: l.DueAt, N: 1})
	}
	return store.DuePageOf(read, p.Limit), nil
}

// Count implements [store.Inspector].
func (s *Store) Count(ctx context.Context, now time.Time, lanes []job.Lane, limit int) ([]store.Count, error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	defer s.mutex.Unlock()
	if len(lanes) == 0 {
		return []store.Count{s.countAll(now)}, nil
	}
	counts := make([]store.Count, len(lanes))
	for i, l := range lanes {
		for _, o := range page(s.inLane(l), limit) {
			counts[i].Pending++
			if !o.DueAt.After(now) {
				counts[i].Due++
			}
		}
	}
	return counts, nil
}

// countAll counts what the whole store has.
func (s *Store) countAll(now time.Time) store.Count {
	c := store.Count{DeadLetters: len(s.dead)}
	for _, pending := range s.pending {
		c.Pending += len(pending)
		for _, o := range pending {
			if !o.DueAt.After(now) {
				c.Due++
			}
		}
	}
	return c
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
