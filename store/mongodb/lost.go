package mongodb

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/carillon-scheduler/carillon/store"
)

// lost are claims whose answers were lost and which are being given back, as from a failover until there is a primary
// again. Nobody holds what they have claimed, if they have claimed anything.
type lost struct {
	ctx      context.Context // ends when the store is closed
	cancel   context.CancelFunc
	mu       sync.Mutex
	underWay map[chan struct{}]struct{} // each is closed when its claim has been given back, or its lease is over
}

func newLost() lost {
	ctx, cancel := context.WithCancel(context.Background())
	return lost{ctx: ctx, cancel: cancel, underWay: make(map[chan struct{}]struct{})}
}

// How long to wait before the first other try to give a claim back, and at most before any.
const (
	firstPause   = 50 * time.Millisecond
	longestPause = time.Second
)

// giveBack has a write undo a claim in the background, again and again until the server answers it, for no longer than
// the lease. It waits for that itself for a moment, so that in most cases the claim is undone when its caller learns
// that it has failed.
func (l *lost) giveBack(lease time.Duration, write func(context.Context) error) {
	done := make(chan struct{})
	l.mu.Lock()
	if l.ctx.Err() != nil {
		l.mu.Unlock()
		return
	}
	l.underWay[done] = struct{}{}
	l.mu.Unlock()
	go func() {
		defer func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			delete(l.underWay, done)
			close(done)
		}()
		ctx, cancel := context.WithTimeout(l.ctx, lease)
		defer cancel()
		for pause := firstPause; ; pause = min(2*pause, longestPause) {
			try, cancel := context.WithTimeout(ctx, tidyWithin)
			err := mapError(write(try))
			cancel()
			if !errors.Is(err, store.ErrUnavailable) {
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
			}
		}
	}()
	select {
	case <-done:
	case <-time.After(tidyWithin):
	}
}

// wait waits until nothing is being given back any more: until then a claim would not see that it is due.
func (l *lost) wait(ctx context.Context) error {
	for _, done := range l.all() {
		select {
		case <-done:
		case <-ctx.Done():
			return fmt.Errorf("%w: an earlier claim is still to be given back: %w", store.ErrUnavailable, ctx.Err())
		}
	}
	return nil
}

// close stops giving back. Nothing is under way any more when it returns.
func (l *lost) close() {
	l.cancel()
	for _, done := range l.all() {
		<-done
	}
}

func (l *lost) all() []chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]chan struct{}, 0, len(l.underWay))
	for done := range l.underWay {
		all = append(all, done)
	}
	return all
}

// giveBack undoes a claim of which some answer was lost. What it has claimed is found by the time to which it has
// pushed it and by its token, since the ids may not be known, nor are the earlier due times: it is due at the latest
// that any of it was.
//
// A command of the claim that arrives only later is not undone. What that claims waits for the lease's end.
func (s *Store) giveBack(p store.ClaimParams, token string) {
	lanes := make([]string, len(p.Quotas))
	for i, q := range p.Quotas {
		lanes[i] = q.Lane.String()
	}
	s.lost.giveBack(p.Lease, func(ctx context.Context) error {
		_, err := s.occurrences.UpdateMany(ctx,
			bson.M{"lane": in(lanes), "dueAt": p.Now.Add(p.Lease), "token": token}, unclaim(p.Due()))
		return err
	})
}
