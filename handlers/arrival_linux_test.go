package handlers_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/handlers"
)

// TestStoppedReplicaActsOnNothingThatWasOvertaken has requests wait at a replica that stands still, while another one
// accepts a newer definition.
func TestStoppedReplicaActsOnNothingThatWasOvertaken(t *testing.T) {
	t.Parallel()
	for _, request := range []string{"PUT", "DELETE", "PATCH"} {
		t.Run(request, func(t *testing.T) {
			a := newAPI(t, ofStoresClock)
			a.call("PUT", "/v1/jobs/a", body("a", time.Hour)).want(201)

			var config handlers.Config
			b := newAPI(t, ofStoresClock, func(c *handlers.Config) {
				c.Store, c.Inspector, c.Records = a.store, a.store, a.store
				config = *c
			})
			stopped := &http.Server{Handler: handlers.New(config), ConnContext: handlers.KeepConn}
			listener, err := net.Listen("tcp", "127.0.0.1:0") // it listens, and never accepts
			if err != nil {
				t.Fatal(err)
			}
			defer stopped.Close()
			conn, err := net.Dial("tcp", listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			content := map[string]string{"PUT": body("a", 2*time.Hour), "PATCH": `{"callback":{"data":7}}`}[request]
			fmt.Fprintf(conn, "%s /v1/jobs/a HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", request, len(content), content)

			time.Sleep(100 * time.Millisecond) // it has arrived before the next, by more than the kernel's ticks
			want := decode[accepted](b.call("PUT", "/v1/jobs/a", body("a", 9*time.Hour)).want(200)).Version
			go func() { _ = stopped.Serve(listener) }()
			answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer answer.Body.Close()
			if answer.StatusCode != http.StatusConflict {
				t.Errorf("status %d, want 409", answer.StatusCode)
			}
			if got := a.definition("a").Version; got != want {
				t.Errorf("version %s, want %s", got, want)
			}
		})
	}
}

// TestStalledRequestActsOnNothingThatWasOvertaken does the same with requests that were read before the replica stalled,
// over each kind of connection.
func TestStalledRequestActsOnNothingThatWasOvertaken(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"HTTP/1.1", "HTTP/1.1 over TLS", "HTTP/2.0 over TLS"} {
		t.Run(protocol, func(t *testing.T) {
			a := newAPI(t, ofStoresClock)
			a.call("PUT", "/v1/jobs/a", body("a", time.Hour)).want(201)
			var config handlers.Config
			b := newAPI(t, ofStoresClock, func(c *handlers.Config) {
				c.Store, c.Inspector, c.Records = a.store, a.store, a.store
				config = *c
			})
			api, come, proceed := handlers.New(config), make(chan string), make(chan struct{})
			stalled := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				come <- r.Proto
				<-proceed
				api.ServeHTTP(w, r)
			}))
			stalled.Config.ConnContext = handlers.KeepConn
			proto, secure, _ := strings.Cut(protocol, " ")
			stalled.EnableHTTP2 = proto == "HTTP/2.0"
			if secure != "" {
				stalled.StartTLS()
			} else {
				stalled.Start()
			}
			defer stalled.Close()
			status := make(chan int, 1)
			go func() {
				request, _ := http.NewRequest(http.MethodPut, stalled.URL+"/v1/jobs/a", strings.NewReader(body("a", 2*time.Hour)))
				request.Header.Set("Content-Type", "application/json")
				answer, err := stalled.Client().Do(request)
				if err != nil {
					status <- 0
					return
				}
				answer.Body.Close()
				status <- answer.StatusCode
			}()
			if got := <-come; got != proto {
				t.Errorf("it came by %s", got)
			}
			time.Sleep(100 * time.Millisecond) // as above
			want := decode[accepted](b.call("PUT", "/v1/jobs/a", body("a", 9*time.Hour)).want(200)).Version
			close(proceed)
			if got := <-status; got != http.StatusConflict {
				t.Errorf("status %d, want 409", got)
			}
			if got := a.definition("a").Version; got != want {
				t.Errorf("version %s, want %s", got, want)
			}
		})
	}
}
