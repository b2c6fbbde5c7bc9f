package rabbitmq

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/job"
)

// publish is one attempt on its way.
type publish struct {
	id          job.ID
	exchange    string
	routingKey  string
	destination string // for errors
	message     amqp.Publishing

	// sent is closed when the lane has done its part. Either refused is set then, and nothing was sent, or the others are.
	sent    chan struct{}
	refused error
	confirm *amqp.DeferredConfirmation
	window  *window

	returned string // why the broker could not route it; guarded by the window
}

// eventPrefix begins the headers that are attributes of an event in binary mode. CloudEvents binds itself to AMQP 1.0, whose
// application properties RabbitMQ makes of these headers, and has "cloudEvents:" beside it, but prefers this one.
const eventPrefix = "cloudEvents_"

func newPublish(c callback, d callbacks.Delivery) (*publish, error) {
	m := d.Message(c.Payload)
	headers := make(amqp.Table, len(c.Headers)+len(m.Attributes)+5)
	for name, v := range c.Headers {
		value, err := headerValue(v)
		if err != nil {
			return nil, err
		}
		headers[name] = value
	}
	headers["carillon-key"] = d.Name.Key
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
		id:          d.ID,
		destination: c.destination(),
		sent:        make(chan struct{}),
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

// lane is the goroutine that publishes on one AMQP channel. The channel is replaced when the broker closes it, which is
// how the broker answers a publish that it can't accept.
//
// Publishing in the sending goroutine would spare a hand-over, but a write to a broker that has stopped reading can't be
// interrupted.
type lane struct {
	session *session
	size    int // of its windows
	work    chan *publish
}

// run publishes until the connection is gone.
func (l *lane) run() {
	for {
		w, closed, err := l.open()
		if err != nil {
			l.session.broken <- fmt.Errorf("no channel could be opened: %w", err)
			return
		}
		w.publishAll(l, closed)
		if l.session.conn.IsClosed() {
			return
		}
	}
}

// open opens a channel whose publishes are confirmed. Closed says why the broker closed it.
func (l *lane) open() (w *window, closed <-chan *amqp.Error, err error) {
	ch, err := l.session.conn.Channel()
	if err != nil {
		return nil, nil, err
	}
	w = &window{
		ch:      ch,
		closed:  make(chan struct{}),
		slots:   make(chan struct{}, l.size),
		waiting: make(map[job.ID]*publish, l.size),
	}
	closed = ch.NotifyClose(make(chan *amqp.Error, 1))
	// Each message in the window is returned at most once, so the connection's reader never waits for us.
	w.returns = ch.NotifyReturn(make(chan amqp.Return, l.size))
	return w, closed, ch.Confirm(false)
}

// window is the unconfirmed messages of one AMQP channel.
type window struct {
	ch    *amqp.Channel
	slots chan struct{} // full when there are as many messages as may be

	mu      sync.Mutex
	waiting map[job.ID]*publish // keyed by what a return names; at most one attempt of a delivery
	returns chan amqp.Return

	// closed is closed when the channel is; then reason is set, if the broker gave one, and blamed tells that it names
	// something that was among the waiting.
	closed chan struct{}
	reason *amqp.Error
	blamed bool
}

// publishAll publishes what comes in while the channel lasts.
func (w *window) publishAll(l *lane, closed <-chan *amqp.Error) {
	for {
		select {
		case w.slots <- struct{}{}:
		case e := <-closed:
			w.close(l, e)
			return
		}
		select {
		case p := <-l.work:
			if p.refused = w.publish(p, l); p.refused != nil {
				<-w.slots
			}
			close(p.sent)
		case e := <-closed:
			w.close(l, e)
			return
		}
	}
}

// publish sends one message, or answers why it did not.
func (w *window) publish(p *publish, l *lane) error {
	w.mu.Lock()
	_, twice := w.waiting[p.id]
	if !twice {
		w.waiting[p.id] = p
	}
	w.mu.Unlock()
	if twice {
		err := fmt.Errorf("rabbitmq: nothing was sent: an earlier attempt for %s still waits for its confirm", p.destination)
		return callbacks.Unavailable(err, time.Second+soon())
	}
	var err error
	p.window = w
	// Mandatory: a message that no queue takes comes back, where it would otherwise be confirmed and lost.
	p.confirm, err = w.ch.PublishWithDeferredConfirm(p.exchange, p.routingKey, true, false, p.message)
	if err != nil {
		w.mu.Lock()
		delete(w.waiting, p.id)
		w.mu.Unlock()
		if !w.ch.IsClosed() { // half a message may have been written
			_ = l.session.socket.Close()
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
		return fmt.Errorf("rabbitmq: the broker refused the message for %s", p.destination)
	case p.returned != "":
		return fmt.Errorf("rabbitmq: no queue took the message for %s: %s", p.destination, p.returned)
	default:
		return nil
	}
}

// takeReturns notes what came back. The connection's reader put it there before it handled the message's confirm, so
// whoever has seen a confirm finds the return noted, by itself or by another that was here before.
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

// close notes why the channel ended. Nothing is published on it any more.
func (w *window) close(l *lane, reason *amqp.Error) {
	w.reason = reason
	w.mu.Lock()
	for _, p := range w.waiting {
		if names(reason, p) {
			w.blamed = true
			l.session.exchanges.refuse(p, refusal(reason, p))
		}
	}
	w.mu.Unlock()
	close(w.closed)
}

// verdict is what the channel's end means to a message that was waiting. The broker closes a channel for the fault of one
// message; the others may have arrived or not, and are not to blame.
func (w *window) verdict(p *publish) error {
	e := w.reason
	switch {
	case e == nil || !e.Server || e.Code == amqp.ConnectionForced || e.Code == amqp.InternalError:
		return callbacks.Unavailable(errors.New("rabbitmq: the connection was lost before the confirm"), soon())
	case names(e, p):
		return refusal(e, p)
	case w.blamed:
		return callbacks.Unavailable(fmt.Errorf("rabbitmq: the channel was closed for another message: %w", e), soon())
	default: // the fault is somebody's; were it nobody's, it might go on for ever
		return fmt.Errorf("rabbitmq: the broker gave up on a message, maybe that for %s: %w", p.destination, e)
	}
}

// refusal is the error of a message for which the broker closed the channel.
func refusal(e *amqp.Error, p *publish) error {
	err := fmt.Errorf("rabbitmq: the broker refused the message for %s: %w", p.destination, e)
	if e.Code == amqp.PreconditionFailed { // too large
		return callbacks.Permanent(err)
	}
	return err
}

// names tells whether the broker closed the channel for this message, by the names and sizes in its words.
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

// aboutTopic tells whether the broker refused a routing key, not the exchange.
func aboutTopic(e *amqp.Error) bool { return strings.Contains(e.Reason, " topic '") }
