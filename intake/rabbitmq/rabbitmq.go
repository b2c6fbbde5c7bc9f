// Package rabbitmq takes submissions from a queue of RabbitMQ.
//
// A message is acknowledged when the store has its job. Until then the broker keeps it, and delivers it again if this
// process ends or the connection is lost; a repeated message has no second effect. One goroutine gathers the messages
// that the broker sends ahead, while the other one stores the previous group. docs/queues.md describes the messages.
package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/carillon-scheduler/carillon/intake"
)

// Config sets up a [Source].
type Config struct {
	// Connect opens a connection.
	Connect func(ctx context.Context) (*amqp.Connection, error)
	// Queue is the name of the queue. If there is none, it is made: durable, with a single active consumer.
	Queue string
	// MayReply reports whether problems may be sent to a queue.
	MayReply func(queue string) bool
	// Door takes the messages.
	Door *intake.Door
	// Group is the maximum number of messages that are stored at once; zero means [intake.GroupMessages].
	Group int
}

// DeadLetters returns the name of the queue for messages that are refused. If there is none, it is made: durable.
func DeadLetters(queue string) string { return queue + ".dead-letters" }

// Source consumes one queue.
type Source struct{ Config }

var _ intake.Source = (*Source)(nil)

// New makes a source.
func New(c Config) *Source {
	if c.Group == 0 {
		c.Group = intake.GroupMessages
	}
	return &Source{c}
}

// Run implements [intake.Source].
func (s *Source) Run(ctx context.Context) { s.Door.Again(ctx, s.serve) }

// serve consumes on one connection, until it is lost or ctx ends.
func (s *Source) serve(ctx context.Context) error {
	conn, err := s.Connect(ctx)
	if err != nil {
		return err
	}
	var receiving sync.WaitGroup
	defer receiving.Wait()
	defer func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) }() // unacknowledged messages stay in the queue
	for queue, arguments := range map[string]amqp.Table{
		s.Queue: {amqp.SingleActiveConsumerArg: true}, DeadLetters(s.Queue): nil,
	} {
		if err := declare(conn, queue, arguments); err != nil {
			return err
		}
	}
	out, err := newOutlet(conn, s.Group)
	if err != nil {
		return err
	}
	in, err := s.await(ctx, conn, &receiving)
	if err != nil {
		return err
	}
	s.Door.Logger.Info("submissions are taken from a queue", "source", s.Door.Source, "broker", s.Door.Address)
	s.Door.Consuming(nil)
	for {
		group, err := in.take(ctx, s.Group)
		if err != nil {
			return err
		}
		if err := s.apply(ctx, in, out, group); err != nil {
			return err
		}
	}
}

// declare makes a durable queue, unless a queue of any kind has the name.
func declare(conn *amqp.Connection, queue string, arguments amqp.Table) error {
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	defer func() { _ = ch.Close() }() // the broker has closed it if there was no queue
	_, err = ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	if e, ok := errors.AsType[*amqp.Error](err); ok && e.Code == amqp.NotFound {
		fresh, err := conn.Channel()
		if err != nil {
			return err
		}
		defer func() { _ = fresh.Close() }() // nothing is left to say on it
		_, err = fresh.QueueDeclare(queue, true, false, false, false, arguments)
		return err
	}
	return err
}

// apply has a group of messages applied, puts aside those that are refused, and acknowledges all that are done.
func (s *Source) apply(ctx context.Context, in *inlet, out *outlet, group []amqp.Delivery) error {
	messages := make([]intake.Message, len(group))
	for i := range group {
		messages[i] = messageOf(&group[i])
	}
	answers, failed := s.Door.Apply(ctx, in.hold, messages)
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), confirmLimit)
	defer cancel()
	for i, a := range answers {
		if a.Refused == nil {
			continue
		}
		s.Door.Logger.Debug("a message was refused", "source", s.Door.Source, "problem", string(a.Refused.Encode()))
		if err := s.putAside(limit, out, &group[i], a.Refused); err != nil {
			return err
		}
	}
	if err := out.flush(limit); err != nil {
		return fmt.Errorf("refused messages can't be put aside: %w", err)
	}
	if n := len(answers); n > 0 {
		if err := in.ch.Ack(group[n-1].DeliveryTag, true); err != nil {
			return err
		}
	}
	return failed
}

// confirmLimit bounds the time in which the broker confirms refused messages.
const confirmLimit = 30 * time.Second

// replyQueues begins the names that stand for the queue of one client, on its connection.
const replyQueues = "amq.rabbitmq.reply-to"

// putAside publishes a refused message to the queue of dead letters, and its problem to the client that asked for a
// reply.
func (s *Source) putAside(ctx context.Context, out *outlet, d *amqp.Delivery, why *intake.Problem) error {
	problem := why.Encode()
	headers := maps.Clone(d.Headers)
	if headers == nil {
		headers = amqp.Table{}
	}
	headers[intake.ProblemHeader] = why.Header()
	dead := amqp.Publishing{
		Headers: headers, ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, DeliveryMode: amqp.Persistent,
		Priority: d.Priority, CorrelationId: d.CorrelationId, ReplyTo: d.ReplyTo, MessageId: d.MessageId,
		Timestamp: d.Timestamp, Type: d.Type, AppId: d.AppId, Body: d.Body,
	}
	if err := out.publish(ctx, DeadLetters(s.Queue), true, dead); err != nil {
		return err
	}
	if d.ReplyTo == "" || !strings.HasPrefix(d.ReplyTo, replyQueues) && !s.MayReply(d.ReplyTo) {
		return nil
	}
	correlation := d.CorrelationId
	if correlation == "" {
		correlation = d.MessageId
	}
	// The client may have stopped waiting for the reply, so it may get lost.
	return out.publish(ctx, d.ReplyTo, false, amqp.Publishing{
		ContentType: intake.ProblemMedia, CorrelationId: correlation, Timestamp: time.Now(), AppId: "carillon", Body: problem,
	})
}

// messageOf returns the message of a delivery.
func messageOf(d *amqp.Delivery) intake.Message {
	m := intake.Message{
		Body: d.Body, ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, Repeated: d.Redelivered,
		Published: d.Timestamp, Identity: d.MessageId,
	}
	for name, value := range d.Headers {
		if text, ok := value.(string); ok {
			if m.Headers == nil {
				m.Headers = make(map[string]string, len(d.Headers))
			}
			m.Headers[strings.ToLower(name)] = text
		}
	}
	return m
}

// inlet is a consumer, with the messages that the broker has sent ahead.
type inlet struct {
	ch       *amqp.Channel
	prefetch int

	mu      sync.Mutex
	waiting []amqp.Delivery
	ended   bool
	arrived chan struct{} // has room for one
}

// turnInterval is the time between two attempts to consume a queue that another consumer has.
const turnInterval = time.Second

// await begins to consume, as the queue's only consumer. A queue with a single active consumer refuses exclusive ones,
// and sees to it itself. Another queue without that refuses all consumers beside an exclusive one: then it is another
// replica's, and this one waits for its turn. If another program consumes the queue, both do. Quorum queues know no
// exclusive consumers, so they need a single active one.
func (s *Source) await(ctx context.Context, conn *amqp.Connection, receiving *sync.WaitGroup) (*inlet, error) {
	for {
		in, err := s.join(conn, receiving)
		if in != nil || err != nil && !isRefused(err) {
			return in, err
		}
		if err == nil {
			continue
		}
		s.Door.Consuming(nil) // as if the broker held this consumer ready
		if err := intake.Sleep(ctx, turnInterval); err != nil {
			return nil, err
		}
	}
}

// join begins to consume, or returns why the broker refuses that. It returns neither if the queue's other consumer has
// ended meanwhile: beside a consumer that is not exclusive, others could begin. Only if there is no other consumer, and
// an exclusive one is refused all the same, the queue has a single active consumer.
func (s *Source) join(conn *amqp.Connection, receiving *sync.WaitGroup) (*inlet, error) {
	in, err := s.consume(conn, true, receiving)
	if !isRefused(err) {
		return in, err
	}
	others, err := s.consumers(conn)
	if err != nil {
		return nil, err
	}
	if others == 0 {
		if in, err = s.consume(conn, true, receiving); !isRefused(err) {
			return in, err
		}
	}
	if in, err = s.consume(conn, false, receiving); err != nil || others == 0 {
		return in, err
	}
	switch all, err := s.consumers(conn); {
	case err != nil:
		return nil, err
	case all > 1:
		return in, nil
	default:
		return nil, in.ch.Close()
	}
}

// consumers returns the number of the queue's consumers.
func (s *Source) consumers(conn *amqp.Connection) (n int, err error) {
	ch, err := conn.Channel()
	if err != nil {
		return 0, err
	}
	defer func() { _ = ch.Close() }() // nothing is left to say on it
	q, err := ch.QueueDeclarePassive(s.Queue, true, false, false, false, nil)
	return q.Consumers, err
}

func isRefused(err error) bool {
	e, ok := errors.AsType[*amqp.Error](err)
	return ok && e.Code == amqp.AccessRefused && strings.Contains(e.Reason, "exclusive use")
}

// consume begins to consume. Its goroutine ends with the connection.
func (s *Source) consume(conn *amqp.Connection, exclusive bool, receiving *sync.WaitGroup) (*inlet, error) {
	ch, err := conn.Channel()
	if err != nil {
		return nil, err
	}
	in := &inlet{ch: ch, prefetch: min(2*s.Group, 65535), arrived: make(chan struct{}, 1)}
	if err := ch.Qos(in.prefetch, 0, false); err != nil {
		return nil, err
	}
	deliveries, err := ch.Consume(s.Queue, "", false, exclusive, false, false, nil)
	if err != nil {
		return nil, err
	}
	receiving.Go(func() { in.receive(deliveries) })
	return in, nil
}

// receive gathers messages, until the consumer or its channel ends.
func (in *inlet) receive(deliveries <-chan amqp.Delivery) {
	for d := range deliveries {
		in.mu.Lock()
		in.waiting = append(in.waiting, d)
		in.mu.Unlock()
		in.tell()
	}
	in.mu.Lock()
	in.ended = true
	in.mu.Unlock()
	in.tell()
}

func (in *inlet) tell() {
	select {
	case in.arrived <- struct{}{}:
	default: // the signal that waits covers this one too
	}
}

var errEnded = errors.New("the broker has ended the consumer or closed the connection")

// take waits for messages, and returns those that have arrived, up to the bounds of a group.
func (in *inlet) take(ctx context.Context, most int) ([]amqp.Delivery, error) {
	for {
		if group, err := in.next(most); err != nil || len(group) > 0 {
			return group, err
		}
		select {
		case <-in.arrived:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (in *inlet) next(most int) (group []amqp.Delivery, err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.ended {
		return nil, errEnded
	}
	n, size := 0, 0
	for n < min(most, len(in.waiting)) && (n == 0 || size+len(in.waiting[n].Body) <= intake.GroupBytes) {
		size += len(in.waiting[n].Body)
		n++
	}
	group = in.waiting[:n:n]
	if in.waiting = in.waiting[n:]; len(in.waiting) == 0 {
		in.waiting = nil
	}
	return group, nil
}

// hold makes a harmless request to the broker: an answer shows that the channel lives, and so that its messages are
// still this consumer's.
func (in *inlet) hold(context.Context) error {
	if err := in.ch.Qos(in.prefetch, 0, false); err != nil {
		return err
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.ended {
		return errEnded
	}
	return nil
}

// outlet publishes.
type outlet struct {
	ch       *amqp.Channel
	returned chan amqp.Return
	waiting  []*amqp.DeferredConfirmation
}

func newOutlet(conn *amqp.Connection, group int) (*outlet, error) {
	ch, err := conn.Channel()
	if err != nil {
		return nil, err
	}
	if err := ch.Confirm(false); err != nil {
		return nil, err
	}
	// All of a group may return, and the library waits until each is taken.
	return &outlet{ch: ch, returned: ch.NotifyReturn(make(chan amqp.Return, group))}, nil
}

// publish publishes a message to a queue. If it must arrive, flush fails unless it does.
func (o *outlet) publish(ctx context.Context, queue string, must bool, m amqp.Publishing) error {
	confirm, err := o.ch.PublishWithDeferredConfirmWithContext(ctx, "", queue, must, false, m)
	if err == nil && must {
		o.waiting = append(o.waiting, confirm)
	}
	return err
}

// flush waits until the broker has all messages that must arrive.
func (o *outlet) flush(ctx context.Context) error {
	for _, confirm := range o.waiting {
		taken, err := confirm.WaitContext(ctx)
		if err != nil {
			return err
		}
		if !taken {
			return errors.New("the broker does not take them")
		}
	}
	o.waiting = nil
	select {
	case r := <-o.returned:
		return fmt.Errorf("there is no queue %s", r.RoutingKey)
	default:
		return nil
	}
}
