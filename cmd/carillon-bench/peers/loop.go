package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// The loops that one writes oneself: their number, and the jobs that each takes by one query.
const (
	loops     = 4
	loopBatch = 250
)

// polling runs a number of loops. Each takes a batch of due jobs, handles and settles them, and sleeps if the batch was
// not full.
type polling struct {
	settings string
	done     atomic.Int64
	failed   atomic.Pointer[error] // the first error of a loop; it ended the loop
	cancel   context.CancelFunc
	all      sync.WaitGroup
}

// every returns the pause of a loop.
func (p *polling) every() time.Duration {
	if p.settings == tuned {
		return 10 * time.Millisecond
	}
	return time.Second
}

// how describes the settings.
func (p *polling) how() string {
	return fmt.Sprintf("%d loops, each of up to %d jobs at once, and a pause of %s when there were fewer.", loops,
		loopBatch, p.every())
}

// run starts the loops. Turn takes, handles and settles a batch, and returns its size.
func (p *polling) run(ctx context.Context, turn func(ctx context.Context) (int, error)) {
	ctx, p.cancel = context.WithCancel(context.WithoutCancel(ctx))
	for range loops {
		p.all.Go(func() {
			for {
				n, err := turn(ctx)
				if err != nil {
					if ctx.Err() == nil {
						p.failed.CompareAndSwap(nil, &err)
					}
					return
				}
				p.done.Add(int64(n))
				if n < loopBatch && sleep(ctx, p.every()) != nil {
					return
				}
			}
		})
	}
}

func (p *polling) settled(context.Context) (int, error) {
	if err := p.failed.Load(); err != nil {
		return 0, *err
	}
	return int(p.done.Load()), nil
}

func (p *polling) stop(context.Context) error {
	if p.cancel != nil {
		p.cancel()
		p.all.Wait()
		p.cancel = nil
	}
	return nil
}
