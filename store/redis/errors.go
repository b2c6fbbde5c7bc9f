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

// transientCodes begin the server's errors for faults that may go away by themselves.
var transientCodes = []string{
	"ASK", "MOVED", // the slot's node could not be reached, or it moves again and again
	"BUSY",        // another program's script
	"CLUSTERDOWN", // no node, or too few, for some slots
	"LOADING",     // it reads its data from disk
	"MASTERDOWN",  // a replica without its master
	"MISCONF",     // it can't write its snapshots or its log
	"NOREPLICAS",  // fewer than min-replicas-to-write
	"OOM",         // maxmemory is reached
	"READONLY",    // it became a replica
	"TRYAGAIN",    // the slot is being moved
}

// Codes of a user who may not do what must be done.
var (
	authenticationCodes = []string{"NOAUTH", "WRONGPASS"}
	permissionCodes     = []string{"NOPERM"}
)

// code is the first word of a server's error; empty if the error is not one.
func code(err error) string {
	answered, ok := errors.AsType[redis.Error](err)
	if !ok {
		return ""
	}
	word, _, _ := strings.Cut(answered.Error(), " ")
	return word
}

// mapError marks the faults that may go away by themselves.
func mapError(err error) error {
	if err == nil || errors.Is(err, store.ErrUnavailable) || !transient(err) {
		return err
	}
	return fmt.Errorf("%w: %w", store.ErrUnavailable, err)
}

func transient(err error) bool {
	if code := code(err); code != "" {
		return slices.Contains(transientCodes, code) || strings.HasPrefix(err.Error(), "ERR max number of clients")
	}
	if _, ok := errors.AsType[net.Error](err); ok {
		return true
	}
	for _, target := range []error{
		context.Canceled, context.DeadlineExceeded, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed,
		redis.ErrClosed, redis.ErrPoolTimeout, redis.ErrPoolExhausted,
	} {
		if errors.Is(err, target) {
			return true
		}
	}
	// The client's own words for a cluster of which it can reach no node.
	return strings.Contains(err.Error(), "cluster has no nodes") || strings.Contains(err.Error(), "cannot load cluster slots")
}

// explain says what an operator can do about an error of Open, which spoke TLS or did not.
func explain(err error, tls bool) error {
	switch code := code(err); {
	case slices.Contains(authenticationCodes, code):
		return fmt.Errorf("the server refuses the user; check user and password of the store URL: %w", err)
	case slices.Contains(permissionCodes, code):
		return fmt.Errorf("the user may not do all that is needed; see docs/stores.md for the ACL rule: %w", err)
	case strings.Contains(err.Error(), "DB index is out of range"), strings.Contains(err.Error(), "SELECT is not allowed in cluster mode"):
		return fmt.Errorf("there is no such database; check the number in the path of the store URL: %w", err)
	case strings.Contains(err.Error(), "cluster support disabled"):
		return fmt.Errorf("it is not a Redis Cluster: leave out the option cluster: %w", err)
	case code == "CLUSTERDOWN":
		return fmt.Errorf("the cluster has no node for some of its slots, or too few nodes; ask one of them by CLUSTER INFO: %w", err)
	case strings.Contains(err.Error(), "redis: can't parse"):
		return fmt.Errorf("what answers does not speak the Redis protocol; with TLS, the store URL begins with rediss://: %w", err)
	case !tls && errors.Is(err, io.EOF):
		return fmt.Errorf("it ended the connection; with TLS, the store URL begins with rediss://: %w", err)
	case tls && errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("it did not answer in time; without TLS, the store URL begins with redis://: %w", err)
	}
	return err
}
