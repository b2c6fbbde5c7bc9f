package dispatcher_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/dispatcher"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// pagedQueue has few lanes on a page, so that a scan of few lanes takes many pages.
type pagedQueue struct {
	dispatcher.Store
	most int

	lock        sync.Mutex
	calls, told int
	fail        func(p store.DueParams) bool // fails some pages; nil fails none
}

func (q *pagedQueue) DueLanes(ctx context.Context, p store.DueParams) (store.DuePage, error) {
	q.lock.Lock()
	q.calls++
	fails := q.fail != nil && q.fail(p)
	q.lock.Unlock()
	if fails {
		return store.DuePage{}, fmt.Errorf("%w: as asked", store.ErrUnavailable)
	}
	p.Limit = min(p.Limit, q.most)
	page, err := q.Store.DueLanes(ctx, p)
	q.lock.Lock()
	q.told += len(page.Lanes)
	q.lock.Unlock()
	return page, err
}

// counts returns the pages requested and the lanes returned since the last call.
func (q *pagedQueue) counts() (calls, told int) {
	q.lock.Lock()
	defer q.lock.Unlock()
	calls, told, q.calls, q.told = q.calls, q.told, 0, 0
	return calls, told
}

func (q *pagedQueue) failing(fail func(p store.DueParams) bool) {
	q.lock.Lock()
	defer q.lock.Unlock()
	q.fail = fail
}

// paged makes a replica on such a queue.
func (b *bench) paged(most int) *pagedQueue {
	q := &pagedQueue{Store: b.queue, most: most}
	b.replica(func(c *dispatcher.Config) { c.Store = q })
	return q
}

// The cost of a scan follows the lanes that become due soon, not the number of tenants with something pending.
func TestLookFollowsWhatIsDue(t *testing.T) {
	bubble(t, func(b *bench) {
		for i := range 300 {
			b.submit("far", of(fmt.Sprint("t", i), ""), time.Duration(2+i)*time.Hour)
		}
		b.submit("near", of("t7", ""), 90*time.Second)
		q := b.paged(100)
		time.Sleep(500 * time.Millisecond)
		q.counts()
		time.Sleep(time.Minute)
		if calls, told := q.counts(); calls > 60 || told > 60 {
			t.Errorf("in a minute, %d pages told %d lanes", calls, told)
		}
		time.Sleep(time.Minute)
		b.expectSent("1m30s near #1")
	})
}

// Occurrences of many tenants that become due at one time, on many pages of a scan, fire at that time.
func TestLookOfManyPages(t *testing.T) {
	bubble(t, func(b *bench) {
		b.paged(5)
		synctest.Wait()
		time.Sleep(100 * time.Millisecond)
		for i := range 60 {
			b.submit("k", of(fmt.Sprint("t", i), ""), 5*time.Second)
		}
		time.Sleep(time.Minute)
		for _, s := range b.receiver.all() {
			if !s.SentAt.Equal(s.Timestamp) {
				t.Errorf("%v is sent %s late", s.Name, s.SentAt.Sub(s.Timestamp))
			}
		}
		if n := b.receiver.count(); n != 60 {
			t.Errorf("%d of 60 are sent", n)
		}
	})
}

// A scan that is interrupted keeps the lanes that it has found, and continues from there.
func TestLookThatBreaksOff(t *testing.T) {
	bubble(t, func(b *bench) {
		for i := range 20 {
			b.submit("k", of(fmt.Sprintf("t%02d", i), ""), time.Duration(i)*time.Millisecond-time.Minute)
		}
		q := &pagedQueue{Store: b.queue, most: 4}
		q.failing(func(p store.DueParams) bool { return p.After.Lane == job.Lane{Tenant: "t11"} })
		b.replica(func(c *dispatcher.Config) { c.Store = q })
		time.Sleep(10 * time.Second)
		if n := b.receiver.count(); n != 12 {
			t.Errorf("%d are sent, of 12 that were told", n)
		}
		q.failing(nil)
		time.Sleep(3 * time.Second)
		if n := b.receiver.count(); n != 20 {
			t.Errorf("%d are sent of 20", n)
		}
	})
}

// During a backlog whose scan takes many pages, a submission to another replica is noticed within two poll intervals.
// An occurrence that another replica left behind, with an instant that had passed, is noticed when the scans have read
// up to it.
func TestLooksBesideABacklog(t *testing.T) {
	bubble(t, func(b *bench) {
		const paused, page = 60, 5
		for i := range paused {
			tenant := fmt.Sprintf("p%02d", i)
			b.tenant(tenant, b.start, job.TenantSettings{Paused: true})
			b.submit("waits", of(tenant, ""), time.Duration(i)*time.Second-time.Hour)
		}
		q := b.paged(page)
		time.Sleep(5500 * time.Millisecond)
		q.counts()
		time.Sleep(10 * time.Second)
		if calls, _ := q.counts(); calls > 20 {
			t.Errorf("ten seconds of polls take %d pages", calls)
		}
		now := time.Since(b.start)
		b.submit("now", of("other", ""), 0)
		b.submit("past", of("third", ""), -59*time.Minute-30*time.Second-now)
		time.Sleep(2 * time.Second)
		if n := len(b.receiver.of("now")); n != 1 {
			t.Errorf("the occurrence due now is sent %d times within two poll intervals", n)
		}
		time.Sleep((paused/page + 2) * time.Second)
		if n := len(b.receiver.of("past")); n != 1 {
			t.Errorf("the occurrence due before is sent %d times after all pages", n)
		}
		if n := b.receiver.count(); n != 2 {
			t.Errorf("%d are sent", n)
		}
	})
}

// If a part of the store fails, the lanes of all other parts are found, on however many pages they are.
func TestLookAtAPart(t *testing.T) {
	bubble(t, func(b *bench) {
		for i := range 20 {
			b.submit("k", of(fmt.Sprintf("t%02d", i), ""), time.Duration(i)*time.Millisecond-time.Minute)
		}
		b.replica(func(c *dispatcher.Config) { c.Store = &partQueue{pagedQueue{Store: b.queue, most: 4}} })
		time.Sleep(time.Second)
		b.submit("later", of("later", ""), 5*time.Second)
		time.Sleep(10 * time.Second)
		if n := b.receiver.count(); n != 21 {
			t.Errorf("%d are sent of 21", n)
		}
	})
}

// partQueue is a store with a part that never answers.
type partQueue struct{ pagedQueue }

func (q *partQueue) DueLanes(ctx context.Context, p store.DueParams) (store.DuePage, error) {
	page, _ := q.pagedQueue.DueLanes(ctx, p)
	return page, fmt.Errorf("%w: a part of it", store.ErrUnavailable)
}
