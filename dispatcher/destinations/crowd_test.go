package destinations_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon/dispatcher/destinations"
)

// crowd is the callbacks of one flow to a destination. Each returns when its deferral says.
type crowd struct {
	field
	limits destinations.Limits
	takes  time.Duration

	replicas []*destinations.Set  // each callback comes to one of them at random; nil for the field's
	random   func() time.Duration // instead of takes

	group sync.WaitGroup
	lock  sync.Mutex
	sent  []time.Time
	tries int
}

func (f field) crowd(tenant string, takes time.Duration, limits destinations.Limits) *crowd {
	limits.Flow.Tenant = tenant
	return &crowd{field: f, limits: limits, takes: takes}
}

// submit makes n callbacks come, one after each interval, until ctx ends.
func (c *crowd) submit(ctx context.Context, n int, interval time.Duration) {
	c.group.Go(func() {
		for range n {
			c.group.Go(func() { c.one(ctx) })
			time.Sleep(interval)
		}
	})
}

func (c *crowd) one(ctx context.Context) {
	limits := c.limits
	for ; ctx.Err() == nil; limits.Again = true {
		c.note(func() { c.tries++ })
		at := c.Set
		if len(c.replicas) > 0 {
			at = c.replicas[rand.IntN(len(c.replicas))]
		}
		pass, err := at.Enter(ctx, "d", limits)
		if after, deferred := destinations.IsDeferral(err); deferred {
			select {
			case <-time.After(after + rand.N(5*time.Millisecond)): // no clock is exact
			case <-ctx.Done():
			}
		} else if err == nil {
			c.note(func() { c.sent = append(c.sent, time.Now()) })
			if c.random != nil {
				time.Sleep(c.random())
			} else {
				time.Sleep(c.takes)
			}
			pass.Done(destinations.Well)
			return
		}
	}
}

func (c *crowd) note(what func()) {
	c.lock.Lock()
	defer c.lock.Unlock()
	what()
}

// since counts the callbacks sent since a time.
func (c *crowd) since(from time.Time) (n int) {
	c.lock.Lock()
	defer c.lock.Unlock()
	for _, at := range c.sent {
		if !at.Before(from) {
			n++
		}
	}
	return n
}
