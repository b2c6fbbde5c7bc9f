//go:build services

package redis_test

import (
	"net"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// server is a Redis server of one test, which may misconfigure, stop and kill it.
type server struct {
	t       testing.TB
	args    []string
	url     string
	command *exec.Cmd
	// direct is a connection that bypasses the store.
	direct *goredis.Client
}

// newServer starts a server with additional arguments.
func newServer(t testing.TB, args ...string) *server {
	t.Helper()
	address := freeAddress(t)
	_, port, _ := strings.Cut(address, ":")
	s := &server{
		t:      t,
		args:   append([]string{"--bind", "127.0.0.1", "--port", port, "--dir", t.TempDir(), "--save", ""}, args...),
		url:    "redis://" + address,
		direct: goredis.NewClient(&goredis.Options{Addr: address}),
	}
	t.Cleanup(func() {
		_ = s.direct.Close()
		s.signal(syscall.SIGCONT)
		s.end(syscall.SIGKILL)
	})
	s.start()
	return s
}

// freeAddress returns an address without a listener.
func freeAddress(t testing.TB) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	return listener.Addr().String()
}

// start starts the server and waits until it answers.
func (s *server) start() {
	s.t.Helper()
	s.command = exec.Command("redis-server", s.args...)
	if err := s.command.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.await("the server listens", func() bool {
		c, err := net.Dial("tcp", s.direct.Options().Addr)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	s.await("the server answers", func() bool {
		err := s.direct.Ping(s.t.Context()).Err()
		return err == nil || strings.HasPrefix(err.Error(), "NOAUTH")
	})
}

func (s *server) signal(signal syscall.Signal) { _ = s.command.Process.Signal(signal) }

// end ends the server, and waits until it has.
func (s *server) end(signal syscall.Signal) {
	s.signal(signal)
	_ = s.command.Wait() // the error is its exit status
}

func (s *server) await(what string, check func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); !check(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("in five minutes it did not come to pass that %s", what)
		}
	}
}

// empty removes all keys and scripts, so that the server is as new. A test of many cases, one after another, has one
// server for all: to start one costs more than to empty it.
func (s *server) empty() {
	s.t.Helper()
	s.must("flushall")
	s.must("script", "flush")
}

// scripts returns the number of scripts that the server has run.
func (s *server) scripts() int {
	s.t.Helper()
	return s.commands()["evalsha"]
}

// commands returns the number of runs of each command, including those within scripts, without the commands of this
// query.
func (s *server) commands() map[string]int {
	s.t.Helper()
	info, err := s.direct.Info(s.t.Context(), "commandstats").Result()
	if err != nil {
		s.t.Fatal(err)
	}
	all := make(map[string]int)
	for line := range strings.Lines(info) {
		name, rest, is := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		if !is || name == "info" || name == "config|resetstat" {
			continue
		}
		calls, _, _ := strings.Cut(rest, ",")
		if all[name], err = strconv.Atoi(calls); err != nil {
			s.t.Fatal(err)
		}
	}
	return all
}

// must runs a command on the server.
func (s *server) must(args ...any) any {
	s.t.Helper()
	answer, err := s.direct.Do(s.t.Context(), args...).Result()
	if err != nil && err != goredis.Nil { //nolint:errorlint // it is returned unwrapped
		s.t.Fatalf("%v: %v", args, err)
	}
	return answer
}
