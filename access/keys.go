package access

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json"

	"github.com/carillon-scheduler/carillon/access/limits"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Key is an API key without its secret, which is shown once, when the key is made.
type Key struct {
	// ID identifies the key in lists and logs. It is not secret.
	ID    string
	Role  Role
	Scope Scope
	Note  string
	// Limits are its own limits; a missing one is that of every key.
	Limits limits.Draft
	// CreatedBy is the [Principal.ID] of its creator.
	CreatedBy string
	CreatedAt time.Time
	// ExpiresAt is the end of its validity; zero if it does not expire.
	ExpiresAt time.Time
	// RotatedAt is the time of its last rotation; zero if it still has its first token.
	RotatedAt time.Time
	// OldValidUntil is the end of validity of the token before the last rotation; zero if there was none.
	OldValidUntil time.Time
	// LastUsed is the hour of its last use, as stored; zero if there was none.
	LastUsed time.Time
}

// Expired reports whether the key has expired.
func (k *Key) Expired(now time.Time) bool { return !k.ExpiresAt.IsZero() && !now.Before(k.ExpiresAt) }

// principal returns the principal of the key.
func (k *Key) principal() Principal {
	return Principal{ID: k.ID, Role: k.Role, Scope: k.Scope, ExpiresAt: k.ExpiresAt, Limits: k.Limits}
}

// KeyParams describe a new key.
type KeyParams struct {
	Role  Role
	Scope Scope
	// ExpiresAt is the end of its validity; zero if it does not expire.
	ExpiresAt time.Time
	// Note is the key's purpose, for people.
	Note string
	// Limits are its own limits; a missing one is that of every key.
	Limits limits.Draft
}

// Bounds of a key.
const (
	MaxKeyTenants = 500
	MaxNoteBytes  = 255
	MaxKeyOverlap = 30 * 24 * time.Hour
)

// keyDraft is a key as a client submits it.
type keyDraft struct {
	Role      Role         `json:"role"`
	Tenants   []string     `json:"tenants"`
	KeyPrefix string       `json:"keyPrefix,omitzero"`
	ExpiresAt *string      `json:"expiresAt,omitzero"`
	Note      string       `json:"note,omitzero"`
	Limits    limits.Draft `json:"limits,omitzero"`
}

// ParseKeyParams reads a submitted key: role, tenants, keyPrefix, expiresAt, note and limits. The error is a
// [*job.Malformed] or a [*job.Invalid].
func ParseKeyParams(body []byte, now time.Time) (KeyParams, error) {
	d, err := job.Parse[keyDraft](body)
	if err != nil {
		return KeyParams{}, err
	}
	p := KeyParams{Role: d.Role, Scope: Scope{Tenants: d.Tenants, KeyPrefix: d.KeyPrefix}, Note: d.Note, Limits: d.Limits}
	invalid := &job.Invalid{}
	if d.ExpiresAt != nil {
		if p.ExpiresAt, err = job.ParseInstant(*d.ExpiresAt); err != nil {
			invalid.Add("/expiresAt", err.Error())
		}
	}
	p.check(now, invalid)
	return p, invalid.Err()
}

// Check returns a [*job.Invalid] that names each invalid field.
func (p *KeyParams) Check(now time.Time) error {
	invalid := &job.Invalid{}
	p.check(now, invalid)
	return invalid.Err()
}

func (p *KeyParams) check(now time.Time, invalid *job.Invalid) {
	if !p.Role.Valid() {
		var roles []string
		for _, r := range Roles() {
			roles = append(roles, string(r))
		}
		invalid.Add("/role", fmt.Sprintf("must be one of %s, not %q", strings.Join(roles, ", "), p.Role))
	}
	checkTenants(p.Scope.Tenants, invalid)
	if prefix := p.Scope.KeyPrefix; prefix != "" && !job.ValidKey(prefix) {
		invalid.Add("/keyPrefix", fmt.Sprintf("must be the start of a job's key: at most %d bytes of UTF-8, without "+
			"control characters", job.MaxKeyBytes))
	}
	if !p.ExpiresAt.IsZero() && !p.ExpiresAt.After(now) {
		invalid.Add("/expiresAt", "must be in the future; leave it out for a key that does not expire")
	}
	checkLimits(p.Limits, p.Scope, "/limits", invalid)
	if n := p.Note; len(n) > MaxNoteBytes || !utf8.ValidString(n) || strings.IndexFunc(n, unicode.IsControl) >= 0 {
		invalid.Add("/note", fmt.Sprintf("must be at most %d bytes of UTF-8, without control characters", MaxNoteBytes))
	}
}

// checkLimits notes the faults of a key's own limits. Stores count jobs by prefix, but not pending occurrences.
func checkLimits(own limits.Draft, scope Scope, pointer string, invalid *job.Invalid) {
	own.Check(pointer, invalid)
	if own.MaxPending != nil && *own.MaxPending > 0 && scope.KeyPrefix != "" {
		invalid.Add(pointer+"/maxPending", "is not for a key with a prefix, whose pending occurrences can't be counted by "+
			"themselves: give maxJobs, or set the tenant's limit")
	}
}

func checkTenants(tenants []string, invalid *job.Invalid) {
	const all = `["*"] for all tenants`
	switch {
	case len(tenants) == 0:
		invalid.Add("/tenants", "must name at least one tenant, or be "+all)
		return
	case len(tenants) > MaxKeyTenants:
		invalid.Add("/tenants", fmt.Sprintf("must name at most %d tenants, or be %s", MaxKeyTenants, all))
		return
	case len(tenants) == 1 && tenants[0] == AllTenants:
		return
	}
	for i, name := range tenants {
		switch {
		case name == AllTenants:
			invalid.Add(job.Pointer("tenants", i), "must be alone, as "+all+"; remove the others, or this one")
		case !job.ValidTenant(name):
			invalid.Add(job.Pointer("tenants", i), fmt.Sprintf("must be a tenant's name: 1 to %d letters (a to z, A to Z), "+
				"digits, dots, underscores and hyphens; not %q", job.MaxTenantBytes, name))
		case slices.Contains(tenants[:i], name):
			invalid.Add(job.Pointer("tenants", i), "is given twice; give it once")
		}
	}
}

// keysCollection is the collection of the keys' records, by id.
const keysCollection = "keys"

// expiredKept is the time for which an expired key is still listed.
const expiredKept = 30 * 24 * time.Hour

// keyBody is the body of a key's record. Times are Unix milliseconds; zero is none.
type keyBody struct {
	Hash    tokenHash `json:"hash"`
	OldHash tokenHash `json:"oldHash,omitzero"`
	// OldUntil is the end of validity of the token with the old hash.
	OldUntil  int64    `json:"oldUntil,omitzero"`
	Role      Role     `json:"role"`
	Tenants   []string `json:"tenants"`
	KeyPrefix string   `json:"keyPrefix,omitzero"`
	Note      string   `json:"note,omitzero"`
	CreatedBy string   `json:"createdBy,omitzero"`
	CreatedAt int64    `json:"createdAt"`
	ExpiresAt int64    `json:"expiresAt,omitzero"`
	RotatedAt int64    `json:"rotatedAt,omitzero"`
	LastUsed  int64    `json:"lastUsed,omitzero"`

	Limits limits.Draft `json:"limits,omitzero"`
}

// key returns the key with this body.
func (b *keyBody) key(id string) Key {
	return Key{
		ID: id, Role: b.Role, Scope: Scope{Tenants: b.Tenants, KeyPrefix: b.KeyPrefix}, Note: b.Note,
		CreatedBy: b.CreatedBy, CreatedAt: fromMilli(b.CreatedAt), ExpiresAt: fromMilli(b.ExpiresAt),
		RotatedAt: fromMilli(b.RotatedAt), OldValidUntil: fromMilli(b.OldUntil), LastUsed: fromMilli(b.LastUsed),
		Limits: b.Limits,
	}
}

// has reports whether the key has a token with this hash. Its duration does not depend on the hash.
func (b *keyBody) has(hash tokenHash, now time.Time) bool {
	is := subtle.ConstantTimeCompare(b.Hash[:], hash[:])
	was := subtle.ConstantTimeCompare(b.OldHash[:], hash[:])
	return is == 1 || was == 1 && now.UnixMilli() < b.OldUntil
}

func fromMilli(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

func toMilli(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// stored is a key's record, decoded.
type stored struct {
	key     Key
	body    keyBody
	version job.Revision
}

// change returns the change that writes the body, under a fresh version.
func (b *keyBody) change(id string, now time.Time, condition store.RecordCondition) (store.RecordChange, error) {
	body, err := json.Marshal(b)
	c := store.RecordChange{
		Collection: keysCollection, Key: id, Version: job.NewRevision(now), Body: body, If: condition, Now: now,
	}
	if b.ExpiresAt != 0 {
		c.ExpiresAt = fromMilli(b.ExpiresAt).Add(expiredKept)
	}
	return c, err
}

// Create makes a key, and returns its token, which is not stored. by is the id of the creator. The error is a
// [*job.Invalid], or wraps [store.ErrUnavailable]; then there may be a key whose token is lost.
func (k *Keys) Create(ctx context.Context, p KeyParams, by string, now time.Time) (token string, _ Key, err error) {
	if err := p.Check(now); err != nil {
		return "", Key{}, err
	}
	id := newID()
	token = newToken(id)
	body := keyBody{
		Hash: hashToken(token), Role: p.Role, Tenants: slices.Clone(p.Scope.Tenants), KeyPrefix: p.Scope.KeyPrefix,
		Note: p.Note, CreatedBy: by, CreatedAt: now.UnixMilli(), ExpiresAt: toMilli(p.ExpiresAt),
		Limits: p.Limits,
	}
	change, err := body.change(id, now, store.RecordCondition{Absent: true})
	if err == nil {
		err = k.records.WriteRecords(ctx, []store.RecordChange{change})[0]
	}
	if err != nil {
		return "", Key{}, fmt.Errorf("create a key: %w", err)
	}
	return token, body.key(id), nil
}

// List reads up to limit of the keys whose ids sort after an id, in the byte order of their ids. Expired keys are
// listed for another 30 days, revoked keys not at all.
func (k *Keys) List(ctx context.Context, after string, limit int) ([]Key, error) {
	records, err := k.records.Records(ctx, store.RecordFilter{Collection: keysCollection, After: after, Limit: limit})
	if err != nil {
		return nil, err
	}
	all := make([]Key, len(records))
	for i, r := range records {
		s, err := decodeKey(r)
		if err != nil {
			return nil, err
		}
		all[i] = s.key
	}
	return all, nil
}

// Key reads one key, or returns [store.ErrNotFound].
func (k *Keys) Key(ctx context.Context, id string) (Key, error) {
	s, err := k.read(ctx, id)
	if err != nil {
		return Key{}, err
	}
	return s.key, nil
}

// Rotate gives a key another token, and returns it; it is not stored. The present token stays valid for the overlap; an
// earlier one ends at once. The error is [store.ErrNotFound], a [*job.Invalid] for an invalid overlap, or wraps
// [store.ErrUnavailable]; then rotate again.
func (k *Keys) Rotate(
	ctx context.Context, id string, overlap time.Duration, now time.Time,
) (token string, _ Key, err error) {
	if overlap < 0 || overlap > MaxKeyOverlap {
		return "", Key{}, job.InvalidField("/overlap", "must be a duration of at most 30d; 0s ends the present key at once")
	}
	token = newToken(id)
	key, err := k.edit(ctx, id, now, func(s *stored) error {
		if s.key.Expired(now) {
			return job.InvalidField("", "the key has expired; create another one in its place")
		}
		s.body.OldHash, s.body.OldUntil = s.body.Hash, now.Add(overlap).UnixMilli()
		s.body.Hash, s.body.RotatedAt = hashToken(token), now.UnixMilli()
		return nil
	})
	if err != nil {
		return "", Key{}, fmt.Errorf("rotate a key: %w", err)
	}
	return token, key, nil
}

// SetLimits replaces the own limits of a key. They apply here at once, and on all replicas within [RevokedWithin]. The
// error is [store.ErrNotFound], a [*job.Invalid], or wraps [store.ErrUnavailable].
func (k *Keys) SetLimits(ctx context.Context, id string, own limits.Draft, now time.Time) (Key, error) {
	key, err := k.edit(ctx, id, now, func(s *stored) error {
		var invalid job.Invalid
		checkLimits(own, s.key.Scope, "", &invalid)
		s.body.Limits = own
		return invalid.Err()
	})
	if err != nil {
		return Key{}, fmt.Errorf("set the limits of a key: %w", err)
	}
	return key, nil
}

// edit changes a key's body.
func (k *Keys) edit(ctx context.Context, id string, now time.Time, change func(*stored) error) (Key, error) {
	for range 10 { // other goroutines write its last use
		s, err := k.read(ctx, id)
		if err != nil {
			return Key{}, err
		}
		if err := change(s); err != nil {
			return Key{}, err
		}
		written, err := s.body.change(id, now, store.RecordCondition{Version: s.version})
		if err != nil {
			return Key{}, err
		}
		err = k.records.WriteRecords(ctx, []store.RecordChange{written})[0]
		if errors.Is(err, store.ErrPrecondition) {
			continue
		}
		if err != nil {
			return Key{}, err
		}
		k.forget(id)
		return s.body.key(id), nil
	}
	return Key{}, fmt.Errorf("%w: other requests keep changing it", store.ErrUnavailable)
}

// Revoke ends a key, or returns [store.ErrNotFound]. It takes effect here at once, and on all replicas within
// [RevokedWithin].
func (k *Keys) Revoke(ctx context.Context, id string, now time.Time) error {
	if _, err := k.read(ctx, id); err != nil {
		return err
	}
	err := k.records.WriteRecords(ctx, []store.RecordChange{{
		Collection: keysCollection, Key: id, Version: job.NewRevision(now), Now: now,
	}})[0]
	if err != nil {
		return fmt.Errorf("revoke a key: %w", err)
	}
	k.forget(id)
	return nil
}

// Copy copies all keys from one store to another, and returns their number. Their tokens stay valid. It skips keys that
// the other store has already. It may be repeated; then it restores keys that were revoked there meanwhile.
func Copy(ctx context.Context, from, to store.Records) (copied, there int, err error) {
	return store.CopyRecords(ctx, from, to, keysCollection)
}

// read reads a key from the store, or returns [store.ErrNotFound].
func (k *Keys) read(ctx context.Context, id string) (*stored, error) {
	if !ValidKeyID(id) {
		return nil, store.ErrNotFound
	}
	filter := store.RecordFilter{Collection: keysCollection, Keys: []string{id}, Limit: 1}
	records, err := k.records.Records(ctx, filter)
	if err != nil {
		return nil, err
	}
	if len(records) == 0 {
		return nil, store.ErrNotFound
	}
	return decodeKey(records[0])
}

func decodeKey(r store.Record) (*stored, error) {
	s := &stored{version: r.Version}
	if err := json.Unmarshal(r.Body, &s.body); err != nil {
		return nil, fmt.Errorf("key %s: %w", r.Key, err)
	}
	s.key = s.body.key(r.Key)
	return s, nil
}
