package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/carillon-scheduler/carillon/callbacks"
)

// exchanges remembers the exchanges that accept messages. A message to any other one costs the whole channel, with all
// its unconfirmed messages. So each exchange is looked up on a separate channel before it is used.
type exchanges struct {
	session *session

	mu    sync.Mutex
	known map[string]*check
}

// The lifetime of a result. A missing exchange is looked up again soon, since it may be about to be declared.
const (
	foundFor   = time.Minute
	missingFor = time.Second
	refusedFor = 10 * time.Second
	mostKnown  = 10_000
)

// check is the result of looking up an exchange; done is closed once the rest is set.
type check struct {
	done  chan struct{}
	err   error
	until time.Time
}

func (c *check) stale(now time.Time) bool {
	select {
	case <-c.done:
		return now.After(c.until)
	default:
		return false
	}
}

// check returns the error of a message whose exchange is known not to take it.
func (e *exchanges) check(ctx context.Context, p *publish) error {
	e.mu.Lock()
	c := e.known[p.exchange]
	if c != nil && c.stale(time.Now()) {
		c = nil
	}
	if c == nil && p.exchange != "" { // the default exchange always exists
		c = &check{done: make(chan struct{})}
		if e.session.tasks.start(func() { e.lookUp(p.exchange, c) }) { // else the session is gone
			e.remember(p.exchange, c)
		}
	}
	e.mu.Unlock()
	if c == nil {
		return nil
	}
	select {
	case <-c.done:
		return c.err
	case <-e.session.gone:
		return e.session.lost()
	case <-ctx.Done():
		err := fmt.Errorf("rabbitmq: nothing was sent: looking up exchange %q: %w", p.exchange, ctx.Err())
		return callbacks.Unavailable(err, soon())
	}
}

// refuse notes that the broker closed a channel for a message to this exchange.
func (e *exchanges) refuse(p *publish, err error) {
	reason, _ := errors.AsType[*amqp.Error](err)
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case reason.Code == amqp.NotFound: // it was deleted; the next look-up shows whether it is back
		delete(e.known, p.exchange)
	case reason.Code == amqp.AccessRefused && !aboutTopic(reason):
		c := &check{done: make(chan struct{}), err: err, until: time.Now().Add(refusedFor)}
		close(c.done)
		e.remember(p.exchange, c)
	}
}

// remember notes a check. Clients choose the names, so there is a bound.
func (e *exchanges) remember(name string, c *check) {
	if len(e.known) >= mostKnown {
		clear(e.known)
	}
	e.known[name] = c
}

// lookUp asks the broker whether an exchange exists. It ends when the connection does.
func (e *exchanges) lookUp(name string, c *check) {
	defer close(c.done)
	ch, err := e.session.conn.Channel()
	if err == nil {
		// Passive: of the arguments only the name counts.
		err = ch.ExchangeDeclarePassive(name, amqp.ExchangeDirect, false, false, false, false, nil)
	}
	now := time.Now()
	reason, _ := errors.AsType[*amqp.Error](err)
	switch {
	case err == nil:
		_ = ch.Close()
		c.until = now.Add(foundFor)
	case reason != nil && reason.Server && reason.Recover: // the broker has closed the channel, so it need not be
		c.err = fmt.Errorf("rabbitmq: exchange %q can't be used: %w", name, err)
		c.until = now.Add(missingFor)
	default:
		c.err = callbacks.Unavailable(fmt.Errorf("rabbitmq: nothing was sent: looking up exchange %q: %w", name, err), soon())
		c.until = now
	}
}
