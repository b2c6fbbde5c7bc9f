//go:build services

package main_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/carillon-scheduler/carillon/callbacks/kafka/testcluster"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// TestIntakeQueue: replicas that are killed and a broker that is restarted, while submissions are taken from a queue,
// lose none, and take none twice.
func TestIntakeQueue(t *testing.T) {
	t.Parallel()
	brokerURL, control := theBroker(t)
	n := 6000
	if os.Getenv("CARILLON_TEST_LONG") != "" {
		n = 100_000
	}
	queue := "e2e-submissions-" + job.NewToken()
	onBroker(t, brokerURL, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(queue, true, false, false, false, amqp.Table{amqp.SingleActiveConsumerArg: true})
		return err
	})
	publish(t, brokerURL, queue, n)
	args := []string{"--rabbitmq-url=" + brokerURL, "--submit-rabbitmq-queue=acme=" + queue}
	c := storeNamed(t, "postgres").cluster(t)
	c.start(2, args...)
	c.until("some are stored", func() bool { return c.submitted(nil) > 0 })
	for _, r := range c.replicas {
		r.kill()
	}
	c.start(1, args...)
	ctl(t, control, "kill")
	ctl(t, control, "start")
	c.start(1, args...)
	c.until("all are stored", func() bool { return c.submitted(nil) == n })
	c.submitted(func(j *job.Job) {
		if !j.CreatedAt.Equal(j.UpdatedAt) {
			t.Errorf("%s was taken twice: at %v and at %v", j.Key, j.CreatedAt, j.UpdatedAt)
		}
	})
	c.until("all are acknowledged", func() bool { return length(t, brokerURL, queue) == 0 })
	if n := length(t, brokerURL, queue+".dead-letters"); n > 0 {
		t.Errorf("%d were refused", n)
	}
}

// TestIntakeTopic: replicas that are killed and a cluster that is restarted, while submissions are taken from a topic,
// lose none, and take none twice.
func TestIntakeTopic(t *testing.T) {
	t.Parallel()
	n := 6000
	if os.Getenv("CARILLON_TEST_LONG") != "" {
		n = 100_000
	}
	const topic = "submissions"
	kafka := startKafka(t, topic)
	client, args := kafka.client, kafka.options()
	produce := func(from, to int) {
		t.Helper()
		var records []*kgo.Record
		for i := from; i < to; i++ {
			records = append(records, &kgo.Record{Key: fmt.Append(nil, i), Value: submission(i)})
		}
		if err := client.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	c := storeNamed(t, "sqlite").cluster(t)
	c.start(2, args...)
	// The cluster in this process would keep a member for ever that ended before it had its partitions.
	shared := func() bool { return consumers(t, client, "carillon") == 2 }
	c.until("both replicas have partitions", shared)
	produce(0, n/2)
	c.until("some are stored", func() bool { return c.submitted(nil) > 0 })
	kafka.restart()
	c.until("half of them are stored", func() bool { return c.submitted(nil) == n/2 })
	c.until("both replicas have partitions again", shared)
	produce(n/2, n)
	c.until("some more are stored", func() bool { return c.submitted(nil) > n/2 })
	for _, r := range c.replicas {
		r.kill()
	}
	c.start(2, args...) // they wait until the group gives up the others
	c.until("all are stored", func() bool { return c.submitted(nil) == n })
	c.submitted(func(j *job.Job) {
		if !j.CreatedAt.Equal(j.UpdatedAt) {
			t.Errorf("%s was taken twice: at %v and at %v", j.Key, j.CreatedAt, j.UpdatedAt)
		}
	})
}

// consumers returns the number of members of a stable consumer group; zero while it shares out the partitions.
func consumers(t *testing.T, client *kgo.Client, group string) int {
	t.Helper()
	groups, err := kadm.NewClient(client).DescribeGroups(t.Context(), group)
	if err != nil {
		t.Fatal(err)
	}
	if groups[group].State != "Stable" {
		return 0
	}
	return len(groups[group].Members)
}

// kafka is a Kafka cluster in this process, and a client of it.
type kafka struct {
	*testing.T
	topic   string
	cluster *testcluster.Cluster
	client  *kgo.Client
}

// startKafka starts a cluster with a topic, to which its client publishes.
func startKafka(t *testing.T, topic string) *kafka {
	t.Helper()
	k := &kafka{T: t, topic: topic, cluster: testcluster.Start(t, kfake.SeedTopics(3, topic))}
	var err error
	if k.client, err = kgo.NewClient(kgo.SeedBrokers(k.cluster.ListenAddrs()...), kgo.DefaultProduceTopic(topic)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.client.Close)
	return k
}

// restart ends the cluster, and starts it with the same records at the same addresses.
func (k *kafka) restart() {
	k.Helper()
	k.cluster.Close()
	k.cluster.Start()
}

// options are those of a replica that takes the tenant acme's submissions from the topic.
func (k *kafka) options() []string {
	return []string{
		"--kafka-brokers=" + strings.Join(k.cluster.ListenAddrs(), ","), "--submit-kafka-topic=acme=" + k.topic,
	}
}

func storeNamed(t *testing.T, name string) freshStore {
	t.Helper()
	for _, s := range stores {
		if s.name == name {
			return s
		}
	}
	t.Fatalf("there is no store %s", name)
	return freshStore{}
}

// publish publishes jobs that a repetition would shift, and returns when the broker has them on disk.
func publish(t *testing.T, url, queue string, n int) {
	t.Helper()
	onBroker(t, url, func(ch *amqp.Channel) error {
		if err := ch.Confirm(false); err != nil {
			return err
		}
		var last *amqp.DeferredConfirmation
		for i := range n {
			var err error
			if last, err = ch.PublishWithDeferredConfirm("", queue, true, false, amqp.Publishing{
				DeliveryMode: amqp.Persistent, Body: submission(i),
			}); err != nil {
				return err
			}
			if i%1000 == 999 && !last.Wait() {
				return fmt.Errorf("message %d is refused", i)
			}
		}
		last.Wait()
		return nil
	})
}

func submission(i int) []byte {
	return fmt.Appendf(nil, `{"key": "job-%d", "delay": "30d", "callback": {"type": "http", "data": {"url": "http://127.0.0.1:1/"}}}`, i)
}

// submitted counts the jobs of the tenant acme, and shows each.
func (c *cluster) submitted(see func(*job.Job)) (n int) {
	c.Helper()
	filter := store.JobFilter{Tenant: "acme", Limit: 1000}
	for {
		page, err := c.store.Jobs(c.Context(), filter)
		if err != nil {
			c.Fatal(err)
		}
		for i := range page {
			if see != nil {
				see(&page[i].Job)
			}
		}
		if n += len(page); len(page) < filter.Limit {
			return n
		}
		filter.After = page[len(page)-1].Key
	}
}
