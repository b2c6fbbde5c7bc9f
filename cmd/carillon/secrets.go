package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/carillon-scheduler/carillon/audit"
	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
	"github.com/carillon-scheduler/carillon/cmd/internal/service"
	"github.com/carillon-scheduler/carillon/secrets"
	"github.com/carillon-scheduler/carillon/store/bounded"
	"github.com/carillon-scheduler/carillon/store/storeurl"
)

const (
	newKeyHelp    = "Make a random key for --encryption-key-file, in a new file that only its owner can read."
	reencryptHelp = "Encrypt all secrets in a store with the first of the keys, while replicas run. Name the new " +
		"key first, and the present ones after it. See docs/secrets.md."
	copyHelp = "Copy all secrets of a store to another one, encrypted as they are: an export has none. Secrets " +
		"that the other store has already are skipped."
)

// secretsNewKeyCommand makes an encryption key.
type secretsNewKeyCommand struct{}

// Flags declares no option.
func (*secretsNewKeyCommand) Flags(*flag.FlagSet) {}

// Run makes the key.
func (*secretsNewKeyCommand) Run(_ context.Context, in cli.Input) error {
	if len(in.Arguments) != 1 {
		return cli.Usagef("give the name of one file, such as 'carillon secrets new-key carillon.key'")
	}
	return newKey(in.Arguments[0], in.Stderr)
}

// newKey makes a key in a file that does not exist yet.
func newKey(name string, stderr io.Writer) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return cli.Usage(err)
	}
	text, id := secrets.NewKey()
	_, err = fmt.Fprintln(f, text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	fmt.Fprintf(stderr, "%s has the new key %s. Keep a copy in a safe place: without it, what it encrypts is lost.\n",
		name, id)
	return nil
}

// secretsReencryptCommand encrypts all secrets of a store with another key.
type secretsReencryptCommand struct {
	store string
	files []string
}

// Flags declares the options.
func (c *secretsReencryptCommand) Flags(f *flag.FlagSet) {
	f.StringVar(&c.store, "store", "", "`URL`: The store that has the secrets, as for serve.")
	service.EncryptionKeyFlag(f, &c.files)
}

// Run encrypts all secrets with the first key, and prints their number on standard error.
func (c *secretsReencryptCommand) Run(ctx context.Context, in cli.Input, line *audit.Entry) (err error) {
	switch {
	case c.store == "":
		return cli.Usagef("--store is missing: name the store, as for serve")
	case service.Alone(c.store):
		return cli.Usagef("--store: %q is the memory of one process, which no other can reach", c.store)
	case len(c.files) == 0:
		return cli.Usagef("--encryption-key-file is missing: name the files of the new key and of those in use")
	}
	keys, err := secrets.ReadKeyring(c.files)
	if err != nil {
		return cli.Usagef("--encryption-key-file: %w", err)
	}
	line.Target = storeurl.Address(c.store)
	s, err := service.OpenStore(ctx, c.store)
	if err != nil {
		return fmt.Errorf("--store: %w", err)
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	all := secrets.New(bounded.Records(s), keys, slog.New(slog.DiscardHandler))
	so, err := all.Reencrypt(ctx)
	line.Changed = so.Done
	fmt.Fprintf(in.Stderr, "secrets encrypted with the key %s: %d now, %d already before\n",
		keys.Encrypting(), so.Done, so.Before)
	if err != nil {
		return err
	}
	needed, err := all.KeysNeeded(ctx)
	for _, id := range needed {
		if id != keys.Encrypting() {
			return fmt.Errorf("meanwhile a replica has encrypted with the key %s: "+
				"make all replicas encrypt with %s first, then run this command again", id, keys.Encrypting())
		}
	}
	return err
}
