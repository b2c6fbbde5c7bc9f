package webhook

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http/httptrace"
	"slices"
	"sync"
	"time"
)

// errLate is the error of a request that was not written because its time was over.
var errLate = errors.New("its time was over before it could be written: this machine is slow, or was stopped")

// conn is a connection that refuses writes after the end of its request's time: if the process stood still, another
// replica may hold the occurrence. The context alone does not prevent such writes: it ends when its timer runs, which
// may be later.
type conn struct {
	net.Conn
	quotable bool // answers over it may be shown

	mu       sync.Mutex
	requests int       // under way; over HTTP/2 there may be several
	ends     time.Time // with both clocks; zero for no end
}

type dialer = func(ctx context.Context, network, address string) (net.Conn, error)

// dialTimed makes such connections. Quotable reports whether answers over a connection may be shown.
func dialTimed(dial dialer, quotable func(net.Conn) bool) dialer {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &conn{Conn: c, quotable: quotable(c)}, nil
	}
}

// taken are the connections on which a request was made: more than one if the first was closed just then.
type taken struct {
	ends  time.Time // of the request's time; zero for none
	conns []*conn
}

// timed has the connection on which a request is made end with the request's time, until done is called. Over HTTP/2
// several requests share one, which ends with the last of them: each of the others is looked at before it is written,
// though not in the same moment.
func timed(ctx context.Context) *taken {
	ends, _ := ctx.Deadline()
	return &taken{ends: ends}
}

// traced returns a context through which a transport reports the connection.
func (t *taken) traced(ctx context.Context) context.Context {
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
		t.begin(c, shared)
	}})
}

// begin notes the connection, which others may share.
func (t *taken) begin(on net.Conn, shared bool) {
	if c, is := on.(*conn); is {
		c.begin(t.ends, shared)
		t.conns = append(t.conns, c)
	}
}

// late reports whether the request's time is over.
func (t *taken) late() bool { return !t.ends.IsZero() && over(t.ends) }

// done notes that the request is over.
func (t *taken) done() {
	for _, c := range t.conns {
		c.done()
	}
}

// quotable reports whether the answer may be shown.
func (t *taken) quotable() bool {
	return !slices.ContainsFunc(t.conns, func(c *conn) bool { return !c.quotable })
}

// begin notes a request with its end, or none. If the connection is shared, that of another may be later.
func (c *conn) begin(ends time.Time, shared bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if first := c.requests == 0; first || !shared || ends.IsZero() || !c.ends.IsZero() && ends.After(c.ends) {
		c.ends = ends
	}
	c.requests++
}

// done notes that a request is over. Without any, the connection has no end: it is kept, or closed in order.
func (c *conn) done() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.requests--; c.requests == 0 {
		c.ends = time.Time{}
	}
}

// over reports whether the end of its request has passed.
func (c *conn) over() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.ends.IsZero() && over(c.ends)
}

// over reports whether a time has passed by either clock: the monotonic one stands still while the machine sleeps.
func over(ends time.Time) bool {
	now := time.Now()
	return !now.Before(ends) || !now.Round(0).Before(ends.Round(0))
}

func (c *conn) Write(b []byte) (int, error) {
	if c.over() {
		return 0, errLate
	}
	n, err := c.Conn.Write(b)
	return n, withoutSource(err)
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	return n, withoutSource(err)
}

// withoutSource returns a connection's error without this machine's address, which clients must not see.
func withoutSource(err error) error {
	operation, ok := err.(*net.OpError) //nolint:errorlint // of a connection itself it is one as it is
	if !ok {
		return err
	}
	shown := *operation
	shown.Source = nil
	return &shown
}

// Close drops the bytes that the kernel has still to send, if they would come too late: it may try for a quarter of an
// hour.
func (c *conn) Close() error {
	if t, ok := c.Conn.(interface{ SetLinger(seconds int) error }); ok && c.over() {
		_ = t.SetLinger(0) // if that fails, it is as it was
	}
	return c.Conn.Close()
}
