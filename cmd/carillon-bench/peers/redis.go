package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// redisConnections is the limit of a peer's connections to Redis. The client's default, ten for each core, is too low
// for the number of concurrent tasks.
const redisConnections = 128

// openRedis opens a client.
func openRedis(rawURL string) (*redis.Client, error) {
	o, err := redis.ParseURL(rawURL)
	if err != nil {
		return nil, fmt.Errorf("--redis: %w", err)
	}
	o.PoolSize = redisConnections
	return redis.NewClient(o), nil
}

// setFsync sets the server's appendfsync if the options ask for it, and returns a function that restores it.
func setFsync(ctx context.Context, o *options) (restore func(context.Context) error, err error) {
	if o.fsync == "" {
		return func(context.Context) error { return nil }, nil
	}
	client, err := openRedis(o.redis)
	if err != nil {
		return nil, err
	}
	const name = "appendfsync"
	before, err := client.ConfigGet(ctx, name).Result()
	if err == nil {
		err = client.ConfigSet(ctx, name, o.fsync).Err()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("--redis-fsync: %w", err), client.Close())
	}
	return func(ctx context.Context) error {
		return errors.Join(client.ConfigSet(ctx, name, before[name]).Err(), client.Close())
	}, nil
}

// versionOfRedis returns a server's version and its appendfsync. Only servers with the same setting can be compared.
func versionOfRedis(ctx context.Context, client *redis.Client) (string, error) {
	info, err := client.InfoMap(ctx, "server").Result()
	if err != nil {
		return "", err
	}
	settings, err := client.ConfigGet(ctx, "append*").Result()
	if err != nil {
		return "", err
	}
	sync := "nothing on disk"
	if settings["appendonly"] == "yes" {
		sync = "fsync " + settings["appendfsync"]
	}
	return fmt.Sprintf("Redis %s (%s)", info["Server"]["redis_version"], sync), nil
}

// commandCounter counts the commands of a client, including those of pipelines.
type commandCounter struct{ sum atomic.Int64 }

func (c *commandCounter) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (c *commandCounter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.sum.Add(1)
		return next(ctx, cmd)
	}
}

func (c *commandCounter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.sum.Add(int64(len(cmds)))
		return next(ctx, cmds)
	}
}

// takeKeys makes sure that no key matches: it returns errNotEmpty if one does, or deletes the keys if force is set.
func takeKeys(ctx context.Context, client *redis.Client, pattern string, force bool) error {
	var cursor uint64
	for {
		keys, next, err := client.Scan(ctx, cursor, pattern, 1000).Result()
		if err != nil {
			return err
		}
		if len(keys) > 0 && !force {
			return fmt.Errorf("the key %s: %w", keys[0], errNotEmpty)
		}
		if len(keys) > 0 {
			if err := client.Unlink(ctx, keys...).Err(); err != nil {
				return err
			}
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}
