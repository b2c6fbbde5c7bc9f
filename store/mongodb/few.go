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
	// few is the largest number of occurrences that a claim takes one by one. Each command must find a different first
	// due occurrence, so more of them would mostly conflict with each other. If the server's work takes longer than the
	// round trip, a batch is cheaper from three on.
	few = 4

	// mostLanes bounds the number of lanes with a remembered expectation.
	mostLanes = 10_000
)

// expected estimates how many occurrences the next claim of a lane will find: as many as the last claim by this handle
// found, but at least half of the last estimate, since a busy server's due occurrences come in bursts. The estimate
// only selects the method of claiming, and so two round trips or three.
type expected struct {
	mu    sync.Mutex
	lanes map[job.Lane]int // an absent lane counts as one
}

// tries returns how many occurrences of each quota are to be claimed one by one: none of any quota, unless few are
// expected in all.
//
// On a sharded cluster none are, because the router would have to know which shard has the first due occurrence.
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

// note records the numbers that a claim has found.
func (e *expected) note(a *attempt) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, q := range a.Quotas {
		found, least := len(a.finds[i].due), e.lanes[q.Lane]
		if found < q.Limit { // at the limit there may be more
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

// takeFirst claims the given number of first due occurrences of each quota, and returns them as they were before.
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

// takeOne claims the first due occurrence of a quota, and returns it as it was before the claim, which shows a reclaim.
// It returns nil if there is none or another claim was faster. The filter is the guard: an occurrence that no longer
// matches it is not claimed.
func (s *Store) takeOne(ctx context.Context, a *attempt, q store.Quota) (*occurrenceDocument, error) {
	var d occurrenceDocument
	err := s.occurrences.FindOneAndUpdate(ctx, dueOf(a.ClaimParams, q), a.stampOf(),
		options.FindOneAndUpdate().SetSort(keys("dueAt", "_id")).SetReturnDocument(options.Before)).Decode(&d)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return nil, nil
	}
	return &d, mapError(err)
}

// routed reports whether the server is the router of a sharded cluster.
func (s *Store) routed() bool {
	topology := s.topology.Load()
	if topology == nil {
		return false
	}
	return topology.Kind == "LoadBalanced" || len(topology.Servers) > 0 && topology.Servers[0].Kind == "Mongos"
}
