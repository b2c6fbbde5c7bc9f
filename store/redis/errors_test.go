package redis

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/carillon-scheduler/carillon/store"
)

// answered is an error as a server answers it.
type answered string

func (e answered) Error() string { return string(e) }
func (answered) RedisError()     {}

func TestErrors(t *testing.T) {
	for _, c := range []struct {
		err       error
		transient bool
	}{
		{answered("CLUSTERDOWN The cluster is down"), true},
		{answered("LOADING Redis is loading the dataset in memory"), true},
		{answered("MASTERDOWN Link with MASTER is down"), true},
		{answered("MISCONF Redis is configured to save RDB snapshots"), true},
		{answered("MOVED 1234 127.0.0.1:7001"), true},
		{answered("NOREPLICAS Not enough good replicas to write."), true},
		{answered("OOM command not allowed when used memory > 'maxmemory'. script: 0, on @user_script:1."), true},
		{answered("READONLY You can't write against a read only replica."), true},
		{answered("TRYAGAIN Multiple keys request during rehashing of slot"), true},
		{answered("BUSY Redis is busy running a script."), true},
		{answered("ERR max number of clients reached"), true},
		{fmt.Errorf("in a wrapper: %w", answered("LOADING")), true},
		{io.EOF, true},
		{context.DeadlineExceeded, true},
		{context.Canceled, true},
		{redis.ErrClosed, true},
		{answered("ERR unknown command"), false},
		{answered("WRONGTYPE Operation against a key holding the wrong kind of value"), false},
		{answered("NOPERM this user has no permissions to run the 'evalsha' command"), false},
		{answered("NOAUTH Authentication required."), false},
		{errors.New("some words"), false},
	} {
		err := mapError(c.err)
		if errors.Is(err, store.ErrUnavailable) != c.transient || !errors.Is(err, c.err) {
			t.Errorf("%v is answered as %v", c.err, err)
		}
	}
	if err := mapError(nil); err != nil {
		t.Errorf("no error is answered as %v", err)
	}
}
