package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// rawRedis is Redis' bare client: a hash for each row, and a sorted set of their due times. All of it is in one slot.
type rawRedis struct {
	client redis.UniversalClient
}

// The names are those of one slot of a Redis Cluster.
const (
	rawRedisDue = "{carillon-bench-raw}:due"
	rawRedisRow = "{carillon-bench-raw}:row:"
)

// rawRedisClaim takes due rows: it pushes each one's due time and notes the token.
// KEYS[1]: the due times. ARGV: now, the new due time, how many at most, the token, what the rows' keys begin with.
// Result: id and payload of each, one after the other.
var rawRedisClaim = redis.NewScript(`
local found = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[3])
local taken = {}
for i, id in ipairs(found) do
	redis.call('ZADD', KEYS[1], ARGV[2], id)
	redis.call('HSET', ARGV[5] .. id, 'token', ARGV[4])
	taken[2 * i - 1] = id
	taken[2 * i] = redis.call('HGET', ARGV[5] .. id, 'payload')
end
return taken`)

// rawRedisDelete deletes the rows that still have the token.
// KEYS[1]: the due times. ARGV: the token, what the rows' keys begin with, the ids. Result: how many there were.
var rawRedisDelete = redis.NewScript(`
local n = 0
for i = 3, #ARGV do
	if redis.call('HGET', ARGV[2] .. ARGV[i], 'token') == ARGV[1] then
		redis.call('DEL', ARGV[2] .. ARGV[i])
		redis.call('ZREM', KEYS[1], ARGV[i])
		n = n + 1
	end
end
return n`)

func openRawRedis(_ context.Context, rawURL string) (*rawRedis, error) {
	plain, query, _ := strings.Cut(rawURL, "?") // the options are for the store
	first, others, several := strings.Cut(plain, ",")
	o, err := redis.ParseURL(first + "/0")
	if !several {
		o, err = redis.ParseURL(plain)
	}
	if err != nil {
		return nil, err
	}
	if !strings.Contains(query, "cluster=true") {
		return &rawRedis{redis.NewClient(o)}, nil
	}
	hosts := []string{o.Addr}
	if several {
		hosts = append(hosts, strings.Split(strings.TrimSuffix(others, "/"), ",")...)
	}
	return &rawRedis{redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: hosts, Username: o.Username, Password: o.Password, TLSConfig: o.TLSConfig})}, nil
}

func (r *rawRedis) Upsert(ctx context.Context, rows []rawRow) error {
	pipe := r.client.Pipeline()
	due := make([]redis.Z, len(rows))
	for i, row := range rows {
		pipe.HSet(ctx, rawRedisRow+row.key, "due", row.dueAt, "payload", row.payload)
		due[i] = redis.Z{Score: float64(row.dueAt), Member: row.key}
	}
	pipe.ZAdd(ctx, rawRedisDue, due...)
	_, err := pipe.Exec(ctx)
	return err
}

func (r *rawRedis) Drain(ctx context.Context, workers int) (int, error) {
	var all sync.WaitGroup
	var sum atomic.Int64
	errs := make([]error, workers)
	for i := range workers {
		all.Go(func() { errs[i] = r.drain(ctx, fmt.Sprintf("w%d-", i), &sum) })
	}
	all.Wait()
	return int(sum.Load()), errors.Join(errs...)
}

func (r *rawRedis) drain(ctx context.Context, name string, sum *atomic.Int64) error {
	for n := 0; ; n++ {
		now := time.Now()
		token := fmt.Sprint(name, n)
		taken, err := rawRedisClaim.Run(ctx, r.client, []string{rawRedisDue},
			now.UnixMilli(), now.Add(time.Minute).UnixMilli(), rawBatch, token, rawRedisRow).StringSlice()
		if err != nil || len(taken) == 0 {
			return err
		}
		args := make([]any, 0, 2+len(taken)/2)
		args = append(args, token, rawRedisRow)
		for i := 0; i < len(taken); i += 2 {
			args = append(args, taken[i])
		}
		if err := rawRedisDelete.Run(ctx, r.client, []string{rawRedisDue}, args...).Err(); err != nil {
			return err
		}
		sum.Add(int64(len(taken) / 2))
	}
}

// Close deletes what a drain that broke off has left.
func (r *rawRedis) Close(ctx context.Context) error {
	defer func() { _ = r.client.Close() }()
	for {
		left, err := r.client.ZRange(ctx, rawRedisDue, 0, rawBatch-1).Result()
		if err != nil || len(left) == 0 {
			return err
		}
		pipe := r.client.Pipeline()
		for _, key := range left {
			pipe.Del(ctx, rawRedisRow+key)
			pipe.ZRem(ctx, rawRedisDue, key)
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return err
		}
	}
}
