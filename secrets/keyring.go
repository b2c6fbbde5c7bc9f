package secrets

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
)

// keyBytes is the length of an encryption key.
const keyBytes = 32

// Keyring has the keys that encrypt secrets: AES-256 in Galois/Counter Mode with a random nonce for each, which is fit
// for 2^32 encryptions with one key. A ciphertext is bound to its kind, tenant and name: if it is moved to another
// place in the store, it can't be decrypted.
//
// The zero value has no key. A Keyring does not change, and is safe for concurrent use.
type Keyring struct {
	keys []key // the first one encrypts
}

type key struct {
	id   string
	aead cipher.AEAD
}

// MissingKeyError is the error of secrets whose encryption keys are not given.
type MissingKeyError struct {
	// IDs are the ids of the keys, at least one.
	IDs []string
}

// Error names the keys and the option.
func (e *MissingKeyError) Error() string {
	return fmt.Sprintf("the store has secrets that need the encryption key %s, which is not given; name its file by "+
		"--encryption-key-file, beside the others", strings.Join(e.IDs, ", "))
}

// NewKeyring makes a keyring of keys of 32 bytes. The first one encrypts; all decrypt.
func NewKeyring(keys ...[]byte) (*Keyring, error) {
	ring := &Keyring{}
	for _, k := range keys {
		if len(k) != keyBytes {
			return nil, fmt.Errorf("an encryption key has %d bytes, not %d", keyBytes, len(k))
		}
		block, err := aes.NewCipher(k)
		if err != nil {
			return nil, err
		}
		aead, err := cipher.NewGCMWithRandomNonce(block)
		if err != nil {
			return nil, err
		}
		if id := keyID(k); ring.key(id) == nil { // a repeated key counts once
			ring.keys = append(ring.keys, key{id, aead})
		}
	}
	return ring, nil
}

// ReadKeyring makes a keyring of the keys in files, each 32 bytes in base64, which its owner and group alone can read.
// The error names the file.
func ReadKeyring(files []string) (*Keyring, error) {
	keys := make([][]byte, 0, len(files))
	for _, name := range files {
		k, err := readKey(name)
		if err != nil {
			return nil, err
		}
		keys = append(keys, k)
	}
	return NewKeyring(keys...)
}

func readKey(name string) (key []byte, err error) {
	f, err := os.Open(name) //nolint:gosec // the operator names it
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	const others = 0o027 // any access of others, and write access of the group
	if mode := info.Mode().Perm(); mode&others != 0 && runtime.GOOS != "windows" {
		return nil, fmt.Errorf("%s has the mode %04o: others can read or change the key; chmod it to 0600, "+
			"or to 0440 for a group", name, mode)
	}
	text, err := io.ReadAll(io.LimitReader(f, 1024))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	key, err = ParseKey(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return key, nil
}

// ParseKey reads a key in base64, with or without padding. The error does not quote it.
func ParseKey(text string) ([]byte, error) {
	text = strings.TrimRight(strings.TrimSpace(text), "=")
	k, err := base64.RawStdEncoding.DecodeString(text)
	if err != nil || len(k) != keyBytes {
		return nil, fmt.Errorf("must have %d random bytes in base64 and nothing else, as "+
			`"carillon secrets new-key FILE" or "openssl rand -base64 %[1]d" makes them`, keyBytes)
	}
	return k, nil
}

// NewKey makes a random key, and returns its text and its id.
func NewKey() (text, id string) {
	k := make([]byte, keyBytes)
	_, _ = rand.Read(k) // never fails
	return base64.StdEncoding.EncodeToString(k), keyID(k)
}

// keyID returns a name of a key that reveals nothing about the key.
func keyID(k []byte) string {
	sum := sha256.Sum256(append([]byte("carillon encryption key id\x00"), k...))
	return hex.EncodeToString(sum[:8])
}

func (k *Keyring) key(id string) *key {
	i := slices.IndexFunc(k.keys, func(other key) bool { return other.id == id })
	if i < 0 {
		return nil
	}
	return &k.keys[i]
}

// Encrypting returns the id of the key that encrypts; empty if there is none.
func (k *Keyring) Encrypting() string {
	if len(k.keys) == 0 {
		return ""
	}
	return k.keys[0].id
}

// seal encrypts the secret of a record, and also returns the key's id.
func (k *Keyring) seal(collection string, at id, secret []byte) (keyID string, sealed []byte, err error) {
	if len(k.keys) == 0 {
		return "", nil, ErrNoKey
	}
	first := k.keys[0]
	return first.id, first.aead.Seal(nil, nil, secret, bound(collection, at)), nil //nolint:gosec // it makes the nonce
}

// errTampered has no details: they would help only an attacker.
var errTampered = errors.New("the record was damaged, or was not written by this program")

// open decrypts the secret of a record.
func (k *Keyring) open(collection string, at id, keyID string, sealed []byte) ([]byte, error) {
	key := k.key(keyID)
	if key == nil {
		return nil, &MissingKeyError{[]string{keyID}}
	}
	secret, err := key.aead.Open(nil, nil, sealed, bound(collection, at))
	if err != nil {
		return nil, errTampered
	}
	return secret, nil
}

// bound returns the place that a secret is bound to. It has the length of each part, so that no two places are equal.
func bound(collection string, at id) (b []byte) {
	for _, part := range []string{collection, at.tenant, at.name} {
		b = binary.AppendUvarint(b, uint64(len(part)))
		b = append(b, part...)
	}
	return b
}
