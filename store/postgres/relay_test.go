//go:build services

package postgres_test

import (
	"bytes"
	"io"
	"maps"
	"net"
	"net/url"
	"sync"
	"testing"
)

// relay stands between a store and the server, and can change what the server says.
type relay struct {
	url string

	mu       sync.Mutex
	target   string
	open     map[net.Conn]bool // those to the server
	silent   map[net.Conn]bool // those of them that pass nothing on any more
	from, to []byte
	said     int // bytes that the server has said
}

// newRelay makes a relay to the server of a URL, whose own URL leads to the same store.
func newRelay(t testing.TB, rawURL string) *relay {
	t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{target: u.Host, open: map[net.Conn]bool{}, silent: map[net.Conn]bool{}}
	u.Host = listener.Addr().String()
	r.url = u.String()
	var group sync.WaitGroup
	t.Cleanup(group.Wait)
	t.Cleanup(func() { listener.Close() })
	group.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			group.Go(func() { r.serve(client) })
		}
	})
	return r
}

// redirect ends all connections, and leads new ones to the server of another URL.
func (r *relay) redirect(t testing.TB, rawURL string) {
	t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.target = u.Host
	for conn := range r.open {
		conn.Close()
	}
}

// silence keeps all connections open and passes nothing on, as if the server's machine had vanished; new ones are served.
func (r *relay) silence() {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.Copy(r.silent, r.open)
}

// rewrite replaces a text in what the server says by one of the same length.
func (r *relay) rewrite(from, to string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.from, r.to = []byte(from), []byte(to)
}

func (r *relay) serve(client net.Conn) {
	defer client.Close()
	r.mu.Lock()
	server, err := net.Dial("tcp", r.target)
	if err != nil {
		r.mu.Unlock()
		return
	}
	r.open[server] = true
	r.mu.Unlock()
	defer server.Close()
	go func() {
		defer server.Close()
		r.pass(server, client, server)
	}()
	r.pass(client, server, server)
}

// pass passes on what one side says, until either ends.
func (r *relay) pass(to io.Writer, from io.Reader, server net.Conn) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		r.mu.Lock()
		said, silent := buffer[:n], r.silent[server]
		if from == io.Reader(server) {
			r.said += n
			if len(r.from) > 0 {
				said = bytes.ReplaceAll(said, r.from, r.to)
			}
		}
		r.mu.Unlock()
		if silent {
			continue
		}
		if _, err := to.Write(said); err != nil {
			return
		}
	}
}
