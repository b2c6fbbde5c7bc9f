// Webhook-receiver accepts Carillon's HTTP callbacks and does the work of each delivery exactly once, however often it
// arrives. The order is essential: one transaction does the work and records the delivery id, and the receiver answers
// with success only after the commit. Run it, and let a job call http://127.0.0.1:8090/reminders. If the environment
// variable WEBHOOK_SECRET holds a signing secret of Carillon, the receiver refuses deliveries without a valid
// signature.
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"flag"
	"io"
	"log"
	"net/http"
	"os"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	_ "modernc.org/sqlite"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:8090", "address to listen on")
	path := flag.String("db", "receiver.db", "SQLite file")
	flag.Parse()

	db, err := openDB(*path)
	if err != nil {
		log.Fatal(err)
	}
	go forget(db)
	verify := func([]byte, http.Header) error { return nil }
	if secret := os.Getenv("WEBHOOK_SECRET"); secret != "" {
		verifier, err := standardwebhooks.NewWebhook(secret)
		if err != nil {
			log.Fatal(err)
		}
		verify = verifier.Verify
	}
	server := &http.Server{Addr: *listen, Handler: handler(db, verify), ReadTimeout: 10 * time.Second}
	log.Fatal(server.ListenAndServe())
}

func openDB(path string) (*sql.DB, error) {
	// A transaction takes the write lock at once, so two deliveries of one id can't both find it new.
	db, err := sql.Open("sqlite", "file:"+path+"?_txlock=immediate&_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)")
	if err != nil {
		return nil, err
	}
	_, err = db.Exec(`
		CREATE TABLE IF NOT EXISTS seen (id TEXT PRIMARY KEY, at INTEGER NOT NULL) WITHOUT ROWID;
		CREATE INDEX IF NOT EXISTS seen_at ON seen (at);
		CREATE TABLE IF NOT EXISTS reminders (text TEXT NOT NULL);`)
	return db, err
}

// reminder is the payload of the receiver's jobs.
type reminder struct {
	Text string `json:"text"`
}

// handler returns the receiver's handler. Verify returns an error for a delivery without a valid signature.
func handler(db *sql.DB, verify func(body []byte, header http.Header) error) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /reminders", func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get("webhook-id")
		var payload reminder
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil {
			http.Error(w, "can't read the body", http.StatusServiceUnavailable)
			return
		}
		if err := verify(body, r.Header); err != nil { // before the body is used
			http.Error(w, "not genuine", http.StatusUnauthorized)
			return
		}
		if id == "" || json.Unmarshal(body, &payload) != nil || payload.Text == "" {
			http.Error(w, "need a webhook-id and a text", http.StatusUnprocessableEntity) // 422: no retry
			return
		}
		if err := once(r.Context(), db, id, func(tx *sql.Tx) error { return remind(tx, payload) }); err != nil {
			log.Printf("delivery %q: %v", id, err) //nolint:gosec // quoted, so it stays on its line
			w.Header().Set("Retry-After", "5")
			http.Error(w, "try again", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	return mux
}

// once does the work of a delivery and records its id in one transaction. If the id is already recorded, the work is
// done and only the answer was lost, so once succeeds.
func once(ctx context.Context, db *sql.DB, id string, work func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after the commit
	result, err := tx.ExecContext(ctx, `INSERT INTO seen (id, at) VALUES (?, ?) ON CONFLICT DO NOTHING`,
		id, time.Now().Unix())
	if err != nil {
		return err
	}
	if fresh, err := result.RowsAffected(); err != nil || fresh == 0 {
		return err
	}
	if err := work(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// remind is the work. It belongs in the transaction. Write work outside the database, such as a mail, to a table here,
// and let another process send it from there.
func remind(tx *sql.Tx, r reminder) error {
	_, err := tx.Exec(`INSERT INTO reminders (text) VALUES (?)`, r.Text)
	return err
}

// forget deletes old ids once an hour. They can't come again: a week is well beyond the default retry policy.
func forget(db *sql.DB) {
	for range time.Tick(time.Hour) {
		if _, err := db.Exec(`DELETE FROM seen WHERE at < ?`, time.Now().Add(-7*24*time.Hour).Unix()); err != nil {
			log.Print(err)
		}
	}
}
