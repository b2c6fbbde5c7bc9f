package access

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon/store"
)

// Authenticator returns the principals of tokens. It is safe for concurrent use.
type Authenticator interface {
	// Authenticate returns the principal of a token. The error is [ErrUnauthenticated], or wraps [store.ErrUnavailable] if
	// the token can't be checked now. now is the wall clock's time, for expiry. The principal is shared: it must not be
	// changed.
	Authenticate(ctx context.Context, token string, now time.Time) (Principal, error)
	// Knows reports, without a look-up, whether to look up a token from an address that has sent too many wrong ones. True
	// does not mean that the token is valid.
	Knows(token string, now time.Time) bool
}

// ErrUnauthenticated is the error for every invalid token: unknown, malformed, revoked or expired. It is the same for
// all, so that a caller learns nothing from it.
var ErrUnauthenticated = errors.New("the token is not valid")

// The times within which a revocation takes effect, and for which a key stays valid while the store is away.
const (
	// RevokedWithin is the maximum time for which a replica that reaches the store accepts a revoked key.
	RevokedWithin = 5 * time.Second
	// OutageUpTo is the time for which a key stays valid at a replica that does not reach the store, since the replica
	// last read it there. It is also the maximum for a key that is revoked meanwhile.
	OutageUpTo = 5 * time.Minute

	// refreshAfter is the age from which a cached key, when it is used, is read again in the background.
	refreshAfter = 2 * time.Second
	// patience is the time to wait for the look-up of a cached key. A store that takes longer counts as away.
	patience = time.Second
	// lookUpTime bounds a look-up. While the store is away, the next look-up has failed before the last one is
	// [RevokedWithin] ago, so no request waits for it.
	lookUpTime = 3 * time.Second
	// retryAfter is the pause between look-ups of a key while the store is away.
	retryAfter = time.Second

	// mostCached and mostDenied bound the remembered keys and invalid tokens. At least half as many are kept while they
	// are used.
	mostCached = 200_000
	mostDenied = 20_000
)

// Keys has the API keys of a store. Its methods are safe for concurrent use, by any number of processes. Errors wrap
// [store.ErrUnavailable] if the store can't be reached.
//
// A used key is cached. All ages are measured by the monotonic clock, so that no change of a clock revives a key. Keys
// and old tokens expire by the wall clock.
type Keys struct {
	records store.Records
	running sync.WaitGroup
	ctx     context.Context // of the work in the background
	cancel  context.CancelFunc

	mutex   sync.Mutex
	cache   recent[string, *cached]      // by id
	denied  recent[tokenHash, time.Time] // invalid tokens, with the times of their look-ups
	flights map[string]*flight           // look-ups under way, by id
	uses    map[string]use               // to be written, by id
	writing bool                         // a goroutine is writing them
}

// cached is a key as last read. It is immutable, except for failed and noted, which the mutex guards.
type cached struct {
	stored
	// read is the start of the read, which includes all changes before it.
	read time.Time
	// failed is the start of the last look-up without an answer; zero if none has failed since the read.
	failed time.Time
	// noted is the time at which a use was last queued to be written.
	noted time.Time
}

// flight is a look-up under way. The result may be read when done is closed.
type flight struct {
	began time.Time
	done  chan struct{}
	found *cached // nil if there is no such key
	err   error
}

// NewKeys returns the keys in a store's records. Close it before the store.
func NewKeys(records store.Records) *Keys {
	ctx, cancel := context.WithCancel(context.Background())
	return &Keys{
		records: records, ctx: ctx, cancel: cancel,
		cache:   recent[string, *cached]{most: mostCached / 2, keep: OutageUpTo},
		denied:  recent[tokenHash, time.Time]{most: mostDenied / 2, keep: RevokedWithin},
		flights: make(map[string]*flight),
		uses:    make(map[string]use),
	}
}

// Close ends the work in the background.
func (k *Keys) Close() error {
	k.cancel()
	k.running.Wait()
	return nil
}

// Authenticate implements [Authenticator]. A malformed token costs no call to the store.
func (k *Keys) Authenticate(ctx context.Context, token string, now time.Time) (Principal, error) {
	id, ok := ParseToken(token)
	if !ok {
		return Principal{}, ErrUnauthenticated
	}
	asked, hash := time.Now(), hashToken(token)
	if k.isDenied(hash, asked) {
		return Principal{}, ErrUnauthenticated
	}
	known, err := k.known(ctx, id, asked)
	if err == nil && known != nil && !known.body.has(hash, now) && known.read.Before(asked) {
		known, err = k.lookUp(ctx, id, asked, lookUpTime) // it may have been rotated since the read
	}
	switch {
	case err != nil:
		return Principal{}, fmt.Errorf("look up a key: %w", err)
	case known == nil || !known.body.has(hash, now):
		k.deny(hash, asked)
		return Principal{}, ErrUnauthenticated
	case known.key.Expired(now):
		return Principal{}, ErrUnauthenticated
	}
	k.noteUse(known, asked, now)
	return known.key.principal(), nil
}

// known returns the key with this id, from the cache if it is fresh enough, else by a look-up; nil if there is none.
func (k *Keys) known(ctx context.Context, id string, asked time.Time) (*cached, error) {
	k.mutex.Lock()
	c, ok := k.cache.get(id, asked)
	if !ok {
		k.mutex.Unlock()
		return k.lookUp(ctx, id, asked, lookUpTime)
	}
	age, sinceFailure := asked.Sub(c.read), asked.Sub(c.failed)
	away := sinceFailure < RevokedWithin && age < OutageUpTo // the store was away a moment ago: do not wait for it again
	if age >= refreshAfter && sinceFailure >= retryAfter {
		k.fly(id)
	}
	k.mutex.Unlock()
	if age < RevokedWithin || away {
		return c, nil
	}
	found, err := k.lookUp(ctx, id, asked.Add(-RevokedWithin), patience)
	if err != nil && ctx.Err() == nil && time.Since(c.read) < OutageUpTo {
		return c, nil
	}
	return found, err
}

// lookUp reads a key by a look-up that began at a given time or later; it returns nil if there is no such key. It fails
// if the look-up takes longer than the patience.
func (k *Keys) lookUp(ctx context.Context, id string, since time.Time, patience time.Duration) (*cached, error) {
	for {
		k.mutex.Lock()
		f := k.fly(id)
		k.mutex.Unlock()
		tooLong := time.NewTimer(time.Until(f.began.Add(patience)))
		select {
		case <-f.done:
			tooLong.Stop()
		case <-ctx.Done(): // the request ended, so this is no sign of an outage
			tooLong.Stop()
			return nil, fmt.Errorf("%w: %w", store.ErrUnavailable, ctx.Err())
		case <-tooLong.C:
			k.failed(id, f.began)
			return nil, fmt.Errorf("%w: it has not answered for %s", store.ErrUnavailable, patience)
		}
		if f.err != nil || !f.began.Before(since) {
			return f.found, f.err
		}
	}
}

// fly starts a look-up of a key in the background, unless one is under way. The caller holds the mutex.
func (k *Keys) fly(id string) *flight {
	if f := k.flights[id]; f != nil {
		return f
	}
	f := &flight{began: time.Now(), done: make(chan struct{})}
	if k.ctx.Err() != nil { // it is closed
		f.err = fmt.Errorf("%w: %w", store.ErrUnavailable, k.ctx.Err())
		close(f.done)
		return f
	}
	k.flights[id] = f
	k.running.Go(func() {
		ctx, cancel := context.WithTimeout(k.ctx, lookUpTime)
		defer cancel()
		s, err := k.read(ctx, id)
		k.land(id, f, s, err)
	})
	return f
}

// land ends a look-up. It caches the result, unless this process changed the key meanwhile.
func (k *Keys) land(id string, f *flight, s *stored, err error) {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	defer close(f.done)
	if err == nil {
		f.found = &cached{stored: *s, read: f.began}
	} else if !errors.Is(err, store.ErrNotFound) {
		f.err = err
	}
	if k.flights[id] != f {
		return
	}
	delete(k.flights, id)
	before, known := k.cache.get(id, f.began)
	switch {
	case f.found != nil:
		if known {
			f.found.noted = before.noted
		}
		k.cache.put(id, f.found, f.began)
	case f.err == nil:
		k.cache.remove(id)
	case known:
		before.failed = f.began
	}
}

// failed records the start of a look-up that got no answer.
func (k *Keys) failed(id string, began time.Time) {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	if c, ok := k.cache.get(id, began); ok && c.failed.Before(began) {
		c.failed = began
	}
}

// forget drops a key from the cache, so that its next use starts a new look-up.
func (k *Keys) forget(id string) {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	k.cache.remove(id)
	delete(k.flights, id)
}

// isDenied reports whether a recent look-up found a token invalid.
func (k *Keys) isDenied(hash tokenHash, asked time.Time) bool {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	at, ok := k.denied.get(hash, asked)
	return ok && asked.Sub(at) < RevokedWithin
}

// deny remembers an invalid token. It stays invalid, since new tokens are random.
func (k *Keys) deny(hash tokenHash, asked time.Time) {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	k.denied.put(hash, asked, asked)
}
