package memory

import (
	"context"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

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
