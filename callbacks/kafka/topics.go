package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/carillon-scheduler/carillon/callbacks"
)

// topics remembers the topics of a session. Each is looked up before it is used: the client asks all the time for a
// topic that does not exist, once a record was produced to it.
type topics struct {
	mu    sync.Mutex
	known map[string]*topic
}

// The lifetime of a result. A missing topic is looked up again soon, since it may be about to be created. A found one
// holds as long as the session.
const (
	missingFor  = time.Second
	lookUpLimit = 10 * time.Second
	createLimit = 5 * time.Second
	mostKnown   = 10_000
)

// topic is the state of one topic; done is closed once err, partitions and at are set.
type topic struct {
	*admission // the same one however often the topic is looked up

	done       chan struct{}
	err        error
	partitions int32
	at         time.Time
}

// outdated reports whether the topic must be looked up again, for a record to a partition.
func (t *topic) outdated(now time.Time, partition int32) bool {
	select {
	case <-t.done:
		return (t.err != nil || partition >= t.partitions) && now.Sub(t.at) > missingFor
	default:
		return false
	}
}

// find returns the topic of a record, or the error of the attempt.
func (s *Sender) find(ctx context.Context, x *session, c callback) (*topic, error) {
	x.topics.mu.Lock()
	t := x.topics.known[c.Topic]
	if again := t != nil && t.outdated(time.Now(), c.partition()); t == nil || again {
		a := newAdmission()
		if again {
			a = t.admission
		}
		t = &topic{admission: a, done: make(chan struct{})}
		x.topics.remember(c.Topic, t)
		s.hold(x)
		if !s.start(func() { s.lookUp(x, c.Topic, t, again) }) {
			s.leave(x)
			t.err = callbacks.Unavailable(fmt.Errorf("kafka: %w", errClosed), lastPause)
			close(t.done)
		}
	}
	x.topics.mu.Unlock()
	select {
	case <-t.done:
	case <-ctx.Done():
		err := fmt.Errorf("kafka: nothing was sent: looking up topic %q: %w", c.Topic, ctx.Err())
		return nil, callbacks.Unavailable(err, soon())
	}
	switch {
	case t.err != nil:
		return nil, t.err
	case c.partition() >= t.partitions:
		return nil, fmt.Errorf("kafka: topic %q has no partition %d; it has %d", c.Topic, c.partition(), t.partitions)
	}
	return t, nil
}

// remember notes a topic. Clients choose the names, so missing ones are forgotten when there are too many.
func (ts *topics) remember(name string, t *topic) {
	if len(ts.known) >= mostKnown {
		for other, known := range ts.known {
			if known.outdated(time.Now(), byKey) {
				delete(ts.known, other)
			}
		}
	}
	ts.known[name] = t
}

// lookUp asks a broker for a topic.
func (s *Sender) lookUp(x *session, name string, t *topic, again bool) {
	defer s.leave(x)
	defer close(t.done)
	ctx, cancel := context.WithTimeout(s.ctx, lookUpLimit)
	defer cancel()
	n, err := s.askFor(ctx, x, name)
	if err == nil {
		err = s.askForID(ctx, x)
	}
	t.partitions, t.at = n, time.Now()
	switch code, answered := answer(err); {
	case err == nil:
		if again { // the client must learn of its new partitions too
			x.client.ForceMetadataRefresh()
		}
	case !answered:
		s.doubt()
		t.err = callbacks.Unavailable(fmt.Errorf("kafka: nothing was sent: looking up topic %q: %w", name, err), soon())
		t.at = time.Time{}
	case code == kerr.UnknownTopicOrPartition:
		t.err = fmt.Errorf("kafka: topic %q does not exist: %w", name, err)
	case leaderless(code):
		t.err = callbacks.Unavailable(fmt.Errorf("kafka: nothing was sent: topic %q: %w", name, err), soon())
	default:
		t.err = fmt.Errorf("kafka: topic %q can't be used: %w", name, err)
	}
}

// askForID has the client ask for its producer id, if it has none. No record is handed to a client without one. If the
// brokers refuse it, the client fails the records of all topics that it knows, but may miss the first record of a topic
// that it is just learning of. Nothing would happen to that one until its attempt ends.
func (s *Sender) askForID(ctx context.Context, x *session) error {
	_, _, err := x.client.ProducerID(ctx)
	if code, answered := answer(err); answered && !code.Retriable {
		s.retire(x, err) // the client would return the same error for ever
	}
	return err
}

// askFor returns the number of partitions of a topic. If the brokers may create the topic, it repeats the request until
// the topic exists.
func (s *Sender) askFor(ctx context.Context, x *session, name string) (int32, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.AllowAutoTopicCreation = s.options.AutoCreateTopics
	asked := kmsg.NewMetadataRequestTopic()
	asked.Topic = &name
	req.Topics = append(req.Topics, asked)
	for begin := time.Now(); ; {
		resp, err := req.RequestWith(ctx, x.client)
		if err != nil {
			return 0, err
		}
		if len(resp.Topics) != 1 {
			return 0, fmt.Errorf("a broker answered for %d topics, not one", len(resp.Topics))
		}
		err = kerr.ErrorForCode(resp.Topics[0].ErrorCode)
		if err == nil {
			return int32(len(resp.Topics[0].Partitions)), nil //nolint:gosec // as the protocol counts them
		}
		missing := errors.Is(err, kerr.UnknownTopicOrPartition) || errors.Is(err, kerr.LeaderNotAvailable)
		creating := s.options.AutoCreateTopics && missing
		if !creating || time.Since(begin) > createLimit {
			return 0, err
		}
		select {
		case <-time.After(firstPause):
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}
