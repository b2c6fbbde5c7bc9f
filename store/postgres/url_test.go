package postgres_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/postgres"
)

const secret = "s3cr3t"

// TestOpenBadURL: an error names the fault of a URL at once, and without its password.
func TestOpenBadURL(t *testing.T) {
	for _, c := range []struct{ url, want string }{
		{"", "must begin with postgres://"},
		{"mysql://u:s3cr3t@host/db", "must begin with postgres://"},
		{"host=localhost password=s3cr3t", "must begin with postgres://"},
		{"postgres://u:s3cr3t@x@host/db", "percent-encoded"},
		{"postgres://u:s3cr3t/x@host/db", "percent-encoded"},
		{"postgres://u:s3cr3t?x@host/db", "percent-encoded"},
		{"postgres://u:s3cr3t#x@host/db", "percent-encoded"},
		{"postgres://u:s3cr3t:x@host/db", "percent-encoded"},
		{"postgres://u:s3cr3t%zz@host/db", "percent-encoded"},
		{"postgres://u:s3cr3t@host:port/db", "port"},
		{"postgres://u:s3cr3t@a:1,b:2,c/db?port=1,2", "port"},
		{"postgres://u:s3cr3t@host/db?sslmode=maybe", "sslmode"},
		{"postgres://u@host/db?sslmode=verify-full&sslrootcert=/none&sslpassword=s3cr3t", "none"},
		{"postgres://u@host/db?password=s3cr3t&sslmode=maybe", "sslmode"},
		{"postgres://u@host/db?password=s3cr3t@x", "percent-encoded"},
		{"postgres://u:s3cr3t@host/db?target_session_attrs=some", "target_session_attrs"},
		{"postgres://u:s3cr3t@host/db?pool_max_conns=0", "pool_max_conns"},
		{"postgres://u:s3cr3t@host/db?pool_max_conns=many", "pool_max_conns"},
		{"postgres://u:s3cr3t@host/db?default_query_exec_mode=none", "default_query_exec_mode"},
		{"postgres://u:s3cr3t@host/db?default_query_exec_mode=exec", "cache_describe"},
		{"postgres://u:s3cr3t@host/db?default_query_exec_mode=simple_protocol", "cache_describe"},
		{"postgres://u:s3cr3t@host/db?schema=", "schema's name"},
		{"postgres://u:s3cr3t@host/db?schema=pg_catalog", "schema's name"},
		{"postgres://u:s3cr3t@host/db?schema=a.b", "schema's name"},
		{"postgres://u:s3cr3t@host/db?schema=a%27b", "schema's name"},
		{"postgres://u:s3cr3t@host/db?schema=%zz", "percent-encoded"},
		{"postgres://u:s3cr3t@host/db?schema=" + strings.Repeat("s", 64), "schema's name"},
	} {
		s, err := postgres.Open(t.Context(), c.url)
		if err == nil {
			t.Errorf("%q is taken", c.url)
			_ = s.Close()
			continue
		}
		if !strings.Contains(err.Error(), c.want) || errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%q: the error lacks %q: %v", c.url, c.want, err)
		}
		if strings.Contains(err.Error(), secret) {
			t.Errorf("%q: the error shows the password: %v", c.url, err)
		}
	}
}

// TestOpenUnreachable: a server that does not respond, or does not exist, is unavailable within the time limit.
func TestOpenUnreachable(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	for _, c := range []struct{ name, hosts string }{
		{"nobody listens", closed.Addr().String()},
		{"nobody answers", silent.Addr().String()},
		{"neither", closed.Addr().String() + "," + silent.Addr().String()},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		s, err := postgres.Open(ctx, "postgres://u:"+secret+"@"+c.hosts+"/db?sslmode=disable&connect_timeout=2")
		cancel()
		if err == nil {
			_ = s.Close()
		}
		if !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s: %v", c.name, err)
		} else if strings.Contains(err.Error(), secret) {
			t.Errorf("%s: the error shows the password: %v", c.name, err)
		}
	}
}
