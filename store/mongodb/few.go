package mongodb

import (
	"context"
	"errors"
	"sync"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

const (
	// few is up to how many occurrences a claim takes one by one. Each has to find another one first due, so more of
	// them would mostly be in each other's way; and where the server, not the way to it, is what takes time, a batch
	// costs less from three on.
	few = 4

	// mostLanes bounds of how many lanes is known what is expected.
	mostLanes = 10_000
)

// expected is how many occurrences the next claim of a lane is likely to find: as many as this handle's last one did,
// but no less than half of what that had expected, since what is due at a server that is busy comes in fits. It decides
// only how they are claimed, and so whether that takes two round trips or three.
type expected struct {
	mu    sync.Mutex
	lanes map[job.Lane]int // one, of those that are not there
}

// tries is how many occurrences of each quota are to be claimed one by one: none of any, if not few are expected of all
// together.
//
// A router is not asked to: it would have to know on which shard the first that is due lies.
func (e *expected) tries(p store.ClaimParams, routed bool) []int {
	tries := make([]int, len(p.Quotas))
	if len(p.Quotas) > few || routed {
		return tries[:0]
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	sum := 0
	for i, q := range p.Quotas {
		tries[i] = min(q.Limit, max(1, e.lanes[q.Lane]))
		if sum += tries[i]; sum > few {
			return tries[:0]
		}
	}
	return tries
}

// note takes what a claim has found.
func (e *expected) note(a *attempt) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, q := range a.Quotas {
		found, least := len(a.finds[i].due), e.lanes[q.Lane]
		if found < q.Limit { // else there may be more
			least /= 2
		}
		switch next := max(found, least); {
		case next <= 1:
			delete(e.lanes, q.Lane)
		case e.lanes == nil || len(e.lanes) >= mostLanes:
			e.lanes = map[job.Lane]int{q.Lane: next}
		default:
			e.lanes[q.Lane] = next
		}
	}
}

// takeFirst claims up to so many of each quota that are first due, and answers them as they were before.
func (s *Store) takeFirst(ctx context.Context, a *attempt, tries []int) ([][]occurrenceDocument, error) {
	taken := make([][]occurrenceDocument, len(a.Quotas))
	var group errgroup.Group
	var mu sync.Mutex
	for i, n := range tries {
		for range n {
			group.Go(func() error {
				d, err := s.takeOne(ctx, a, a.Quotas[i])
				if err == nil && d != nil {
					mu.Lock()
					defer mu.Unlock()
					taken[i] = append(taken[i], *d)
				}
				return err
			})
		}
	}
	return taken, group.Wait()
}

// takeOne claims the first that is due by a quota, and answers it as it was before, which tells a reclaim; nil if there
// is none, or another claim was faster. The filter is the guard: nobody else gets what does no longer match it.
func (s *Store) takeOne(ctx context.Context, a *attempt, q store.Quota) (*occurrenceDocument, error) {
	var d occurrenceDocument
	err := s.occurrences.FindOneAndUpdate(ctx, dueOf(a.ClaimParams, q), a.stampOf(),
		options.FindOneAndUpdate().SetSort(keys("dueAt", "_id")).SetReturnDocument(options.Before)).Decode(&d)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return nil, nil
	}
	return &d, mapError(err)
}

// routed tells whether it is a sharded cluster.
func (s *Store) routed() bool {
	topology := s.topology.Load()
	if topology == nil {
		return false
	}
	return topology.Kind == "LoadBalanced" || len(topology.Servers) > 0 && topology.Servers[0].Kind == "Mongos"
}
