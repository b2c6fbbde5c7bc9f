package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/job"
)

// publish is one attempt on its way.
type publish struct {
	id         job.ID
	exchange   string
	routingKey string
	message    amqp.Publishing

	confirm  *amqp.DeferredConfirmation // set once it was published
	returned string                     // the reason that the broker could not route it; guarded by the window
}

// eventPrefix begins the headers that are attributes of an event in binary mode. The binding of CloudEvents to AMQP 1.0
// prefers this prefix to "cloudEvents:". RabbitMQ turns these headers into AMQP 1.0's application properties.
const eventPrefix = "cloudEvents_"

// newPublish makes the message of an attempt. The error is a [*callbacks.Failure] if a secret is missing.
func newPublish(ctx context.Context, s *Sender, c callback, d *callbacks.Delivery) (*publish, error) {
	m := d.Message(c.Payload)
	headers := make(amqp.Table, len(c.Headers)+len(m.Attributes)+5)
	joined := 0
	for name, v := range c.Headers {
		value, secret, err := joinedValue(ctx, s, d, v)
		if err != nil {
			return nil, err
		}
		if joined += len(secret); joined > maxHeadersBytes { // otherwise the broker closes the whole connection
			return nil, fmt.Errorf("the secrets in its headers are more than %d bytes together", maxHeadersBytes)
		}
		headers[name] = value
	}
	for _, h := range callbacks.TraceHeaders(d, c.Headers) {
		headers[h.Name] = h.Value
	}
	signature, err := d.SignatureHeaders(ctx, m.Body)
	if err != nil {
		return nil, err
	}
	for _, h := range signature {
		headers[h.Name] = h.Value
	}
	headers["carillon-key"] = d.Name.Key
	if d.Name.Tenant != job.DefaultTenant {
		headers["carillon-tenant"] = d.Name.Tenant
	}
	headers["carillon-timestamp"] = job.FormatTime(d.Timestamp)
	headers["carillon-attempt"] = int64(d.Attempt)
	if d.Part != nil {
		headers["carillon-step"] = int64(d.Part.Step)
		if d.Part.Subscriber != "" {
			headers["carillon-subscriber"] = d.Part.Subscriber
		}
	}
	if d.Envelope == job.EnvelopeBinary {
		delete(headers, eventPrefix+"datacontenttype") // the content type is it
	}
	for _, a := range m.Attributes {
		headers[eventPrefix+a.Name] = a.Value
		if n, err := strconv.ParseInt(a.Value, 10, 64); a.Integer && err == nil {
			headers[eventPrefix+a.Name] = n
		}
	}
	p := &publish{
		id: d.ID,
		message: amqp.Publishing{
			AppId:        "carillon",
			MessageId:    d.ID.String(),
			Timestamp:    d.SentAt,
			DeliveryMode: c.deliveryMode(),
			Headers:      headers,
			ContentType:  m.ContentType,
			Body:         m.Body,
		},
	}
	p.exchange, p.routingKey = c.target()
	return p, nil
}

// destination returns the destination of a message, for errors.
func (p *publish) destination() string {
	if p.exchange == "" {
		return fmt.Sprintf("queue %q", p.routingKey)
	}
	return fmt.Sprintf("exchange %q with routing key %q", p.exchange, p.routingKey)
}

// frameBytes is the approximate size of a message on the wire without its body and the job's own headers.
const frameBytes = 512

// size returns the approximate size of the message on the wire in bytes, without its job's headers.
func (p *publish) size() int { return frameBytes + len(p.message.Body) }

// publisher keeps one AMQP channel open, and opens another when the broker closes it. The broker closes a channel to
// refuse a message. Its goroutine opens the channels; the goroutines that call Send publish on them.
type publisher struct {
	session *session
	size    int // of its windows
	current atomic.Pointer[window]
}

func newPublisher(s *session, size int) *publisher {
	p := &publisher{session: s, size: size}
	p.current.Store(newWindow(size))
	return p
}

// run keeps a channel open until the connection is gone.
func (p *publisher) run() {
	for {
		w := p.current.Load()
		closed, err := w.open(p.session.conn)
		if err != nil {
			p.session.broken <- fmt.Errorf("no channel could be opened: %w", err)
			return
		}
		reason := <-closed
		p.current.Store(newWindow(p.size)) // before attempts look for another window
		w.close(p.session, reason)
		if p.session.conn.IsClosed() {
			return
		}
	}
}

// enter takes a place in the window of the publisher's channel.
func (p *publisher) enter(ctx context.Context) (*window, error) {
	for {
		w := p.current.Load()
		select {
		case w.slots <- struct{}{}:
			return w, nil
		case <-w.closed: // there is another
		case <-p.session.gone:
			return nil, p.session.lost()
		case <-ctx.Done():
			return nil, slow(ctx)
		}
	}
}

// window has the unconfirmed messages of one AMQP channel.
type window struct {
	opened chan struct{} // closed when the channel is open; it is set then
	ch     *amqp.Channel
	slots  chan struct{} // full when the window is

	mu      sync.Mutex
	waiting map[job.ID]*publish // by delivery id, which returns name; at most one attempt of each
	returns chan amqp.Return

	// closed is closed when the channel is. Then reason is the broker's, if it gave one, and blamed reports that the
	// reason names the destination of a waiting message.
	closed chan struct{}
	reason *amqp.Error
	blamed bool
}

func newWindow(size int) *window {
	return &window{
		opened:  make(chan struct{}),
		slots:   make(chan struct{}, size),
		waiting: make(map[job.ID]*publish),
		closed:  make(chan struct{}),
	}
}

// open opens a channel with confirms. Closed receives the broker's reason for closing it.
func (w *window) open(conn *amqp.Connection) (closed <-chan *amqp.Error, err error) {
	if w.ch, err = conn.Channel(); err != nil {
		return nil, err
	}
	closed = w.ch.NotifyClose(make(chan *amqp.Error, 1))
	// Each message in the window is returned at most once, so the connection's reader never waits for us.
	w.returns = w.ch.NotifyReturn(make(chan amqp.Return, cap(w.slots)))
	if err = w.ch.Confirm(false); err != nil {
		return nil, err
	}
	close(w.opened)
	return closed, nil
}

// publish sends one message, or returns the error.
func (w *window) publish(p *publish, s *session) error {
	w.mu.Lock()
	_, twice := w.waiting[p.id]
	if !twice {
		w.waiting[p.id] = p
	}
	w.mu.Unlock()
	if twice {
		err := fmt.Errorf("rabbitmq: nothing was sent: an earlier attempt for %s still waits for its confirm",
			p.destination())
		return callbacks.Unavailable(err, time.Second+soon())
	}
	var err error
	// Mandatory: a message that no queue takes is returned. Otherwise it would be confirmed and lost.
	p.confirm, err = w.ch.PublishWithDeferredConfirm(p.exchange, p.routingKey, true, false, p.message)
	if err != nil {
		w.mu.Lock()
		delete(w.waiting, p.id)
		w.mu.Unlock()
		if !w.ch.IsClosed() { // half a message may have been written
			s.wire.cut()
		}
		return callbacks.Unavailable(fmt.Errorf("rabbitmq: nothing was sent: %w", err), soon())
	}
	return nil
}

// settle ends an attempt after its confirm, or after the end of its channel, which looks like a refusal.
func (w *window) settle(p *publish) error {
	acked := p.confirm.Acked()
	lost := !acked && w.ch.IsClosed()
	if lost {
		<-w.closed
	}
	w.mu.Lock()
	w.takeReturns()
	delete(w.waiting, p.id)
	w.mu.Unlock()
	<-w.slots
	switch {
	case lost:
		return w.verdict(p)
	case !acked:
		return fmt.Errorf("rabbitmq: the broker refused the message for %s", p.destination())
	case p.returned != "":
		return fmt.Errorf("rabbitmq: no queue took the message for %s: %s", p.destination(), p.returned)
	default:
		return nil
	}
}

// takeReturns notes the returned messages. The connection's reader delivers a return before it handles the message's
// confirm. So an attempt with its confirm finds its return here, or another attempt has noted it.
func (w *window) takeReturns() {
	for {
		select {
		case r, open := <-w.returns:
			if !open {
				return
			}
			id, err := job.ParseID(r.MessageId)
			if p := w.waiting[id]; err == nil && p != nil {
				p.returned = r.ReplyText
			}
		default:
			return
		}
	}
}

// close notes the reason for the channel's end. Nothing is published on it any more.
func (w *window) close(s *session, reason *amqp.Error) {
	w.reason = reason
	w.mu.Lock()
	for _, p := range w.waiting {
		if names(reason, p) {
			w.blamed = true
			s.exchanges.refuse(p, refusal(reason, p))
		}
	}
	w.mu.Unlock()
	close(w.closed)
}

// verdict turns the channel's end into the error of a message that was waiting. The broker closes a channel for the
// fault of one message; the others may have arrived or not, and are not to blame.
func (w *window) verdict(p *publish) error {
	e := w.reason
	switch {
	case e == nil || !e.Server || e.Code == amqp.ConnectionForced || e.Code == amqp.InternalError:
		return callbacks.Unavailable(errors.New("rabbitmq: the connection was lost before the confirm"), soon())
	case names(e, p):
		return refusal(e, p)
	case w.blamed:
		return callbacks.Unavailable(fmt.Errorf("rabbitmq: the channel was closed for another message: %w", e), soon())
	default: // some message is at fault; an uncounted attempt could repeat for ever
		return fmt.Errorf("rabbitmq: the broker gave up on a message, maybe that for %s: %w", p.destination(), e)
	}
}

// refusal returns the error of a message for which the broker closed the channel.
func refusal(e *amqp.Error, p *publish) error {
	err := fmt.Errorf("rabbitmq: the broker refused the message for %s: %w", p.destination(), e)
	if e.Code == amqp.PreconditionFailed { // too large
		return callbacks.Permanent(err)
	}
	return err
}

// names reports whether the broker closed the channel because of this message, by the names and sizes in its reason.
func names(e *amqp.Error, p *publish) bool {
	if e == nil || !e.Server {
		return false
	}
	if e.Code == amqp.PreconditionFailed {
		return strings.Contains(e.Reason, fmt.Sprintf("message size %d ", len(p.message.Body)))
	}
	exchange := p.exchange
	if exchange == "" {
		exchange = "amq.default" // as the broker calls it
	}
	if !strings.Contains(e.Reason, fmt.Sprintf("exchange '%s' in vhost", exchange)) {
		return false
	}
	return !aboutTopic(e) || strings.Contains(e.Reason, fmt.Sprintf("topic '%s' in", p.routingKey))
}

// aboutTopic reports whether the broker refused a routing key, not the exchange.
func aboutTopic(e *amqp.Error) bool { return strings.Contains(e.Reason, " topic '") }
