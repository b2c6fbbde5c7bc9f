package kafka_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/callbacks/kafka"
	"github.com/carillon-scheduler/carillon/job"
)

// BenchmarkSend compares the sender with the simplest use of its client that waits for acknowledgements. The brokers
// are fake and in this process, so the numbers are the sender's cost, not Kafka's capacity.
func BenchmarkSend(b *testing.B) {
	brokers, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(3, inbox), kfake.BlackholeProduce())
	if err != nil {
		b.Fatal(err)
	}
	defer brokers.Close()
	at := time.Now()
	name := job.Name{Tenant: job.DefaultTenant, Key: "bench"}
	attempt := func(i int) callbacks.Delivery {
		d := callbacks.Delivery{ID: job.DeliveryID(name, at, i, ""), Name: name, Timestamp: at, Attempt: 1, SentAt: at}
		d.Data = fmt.Appendf(nil, `{"topic":%q,"key":"%d","payload":{"a":1}}`, inbox, i)
		return d
	}
	for _, senders := range []int{256, 1000} {
		for _, linger := range []time.Duration{0, time.Millisecond} {
			b.Run(fmt.Sprintf("raw/linger=%s/senders=%d", linger, senders), func(b *testing.B) {
				client, err := kgo.NewClient(kgo.SeedBrokers(brokers.ListenAddrs()...), kgo.ProducerLinger(linger), kgo.ProducerBatchCompression(kgo.NoCompression()))
				if err != nil {
					b.Fatal(err)
				}
				defer client.Close()
				many(b, senders, func(i int) error {
					r := &kgo.Record{
						Topic: inbox, Key: fmt.Append(nil, i), Value: []byte(`{"a":1}`),
						Headers: []kgo.RecordHeader{{Key: "carillon-id", Value: []byte("01J00000000000000000000000")}},
					}
					done := make(chan error, 1)
					client.Produce(context.Background(), r, func(_ *kgo.Record, err error) { done <- err })
					return <-done
				})
			})
		}
		b.Run(fmt.Sprintf("sender/senders=%d", senders), func(b *testing.B) {
			sender := newSender(b, kafka.Options{Brokers: brokers.ListenAddrs()})
			if err := deliver(context.Background(), sender, attempt(-1)); err != nil {
				b.Fatal(err)
			}
			many(b, senders, func(i int) error {
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // as the dispatcher's
				defer cancel()
				return sender.Send(ctx, attempt(i))
			})
		})
	}
}

// many measures the throughput of several senders at once.
func many(b *testing.B, senders int, send func(i int) error) {
	work := make(chan int, senders)
	var all sync.WaitGroup
	for range senders {
		all.Go(func() {
			for i := range work {
				if err := send(i); err != nil {
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
}
