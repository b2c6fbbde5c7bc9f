//go:build services

package main_test

import (
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon/store/redis"
)

// A replica says at its start and at /readyz that its Redis server keeps nothing on disk, and works nevertheless.
func TestWarning(t *testing.T) {
	t.Parallel()
	url := forgetfulRedis(t)
	s, err := redis.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	c := newCluster(t, url, s)
	c.start(1)
	c.until("it is ready", func() bool {
		response, err := http.Get(c.replicas[0].url + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		return response.Body.Close() == nil && response.StatusCode == http.StatusOK
	})
	answer := c.call(c.replicas[0], http.MethodGet, "/readyz", nil, http.StatusOK)
	const want = "keeps nothing on disk"
	if warnings := fmt.Sprint(answer["warnings"]); answer["status"] != "ready" || !strings.Contains(warnings, want) {
		t.Errorf("readyz answers %v, want a warning that it %s", answer, want)
	}
	var logged []string
	for line := range strings.Lines(c.replicas[0].log.String()) {
		if strings.Contains(line, want) {
			logged = append(logged, line)
		}
	}
	if len(logged) != 1 || !strings.Contains(logged[0], `"level":"WARN"`) {
		t.Errorf("the log has %q, want one warning that it %s", logged, want)
	}
}

// forgetfulRedis starts a server that keeps nothing on disk, and answers its URL once it is there.
func forgetfulRedis(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().(*net.TCPAddr)
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	server := exec.Command("redis-server", "--bind", "127.0.0.1", "--port", fmt.Sprint(address.Port), "--dir", t.TempDir(), "--save", "")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait() // the error is its exit status
	})
	url := "redis://" + address.String()
	await(t, "the server answers", func() bool {
		s, err := redis.Open(t.Context(), url)
		if err == nil {
			_ = s.Close()
		}
		return err == nil
	})
	return url
}
