package redis_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/redis"
)

// TestOpenRefusesByInfo: an unusable server is refused by its answer to INFO, however old it is.
func TestOpenRefusesByInfo(t *testing.T) {
	for _, c := range []struct {
		name, info, want string
		transient        bool
	}{
		{"an old one", "redis_version:6.2.14\r\nredis_mode:standalone\r\nrole:master\r\n", "its version is 6.2.14; it must be Redis 7 or later", false},
		{"no version", "role:master\r\n", "must be Redis 7 or later", false},
		{"a Sentinel", "redis_version:7.0.15\r\nredis_mode:sentinel\r\n", "it is a Sentinel: name the server that is the master", false},
		{"a replica", "redis_version:7.0.15\r\nredis_mode:standalone\r\nrole:slave\r\n", "it is a replica", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := redis.Open(t.Context(), fakeServer(t, func(args []string) string {
				switch {
				case !strings.EqualFold(args[0], "info"):
					return fmt.Sprintf("-ERR unknown command '%s'\r\n", args[0])
				case len(args) > 2: // as before Redis 7
					return "-ERR syntax error\r\n"
				default:
					return fmt.Sprintf("$%d\r\n%s\r\n", len(c.info), c.info)
				}
			}))
			if err == nil {
				_ = s.Close()
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, store.ErrUnavailable) != c.transient {
				t.Errorf("open answers %v, want %q", err, c.want)
			}
		})
	}
}

// TestOpenNotRedis: a server that does not speak Redis' protocol is distinguished from one that is away.
func TestOpenNotRedis(t *testing.T) {
	s, err := redis.Open(t.Context(), fakeServer(t, func([]string) string { return "HTTP/1.1 400 Bad Request\r\n\r\n" }))
	if err == nil {
		_ = s.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "does not speak the Redis protocol") || errors.Is(err, store.ErrUnavailable) {
		t.Errorf("open answers %v", err)
	}
}

// TestOpenHungCluster: opening a cluster does not wait for each of several hanging nodes in turn.
func TestOpenHungCluster(t *testing.T) {
	const nodes = 4
	var asked atomic.Int32
	var hosts []string
	hung := make(chan struct{})
	defer close(hung)
	for range nodes {
		hosts = append(hosts, strings.TrimPrefix(fakeServer(t, func([]string) string {
			asked.Add(1)
			<-hung
			return ""
		}), "redis://"))
	}
	s, err := redis.Open(t.Context(), "redis://"+strings.Join(hosts, ",")+"?cluster=true&dial_timeout=300ms&read_timeout=300ms")
	if err == nil {
		_ = s.Close()
	}
	if !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("open answers %v", err)
	}
	if n := asked.Load(); n >= nodes {
		t.Errorf("%d times a node was asked", n)
	}
}

// fakeServer starts a server that answers each command by a function, and returns the store's URL.
func fakeServer(t *testing.T, answer func(args []string) string) (url string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	t.Cleanup(group.Wait)
	t.Cleanup(func() { _ = listener.Close() })
	group.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			group.Go(func() {
				defer func() { _ = client.Close() }()
				for r := bufio.NewReader(client); ; {
					args, err := readCommand(r)
					if err != nil {
						return
					}
					if _, err := client.Write([]byte(answer(args))); err != nil {
						return
					}
				}
			})
		}
	})
	return "redis://" + listener.Addr().String()
}

// readCommand reads a command as clients send it: an array of texts, each preceded by its length.
func readCommand(r *bufio.Reader) (args []string, err error) {
	number := func(kind byte) (int, error) {
		line, err := r.ReadString('\n')
		if err != nil {
			return 0, err
		}
		if line[0] != kind {
			return 0, fmt.Errorf("%q is no command", line)
		}
		return strconv.Atoi(strings.TrimSpace(line[1:]))
	}
	n, err := number('*')
	for range n {
		if err != nil {
			return nil, err
		}
		var size int
		if size, err = number('$'); err != nil {
			return nil, err
		}
		text := make([]byte, size+len("\r\n"))
		_, err = io.ReadFull(r, text)
		args = append(args, string(text[:size]))
	}
	return args, err
}
