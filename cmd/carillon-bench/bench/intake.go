package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
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
	b.note("The queue is filled before. The rate is that from the first group that is stored to the last message.")
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
	r, url, err := b.startReplica(ctx, ReplicaOptions{
		Idle: true, Settings: map[string]string{"submit-rabbitmq-queue": job.DefaultTenant + "=" + submissions},
	})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, r.stop(), b.clean(ctx)) }()
	const patience = time.Minute
	first, begun, last := 0, time.Time{}, time.Now()
	for before := 0; ; {
		n, err := b.applied(ctx, url)
		if err != nil {
			return 0, err
		}
		now := time.Now()
		switch {
		case n >= w.Count && first == n:
			return 0, errors.New("all were taken at once; give a larger --count")
		case n >= w.Count:
			return float64(n-first) / now.Sub(begun).Seconds(), nil
		case n > 0 && first == 0:
			first, begun = n, now
		case n == before && now.Sub(last) > patience:
			return 0, fmt.Errorf("%d of %d messages were taken, and there was no progress for a minute", n, w.Count)
		}
		if n > before {
			before, last = n, now
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(200 * time.Millisecond): // reading the metrics costs processor time
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

// applied returns the number of messages that a replica has applied.
func (b *Bench) applied(ctx context.Context, url string) (int, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	if b.security.token != "" {
		request.Header.Set("Authorization", "Bearer "+b.security.token)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		rest, found := strings.CutPrefix(lines.Text(), "carillon_intake_messages_total{")
		if labels, value, ok := strings.Cut(rest, "} "); found && ok && strings.Contains(labels, `outcome="applied"`) {
			n, err := strconv.ParseFloat(value, 64)
			return int(n), err
		}
	}
	return 0, errors.New("the replica has no metric of what it has taken")
}
