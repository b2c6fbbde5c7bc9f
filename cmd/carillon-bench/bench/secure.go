package bench

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/secrets"
)

// security holds the API's key and the secret that signs deliveries; it is empty unless the bench measures with them.
type security struct {
	keys    *access.Keys
	keyID   string
	secrets *secrets.Secrets
	// token is the key to send with each request; empty if the API requires none.
	token string
	// settings are the replicas' options.
	settings map[string]string
}

// secure creates a key, a signing secret, and, in dir, the file with the key that encrypts secrets.
func (b *Bench) secure(ctx context.Context, dir string) error {
	text, _ := secrets.NewKey()
	file := filepath.Join(dir, "encryption.key")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return err
	}
	ring, err := secrets.ReadKeyring([]string{file})
	if err != nil {
		return err
	}
	b.security.keys = access.NewKeys(b.store)
	token, key, err := b.security.keys.Create(ctx, access.KeyParams{Role: access.Submitter, Scope: access.Everything()},
		"carillon-bench", time.Now())
	if err != nil {
		return err
	}
	b.security.keyID, b.security.token = key.ID, token
	b.security.settings = map[string]string{"auth": "keys", "encryption-key-file": file}
	b.security.secrets = secrets.New(b.store, ring, slog.New(slog.DiscardHandler))
	_, _, err = b.security.secrets.CreateSigning(
		ctx, job.DefaultTenant, job.DefaultSigning, secrets.NewSigning{}, time.Now())
	return err
}

// unsecure deletes the key and the secret, if they exist.
func (b *Bench) unsecure(ctx context.Context) (err error) {
	if b.security.secrets != nil {
		err = b.security.secrets.DeleteSigning(ctx, job.DefaultTenant, job.DefaultSigning)
	}
	if b.security.keyID != "" {
		err = errors.Join(err, b.security.keys.Revoke(ctx, b.security.keyID, time.Now()))
	}
	if b.security.keys != nil {
		err = errors.Join(err, b.security.keys.Close())
	}
	return err
}
