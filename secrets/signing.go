package secrets

import (
	"context"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"hash"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// The forms of secrets and public keys in Standard Webhooks.
const (
	secretPrefix    = "whsec_"
	publicKeyPrefix = "whpk_"
)

const (
	leastSecretBytes, mostSecretBytes = 24, 64
	// maxGenerations is the maximum number of valid secrets of one name.
	maxGenerations = 4
	// MaxOverlap bounds the time for which a secret stays valid after its rotation.
	MaxOverlap = 90 * 24 * time.Hour
)

// ParseSigningSecret reads a secret of Standard Webhooks: 24 to 64 bytes in base64 behind "whsec_". The error does not
// quote it.
func ParseSigningSecret(text string) ([]byte, error) {
	encoded, ok := strings.CutPrefix(text, secretPrefix)
	secret, err := base64.StdEncoding.Strict().DecodeString(encoded)
	if !ok || err != nil || len(secret) < leastSecretBytes || len(secret) > mostSecretBytes ||
		strings.ContainsAny(encoded, "\r\n") { // which the decoder ignores
		return nil, fmt.Errorf("must be %s and %d to %d random bytes in base64", secretPrefix, leastSecretBytes,
			mostSecretBytes)
	}
	return secret, nil
}

func formatSigningSecret(secret []byte) string {
	return secretPrefix + base64.StdEncoding.EncodeToString(secret)
}

// Signing has the public properties of a signing secret.
type Signing struct {
	Name                 string
	CreatedAt, UpdatedAt time.Time
	// Valid are the generations that sign, the newest first.
	Valid []Generation
}

// Generation is one of the secrets of a name that are valid at the same time, during a rotation.
type Generation struct {
	// Until is its end; zero for the newest one, which has none.
	Until time.Time
	// PublicKey verifies its signatures of the version v1a; empty if it makes none.
	PublicKey string
}

// NewSigning describes a signing secret to make.
type NewSigning struct {
	// Secret is an existing secret in the form of [ParseSigningSecret]; empty makes a random one.
	Secret string
	// Ed25519 adds signatures by a private key, which is made here and is never shown.
	Ed25519 bool
}

// generation is the encrypted part of a generation.
type generation struct {
	Secret []byte `json:"secret"`
	Seed   []byte `json:"seed,omitzero"` // of the private key; nil if there is none
	Until  int64  `json:"until,omitzero"`
}

func (n NewSigning) generation() (generation, error) {
	g := generation{Secret: make([]byte, 32)}
	_, _ = rand.Read(g.Secret) // never fails
	if n.Secret != "" {
		var err error
		if g.Secret, err = ParseSigningSecret(n.Secret); err != nil {
			return g, err
		}
	}
	if n.Ed25519 {
		g.Seed = make([]byte, ed25519.SeedSize)
		_, _ = rand.Read(g.Seed)
	}
	return g, nil
}

func (g generation) shown() shown {
	if g.Seed == nil {
		return shown{Until: g.Until}
	}
	public := ed25519.NewKeyFromSeed(g.Seed).Public().(ed25519.PublicKey)
	return shown{publicKeyPrefix + base64.StdEncoding.EncodeToString(public), g.Until}
}

// live reports whether it is valid at a time.
func (g generation) live(now time.Time) bool { return g.Until == 0 || now.UnixMilli() < g.Until }

// signingSecret is a signing secret as a replica holds it.
type signingSecret struct {
	version job.Revision
	signers []signer // the newest first
	err     error    // the reason that it can't be used
}

// signer signs by one generation.
type signer struct {
	macs    *sync.Pool         // of hash.Hash, which have the secret: making one takes as long as using it
	private ed25519.PrivateKey // nil if there is none
	until   time.Time
}

// sealedSigning is the encrypted part of a signing secret: its generations, the newest first.
type sealedSigning struct {
	Generations []generation `json:"generations"`
}

func (s *Secrets) openSigning(at id, r store.Record) *signingSecret {
	sealed, err := unseal[sealedSigning](s.keys, signingCollection, at, r)
	secret := &signingSecret{version: r.Version, err: err}
	for _, g := range sealed.Generations {
		one := signer{until: instant(g.Until), macs: &sync.Pool{New: func() any { return hmac.New(sha256.New, g.Secret) }}}
		if g.Seed != nil {
			one.private = ed25519.NewKeyFromSeed(g.Seed)
		}
		secret.signers = append(secret.signers, one)
	}
	return secret
}

// CreateSigning makes a signing secret, and returns it; it is never shown again. The name must be valid by
// [job.ValidSecretName]. The secret called [job.DefaultSigning] signs the deliveries of all of the tenant's jobs that
// name no other. The error may be [ErrExists], [ErrTooMany] or [ErrNoKey].
func (s *Secrets) CreateSigning(
	ctx context.Context, tenant, name string, n NewSigning, now time.Time,
) (secret string, made Signing, err error) {
	g, err := n.generation()
	if err != nil {
		return "", Signing{}, err
	}
	b := body{CreatedAt: millis(now)}
	err = s.edit(ctx, signingCollection, id{tenant, name}, func(_ store.Record, exists bool) (body []byte, err error) {
		if exists {
			return nil, ErrExists
		}
		if err := s.room(tenant); err != nil {
			return nil, err
		}
		body, made, err = s.putSigning(id{tenant, name}, []generation{g}, b, now)
		return body, err
	})
	if err != nil {
		return "", Signing{}, err
	}
	s.notice(ctx)
	return formatSigningSecret(g.Secret), made, nil
}

func (s *Secrets) putSigning(at id, all []generation, b body, now time.Time) (encoded []byte, put Signing, err error) {
	b.UpdatedAt, b.Valid = millis(now), nil
	for _, g := range all {
		b.Valid = append(b.Valid, g.shown())
	}
	encoded, err = s.put(signingCollection, at, sealedSigning{all}, b)
	return encoded, shownSigning(at.name, b, now), err
}

// shownSigning returns the public properties, without the generations that have ended.
func shownSigning(name string, b body, now time.Time) Signing {
	shown := Signing{Name: name, CreatedAt: instant(b.CreatedAt), UpdatedAt: instant(b.UpdatedAt)}
	for _, v := range b.Valid {
		if g := (generation{Until: v.Until}); g.live(now) {
			shown.Valid = append(shown.Valid, Generation{instant(v.Until), v.PublicKey})
		}
	}
	return shown
}

// Rotate makes a new secret of a name, and returns it; it is never shown again. A non-empty given secret is used
// instead of a random one. The previous secret also signs until the overlap ends; earlier ones end no later. The error
// may be [store.ErrNotFound], [ErrNoKey] or [ErrOverlap].
func (s *Secrets) Rotate(
	ctx context.Context, tenant, name, given string, overlap time.Duration, now time.Time,
) (secret string, rotated Signing, err error) {
	at := id{tenant, name}
	err = s.edit(ctx, signingCollection, at, func(r store.Record, exists bool) (encoded []byte, err error) {
		if !exists {
			return nil, store.ErrNotFound
		}
		b, err := decode(r)
		if err != nil {
			return nil, err
		}
		before, err := unseal[sealedSigning](s.keys, signingCollection, at, r)
		if err != nil {
			return nil, fmt.Errorf("the signing secret can't be decrypted: %w", err)
		}
		all, err := before.rotated(given, now, now.Add(overlap))
		if err != nil {
			return nil, err
		}
		secret = formatSigningSecret(all[0].Secret)
		encoded, rotated, err = s.putSigning(at, all, b, now)
		return encoded, err
	})
	if err != nil {
		return "", Signing{}, err
	}
	s.notice(ctx)
	return secret, rotated, nil
}

// rotated returns a new generation and the present ones, which end with the overlap at the latest.
func (s sealedSigning) rotated(given string, now, end time.Time) ([]generation, error) {
	asymmetric := len(s.Generations) > 0 && s.Generations[0].Seed != nil
	g, err := NewSigning{Secret: given, Ed25519: asymmetric}.generation()
	if err != nil {
		return nil, err
	}
	all := []generation{g}
	for _, old := range s.Generations {
		if old.Until == 0 || old.Until > millis(end) {
			old.Until = millis(end)
		}
		if old.live(now) {
			all = append(all, old)
		}
	}
	if len(all) > maxGenerations {
		return nil, ErrOverlap
	}
	return all, nil
}

// ListSigning reads up to limit of a tenant's signing secrets whose names sort after a name, in the order of their
// bytes.
func (s *Secrets) ListSigning(ctx context.Context, tenant, after string, limit int, now time.Time) ([]Signing, error) {
	records, err := s.list(ctx, signingCollection, tenant, after, limit)
	if err != nil {
		return nil, err
	}
	all := make([]Signing, len(records))
	for i, r := range records {
		b, err := decode(r)
		if err != nil {
			return nil, err
		}
		all[i] = shownSigning(idOf(r.Key).name, b, now)
	}
	return all, nil
}

// DeleteSigning deletes a signing secret, or returns [store.ErrNotFound]. Jobs that name it are not sent from then on;
// without the default one, deliveries of jobs that name none are not signed any more.
func (s *Secrets) DeleteSigning(ctx context.Context, tenant, name string) error {
	return s.remove(ctx, signingCollection, id{tenant, name})
}

// CheckSigning reads the store, and checks that a tenant has a signing secret that can sign now. The error is an
// [*UnusableError] if it has none, else an error of the store.
func (s *Secrets) CheckSigning(ctx context.Context, tenant, name string) error {
	if s.loaded.Load().signing[id{tenant, name}] == nil {
		if err := s.Refresh(ctx); err != nil {
			return err
		}
	}
	_, err := s.signingSecret(ctx, tenant, name)
	return err
}

// signingSecret finds a signing secret that can be used.
func (s *Secrets) signingSecret(ctx context.Context, tenant, name string) (*signingSecret, error) {
	at := id{tenant, name}
	found := s.loaded.Load().signing[at]
	if found == nil {
		s.lookAgain(ctx)
		found = s.loaded.Load().signing[at]
	}
	switch {
	case found == nil:
		return nil, unusable("there is no signing secret %q", name)
	case found.err != nil:
		return nil, unusable("the signing secret %q can't be decrypted: %w", name, found.err)
	}
	return found, nil
}

// Sign returns the signatures of a message, sent at a time, by all secrets of a name that are valid then, in the form
// of Standard Webhooks' header webhook-signature. An empty name means the tenant's default secret; without one, the
// result is empty. The error is an [*UnusableError].
func (s *Secrets) Sign(
	ctx context.Context, tenant, name, messageID string, at time.Time, body []byte,
) (signature string, err error) {
	var found *signingSecret
	if name != "" {
		if found, err = s.signingSecret(ctx, tenant, name); err != nil {
			return "", err
		}
	} else if found = s.loaded.Load().signing[id{tenant, job.DefaultSigning}]; found == nil {
		return "", nil
	} else if found.err != nil { // an unsigned message would be refused, or worse, accepted
		return "", unusable("the signing secret %q can't be decrypted: %w", job.DefaultSigning, found.err)
	}
	begin := make([]byte, 0, 64)
	begin = append(append(begin, messageID...), '.')
	begin = append(strconv.AppendInt(begin, at.Unix(), 10), '.')
	header := make([]byte, 0, 48*len(found.signers))
	for i := range found.signers {
		if one := &found.signers[i]; one.until.IsZero() || at.Before(one.until) {
			header = one.appendTo(header, begin, body)
		}
	}
	return string(header), nil
}

// appendTo appends the signatures of a message, which comes in two parts.
func (s *signer) appendTo(header, begin, body []byte) []byte {
	if len(header) > 0 {
		header = append(header, ' ')
	}
	mac := s.macs.Get().(hash.Hash)
	mac.Reset()
	mac.Write(begin)
	mac.Write(body)
	var sum [sha256.Size]byte
	header = base64.StdEncoding.AppendEncode(append(header, "v1,"...), mac.Sum(sum[:0]))
	s.macs.Put(mac)
	if s.private != nil {
		signature := ed25519.Sign(s.private, slices.Concat(begin, body))
		header = base64.StdEncoding.AppendEncode(append(header, " v1a,"...), signature)
	}
	return header
}
