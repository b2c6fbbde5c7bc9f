package access

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon/store"
)

// Authenticator tells who shows a token. It is safe for concurrent use.
type Authenticator interface {
	// Authenticate answers whose token it is. The error is [ErrUnauthenticated], or wraps [store.ErrUnavailable] if that
	// can't be known now. now is the wall clock's, for what expires. The principal is shared: it must not be changed.
	Authenticate(ctx context.Context, token string, now time.Time) (Principal, error)
	// Knows tells, without asking anybody, whether it is worthwhile to look up a token that comes from an address which
	// has shown too many wrong ones. That it is valid is not told.
	Knows(token string, now time.Time) bool
}

// ErrUnauthenticated is answered for every token that is not valid: unknown, malformed, revoked or expired. There is
// one error for all, so that nothing is learnt from it.
var ErrUnauthenticated = errors.New("the token is not valid")

// Within these times a revocation holds, and a key is valid that the store can't be asked about.
const (
	// RevokedWithin is how long a key may be valid at a replica after it was revoked, while the replica reaches the store.
	RevokedWithin = 5 * time.Second
	// OutageUpTo is how long a key stays valid at a replica that does not reach the store, from when the replica last saw
	// it there. A key that is revoked meanwhile is valid for that long at most.
	OutageUpTo = 5 * time.Minute

	// refreshAfter is from what age on a cached key is read again in the background, when it is used.
	refreshAfter = 2 * time.Second
	// patience is how long a look-up of a cached key is awaited. A store that takes longer counts as away.
	patience = time.Second
	// lookUpTime bounds a look-up. While the store is away, the next one can be known to get no answer before the last one
	// is [RevokedWithin] ago: so no request waits for that.
	lookUpTime = 3 * time.Second
	// retryAfter is how long a store that is away is left alone about a key.
	retryAfter = time.Second

	// mostCached keys and mostDenied tokens are remembered; while they are used, at least half as many.
	mostCached = 200_000
	mostDenied = 20_000
)

// Keys are the API keys of a store. Its methods are safe for concurrent use, by any number of processes. Errors wrap
// [store.ErrUnavailable] where the store can't be reached.
//
// A key that was used is cached. All ages are measured by the monotonic clock, so that nobody's clock revives a key; by
// the wall clock, keys expire and old tokens end.
type Keys struct {
	records store.Records
	running sync.WaitGroup
	ctx     context.Context // of what is done in the background
	cancel  context.CancelFunc

	mutex   sync.Mutex
	cache   recent[string, *cached]      // by id
	denied  recent[tokenHash, time.Time] // when tokens were asked for that are none
	flights map[string]*flight           // look-ups under way, by id
	uses    map[string]use               // to be written, by id
	writing bool                         // somebody writes them
}

// cached is a key, as it was read last. But for failed and noted, which the mutex guards, it is not changed.
type cached struct {
	stored
	// read is when the read began: a change from before it is in what was read.
	read time.Time
	// failed is when the last look-up began that got no answer; zero if none has failed since it was read.
	failed time.Time
	// noted is when its last use was last handed to be written.
	noted time.Time
}

// flight is a look-up under way. The fields that it ends with may be read when done is closed.
type flight struct {
	began time.Time
	done  chan struct{}
	found *cached // nil if there is no such key
	err   error
}

// NewKeys are the keys that a store's records hold. Close it before the store.
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

// Close ends what is done in the background.
func (k *Keys) Close() error {
	k.cancel()
	k.running.Wait()
	return nil
}

// Authenticate implements [Authenticator]. A token that does not have the form of one costs no call to the store.
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
		known, err = k.lookUp(ctx, id, asked, lookUpTime) // it may be rotated since it was read
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

// known is the key with this id, as it may be answered from what is cached, or else as it is looked up; nil if there is
// none.
func (k *Keys) known(ctx context.Context, id string, asked time.Time) (*cached, error) {
	k.mutex.Lock()
	c, ok := k.cache.get(id, asked)
	if !ok {
		k.mutex.Unlock()
		return k.lookUp(ctx, id, asked, lookUpTime)
	}
	age, sinceFailure := asked.Sub(c.read), asked.Sub(c.failed)
	away := sinceFailure < RevokedWithin && age < OutageUpTo // the store was away just now: do not wait for it again
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

// lookUp reads a key by a look-up that began at a time or later, or answers nil if there is none. It fails if one takes
// longer than the patience.
func (k *Keys) lookUp(ctx context.Context, id string, since time.Time, patience time.Duration) (*cached, error) {
	for {
		k.mutex.Lock()
		f := k.fly(id)
		k.mutex.Unlock()
		tooLong := time.NewTimer(time.Until(f.began.Add(patience)))
		select {
		case <-f.done:
			tooLong.Stop()
		case <-ctx.Done(): // which tells nothing about the store
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

// fly begins a look-up of a key in the background, unless one is under way. The caller has the mutex.
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

// land ends a look-up. What it found is cached, unless the key was changed here meanwhile.
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

// failed notes that a look-up that began at a time has got no answer.
func (k *Keys) failed(id string, began time.Time) {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	if c, ok := k.cache.get(id, began); ok && c.failed.Before(began) {
		c.failed = began
	}
}

// forget has a key looked up when it is used next, by a look-up that has not begun yet.
func (k *Keys) forget(id string) {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	k.cache.remove(id)
	delete(k.flights, id)
}

// isDenied tells whether a token was lately found to be none.
func (k *Keys) isDenied(hash tokenHash, asked time.Time) bool {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	at, ok := k.denied.get(hash, asked)
	return ok && asked.Sub(at) < RevokedWithin
}

// deny remembers that a token is none. No token becomes one: those that are made are random.
func (k *Keys) deny(hash tokenHash, asked time.Time) {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	k.denied.put(hash, asked, asked)
}
