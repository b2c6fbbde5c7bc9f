package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/carillon-scheduler/carillon/job"
)

// Intake measures how many submissions from a queue are accepted in a second, each on disk before it is acknowledged,
// and compares them with batches over the HTTP API.
type Intake struct {
	// Count is the number of jobs in each round, from the queue and in batches.
	Count int
}

// Effort implements [Mode]. All jobs are stored twice.
func (s Intake) Effort(rounds int) Effort { return Effort{Occurrences: 2 * rounds * s.Count} }

// submissions is the name of the bench's queue.
const submissions = "carillon-bench-submissions"

// Run implements [Mode].
func (s Intake) Run(ctx context.Context, b *Bench) (err error) {
	submitter, err := b.startPart(ctx, clientRole, b.security.token, nil)
	if err != nil {
		return err
	}
	conn, err := amqp.Dial(b.RabbitmqURL)
	if err != nil {
		return fmt.Errorf("--rabbitmq-url: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	var taken, batched []float64
	for round := range b.Rounds {
		w := b.work(round, s.Count)
		w.Callback = DiscardType
		w.Start, w.Every = time.Now().Add(farAhead), time.Millisecond
		idle, url, err := b.startReplica(ctx, ReplicaOptions{Idle: true})
		if err != nil {
			return err
		}
		var done Submitted
		if err := submitter.call(ctx, "submit", Submission{URL: url, Work: *w, Batch: 1000, Connections: 2},
			&done); err != nil {
			return err
		}
		if err := errors.Join(idle.stop(), b.clean(ctx)); err != nil {
			return err
		}
		batched = append(batched, perSecond(done))
		b.progress("round %d: batches %.0f/s", round+1, batched[round])

		rate, err := s.take(ctx, b, conn, w)
		if err != nil {
			return err
		}
		taken = append(taken, rate)
		b.progress("round %d: from the queue %.0f/s", round+1, rate)
	}
	b.figure("from a queue", "jobs/s", taken, batched, ratioOf(0.7))
	b.note("raw: the same jobs in batches of 1,000 by the HTTP API, on two connections.")
	b.note("The queue is filled before. The rate is that from the first group that is put to the last.")
	return nil
}

// take fills the queue, starts a replica that consumes it, and returns the rate.
func (s Intake) take(ctx context.Context, b *Bench, conn *amqp.Connection, w *Work) (rate float64, err error) {
	ch, err := conn.Channel()
	if err != nil {
		return 0, err
	}
	defer func() {
		for _, queue := range []string{submissions, submissions + ".dead-letters"} {
			_, gone := ch.QueueDelete(queue, false, false, false)
			err = errors.Join(err, gone)
		}
		err = errors.Join(err, ch.Close())
	}()
	if err := fill(ch, w); err != nil {
		return 0, err
	}
	r, _, err := b.startReplica(ctx, ReplicaOptions{
		Idle: true, Settings: map[string]string{"submit-rabbitmq-queue": job.DefaultTenant + "=" + submissions},
	})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, r.stop(), b.clean(ctx)) }()
	last, since := 0, time.Now()
	for {
		var done Stats
		if err := r.call(ctx, "stats", nil, &done); err != nil {
			return 0, err
		}
		now := time.Now()
		switch {
		case done.Put >= w.Count:
			return float64(done.Put) / time.Duration(done.PutEnded-done.PutBegun).Seconds(), nil
		case done.Put > last:
			last, since = done.Put, now
		case now.Sub(since) > time.Minute:
			return 0, fmt.Errorf("%d of %d messages were taken, and there was no progress for a minute", last, w.Count)
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// fill publishes all jobs, and returns once the broker has confirmed them.
func fill(ch *amqp.Channel, w *Work) error {
	_, err := ch.QueueDeclare(submissions, true, false, false, false, amqp.Table{amqp.SingleActiveConsumerArg: true})
	if err == nil {
		_, err = ch.QueuePurge(submissions, false)
	}
	if err == nil {
		err = ch.Confirm(false)
	}
	var waiting []*amqp.DeferredConfirmation
	for i := 0; i < w.Count && err == nil; i++ {
		var c *amqp.DeferredConfirmation
		c, err = ch.PublishWithDeferredConfirm("", submissions, true, false, amqp.Publishing{
			DeliveryMode: amqp.Persistent, ContentType: "application/json", Body: w.appendJob(nil, i),
		})
		waiting = append(waiting, c)
		if err == nil && (len(waiting) == 1000 || i == w.Count-1) {
			for _, c := range waiting {
				if !c.Wait() {
					return errors.New("the broker has refused a message")
				}
			}
			waiting = waiting[:0]
		}
	}
	return err
}
