package service

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/secrets"
	"github.com/carillon-scheduler/carillon/store"
)

// TestStoresAreDocumented: docs/stores.md has a URL of each kind of store, the help too, and MongoDB is named first.
func TestStoresAreDocumented(t *testing.T) {
	docs, err := os.ReadFile("../../../docs/stores.md")
	if err != nil {
		t.Fatal(err)
	}
	var known []string
	for _, k := range storeKinds {
		for _, scheme := range k.schemes {
			if slices.Contains(known, scheme) {
				t.Errorf("two kinds of stores have the scheme %s", scheme)
			}
			known = append(known, scheme)
		}
		if name := k.schemes[0] + ":"; !strings.Contains(string(docs), name) || !strings.HasPrefix(k.example, name) {
			t.Errorf("docs/stores.md or the help has no URL that begins with %s", name)
		}
	}
	if !strings.HasPrefix(StoreExamples(), "mongodb://") {
		t.Errorf("the help begins with %s", StoreExamples())
	}
}

// leaving is a store that has been opened, and can't be reached for some time.
type leaving struct {
	store.Store
	until time.Time
}

func (l leaving) Records(context.Context, store.RecordFilter) ([]store.Record, error) {
	if time.Now().Before(l.until) {
		return nil, store.ErrUnavailable
	}
	return nil, nil
}

// TestStoreWaitGoesOn: --store-wait lasts until the service serves. A store that goes away once it is open, and comes
// back in time, does not end the service.
func TestStoreWaitGoesOn(t *testing.T) {
	for wait, away := range map[time.Duration]bool{0: true, time.Minute: false, 5 * time.Second: true} {
		synctest.Test(t, func(t *testing.T) {
			records := leaving{until: time.Now().Add(20 * time.Second)}
			keys, err := secrets.ReadKeyring(nil)
			if err != nil {
				t.Fatal(err)
			}
			_, err = openSecrets(t.Context(), records, keys, wait, slog.New(slog.DiscardHandler))
			if errors.Is(err, store.ErrUnavailable) != away || err == nil == away {
				t.Errorf("--store-wait=%s: %v", wait, err)
			}
		})
	}
}
