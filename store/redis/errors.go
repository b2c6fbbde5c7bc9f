package redis

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/carillon-scheduler/carillon/store"
)

// lateCode is the code of the error by which a script refuses to run after its deadline, see bounded.lua.
const lateCode = "LATE"

// transientCodes are the codes of the server's errors for faults that may go away by themselves. All of them are raised
// before a command or a script has changed anything.
var transientCodes = []string{
	"ASK", "MOVED", // the slot's node could not be reached, or it moves again and again
	"BUSY",        // another program's script
	"CLUSTERDOWN", // no node, or too few, for some slots
	lateCode,      // a script's own
	"LOADING",     // it reads its data from disk
	"MASTERDOWN",  // a replica without its master
	"MISCONF",     // it can't write its snapshots or its log
	"NOREPLICAS",  // fewer than min-replicas-to-write
	"OOM",         // maxmemory is reached
	"READONLY",    // it became a replica
	"TRYAGAIN",    // the slot is being moved
}

// Error codes for a user who is not authenticated or not authorized.
var (
	authenticationCodes = []string{"NOAUTH", "WRONGPASS"}
	permissionCodes     = []string{"NOPERM"}
)

// code returns the first word of a server's error; empty if the error is not a server's.
func code(err error) string {
	answered, ok := errors.AsType[redis.Error](err)
	if !ok {
		return ""
	}
	word, _, _ := strings.Cut(answered.Error(), " ")
	return word
}

// undoneError is a fault of a change that has had no effect and never will.
type undoneError struct{ cause error }

func (e undoneError) Error() string { return fmt.Sprintf("%v: %v", store.ErrNotDone, e.cause) }

func (e undoneError) Unwrap() []error { return []error{store.ErrNotDone, e.cause} }

// undone wraps a transient fault in undoneError. The caller must know that nothing was changed. It returns any other
// error as it is.
func undone(err error) error {
	if !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrNotDone) {
		return err
	}
	return undoneError{err}
}

// partly removes [store.ErrNotDone] from the error of a change, another part of which was made, or may have been.
func partly(err error) error {
	if e, ok := errors.AsType[undoneError](err); ok {
		return fmt.Errorf("%w: %w", store.ErrUnavailable, e.cause)
	}
	return err
}

// mapError wraps transient faults in [store.ErrUnavailable], and in [store.ErrNotDone] too if nothing was changed.
func mapError(err error) error {
	switch {
	case err == nil || errors.Is(err, store.ErrUnavailable):
		return err
	case refused(err):
		return undoneError{err}
	case transient(err):
		return fmt.Errorf("%w: %w", store.ErrUnavailable, err)
	}
	return err
}

// refused reports whether a command was not sent, or was refused by the server for a transient fault.
func refused(err error) bool {
	if code := code(err); code != "" {
		return slices.Contains(transientCodes, code) || strings.HasPrefix(err.Error(), "ERR max number of clients")
	}
	if failed, ok := errors.AsType[*net.OpError](err); ok && failed.Op == "dial" {
		return true
	}
	for _, target := range []error{redis.ErrClosed, redis.ErrPoolTimeout, redis.ErrPoolExhausted} {
		if errors.Is(err, target) {
			return true
		}
	}
	// The client's errors when it can reach no node of a cluster. They have no type.
	return strings.Contains(err.Error(), "cluster has no nodes") ||
		strings.Contains(err.Error(), "cannot load cluster slots")
}

// transient reports whether the connection failed. It is then unknown whether the command was executed.
func transient(err error) bool {
	if _, ok := errors.AsType[net.Error](err); ok {
		return true
	}
	for _, target := range []error{
		context.Canceled, context.DeadlineExceeded, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed,
	} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

// explain adds advice for the operator to an error of Open; tls reports whether the connection used TLS.
func explain(err error, tls bool) error {
	switch code := code(err); {
	case slices.Contains(authenticationCodes, code):
		return fmt.Errorf("the server refuses the user; check user and password of the store URL: %w", err)
	case slices.Contains(permissionCodes, code):
		return fmt.Errorf("the user may not do all that is needed; see docs/stores.md for the ACL rule: %w", err)
	case strings.Contains(err.Error(), "DB index is out of range"),
		strings.Contains(err.Error(), "SELECT is not allowed in cluster mode"):
		return fmt.Errorf("there is no such database; check the number in the path of the store URL: %w", err)
	case strings.Contains(err.Error(), "cluster support disabled"):
		return fmt.Errorf("it is not a Redis Cluster: leave out the option cluster: %w", err)
	case code == "CLUSTERDOWN":
		return fmt.Errorf("the cluster has no node for some of its slots, or too few nodes; "+
			"ask one of them by CLUSTER INFO: %w", err)
	case strings.Contains(err.Error(), "redis: can't parse"):
		return fmt.Errorf("the server does not speak the Redis protocol; "+
			"with TLS, the store URL begins with rediss://: %w", err)
	case !tls && errors.Is(err, io.EOF):
		return fmt.Errorf("it ended the connection; with TLS, the store URL begins with rediss://: %w", err)
	case tls && errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("it did not answer in time; without TLS, the store URL begins with redis://: %w", err)
	}
	return err
}
