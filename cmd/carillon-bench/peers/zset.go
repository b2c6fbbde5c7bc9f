package main

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// The keys of the queue: sorted sets of payloads, by their instants and by the ends of their leases.
const (
	zsetKeys   = "{carillon-bench-zset}:"
	zsetDue    = zsetKeys + "due"
	zsetLeased = zsetKeys + "leased"
)

// zsetPeer is a delay queue in Redis: a sorted set of payloads, polled by loops. A batch is moved to a second set,
// handled, and deleted there. After a crash, its payloads stay in the second set; nothing here moves them back.
type zsetPeer struct {
	polling
	client  *redis.Client
	counter *commandCounter
}

// zsetTake moves due payloads and returns them. KEYS: the set of waiting payloads, the set of leased payloads.
// ARGV: now, the end of the lease, the maximum number.
var zsetTake = redis.NewScript(`
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[3])
if #due > 0 then
	local leased = {}
	for i, payload in ipairs(due) do
		leased[2 * i - 1] = ARGV[2]
		leased[2 * i] = payload
	end
	redis.call('ZREM', KEYS[1], unpack(due))
	redis.call('ZADD', KEYS[2], unpack(leased))
end
return due`)

func newZset(rawURL, settings string) (*zsetPeer, error) {
	client, err := openRedis(rawURL)
	if err != nil {
		return nil, err
	}
	z := &zsetPeer{polling: polling{settings: settings}, client: client, counter: &commandCounter{}}
	client.AddHook(z.counter)
	return z, nil
}

func (z *zsetPeer) about(ctx context.Context) (about, error) {
	server, err := versionOfRedis(ctx, z.client)
	return about{"a sorted set", "redis", server, z.how()}, err
}

func (z *zsetPeer) prepare(ctx context.Context, force bool) error {
	return takeKeys(ctx, z.client, zsetKeys+"*", force)
}

func (z *zsetPeer) insert(ctx context.Context, w *work) error {
	const batch = 1000
	for from := 0; from < w.count; from += batch {
		var members []redis.Z
		for i := from; i < min(from+batch, w.count); i++ {
			members = append(members, redis.Z{Score: float64(w.instant(i).UnixMilli()), Member: w.data(i)})
		}
		if err := z.client.ZAdd(ctx, zsetDue, members...).Err(); err != nil {
			return err
		}
	}
	return nil
}

func (z *zsetPeer) start(ctx context.Context, handle func(payload []byte)) error {
	z.run(ctx, func(ctx context.Context) (int, error) {
		now := time.Now()
		due, err := zsetTake.Run(ctx, z.client, []string{zsetDue, zsetLeased},
			now.UnixMilli(), now.Add(time.Minute).UnixMilli(), loopBatch).StringSlice()
		if err != nil || len(due) == 0 {
			return 0, err
		}
		done := make([]any, len(due))
		for i, payload := range due {
			handle([]byte(payload))
			done[i] = payload
		}
		return len(due), z.client.ZRem(ctx, zsetLeased, done...).Err()
	})
	return nil
}

func (z *zsetPeer) queries() int64 { return z.counter.sum.Load() }

func (z *zsetPeer) remove(ctx context.Context) error {
	defer func() { _ = z.client.Close() }()
	return takeKeys(ctx, z.client, zsetKeys+"*", true)
}
