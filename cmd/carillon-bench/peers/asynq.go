package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// asynqQueue is a queue of the bench's own. The prefix of asynq's keys is fixed.
const (
	asynqQueue = "carillon-bench"
	asynqKeys  = "asynq:{" + asynqQueue + "}:"
)

// asynqConcurrency is the number of concurrent tasks, the same as in Carillon's bench. The default is one for each
// core.
const asynqConcurrency = 1024

// asynqPeer is asynq.
type asynqPeer struct {
	settings string
	client   *redis.Client
	counter  *commandCounter
	server   *asynq.Server
	inserted int64
	handled  atomic.Int64
}

func newAsynq(rawURL, settings string) (*asynqPeer, error) {
	client, err := openRedis(rawURL)
	if err != nil {
		return nil, err
	}
	a := &asynqPeer{settings: settings, client: client, counter: &commandCounter{}}
	client.AddHook(a.counter)
	return a, nil
}

// config returns the settings, and a description of them.
func (a *asynqPeer) config() (c asynq.Config, how string) {
	c = asynq.Config{Concurrency: asynqConcurrency, Queues: map[string]int{asynqQueue: 1}, LogLevel: asynq.WarnLevel}
	how = fmt.Sprintf("Concurrency %d, %d connections", asynqConcurrency, redisConnections)
	if a.settings == tuned {
		c.TaskCheckInterval, c.DelayedTaskCheckInterval = 10*time.Millisecond, 10*time.Millisecond
		return c, how + ", TaskCheckInterval and DelayedTaskCheckInterval 10 ms: it keeps whole seconds, so shorter ones " +
			"change nothing."
	}
	return c, how + ", else defaults: TaskCheckInterval 1 s, DelayedTaskCheckInterval 5 s."
}

func (a *asynqPeer) about(ctx context.Context) (about, error) {
	server, err := versionOfRedis(ctx, a.client)
	_, how := a.config()
	return about{"asynq " + moduleVersion("github.com/hibiken/asynq"), "redis", server, how}, err
}

func (a *asynqPeer) prepare(ctx context.Context, force bool) error {
	return takeKeys(ctx, a.client, asynqKeys+"*", force)
}

// insert enqueues each task by itself, on all connections at once. asynq has no call for several tasks.
func (a *asynqPeer) insert(ctx context.Context, w *work) error {
	a.inserted = int64(w.count)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	client := asynq.NewClientFromRedisClient(a.client)
	var next atomic.Int64
	var all sync.WaitGroup
	for range redisConnections {
		all.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= w.count {
					return
				}
				task := asynq.NewTask("carillon-bench", w.data(i))
				if _, err := client.EnqueueContext(ctx, task, asynq.Queue(asynqQueue), asynq.ProcessAt(w.instant(i))); err != nil {
					cancel(err)
				}
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}

func (a *asynqPeer) start(_ context.Context, handle func(payload []byte)) error {
	c, _ := a.config()
	a.server = asynq.NewServerFromRedisClient(a.client, c)
	return a.server.Start(asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
		handle(task.Payload())
		a.handled.Add(1)
		return nil
	}))
}

// settled, at the end, asks the server for the number of handled tasks that are not yet marked as done.
func (a *asynqPeer) settled(ctx context.Context) (int, error) {
	handled := a.handled.Load()
	if handled < a.inserted {
		return int(handled) - 1, nil
	}
	active, err := a.client.LLen(ctx, asynqKeys+"active").Result()
	return int(handled - active), err
}

func (a *asynqPeer) queries() int64 { return a.counter.sum.Load() }

func (a *asynqPeer) stop(context.Context) error {
	if a.server != nil {
		a.server.Shutdown()
		a.server = nil
	}
	return nil
}

func (a *asynqPeer) remove(ctx context.Context) error {
	defer func() { _ = a.client.Close() }()
	if err := takeKeys(ctx, a.client, asynqKeys+"*", true); err != nil {
		return err
	}
	return a.client.SRem(ctx, "asynq:queues", asynqQueue).Err()
}
