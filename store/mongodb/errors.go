package mongodb

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/carillon-scheduler/carillon/store"
)

// transientCodes are the server's error codes for faults that may go away by themselves
// (https://www.mongodb.com/docs/manual/reference/error-codes/).
var transientCodes = []int{
	6,     // HostUnreachable
	7,     // HostNotFound
	24,    // LockTimeout
	43,    // CursorNotFound
	46,    // LockBusy
	50,    // MaxTimeMSExpired
	63,    // StaleShardVersion
	64,    // WriteConcernTimeout
	70,    // ShardNotFound
	89,    // NetworkTimeout
	91,    // ShutdownInProgress
	100,   // UnsatisfiableWriteConcern
	107,   // LockFailed
	112,   // WriteConflict
	117,   // ConflictingOperationInProgress
	133,   // FailedToSatisfyReadPreference
	134,   // ReadConcernMajorityNotAvailableYet
	146,   // ExceededMemoryLimit
	150,   // StaleEpoch
	175,   // QueryPlanKilled
	189,   // PrimarySteppedDown
	202,   // NetworkInterfaceExceededTimeLimit
	237,   // CursorKilled
	262,   // ExceededTimeLimit
	276,   // IndexBuildAborted
	317,   // ConnectionPoolExpired
	355,   // InterruptedDueToStorageChange
	365,   // TemporarilyUnavailable
	462,   // IngressRequestRateLimitExceeded
	9001,  // SocketException
	10058, // LegacyNotPrimary
	10107, // NotWritablePrimary
	11600, // InterruptedAtShutdown
	11601, // Interrupted
	11602, // InterruptedDueToReplStateChange
	13388, // StaleConfig
	13435, // NotPrimaryNoSecondaryOk
	13436, // NotPrimaryOrSecondary
	14031, // OutOfDiskSpace
}

// Error codes for a user who is not authenticated or not authorized.
var (
	authenticationCodes = []int{11, 18, 334, 8000} // UserNotFound, AuthenticationFailed, MechanismUnavailable, Atlas' own
	permissionCodes     = []int{13}                // Unauthorized
)

const (
	codeBadValue            = 2
	codeUnknownWriteConcern = 79
)

// tooLargeCodes are the server's error codes for data that do not fit into one document.
var tooLargeCodes = []int{
	10334, // BSONObjectTooLarge
	17419, // the result of an update
	17420, // the result of an upsert
}

// mapError wraps transient faults in [store.ErrUnavailable], and faults of size in [store.ErrTooLarge].
func mapError(err error) error {
	switch {
	case err == nil || errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrTooLarge):
		return err
	case tooLarge(err):
		return fmt.Errorf("%w: a MongoDB document can have 16 MB: %w", store.ErrTooLarge, err)
	case transient(err):
		return fmt.Errorf("%w: %w", store.ErrUnavailable, err)
	default:
		return err
	}
}

// driverTooLarge is the text of the driver's error for a document that it refuses to send. The error has no exported
// name.
const driverTooLarge = "an inserted document is too large"

// tooLarge reports whether a document or a command was refused for its size: by the driver, by the server as it read
// the command, or by the server as it inserted or updated the document.
func tooLarge(err error) bool {
	refused, ok := errors.AsType[mongo.ServerError](err)
	if !ok {
		return strings.Contains(err.Error(), driverTooLarge)
	}
	return slices.ContainsFunc(tooLargeCodes, refused.HasErrorCode) ||
		refused.HasErrorCodeWithMessage(codeBadValue, "too large")
}

func transient(err error) bool {
	if serverError, ok := errors.AsType[mongo.ServerError](err); ok {
		for _, code := range serverError.ErrorCodes() {
			if slices.Contains(transientCodes, code) {
				return true
			}
		}
		for _, label := range []string{"RetryableWriteError", "TransientTransactionError", "SystemOverloadedError"} {
			if serverError.HasErrorLabel(label) {
				return true
			}
		}
		if failed := writeConcernError(err); failed != nil && failed.Code != codeUnknownWriteConcern {
			return true
		}
	}
	if mongo.IsNetworkError(err) || mongo.IsTimeout(err) {
		return true
	}
	// A failed connection attempt; a connection that the pool withdrew after another command failed on it; and a store
	// that is being closed.
	if _, ok := errors.AsType[net.Error](err); ok {
		return true
	}
	if pool, ok := errors.AsType[interface {
		error
		Retryable() bool
	}](err); ok && pool.Retryable() {
		return true
	}
	for _, target := range []error{
		context.Canceled, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, mongo.ErrClientDisconnected,
	} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

// writeConcernError returns the error of a write that was made but whose write concern was not satisfied; nil for any
// other error.
func writeConcernError(err error) *mongo.WriteConcernError {
	if e, ok := errors.AsType[mongo.WriteException](err); ok {
		return e.WriteConcernError
	}
	if e, ok := errors.AsType[mongo.BulkWriteException](err); ok {
		return e.WriteConcernError
	}
	return nil
}

// onlyDuplicates reports whether an unordered insert failed only for documents that existed already.
func onlyDuplicates(err error) bool {
	bulk, ok := errors.AsType[mongo.BulkWriteException](err)
	other := func(e mongo.BulkWriteError) bool { return !mongo.IsDuplicateKeyError(e.WriteError) }
	return ok && bulk.WriteConcernError == nil && !slices.ContainsFunc(bulk.WriteErrors, other)
}

// explain adds advice for the operator to an error of Open; named reports whether the URL names a user.
func (s *Store) explain(err error, named bool) error {
	if d := s.topology.Load(); d != nil && d.Kind == "ReplicaSetNoPrimary" && len(d.Servers) == 0 {
		// Hosts that don't answer would still be listed, so this fault is not transient.
		return fmt.Errorf("none of the hosts is a member of the replica set that the store URL names; "+
			"check the option replicaSet: %s",
			strings.TrimPrefix(err.Error(), store.ErrUnavailable.Error()+": "))
	}
	serverError, ok := errors.AsType[mongo.ServerError](err)
	if !ok {
		return err
	}
	for _, code := range serverError.ErrorCodes() {
		switch {
		case slices.Contains(authenticationCodes, code):
			return fmt.Errorf("the server refuses the user; "+
				"check user, password, authSource and authMechanism of the store URL: %w", err)
		case slices.Contains(permissionCodes, code) && !named:
			return fmt.Errorf("the server asks for a user; "+
				"name one in the store URL, as in mongodb://user:password@host/database: %w", err)
		case slices.Contains(permissionCodes, code):
			return fmt.Errorf("the user may not use this database; it needs the role readWrite: %w", err)
		}
	}
	return err
}
