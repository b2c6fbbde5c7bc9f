package main

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
	"github.com/carillon-scheduler/carillon/secrets"
	"github.com/carillon-scheduler/carillon/store"
)

// newKeyFile makes an encryption key by the command, and answers its file and its id.
func newKeyFile(t *testing.T) (file, id string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "carillon.key")
	stdout, stderr := carillon(t, 0, "secrets", "new-key", file)
	keys, err := secrets.ReadKeyring([]string{file})
	if err != nil || !strings.Contains(stderr, keys.Encrypting()) || stdout != "" {
		t.Fatalf("the key is %v, and told of by %q and %q", err, stdout, stderr)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("its file has the mode %v, %v", info.Mode(), err)
	}
	return file, keys.Encrypting()
}

func TestSecretsCommands(t *testing.T) {
	url := "sqlite:" + filepath.Join(t.TempDir(), "carillon.db")
	first, firstID := newKeyFile(t)
	second, secondID := newKeyFile(t)
	before, err := os.ReadFile(first)
	if err != nil {
		t.Fatal(err)
	}
	carillon(t, cli.ExitUsage, "secrets", "new-key", first)
	if after, err := os.ReadFile(first); err != nil || !bytes.Equal(before, after) {
		t.Errorf("a key was overwritten: %v", err)
	}
	carillon(t, cli.ExitUsage, "secrets", "new-key")
	_, stderr := carillon(t, cli.ExitUsage, "secrets")
	expectContains(t, "the answer", stderr, "secrets new-key", "secrets reencrypt")

	onStore(t, url, func(s store.Store) {
		keys, err := secrets.ReadKeyring([]string{first})
		if err != nil {
			t.Fatal(err)
		}
		all := secrets.New(s, keys, nil)
		if _, _, err := all.Put(t.Context(), "acme", "token", secrets.Value{Text: "s3cret"}, time.Now()); err != nil {
			t.Fatal(err)
		}
		if _, _, err := all.CreateSigning(t.Context(), "acme", "default", secrets.NewSigning{}, time.Now()); err != nil {
			t.Fatal(err)
		}
	})
	startFails(t, []string{"--store=" + url}, cli.ExitUsage, firstID, "--encryption-key-file")
	startFails(t, []string{"--store=" + url, "--encryption-key-file=" + second}, cli.ExitUsage, firstID, "--encryption-key-file")
	if err := os.Chmod(second, 0o644); err != nil {
		t.Fatal(err)
	}
	startFails(t, []string{"--store=" + url, "--encryption-key-file=" + first + "," + second}, cli.ExitUsage, second, "0644")
	if err := os.Chmod(second, 0o600); err != nil {
		t.Fatal(err)
	}

	_, stderr = carillon(t, cli.ExitFailure, "secrets", "reencrypt", "--store="+url, "--encryption-key-file="+second)
	expectContains(t, "without the old key", stderr, firstID, "token", "default")
	_, stderr = carillon(t, 0, "secrets", "reencrypt", "--store="+url, "--encryption-key-file="+second, "--encryption-key-file="+first)
	expectContains(t, "the first time", stderr, secondID, ": 2 now, 0 already")
	_, stderr = carillon(t, 0, "secrets", "reencrypt", "--store="+url, "--encryption-key-file="+second)
	expectContains(t, "the second time", stderr, secondID, ": 0 now, 2 already")
	startFails(t, []string{"--store=" + url, "--encryption-key-file=" + first}, cli.ExitUsage, secondID)

	for _, args := range [][]string{
		{"--store=" + url}, {"--encryption-key-file=" + first}, {"--store=memory:", "--encryption-key-file=" + first},
		{"--store=" + url, "--encryption-key-file=" + first + "-none"},
	} {
		carillon(t, cli.ExitUsage, append([]string{"secrets", "reencrypt"}, args...)...)
	}

	to := "sqlite:" + filepath.Join(t.TempDir(), "to.db")
	_, stderr = carillon(t, 0, "secrets", "copy", "--store="+url, "--to="+to)
	expectContains(t, "the first time", stderr, "copied: 2 secrets; there already: 0")
	_, stderr = carillon(t, 0, "secrets", "copy", "--store="+url, "--to="+to)
	expectContains(t, "the second time", stderr, "copied: 0 secrets; there already: 2")
	onStore(t, to, func(s store.Store) {
		keys, err := secrets.ReadKeyring([]string{second})
		if err != nil {
			t.Fatal(err)
		}
		moved := secrets.New(s, keys, slog.New(slog.DiscardHandler))
		value, err := moved.Secret(t.Context(), "acme", "token", "")
		signature, signErr := moved.Sign(t.Context(), "acme", "default", "id", time.Now(), nil)
		if err != nil || value != "s3cret" || signErr != nil || signature == "" {
			t.Errorf("moved: %q, %v, %q, %v", value, err, signature, signErr)
		}
	})
	carillon(t, cli.ExitUsage, "secrets", "copy", "--store="+url)
	carillon(t, cli.ExitUsage, "secrets", "copy", "--store="+url, "--to=memory:")

	export := filepath.Join(t.TempDir(), "export")
	carillon(t, 0, "export", "--store="+url, "--output="+export)
	if content, err := os.ReadFile(export); err != nil || bytes.Contains(content, []byte("s3cret")) || bytes.Contains(content, []byte("sealed")) {
		t.Errorf("the export has secrets: %s, %v", content, err)
	}
}

// The key's file can be named by the environment.
func TestEncryptionKeyFromTheEnvironment(t *testing.T) {
	file, _ := newKeyFile(t)
	t.Setenv("CARILLON_ENCRYPTION_KEY_FILE", file+"-none")
	startFails(t, []string{"--store=memory:"}, cli.ExitUsage, "--encryption-key-file", file+"-none")
	if warnings := unknownVariables(os.Environ()); len(warnings) > 0 {
		t.Errorf("it is warned of: %q", warnings)
	}
}
