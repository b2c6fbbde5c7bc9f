package main

import (
	"database/sql"
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/callbacks/webhook"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/secrets"
	"github.com/carillon-scheduler/carillon/store/memory"
)

// Carillon's own sender calls the example, so the test shows that both fit.
func TestReceiver(t *testing.T) {
	db, err := openDB(filepath.Join(t.TempDir(), "receiver.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	server := httptest.NewServer(handler(db, func([]byte, http.Header) error { return nil }))
	defer server.Close()
	sender := webhook.New(webhook.Options{})
	defer sender.Close()

	send := func(key, payload string) error {
		at := time.Date(2026, 12, 24, 14, 0, 0, 0, time.UTC)
		name := job.Name{Tenant: job.DefaultTenant, Key: key}
		data := []byte(`{"url":"` + server.URL + `/reminders","payload":` + payload + `}`)
		return sender.Send(t.Context(), callbacks.Delivery{
			ID: job.DeliveryID(name, at, 0, ""), Name: name, Timestamp: at, Attempt: 1, SentAt: at, Data: data,
		})
	}

	t.Run("a delivery that comes ten times at once", func(t *testing.T) {
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				if err := send("often", `{"text":"often"}`); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		wantReminders(t, db, "often", 1)
	})
	t.Run("two deliveries", func(t *testing.T) {
		for _, key := range []string{"one", "two"} {
			if err := send(key, `{"text":"both"}`); err != nil {
				t.Error(err)
			}
		}
		wantReminders(t, db, "both", 2)
	})
	t.Run("work that fails is tried again", func(t *testing.T) {
		move := func(from, to string) {
			if _, err := db.Exec(`ALTER TABLE ` + from + ` RENAME TO ` + to); err != nil {
				t.Fatal(err)
			}
		}
		move("reminders", "elsewhere")
		err := send("mended", `{"text":"mended"}`)
		if failure, ok := errors.AsType[*callbacks.Failure](err); !ok || failure.Permanent || failure.After != 5*time.Second {
			t.Errorf("it fails with %v", err)
		}
		move("elsewhere", "reminders")
		if err := send("mended", `{"text":"mended"}`); err != nil {
			t.Error(err)
		}
		wantReminders(t, db, "mended", 1)
	})
	t.Run("nonsense is not tried again", func(t *testing.T) {
		for _, payload := range []string{`null`, `[]`, `{"text":1}`, `{}`} {
			failure, ok := errors.AsType[*callbacks.Failure](send("nonsense", payload))
			if !ok || !failure.Permanent {
				t.Errorf("%s: %v", payload, failure)
			}
		}
	})
}

// A receiver with a secret accepts deliveries with a valid signature only.
func TestSigned(t *testing.T) {
	db, err := openDB(filepath.Join(t.TempDir(), "receiver.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	keys, err := secrets.NewKeyring(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	vault := secrets.New(memory.New(), keys, nil)
	create := func(name string) string {
		secret, _, err := vault.CreateSigning(t.Context(), job.DefaultTenant, name, secrets.NewSigning{}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return secret
	}
	verifier, err := standardwebhooks.NewWebhook(create("default"))
	if err != nil {
		t.Fatal(err)
	}
	create("another")
	server := httptest.NewServer(handler(db, verifier.Verify))
	defer server.Close()
	sender := webhook.New(webhook.Options{})
	defer sender.Close()
	for signing, want := range map[string]int{"": 1, "another": 0, job.NoSigning: 0} {
		name := job.Name{Tenant: job.DefaultTenant, Key: "signed by " + signing}
		at := time.Now()
		err := sender.Send(t.Context(), callbacks.Delivery{
			ID: job.DeliveryID(name, at, 0, ""), Name: name, Timestamp: at, Attempt: 1, SentAt: at, Signing: signing, Secrets: vault,
			Data: []byte(`{"url":"` + server.URL + `/reminders","payload":{"text":"` + name.Key + `"}}`),
		})
		if (err == nil) != (want == 1) {
			t.Errorf("%s: %v", name.Key, err)
		}
		wantReminders(t, db, name.Key, want)
	}
}

func wantReminders(t *testing.T, db *sql.DB, text string, want int) {
	t.Helper()
	var n int
	if err := db.QueryRow(`SELECT count(*) FROM reminders WHERE text = ?`, text).Scan(&n); err != nil || n != want {
		t.Errorf("%d reminders %q, want %d (%v)", n, text, want, err)
	}
}
