package main

import (
	"bytes"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon/store"

	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
)

// The service is asked where it listens, be it at all addresses.
func TestHealthcheck(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://203.0.113.1:1") // it is not asked by others
	url := "sqlite:" + t.TempDir() + "/carillon.db"
	onStore(t, url, func(store.Store) {})
	for _, host := range []string{"127.0.0.1", "", "0.0.0.0"} {
		t.Run(host, func(t *testing.T) {
			s := startWith(t, map[string]string{"auth": "keys", "listen": net.JoinHostPort(host, "0"), "store": url, "webhook-proxy": "ignore"})
			_, port, err := net.SplitHostPort(s.address())
			if err != nil {
				t.Fatal(err)
			}
			t.Setenv("CARILLON_LISTEN", net.JoinHostPort(host, port))
			var stdout, stderr bytes.Buffer
			if code := run([]string{"healthcheck"}, &stdout, &stderr); code != 0 || stdout.String() != `{"status":"ok"}` {
				t.Errorf("exit code %d: %s%s", code, &stdout, &stderr)
			}
			s.stop()
			code := run([]string{"healthcheck"}, &stdout, &stderr)
			if code != cli.ExitFailure || !strings.Contains(stderr.String(), port) {
				t.Errorf("when it has ended: exit code %d: %s", code, &stderr)
			}
		})
	}
}

// A server with another answer is no healthy service.
func TestHealthcheckOfAnother(t *testing.T) {
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	var stdout, stderr bytes.Buffer
	code := run([]string{"healthcheck", "--listen=" + other.Listener.Addr().String()}, &stdout, &stderr)
	if code != cli.ExitFailure || !strings.Contains(stderr.String(), "404") {
		t.Errorf("exit code %d: %s", code, &stderr)
	}
}
