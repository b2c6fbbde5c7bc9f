package mongodb

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/carillon-scheduler/carillon/store"
)

// clock estimates the server's time: the time in the server's latest answer, plus the time since then on this machine's
// monotonic clock. The estimate lags by at most that answer's time in transit, and is never ahead, so a bound that is
// derived from it is never too late. It is safe for concurrent use.
type clock struct {
	last atomic.Pointer[reading]
}

// reading is the server's time, and this machine's when the answer arrived.
type reading struct{ server, at time.Time }

func (c *clock) note(server time.Time) { c.last.Store(&reading{server: server, at: time.Now()}) }

// now returns a time that the server's clock has reached. Open makes the first reading.
func (c *clock) now() time.Time {
	r := c.last.Load()
	return r.server.Add(time.Since(r.at))
}

// tries bounds how often a write is sent that the server may have refused as late.
const tries = 4

// within limits a mutation to [store.Within].
func within(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, store.Within)
}

// bounded prepares one write that must not take effect after the context's deadline. It returns a context for the
// write, a condition for the write's filter, and the server's time until which that condition holds.
//
// MongoDB reads its clock once, when a command begins, and evaluates the condition against that time for each document.
// A command that begins in time may run for its maxTimeMS, which the driver derives from the write's context. The wait
// and the run get half of the remaining time each, so that both are over by the deadline.
func (s *Store) bounded(ctx context.Context) (
	part context.Context, cancel context.CancelFunc, inTime bson.M, bound time.Time, err error) {
	deadline, _ := ctx.Deadline()
	left := time.Until(deadline)
	if ctx.Err() != nil || left < 2*time.Millisecond {
		return nil, nil, nil, time.Time{}, fmt.Errorf("%w: its deadline passed before it was sent", store.ErrNotDone)
	}
	bound = s.clock.now().Add(left / 2)
	part, cancel = context.WithTimeout(ctx, left/2)
	return part, cancel, bson.M{"$expr": bson.M{"$lte": bson.A{"$$NOW", bound}}}, bound, nil
}

// inTime makes a write that takes effect before the context's deadline, or never. The write must be one command, and
// put the condition inTime into its filters. It returns whether its filters matched, which proves that the condition
// held. If they did not, and the server's time shows that the condition may have failed, inTime repeats the write in
// the remaining time. Without an error, the write has therefore matched all documents that its own filters match.
func (s *Store) inTime(
	ctx context.Context, write func(ctx context.Context, inTime bson.M) (matched bool, err error)) error {
	for range tries {
		part, cancel, inTime, bound, err := s.bounded(ctx)
		if err != nil {
			return err
		}
		broken := s.brokenConnections.Load()
		matched, err := write(part, inTime)
		cancel()
		if err != nil || matched {
			return s.writeError(err, broken)
		}
		now, err := s.Now(ctx)
		if err != nil {
			return notDone(err)
		}
		if !now.After(bound) {
			return nil
		}
	}
	return fmt.Errorf("%w: the server got it too late", store.ErrNotDone)
}

// notDone wraps a transient error in [store.ErrNotDone]: the mutation has changed nothing, and never will.
func notDone(err error) error {
	if !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrNotDone) {
		return err
	}
	return fmt.Errorf("%w: %w", store.ErrNotDone, err)
}

// unknown removes [store.ErrNotDone] from an error of a later step of a mutation: earlier steps may have changed
// something.
func unknown(err error) error {
	if !errors.Is(err, store.ErrNotDone) {
		return err
	}
	return fmt.Errorf("%w: %s", store.ErrUnavailable, err.Error())
}

// codeOutOfDiskSpace is the server's error code for a write that it refuses because its disk is full.
const codeOutOfDiskSpace = 14031

// writeError maps the error of a write that was given to the driver when so many connections had broken. It adds
// [store.ErrNotDone] if no server could be reached or the disk was full. A refusal proves nothing if a connection has
// broken since: the driver may have sent the write before, and that may still be on its way. Nor does the error "not
// primary", after which the driver sends a write again.
func (s *Store) writeError(err error, broken int64) error {
	if err = mapError(err); !errors.Is(err, store.ErrUnavailable) {
		return err
	}
	refused, ok := errors.AsType[mongo.ServerError](err)
	if ok && slices.Contains(refused.ErrorCodes(), codeOutOfDiskSpace) && s.brokenConnections.Load() == broken {
		return notDone(err)
	}
	if dial, ok := errors.AsType[*net.OpError](err); ok && dial.Op == "dial" {
		return notDone(err)
	}
	if strings.Contains(err.Error(), "server selection error") { // has no type; occurs only in a first attempt
		return notDone(err)
	}
	return err
}
