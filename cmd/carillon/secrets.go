package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
	"github.com/carillon-scheduler/carillon/cmd/internal/service"
	"github.com/carillon-scheduler/carillon/secrets"
	"github.com/carillon-scheduler/carillon/store/bounded"
)

const secretsHelp = "Look after the keys that encrypt secrets. \"new-key FILE\" makes a random key in a new file that " +
	"only its owner can read. \"reencrypt\" encrypts all secrets in a store with the first of the keys, while replicas " +
	"run: give the new key first, and those that are in use after it."

// secretsCommand looks after encryption keys.
type secretsCommand struct {
	store string
	files []string
}

// Flags declares the options.
func (c *secretsCommand) Flags(f *flag.FlagSet) {
	f.StringVar(&c.store, "store", "", "`URL`: Of reencrypt: the store, as for serve.")
	service.EncryptionKeyFlag(f, &c.files)
}

// Run does what the first argument says.
func (c *secretsCommand) Run(ctx context.Context, in cli.Input) error {
	const usage = "give \"new-key FILE\" or \"reencrypt\""
	if len(in.Arguments) == 0 {
		return cli.Usagef(usage)
	}
	switch what, rest := in.Arguments[0], in.Arguments[1:]; {
	case what == "new-key" && len(rest) == 1:
		return newKey(rest[0], in.Stderr)
	case what == "reencrypt" && len(rest) == 0:
		return c.reencrypt(ctx, in.Stderr)
	default:
		return cli.Usagef(usage+", not %q", in.Arguments)
	}
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

// reencrypt encrypts all secrets of a store with the first key.
func (c *secretsCommand) reencrypt(ctx context.Context, stderr io.Writer) (err error) {
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
	s, err := service.OpenStore(ctx, c.store)
	if err != nil {
		return fmt.Errorf("--store: %w", err)
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	all := secrets.New(bounded.Records(s), keys, slog.New(slog.DiscardHandler))
	so, err := all.Reencrypt(ctx)
	fmt.Fprintf(stderr, "encrypted with the key %s: %d secrets, and %d that were so already\n",
		keys.Encrypting(), so.Done, so.Before)
	if err != nil {
		return err
	}
	needed, err := all.KeysNeeded(ctx)
	for _, id := range needed {
		if id != keys.Encrypting() {
			return fmt.Errorf("meanwhile a replica has encrypted with the key %s: "+
				"have all replicas encrypt with %s first, then do this again", id, keys.Encrypting())
		}
	}
	return err
}
