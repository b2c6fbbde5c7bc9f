package secrets_test

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/secrets"
)

// Secrets are encrypted again while replicas, which have both keys, change and use them: nothing is lost, and the old
// key is no longer needed.
func TestReencryptUnderLoad(t *testing.T) {
	records := newRecords()
	old := open(t, records, ring(t, 1))
	const names = 40
	name := func(i int) string { return fmt.Sprintf("s%02d", i) }
	for i := range names {
		old.put("acme", name(i), name(i)+"-0")
		if _, _, err := old.CreateSigning(t.Context(), "acme", name(i), secrets.NewSigning{Ed25519: i%2 == 0}, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	var work sync.WaitGroup
	done := make(chan struct{})
	last := make([]string, names) // each name has one writer
	current := make([]string, names)
	for w := range 4 {
		replica := open(t, records, ring(t, 2, 1))
		work.Go(func() {
			for round := 1; ; round++ {
				for i := w; i < names; i += 8 { // the others keep their values
					last[i] = fmt.Sprintf("%s-%d", name(i), round)
					replica.put("acme", name(i), last[i])
					replica.expect("just put", "acme", name(i), last[i])
					secret, _, err := replica.Rotate(t.Context(), "acme", name(i), "", 0, time.Now())
					if err != nil {
						t.Error(err)
					}
					current[i] = secret
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	so, err := secrets.New(records, ring(t, 2, 1), slog.New(slog.DiscardHandler)).Reencrypt(t.Context())
	close(done)
	work.Wait()
	if err != nil || so.Done+so.Before != 2*names || so.Done < names {
		t.Errorf("encrypted anew: %+v, %v", so, err)
	}
	after := open(t, records, ring(t, 2)) // the old key is not needed
	for i := range names {
		want := last[i]
		if want == "" {
			want = name(i) + "-0"
		}
		after.expect("afterwards", "acme", name(i), want)
		now := time.Now() // a signature is of one second
		signature, err := after.Sign(t.Context(), "acme", name(i), "id", now, []byte("body"))
		if err != nil || signature == "" {
			t.Errorf("%s signs by %q, %v", name(i), signature, err)
		}
		if current[i] != "" && !verifies(t, current[i], "id", now, []byte("body"), signature) {
			t.Errorf("%s signs by another secret than its last", name(i))
		}
	}
	needed, err := after.KeysNeeded(t.Context())
	if err != nil || !slices.Equal(needed, []string{ring(t, 2).Encrypting()}) {
		t.Errorf("the keys needed are %q, %v", needed, err)
	}
	so, err = after.Reencrypt(t.Context())
	if err != nil || so.Done != 0 || so.Before != 2*names {
		t.Errorf("again: %+v, %v", so, err)
	}
}

func TestReencryptWithoutAKey(t *testing.T) {
	records := newRecords()
	open(t, records, ring(t, 1)).put("acme", "a", "s3cret-1")
	open(t, records, ring(t, 2, 1)).put("acme", "b", "s3cret-2")
	so, err := secrets.New(records, ring(t, 3, 1), slog.New(slog.DiscardHandler)).Reencrypt(t.Context())
	missing, ok := errors.AsType[*secrets.MissingKeyError](err)
	if so.Done != 1 || !ok || missing.IDs[0] != ring(t, 2).Encrypting() || !strings.Contains(err.Error(), `"b"`) {
		t.Errorf("%+v, %v", so, err)
	}
	open(t, records, ring(t, 3, 2)).expect("the others are done", "acme", "a", "s3cret-1")
	if _, err := secrets.New(records, &secrets.Keyring{}, nil).Reencrypt(t.Context()); !errors.Is(err, secrets.ErrNoKey) {
		t.Errorf("without any key: %v", err)
	}
}

func TestReadKeyring(t *testing.T) {
	text, id := secrets.NewKey()
	dir := t.TempDir()
	write := func(name, content string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := write("good", text+"\n", 0o600)
	second, secondID := secrets.NewKey()
	for name, files := range map[string][]string{
		"one": {good}, "two": {good, write("second", strings.TrimRight(second, "="), 0o440)}, "twice": {good, good},
		"read only": {write("readonly", "\n "+text+"\r\n", 0o400)},
	} {
		if r, err := secrets.ReadKeyring(files); err != nil || r.Encrypting() != id {
			t.Errorf("%s: %v", name, err)
		}
	}
	if r, err := secrets.ReadKeyring([]string{filepath.Join(dir, "second"), good}); err != nil || r.Encrypting() != secondID {
		t.Errorf("the first one does not encrypt: %v", err)
	}
	if r, err := secrets.ReadKeyring(nil); err != nil || r.Encrypting() != "" {
		t.Errorf("none: %v", err)
	}
	bad := map[string]string{
		"missing":  filepath.Join(dir, "nowhere"),
		"empty":    write("empty", "", 0o600),
		"short":    write("short", text[:40], 0o600),
		"two keys": write("twokeys", text+"\n"+second+"\n", 0o600),
		"hex":      write("hex", strings.Repeat("0f", 32), 0o600),
		"words":    write("words", "correct horse battery staple", 0o600),
		"folder":   dir,
	}
	if runtime.GOOS != "windows" {
		bad["readable by all"] = write("open", text, 0o644)
		bad["writable by the group"] = write("group", text, 0o660)
	}
	for name, path := range bad {
		_, err := secrets.ReadKeyring([]string{good, path})
		if err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && (strings.Contains(err.Error(), text[:20]) || strings.Contains(err.Error(), "horse")) {
			t.Errorf("%s: the error quotes the file: %v", name, err)
		}
	}
}
