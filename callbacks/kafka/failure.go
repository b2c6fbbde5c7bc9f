package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/carillon-scheduler/carillon/callbacks"
)

// answer returns a broker's answer about a topic or a record; answered is false for errors of other kinds.
func answer(err error) (code *kerr.Error, answered bool) {
	code, answered = errors.AsType[*kerr.Error](err)
	switch code {
	case kerr.SaslAuthenticationFailed, kerr.UnsupportedSaslMechanism, kerr.IllegalSaslState: // about the connection
		return code, false
	}
	return code, answered
}

// leaderless reports whether a broker answered that no known broker can take the record at the moment.
func leaderless(code *kerr.Error) bool {
	switch code {
	case kerr.LeaderNotAvailable, kerr.NotLeaderForPartition, kerr.BrokerNotAvailable, kerr.ReplicaNotAvailable,
		kerr.NetworkException, kerr.FencedLeaderEpoch, kerr.UnknownLeaderEpoch, kerr.ListenerNotFound,
		kerr.KafkaStorageError, kerr.ThrottlingQuotaExceeded,
		kerr.CoordinatorLoadInProgress, kerr.CoordinatorNotAvailable, kerr.NotCoordinator:
		return true
	}
	return false
}

// maybeAnothers reports whether a broker refused a batch for a reason that may concern only one of its records.
func maybeAnothers(err error) bool {
	code, _ := answer(err)
	switch code {
	case kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidRecord, kerr.InvalidTimestamp, kerr.CorruptMessage:
		return true
	}
	return false
}

// aftermath is the time after a connection's failure within which the client may give up records because of it: a
// little more than its longest pause.
const aftermath = 3 * time.Second

// verdict turns the outcome of a record into the error of its attempt, which began to produce at the given time.
func (s *Sender) verdict(ctx context.Context, x *session, c callback, begun time.Time, err error) error {
	code, answered := answer(err)
	_, unsent := errors.AsType[errUnsent](err)
	switch {
	case err == nil:
		return nil
	case unsent:
		return callbacks.Unavailable(fmt.Errorf("kafka: nothing was sent to topic %q: %w", c.Topic, err), soon())
	case ended(err) && ctx.Err() != nil:
		err = fmt.Errorf("kafka: no acknowledgement for topic %q: %w", c.Topic, ctx.Err())
		if l := s.link.Load(); l.err != nil {
			return callbacks.Unavailable(fmt.Errorf("%w; at %s: %w", err, s.address, l.err), soon())
		}
		s.doubt()
		return err
	case errors.Is(err, kgo.ErrRecordRetries) && !s.brokeSince(begun.Add(-aftermath)):
		// The client does not report why it tried again. Connections held, so the brokers answered, for example that the
		// record was written, but not to enough replicas. If that cost no attempt, it would be written again for ever.
		return fmt.Errorf("kafka: topic %q: its leader answers, but does not acknowledge the record, "+
			"as when replicas are missing or slow: %w", c.Topic, err)
	case !answered:
		s.doubt()
		return callbacks.Unavailable(fmt.Errorf("kafka: no broker took the record for topic %q: %w", c.Topic, err), soon())
	case leaderless(code):
		err = fmt.Errorf("kafka: topic %q has no leader that takes the record: %w", c.Topic, err)
		return callbacks.Unavailable(err, soon())
	}
	err = fmt.Errorf("kafka: the record for topic %q was refused: %w", c.Topic, err)
	switch code {
	case kerr.MessageTooLarge, kerr.RecordListTooLarge:
		return callbacks.Permanent(err)
	case kerr.InvalidRecord, kerr.InvalidTimestamp, kerr.CorruptMessage, kerr.TopicAuthorizationFailed,
		kerr.PolicyViolation, kerr.NotEnoughReplicas, kerr.NotEnoughReplicasAfterAppend, kerr.RequestTimedOut,
		kerr.UnsupportedForMessageFormat:
	default:
		// A deleted topic or a refused producer id: the client would return the same error for ever.
		s.retire(x, err)
	}
	return err
}

// ended reports whether a record's context ended: this one's, or another one's in the batch, which ends the whole
// batch.
func ended(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
