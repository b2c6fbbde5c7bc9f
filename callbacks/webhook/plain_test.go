package webhook_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/callbacks/webhook"
	"github.com/carillon-scheduler/carillon/job"
)

// serve has each connection handled, which is closed afterwards, and returns the URL and options for a sender.
func serve(t *testing.T, secure bool, handle func(c net.Conn)) (url string, o webhook.Options) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url = "http://" + l.Addr().String()
	if secure {
		example := httptest.NewTLSServer(nil)
		example.Close()
		l = tls.NewListener(l, &tls.Config{Certificates: example.TLS.Certificates})
		roots := x509.NewCertPool()
		roots.AddCert(example.Certificate())
		url, o.TLS = "https"+strings.TrimPrefix(url, "http"), &tls.Config{RootCAs: roots}
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer func() { _ = c.Close() }()
				handle(c)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		all.Wait()
	})
	return url, o
}

// read reads a request, and returns whether there was one.
func read(r *bufio.Reader) bool {
	req, err := http.ReadRequest(r)
	if err != nil {
		return false
	}
	_, err = io.Copy(io.Discard, req.Body)
	return err == nil
}

// Receivers end their answers in several ways, some of which leave the connection fit for another request. Requests
// without TLS and with it are made by different code, with the same behaviour.
func TestAnswers(t *testing.T) {
	const fine = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
	tests := []struct {
		name, answer string
		closes       bool
		says         string // the error; none if empty
		connections  int32  // for two requests, one after the other
		plain        bool   // not over TLS, where net/http does otherwise
	}{
		{name: "length", answer: fine, connections: 1},
		{name: "chunks and a trailer", answer: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n2\r\nok\r\n0\r\nX: y\r\n\r\n",
			connections: 1},
		{name: "no body", answer: "HTTP/1.1 204 No Content\r\n\r\n", connections: 1},
		{name: "old, but kept", answer: "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok", connections: 1},
		{name: "old", answer: "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", closes: true, connections: 2},
		{name: "until the end", answer: "HTTP/1.1 200 OK\r\n\r\nok", closes: true, connections: 2},
		{name: "announces its end", answer: "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", connections: 2},
		{name: "cut off", answer: "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok", closes: true, connections: 2},
		{name: "wrong chunks", answer: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nok", closes: true, connections: 2},
		{name: "informs first", answer: "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + fine, connections: 1},
		{name: "more than announced", answer: fine + "HTTP/1.1 500 Odd\r\nContent-Length: 0\r\n\r\n", connections: 2, plain: true},
		{name: "another protocol", answer: "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", says: "101",
			connections: 2, plain: true},
		{name: "no HTTP", answer: "220 mail.example.com ready\r\n\r\n", says: "malformed HTTP", connections: 2},
		{name: "half a header", answer: "HTTP/1.1 200 OK\r\nX: y\r\n", closes: true, says: "unexpected EOF", connections: 2},
		{name: "nothing", closes: true, says: "EOF", connections: 2},
		{name: "long header", answer: "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 80<<10) + "\r\n\r\n", says: "header", connections: 2},
		{name: "informs for ever", answer: strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 5000) + fine, says: "header", connections: 2},
	}
	for _, test := range tests {
		for name, secure := range map[string]bool{"plain": false, "TLS": true} {
			if secure && test.plain {
				continue
			}
			t.Run(test.name+", "+name, func(t *testing.T) {
				t.Parallel()
				var connections, requests atomic.Int32
				url, o := serve(t, secure, func(c net.Conn) {
					connections.Add(1)
					for r := bufio.NewReader(c); read(r); {
						requests.Add(1)
						if _, err := io.WriteString(c, test.answer); err != nil || test.closes {
							return
						}
					}
				})
				sender := newSender(t, o)
				for range 2 {
					err := sender.Send(t.Context(), delivery(data("url", url)))
					if test.says == "" && err != nil || test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says)) {
						t.Errorf("the error is %v, want %q", err, test.says)
					}
				}
				if connections.Load() != test.connections || requests.Load() != 2 {
					t.Errorf("%d requests on %d connections, want 2 on %d", requests.Load(), connections.Load(), test.connections)
				}
			})
		}
	}
}

// A receiver that refuses a long request early, and does not read it, is heard.
func TestEarlyAnswer(t *testing.T) {
	for name, secure := range map[string]bool{"plain": false, "TLS": true} {
		t.Run(name, func(t *testing.T) {
			over := make(chan struct{})
			url, o := serve(t, secure, func(c net.Conn) {
				if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
					t.Error(err)
				}
				_, _ = io.WriteString(c, "HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
				<-over
			})
			defer close(over)
			err := newSender(t, o).Send(t.Context(), delivery(dataOf(url, `"`+strings.Repeat("x", 4<<20)+`"`)))
			if err == nil || !strings.Contains(err.Error(), "413") {
				t.Errorf("the error is %v", err)
			}
		})
	}
}

// The status decides, so an answer whose body does not end in time is a success. Its connection is closed.
func TestEndlessBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		sender := newSender(t, webhook.Options{Dial: func(context.Context, string, string, check) (net.Conn, error) { return here, nil }})
		var closed atomic.Bool
		go func() {
			r := bufio.NewReader(there)
			read(r)
			_, _ = io.WriteString(there, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok")
			closed.Store(!read(r))
		}()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		if err := sender.Send(ctx, delivery(data("url", "http://example.com"))); err != nil || ctx.Err() == nil {
			t.Errorf("before its time was over, it ended with %v", err)
		}
		synctest.Wait()
		if !closed.Load() {
			t.Error("its connection is open")
		}
	})
}

// counted counts the writes to a connection.
type counted struct {
	*net.TCPConn
	writes *atomic.Int32
}

func (c counted) Write(b []byte) (int, error) {
	c.writes.Add(1)
	return c.TCPConn.Write(b)
}

func counting(o webhook.Options, dialled, writes *atomic.Int32) webhook.Options {
	o.Dial = func(ctx context.Context, network, address string, _ check) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		dialled.Add(1)
		return counted{c.(*net.TCPConn), writes}, nil
	}
	return o
}

// Nothing is written to an idle connection that the receiver has closed, or on which it has sent an unrequested answer,
// which would be taken for the next one.
func TestSpoiltConnection(t *testing.T) {
	for name, spoil := range map[string]func(c net.Conn) error{
		"closed":      net.Conn.Close,
		"half closed": func(c net.Conn) error { return c.(*net.TCPConn).CloseWrite() },
		"timed out": func(c net.Conn) error {
			_, err := io.WriteString(c, "HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			var requests, dialled, writes atomic.Int32
			idle, spoilt := make(chan struct{}), make(chan struct{})
			url, o := serve(t, false, func(c net.Conn) {
				r := bufio.NewReader(c)
				for read(r) {
					first := requests.Add(1) == 1
					_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
					if first {
						<-idle
						if err := spoil(c); err != nil {
							t.Error(err)
						}
						close(spoilt)
					}
				}
			})
			sender := newSender(t, counting(o, &dialled, &writes))
			for i := range 2 {
				if err := sender.Send(t.Context(), delivery(data("url", url))); err != nil {
					t.Error(err)
				}
				if i == 0 {
					close(idle)
					<-spoilt
				}
			}
			if requests.Load() != 2 || dialled.Load() != 2 || writes.Load() != 2 {
				t.Errorf("%d requests, by %d writes on %d connections; want 2 each", requests.Load(), writes.Load(), dialled.Load())
			}
		})
	}
}

// A request is sent again only if a kept connection ended without an answer, and only once. The second one is on a new
// connection, though others are idle.
func TestSentAgain(t *testing.T) {
	var requests, dialled, writes atomic.Int32
	failing := false
	var lock sync.Mutex
	together := make(chan struct{})
	url, o := serve(t, false, func(c net.Conn) {
		for r := bufio.NewReader(c); read(r); {
			n := requests.Add(1)
			lock.Lock()
			fails := failing
			lock.Unlock()
			if fails {
				return
			}
			if n == 3 {
				close(together)
			}
			<-together
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		}
	})
	sender := newSender(t, counting(o, &dialled, &writes))
	send := func() error { return sender.Send(t.Context(), delivery(data("url", url))) }
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			if err := send(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	lock.Lock()
	failing = true
	lock.Unlock()
	if err := send(); !errors.Is(err, io.EOF) {
		t.Errorf("the error is %v, want EOF", err)
	}
	if requests.Load() != 5 || dialled.Load() != 4 {
		t.Errorf("%d requests on %d connections, want 5 on 4", requests.Load(), dialled.Load())
	}
}

// Idle connections are not kept for ever, nor more of them than the option says.
func TestIdleConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const attempts, kept = 5, 2
		var dialled, open atomic.Int32
		sender := newSender(t, webhook.Options{IdleConns: kept, Dial: func(context.Context, string, string, check) (net.Conn, error) {
			here, there := net.Pipe()
			dialled.Add(1)
			open.Add(1)
			go func() {
				for r := bufio.NewReader(there); read(r); {
					time.Sleep(time.Second)
					_, _ = io.WriteString(there, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				}
				open.Add(-1)
				_ = there.Close()
			}()
			return here, nil
		}})
		send := func() {
			if err := sender.Send(t.Context(), delivery(data("url", "http://example.com"))); err != nil {
				t.Error(err)
			}
		}
		for range attempts {
			go send()
		}
		time.Sleep(2 * time.Second)
		if n := open.Load(); n != kept {
			t.Errorf("%d connections are kept, want %d", n, kept)
		}
		time.Sleep(45 * time.Second)
		send()
		if n := dialled.Load(); n != attempts {
			t.Errorf("a connection that was idle for 46 s is not used: %d were dialled", n)
		}
		time.Sleep(20 * time.Second)
		if n := open.Load(); n != 1 {
			t.Errorf("%d connections are kept, want the one that was used last", n)
		}
		time.Sleep(32 * time.Second) // it may be open yet
		send()
		if n := dialled.Load(); n != attempts+1 {
			t.Errorf("a connection that was idle for 52 s is used: %d were dialled", n)
		}
		time.Sleep(time.Hour)
		if n := open.Load(); n != 0 {
			t.Errorf("%d connections are open after an hour", n)
		}
		go send()
		time.Sleep(time.Millisecond)
		if err := sender.Close(); err != nil || open.Load() != 1 {
			t.Errorf("closing took the connection of a request under way: %v", err)
		}
		time.Sleep(2 * time.Second)
		if n := open.Load(); n != 0 {
			t.Errorf("%d connections are kept by a closed sender", n)
		}
	})
}

// A long body is sent by net/http, a short one is not. Besides the body there is no difference.
func TestShortAndLongAreAlike(t *testing.T) {
	type arrival struct {
		dialled, line, host string
	}
	requests := make(chan *http.Request, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) { requests <- req }))
	defer server.Close()
	var dialled string
	dial := func(ctx context.Context, network, address string, _ check) (net.Conn, error) {
		dialled = address
		return new(net.Dialer).DialContext(ctx, network, strings.TrimPrefix(server.URL, "http://"))
	}
	for url, want := range map[string]arrival{
		"http://example.com":                     {dialled: "example.com:80", host: "example.com", line: "POST / HTTP/1.1"},
		"http://EXAMPLE.com:80/a%2Fb?":           {dialled: "EXAMPLE.com:80", host: "EXAMPLE.com:80", line: "POST /a%2Fb? HTTP/1.1"},
		"http://u:p@example.com:81?a=b;c":        {dialled: "example.com:81", host: "example.com:81", line: "POST /?a=b;c HTTP/1.1"},
		"http://127.0.0.1//a/../b":               {dialled: "127.0.0.1:80", host: "127.0.0.1", line: "POST //a/../b HTTP/1.1"},
		"http://[::1]:8080/":                     {dialled: "[::1]:8080", host: "[::1]:8080", line: "POST / HTTP/1.1"},
		"http://[fd00::1%25eth0]/":               {dialled: "[fd00::1%eth0]:80", host: "[fd00::1]", line: "POST / HTTP/1.1"},
		"http://bücher.example:8080/":            {dialled: "xn--bcher-kva.example:8080", host: "xn--bcher-kva.example:8080", line: "POST / HTTP/1.1"},
		"http://example.com/[a]?b[]=c&d=%20e%zz": {dialled: "example.com:80", host: "example.com", line: "POST /[a]?b[]=c&d=%20e%zz HTTP/1.1"},
	} {
		var headers []http.Header
		for _, payload := range []string{"", strings.Repeat("x", 20<<10)} {
			sender := newSender(t, webhook.Options{Dial: dial})
			d := delivery(data("url", url, "payload", payload, "headers", map[string]string{"x-empty": "", "cookie": "a=b; c", "Accept": "*/*"}))
			d.Part = &job.Part{Step: 1, Subscriber: `{"name":"Zoë"}`}
			if err := sender.Send(t.Context(), d); err != nil {
				t.Errorf("%s: %v", url, err)
				continue
			}
			req := <-requests
			req.Header.Del("Content-Length")
			got := arrival{dialled: dialled, host: req.Host, line: req.Method + " " + req.RequestURI + " " + req.Proto}
			headers = append(headers, req.Header)
			if req.ContentLength != int64(len(payload)+2) || !reflect.DeepEqual(got, want) {
				t.Errorf("%s, %d bytes: %+v, want %+v", url, req.ContentLength, got, want)
			}
		}
		if len(headers) == 2 && !reflect.DeepEqual(headers[0], headers[1]) {
			t.Errorf("%s: headers are %v and %v", url, headers[0], headers[1])
		}
	}
}
