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

// clock tells the server's time by the last answer that had it, and by how long ago that was on this machine's
// monotonic clock. It is behind the server's by the answer's way at most, so that a bound which is told by it is never
// too late.
type clock struct {
	last atomic.Pointer[reading]
}

// reading is the server's time, and when this process learned of it.
type reading struct{ server, at time.Time }

func (c *clock) note(server time.Time) { c.last.Store(&reading{server: server, at: time.Now()}) }

// now is the server's time at least. It is known since the store was opened.
func (c *clock) now() time.Time {
	r := c.last.Load()
	return r.server.Add(time.Since(r.at))
}

// tries is how often a write is made that the server may have refused for being late.
const tries = 4

// within gives a mutation its time.
func within(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, store.Within)
}

// bounded is the context of one write that must not take effect after the context's deadline, the condition which sees
// to that in the write's filter, and the server's time up to which it holds.
//
// MongoDB reads its clock once for a command, when it begins, and compares that with the condition for each document.
// What begins in time may then go on for as long as its maxTimeMS, which the driver tells by the write's context. Each
// of them gets half of the time that is left, so that both together are over at the deadline.
func (s *Store) bounded(ctx context.Context) (
	part context.Context, cancel context.CancelFunc, inTime bson.M, bound time.Time, err error) {
	deadline, _ := ctx.Deadline()
	left := time.Until(deadline)
	if ctx.Err() != nil || left < 2*time.Millisecond {
		return nil, nil, nil, time.Time{}, fmt.Errorf("%w: its time was over before it was sent", store.ErrNotDone)
	}
	bound = s.clock.now().Add(left / 2)
	part, cancel = context.WithTimeout(ctx, left/2)
	return part, cancel, bson.M{"$expr": bson.M{"$lte": bson.A{"$$NOW", bound}}}, bound, nil
}

// inTime makes a write that takes effect before the context's deadline, or never. The write is one command, and puts
// the condition that it is given into its filters. It answers whether the condition must have held: that something has
// matched. If nothing has, the server's time tells whether that is why; then the write is made again with the time that
// is left. So without an error, what the write matched is what there was.
func (s *Store) inTime(
	ctx context.Context, write func(ctx context.Context, inTime bson.M) (matched bool, err error)) error {
	for range tries {
		part, cancel, inTime, bound, err := s.bounded(ctx)
		if err != nil {
			return err
		}
		matched, err := write(part, inTime)
		cancel()
		if err != nil || matched {
			return writeError(err)
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

// notDone marks an error as that of a mutation which has changed nothing yet.
func notDone(err error) error {
	if !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrNotDone) {
		return err
	}
	return fmt.Errorf("%w: %w", store.ErrNotDone, err)
}

// unknown hides that nothing was changed by the last step of a mutation of several steps.
func unknown(err error) error {
	if !errors.Is(err, store.ErrNotDone) {
		return err
	}
	return fmt.Errorf("%w: %s", store.ErrUnavailable, err.Error())
}

// codeOutOfDiskSpace is the server's error for a write that it refuses since its disk is full.
const codeOutOfDiskSpace = 14031

// writeError maps the error of a write that has been given to the driver. Where there was no server to send it to, or
// the server has refused it, nothing was written. That a server is not the primary does not show that: the driver may
// have tried it before with another, whose answer was lost.
func writeError(err error) error {
	if err = mapError(err); !errors.Is(err, store.ErrUnavailable) {
		return err
	}
	if refused, ok := errors.AsType[mongo.ServerError](err); ok && slices.Contains(refused.ErrorCodes(), codeOutOfDiskSpace) {
		return notDone(err)
	}
	if dial, ok := errors.AsType[*net.OpError](err); ok && dial.Op == "dial" {
		return notDone(err)
	}
	if strings.Contains(err.Error(), "server selection error") { // it has no type, and is only told of a first attempt
		return notDone(err)
	}
	return err
}
