package listen_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon/cmd/internal/listen"
)

// BenchmarkConnections measures the cost of the bound for a small request on a kept connection.
func BenchmarkConnections(b *testing.B) {
	for _, bounded := range []bool{false, true} {
		b.Run(fmt.Sprintf("bounded=%t", bounded), func(b *testing.B) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(w, r.Body)
			})}
			url := "http://" + l.Addr().String()
			if bounded {
				connections := listen.NewConnections(1000)
				server.Handler, server.ConnContext, l = connections.Handler(server.Handler), connections.Keep, connections.Limit(l)
			}
			go func() { _ = server.Serve(l) }()
			defer server.Close()
			for b.Loop() {
				answer, err := http.Post(url, "text/plain", strings.NewReader("hello"))
				if err != nil {
					b.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, answer.Body)
				answer.Body.Close()
			}
		})
	}
}
