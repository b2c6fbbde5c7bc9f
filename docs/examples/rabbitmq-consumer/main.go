// Rabbitmq-consumer consumes Carillon's messages from a queue and does the work of each delivery exactly once, however
// often the message arrives. The order is essential: one transaction does the work and records the message id, and the
// message is acknowledged only after the commit. The program ends with its connection; a supervisor should restart it.
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"flag"
	"log"
	"os"
	"os/signal"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	_ "modernc.org/sqlite"
)

func main() {
	url := flag.String("url", "amqp://guest:guest@127.0.0.1:5672/", "address of the broker")
	queue := flag.String("queue", "reminders", "queue to consume, declared if it is not there")
	path := flag.String("db", "consumer.db", "SQLite file")
	flag.Parse()

	db, err := openDB(*path)
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := consume(ctx, *url, *queue, db); err != nil {
		log.Print(err)
	}
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

// consume consumes messages until ctx ends, which is no error, or the connection does.
func consume(ctx context.Context, url, queue string, db *sql.DB) error {
	conn, err := amqp.Dial(url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // the broker delivers unacknowledged messages again
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	// Durable, so that the queue survives a restart of the broker, as Carillon's persistent messages do.
	if _, err := ch.QueueDeclare(queue, true, false, false, false, nil); err != nil {
		return err
	}
	if err := ch.Qos(100, 0, false); err != nil { // otherwise the broker sends all its messages
		return err
	}
	messages, err := ch.ConsumeWithContext(ctx, queue, "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	forget := time.NewTicker(time.Hour)
	defer forget.Stop()
	for {
		select {
		case m, open := <-messages:
			if !open {
				if ctx.Err() != nil {
					return nil
				}
				return errors.New("the connection was lost")
			}
			if err := take(ctx, db, m); err != nil {
				return err
			}
		case <-forget.C:
			// Older ids can't come again: a week is well beyond the default retry policy.
			weekAgo := time.Now().Add(-7 * 24 * time.Hour)
			if _, err := db.ExecContext(ctx, `DELETE FROM seen WHERE at < ?`, weekAgo.Unix()); err != nil {
				log.Print(err)
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// reminder is the payload of the consumer's jobs.
type reminder struct {
	Text string `json:"text"`
}

// take does the work of one message, and acknowledges or rejects it.
func take(ctx context.Context, db *sql.DB, m amqp.Delivery) error {
	var payload reminder
	if m.MessageId == "" || json.Unmarshal(m.Body, &payload) != nil || payload.Text == "" {
		log.Printf("message %q is nonsense", m.MessageId)
		return m.Nack(false, false) // no redelivery; the queue's dead-letter exchange, if any, keeps it
	}
	if err := once(ctx, db, m.MessageId, func(tx *sql.Tx) error { return remind(tx, payload) }); err != nil {
		log.Printf("message %s: %v", m.MessageId, err)
		// Carillon's delivery ended with the broker's confirm, so the queue must redeliver the message.
		return m.Nack(false, true)
	}
	return m.Ack(false)
}

// once does the work of a delivery and records its id in one transaction. If the id is already recorded, the work is
// done and only the acknowledgement was lost, so once succeeds.
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
