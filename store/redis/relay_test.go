//go:build services

package redis_test

import (
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
)

// relay stands between a store and the server, so that a test can run code between two scripts of one call, and delay
// commands.
type relay struct {
	url string

	mu   sync.Mutex
	once func()
	// left is the number of answers still passed on before the relay stops, as if the store's process had died;
	// negative for all.
	left int
	// holds reports that the relay keeps the store's bytes in held, with their connections.
	holds bool
	held  []heldBytes
	// servers are the connections to the server.
	servers []net.Conn
}

type heldBytes struct {
	server net.Conn
	bytes  []byte
}

// newRelay makes a relay to a server.
func newRelay(t testing.TB, s *server) *relay {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{url: "redis://" + listener.Addr().String() + "?pool_size=1", left: -1}
	address := strings.TrimPrefix(s.url, "redis://")
	var group sync.WaitGroup
	t.Cleanup(group.Wait)
	t.Cleanup(func() {
		_ = listener.Close()
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, server := range r.servers {
			_ = server.Close()
		}
	})
	group.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			group.Go(func() { r.serve(client, address) })
		}
	})
	return r
}

// after runs f when the server has next answered, before the store gets the answer.
func (r *relay) after(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.once = f
}

// dieAfter stops the relay in both directions after n more answers.
func (r *relay) dieAfter(answers int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left = answers
}

// died reports whether the relay has stopped.
func (r *relay) died() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.left == 0
}

// hold keeps the store's bytes from now on.
func (r *relay) hold() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.holds, r.held = true, nil
}

// deliver passes the kept bytes on, and reports whether there were any. It also ends hold.
func (r *relay) deliver() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, h := range r.held {
		_, _ = h.server.Write(h.bytes)
	}
	r.holds = false
	return len(r.held) > 0
}

// pass passes the store's bytes on, or keeps them. It reports whether to continue.
func (r *relay) pass(server net.Conn, bytes []byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.holds {
		r.held = append(r.held, heldBytes{server, slices.Clone(bytes)})
		return true
	}
	if r.left == 0 {
		return false
	}
	_, err := server.Write(bytes)
	return err == nil
}

// answered reports whether to pass on an answer, after it has run the pending function.
func (r *relay) answered() bool {
	r.mu.Lock()
	f := r.once
	r.once = nil
	pass := r.left != 0
	if r.left > 0 {
		r.left--
	}
	r.mu.Unlock()
	if f != nil {
		f()
	}
	return pass
}

func (r *relay) serve(client net.Conn, address string) {
	defer func() { _ = client.Close() }()
	server, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	r.mu.Lock()
	r.servers = append(r.servers, server)
	r.mu.Unlock()
	go func() {
		buffer := make([]byte, 64<<10)
		for {
			n, err := client.Read(buffer)
			if err != nil || !r.pass(server, buffer[:n]) {
				break
			}
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if !slices.ContainsFunc(r.held, func(h heldBytes) bool { return h.server == server }) { // otherwise its bytes are still to be delivered
			_ = server.Close()
		}
	}()
	buffer := make([]byte, 64<<10)
	for {
		n, err := server.Read(buffer)
		if err != nil || !r.answered() {
			return
		}
		_, _ = client.Write(buffer[:n]) // it may be closed
	}
}
