package secrets

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/carillon-scheduler/carillon/store"
)

// Reencrypted are the counts of [Secrets.Reencrypt].
type Reencrypted struct {
	// Done is the number of secrets that were encrypted again, and Before the number that had the encrypting key already.
	Done, Before int
}

// Reencrypt encrypts all secrets with the keyring's first key that are encrypted with another. It may run while others
// read and change secrets, and be repeated. A secret that can't be decrypted is left as it is; the error names each.
func (s *Secrets) Reencrypt(ctx context.Context) (so Reencrypted, err error) {
	if s.keys.Encrypting() == "" {
		return so, ErrNoKey
	}
	var failed []error
	for _, collection := range []string{namedCollection, signingCollection} {
		var all []id
		err := s.each(ctx, collection, time.Now(), func(at id, _ store.Record) { all = append(all, at) })
		if err != nil {
			return so, err
		}
		for _, at := range all {
			done, err := s.reencrypt(ctx, collection, at)
			switch {
			case err != nil && (ctx.Err() != nil || errors.Is(err, store.ErrUnavailable)):
				return so, err
			case err != nil:
				failed = append(failed, fmt.Errorf("%s %q of the tenant %s: %w", collection, at.name, at.tenant, err))
			case done:
				so.Done++
			default:
				so.Before++
			}
		}
	}
	s.notice(ctx)
	return so, errors.Join(failed...)
}

// errNothingToDo ends an edit that would change nothing.
var errNothingToDo = errors.New("nothing to do")

// reencrypt encrypts one secret again, unless it has the right key, or was deleted meanwhile.
func (s *Secrets) reencrypt(ctx context.Context, collection string, at id) (done bool, err error) {
	err = s.edit(ctx, collection, at, func(r store.Record, exists bool) ([]byte, error) {
		if !exists {
			return nil, errNothingToDo
		}
		b, err := decode(r)
		if err != nil {
			return nil, err
		}
		if b.KeyID == s.keys.Encrypting() {
			return nil, errNothingToDo
		}
		plain, err := s.keys.open(collection, at, b.KeyID, b.Sealed)
		if err != nil {
			return nil, err
		}
		if b.KeyID, b.Sealed, err = s.keys.seal(collection, at, plain); err != nil {
			return nil, err
		}
		clear(plain)
		return json.Marshal(b)
	})
	if errors.Is(err, errNothingToDo) {
		return false, nil
	}
	return err == nil, err
}

// Copy copies all secrets from one store to another, without decrypting them, and returns their number. It skips
// secrets that the other store has already. It may be repeated, and needs no key.
func Copy(ctx context.Context, from, to store.Records) (copied, there int, err error) {
	source, target := New(from, &Keyring{}, nil), New(to, &Keyring{}, nil)
	for _, collection := range []string{namedCollection, signingCollection} {
		var all []store.Record
		err := source.each(ctx, collection, time.Now(), func(_ id, r store.Record) { all = append(all, r) })
		if err != nil {
			return copied, there, err
		}
		for _, r := range all {
			err := target.write(ctx, collection, idOf(r.Key), r.Body, store.RecordCondition{Absent: true})
			switch {
			case errors.Is(err, store.ErrPrecondition):
				there++
			case err != nil:
				return copied, there, err
			default:
				copied++
			}
		}
	}
	return copied, there, nil
}

// KeysNeeded returns the ids of the encryption keys that the secrets in the store need, sorted.
func (s *Secrets) KeysNeeded(ctx context.Context) ([]string, error) {
	var needed []string
	for _, collection := range []string{namedCollection, signingCollection} {
		err := s.each(ctx, collection, time.Now(), func(_ id, r store.Record) {
			if b, err := decode(r); err == nil && !slices.Contains(needed, b.KeyID) {
				needed = append(needed, b.KeyID)
			}
		})
		if err != nil {
			return nil, err
		}
	}
	slices.Sort(needed)
	return needed, nil
}
