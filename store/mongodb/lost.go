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

// lost has the claims whose answers were lost and which are being given back, for example from a failover until there
// is a primary again. The occurrences that they have claimed, if any, have no holder.
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

// The delay before the first repeated try to give a claim back, and the longest delay before any later one.
const (
	firstPause   = 50 * time.Millisecond
	longestPause = time.Second
)

// giveBack runs a write that undoes a claim in the background, again and again until the server answers it, but no
// longer than the lease. It waits a moment for the first try, so that the claim is usually undone when its caller
// learns of the failure.
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

// wait waits until nothing is being given back any more, since a claim would not see those occurrences as due before.
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

// close stops giving back. When it returns, no goroutine is left.
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

// giveBack undoes a claim whose answers were lost in part. The ids and the earlier due times may be unknown, so the
// write finds the claimed occurrences by their new due time and the claim's token. It makes them due at the latest time
// at which any of them was due before.
//
// A command of the claim that arrives later is not undone. The occurrences that it claims wait for the lease's end.
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
