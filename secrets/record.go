package secrets

import (
	"fmt"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/carillon-scheduler/carillon/store"
)

// body is the body of a record, of either kind. All fields except Sealed are for lists; decisions use their sealed
// copies.
type body struct {
	KeyID     string `json:"keyId"`  // of the encryption key
	Sealed    []byte `json:"sealed"` // a nonce and the ciphertext
	CreatedAt int64  `json:"createdAt"`
	UpdatedAt int64  `json:"updatedAt"` // Unix milliseconds
	// Destinations are those of a named secret.
	Destinations []string `json:"destinations,omitzero"`
	// Valid are the generations of a signing secret.
	Valid []shown `json:"valid,omitzero"`
}

// shown has the public properties of a signing secret's generation.
type shown struct {
	PublicKey string `json:"publicKey,omitzero"`
	Until     int64  `json:"until,omitzero"` // Unix milliseconds; zero for ever
}

func decode(r store.Record) (b body, err error) {
	if err := json.Unmarshal(r.Body, &b); err != nil {
		return b, fmt.Errorf("the record %s can't be read", r.Key) // the error might quote it
	}
	return b, nil
}

// put seals a secret, which can be encoded as JSON, and makes the record's body.
func (s *Secrets) put(collection string, at id, secret any, b body) ([]byte, error) {
	plain, err := json.Marshal(secret)
	if err != nil {
		return nil, err
	}
	if b.KeyID, b.Sealed, err = s.keys.seal(collection, at, plain); err != nil {
		return nil, err
	}
	return json.Marshal(b)
}

// unseal decrypts the secret of a record.
func unseal[T any](k *Keyring, collection string, at id, r store.Record) (secret T, err error) {
	b, err := decode(r)
	if err != nil {
		return secret, err
	}
	plain, err := k.open(collection, at, b.KeyID, b.Sealed)
	if err != nil {
		return secret, err
	}
	if err := json.Unmarshal(plain, &secret); err != nil {
		return secret, errTampered // the error might quote it
	}
	return secret, nil
}

func millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func instant(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}
