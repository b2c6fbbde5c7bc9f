//go:build services

package rabbitmq_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/callbacks/rabbitmq"
	"github.com/carillon-scheduler/carillon/job"
)

// BenchmarkSend compares the sender with the simplest publisher that waits for its confirms: one channel, at most 1000
// messages unconfirmed, no headers or other properties. The figures in docs/performance.md are measured in rounds, each
// benchmark in turn.
func BenchmarkSend(b *testing.B) {
	url := brokerURL(b)
	conn, err := amqp.Dial(url)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		b.Fatal(err)
	}
	const queue = "carillon-bench"
	if _, err := ch.QueueDeclare(queue, true, false, false, false, nil); err != nil {
		b.Fatal(err)
	}
	defer func() { _, _ = ch.QueueDelete(queue, false, false, false) }()
	body := []byte(`{"a":"` + strings.Repeat("x", 192) + `"}`)
	purge := func() { _, _ = ch.QueuePurge(queue, false) }

	b.Run("raw", func(b *testing.B) {
		defer purge()
		raw, err := conn.Channel()
		if err != nil {
			b.Fatal(err)
		}
		defer raw.Close()
		if err := raw.Confirm(false); err != nil {
			b.Fatal(err)
		}
		window := make(chan *amqp.DeferredConfirmation, 1000)
		var confirmed sync.WaitGroup
		confirmed.Go(func() {
			for c := range window {
				if !c.Wait() {
					b.Error("refused")
				}
			}
		})
		b.ReportAllocs()
		for b.Loop() {
			c, err := raw.PublishWithDeferredConfirm("", queue, true, false, amqp.Publishing{
				DeliveryMode: amqp.Persistent, ContentType: "application/json", Body: body,
			})
			if err != nil {
				b.Fatal(err)
			}
			window <- c
		}
		close(window)
		confirmed.Wait()
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
	})
	for _, channels := range []int{1, 2, 4} {
		for _, senders := range []int{256, 1000} {
			b.Run(fmt.Sprintf("channels=%d/senders=%d", channels, senders), func(b *testing.B) {
				defer purge()
				sender, err := rabbitmq.New(rabbitmq.Options{URL: url, Channels: channels})
				if err != nil {
					b.Fatal(err)
				}
				defer sender.Close()
				at := time.Now()
				name := job.Name{Tenant: job.DefaultTenant, Key: "bench"}
				data := []byte(`{"queue":"` + queue + `","payload":` + string(body) + `}`)
				attempt := func(i int) callbacks.Delivery {
					return callbacks.Delivery{ID: job.DeliveryID(name, at, i, ""), Name: name, Timestamp: at, Attempt: 1, SentAt: at, Data: data}
				}
				if err := deliver(context.Background(), sender, attempt(-1)); err != nil {
					b.Fatal(err)
				}
				work := make(chan int, senders)
				var all sync.WaitGroup
				for range senders {
					all.Go(func() {
						for i := range work {
							if err := sender.Send(context.Background(), attempt(i)); err != nil {
								b.Error(err)
							}
						}
					})
				}
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					work <- i
					i++
				}
				close(work)
				all.Wait()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
			})
		}
	}
}
