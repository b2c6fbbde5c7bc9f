//go:build services

package postgres_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"maps"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"
)

// relay stands between a store and the server, and can change the server's messages.
type relay struct {
	url string

	mu       sync.Mutex
	target   string
	open     map[net.Conn]bool // connections to the server
	silent   map[net.Conn]bool // connections that no longer pass anything on
	from, to []byte
	said     int // bytes from the server

	delay time.Duration // of the server's messages

	cutting bool // the server's messages break off
	left    int  // bytes until then

	hold    func(n int, kind byte) bool // reports whether to delay from the n-th client message on, from 0
	sent    int
	holding bool          // something is held
	deliver chan struct{} // closed when the held messages may arrive
}

// newRelay makes a relay to the server of a URL. The relay's own URL leads to the same store.
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

// redirect ends all connections, and sends new ones to the server of another URL.
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

// silence keeps all connections open and passes nothing on, as if the server's machine had vanished. New connections
// are served.
func (r *relay) silence() {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.Copy(r.silent, r.open)
}

// rewrite replaces a text in the server's messages by another one of the same length.
func (r *relay) rewrite(from, to string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.from, r.to = []byte(from), []byte(to)
}

// cutAfter breaks the server's next answers off after some bytes, once. The function that it returns ends that, and reports
// whether it has happened.
func (r *relay) cutAfter(bytes int) (end func() (cut bool)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cutting, r.left = true, bytes
	return func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		cut := !r.cutting
		r.cutting = false
		return cut
	}
}

// slow delays the server's messages.
func (r *relay) slow(by time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.delay = by
}

// holdFrom delays clients' messages from one on, and refuses new connections from then on. Deliver passes the held
// messages on, even if their sender is gone, and reports whether there were any.
func (r *relay) holdFrom(hold func(n int, kind byte) bool) (deliver func() (held bool)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hold, r.sent, r.holding, r.deliver = hold, 0, false, make(chan struct{})
	return func() (held bool) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.hold = nil
		close(r.deliver)
		return r.holding
	}
}

// split divides clients' bytes into those that may pass, an incomplete message, and those to hold, with the time until
// which they are held.
func (r *relay) split(sent []byte) (through, partial, late []byte, until chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hold == nil {
		return sent, nil, nil, nil
	}
	for at := 0; at < len(sent); r.sent++ {
		if r.hold(r.sent, sent[at]) {
			r.holding = true
			return sent[:at], nil, sent[at:], r.deliver
		}
		size := 5
		if len(sent)-at >= size {
			size = 1 + int(binary.BigEndian.Uint32(sent[at+1:]))
		}
		if len(sent)-at < size {
			return sent[:at], sent[at:], nil, nil
		}
		at += size
	}
	return sent, nil, nil, nil
}

func (r *relay) serve(client net.Conn) {
	defer client.Close()
	r.mu.Lock()
	if r.hold != nil {
		r.mu.Unlock()
		return
	}
	server, err := net.Dial("tcp", r.target)
	if err != nil {
		r.mu.Unlock()
		return
	}
	r.open[server] = true
	r.mu.Unlock()
	defer server.Close()
	go func() {
		defer server.(*net.TCPConn).CloseWrite() // the delivered messages are still read
		r.pass(server, client, server)
	}()
	r.pass(client, server, server)
}

// pass passes on one side's messages, until either side ends.
func (r *relay) pass(to io.Writer, from io.Reader, server net.Conn) {
	buffer := make([]byte, 64<<10)
	var partial []byte
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		r.mu.Lock()
		said, silent, delay := buffer[:n], r.silent[server], r.delay
		if from == io.Reader(server) {
			r.said += n
			if len(r.from) > 0 {
				said = bytes.ReplaceAll(said, r.from, r.to)
			}
		}
		broken := from == io.Reader(server) && r.cutting && len(said) > r.left
		if broken {
			said, r.cutting = said[:r.left], false
		} else if from == io.Reader(server) {
			r.left -= len(said)
		}
		r.mu.Unlock()
		if broken {
			_, _ = to.Write(said)
			return
		}
		if silent {
			continue
		}
		if from == io.Reader(server) {
			time.Sleep(delay)
		}
		var late []byte
		var until chan struct{}
		if to == io.Writer(server) {
			said, partial, late, until = r.split(append(partial, said...))
		}
		if _, err := to.Write(said); err != nil {
			return
		}
		if len(late) > 0 {
			<-until
			if _, err := to.Write(late); err != nil {
				return
			}
		}
	}
}
