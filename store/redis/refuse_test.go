//go:build services

package redis_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/redis"
)

func TestOpenRefuses(t *testing.T) {
	cluster, _, _ := strings.Cut(clusterURL(t), ",") // one of its nodes
	for _, c := range []struct {
		name    string
		args    []string // the server's arguments
		prepare []any    // a command to run first
		url     func(server string) string
		want    string
		newer   bool
	}{
		{name: "another number of shards", prepare: []any{"hset", "carillon:store", "format", 2, "shards", 4},
			url: with("shards=5"), want: "made with 4 shards, not 5"},
		{name: "a newer format", prepare: []any{"hset", "carillon:store", "format", 99, "shards", 1}, want: "its format is 99", newer: true},
		{name: "an older format", prepare: []any{"hset", "carillon:store", "format", 1, "shards", 1}, want: "only a pre-release of carillon wrote"},
		{name: "another program's key", prepare: []any{"set", "carillon:store", "x"}, want: "another program's; choose another prefix"},
		{name: "another program's hash", prepare: []any{"hset", "carillon:store", "x", "y"}, want: "another program's; choose another prefix"},
		{name: "a damaged key", prepare: []any{"hset", "carillon:store", "format", 2, "shards", "x"}, want: "is damaged"},
		{name: "an eviction policy", args: []string{"--maxmemory-policy", "allkeys-lru"}, want: "maxmemory-policy is allkeys-lru"},
		{name: "an eviction policy for expiring keys", args: []string{"--maxmemory-policy", "volatile-ttl"}, want: "maxmemory-policy is volatile-ttl"},
		{name: "no cluster", url: with("cluster=true"), want: "it is not a Redis Cluster: leave out the option cluster"},
		{name: "a node of a cluster", url: func(string) string { return cluster }, want: "add the option cluster=true"},
		{name: "no password", args: []string{"--requirepass", "right"}, want: "check user and password"},
		{name: "a wrong password", args: []string{"--requirepass", "right"}, url: user("default:wrong"), want: "check user and password"},
		{name: "no permission", prepare: acl("u on >SECRET ~* +@read +@connection"), url: user("u:SECRET"), want: "ACL rule"},
		{name: "no permission for keys", prepare: acl("u on >SECRET ~other:* +@all"), url: user("u:SECRET"), want: "ACL rule"},
		{name: "no such database", url: func(server string) string { return server + "/99" }, want: "no such database"},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := newServer(t, c.args...)
			if c.prepare != nil {
				server.must(c.prepare...)
			}
			url := server.url
			if c.url != nil {
				url = c.url(url)
			}
			s, err := redis.Open(t.Context(), url)
			if err == nil {
				_ = s.Close()
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "SECRET") {
				t.Errorf("open answers %v, want %q", err, c.want)
			}
			if errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrFormat) != c.newer {
				t.Errorf("open answers %v", err)
			}
		})
	}
}

func with(option string) func(string) string {
	return func(server string) string { return withOptions(server, option) }
}

// acl makes a user.
func acl(rule string) []any {
	command := []any{"acl", "setuser"}
	for word := range strings.FieldsSeq(rule) {
		command = append(command, word)
	}
	return command
}

func user(u string) func(string) string {
	return func(server string) string { return strings.Replace(server, "://", "://"+u+"@", 1) }
}

// TestShardsStay: a store keeps its first number of shards.
func TestShardsStay(t *testing.T) {
	server := newServer(t)
	mustPut(t, open(t, server.url+"?shards=7"), put("k", 1))
	for _, url := range []string{server.url, server.url + "?shards=7"} {
		if _, err := store.ReadJob(t.Context(), open(t, url), job.Name{Tenant: job.DefaultTenant, Key: "k"}); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// TestPermissions: the documented ACL rule is sufficient.
func TestPermissions(t *testing.T) {
	server := newServer(t)
	server.must(acl("carillon on >pass ~carillon:* +@read +@write +@scripting +@connection +info +time +cluster")...)
	s := open(t, user("carillon:pass")(server.url))
	mustPut(t, s, put("k", 1))
	c := claim(t, s, epoch, 10)
	if err := s.Settle(t.Context(), acks(c.Occurrences)); err != nil || len(c.Occurrences) != 1 {
		t.Errorf("settled %d, %v", len(c.Occurrences), err)
	}
	mustWrite(t, s, record("k", "1"))
	if page, err := s.Records(t.Context(), store.RecordFilter{Collection: "things", Limit: 10, Now: epoch}); err != nil || len(page) != 1 {
		t.Errorf("%d records, %v", len(page), err)
	}
	if w := s.Warnings(t.Context()); len(w) != 0 {
		t.Errorf("it warns although the user may not ask: %q", w)
	}
}

// TestWarnsOfEviction: an eviction policy that is set while the store is open causes a warning.
func TestWarnsOfEviction(t *testing.T) {
	server := newServer(t, "--appendonly", "yes")
	s := open(t, server.url)
	server.must("config", "set", "maxmemory-policy", "allkeys-lru")
	if w := s.Warnings(t.Context()); len(w) != 1 || !strings.Contains(w[0], "maxmemory-policy allkeys-lru") {
		t.Errorf("warns %q", w)
	}
}

func TestWarnings(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		want int
	}{
		{"nothing", nil, 1},
		{"a log", []string{"--appendonly", "yes"}, 0},
		{"snapshots", []string{"--save", "3600 1"}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := newServer(t, c.args...)
			warnings := open(t, server.url).Warnings(t.Context())
			if len(warnings) != c.want || c.want > 0 && !strings.Contains(warnings[0], strings.TrimPrefix(server.url, "redis://")) {
				t.Errorf("warns %q", warnings)
			}
		})
	}
	if w := open(t, newStore(t, clusterURL(t), "")).Warnings(t.Context()); len(w) != 0 {
		t.Errorf("of the cluster it warns %q", w)
	}
}
