package redis

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/carillon-scheduler/carillon/store"
)

// answered is an error in a server's answer.
type answered string

func (e answered) Error() string { return string(e) }
func (answered) RedisError()     {}

func TestErrors(t *testing.T) {
	for _, c := range []struct {
		err             error
		transient, done bool // whether the fault is transient, and whether a change may have been made
	}{
		{answered("CLUSTERDOWN The cluster is down"), true, false},
		{answered("LOADING Redis is loading the dataset in memory"), true, false},
		{answered("MASTERDOWN Link with MASTER is down"), true, false},
		{answered("MISCONF Redis is configured to save RDB snapshots"), true, false},
		{answered("MOVED 1234 127.0.0.1:7001"), true, false},
		{answered("NOREPLICAS Not enough good replicas to write."), true, false},
		{answered("OOM command not allowed when used memory > 'maxmemory'. script: 0, on @user_script:1."), true, false},
		{answered("READONLY You can't write against a read only replica."), true, false},
		{answered("TRYAGAIN Multiple keys request during rehashing of slot"), true, false},
		{answered("BUSY Redis is busy running a script."), true, false},
		{answered("ERR max number of clients reached"), true, false},
		{fmt.Errorf("in a wrapper: %w", answered("LOADING")), true, false},
		{io.EOF, true, true},
		{context.DeadlineExceeded, true, true},
		{context.Canceled, true, true},
		{io.ErrUnexpectedEOF, true, true},
		{net.ErrClosed, true, true},
		{&net.OpError{Op: "read", Err: errors.New("connection reset by peer")}, true, true},
		{&net.OpError{Op: "write", Err: errors.New("broken pipe")}, true, true},
		{&net.OpError{Op: "dial", Err: errors.New("connection refused")}, true, false},
		{redis.ErrClosed, true, false},
		{redis.ErrPoolTimeout, true, false},
		{answered("LATE 1774000000000"), true, false},
		{answered("ERR unknown command"), false, false},
		{answered("WRONGTYPE Operation against a key holding the wrong kind of value"), false, false},
		{answered("NOPERM this user has no permissions to run the 'evalsha' command"), false, false},
		{answered("NOAUTH Authentication required."), false, false},
		{errors.New("some words"), false, false},
	} {
		err := mapError(c.err)
		if errors.Is(err, store.ErrUnavailable) != c.transient || !errors.Is(err, c.err) {
			t.Errorf("%v is answered as %v", c.err, err)
		}
		if errors.Is(err, store.ErrNotDone) != (c.transient && !c.done) {
			t.Errorf("%v is answered as %v", c.err, err)
		}
		if part := partly(err); errors.Is(part, store.ErrUnavailable) != c.transient || errors.Is(part, store.ErrNotDone) || !errors.Is(part, c.err) {
			t.Errorf("%v in a part is answered as %v", c.err, part)
		}
		if none := undone(err); errors.Is(none, store.ErrNotDone) != c.transient || !errors.Is(none, c.err) {
			t.Errorf("%v before anything is answered as %v", c.err, none)
		}
	}
	if err := mapError(nil); err != nil {
		t.Errorf("no error is answered as %v", err)
	}
}
