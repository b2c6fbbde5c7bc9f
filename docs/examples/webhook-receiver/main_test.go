package main

import (
	"database/sql"
	"errors"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/callbacks/webhook"
	"github.com/carillon-scheduler/carillon/job"
)

// Carillon's own sender calls the example, so both are known to fit.
func TestReceiver(t *testing.T) {
	db, err := openDB(filepath.Join(t.TempDir(), "receiver.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	server := httptest.NewServer(handler(db))
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

func wantReminders(t *testing.T, db *sql.DB, text string, want int) {
	t.Helper()
	var n int
	if err := db.QueryRow(`SELECT count(*) FROM reminders WHERE text = ?`, text).Scan(&n); err != nil || n != want {
		t.Errorf("%d reminders %q, want %d (%v)", n, text, want, err)
	}
}
