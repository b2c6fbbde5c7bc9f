package listen_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/carillon-scheduler/carillon/cmd/internal/listen"
	"github.com/carillon-scheduler/carillon/cmd/internal/listen/listentest"
)

// bounded is a server whose connections are bounded. It has no time limits, so a client stays until it is cut off.
type bounded struct {
	*testing.T
	address  string
	registry *prometheus.Registry
	begun    chan string   // a request's path, when it is worked on
	finish   chan struct{} // a request to /work ends with each
}

// bound starts the server: /body answers with the length of a body, /work waits for a signal, /large has a large
// answer, and all else answers "ok".
func bound(t *testing.T, limit int, config *tls.Config) *bounded {
	t.Helper()
	b := &bounded{T: t, registry: prometheus.NewRegistry(), begun: make(chan string, 1000), finish: make(chan struct{})}
	connections := listen.NewConnections(limit)
	connections.Register(b.registry)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b.address = listener.Addr().String()
	server := &http.Server{
		ConnContext: connections.Keep, TLSConfig: config,
		Handler: connections.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			b.begun <- r.URL.Path
			switch r.URL.Path {
			case "/body":
				n, err := io.Copy(io.Discard, r.Body)
				fmt.Fprintf(w, "%d bytes, %v", n, err)
			case "/work":
				<-b.finish
				fmt.Fprint(w, "done")
			case "/large":
				for range 10_000 {
					if _, err := w.Write(make([]byte, 100_000)); err != nil {
						return
					}
				}
			default:
				fmt.Fprint(w, "ok")
			}
		})),
	}
	go func() {
		if config != nil {
			_ = server.ServeTLS(connections.Limit(listener), "", "")
			return
		}
		_ = server.Serve(connections.Limit(listener))
	}()
	t.Cleanup(func() { _ = server.Close() })
	return b
}

// metric returns the value of a metric, of its reason if it has one.
func (b *bounded) metric(name, reason string) float64 {
	b.Helper()
	families, err := b.registry.Gather()
	if err != nil {
		b.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && (reason == "" || m.GetLabel()[0].GetValue() == reason) {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	b.Fatalf("there is no %s", name)
	return 0
}

// connect connects from an address of this machine, and sends the beginning of a request.
func (b *bounded) connect(from, text string) net.Conn {
	b.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: patience}
	conn, err := dialer.DialContext(b.Context(), "tcp", b.address)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close() })
	_, _ = io.WriteString(conn, text) // a client that is cut off notices when it reads
	return conn
}

// closed waits until the server has closed a connection.
func (b *bounded) closed(what string, conn net.Conn) {
	b.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.Copy(io.Discard, conn); err != nil && strings.Contains(err.Error(), "timeout") {
		b.Errorf("%s is not closed", what)
	}
}

// answered reads an answer from a connection.
func (b *bounded) answered(what string, conn net.Conn, want string) {
	b.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		b.Errorf("%s is not answered: %v", what, err)
		return
	}
	defer answer.Body.Close()
	if body, err := io.ReadAll(answer.Body); err != nil || string(body) != want {
		b.Errorf("%s is answered %q, %v", what, body, err)
	}
}

// open waits until n connections are open.
func (b *bounded) open(n float64) {
	b.Helper()
	for end := time.Now().Add(patience); b.metric("carillon_connections", "") != n; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			b.Fatalf("%v connections are open, want %v", b.metric("carillon_connections", ""), n)
		}
	}
}

const request = "GET / HTTP/1.1\r\nHost: h\r\n\r\n"

// Two thousand clients that send their headers byte by byte, and connect again when they are cut off, do not lock out
// others.
func TestSlowClients(t *testing.T) {
	const attackers, limit = 2000, 200
	b := bound(t, limit, nil)
	slow := make([]net.Conn, attackers)
	connect := func(i int) { slow[i] = b.connect("127.0.0.1", "GET / HTTP/1.1\r\nHost: h\r\nX-") }
	for i := range slow {
		connect(i)
	}
	for round := range 5 {
		again := 100 // the number that connects again in each round
		for i, conn := range slow {
			if _, err := conn.Write([]byte{'a'}); err != nil && again > 0 {
				connect(i)
				again--
			}
		}
		if again > 0 && round > 0 { // in the first, some may not have noticed
			t.Errorf("only %d of them were cut off", 100-again)
		}
		for range 10 {
			b.answered("another client", b.connect("127.0.0.2", request), "ok")
			b.answered("a client at their address", b.connect("127.0.0.1", request), "ok")
		}
	}
	if n := b.metric("carillon_connections", ""); n > limit {
		t.Errorf("%v connections are open, more than %d", n, limit)
	}
	if n := b.metric("carillon_connections_shed_total", "waiting"); n < attackers-limit {
		t.Errorf("only %v slow clients made room", n)
	}
	if n := b.metric("carillon_connections_shed_total", "full"); n > 0 {
		t.Errorf("%v clients found no room", n)
	}
}

// Connections that keep the server waiting are closed to make room: of the client with the most, the one that has
// waited the longest.
func TestWhoMakesRoom(t *testing.T) {
	b := bound(t, 4, nil)
	lone := b.connect("127.0.0.2", "") // it has waited the longest, but is alone
	b.open(1)
	first := b.connect("127.0.0.1", "")
	b.open(2)
	second := b.connect("127.0.0.1", "GET / HT")
	b.open(3)
	third := b.connect("127.0.0.1", "")
	b.open(4)
	fourth := b.connect("127.0.0.1", request)
	b.answered("the fourth", fourth, "ok")
	b.closed("the first", first)
	b.answered("another", b.connect("127.0.0.3", request), "ok")
	b.closed("the second", second)
	if _, err := io.WriteString(lone, request); err != nil {
		t.Fatal(err)
	}
	b.answered("the one that waited the longest", lone, "ok")
	if _, err := io.WriteString(third, request); err != nil {
		t.Fatal(err)
	}
	b.answered("the third", third, "ok")
}

// Slow bodies and unread answers also keep the server waiting. A request that is handled stays: then the new connection
// is closed.
func TestWhatWaitsForItsClient(t *testing.T) {
	for name, waiting := range map[string]string{
		"a header":           "GET / HTTP/1.1\r\nHost: h\r\nX-A: a",
		"a body":             "POST /body HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\nhalf",
		"a body in chunks":   "POST /body HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
		"an answer not read": "GET /large HTTP/1.1\r\nHost: h\r\n\r\n",
		"the rest of a body": "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\nhalf",
		"nothing":            request,
	} {
		t.Run(name, func(t *testing.T) {
			b := bound(t, 2, nil)
			working := b.connect("127.0.0.1", "GET /work HTTP/1.1\r\nHost: h\r\n\r\n")
			<-b.begun
			slow := b.connect("127.0.0.1", waiting)
			b.open(2)
			if !strings.HasPrefix(waiting, "GET / HTTP/1.1\r\nHost: h\r\nX") {
				<-b.begun
			}
			// It may still be about to wait, so a new one may find no room for a moment.
			for end := time.Now().Add(patience); b.metric("carillon_connections_shed_total", "waiting") == 0; {
				_ = b.connect("127.0.0.1", "").Close()
				time.Sleep(time.Millisecond)
				if time.Now().After(end) {
					t.Fatal("it does not make room")
				}
			}
			b.closed("it", slow)
			b.finish <- struct{}{}
			b.answered("the one that is worked on", working, "done")
		})
	}
}

func TestNoRoom(t *testing.T) {
	b := bound(t, 2, nil)
	var working []net.Conn
	for range 2 {
		working = append(working, b.connect("127.0.0.1", "GET /work HTTP/1.1\r\nHost: h\r\n\r\n"))
		<-b.begun
	}
	b.closed("the third", b.connect("127.0.0.1", ""))
	if n := b.metric("carillon_connections_shed_total", "full"); n != 1 {
		t.Errorf("%v found no room, want 1", n)
	}
	for range working { // either may be the first to finish
		b.finish <- struct{}{}
	}
	for _, conn := range working {
		b.answered("what was worked on", conn, "done")
	}
	b.answered("the next", b.connect("127.0.0.1", request), "ok")
}

// pipes is a listener for connections in memory.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) { return <-p, nil }
func (p pipes) Close() error              { return nil }
func (p pipes) Addr() net.Addr            { return nil }

// A connection with a request in progress waits for its client only when a read or a write has taken some time.
func TestReadsAndWritesTakeTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		connections, from, accepted := listen.NewConnections(1), make(pipes), make(chan net.Conn, 3)
		bounded := connections.Limit(from)
		go func() {
			for range 2 {
				c, _ := bounded.Accept()
				accepted <- c
			}
		}()
		dial := func() {
			_, theirs := net.Pipe()
			from <- theirs
			synctest.Wait()
		}
		dial()
		first := <-accepted
		body, sent := io.Pipe()
		request := httptest.NewRequestWithContext(connections.Keep(t.Context(), first), http.MethodPost, "/", body)
		go connections.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
		})).ServeHTTP(httptest.NewRecorder(), request)
		time.Sleep(time.Millisecond)
		dial()
		if len(accepted) > 0 {
			t.Error("a read that has begun makes its connection leave")
		}
		time.Sleep(time.Minute)
		dial()
		if len(accepted) == 0 {
			t.Error("a long read keeps others out")
		}
		sent.Close()
	})
}

// Over HTTP/2, a connection stays while any of its requests is worked on.
func TestRoomOverHTTP2(t *testing.T) {
	ca := listentest.NewAuthority(t)
	s := secure(t, ca.Issue(t, t.TempDir(), listentest.Certificate{}))
	b := bound(t, 1, s.certificates.Config())
	client := http.Client{Timeout: patience, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: ca.Pool()}, ForceAttemptHTTP2: true,
	}}
	ask := func(path string, body io.Reader) error {
		answer, err := client.Post("https://"+b.address+path, "text/plain", body)
		if err == nil {
			_, err = io.Copy(io.Discard, answer.Body)
			answer.Body.Close()
		}
		return err
	}
	if err := ask("/", nil); err != nil {
		t.Fatal(err)
	}
	<-b.begun
	worked := make(chan error, 1)
	go func() { worked <- ask("/work", nil) }()
	<-b.begun
	b.closed("another connection", b.connect("127.0.0.1", ""))
	if err := ask("/", nil); err != nil {
		t.Errorf("another request on the connection: %v", err)
	}
	b.finish <- struct{}{}
	if err := <-worked; err != nil {
		t.Errorf("the request that was worked on: %v", err)
	}
	for end := time.Now().Add(patience); b.metric("carillon_connections_shed_total", "waiting") == 0; time.Sleep(time.Millisecond) {
		_ = b.connect("127.0.0.1", "").Close()
		if time.Now().After(end) {
			t.Fatal("the idle connection does not make room")
		}
	}
}
