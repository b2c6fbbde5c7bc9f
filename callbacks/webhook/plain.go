package webhook

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"
)

const (
	// mostHeader is the maximum number of bytes of an answer's header.
	mostHeader = 64 << 10
	// mostPlain is the maximum number of bytes of a body that is sent by [plain]. The kernels of both machines take as
	// much, so writing ends though the receiver answers without reading.
	mostPlain = 16 << 10
	// idleLimit is the time for which idle connections are kept. It is below the limits of common servers and load
	// balancers, so that we rarely send on a connection that is being closed.
	idleLimit = 50 * time.Second
	// sweepEvery is the time between two searches for connections that were idle too long, or closed by the receiver.
	sweepEvery = 10 * time.Second
)

// plain makes requests over HTTP/1.1 without TLS. The caller's goroutine writes the request and reads the answer, by
// the code of net/http. An [http.Transport] has two more goroutines for each connection, and waking them is a good part
// of its work. Its methods are safe for concurrent use.
type plain struct {
	dial dialer
	most int // idle connections to one receiver

	mu     sync.Mutex
	idle   map[string][]*line // by address, the one used last at the end
	sweeps *time.Timer        // nil while no connection is idle
	closed bool
}

func newPlain(dial dialer, most int) *plain {
	return &plain{dial: dial, most: most, idle: make(map[string][]*line)}
}

// send makes a request, and notes the connections. A request that a receiver did not answer because it closed a kept
// connection just then is sent once more, on a new connection.
func (p *plain) send(ctx context.Context, r *request, on *taken) (*http.Response, error) {
	buffer := texts.Get().(*[]byte)
	defer texts.Put(buffer)
	text, err := r.appendTo((*buffer)[:0])
	if err != nil {
		return nil, err
	}
	*buffer = text
	address := addressOf(r.url)
	if l := p.take(address); l != nil {
		resp, err := p.exchange(ctx, text, l, on)
		if !errors.Is(err, errClosed) {
			return resp, err
		}
	}
	if on.late() {
		return nil, errLate
	}
	c, err := p.dial(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return p.exchange(ctx, text, newLine(c, address), on)
}

var texts = sync.Pool{New: func() any { return new([]byte) }}

// addressOf returns the host of a URL, in ASCII, and its port.
func addressOf(u *url.URL) string {
	host, port := target(u)
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}

// errClosed is the error of a connection that had been used before, and ended without any byte of an answer.
var errClosed = errors.New("the receiver closed the connection")

// exchange writes a request and reads the answer's header. When the answer's body is closed, the connection is kept for
// the next request, or closed. At an error it is closed.
func (p *plain) exchange(ctx context.Context, text []byte, l *line, on *taken) (*http.Response, error) {
	on.begin(l.Conn, false)
	if t := httptrace.ContextClientTrace(ctx); t != nil && t.GotConn != nil {
		t.GotConn(httptrace.GotConnInfo{Conn: l.Conn, Reused: l.used})
	}
	// Any reading and writing ends with the context.
	release := context.AfterFunc(ctx, func() { _ = l.SetDeadline(time.Unix(1, 0)) })
	resp, err := l.exchange(ctx, text)
	if err != nil {
		release()
		_ = l.Close() // the first error matters
		if ctx.Err() != nil && !errors.Is(err, errLate) {
			err = context.Cause(ctx)
		}
		return nil, err
	}
	end := func(whole bool) error {
		if release() && whole && !resp.Close && resp.StatusCode >= 200 && l.in.Buffered() == 0 {
			return p.keep(l)
		}
		return l.Close()
	}
	if resp.Body == http.NoBody {
		_ = end(true) // the answer is there
	} else {
		resp.Body = &body{resp.Body, false, end}
	}
	return resp, nil
}

// line is a connection to a receiver.
type line struct {
	net.Conn
	address string
	raw     syscall.RawConn // nil if the system can't be asked for its state
	in      *bufio.Reader
	left    int64 // the number of bytes that may yet be read
	used    bool  // it has had an answer
	since   time.Time
}

func newLine(c net.Conn, address string) *line {
	l := &line{Conn: c, address: address, raw: rawOf(c)}
	l.in = bufio.NewReader(l)
	return l
}

var errHeader = fmt.Errorf("the answer's header is longer than %d bytes", mostHeader)

// Read reads no more than is left.
func (l *line) Read(b []byte) (int, error) {
	if l.left <= 0 {
		return 0, errHeader
	}
	n, err := l.Conn.Read(b[:min(int64(len(b)), l.left)])
	l.left -= int64(n)
	return n, err
}

// exchange writes a request and reads the header of its final answer.
func (l *line) exchange(ctx context.Context, text []byte) (*http.Response, error) {
	l.left = mostHeader
	_, err := l.Write(text)
	if err == nil {
		_, err = l.in.Peek(1)
	}
	if err != nil && l.used && !errors.Is(err, errLate) && ctx.Err() == nil {
		return nil, errClosed
	}
	for err == nil {
		var resp *http.Response
		resp, err = http.ReadResponse(l.in, nil) // of no request without a body in the answer
		if err == nil && (resp.StatusCode >= 200 || resp.StatusCode == http.StatusSwitchingProtocols) {
			l.used, l.left = true, math.MaxInt64
			return resp, nil
		}
	}
	return nil, err
}

// body is an answer's body. Its end is noted, since only after that the connection can be used again.
type body struct {
	io.ReadCloser
	whole bool
	end   func(whole bool) error
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.whole = b.whole || err == io.EOF //nolint:errorlint // readers return it as it is
	return n, err
}

// Close does not read the rest, which may have no end.
func (b *body) Close() error { return b.end(b.whole) }

// take returns a connection to an address that is idle, or nil.
func (p *plain) take(address string) *line {
	for {
		p.mu.Lock()
		all := p.idle[address]
		if len(all) == 0 {
			p.mu.Unlock()
			return nil
		}
		l := all[len(all)-1]
		all[len(all)-1] = nil
		p.idle[address] = all[:len(all)-1]
		p.mu.Unlock()
		if l.usable(time.Now()) {
			return l
		}
		_ = l.Close()
	}
}

// usable reports whether an idle connection may be used again: the receiver has neither closed it nor sent anything,
// which could be taken for the answer of the next request.
func (l *line) usable(now time.Time) bool {
	return now.Sub(l.since) < idleLimit && untouched(l.raw)
}

// keep makes a connection idle.
func (p *plain) keep(l *line) error {
	l.since = time.Now()
	p.mu.Lock()
	all := p.idle[l.address]
	if p.closed || len(all) >= p.most {
		p.mu.Unlock()
		return l.Close()
	}
	p.idle[l.address] = append(all, l)
	if p.sweeps == nil {
		p.sweeps = time.AfterFunc(sweepEvery, p.sweep)
	}
	p.mu.Unlock()
	return nil
}

// sweep closes idle connections that are of no more use.
func (p *plain) sweep() {
	p.mu.Lock()
	addresses := slices.Collect(maps.Keys(p.idle))
	p.mu.Unlock()
	for _, address := range addresses {
		p.sweepOne(address, time.Now())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sweeps = nil; len(p.idle) > 0 {
		p.sweeps = time.AfterFunc(sweepEvery, p.sweep)
	}
}

// sweepOne looks only at connections that were not used lately: a busy receiver has few of them.
func (p *plain) sweepOne(address string, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	left := slices.DeleteFunc(p.idle[address], func(l *line) bool {
		useless := now.Sub(l.since) >= sweepEvery && !l.usable(now)
		if useless {
			_ = l.Close() // nothing is lost with it
		}
		return useless
	})
	if p.idle[address] = left; len(left) == 0 {
		delete(p.idle, address)
	}
}

// Close drops the idle connections. Those of requests under way are closed after them.
func (p *plain) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.sweeps != nil {
		p.sweeps.Stop()
	}
	for _, all := range p.idle {
		for _, l := range all {
			_ = l.Close()
		}
	}
	clear(p.idle)
}
