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

// Quota bounds the stored objects of a tenant, or those in the scope of a key. A zero field is no limit.
type Quota struct {
	// Jobs is the maximum number of jobs, including finished jobs that are still readable.
	Jobs int
	// Pending is the maximum number of pending occurrences.
	Pending int
}

// Counter has the methods of a store that the limiter counts with.
type Counter interface {
	Count(ctx context.Context, now time.Time, lanes []job.Lane, limit int) ([]store.Count, error)
	Jobs(ctx context.Context, filter store.JobFilter) ([]store.JobStatus, error)
}

// Exceeded is the error of a submission that exceeds a quota.
type Exceeded struct {
	// Name is the quota's name: [TenantJobs], [TenantPending], [KeyJobs] or [KeyPending].
	Name string
	// Limit is the quota. Present is the number that was counted; counting may stop just above the limit. Wanted is the
	// number that the submission adds.
	Limit, Present, Wanted int
}

func (e *Exceeded) Error() string {
	whose, what := "the tenant", "jobs"
	if e.Name == KeyJobs || e.Name == KeyPending {
		whose = "the scope of this key"
	}
	if e.Name == TenantPending || e.Name == KeyPending {
		what = "pending occurrences"
	}
	return fmt.Sprintf("%s may have %d %s (quota %s); it has %d or more, and this would add %d",
		whose, e.Limit, what, e.Name, e.Present, e.Wanted)
}

// The ages up to which counts are used, and a bound on the cost: the pause between counts, as a multiple of the
// duration of a count.
const (
	freshest = 500 * time.Millisecond // if the quota were exceeded
	oldest   = 5 * time.Second        // else, since other replicas add to it: then it is counted in the background
	idle     = 10 * time.Second       // if no submission came meanwhile: then this one waits for the count
	rest     = 20
)

// patience is the time to wait for a count where the last one may do.
const patience = time.Second

// mostCounts is half of the maximum number of spaces whose counts are kept.
const mostCounts = 10_000

// pageSize is the number of jobs that are counted at once.
const pageSize = 1000

// space is a part of a store that a quota bounds: the jobs of a tenant, or those of them that are in a key's scope.
type space struct {
	Quota
	names          quotaNames
	key            string // the id of the key whose quota it is; empty for the tenant's own
	tenant, prefix string
}

// quotaNames are the names of a space's quotas, as clients see them.
type quotaNames struct{ jobs, pending string }

// spaces returns the spaces with a quota that a key's submission to a tenant adds to.
func (l *Limiter) spaces(by Key, tenant string) (all []space) {
	if quota := l.Of(tenant).Quota; quota != (Quota{}) {
		all = append(all, space{Quota: quota, names: quotaNames{TenantJobs, TenantPending}, tenant: tenant})
	}
	if quota := l.OfKey(by.Own).Quota; quota != (Quota{}) {
		names := quotaNames{KeyJobs, KeyPending}
		all = append(all, space{quota, names, by.ID, tenant, by.Prefix})
	}
	return all
}

// quotas has the counts of spaces. It is safe for concurrent use.
type quotas struct {
	store Counter

	mu   sync.Mutex
	kept recent[*usage]
}

func newQuotas(store Counter) *quotas {
	return &quotas{store: store, kept: recent[*usage]{most: mostCounts}}
}

// usage is the count of one space.
type usage struct {
	lock chan struct{} // has an element while a goroutine uses the other fields
	has  has           // the last count, plus the admitted since
	// admitted is everything admitted so far, less the unused. unsettled is the part of it that may not be stored yet.
	admitted, unsettled has
	of                  Quota // the quota of the last count
	at                  time.Time
	took                time.Duration
	counting            bool // a count runs in the background
}

// has are numbers of jobs and pending occurrences.
type has struct{ jobs, pending int }

func (h has) plus(jobs, pending int) has { return has{h.jobs + jobs, h.pending + pending} }

func (q *quotas) of(s *space) *usage {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.kept.of(s.key+" "+s.tenant, func() *usage { return &usage{lock: make(chan struct{}, 1)} })
}

// HasQuota reports whether a key's submissions to a tenant must be admitted.
func (l *Limiter) HasQuota(by Key, tenant string) bool {
	return l != nil && len(l.spaces(by, tenant)) > 0
}

// Admit admits a key's submission that adds the given numbers of jobs and pending occurrences to a tenant. It returns
// an [*Exceeded] if there is no room, or an error of the store. Each admission must be settled, see [Limiter.Settle].
//
// Counts are up to some seconds old, so a quota may be exceeded by the submissions that other replicas admit meanwhile,
// and a key's quota also by those of other keys. After a removal, it may take half a second until there is room. A
// count reads at most one entry more than the quota.
func (l *Limiter) Admit(ctx context.Context, by Key, tenant string, jobs, pending int) error {
	if l == nil {
		return nil
	}
	spaces := l.spaces(by, tenant)
	for i := range spaces {
		if err := l.admit(ctx, &spaces[i], jobs, pending); err != nil {
			for k := range spaces[:i] {
				l.settle(&spaces[k], jobs, pending, jobs, pending)
			}
			return err
		}
	}
	return nil
}

// admit admits a submission to one space.
func (l *Limiter) admit(ctx context.Context, s *space, jobs, pending int) error {
	u := l.quotas.of(s)
	select {
	case u.lock <- struct{}{}:
		defer func() { <-u.lock }()
	case <-ctx.Done():
		return ctx.Err()
	}
	switch old := time.Since(u.at); {
	case u.of != s.Quota || u.exceeded(s, jobs, pending) != nil && old >= max(freshest, rest*u.took):
		if err := l.countNow(ctx, u, s); err != nil {
			return err
		}
	case u.counting || old < max(oldest, rest*u.took):
	case old < max(idle, rest*u.took) || l.countSoon(ctx, u, s) != nil:
		u.counting = true
		l.running.Go(func() { l.recount(u, s) })
	}
	if err := u.exceeded(s, jobs, pending); err != nil {
		l.near(s, u.has.plus(jobs, pending))
		return err
	}
	u.add(jobs, pending)
	l.near(s, u.has)
	u.unsettled = u.unsettled.plus(jobs, pending)
	return nil
}

// countNow counts a space's objects while its submissions wait.
func (l *Limiter) countNow(ctx context.Context, u *usage, s *space) error {
	start, counted, err := l.quotas.count(ctx, s)
	if err == nil {
		u.counted(start, counted.plus(u.unsettled.jobs, u.unsettled.pending), s.Quota)
	}
	return err
}

// countSoon does the same, but its submissions do not wait for long.
func (l *Limiter) countSoon(ctx context.Context, u *usage, s *space) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return l.countNow(ctx, u, s)
}

// near reports the tenant's quotas that are nearly used up.
func (l *Limiter) near(s *space, has has) {
	if l.config.Near == nil || s.key != "" {
		return
	}
	for _, q := range []struct {
		name           string
		limit, present int
	}{{s.names.jobs, s.Jobs, has.jobs}, {s.names.pending, s.Pending, has.pending}} {
		if q.limit > 0 && q.present >= q.limit-q.limit/5 {
			l.config.Near(s.tenant, q.name, q.limit, min(q.present, q.limit))
		}
	}
}

// recount counts a space's objects while submissions continue.
func (l *Limiter) recount(u *usage, s *space) {
	u.lock <- struct{}{}
	before := u.admitted.plus(-u.unsettled.jobs, -u.unsettled.pending)
	<-u.lock
	ctx, cancel := context.WithTimeout(l.context, store.Within)
	defer cancel()
	start, counted, err := l.quotas.count(ctx, s)
	u.lock <- struct{}{}
	defer func() { <-u.lock }()
	u.counting = false
	if err != nil { // while the store is away, submissions fail anyway
		u.at = time.Now()
		return
	}
	counted = counted.plus(u.admitted.jobs-before.jobs, u.admitted.pending-before.pending)
	u.counted(start, counted, s.Quota)
}

// Settle ends an admission of jobs and pending occurrences. The unused ones are those that the submission has not
// added. Until Settle, a new count adds the admitted ones, since it may not have found them. If it has found them, they
// count twice until the next count.
func (l *Limiter) Settle(by Key, tenant string, jobs, pending, unusedJobs, unusedPending int) {
	if l == nil || jobs == 0 && pending == 0 {
		return
	}
	for _, s := range l.spaces(by, tenant) {
		l.settle(&s, jobs, pending, unusedJobs, unusedPending)
	}
}

// settle ends an admission to one space.
func (l *Limiter) settle(s *space, jobs, pending, unusedJobs, unusedPending int) {
	u := l.quotas.of(s)
	u.lock <- struct{}{} // held for the duration of a count at most
	defer func() { <-u.lock }()
	u.unsettled = has{max(0, u.unsettled.jobs-jobs), max(0, u.unsettled.pending-pending)}
	u.add(-unusedJobs, -unusedPending)
}

// add adds to the numbers that count.
func (u *usage) add(jobs, pending int) {
	u.has, u.admitted = u.has.plus(jobs, pending), u.admitted.plus(jobs, pending)
}

// Refuse notes that a submission was refused.
func (l *Limiter) Refuse(e *Exceeded) { l.refused.WithLabelValues(e.Name).Inc() }

// counted sets the result of a count.
func (u *usage) counted(start time.Time, has has, by Quota) {
	u.has, u.of, u.at = has, by, time.Now()
	u.took = u.at.Sub(start)
}

// exceeded returns the quota that has no room for an addition, or nil.
func (u *usage) exceeded(s *space, jobs, pending int) error {
	switch {
	case u.of.Jobs > 0 && jobs > 0 && u.has.jobs+jobs > u.of.Jobs:
		return &Exceeded{s.names.jobs, u.of.Jobs, max(0, u.has.jobs), jobs}
	case u.of.Pending > 0 && pending > 0 && u.has.pending+pending > u.of.Pending:
		return &Exceeded{s.names.pending, u.of.Pending, max(0, u.has.pending), pending}
	default:
		return nil
	}
}

// count counts the objects of a space that its quota bounds.
func (q *quotas) count(ctx context.Context, s *space) (start time.Time, all has, err error) {
	start = time.Now()
	jobs, errJobs := countJobs(ctx, q.store, s)
	pending, errPending := countPending(ctx, q.store, s)
	return start, has{jobs, pending}, errors.Join(errJobs, errPending)
}

// countJobs counts the jobs of a space up to one more than the quota; none without a quota.
func countJobs(ctx context.Context, in Counter, s *space) (n int, err error) {
	filter := store.JobFilter{Tenant: s.tenant, Prefix: s.prefix}
	for s.Jobs > 0 && n <= s.Jobs {
		filter.Limit = min(pageSize, s.Jobs+1-n)
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

// countPending counts the pending occurrences of a space, which is a whole tenant, in each lane up to one more than the
// quota; none without a quota.
func countPending(ctx context.Context, in Counter, s *space) (n int, err error) {
	if s.Pending == 0 {
		return 0, nil
	}
	var lanes []job.Lane
	for _, p := range []job.Priority{job.PriorityDefault, job.PriorityHigh, job.PriorityNormal, job.PriorityLow} {
		lanes = append(lanes, job.Lane{Tenant: s.tenant, Priority: p})
	}
	counts, err := in.Count(ctx, time.Now().UTC().Truncate(time.Millisecond), lanes, s.Pending+1)
	for _, c := range counts {
		n += c.Pending
	}
	return n, err
}
