// Package sessions keeps the sign-ins of browsers, over [store.Records]. A session holds the credential that a person
// has signed in with, so that the browser need not: it holds a random secret instead, in a cookie that scripts can't
// read.
//
// The credential is encrypted by a key that follows from the secret, and the record's name is a hash of it. So neither
// the store alone nor the cookie alone has the credential. Each request authenticates by the credential, as if it had
// been sent: a session can do as much as its key, and ends with it.
package sessions

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Lifetime is the maximum time from a sign-in to the end of its session.
const Lifetime = 12 * time.Hour

// collection is the collection of the sessions' records.
const collection = "sessions"

const (
	secretBytes = 32
	// mostCached bounds the remembered sessions.
	mostCached = 10_000
	// retryAfter is the pause between look-ups of a session while the store is away.
	retryAfter = time.Second
	// lookUpTime bounds a look-up.
	lookUpTime = 3 * time.Second
)

// Session is a sign-in.
type Session struct {
	// Credential is the key or token of the sign-in.
	Credential string
	// ExpiresAt is the end of the session, unless it is ended before.
	ExpiresAt time.Time
}

// Sessions has the sessions of a store. Its methods are safe for concurrent use, by any number of processes. Errors
// wrap [store.ErrUnavailable] if the store can't be reached.
//
// A session in use is remembered for the same time as a key. One that was ended at another replica is refused within
// [access.RevokedWithin]. One in use outlives an outage of the store of [access.OutageUpTo].
type Sessions struct {
	records store.Records

	mutex sync.Mutex
	cache map[string]cached // by record
}

// cached is a session as last read. Ages are measured by the monotonic clock.
type cached struct {
	Session
	read, failed time.Time
}

// New returns the sessions in a store's records.
func New(records store.Records) *Sessions {
	return &Sessions{records: records, cache: map[string]cached{}}
}

// body is the plain text of a session's record. The time is in Unix milliseconds.
type body struct {
	Credential string `json:"credential"`
	ExpiresAt  int64  `json:"expiresAt"`
}

// Begin stores a session for a credential, which must be valid, and returns the session's secret. It ends after the
// [Lifetime], or at until if that is earlier and not zero.
func (s *Sessions) Begin(
	ctx context.Context, credential string, until, now time.Time,
) (secret string, _ Session, err error) {
	ends := now.Add(Lifetime)
	if !until.IsZero() && until.Before(ends) {
		ends = until
	}
	session := Session{Credential: credential, ExpiresAt: ends.UTC().Truncate(time.Millisecond)}
	random := make([]byte, secretBytes)
	_, _ = rand.Read(random) // it never fails
	secret = base64.RawURLEncoding.EncodeToString(random)
	name, box, err := open(secret)
	if err != nil {
		return "", Session{}, err
	}
	plain, err := json.Marshal(body{credential, session.ExpiresAt.UnixMilli()})
	if err != nil {
		return "", Session{}, err
	}
	sealed := box.Seal(nil, nil, plain, []byte(name)) //nolint:gosec // the cipher makes its own nonce
	err = s.records.WriteRecords(ctx, []store.RecordChange{{
		Collection: collection, Key: name, Version: job.NewRevision(now), Now: now, ExpiresAt: session.ExpiresAt,
		Body: sealed,
	}})[0]
	if err != nil {
		return "", Session{}, fmt.Errorf("store a session: %w", err)
	}
	s.keep(name, cached{Session: session, read: time.Now()})
	return secret, session, nil
}

// Get returns the session with a secret. The error is [access.ErrUnauthenticated] if there is none.
func (s *Sessions) Get(ctx context.Context, secret string, now time.Time) (Session, error) {
	name, box, err := open(secret)
	if err != nil {
		return Session{}, access.ErrUnauthenticated
	}
	asked := time.Now()
	s.mutex.Lock()
	known, ok := s.cache[name]
	s.mutex.Unlock()
	age := asked.Sub(known.read)
	if !ok || age >= access.RevokedWithin && asked.Sub(known.failed) >= retryAfter {
		read, err := s.read(ctx, name, box, now)
		switch {
		case err == nil:
			known = cached{Session: read, read: asked}
			s.keep(name, known)
		case ok && err != access.ErrUnauthenticated && age < access.OutageUpTo: //nolint:errorlint // it is this very value
			known.failed = asked
			s.keep(name, known)
		default:
			s.forget(name)
			return Session{}, err
		}
	}
	if !now.Before(known.ExpiresAt) || asked.Sub(known.read) >= access.OutageUpTo {
		s.forget(name)
		return Session{}, access.ErrUnauthenticated
	}
	return known.Session, nil
}

// Knows reports, without a look-up, whether the session with a secret was used here lately.
func (s *Sessions) Knows(secret string) bool {
	name, _, err := open(secret)
	s.mutex.Lock()
	defer s.mutex.Unlock()
	_, ok := s.cache[name]
	return err == nil && ok
}

// End ends the session with a secret; one that does not exist has ended already. It takes effect here at once, and on
// all replicas within [access.RevokedWithin].
func (s *Sessions) End(ctx context.Context, secret string, now time.Time) error {
	name, _, err := open(secret)
	if err != nil {
		return nil //nolint:nilerr // there is no such session
	}
	s.forget(name)
	err = s.records.WriteRecords(ctx, []store.RecordChange{{
		Collection: collection, Key: name, Version: job.NewRevision(now), Now: now,
	}})[0]
	s.forget(name) // a request may have read it meanwhile
	if err != nil {
		return fmt.Errorf("end a session: %w", err)
	}
	return nil
}

// read reads a session from the store.
func (s *Sessions) read(ctx context.Context, name string, box cipher.AEAD, now time.Time) (Session, error) {
	ctx, cancel := context.WithTimeout(ctx, lookUpTime)
	defer cancel()
	found, err := s.records.Records(ctx, store.RecordFilter{
		Collection: collection, Keys: []string{name}, Limit: 1, Now: now,
	})
	if err != nil {
		return Session{}, fmt.Errorf("read a session: %w", err)
	}
	if len(found) == 0 {
		return Session{}, access.ErrUnauthenticated
	}
	plain, err := box.Open(nil, nil, found[0].Body, []byte(name))
	if err != nil {
		return Session{}, access.ErrUnauthenticated
	}
	var b body
	if err := json.Unmarshal(plain, &b); err != nil {
		return Session{}, fmt.Errorf("session: %w", err)
	}
	return Session{Credential: b.Credential, ExpiresAt: time.UnixMilli(b.ExpiresAt).UTC()}, nil
}

// keep remembers a session. When there are too many, those that need another look-up are forgotten, or else all.
func (s *Sessions) keep(name string, c cached) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if len(s.cache) >= mostCached {
		for other, c := range s.cache {
			if time.Since(c.read) >= access.RevokedWithin {
				delete(s.cache, other)
			}
		}
	}
	if len(s.cache) >= mostCached {
		clear(s.cache)
	}
	s.cache[name] = c
}

func (s *Sessions) forget(name string) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	delete(s.cache, name)
}

// open returns the name of the record of the session with a secret, and the cipher of its body. Each key encrypts one
// body; the cipher puts a random nonce in front of it.
func open(secret string) (name string, box cipher.AEAD, err error) {
	random, err := base64.RawURLEncoding.Strict().DecodeString(secret)
	if err != nil || len(random) != secretBytes {
		return "", nil, access.ErrUnauthenticated
	}
	derive := func(use string) []byte {
		key, e := hkdf.Key(sha256.New, random, nil, "carillon session "+use, sha256.Size)
		err = e
		return key
	}
	name = hex.EncodeToString(derive("name"))
	if err != nil {
		return "", nil, err
	}
	block, err := aes.NewCipher(derive("key"))
	if err != nil {
		return "", nil, err
	}
	box, err = cipher.NewGCMWithRandomNonce(block)
	return name, box, err
}
