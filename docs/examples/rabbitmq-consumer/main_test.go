//go:build services

package main

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/callbacks/rabbitmq"
	"github.com/carillon-scheduler/carillon/job"
)

// The example receives from Carillon's own sender, so the test shows that both fit.
func TestConsumer(t *testing.T) {
	url := os.Getenv("CARILLON_TEST_RABBITMQ_URL")
	if url == "" {
		t.Fatal("CARILLON_TEST_RABBITMQ_URL is not set; run the tests by .ci/with-services")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	db, err := openDB(filepath.Join(t.TempDir(), "consumer.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	sender, err := rabbitmq.New(rabbitmq.Options{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	defer sender.Close()
	queue := "carillon-example-" + job.NewToken()
	conn, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = ch.QueueDelete(queue, false, false, false) }()

	consuming, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- consume(consuming, url, queue, db) }()

	send := func(key, payload string) {
		t.Helper()
		at := time.Date(2026, 12, 24, 14, 0, 0, 0, time.UTC)
		name := job.Name{Tenant: job.DefaultTenant, Key: key}
		data := []byte(`{"queue":"` + queue + `","payload":` + payload + `}`)
		for { // until the sender is connected and the queue is declared
			err := sender.Send(ctx, callbacks.Delivery{
				ID: job.DeliveryID(name, at, 0, ""), Name: name, Timestamp: at, Attempt: 1, SentAt: at, Data: data,
			})
			if err == nil {
				return
			}
			if ctx.Err() != nil {
				t.Fatal(errors.Join(ctx.Err(), err))
			}
		}
	}
	send("one", `{"text":"once"}`)
	send("one", `{"text":"once"}`)
	send("nonsense", `{"text":1}`)
	send("two", `{"text":"twice"}`)
	send("three", `{"text":"twice"}`)
	send("last", `{"text":"last"}`)

	for count(t, db, "last") == 0 { // a single consumer gets a queue's messages in order
		if ctx.Err() != nil {
			t.Fatal("the messages were not consumed")
		}
		time.Sleep(5 * time.Millisecond)
	}
	for text, want := range map[string]int{"once": 1, "twice": 2} {
		if n := count(t, db, text); n != want {
			t.Errorf("%d reminders %q, want %d", n, text, want)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil); err != nil || q.Messages != 0 { // the broker takes back unacknowledged messages
		t.Errorf("%d messages were not acknowledged (%v)", q.Messages, err)
	}
}

func count(t *testing.T, db *sql.DB, text string) (n int) {
	t.Helper()
	if err := db.QueryRow(`SELECT count(*) FROM reminders WHERE text = ?`, text).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}
