package limits

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Quota is how much a tenant may have stored. Each field is no limit if it is zero.
type Quota struct {
	// Jobs is how many jobs it may have, those included that have finished and are still readable.
	Jobs int
	// Pending is how many occurrences that are to fire.
	Pending int
}

// Counter is the side of a store by which the limiter counts.
type Counter interface {
	Count(ctx context.Context, now time.Time, lanes []job.Lane, limit int) ([]store.Count, error)
	Jobs(ctx context.Context, filter store.JobFilter) ([]store.JobStatus, error)
}

// Exceeded is the error of a submission that a quota has no room for.
type Exceeded struct {
	// Name is that of the quota: [TenantJobs] or [TenantPending].
	Name string
	// Limit is how much the tenant may have, Present how much it had when that was counted, which may be cut off just
	// above the limit, and Wanted how much more the submission has.
	Limit, Present, Wanted int
}

func (e *Exceeded) Error() string {
	what := "jobs"
	if e.Name == TenantPending {
		what = "pending occurrences"
	}
	return fmt.Sprintf("the tenant may have %d %s (quota %s); it has %d or more, and this would add %d",
		e.Limit, what, e.Name, e.Present, e.Wanted)
}

// How long counts are taken for true, and what they may cost: so many times as long as counting took is waited until it
// is done again.
const (
	freshest = 500 * time.Millisecond // if the quota would be exceeded
	oldest   = 5 * time.Second        // else, since other replicas add to it
	rest     = 20
)

// mostTenants bounds the tenants whose counts are kept, twice.
const mostTenants = 10_000

// pageSize is how many jobs are counted at once.
const pageSize = 1000

// quotas are the counts of tenants. They are safe for concurrent use.
type quotas struct {
	store Counter

	mu   sync.Mutex
	kept recent[*usage]
}

func newQuotas(store Counter) *quotas {
	return &quotas{store: store, kept: recent[*usage]{most: mostTenants}}
}

// usage is what one tenant has.
type usage struct {
	turn chan struct{} // has an element while somebody reads or changes the other fields
	has  has           // what was counted, and what was admitted since
	// admitted is what was ever admitted, less what was returned.
	admitted has
	of       Quota // by which it was counted
	at       time.Time
	took     time.Duration
	counting bool // in the background
}

// has are numbers of jobs and pending occurrences.
type has struct{ jobs, pending int }

func (h has) plus(jobs, pending int) has { return has{h.jobs + jobs, h.pending + pending} }

func (q *quotas) of(tenant string) *usage {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.kept.of(tenant, func() *usage { return &usage{turn: make(chan struct{}, 1)} })
}

// Admit admits a submission that adds so many jobs and pending occurrences to what a tenant has, or returns an
// [*Exceeded], or an error of the store. What is admitted counts from then on; [Limiter.Return] undoes that.
//
// Counts are up to some seconds old, so a tenant may exceed its quota by what the other replicas admit meanwhile; and
// once it has removed something, it may be half a second until there is room. A count reads no more than the quota and
// one.
func (l *Limiter) Admit(ctx context.Context, tenant string, jobs, pending int) error {
	if l == nil {
		return nil
	}
	quota := l.Of(tenant).Quota
	if quota == (Quota{}) {
		return nil
	}
	u := l.quotas.of(tenant)
	select {
	case u.turn <- struct{}{}:
		defer func() { <-u.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	old := time.Since(u.at)
	if u.of != quota || u.exceeded(jobs, pending) != nil && old >= max(freshest, rest*u.took) {
		start, counted, err := l.quotas.count(ctx, tenant, quota)
		if err != nil {
			return err
		}
		u.counted(start, counted, quota)
	} else if old >= max(oldest, rest*u.took) && !u.counting {
		u.counting = true
		l.running.Go(func() { l.recount(u, tenant, quota) })
	}
	if err := u.exceeded(jobs, pending); err != nil {
		return err
	}
	u.has, u.admitted = u.has.plus(jobs, pending), u.admitted.plus(jobs, pending)
	return nil
}

// recount counts what a tenant has while others go on.
func (l *Limiter) recount(u *usage, tenant string, quota Quota) {
	u.turn <- struct{}{}
	before := u.admitted
	<-u.turn
	ctx, cancel := context.WithTimeout(l.context, store.Within)
	defer cancel()
	start, counted, err := l.quotas.count(ctx, tenant, quota)
	u.turn <- struct{}{}
	defer func() { <-u.turn }()
	u.counting = false
	if err != nil { // submissions fail by themselves while the store is away
		u.at = time.Now()
		return
	}
	counted = counted.plus(u.admitted.jobs-before.jobs, u.admitted.pending-before.pending)
	u.counted(start, counted, quota)
}

// Return tells that a submission has added less than was admitted, by so many jobs and pending occurrences.
func (l *Limiter) Return(tenant string, jobs, pending int) {
	if l == nil || jobs == 0 && pending == 0 || l.Of(tenant).Quota == (Quota{}) {
		return
	}
	u := l.quotas.of(tenant)
	u.turn <- struct{}{} // nobody has it for longer than a count takes
	defer func() { <-u.turn }()
	u.has, u.admitted = u.has.plus(-jobs, -pending), u.admitted.plus(-jobs, -pending)
}

// Refuse notes that a submission was refused.
func (l *Limiter) Refuse(e *Exceeded) { l.refused.WithLabelValues(e.Name).Inc() }

// counted sets what was counted.
func (u *usage) counted(start time.Time, has has, by Quota) {
	u.has, u.of, u.at = has, by, time.Now()
	u.took = u.at.Sub(start)
}

// exceeded is why so much more can't be admitted, or nil.
func (u *usage) exceeded(jobs, pending int) error {
	switch {
	case u.of.Jobs > 0 && jobs > 0 && u.has.jobs+jobs > u.of.Jobs:
		return &Exceeded{TenantJobs, u.of.Jobs, max(0, u.has.jobs), jobs}
	case u.of.Pending > 0 && pending > 0 && u.has.pending+pending > u.of.Pending:
		return &Exceeded{TenantPending, u.of.Pending, max(0, u.has.pending), pending}
	default:
		return nil
	}
}

// count counts what a tenant has, as far as the quota asks for that.
func (q *quotas) count(ctx context.Context, tenant string, quota Quota) (start time.Time, all has, err error) {
	start = time.Now()
	jobs, errJobs := countJobs(ctx, q.store, tenant, quota.Jobs)
	pending, errPending := countPending(ctx, q.store, tenant, quota.Pending)
	return start, has{jobs, pending}, errors.Join(errJobs, errPending)
}

// countJobs counts a tenant's jobs up to a quota and one; none without a quota.
func countJobs(ctx context.Context, in Counter, tenant string, quota int) (n int, err error) {
	filter := store.JobFilter{Tenant: tenant}
	for quota > 0 && n <= quota {
		filter.Limit = min(pageSize, quota+1-n)
		page, err := in.Jobs(ctx, filter)
		if err != nil {
			return 0, err
		}
		n += len(page)
		if len(page) < filter.Limit {
			break
		}
		filter.After = page[len(page)-1].Key
	}
	return n, nil
}

// countPending counts a tenant's pending occurrences up to a quota and one in each lane; none without a quota.
func countPending(ctx context.Context, in Counter, tenant string, quota int) (n int, err error) {
	if quota == 0 {
		return 0, nil
	}
	var lanes []job.Lane
	for _, p := range []job.Priority{job.PriorityDefault, job.PriorityHigh, job.PriorityNormal, job.PriorityLow} {
		lanes = append(lanes, job.Lane{Tenant: tenant, Priority: p})
	}
	counts, err := in.Count(ctx, time.Now().UTC().Truncate(time.Millisecond), lanes, quota+1)
	for _, c := range counts {
		n += c.Pending
	}
	return n, err
}
