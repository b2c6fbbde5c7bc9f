//go:build services

package redis_test

import (
	"io"
	"net"
	"strings"
	"sync"
	"testing"
)

// relay stands between a store and the server, so that something else can happen between two scripts of one call.
type relay struct {
	url string

	mu   sync.Mutex
	once func()
}

// newRelay makes a relay to a server.
func newRelay(t testing.TB, s *server) *relay {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{url: "redis://" + listener.Addr().String() + "?pool_size=1"}
	address := strings.TrimPrefix(s.url, "redis://")
	var group sync.WaitGroup
	t.Cleanup(group.Wait)
	t.Cleanup(func() { _ = listener.Close() })
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

// after has f run when the server has next answered, before the store learns of it.
func (r *relay) after(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.once = f
}

func (r *relay) serve(client net.Conn, address string) {
	defer func() { _ = client.Close() }()
	server, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	go func() {
		defer func() { _ = server.Close() }()
		_, _ = io.Copy(server, client)
	}()
	buffer := make([]byte, 64<<10)
	for {
		n, err := server.Read(buffer)
		if err != nil {
			return
		}
		r.mu.Lock()
		f := r.once
		r.once = nil
		r.mu.Unlock()
		if f != nil {
			f()
		}
		if _, err := client.Write(buffer[:n]); err != nil {
			return
		}
	}
}
