package listen

import (
	"cmp"
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Connections bounds the connections to a server, so that slow clients can't keep others out.
//
// A connection waits for its client while no request on it is in progress: it is idle, or it waits for a handshake, a
// header or a body, or the client does not read its answer. At the bound, a new connection causes others to be closed:
// those of the client with the most waiting connections, the longest waiting first. A connection with a request in
// progress is never closed. If all others are in progress, the new one is closed.
type Connections struct {
	limit int
	shed  *prometheus.CounterVec

	mu   sync.Mutex
	open map[*conn]struct{}
}

// The reasons for which connections are closed, as metrics name them.
const (
	shedWaiting = "waiting" // it waited for its client, and made room
	shedFull    = "full"    // it was new, and no other could make room
)

// NewConnections makes a bound.
func NewConnections(limit int) *Connections {
	t := &Connections{limit: limit, open: make(map[*conn]struct{}), shed: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "carillon_connections_shed_total",
		Help: "Connections to the API that were closed at --max-connections: those which waited for their clients, " +
			"and new ones if there was no such connection.",
	}, []string{"reason"})}
	for _, reason := range []string{shedWaiting, shedFull} {
		t.shed.WithLabelValues(reason)
	}
	return t
}

// Register adds the metrics of the connections.
func (t *Connections) Register(r prometheus.Registerer) {
	r.MustRegister(t.shed, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "carillon_connections",
		Help: "Connections to the API.",
	}, func() float64 {
		t.mu.Lock()
		defer t.mu.Unlock()
		return float64(len(t.open))
	}))
}

// Limit makes a listener with bounded connections.
func (t *Connections) Limit(l net.Listener) net.Listener { return &listener{l, t} }

type listener struct {
	net.Listener
	connections *Connections
}

// Accept waits for a connection that has room.
func (l *listener) Accept() (net.Conn, error) {
	for {
		accepted, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c := l.connections.admit(accepted); c != nil {
			return c, nil
		}
		_ = accepted.Close() // there is no caller for an error
	}
}

// admit makes room for a connection; nil if there is none.
func (t *Connections) admit(accepted net.Conn) *conn {
	c := &conn{Conn: accepted, among: t, since: time.Now()}
	if at, err := netip.ParseAddrPort(accepted.RemoteAddr().String()); err == nil {
		c.from = at.Addr().Unmap()
	}
	t.mu.Lock()
	var leaving []*conn
	if len(t.open) >= t.limit {
		leaving = longest(t.waiting(), max(1, t.limit/32))
	}
	for _, l := range leaving {
		delete(t.open, l)
	}
	full := len(t.open) >= t.limit
	if !full {
		t.open[c] = struct{}{}
	}
	t.mu.Unlock()

	for _, l := range leaving {
		_ = l.Conn.Close() // the server notices
	}
	t.shed.WithLabelValues(shedWaiting).Add(float64(len(leaving)))
	if full {
		t.shed.WithLabelValues(shedFull).Inc()
		return nil
	}
	return c
}

// wait is a connection that waits for its client, with the time since when.
type wait struct {
	conn  *conn
	from  netip.Addr
	since time.Time
}

// waiting returns the connections that wait for their clients.
func (t *Connections) waiting() (all []wait) {
	for c := range t.open {
		if since, waits := c.waiting(); waits {
			all = append(all, wait{c, c.from, since})
		}
	}
	return all
}

// longest returns the n waiting connections to close: those of the client with the most, the longest waiting first.
// Finding several at once costs little more than finding one.
func longest(all []wait, n int) (leaving []*conn) {
	slices.SortFunc(all, func(a, b wait) int { return b.since.Compare(a.since) })
	later := make(map[netip.Addr]int)
	order := make([]int, len(all)) // the number of the same client's connections that have waited less
	for i, w := range all {
		order[i] = later[w.from]
		later[w.from]++
	}
	positions := make([]int, len(all))
	for i := range positions {
		positions[i] = i
	}
	slices.SortFunc(positions, func(a, b int) int { return cmp.Or(order[b]-order[a], b-a) })
	for _, i := range positions[:min(n, len(positions))] {
		leaving = append(leaving, all[i].conn)
	}
	return leaving
}

// conn is a connection that knows whether it waits for its client.
type conn struct {
	net.Conn
	among *Connections
	from  netip.Addr // its client

	mu sync.Mutex
	// requests is the number of requests in progress; waits is the number of reads and writes that wait for the client.
	requests, waits int
	since           time.Time // the last time at which there were more requests than waits
}

// clientPatience is the time after which a connection with a request in progress waits for its client. Each read and
// each write waits for it, and nearly all are done at once.
const clientPatience = time.Second

// waiting reports whether it waits for its client, and since when.
func (c *conn) waiting() (since time.Time, waits bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.since, c.requests == 0 || c.requests <= c.waits && time.Since(c.since) >= clientPatience
}

// note adds to the numbers of requests and of waits.
func (c *conn) note(requests, waits int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.requests > c.waits {
		c.since = time.Now()
	}
	c.requests += requests
	c.waits += waits
}

// NetConn returns the connection itself.
func (c *conn) NetConn() net.Conn { return c.Conn }

func (c *conn) Write(b []byte) (int, error) {
	c.note(0, 1)
	defer c.note(0, -1)
	return c.Conn.Write(b)
}

// CloseWrite ends the sending direction. The server calls it before it closes the connection.
func (c *conn) CloseWrite() error {
	if tcp, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return tcp.CloseWrite()
	}
	return nil
}

func (c *conn) Close() error {
	c.among.mu.Lock()
	delete(c.among.open, c)
	c.among.mu.Unlock()
	return c.Conn.Close()
}

// connKey is the key of a request's connection in its context.
type connKey struct{}

// Keep must be a part of the server's ConnContext.
func (t *Connections) Keep(ctx context.Context, there net.Conn) context.Context {
	if over, ok := there.(interface{ NetConn() net.Conn }); ok { // TLS
		if _, own := there.(*conn); !own {
			there = over.NetConn()
		}
	}
	if c, ok := there.(*conn); ok {
		return context.WithValue(ctx, connKey{}, c)
	}
	return ctx
}

// Handler marks the connections of requests in progress. It must be around all other handlers.
func (t *Connections) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, ok := r.Context().Value(connKey{}).(*conn)
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		c.note(1, 0)
		defer c.note(-1, 0)
		if r.Body != nil && r.Body != http.NoBody {
			r.Body = &body{r.Body, c}
		}
		next.ServeHTTP(w, r)
	})
}

// body is the body of a request, which its client may send slowly.
type body struct {
	io.ReadCloser
	conn *conn
}

func (b *body) Read(p []byte) (int, error) {
	b.conn.note(0, 1)
	defer b.conn.note(0, -1)
	return b.ReadCloser.Read(p)
}
