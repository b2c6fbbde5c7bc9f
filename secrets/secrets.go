// Package secrets stores the secrets of deliveries, which can't be read through the API: named secrets, which callback
// data refer to, and signing secrets, with which receivers verify that a delivery is genuine. They are records of a
// store, encrypted with an operator's key; see [Keyring] for the encryption, and docs/secrets.md for the rest.
//
// Each replica holds all of them in memory, so that a firing asks no store. A change shows on other replicas within
// [Staleness].
package secrets

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Staleness is the time after a change for which a replica may still use the old secrets, while the store answers.
const Staleness = 5 * time.Second

// MaxPerTenant bounds the named and signing secrets of one tenant together, since all replicas hold all. Replicas that
// create some at the same time may exceed it a little.
const MaxPerTenant = 1000

const (
	// fullEvery is the interval of full reads without a noted change, in case a writer died before it noted one.
	fullEvery = time.Minute
	// missEvery is the minimum time between reads of the store for a missing secret.
	missEvery = time.Second
	// pageSize is the number of records that are read at once.
	pageSize = 1000
)

// The collections of records. The keys of the first two are a tenant, a slash and a secret's name.
const (
	namedCollection   = "secrets"
	signingCollection = "signing-secrets"
	// changes has one record, whose version is fresh after each change of the other two: replicas read it often, and
	// everything only when it has changed.
	changes = "secrets-changes"
	change  = "all"
)

// The errors of secrets. Others wrap those of [store.Records].
var (
	// ErrNoKey is the error of encrypting a secret without a key.
	ErrNoKey = errors.New("this server can't store secrets: it has no --encryption-key-file")
	// ErrExists is the error of creating a signing secret that exists already.
	ErrExists = errors.New("there is a signing secret of this name already")
	// ErrTooMany is the error of creating a secret while its tenant has [MaxPerTenant].
	ErrTooMany = fmt.Errorf("this tenant has %d secrets, which is the most there can be; delete some", MaxPerTenant)
	// ErrBusy is the error of a change that others kept overtaking.
	ErrBusy = errors.New("others change this secret at the same time")
	// ErrOverlap is the error of a rotation while the maximum number of secrets is valid.
	ErrOverlap = fmt.Errorf("%d secrets of this name are valid at the moment, which is the most there can be; "+
		"wait until one has ended, or rotate with a shorter overlap, which ends them sooner", maxGenerations)
)

// UnusableError is the error of a secret that is missing, can't be decrypted, or may not be sent to a destination. Its
// text is for people, and contains no secret.
type UnusableError struct{ error }

// Unwrap returns the inner error.
func (e *UnusableError) Unwrap() error { return e.error }

func unusable(format string, args ...any) error { return &UnusableError{fmt.Errorf(format, args...)} }

// Secrets has the secrets of one store. Its methods are safe for concurrent use, by any number of processes.
type Secrets struct {
	records store.Records
	keys    *Keyring
	log     *slog.Logger

	loaded atomic.Pointer[content]

	refreshing sync.Mutex // is held during a read of the store
	looked     time.Time  // time of the last read for a missing secret
}

// content has all secrets at some time. It is immutable.
type content struct {
	change  job.Revision // the record of changes before the full read
	full    time.Time    // time of the full read
	checked time.Time    // time of the last read of the record of changes

	named   map[id]*namedSecret
	signing map[id]*signingSecret
	// counts has the number of secrets of each tenant, of both kinds.
	counts map[string]int
	// missing has the ids of the encryption keys that secrets need and this process lacks, sorted.
	missing []string
	// unreadable counts secrets that can't be decrypted.
	unreadable int
}

// id names a secret.
type id struct{ tenant, name string }

func (i id) key() string { return i.tenant + "/" + i.name }

func idOf(key string) id {
	tenant, name, _ := strings.Cut(key, "/") // a tenant's name has no slash
	return id{tenant, name}
}

// New returns the secrets in a store's records, encrypted with a keyring, which may be empty. It reads nothing yet.
func New(records store.Records, keys *Keyring, log *slog.Logger) *Secrets {
	s := &Secrets{records: records, keys: keys, log: log}
	s.loaded.Store(&content{})
	return s
}

// Load reads all secrets. It returns a [*MissingKeyError] if one needs a key that the keyring does not have.
func (s *Secrets) Load(ctx context.Context) error {
	if err := s.Refresh(ctx); err != nil {
		return err
	}
	if missing := s.loaded.Load().missing; len(missing) > 0 {
		return &MissingKeyError{missing}
	}
	return nil
}

// Run refreshes the secrets within [Staleness], until ctx ends. While the store does not answer, they stay unchanged.
// Without a key, no secret can be used, and they are only counted now and then.
func (s *Secrets) Run(ctx context.Context) {
	every := Staleness * 3 / 5 // the rest is for the store's answer
	if len(s.keys.keys) == 0 {
		every = fullEvery / 2
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		limited, cancel := context.WithTimeout(ctx, Staleness*3/5)
		err := s.Refresh(limited)
		cancel()
		if err != nil && ctx.Err() == nil && !failing {
			s.log.Warn("secrets can't be read; the last ones stay in use", "error", err)
		}
		failing = err != nil
	}
}

// Refresh reads the secrets if they have changed. It sees all changes from before its start.
func (s *Secrets) Refresh(ctx context.Context) error {
	s.refreshing.Lock()
	defer s.refreshing.Unlock()
	return s.refresh(ctx)
}

// refresh is Refresh with the lock held.
func (s *Secrets) refresh(ctx context.Context) error {
	now := time.Now()
	marks, err := s.records.Records(ctx, store.RecordFilter{
		Collection: changes, Keys: []string{change}, Limit: 1, Now: now,
	})
	if err != nil {
		return err
	}
	var mark job.Revision
	if len(marks) > 0 {
		mark = marks[0].Version
	}
	loaded := s.loaded.Load()
	if !loaded.full.IsZero() && loaded.change == mark && now.Sub(loaded.full) < fullEvery {
		same := *loaded
		same.checked = now
		s.loaded.Store(&same)
		return nil
	}
	next, err := s.read(ctx, loaded, now)
	if err != nil {
		return err
	}
	next.change, next.full, next.checked = mark, now, now
	s.loaded.Store(next)
	for _, key := range next.missing {
		if !slices.Contains(loaded.missing, key) {
			s.log.Error("secrets can't be decrypted: they need an encryption key that this replica does not have",
				"encryptionKey", key)
		}
	}
	return nil
}

// read reads all secrets. Secrets with unchanged records are not decrypted again.
func (s *Secrets) read(ctx context.Context, loaded *content, now time.Time) (*content, error) {
	next := &content{
		named: make(map[id]*namedSecret), signing: make(map[id]*signingSecret), counts: make(map[string]int),
	}
	missing := make(map[string]bool)
	note := func(err error) {
		if err == nil {
			return
		}
		next.unreadable++
		if needed, ok := errors.AsType[*MissingKeyError](err); ok {
			missing[needed.IDs[0]] = true
		}
	}
	err := s.each(ctx, namedCollection, now, func(at id, r store.Record) {
		known := loaded.named[at]
		if known == nil || known.version != r.Version {
			known = s.openNamed(at, r)
			s.logTampered(namedCollection, at, known.err)
		}
		next.named[at] = known
		next.counts[at.tenant]++
		note(known.err)
	})
	if err != nil {
		return nil, err
	}
	err = s.each(ctx, signingCollection, now, func(at id, r store.Record) {
		known := loaded.signing[at]
		if known == nil || known.version != r.Version {
			known = s.openSigning(at, r)
			s.logTampered(signingCollection, at, known.err)
		}
		next.signing[at] = known
		next.counts[at.tenant]++
		note(known.err)
	})
	next.missing = slices.Sorted(maps.Keys(missing))
	return next, err
}

// logTampered logs the reason that a secret can't be decrypted, unless its key is missing.
func (s *Secrets) logTampered(collection string, at id, err error) {
	if _, missing := errors.AsType[*MissingKeyError](err); err != nil && !missing {
		s.log.Error("a secret can't be decrypted", "kind", collection, "tenant", at.tenant, "name", at.name, "error", err)
	}
}

// each reads a collection.
func (s *Secrets) each(ctx context.Context, collection string, now time.Time, do func(id, store.Record)) error {
	filter := store.RecordFilter{Collection: collection, Limit: pageSize, Now: now}
	for {
		page, err := s.records.Records(ctx, filter)
		if err != nil {
			return err
		}
		for _, r := range page {
			do(idOf(r.Key), r)
		}
		if len(page) < filter.Limit {
			return nil
		}
		filter.After = page[len(page)-1].Key
	}
}

// lookAgain refreshes for a missing secret, unless that was done a moment ago.
func (s *Secrets) lookAgain(ctx context.Context) {
	s.refreshing.Lock()
	defer s.refreshing.Unlock()
	if now := time.Now(); now.Sub(s.looked) >= missEvery {
		s.looked = now
		ctx, cancel := context.WithTimeout(ctx, missEvery)
		defer cancel()
		_ = s.refresh(ctx) // a secret that is still unknown then counts as missing
	}
}

// Status describes the secrets that this process holds.
type Status struct {
	// Named and Signing are the numbers of secrets.
	Named, Signing int
	// Unreadable is the number of secrets that can't be decrypted.
	Unreadable int
	// Checked is the last time at which they were found to be those in the store.
	Checked time.Time
}

// Status returns the present status, without a call to the store.
func (s *Secrets) Status() Status {
	loaded := s.loaded.Load()
	return Status{len(loaded.named), len(loaded.signing), loaded.unreadable, loaded.checked}
}

// one reads one record; ok is false if there is none.
func (s *Secrets) one(ctx context.Context, collection string, at id) (r store.Record, ok bool, err error) {
	found, err := s.records.Records(ctx, store.RecordFilter{
		Collection: collection, Keys: []string{at.key()}, Limit: 1, Now: time.Now(),
	})
	if err != nil || len(found) == 0 {
		return store.Record{}, false, err
	}
	return found[0], true, nil
}

// list reads up to limit of a tenant's records whose names sort after a name.
func (s *Secrets) list(ctx context.Context, collection, tenant, after string, limit int) ([]store.Record, error) {
	filter := store.RecordFilter{Collection: collection, Prefix: id{tenant, ""}.key(), Limit: limit, Now: time.Now()}
	if after != "" {
		filter.After = id{tenant, after}.key()
	}
	return s.records.Records(ctx, filter)
}

// write makes a change, and notifies other replicas. A nil body deletes the record. The error is
// [store.ErrPrecondition] if the condition is not met.
func (s *Secrets) write(
	ctx context.Context, collection string, at id, body []byte, condition store.RecordCondition,
) error {
	now := time.Now()
	answers := s.records.WriteRecords(ctx, []store.RecordChange{
		{Collection: collection, Key: at.key(), Version: job.NewRevision(now), Body: body, If: condition, Now: now},
		{Collection: changes, Key: change, Version: job.NewRevision(now), Body: []byte{}, Now: now},
	})
	return errors.Join(answers...)
}

// notice applies a change of this replica to its own secrets.
func (s *Secrets) notice(ctx context.Context) {
	if err := s.Refresh(ctx); err != nil { // the change is made anyway, and will be read later
		s.log.Warn("a secret was changed, but this replica can't read it yet", "error", err)
	}
}

// maxRounds is the maximum number of tries of a change that others overtake.
const maxRounds = 10

// edit changes a record by a function, which gets the present record, or none.
func (s *Secrets) edit(
	ctx context.Context, collection string, at id, edit func(r store.Record, exists bool) (body []byte, err error),
) error {
	for range maxRounds {
		present, exists, err := s.one(ctx, collection, at)
		if err != nil {
			return err
		}
		body, err := edit(present, exists)
		if err != nil {
			return err
		}
		err = s.write(ctx, collection, at, body, store.RecordCondition{Absent: !exists, Version: present.Version})
		if !errors.Is(err, store.ErrPrecondition) {
			return err
		}
	}
	return ErrBusy
}

// room returns [ErrTooMany] if a tenant can't have another secret.
func (s *Secrets) room(tenant string) error {
	if s.loaded.Load().counts[tenant] >= MaxPerTenant {
		return ErrTooMany
	}
	return nil
}

// remove deletes a record, or returns [store.ErrNotFound].
func (s *Secrets) remove(ctx context.Context, collection string, at id) error {
	_, exists, err := s.one(ctx, collection, at)
	if err != nil {
		return err
	}
	if !exists {
		return store.ErrNotFound
	}
	if err := s.write(ctx, collection, at, nil, store.RecordCondition{}); err != nil {
		return err
	}
	s.notice(ctx)
	return nil
}
