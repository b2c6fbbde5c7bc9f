package chaos

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// relay lies between one replica and the store's server.
type relay struct {
	listener net.Listener
	target   string

	lock        sync.Mutex
	random      *rand.Rand
	active      map[string]bool // the faults of this moment
	connections map[net.Conn]bool
	closed      bool
}

// newRelay starts a relay to a server. It ends by [relay.close].
func newRelay(ctx context.Context, target string, seed uint64) (*relay, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &relay{
		listener: listener, target: target, random: rand.New(rand.NewPCG(seed, 3)), //nolint:gosec // it must be repeatable
		active: make(map[string]bool), connections: make(map[net.Conn]bool),
	}
	go r.accept(ctx)
	return r, nil
}

func (r *relay) address() string { return r.listener.Addr().String() }

func (r *relay) close() {
	_ = r.listener.Close()
	r.lock.Lock()
	defer r.lock.Unlock()
	r.closed = true
	r.drop()
}

// begin begins a fault.
func (r *relay) begin(what string) {
	r.lock.Lock()
	defer r.lock.Unlock()
	if r.active[what] = true; what == Cut {
		r.drop()
	}
}

// end ends a fault. Messages that hang are lost, so their connections are closed.
func (r *relay) end(what string) {
	r.lock.Lock()
	defer r.lock.Unlock()
	if delete(r.active, what); what == Hang {
		r.drop()
	}
}

// drop closes all connections. The caller has the lock.
func (r *relay) drop() {
	for c := range r.connections {
		_ = c.Close()
	}
}

func (r *relay) has(what string) bool {
	r.lock.Lock()
	defer r.lock.Unlock()
	return r.active[what]
}

// draw returns a random number below n.
func (r *relay) draw(n int) int {
	r.lock.Lock()
	defer r.lock.Unlock()
	return r.random.IntN(n)
}

func (r *relay) accept(ctx context.Context) {
	for {
		c, err := r.listener.Accept()
		if err != nil {
			return
		}
		go r.serve(ctx, c)
	}
}

// keep keeps a connection, so that a fault can close it; it returns whether it may be used.
func (r *relay) keep(c net.Conn) bool {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.connections[c] = true
	return !r.closed && !r.active[Cut]
}

func (r *relay) forget(c net.Conn) {
	_ = c.Close()
	r.lock.Lock()
	defer r.lock.Unlock()
	delete(r.connections, c)
}

func (r *relay) serve(ctx context.Context, from net.Conn) {
	defer r.forget(from)
	if !r.keep(from) {
		return
	}
	to, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", r.target)
	if err != nil {
		return
	}
	defer r.forget(to)
	if !r.keep(to) {
		return
	}
	done := make(chan struct{}, 2)
	go func() { r.pump(to, from, 25); done <- struct{}{} }()
	go func() { r.pump(from, to, 15); done <- struct{}{} }()
	<-done // one direction alone is of no use
}

// pump copies the bytes that come. While messages are lost, each is lost by one chance in so many.
func (r *relay) pump(to io.Writer, from io.Reader, chance int) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			for r.has(Hang) {
				time.Sleep(20 * time.Millisecond) // the end of the fault closes the connection
			}
			if r.has(Slow) {
				time.Sleep(time.Duration(r.draw(1500)) * time.Millisecond)
			}
			if r.has(Lossy) && r.draw(chance) == 0 {
				return
			}
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
