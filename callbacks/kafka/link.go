package kafka

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// The pause between two tries to reach the cluster doubles from the first to the last.
const (
	firstPause = 100 * time.Millisecond
	lastPause  = 10 * time.Second
)

// pingLimit bounds one try to reach any of the brokers.
const pingLimit = 10 * time.Second

var errClosed = errors.New("the sender is closed")

// link is the state of the way to the cluster.
type link struct {
	// err is the reason that no broker can be reached; nil if one can. With an err, retryAt is the time of the next try,
	// and pause the pause before it.
	err     error
	retryAt time.Time
	pause   time.Duration
}

// wait returns the time until about the next try is over, spread so that not all come back at once.
func (l *link) wait(now time.Time) time.Duration {
	if wait := l.retryAt.Sub(now); wait > 0 {
		return wait + soon()
	}
	return l.pause/2 + soon() // that try is under way
}

// doubt starts a check whether any broker can be reached, unless one is under way. It does not wait for the result.
func (s *Sender) doubt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session != nil && s.checking.CompareAndSwap(false, true) {
		s.work.Go(s.check)
	}
}

// broken notes that a connection has failed.
func (s *Sender) broken() {
	now := time.Now()
	s.broke.Store(&now)
}

// brokeSince reports whether a connection has failed since a time.
func (s *Sender) brokeSince(at time.Time) bool {
	last := s.broke.Load()
	return last != nil && !last.Before(at)
}

// hooks are called by the client when a connection is made or used.
type hooks struct{ sender *Sender }

func (h hooks) OnBrokerConnect(_ kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	if err != nil {
		h.sender.broken()
		h.sender.doubt()
	}
}

func (h hooks) OnBrokerWrite(_ kgo.BrokerMetadata, _ int16, _ int, _, _ time.Duration, err error) {
	if err != nil {
		h.sender.broken()
	}
}

func (h hooks) OnBrokerRead(_ kgo.BrokerMetadata, _ int16, _ int, _, _ time.Duration, err error) {
	if err != nil {
		h.sender.broken()
	}
}

// check tries to reach a broker until it can.
func (s *Sender) check() {
	defer s.checking.Store(false)
	log := s.options.Logger.With("brokers", s.address)
	pause, down := firstPause, false
	for s.ctx.Err() == nil {
		err := s.ping()
		if s.ctx.Err() != nil {
			return
		}
		if err == nil {
			if s.link.Load().err != nil {
				log.Info("connected to kafka")
			}
			s.link.Store(&link{})
			return
		}
		if !down { // later tries mostly fail for the same reason; one line is enough
			down = true
			log.Warn("no connection to kafka; its callbacks wait", "error", err)
		}
		jittered := pause/2 + rand.N(pause/2)
		s.link.Store(&link{err: err, retryAt: time.Now().Add(jittered), pause: pause})
		pause = min(2*pause, lastPause)
		select {
		case <-time.After(jittered):
		case <-s.ctx.Done():
		}
	}
}

// ping asks one broker after the other until one answers.
func (s *Sender) ping() error {
	x := s.enter()
	if x == nil {
		return errClosed
	}
	defer s.leave(x)
	ctx, cancel := context.WithTimeout(s.ctx, pingLimit)
	defer cancel()
	err := x.client.Ping(ctx)
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("%w: the broker hung up, as one that wants TLS or another login may do without a word", err)
	}
	return err
}
