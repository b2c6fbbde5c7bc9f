package mongodb_test

import (
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/mongodb"
)

func TestOpenBadURL(t *testing.T) {
	for _, c := range []struct{ url, want string }{
		{"", "must begin with mongodb://"},
		{"postgres://user:SECRET@h/db", "must begin with mongodb://"},
		{"mongodb:user:SECRET@h/db", "must begin with mongodb://"},
		{"mongodb://", "must have at least 1 host"},
		{"mongodb://h:port/db", "port must be an integer"},
		{"mongodb://user:SECRET@h:99999/db", "store URL mongodb://user:***@h:99999/db: "},
		{"mongodb://user:x@SECRET@h/db", "percent-encoded"},
		{"mongodb://user:x/SECRET@h/db", "percent-encoded"},
		{"mongodb://user:x?SECRET@h/db", "percent-encoded"},
		{"mongodb://user:SECRET%zz@h/db", "percent-encoded"},
		{"mongodb://h/db?tlsCertificateKeyFilePassword=SECRET@x", "percent-encoded"},
		{"mongodb://user:SECRET@h/a.b", `"a.b" can't be a database's name`},
		{"mongodb://user:SECRET@h/a%20b", "can't be a database's name"},
		{"mongodb://user:SECRET@h/db/c", "can't be a database's name"},
		{"mongodb://user:SECRET@h/" + strings.Repeat("d", 64), "can't be a database's name"},
		{"mongodb://user:SECRET@h/db?connectTimeoutMS=soon", `invalid value for "connectTimeoutMS": "soon"`},
		{"mongodb://user:SECRET@h/db?replicaSet", "invalid option"},
		{"mongodb://user:SECRET@h/db?authMechanism=SECRETS", "invalid auth mechanism"},
		{"mongodb://user:p@h/db?tlsCertificateKeyFilePassword=SECRET%zz", "invalid option value"},
		{"mongodb://user:p@h/db?authMechanismProperties=SECRET", "authMechanism property"},
		{"mongodb://user:SECRET@h/db?w=0", "w=0 can't be used"},
		{"mongodb://user:SECRET@a,b/db?directConnection=true", "multiple hosts"},
	} {
		s, err := mongodb.Open(t.Context(), c.url)
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
		"mongodb://user:SECRET@" + address + "/db?serverSelectionTimeoutMS=200",
		"mongodb://user:SECRET@" + address, // the time limit is the default
	} {
		s, err := mongodb.Open(t.Context(), url)
		if err == nil {
			_ = s.Close()
		}
		if !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), address) || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("open answers %v", err)
		}
	}
}
