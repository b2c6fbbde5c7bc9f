// Package redis keeps Carillon's documents in Redis 7 or later: one server, with or without replicas, or a Redis
// Cluster. Any number of replicas of Carillon share it.
//
// Jobs are spread over shards by their names. All keys of a shard have the same hash tag, so they live on one node of a
// cluster. Every change is a Lua script on one shard, which Redis runs whole or not at all. So a job and its
// occurrences change together. Redis serves no other command while a script runs, so long changes are made in parts:
//
//   - A job with very many occurrences is put in parts. All parts but the last are inserted first, under the new
//     revision; the script that inserts the last makes that revision the job's. An occurrence whose revision no job has
//     is an orphan: a claim sets it aside, and drops it after an hour. In the same way, a long expansion is inserted
//     beyond its job's cursor before the cursor is moved, guarded by the expansion's token.
//   - If a replacement carries over very many occurrences, these are marked in parts beforehand. The marks take effect
//     when the script that replaces the job has run.
//   - The occurrences of a replaced or cancelled job are deleted in parts. The script that replaces or cancels counts
//     them all and deletes the first part. After that script, no claim gets any of them.
//   - A resume brings occurrences forward in parts, as long as the job stays as it was resumed.
//
// Except for that count, no script reads or writes more than a bounded number of documents. The client repeats no
// script whose answer was lost; that is up to the caller. A bounded change takes effect before its deadline or never,
// see [clock].
package redis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/carillon-scheduler/carillon/store"
)

const (
	// format is the version of the keys and records, kept in the store's own key.
	format = 4

	// migrated is the oldest format that is upgraded to the present one. Since 3, there are heirs, see prelude.lua, which
	// older programs would fail to delete, and the heads of lanes, see adopt. Since 4, tenants and replicas are records,
	// see moveTenants.
	migrated = 2

	// oldest is the oldest supported version of Redis: older ones omit the code of an error inside a script.
	oldest = 7

	// chunk bounds the documents that one run of a script reads or writes of each kind.
	chunk = 1000

	// pipelined bounds the scripts that are sent at once.
	pipelined = 128

	// answerWithin is the time after the call's deadline for which it waits for an answer.
	answerWithin = 2 * time.Second

	// hungAfter is the part of the time limit of an answer, 1/hungAfter, that shards may take to list due occurrences, if
	// there are several. A shard that takes longer is not asked again for thrice that time, so that a hanging node does
	// not hold up claims from the others.
	hungAfter = 5

	// tidyWithin bounds the time for cleaning up after a failed call.
	tidyWithin = 2 * time.Second
)

// Store implements [store.Store].
type Store struct {
	client redis.UniversalClient
	prefix string
	shards []shard
	// records has the keys of the records, which belong to no shard, see recordKeys.
	records shard
	// first is the shard that this replica prefers among those whose occurrences are due at the same time, so that
	// replicas get in each other's way less.
	first int
	// headsWithin bounds how long shards may take to list due occurrences, see hungAfter.
	headsWithin time.Duration
}

// shard is the state of one shard.
type shard struct {
	// keys are its keys, in the order that prelude.lua gives.
	keys  []any
	clock clock
	// away is the time, by [monotonic] in nanoseconds, until which the shard is not asked for due occurrences, see askAll.
	away atomic.Int64
}

// noShard stands in place of a shard's number for the records.
const noShard = -1

// shard returns the state of the shard with this number, or that of the records for noShard.
func (s *Store) shard(i int) *shard {
	if i == noShard {
		return &s.records
	}
	return &s.shards[i]
}

// Open connects to the server or cluster that a URL names, such as
//
//	redis://user:password@host:6379/0
//	rediss://user:password@host:6379?prefix=staging
//	redis://user:password@host1:6379,host2:6379,host3:6379?cluster=true&shards=32
//
// The scheme rediss stands for TLS. The options are:
//
//	cluster=true  it is a Redis Cluster; the hosts are some of its nodes
//	shards=n      the number of shards over which the jobs are spread. It is fixed when the store is made: by default 1
//	              for a server and 16 for a cluster. A later value must be the same
//	prefix=text   the beginning of all keys, by default "carillon"; several stores can share a server
//
// and those of the client library for connections and their time limits, such as dial_timeout, read_timeout and
// pool_size (https://pkg.go.dev/github.com/redis/go-redis/v9#ParseURL).
//
// A server that can't be reached is an error that wraps [store.ErrUnavailable]. No error shows the URL's password.
func Open(ctx context.Context, rawURL string) (*Store, error) {
	t, client, err := parseURL(rawURL)
	if err != nil {
		return nil, err
	}
	silenceLog()
	ctx, cancel := context.WithTimeout(ctx, openWithin(client)) // a cluster's nodes are asked one after the other
	defer cancel()
	s := &Store{client: client, prefix: t.prefix, headsWithin: answerLimit(client) / hungAfter}
	if err := s.prepare(ctx, t); err != nil {
		err = explain(mapError(err), t.url.Scheme() == "rediss")
		return nil, errors.Join(fmt.Errorf("open Redis store %s: %w", t.url, err), s.Close())
	}
	return s, nil
}

// openWithin bounds how long Open takes: the time limits of one connection and one answer.
func openWithin(client redis.UniversalClient) time.Duration {
	dial, read := limits(client)
	if dial <= 0 || read <= 0 { // they are unlimited
		return 2 * patience
	}
	return dial + read
}

// answerLimit returns the time limit of an answer, or patience if it is unlimited.
func answerLimit(client redis.UniversalClient) time.Duration {
	if _, read := limits(client); read > 0 {
		return read
	}
	return patience
}

// limits returns the client's time limits of a connection and of an answer.
func limits(client redis.UniversalClient) (dial, read time.Duration) {
	switch c := client.(type) {
	case *redis.ClusterClient:
		return c.Options().DialTimeout, c.Options().ReadTimeout
	case *redis.Client:
		return c.Options().DialTimeout, c.Options().ReadTimeout
	}
	return 0, 0
}

// silenceLog turns off the client library's log, which all clients of a process share. The same faults are returned as
// errors, and the log would go to standard error in a format of its own.
var silenceLog = sync.OnceFunc(func() { redis.SetLogger(silence{}) })

type silence struct{}

// Printf does nothing.
func (silence) Printf(context.Context, string, ...any) {}

// prepare refuses a server or a store that can't be used, marks a new store as Carillon's, and reads the servers'
// clocks. Repeating it, or running it in several replicas at once, changes nothing.
func (s *Store) prepare(ctx context.Context, t *address) error {
	if err := s.eachServer(ctx, func(ctx context.Context, server *redis.Client) error {
		info, err := server.Info(ctx).Result() // without sections, since old servers accept only one at a time
		if err != nil {
			return err
		}
		return check(info, t.cluster)
	}); err != nil {
		return err
	}
	shards, err := s.readMeta(ctx, t)
	if err != nil {
		return err
	}
	s.shards = make([]shard, shards)
	for i := range s.shards {
		s.shards[i].keys = shardKeys(s.prefix, i)
	}
	s.records.keys = recordKeys(s.prefix)
	s.first = rand.IntN(shards)
	all := []int{noShard}
	for i := range s.shards {
		all = append(all, i)
	}
	for _, err := range s.readClocks(ctx, all) {
		return err
	}
	return errors.Join(s.adopt(ctx), s.moveTenants(ctx))
}

// adopt notes the heads of the lanes that an older version has recorded as not empty. Lanes that a replica of that
// version records later are taken over by duelanes.lua.
func (s *Store) adopt(ctx context.Context) error {
	for i := range s.shards {
		for left := chunk; left == chunk; {
			var err error
			if left, err = s.run(ctx, []call{{adoptScript, i, []any{chunk}}})[0].number(); err != nil {
				return err
			}
		}
	}
	return nil
}

// check refuses a server that can't be used, by the answer to its command INFO.
func check(info string, cluster bool) error {
	version := field(info, "redis_version")
	major, _, _ := strings.Cut(version, ".")
	if n, err := strconv.Atoi(major); err != nil || n < oldest {
		return fmt.Errorf("its version is %s; it must be Redis %d or later", version, oldest)
	}
	switch mode := field(info, "redis_mode"); {
	case mode == "sentinel":
		return errors.New("it is a Sentinel: name the server that is the master, by an address that follows it")
	case mode == "cluster" && !cluster:
		return errors.New("it is a node of a Redis Cluster: add the option cluster=true")
	case mode != "cluster" && cluster:
		return errors.New("it is not a Redis Cluster: leave out the option cluster")
	}
	if policy := evicts(info); policy != "" {
		return fmt.Errorf("its maxmemory-policy is %s, by which it would drop jobs when memory runs out; "+
			"it must be noeviction", policy)
	}
	if field(info, "role") == "slave" { // it may become the master
		return fmt.Errorf("%w: it is a replica, which takes no writes: name the master, by an address that follows it",
			store.ErrUnavailable)
	}
	return nil
}

// readMeta reads and checks the store's format and number of shards, and writes them if the store is new.
func (s *Store) readMeta(ctx context.Context, t *address) (shards int, err error) {
	shards = t.shards
	if shards == 0 {
		shards = t.defaultShards()
	}
	meta := redis.NewScript(metaScript)
	values, err := meta.Eval(ctx, s.client, []string{s.prefix + ":store"}, format, shards, migrated).Slice()
	if redis.HasErrorPrefix(err, "WRONGTYPE") {
		return 0, fmt.Errorf("its key %s:store is another program's; choose another prefix", s.prefix)
	}
	if err != nil {
		return 0, err
	}
	version, err := strconv.Atoi(list(values).text(0))
	if err != nil {
		return 0, fmt.Errorf("its key %s:store is another program's; choose another prefix", s.prefix)
	}
	if version > format {
		return 0, fmt.Errorf("%w: its format is %d, this one reads up to %d; upgrade carillon",
			store.ErrFormat, version, format)
	}
	if version < migrated {
		return 0, fmt.Errorf("its format is %d, which only a pre-release of carillon wrote and this one does not read; "+
			"choose another prefix", version)
	}
	if shards = list(values).number(1); shards < 1 || shards > maxShards {
		return 0, fmt.Errorf("its key %s:store is damaged: the number of shards is %v", s.prefix, values[1])
	}
	if t.shards != 0 && t.shards != shards {
		return 0, fmt.Errorf("it was made with %d shards, not %d, and the number can't change; "+
			"leave out the option shards, or move the jobs to a new store", shards, t.shards)
	}
	return shards, nil
}

// Warnings lists settings of the servers that endanger the jobs: a server that writes nothing to disk loses all jobs
// when it restarts, and one that evicts keys drops jobs when it is full. Settings that a server does not reveal are not
// checked.
func (s *Store) Warnings(ctx context.Context) []string {
	var mu sync.Mutex
	var warnings []string
	err := s.eachServer(ctx, func(ctx context.Context, server *redis.Client) error {
		info, err := server.Info(ctx).Result()
		if err != nil {
			return err
		}
		warn := func(what string) {
			mu.Lock()
			defer mu.Unlock()
			warnings = append(warnings, fmt.Sprintf("Redis at %s %s", server.Options().Addr, what))
		}
		if policy := evicts(info); policy != "" { // it was set since Open, or by a failover
			warn(fmt.Sprintf("has the maxmemory-policy %s: it drops jobs when memory runs out; it must be noeviction", policy))
		}
		if field(info, "aof_enabled") != "0" {
			return nil
		}
		snapshots, err := server.ConfigGet(ctx, "save").Result() // may not be allowed
		if err == nil && snapshots["save"] == "" {
			warn("keeps nothing on disk (neither appendonly nor save is set): a restart loses all jobs")
		}
		return nil
	})
	if err != nil {
		warnings = append(warnings, fmt.Sprintf("whether Redis keeps all jobs can't be told: %v", err))
	}
	return warnings
}

// evicts returns the policy by which a server drops keys when memory runs out; empty if it drops none, or if INFO does
// not reveal the policy.
func evicts(info string) string {
	if policy := field(info, "maxmemory_policy"); policy != "noeviction" {
		return policy
	}
	return ""
}

// eachServer calls f for the server, or concurrently for each master of the cluster.
func (s *Store) eachServer(ctx context.Context, f func(ctx context.Context, server *redis.Client) error) error {
	if cluster, ok := s.client.(*redis.ClusterClient); ok {
		return cluster.ForEachMaster(ctx, f)
	}
	return f(ctx, s.client.(*redis.Client)) //nolint:errcheck // there is no third kind, see parseURL
}

// field reads a field of the answer to INFO; empty if there is none.
func field(info, name string) string {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// Close ends all connections.
func (s *Store) Close() error { return s.client.Close() }

// Now implements [store.Queue]: it returns the time of the server that has the first shard.
func (s *Store) Now(ctx context.Context) (time.Time, error) {
	return s.run(ctx, []call{{script: clockScript}})[0].time()
}
