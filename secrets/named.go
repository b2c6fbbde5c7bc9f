package secrets

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Bounds of named secrets.
const (
	MaxValueBytes   = 8 << 10
	MaxDestinations = 20
)

// Value is the content of a named secret, as submitted.
type Value struct {
	// Text is printable ASCII, since it becomes a header's value.
	Text string
	// Destinations are the permitted destinations, with the names that the backlog uses; empty for all.
	Destinations []string
}

// Check adds the faults of the value, without quoting the text.
func (v Value) Check(invalid *job.Invalid) {
	switch {
	case v.Text == "":
		invalid.Add("/value", "is required")
	case len(v.Text) > MaxValueBytes:
		invalid.Add("/value", fmt.Sprintf("is %d bytes; at most %d are allowed", len(v.Text), MaxValueBytes))
	case strings.Trim(v.Text, " ") != v.Text || strings.ContainsFunc(v.Text, unprintable):
		invalid.Add("/value", "must be printable ASCII that neither begins nor ends with a space")
	}
	if len(v.Destinations) > MaxDestinations {
		invalid.Add("/destinations", fmt.Sprintf("are %d; at most %d are allowed", len(v.Destinations), MaxDestinations))
	}
	for i, d := range v.Destinations {
		if callback, name, ok := strings.Cut(d, " "); !ok || callback == "" || name == "" || len(d) > 512 {
			invalid.Add(job.Pointer("destinations", i), `must be a callback type, a space and a destination, as the backlog `+
				`has them: "http https://api.example.com", "rabbitmq queue orders" or "kafka topic orders"`)
		}
	}
}

// unprintable reports whether a character is not printable ASCII.
func unprintable(r rune) bool { return r < ' ' || r > '~' }

// Named has the public properties of a named secret.
type Named struct {
	Name                 string
	Destinations         []string
	CreatedAt, UpdatedAt time.Time
}

// namedSecret is a named secret as a replica holds it.
type namedSecret struct {
	version job.Revision
	sealedValue
	err error // the reason that it can't be used
}

// sealedValue is the encrypted part of a named secret.
type sealedValue struct {
	Value        string   `json:"value"`
	Destinations []string `json:"destinations,omitzero"`
}

func (s *Secrets) openNamed(at id, r store.Record) *namedSecret {
	v, err := unseal[sealedValue](s.keys, namedCollection, at, r)
	return &namedSecret{r.Version, v, err}
}

// Put creates or replaces a named secret. The name must be valid by [job.ValidSecretName], and the value checked. The
// error may be [ErrNoKey] or [ErrTooMany].
func (s *Secrets) Put(
	ctx context.Context, tenant, name string, v Value, now time.Time,
) (put Named, created bool, err error) {
	at := id{tenant, name}
	err = s.edit(ctx, namedCollection, at, func(r store.Record, exists bool) ([]byte, error) {
		b := body{CreatedAt: millis(now), UpdatedAt: millis(now), Destinations: v.Destinations}
		if exists {
			if present, err := decode(r); err == nil { // else this put repairs it
				b.CreatedAt = present.CreatedAt
			}
		} else if err := s.room(tenant); err != nil {
			return nil, err
		}
		put, created = shownNamed(name, b), !exists
		return s.put(namedCollection, at, sealedValue{v.Text, v.Destinations}, b)
	})
	if err == nil {
		s.notice(ctx)
	}
	return put, created, err
}

func shownNamed(name string, b body) Named {
	return Named{
		Name: name, Destinations: b.Destinations, CreatedAt: instant(b.CreatedAt), UpdatedAt: instant(b.UpdatedAt),
	}
}

// List reads up to limit of a tenant's named secrets whose names sort after a name, in the order of their bytes.
func (s *Secrets) List(ctx context.Context, tenant, after string, limit int) ([]Named, error) {
	records, err := s.list(ctx, namedCollection, tenant, after, limit)
	if err != nil {
		return nil, err
	}
	all := make([]Named, len(records))
	for i, r := range records {
		b, err := decode(r)
		if err != nil {
			return nil, err
		}
		all[i] = shownNamed(idOf(r.Key).name, b)
	}
	return all, nil
}

// Delete deletes a named secret, or returns [store.ErrNotFound]. Callbacks that refer to it are not sent from then on.
func (s *Secrets) Delete(ctx context.Context, tenant, name string) error {
	return s.remove(ctx, namedCollection, id{tenant, name})
}

// Secret returns the value of a tenant's named secret, for a destination. The error is an [*UnusableError].
func (s *Secrets) Secret(ctx context.Context, tenant, name, destination string) (string, error) {
	at := id{tenant, name}
	found := s.loaded.Load().named[at]
	if found == nil {
		s.lookAgain(ctx)
		found = s.loaded.Load().named[at]
	}
	switch {
	case found == nil:
		return "", unusable("there is no secret %q", name)
	case found.err != nil:
		return "", unusable("the secret %q can't be decrypted: %w", name, found.err)
	case len(found.Destinations) > 0 && !slices.Contains(found.Destinations, destination):
		return "", unusable("the secret %q may not be sent to %s, but to %s only", name, destination,
			strings.Join(found.Destinations, ", "))
	}
	return found.Value, nil
}

// Check reads the store, and checks that a tenant's named secret can be sent to a destination now. The error is an
// [*UnusableError] if it can't, else an error of the store.
func (s *Secrets) Check(ctx context.Context, tenant, name, destination string) error {
	if s.loaded.Load().named[id{tenant, name}] == nil {
		if err := s.Refresh(ctx); err != nil {
			return err
		}
	}
	_, err := s.Secret(ctx, tenant, name, destination)
	return err
}
