package main

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
	"github.com/carillon-scheduler/carillon/cmd/internal/service"
)

// TestUnreachable: a store that can't be reached is no mistake in the configuration, and is reported within seconds.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	const closed = "127.0.0.1:1" // without a listener
	silent := listening(t)
	for _, c := range []struct{ name, url string }{
		{"PostgreSQL", "postgres://user:hunter2@" + closed + "/db"},
		{"PostgreSQL does not answer", "postgres://user:hunter2@" + silent.Addr().String() + "/db"},
		{"MongoDB", "mongodb://user:hunter2@" + closed + "/db?serverSelectionTimeoutMS=300"},
		{"MongoDB does not answer", "mongodb://user:hunter2@" + silent.Addr().String() + "/db"},
		{"Redis", "redis://user:hunter2@" + closed},
		{"Redis does not answer", "redis://user:hunter2@" + silent.Addr().String()},
		{"Redis Cluster", "redis://user:hunter2@" + closed + "," + closed + "?cluster=true"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // each waits for a time limit
			startFails(t, []string{"--store=" + c.url}, cli.ExitFailure, "--store-wait")
		})
	}
}

// TestMemory: a service whose jobs nothing outlives says so at its start.
func TestMemory(t *testing.T) {
	startFails(t, []string{"--store=memory:"}, cli.ExitUsage, "level=WARN", "gone when it ends", "no other replica")
}

func listening(t *testing.T) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return listener
}

// startFails starts a service that must not start, and checks its exit code and its messages. Once the store is open,
// an address that no machine has would end it.
func startFails(t *testing.T, options []string, code int, want ...string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if got := run(append([]string{"serve", "--listen=203.0.113.1:1", "--insecure-no-auth-beyond-loopback"}, options...), &stdout, &stderr); got != code {
		t.Errorf("exit code %d, want %d", got, code)
	}
	for _, w := range want {
		if !strings.Contains(stderr.String(), w) {
			t.Errorf("the message lacks %q: %s", w, &stderr)
		}
	}
	if strings.Contains(stderr.String(), "hunter2") {
		t.Errorf("the message has the password: %s", &stderr)
	}
}

// TestUnusable: a fault that waiting can't mend ends the service at once, however long it may wait.
func TestUnusable(t *testing.T) {
	for name, c := range map[string]struct{ pragma, want string }{
		"of another program": {"application_id = 7", "another program"},
		"newer":              {"user_version = 99", "upgrade carillon"},
	} {
		t.Run(name, func(t *testing.T) {
			url := "sqlite:" + filepath.Join(t.TempDir(), "carillon.db")
			s, err := service.OpenStore(t.Context(), url)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			db, err := sql.Open("sqlite", strings.TrimPrefix(url, "sqlite:"))
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			if _, err := db.Exec("PRAGMA " + c.pragma); err != nil {
				t.Fatal(err)
			}
			startFails(t, []string{"--store=" + url, "--store-wait=1h"}, cli.ExitUsage, "--store: ", c.want)
		})
	}
}

// TestUnusableFile: a file that can't be used where it is is a mistake in the configuration, too.
func TestUnusableFile(t *testing.T) {
	folder := t.TempDir()
	diary := filepath.Join(folder, "diary")
	if err := os.WriteFile(diary, []byte(strings.Repeat("dear diary\n", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(folder, "none", "carillon.db"): "there is no folder",
		diary:  "not a SQLite database",
		folder: "is no file",
	} {
		startFails(t, []string{"--store=sqlite:" + path, "--store-wait=1h"}, cli.ExitUsage, "--store: ", want)
	}
}

// unreachable returns the URL of a store that does not answer.
func unreachable(t *testing.T) (url string) {
	t.Helper()
	listener := listening(t)
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	return "redis://" + listener.Addr().String()
}

// TestStoreWaitStopped: a service that waits for its store ends in good order on SIGTERM.
func TestStoreWaitStopped(t *testing.T) {
	s := start(t, unreachable(t), time.Hour)
	s.logs("retrying")
	s.stop()
}

func TestStoreWaitEnds(t *testing.T) {
	startFails(t, []string{"--store=" + unreachable(t), "--store-wait=300ms"}, cli.ExitFailure, "retrying", "--store-wait=300ms")
}

// started is a service under way.
type started struct {
	*testing.T
	log    *bufio.Scanner
	cancel context.CancelFunc
	ended  chan error
}

func start(t *testing.T, url string, wait time.Duration) *started {
	t.Helper()
	return startWith(t, map[string]string{"listen": "127.0.0.1:0", "store": url, "store-wait": wait.String()})
}

// startWith starts a service with options.
func startWith(t *testing.T, settings map[string]string) *started {
	t.Helper()
	return startLogging(t, settings, "info", io.Discard)
}

// startLogging does so, and copies the log.
func startLogging(t *testing.T, settings map[string]string, level string, log io.Writer) *started {
	t.Helper()
	options, err := service.Configure(settings)
	if err != nil {
		t.Fatal(err)
	}
	command := serveCommand{options: options, log: logOptions{level, "text"}}
	ctx, cancel := context.WithCancel(t.Context())
	lines := newLines()
	s := &started{T: t, log: bufio.NewScanner(io.TeeReader(lines, log)), cancel: cancel, ended: make(chan error, 1)}
	go func() {
		s.ended <- command.Run(ctx, cli.Input{Stdout: lines, Stderr: lines})
		lines.end()
	}()
	return s
}

// lines is a log that a test reads line by line. Writes never block.
type lines struct {
	mu    sync.Mutex
	more  *sync.Cond
	text  bytes.Buffer
	ended bool
}

func newLines() *lines {
	l := &lines{}
	l.more = sync.NewCond(&l.mu)
	return l
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.more.Broadcast()
	return l.text.Write(b)
}

func (l *lines) Read(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.text.Len() == 0 && !l.ended {
		l.more.Wait()
	}
	return l.text.Read(b)
}

func (l *lines) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	l.more.Broadcast()
}

// logs waits until a line of the log has a text.
func (s *started) logs(text string) {
	s.Helper()
	for s.log.Scan() {
		if strings.Contains(s.log.Text(), text) {
			return
		}
	}
	s.Fatalf("it ended without %q in its log: %v", text, <-s.ended)
}

// address waits until it serves, and answers where.
func (s *started) address() string {
	s.Helper()
	s.logs("msg=serving")
	_, after, _ := strings.Cut(s.log.Text(), " address=")
	address, _, _ := strings.Cut(after, " ")
	return address
}

// stop stops the service, and checks that it ends.
func (s *started) stop() {
	s.Helper()
	s.cancel()
	for s.log.Scan() { // nothing more is expected of it, but it must be read
	}
	if err := <-s.ended; err != nil {
		s.Errorf("it ended with %v", err)
	}
}
