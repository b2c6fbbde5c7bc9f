package mongodb

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

const (
	// few is up to how many occurrences a claim takes one by one. All of them are under way together, and each has to find another
	// one first due, so that more of them would mostly be in each other's way.
	few = 4

	// many is what a claim expects that has just found more than it had expected.
	many = 8 * few

	// mostLanes bounds of how many lanes is known what is expected.
	mostLanes = 10_000
)

// expected is how many occurrences the next claim of a lane is likely to find, by what the last ones of this handle did. It decides
// only how they are claimed, and so how many round trips that takes.
type expected struct {
	mu    sync.Mutex
	lanes map[job.Lane]int // one, of those that are not there
}

// tries is how many occurrences of each quota are to be claimed one by one; nil if not few are expected of all quotas together.
//
// A router is not asked to: it would have to know on which shard the first that is due lies.
func (s *Store) tries(p store.ClaimParams) []int {
	if len(p.Quotas) > few || s.routed() {
		return nil
	}
	s.expected.mu.Lock()
	defer s.expected.mu.Unlock()
	tries, sum := make([]int, len(p.Quotas)), 0
	for i, q := range p.Quotas {
		tries[i] = min(q.Limit, max(1, s.expected.lanes[q.Lane]))
		if sum += tries[i]; sum > few {
			return nil
		}
	}
	return tries
}

// note takes what a claim has found, by tries and after them. If there was more than it tried, that cost it two round trips more
// than it would have taken without, so the next few do not try.
func (e *expected) note(a *attempt, tries []int, more []finding) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, q := range a.Quotas {
		found, last := len(a.finds[i].due), max(1, e.lanes[q.Lane])
		if tries != nil && len(more[i].due) > 0 {
			found = many
		}
		if found < q.Limit { // else there is no telling
			last /= 2
		}
		switch now := min(max(found, last), many); {
		case now <= 1:
			delete(e.lanes, q.Lane)
		case e.lanes == nil || len(e.lanes) >= mostLanes:
			e.lanes = map[job.Lane]int{q.Lane: now}
		default:
			e.lanes[q.Lane] = now
		}
	}
}

// takeFirst claims up to so many of each quota that are first due.
func (s *Store) takeFirst(ctx context.Context, a *attempt, tries []int) error {
	var group errgroup.Group
	var mu sync.Mutex
	for i, n := range tries {
		for range n {
			group.Go(func() error {
				d, err := s.takeOne(ctx, a, a.Quotas[i])
				if d == nil || err != nil {
					return err
				}
				mu.Lock()
				defer mu.Unlock()
				a.finds[i].due = append(a.finds[i].due, *d)
				return nil
			})
		}
	}
	a.stamped = len(tries) > 0
	if err := group.Wait(); err != nil {
		return err
	}
	for _, f := range a.finds {
		slices.SortFunc(f.due, func(x, y occurrenceDocument) int {
			return cmp.Or(x.DueAt.Compare(y.DueAt), strings.Compare(x.ID, y.ID))
		})
		for _, d := range f.due {
			d.Token, d.ScheduledAt, d.DueAt = a.token, a.Now.UTC(), a.Now.Add(a.Lease).UTC()
			d.Attempt++
			a.won = append(a.won, d)
		}
	}
	return nil
}

// takeOne claims the first that is due by a quota, and answers it as it was before, which tells a reclaim; nil if there is none, or
// another claim was faster. The filter is the guard: nobody else gets what does no longer match it.
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
	return topology != nil && (topology.Kind == "LoadBalanced" || len(topology.Servers) > 0 && topology.Servers[0].Kind == "Mongos")
}
