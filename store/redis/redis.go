// Package redis keeps Carillon's documents in Redis 7 or later: one server, with or without replicas, or a Redis
// Cluster. Any number of replicas of Carillon share it.
//
// Jobs are spread over shards by their names. All keys of a shard have the same hash tag, so that they live on one node
// of a cluster, and every change is a Lua script on one shard, which Redis runs whole or not at all. So a job and its
// occurrences change together, but for what would take a script too long while nobody else is served:
//
//   - A job with very many occurrences is put in parts: all but the last part are inserted first, under the new revision,
//     and the script that inserts the last makes that revision the job's. Occurrences of a revision that is no job's are
//     orphans; a claim sets them aside, and drops them after an hour. In the same way, a long expansion is inserted beyond
//     its job's cursor before the cursor is moved, under the protection of the expansion's token.
//   - Very many occurrences that a job carries over from the one which it replaces are marked in parts before: the marks mean
//     nothing until that script has run, and everything after it.
//   - What a replacement or a cancellation leaves behind is deleted in parts, the first of them in the script that replaces
//     or cancels, which counts all of it. No claim gets any of it after that script.
//   - A resumption brings occurrences forward in parts, as long as the job stays as it was resumed.
//
// No script reads or writes more than a bounded number of documents, but for that count. Nothing is sent a second time
// by itself: a script whose answer was lost is for the caller to repeat. One that changes something does so in its time
// or never, see [clock].
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

	// migrated is the oldest format that is brought up to the present one: since 3 there are heirs, see records.lua,
	// which a program that does not know them would forget to delete, and the heads of lanes, see adopt; since 4,
	// tenants and replicas are records, see moveTenants.
	migrated = 2

	// oldest is the oldest version of Redis that will do: before it, an error inside a script came without its code.
	oldest = 7

	// chunk bounds the documents that one run of a script reads or writes of each kind.
	chunk = 1000

	// pipelined bounds the scripts that are sent at once.
	pipelined = 128

	// answerWithin is how long an answer is waited for when the time for the call is over.
	answerWithin = 2 * time.Second

	// headsWithin is how long shards may take to tell what is due, if there are several; one that does not is not asked
	// again for as long as awayFor. Else a node that hangs would keep what the others have from being claimed.
	headsWithin = time.Second
	awayFor     = 3 * time.Second

	// tidyWithin bounds work that is done for tidiness after a call has failed.
	tidyWithin = 2 * time.Second
)

// Store implements [store.Store].
type Store struct {
	client redis.UniversalClient
	prefix string
	shards []shard
	// records is what is of no shard, and changed by scripts all the same, see recordKeys.
	records shard
	// first is the shard that this replica prefers among those whose occurrences are due at the same time, so that
	// replicas get in each other's way less.
	first int
}

// shard is what is known of one shard.
type shard struct {
	// keys are those of its documents, in the order that records.lua gives.
	keys  []any
	clock clock
	// away is until when, by [monotonic], it is not asked what is due. See [Store.heads].
	away atomic.Int64
}

// noShard stands for what is of no shard, in the place of one's number.
const noShard = -1

// shard is what is known of a shard, or of what is of none.
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
//	shards=n      over how many shards to spread the jobs. It is fixed when the store is made, and 1 for a server and 16 for a
//	              cluster unless it is given. Given later, it must be the same
//	prefix=text   what all keys begin with, "carillon" unless it is given; several stores can share a server
//	and those of the client library for connections and their time limits, such as dial_timeout, read_timeout and pool_size
//	(https://pkg.go.dev/github.com/redis/go-redis/v9#ParseURL)
//
// A server that can't be reached is an error that wraps [store.ErrUnavailable]. No error shows the URL's password.
func Open(ctx context.Context, rawURL string) (*Store, error) {
	t, client, err := parseURL(rawURL)
	if err != nil {
		return nil, err
	}
	quiet()
	ctx, cancel := context.WithTimeout(ctx, openWithin(client)) // a cluster's nodes are asked one after the other
	defer cancel()
	s := &Store{client: client, prefix: t.prefix}
	if err := s.prepare(ctx, t); err != nil {
		return nil, errors.Join(fmt.Errorf("open Redis store %s: %w", t.url, explain(mapError(err), t.url.Scheme() == "rediss")), s.Close())
	}
	return s, nil
}

// openWithin is how long a server may take in all until a store is open: as long as for one connection and one answer.
func openWithin(client redis.UniversalClient) time.Duration {
	var dial, read time.Duration
	switch c := client.(type) {
	case *redis.ClusterClient:
		dial, read = c.Options().DialTimeout, c.Options().ReadTimeout
	case *redis.Client:
		dial, read = c.Options().DialTimeout, c.Options().ReadTimeout
	}
	if dial <= 0 || read <= 0 { // they are unlimited
		return 2 * patience
	}
	return dial + read
}

// quiet turns off the client library's log, which all clients of a process have in common. What it has to say comes as
// errors too, and the log would go to standard error in a form of its own.
var quiet = sync.OnceFunc(func() { redis.SetLogger(silence{}) })

type silence struct{}

// Printf does nothing.
func (silence) Printf(context.Context, string, ...any) {}

// prepare refuses a server or a store that can't be used, marks a new store as ours, and learns what the servers'
// clocks show. Doing it again, or in several replicas at once, changes nothing.
func (s *Store) prepare(ctx context.Context, t *address) error {
	if err := s.eachServer(ctx, func(ctx context.Context, server *redis.Client) error {
		info, err := server.Info(ctx).Result() // without sections, since servers that are too old know but one at a time
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

// adopt notes the heads of all lanes that an older version has noted as not empty. What a replica of that version notes
// after that, each look takes over, see duelanes.lua.
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

// check refuses a server that can't be used, by what it says of itself.
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
		return fmt.Errorf("its maxmemory-policy is %s, by which it would drop jobs when memory runs out; it must be noeviction", policy)
	}
	if field(info, "role") == "slave" { // it may become the master
		return fmt.Errorf("%w: it is a replica, which takes no writes: name the master, by an address that follows it", store.ErrUnavailable)
	}
	return nil
}

// readMeta reads how the store was made, and makes it if it is new.
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
		return 0, fmt.Errorf("%w: its format is %d, this one reads up to %d; upgrade carillon", store.ErrFormat, version, format)
	}
	if version < migrated {
		return 0, fmt.Errorf("its format is %d, which only a pre-release of carillon wrote and this one does not read; choose another prefix",
			version)
	}
	if shards = list(values).number(1); shards < 1 || shards > maxShards {
		return 0, fmt.Errorf("its key %s:store is damaged: the number of shards is %v", s.prefix, values[1])
	}
	if t.shards != 0 && t.shards != shards {
		return 0, fmt.Errorf("it was made with %d shards, not %d, and stays so; leave out the option shards, or move the jobs to a new store",
			shards, t.shards)
	}
	return shards, nil
}

// Warnings says in what the servers are set up otherwise than they should be, though the store works: one that writes
// nothing to disk forgets all jobs when it restarts, and one that evicts drops them when it is full. What a server does
// not tell is not warned of.
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

// evicts is the policy by which a server drops keys when memory runs out; empty if it drops none, or does not tell.
func evicts(info string) string {
	if policy := field(info, "maxmemory_policy"); policy != "noeviction" {
		return policy
	}
	return ""
}

// eachServer calls f for the server, or for each master of the cluster, at the same time.
func (s *Store) eachServer(ctx context.Context, f func(ctx context.Context, server *redis.Client) error) error {
	if cluster, ok := s.client.(*redis.ClusterClient); ok {
		return cluster.ForEachMaster(ctx, f)
	}
	return f(ctx, s.client.(*redis.Client)) //nolint:errcheck // there is no third kind, see parseURL
}

// field reads a line of a server's information about itself; empty if there is none.
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

// Now implements [store.Queue]: it answers the time of the server that has the first shard.
func (s *Store) Now(ctx context.Context) (time.Time, error) {
	return s.run(ctx, []call{{script: clockScript}})[0].time()
}
