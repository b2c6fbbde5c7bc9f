package redis_test

import (
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/redis"
)

func TestOpenBadURL(t *testing.T) {
	for _, c := range []struct{ url, want string }{
		{"", "must begin with redis://"},
		{"postgres://user:SECRET@h/db", "must begin with redis://"},
		{"redis:user:SECRET@h", "must begin with redis://"},
		{"redis://", "must name a host"},
		{"redis://:6379", "must name a host"},
		{"redis://user:SECRET@h:port", `store URL redis://user:***@h:port: the port "port" must be a number`},
		{"redis://user:SECRET@h:99999", "up to 65535"},
		{"redis://:SECRET@h:1:2", "too many colons"},
		{"redis://user:x@SECRET@h", "percent-encoded"},
		{"redis://user:x/SECRET@h", "percent-encoded"},
		{"redis://user:x?SECRET@h", "percent-encoded"},
		{"redis://user:SECRET%zz@h", "percent-encoded"},
		{"redis://user:SECRET@h/zero", "zero"},
		{"redis://user:SECRET@h?shards=0", "shards must be a number from 1 to 1024"},
		{"redis://user:SECRET@h?shards=many", "shards must be a number from 1 to 1024"},
		{"redis://user:SECRET@h?prefix=a{b}", "prefix must be"},
		{"redis://user:SECRET@h?cluster=maybe", "cluster must be true or false"},
		{"redis://user:SECRET@a,b", "add the option cluster=true"},
		{"redis://user:SECRET@a,b/1?cluster=true", "no database but 0"},
		{"redis://user:SECRET@h?colour=red", "unexpected option: colour"},
		{"rediss://user:SECRET@a?cluster=true&colour=red", "unexpected option: colour"},
		{"redis://user:SECRET@h?read_timeout=soon", "read_timeout"},
	} {
		s, err := redis.Open(t.Context(), c.url)
		if err == nil {
			_ = s.Close()
			t.Errorf("open %q succeeds", c.url)
			continue
		}
		if !strings.Contains(err.Error(), c.want) {
			t.Errorf("open %q answers %q, want %q", c.url, err, c.want)
		}
		if strings.Contains(err.Error(), "SECRET") {
			t.Errorf("open %q shows the password: %q", c.url, err)
		}
		if errors.Is(err, store.ErrUnavailable) {
			t.Errorf("open %q answers that the store is unavailable: %v", c.url, err)
		}
	}
}

func TestOpenUnreachable(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil { // no server is there any more
		t.Fatal(err)
	}
	for _, url := range []string{
		"redis://user:SECRET@" + address,
		"redis://user:SECRET@" + address + "?cluster=true",
		"rediss://:SECRET@" + address + "/3?prefix=x",
	} {
		s, err := redis.Open(t.Context(), url)
		if err == nil {
			_ = s.Close()
		}
		if !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), address) || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("open %s answers %v", url, err)
		}
	}
}
