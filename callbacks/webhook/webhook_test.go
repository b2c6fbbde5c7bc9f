package webhook_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/callbacks/webhook"
	"github.com/carillon-scheduler/carillon/job"
)

var instant = time.Date(2026, 12, 24, 14, 0, 0, 250e6, time.UTC)

func delivery(data []byte) callbacks.Delivery {
	name := job.Name{Tenant: job.DefaultTenant, Key: "grüße 100%"}
	return callbacks.Delivery{
		ID: job.DeliveryID(name, instant, 0, ""), Name: name, Timestamp: instant, Attempt: 3, SentAt: instant.Add(time.Hour), Data: data,
	}
}

// Headers of the job beside an event's attributes: they add some, and neither replace any nor say the content type
// twice.
func TestEventHeaders(t *testing.T) {
	headers := make(chan http.Header, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) { headers <- req.Header }))
	defer server.Close()
	d := delivery(data("url", server.URL, "payload", 1, "headers", map[string]string{
		"ce-type": "mine", "ce-subject": "mine", "CE-DataContentType": "mine", "content-type": "text/plain",
	}))
	d.Envelope = job.EnvelopeBinary
	if err := newSender(t, webhook.Options{}).Send(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	have := <-headers
	for name, want := range map[string][]string{
		"Ce-Type": {"carillon.occurrence"}, "Ce-Subject": {"mine"}, "Ce-Datacontenttype": nil, "Content-Type": {"text/plain"},
	} {
		if !slices.Equal(have[name], want) {
			t.Errorf("%s is %q, want %q", name, have[name], want)
		}
	}
}

// The whole request, as the documentation for receivers describes it.
func TestRequest(t *testing.T) {
	tests := []struct {
		name   string
		data   func(url string) []byte
		part   *job.Part
		method string
		path   string
		want   map[string]string // headers beside those that are always there
	}{
		{
			name:   "all defaults",
			data:   func(url string) []byte { return dataOf(url, `{"a": 1}`) },
			method: "POST", path: "/",
			want: map[string]string{"Content-Type": "application/json"},
		},
		{
			name: "own headers",
			data: func(url string) []byte {
				return data("url", url+"/a%2Fb%20c?d=e", "method", "PUT", "headers", map[string]string{"content-type": "a/b", "x-own": "c"})
			},
			method: "PUT", path: "/a%2Fb%20c?d=e",
			want: map[string]string{"Content-Type": "a/b", "X-Own": "c"},
		},
		{
			name: "own user agent",
			data: func(url string) []byte {
				return data("url", url, "headers", map[string]string{"user-agent": "acme/2 (+https://example.com)"})
			},
			method: "POST", path: "/",
			want: map[string]string{"Content-Type": "application/json", "User-Agent": "acme/2 (+https://example.com)"},
		},
		{
			name: "user in the URL",
			data: func(url string) []byte {
				return data("url", strings.Replace(url, "://", "://Aladdin:open%20sesame@", 1))
			},
			method: "POST", path: "/",
			want: map[string]string{"Content-Type": "application/json", "Authorization": "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="},
		},
		{
			name:   "no payload",
			data:   func(url string) []byte { return []byte(`{"url":"` + url + `"}`) },
			method: "POST", path: "/",
		},
		{
			name:   "no payload, but a type",
			data:   func(url string) []byte { return []byte(`{"url":"` + url + `","headers":{"Content-Type":"a/b"}}`) },
			method: "POST", path: "/",
			want: map[string]string{"Content-Type": "a/b"},
		},
		{
			name:   "step of a sequence",
			data:   func(url string) []byte { return dataOf(url, `1`) },
			part:   &job.Part{Step: 4, Subscriber: `{"name":"Zoë 1%"}`},
			method: "POST", path: "/",
			want: map[string]string{
				"Content-Type": "application/json", "Carillon-Step": "4", "Carillon-Subscriber": `{"name":"Zo%C3%AB%201%25"}`,
			},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			requests := make(chan *http.Request, 1)
			server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) { requests <- req }))
			defer server.Close()
			d := delivery(test.data(server.URL))
			d.Part = test.part
			if err := newSender(t, webhook.Options{UserAgent: "carillon/v1.2.3"}).Send(t.Context(), d); err != nil {
				t.Fatal(err)
			}
			req := <-requests
			if req.Method != test.method || req.RequestURI != test.path {
				t.Errorf("%s %s, want %s %s", req.Method, req.RequestURI, test.method, test.path)
			}
			want := map[string]string{
				"User-Agent":         "carillon/v1.2.3",
				"Webhook-Id":         d.ID.String(),
				"Webhook-Timestamp":  "1798124400",
				"Carillon-Key":       "gr%C3%BC%C3%9Fe%20100%25",
				"Carillon-Timestamp": "2026-12-24T14:00:00.250Z",
				"Carillon-Attempt":   "3",
			}
			for name, value := range test.want {
				want[name] = value
			}
			for name, values := range req.Header {
				if name == "Content-Length" {
					continue
				}
				if len(values) != 1 || values[0] != want[name] {
					t.Errorf("header %s is %q, want %q", name, values, want[name])
				}
				delete(want, name)
			}
			if len(want) > 0 {
				t.Errorf("missing are %v", want)
			}
		})
	}
}

func TestConnectionsAreReused(t *testing.T) {
	var connections atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/fails" {
			w.WriteHeader(http.StatusInternalServerError)
		}
		_, _ = w.Write([]byte(strings.Repeat("an answer that nobody reads\n", 2000))) // some 55 KiB
	}))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	sender := newSender(t, webhook.Options{})
	for range 10 {
		if err := sender.Send(t.Context(), delivery(data("url", server.URL))); err != nil {
			t.Fatal(err)
		}
		if err := sender.Send(t.Context(), delivery(data("url", server.URL+"/fails"))); err == nil {
			t.Fatal("500 is a success")
		}
	}
	if n := connections.Load(); n != 1 {
		t.Errorf("20 attempts one after the other took %d connections", n)
	}
}

// As many attempts at once as there may well be, again and again, take one connection each, and keep it.
func TestConnectionsOfManyAreReused(t *testing.T) {
	const attempts, rounds = 200, 3
	var came, dialled atomic.Int32
	together := make(chan struct{}, attempts)
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if came.Add(1)%attempts == 0 { // all of a round are under way
			for range attempts {
				together <- struct{}{}
			}
		}
		<-together
	}))
	defer server.Close()
	sender := newSender(t, webhook.Options{Dial: func(ctx context.Context, network, address string, _ check) (net.Conn, error) {
		dialled.Add(1)
		return new(net.Dialer).DialContext(ctx, network, address)
	}})
	for range rounds {
		var all sync.WaitGroup
		for range attempts {
			all.Go(func() {
				if err := sender.Send(t.Context(), delivery(data("url", server.URL))); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
	if n := dialled.Load(); n != attempts {
		t.Errorf("%d rounds of %d attempts at once took %d connections", rounds, attempts, n)
	}
}

// A receiver may close a kept connection just when it is used again, which must not cost an attempt.
func TestStaleConnection(t *testing.T) {
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if requests.Add(1) == 2 {
			panic(http.ErrAbortHandler)
		}
	}))
	defer server.Close()
	sender := newSender(t, webhook.Options{})
	for range 2 {
		if err := sender.Send(t.Context(), delivery(data("url", server.URL))); err != nil {
			t.Error(err)
		}
	}
}

func TestTLS(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.ProtoMajor != 2 {
			http.Error(w, "this is "+req.Proto, http.StatusHTTPVersionNotSupported)
		}
		_, _ = io.Copy(io.Discard, req.Body)
	}))
	server.EnableHTTP2 = true
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())

	d := delivery(data("url", server.URL+"/?token="+token))
	if err := newSender(t, webhook.Options{TLS: &tls.Config{RootCAs: roots}}).Send(t.Context(), d); err != nil {
		t.Errorf("over HTTP/2: %v", err)
	}
	err := newSender(t, webhook.Options{}).Send(t.Context(), d)
	if err == nil || !strings.Contains(err.Error(), "certificate") || strings.Contains(err.Error(), token) {
		t.Errorf("an unknown authority: %v", err)
	}
	if _, judged := errors.AsType[*callbacks.Failure](err); judged {
		t.Errorf("an unknown authority is a plain failure, not %#v", err)
	}
}

func TestDeadline(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body) // only then the server notices that the client is gone
		<-req.Context().Done()
	}))
	defer server.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := newSender(t, webhook.Options{}).Send(ctx, delivery(data("url", server.URL)))
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a receiver that doesn't answer: %v", err)
	}
}

// A pause asked for until some date is counted from now.
func TestRetryAfterDate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		sender := newSender(t, webhook.Options{Dial: func(context.Context, string, string, check) (net.Conn, error) { return here, nil }})
		go func() {
			buffer := make([]byte, 64<<10)
			_, _ = there.Read(buffer)
			at := time.Now().Add(90 * time.Second).UTC().Format(http.TimeFormat)
			_, _ = io.WriteString(there, "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nRetry-After: "+at+"\r\n\r\n")
		}()
		err := sender.Send(t.Context(), delivery(data("url", "http://receiver.test/")))
		failure, ok := errors.AsType[*callbacks.Failure](err)
		if !ok || failure.After != 90*time.Second {
			t.Errorf("%v: want a pause of 90 s", err)
		}
		_ = there.Close()
	})
}

// An error quotes one short line of an answer.
func TestErrorExcerpt(t *testing.T) {
	for name, test := range map[string]struct{ body, want string }{
		"empty":            {"", "500 Internal Server Error"},
		"spaces only":      {" \n\t ", "500 Internal Server Error"},
		"lines":            {"one\r\n  two\x00\x1b[31m\tthree ", "500 Internal Server Error: one two[31m three"},
		"not UTF-8":        {"a\xff\xfeb", "500 Internal Server Error: ab"},
		"long":             {strings.Repeat("ü", 600), "500 Internal Server Error: " + strings.Repeat("ü", 200)},
		"HTML stays as is": {"<h1>no</h1>", "500 Internal Server Error: <h1>no</h1>"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusInternalServerError)
				_, _ = io.WriteString(w, test.body)
			}))
			defer server.Close()
			err := newSender(t, webhook.Options{}).Send(t.Context(), delivery(data("url", server.URL)))
			if err == nil || !strings.HasSuffix(err.Error(), " answered "+test.want) {
				t.Errorf("the error is %v, want one that ends with %q", err, test.want)
			}
		})
	}
}

func newSender(t *testing.T, o webhook.Options) *webhook.Sender {
	sender := webhook.New(o)
	t.Cleanup(func() { _ = sender.Close() })
	return sender
}
