package webhook_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/callbacks/webhook"
)

// check is the check of an address that is about to be dialled.
type check = func(netip.AddrPort) error

// kinds are the servers that a request may be made to.
var kinds = map[string]func(t *testing.T, handler http.Handler) (url string, sender *webhook.Sender){
	"plain": func(t *testing.T, handler http.Handler) (string, *webhook.Sender) {
		server := httptest.NewServer(handler)
		t.Cleanup(server.Close)
		return server.URL, newSender(t, webhook.Options{})
	},
	"TLS":    func(t *testing.T, handler http.Handler) (string, *webhook.Sender) { return overTLS(t, handler, false) },
	"HTTP/2": func(t *testing.T, handler http.Handler) (string, *webhook.Sender) { return overTLS(t, handler, true) },
}

func overTLS(t *testing.T, handler http.Handler, http2 bool) (string, *webhook.Sender) {
	server := httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = http2
	server.StartTLS()
	t.Cleanup(server.Close)
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	return server.URL, newSender(t, webhook.Options{TLS: &tls.Config{RootCAs: roots}})
}

// late is a context whose time is over though it does not say so yet, as after the process was stopped.
type late struct{ context.Context }

func (late) Deadline() (time.Time, bool) { return time.Now().Add(-time.Millisecond), true }

// Nothing is written for a request whose time is over when it comes to that, on a new connection or on one that is used
// again.
func TestNothingIsWrittenLate(t *testing.T) {
	for name, open := range kinds {
		t.Run(name, func(t *testing.T) {
			var lock sync.Mutex
			got := make(map[string]int)
			url, sender := open(t, http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
				_, _ = io.Copy(io.Discard, req.Body)
				lock.Lock()
				defer lock.Unlock()
				got[req.URL.Path]++
			}))
			send := func(ctx context.Context, path string) error { return sender.Send(ctx, delivery(data("url", url+path))) }
			for _, path := range []string{"/new", "/again"} {
				// As if it were stopped when the connection is there.
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				stopped := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { <-ctx.Done() }})
				if err := send(stopped, "/stopped"+path); err == nil {
					t.Errorf("%s: it was sent though it was stopped for longer than it had time", path)
				}
				cancel()
				err := send(late{t.Context()}, "/late"+path)
				failure, ok := errors.AsType[*callbacks.Failure](err)
				if !ok || !failure.Unavailable || failure.After <= 0 {
					t.Errorf("%s: what was not sent is to cost no attempt: %v", path, err)
				}
				for range 2 {
					if err := send(t.Context(), path); err != nil {
						t.Error(err)
					}
				}
			}
			lock.Lock()
			defer lock.Unlock()
			if len(got) != 2 || got["/new"] != 2 || got["/again"] != 2 {
				t.Errorf("the receiver has got %v", got)
			}
		})
	}
}

// lingering notes the linger time that is set before a connection is closed.
type lingering struct {
	net.Conn
	dropped *atomic.Int32
}

func (c lingering) SetLinger(seconds int) error {
	if seconds == 0 {
		c.dropped.Add(1)
	}
	return nil
}

// Bytes of a request that the kernel still has when its time is over are not sent later. A connection that did its work ends
// in order.
func TestUnsentIsDropped(t *testing.T) {
	hang := make(chan struct{})
	var came atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		if req.URL.Path == "/hangs" {
			came.Store(true)
			<-hang
		}
	}))
	defer server.Close()
	defer close(hang)
	var dropped atomic.Int32
	dial := func(ctx context.Context, network, address string, _ check) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, address)
		return lingering{c, &dropped}, err
	}
	for within, sent := 100*time.Millisecond, false; !sent; within *= 2 { // until it is sent in time, on however slow a machine
		dropped.Store(0)
		sender := newSender(t, webhook.Options{Dial: dial})
		ctx, cancel := context.WithTimeout(t.Context(), within)
		sent = sender.Send(ctx, delivery(data("url", server.URL))) == nil
		<-ctx.Done() // after which an idle connection is not late
		cancel()
		if err := sender.Close(); err != nil || sent && dropped.Load() != 0 {
			t.Errorf("%d were dropped, %v", dropped.Load(), err)
		}
		if !sent && within > time.Minute {
			t.Fatal("nothing is sent")
		}
	}
	dropped.Store(0)
	sender := newSender(t, webhook.Options{Dial: dial})
	for within := 50 * time.Millisecond; !came.Load(); within *= 2 {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		if err := sender.Send(ctx, delivery(data("url", server.URL+"/hangs"))); err == nil {
			t.Fatal("an answer came that nobody gave")
		}
		cancel()
		if !came.Load() && within > time.Minute {
			t.Fatal("nothing is sent")
		}
	}
	for deadline := time.Now().Add(time.Minute); dropped.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("what is unsent is not dropped")
		}
	}
}

func TestPlace(t *testing.T) {
	sender := newSender(t, webhook.Options{})
	for url, want := range map[string]string{
		"http://example.com": "/", "http://example.com/": "/", "https://u:p@example.com:8443/a%2Fb/c?d=e/f": "/a%2Fb/c",
		"http://example.com?a=/b": "/", "http://example.com/a?": "/a",
	} {
		if _, got := sender.Place(data("url", url)); got != want {
			t.Errorf("the part of %s is %q, want %q", url, got, want)
		}
	}
}
