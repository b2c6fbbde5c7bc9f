//go:build services

package postgres_test

import (
	"context"
	"errors"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/postgres"
)

// TestOpenTogether: replicas that start at once create the tables once.
func TestOpenTogether(t *testing.T) {
	for _, server := range []string{serverURL, pgbouncerURL} {
		s := newSchema(t, server)
		var group sync.WaitGroup
		for range 8 {
			group.Go(func() {
				opened, err := postgres.Open(t.Context(), s.url)
				if err != nil {
					t.Errorf("open: %v", err)
					return
				}
				if err := opened.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		if n := query[int](s, "SELECT max(version) - count(*) FROM "+s.table("format")); n != 0 {
			t.Errorf("there are %d migrations more than are noted", n)
		}
	}
}

// openFails opens a store that must be refused for a permanent reason.
func openFails(t testing.TB, rawURL string, want ...string) error {
	t.Helper()
	s, err := postgres.Open(t.Context(), rawURL)
	if err == nil {
		_ = s.Close()
		t.Fatalf("%s is opened", rawURL)
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the error lacks %q: %v", w, err)
		}
	}
	if errors.Is(err, store.ErrUnavailable) {
		t.Errorf("it is said to go away by itself: %v", err)
	}
	if u, parseErr := url.Parse(rawURL); parseErr == nil {
		if password, ok := u.User.Password(); ok && strings.Contains(strings.ReplaceAll(err.Error(), u.User.Username(), ""), password) {
			t.Errorf("the error shows the password %q: %v", password, err)
		}
	}
	return err
}

func TestOpenNewerFormat(t *testing.T) {
	s := newSchema(t, serverURL)
	s.open()
	run(t, s.admin, "INSERT INTO "+s.table("format")+" (version) VALUES (99)")
	if err := openFails(t, s.url, "99", "upgrade carillon"); !errors.Is(err, store.ErrFormat) {
		t.Errorf("it is no format error: %v", err)
	}
}

func TestOpenOthersTables(t *testing.T) {
	s := newSchema(t, serverURL)
	run(t, s.admin, "CREATE SCHEMA "+s.name)
	run(t, s.admin, "CREATE TABLE "+s.table("jobs")+" (id int)")
	openFails(t, s.url, "another program", "schema")
	if n := query[int](s, "SELECT count(*) FROM pg_tables WHERE schemaname = $1", s.name); n != 1 {
		t.Errorf("%d tables are left, want the other program's only", n)
	}
}

func TestOpenTooOld(t *testing.T) {
	s := newSchema(t, serverURL)
	version := query[string](s, "SHOW server_version_num")
	r := newRelay(t, s.url)
	r.rewrite(version, "120099")
	openFails(t, r.url, "PostgreSQL 12", "13 or later")
}

// role creates a user who may only connect, and returns a URL of the schema for that user.
func (s schema) role() (rawURL string) {
	s.Helper()
	user := s.name + "_user"
	run(s.TB, s.admin, "CREATE ROLE "+user+" LOGIN PASSWORD 'pw-of-it'")
	s.Cleanup(func() {
		run(s.TB, s.admin, "DROP SCHEMA IF EXISTS "+s.name+" CASCADE")
		run(s.TB, s.admin, "DROP OWNED BY "+user+" CASCADE")
		run(s.TB, s.admin, "DROP ROLE "+user)
	})
	u, err := url.Parse(s.url)
	if err != nil {
		s.Fatal(err)
	}
	u.User = url.UserPassword(user, "pw-of-it")
	return u.String()
}

// advice matches the SQL that an error advises an operator to run.
var advice = regexp.MustCompile(`run as [a-z ]*: (.*?): `)

// TestOpenPermissions: granting the privileges that an error names is enough.
func TestOpenPermissions(t *testing.T) {
	for _, c := range []struct {
		name  string
		setUp func(s schema)
	}{
		{"a new schema", func(schema) {}},
		{"a schema of somebody else", func(s schema) { run(s.TB, s.admin, "CREATE SCHEMA "+s.name) }},
		{"tables of somebody else", func(s schema) { s.open() }},
		{"tables of somebody else, and a grant for the schema alone", func(s schema) {
			s.open()
			run(s.TB, s.admin, "GRANT USAGE ON SCHEMA "+s.name+" TO "+s.name+"_user")
		}},
		{"tables of somebody else, and a grant to read", func(s schema) {
			s.open()
			run(s.TB, s.admin, "GRANT USAGE ON SCHEMA "+s.name+" TO "+s.name+"_user")
			run(s.TB, s.admin, "GRANT SELECT ON ALL TABLES IN SCHEMA "+s.name+" TO "+s.name+"_user")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSchema(t, serverURL)
			asUser := s.role()
			c.setUp(s)
			err := openFails(t, asUser, "GRANT")
			found := advice.FindStringSubmatch(err.Error())
			if found == nil {
				t.Fatalf("the error names no SQL to run: %v", err)
			}
			run(t, s.admin, found[1])
			opened, err := postgres.Open(t.Context(), asUser)
			if err != nil {
				t.Fatalf("after %s: %v", found[1], err)
			}
			defer opened.Close()
			mustPut(t, opened, newPut("k", 0))
			if err := opened.Settle(t.Context(), acks(mustClaim(t, opened, epoch, 10).Occurrences)); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestOpenRefused(t *testing.T) {
	s := newSchema(t, serverURL)
	asUser := s.role()
	openFails(t, strings.Replace(asUser, "pw-of-it", "not-that", 1), "refuses the user", "check user and password")
	openFails(t, strings.Replace(asUser, "/carillon?", "/none_of_that_name?", 1), "no such database", "CREATE DATABASE")
	openFails(t, strings.Replace(asUser, s.name+"_user", "nobody_of_that_name", 1), "refuses the user")
	pooled := environment(t, pgbouncerURL)
	openFails(t, strings.Replace(pooled, ":carillon@", ":wrong@", 1), "refuses the user", "check user and password")
	openFails(t, strings.Replace(pooled, "/carillon?", "/none_of_that_name?", 1), "no such database", "CREATE DATABASE")
	openFails(t, strings.Replace(pooled, "/carillon:carillon@", "/nobody_of_that_name:not-that@", 1), "refuses the user")
}

// TestOpenEncoding: a database that can't hold every key is refused.
func TestOpenEncoding(t *testing.T) {
	s := newSchema(t, serverURL)
	run(t, s.admin, "CREATE DATABASE "+s.name+" ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
	t.Cleanup(func() { run(t, s.admin, "DROP DATABASE "+s.name) })
	openFails(t, strings.Replace(s.url, "/carillon?", "/"+s.name+"?", 1), "LATIN1", "UTF8")
}

// TestOpenSeveralHosts: of several hosts, the one that responds is used.
func TestOpenSeveralHosts(t *testing.T) {
	s := newSchema(t, serverURL)
	several := strings.Replace(s.url, "@127.0.0.1:", "@127.0.0.1:1,127.0.0.1:", 1)
	opened, err := postgres.Open(context.Background(), several)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	mustPut(t, opened, newPut("k", 0))
}
