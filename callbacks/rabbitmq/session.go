package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/carillon-scheduler/carillon/callbacks"
)

// The pause between two tries to connect doubles from the first to the last.
const (
	firstPause = 100 * time.Millisecond
	lastPause  = 10 * time.Second
)

var errClosed = errors.New("the sender is closed")

// run owns the connection until ctx ends: it connects, serves, and connects again.
func (s *Sender) run(ctx context.Context) {
	log := s.options.Logger.With("broker", s.address)
	pause, down := firstPause, false
	for {
		session, err := s.connect(ctx)
		if err == nil {
			log.Info("connected to rabbitmq")
			connected := time.Now()
			s.link.Store(&link{session: session})
			err = session.serve(ctx, log)
			down = false
			if time.Since(connected) > lastPause { // a younger one may be refused each time just after connecting
				pause = firstPause
			}
		}
		if ctx.Err() != nil {
			s.link.Store(&link{err: errClosed, pause: lastPause})
			return
		}
		if !down { // later tries mostly fail for the same reason; one line is enough
			down = true
			log.Warn("no connection to rabbitmq; its callbacks wait", "error", err)
		}
		jittered := pause/2 + rand.N(pause/2)
		s.link.Store(&link{err: err, retryAt: time.Now().Add(jittered), pause: pause})
		pause = min(2*pause, lastPause)
		select {
		case <-time.After(jittered):
		case <-ctx.Done():
		}
	}
}

// session is one connection to the broker.
type session struct {
	conn       *amqp.Connection
	wire       *wire
	publishers []*publisher
	exchanges  exchanges
	blocked    atomic.Pointer[string] // the reason that the broker takes no messages; nil while it does
	broken     chan error             // the error of a publisher that can't continue

	gone  chan struct{} // closed when the connection is lost
	tasks tasks         // those that end with the connection
}

// connect opens a connection; the error has no credentials in it.
func (s *Sender) connect(ctx context.Context) (*session, error) {
	properties := amqp.NewConnectionProperties()
	properties.SetClientConnectionName("carillon")
	var w *wire
	conn, err := amqp.DialConfig(s.options.URL, amqp.Config{
		Heartbeat:       s.options.Heartbeat,
		TLSClientConfig: s.tls,
		Properties:      properties,
		Dial: func(network, address string) (net.Conn, error) {
			socket, err := (&net.Dialer{Timeout: s.dialLimit}).DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			w = newWire(socket)
			// For the handshakes; the library lifts it then.
			return w, socket.SetDeadline(time.Now().Add(s.dialLimit))
		},
	})
	if err != nil {
		if w != nil {
			w.cut()
			w.done.Wait()
		}
		return nil, err
	}
	session := &session{
		conn:   conn,
		wire:   w,
		broken: make(chan error, s.options.Channels),
		gone:   make(chan struct{}),
	}
	session.exchanges = exchanges{session: session, known: map[string]*check{}}
	for range s.options.Channels {
		session.publishers = append(session.publishers, newPublisher(session, s.options.Window))
	}
	return session, nil
}

// serve runs the publishers until the connection is lost, which is its error, or ctx ends. When it returns, all
// goroutines of the session have ended.
func (s *session) serve(ctx context.Context, log *slog.Logger) error {
	closed := s.conn.NotifyClose(make(chan *amqp.Error, 1))
	blocked := s.conn.NotifyBlocked(make(chan amqp.Blocking, 1))
	for _, p := range s.publishers {
		s.tasks.start(p.run)
	}
	err := s.watch(ctx, log, closed, blocked)
	close(s.gone)
	s.wire.cut() // unwritten bytes may wait for a broker that reads no more
	s.tasks.end()
	s.wire.done.Wait()
	return err
}

// tasks are goroutines that are joined: none starts once the end has begun. The zero value is ready for use.
type tasks struct {
	mu      sync.Mutex
	ending  bool
	started sync.WaitGroup
}

// start runs a function in a goroutine, unless it is too late for that.
func (t *tasks) start(f func()) (started bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.ending {
		t.started.Go(f)
	}
	return !t.ending
}

// end waits until all have returned.
func (t *tasks) end() {
	t.mu.Lock()
	t.ending = true
	t.mu.Unlock()
	t.started.Wait()
}

// watch waits until the connection is lost or broken, or ctx ends.
func (s *session) watch(
	ctx context.Context, log *slog.Logger, closed <-chan *amqp.Error, blocked <-chan amqp.Blocking,
) error {
	for {
		select {
		case e := <-closed:
			if e == nil {
				return errors.New("the connection is closed")
			}
			return fmt.Errorf("the connection was lost: %w", e)

		case b, open := <-blocked:
			switch {
			case !open:
				blocked = nil
			case b.Active:
				log.Warn("rabbitmq takes no messages; its callbacks wait", "reason", b.Reason)
				s.blocked.Store(&b.Reason)
			default:
				log.Info("rabbitmq takes messages again")
				s.blocked.Store(nil)
			}

		case err := <-s.broken:
			return err

		case <-ctx.Done():
			_ = s.conn.CloseDeadline(time.Now().Add(time.Second))
			return errClosed
		}
	}
}

// send publishes by the publisher of the delivery's id, so that two attempts at one delivery always meet.
func (s *session) send(ctx context.Context, p *publish) error {
	if reason := s.blocked.Load(); reason != nil {
		err := fmt.Errorf("rabbitmq: nothing was sent: the broker takes no messages: %s", *reason)
		return callbacks.Unavailable(err, time.Second+soon())
	}
	if err := s.exchanges.check(ctx, p); err != nil {
		return err
	}
	w, err := s.publishers[int(p.id[len(p.id)-1])%len(s.publishers)].enter(ctx)
	if err != nil {
		return err
	}
	if err := s.publish(ctx, w, p); err != nil {
		<-w.slots
		return err
	}
	select {
	case <-p.confirm.Done():
		return w.settle(p)
	case <-ctx.Done():
		return s.unconfirmed(ctx, w, p)
	}
}

// publish publishes a message in its place in a window, as soon as the channel is open and the socket has room.
func (s *session) publish(ctx context.Context, w *window, p *publish) error {
	select {
	case <-w.opened:
	case <-s.gone:
		return s.lost()
	case <-ctx.Done():
		return slow(ctx)
	}
	m := &message{size: p.size()}
	m.ends, _ = ctx.Deadline()
	for full := s.wire.reserve(m); full != nil; full = s.wire.reserve(m) {
		select {
		case <-full:
		case <-s.gone:
			return s.lost()
		case <-ctx.Done():
			return slow(ctx)
		}
	}
	defer s.wire.release(m)
	return w.publish(p, s)
}

// unconfirmed returns the error of an attempt whose context ended before the confirm. The message may still be
// confirmed.
func (s *session) unconfirmed(ctx context.Context, w *window, p *publish) error {
	s.tasks.start(func() { // else the window has ended with the connection
		<-p.confirm.Done()
		_ = w.settle(p)
	})
	err := fmt.Errorf("rabbitmq: no confirm for %s: %w", p.destination(), ctx.Err())
	if reason := s.blocked.Load(); reason != nil {
		return callbacks.Unavailable(fmt.Errorf("%w; the broker takes no messages: %s", err, *reason), time.Second+soon())
	}
	return err
}

// slow returns the error of an attempt that ended before it could be published.
func slow(ctx context.Context) error {
	err := fmt.Errorf("rabbitmq: nothing was sent: the broker is slow: %w", ctx.Err())
	return callbacks.Unavailable(err, time.Second+soon())
}

// lost returns the error of an attempt whose connection went away.
func (s *session) lost() error {
	return callbacks.Unavailable(errors.New("rabbitmq: the connection was lost"), soon())
}
