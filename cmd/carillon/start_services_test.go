//go:build services

package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	goredis "github.com/redis/go-redis/v9"

	"github.com/carillon-scheduler/carillon/job"

	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
)

// TestServerUnusable: a server that refuses us, or is unsuitable, ends the service at once, however long it may wait,
// with a message that has a remedy.
func TestServerUnusable(t *testing.T) {
	postgres, mongodb, redis := needed(t, "CARILLON_TEST_POSTGRES_URL"), needed(t, "CARILLON_TEST_MONGODB_URI"), needed(t, "CARILLON_TEST_REDIS_URL")
	id := "start_" + strings.ToLower(job.NewToken())
	database, err := pgx.Connect(t.Context(), postgres)
	if err != nil {
		t.Fatal(err)
	}
	defer database.Close(context.Background())
	query := func(text string) {
		t.Helper()
		if _, err := database.Exec(context.Background(), text); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
	var version string // such as 150012
	if err := database.QueryRow(t.Context(), "SHOW server_version_num").Scan(&version); err != nil {
		t.Fatal(err)
	}
	query("CREATE ROLE " + id + " LOGIN PASSWORD 'hunter2'")
	defer query("DROP ROLE " + id)
	query("CREATE SCHEMA " + id)
	defer query("DROP SCHEMA " + id + " CASCADE")
	query("CREATE TABLE " + id + ".format AS SELECT 99 AS version")

	options, err := goredis.ParseURL(redis)
	if err != nil {
		t.Fatal(err)
	}
	keys := goredis.NewClient(options)
	defer keys.Close()
	command := func(args ...any) {
		t.Helper()
		if err := keys.Do(context.Background(), args...).Err(); err != nil {
			t.Fatalf("%v: %v", args, err)
		}
	}
	command("ACL", "SETUSER", id, "on", ">hunter2", "~*", "+@read", "+@connection")
	defer command("ACL", "DELUSER", id)
	command("HSET", id+":store", "format", 99, "shards", 1)
	defer command("DEL", id+":store")

	for _, c := range []struct {
		name, url, want string
	}{
		{"PostgreSQL refuses the password", as(t, postgres, "carillon", "hunter2"), "check user and password"},
		{"PgBouncer refuses the password", as(t, needed(t, "CARILLON_TEST_PGBOUNCER_URL"), "carillon", "hunter2"), "check user and password"},
		{"PostgreSQL has no such database", strings.Replace(postgres, "/carillon?", "/"+id+"?", 1), "CREATE DATABASE"},
		{"PostgreSQL does not permit it", as(t, postgres, id, "hunter2") + "&schema=" + id + "_new", "GRANT USAGE, CREATE"},
		{"PostgreSQL is too old", rewriting(t, postgres, version, "120099"), "13 or later"},
		{"PostgreSQL has a newer format", postgres + "&schema=" + id, "upgrade carillon"},
		{"MongoDB refuses the password", as(t, mongodb, "user", "hunter2"), "check user, password"},
		{"MongoDB is too old", rewriting(t, mongodb, "maxWireVersion\x00\x15", "maxWireVersion\x00\x06"), "requires at least 9 (MongoDB 4.4)"},
		{"Redis refuses the password", as(t, redis, id, "wrong"), "check user and password"},
		{"Redis does not permit it", as(t, redis, id, "hunter2"), "docs/stores.md"},
		{"Redis is too old", rewriting(t, redis, "redis_version:7", "redis_version:6"), "Redis 7 or later"},
		{"Redis has a newer format", redis + "?prefix=" + id, "upgrade carillon"},
		{"Redis is no cluster", redis + "?cluster=true", "cluster support disabled"},
	} {
		t.Run(c.name, func(t *testing.T) {
			startFails(t, []string{"--store=" + c.url, "--store-wait=1h"}, cli.ExitUsage, "--store: ", c.want)
		})
	}
}

// needed returns an environment variable that the services' script sets.
func needed(t *testing.T, name string) string {
	t.Helper()
	v := os.Getenv(name)
	if v == "" {
		t.Fatalf("%s is not set: run these tests by `make test`", name)
	}
	return v
}

// TestStoreWait: the store is tried again until it is there.
func TestStoreWait(t *testing.T) {
	var there atomic.Bool
	url := relayed(t, needed(t, "CARILLON_TEST_REDIS_URL"), func(client net.Conn, target string) {
		if there.Load() {
			relay(client, target, nil, nil)
		} else {
			_ = client.Close()
		}
	})
	id := "start_" + strings.ToLower(job.NewToken())
	s := start(t, url+"?prefix="+id, time.Hour)
	s.logs("retrying")
	there.Store(true)
	s.logs("msg=serving")
	s.stop()
}

// as returns a store's URL with another user.
func as(t *testing.T, rawURL, user, password string) string {
	t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(user, password)
	return u.String()
}

// rewriting returns a store's URL by way of a relay that replaces a text in the server's answers by one of the same
// length.
func rewriting(t *testing.T, rawURL, from, to string) string {
	t.Helper()
	return relayed(t, rawURL, func(client net.Conn, target string) { relay(client, target, []byte(from), []byte(to)) })
}

// relayed returns a store's URL by way of a server that calls do for each client and the target.
func relayed(t *testing.T, rawURL string, do func(client net.Conn, target string)) string {
	t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	target, listener := u.Host, listening(t)
	u.Host = listener.Addr().String()
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go do(client, target)
		}
	}()
	return u.String()
}

// relay passes on the bytes of both sides. If there is a text to replace, it replaces that in the server's answers.
func relay(client net.Conn, target string, from, to []byte) {
	defer client.Close()
	server, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		defer server.Close()
		_, _ = io.Copy(server, client)
	}()
	buffer := make([]byte, 64<<10)
	for {
		n, err := server.Read(buffer)
		if err != nil {
			return
		}
		said := buffer[:n]
		if len(from) > 0 {
			said = bytes.ReplaceAll(said, from, to)
		}
		if _, err := client.Write(said); err != nil {
			return
		}
	}
}
