package webhook

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http/httptrace"
	"sync/atomic"
	"time"
)

// errLate is the error of what was not written because the time for it was over.
var errLate = errors.New("its time was over before it could be written: this machine is slow, or was stopped")

// conn is a connection to which nothing is written when the time of the request is over: by then the process may have
// been stopped for so long that the delivery is another's. The context alone does not see to that, as it ends when its
// timer runs, which may be later.
type conn struct {
	net.Conn
	ends atomic.Pointer[time.Time] // with both clocks; nil for no end
}

type dialer = func(ctx context.Context, network, address string) (net.Conn, error)

// dialTimed makes such connections.
func dialTimed(dial dialer) dialer {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &conn{Conn: c}, nil
	}
}

// timed has the connection on which a request is made end with the request's time. Over HTTP/2 several requests share
// one, which ends with the last of them: each of the others is looked at before it is written, though not in the same
// moment.
func timed(ctx context.Context) context.Context {
	ends, ok := ctx.Deadline()
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		c, shared := info.Conn, false
		for {
			t, is := c.(*tls.Conn)
			if !is {
				break
			}
			shared = shared || t.ConnectionState().NegotiatedProtocol == "h2"
			c = t.NetConn()
		}
		if c, is := c.(*conn); is {
			c.end(ends, ok, shared)
		}
	}})
}

// end sets the end, or none. That of a shared one only moves on.
func (c *conn) end(at time.Time, any, shared bool) {
	if !any {
		c.ends.Store(nil)
		return
	}
	for {
		was := c.ends.Load()
		if shared && was != nil && was.After(at) || c.ends.CompareAndSwap(was, &at) {
			return
		}
	}
}

// over tells whether the end has come by either clock: the monotonic one stands still while the machine sleeps.
func (c *conn) over() bool {
	ends := c.ends.Load()
	if ends == nil {
		return false
	}
	now := time.Now()
	return !now.Before(*ends) || !now.Round(0).Before(ends.Round(0))
}

func (c *conn) Write(b []byte) (int, error) {
	if c.over() {
		return 0, errLate
	}
	return c.Conn.Write(b)
}

// Close drops what the kernel has still to send, if it would come too late: it may try for a quarter of an hour.
func (c *conn) Close() error {
	if t, ok := c.Conn.(interface{ SetLinger(seconds int) error }); ok && c.over() {
		_ = t.SetLinger(0) // if that fails, it is as it was
	}
	return c.Conn.Close()
}
