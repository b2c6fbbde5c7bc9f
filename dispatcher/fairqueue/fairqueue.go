// Package fairqueue decides how many occurrences of each lane a replica claims.
//
// While there are slots for all due occurrences, each lane gets as many as it has. Otherwise the slots are divided
// between the priorities by their weights, and between the tenants of one priority by theirs, whatever their backlogs.
// The slots of a lane that is behind are divided between overdue occurrences and those due now.
//
// Each level is start-time fair queueing (Goyal, Vin, Cheng 1996): the member that has had the fewest slots for its
// weight is served next. A member that had nothing due returns with the same count as the others, without a claim to
// the slots that it left to them. The package does no I/O and reads no clock.
package fairqueue

import (
	"cmp"
	"container/heap"
	"fmt"
	"math"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Queue divides the slots of one replica between lanes. It is for one goroutine. Its cost hardly depends on the number
// of lanes, whether they have due occurrences or not.
type Queue struct {
	policy   Policy
	tenant   func(name string) Tenant
	lanes    map[job.Lane]*lane
	idle     idleLanes          // without an occurrence known to be due
	active   int                // the number of the tree's leaves with due occurrences
	blocked  map[string][]*lane // by tenant: neither idle nor active, since the tenant has no room
	inFlight map[string]int     // by tenant: claimed, and not settled yet
	tree     tree
}

// Policy has the weights of the priorities, and the treatment of overdue occurrences.
type Policy struct {
	// High, Normal and Low are the weights of the priorities, each greater than zero.
	High, Normal, Low float64
	// OverdueAfter is the time since its due time after which an occurrence is overdue; greater than zero.
	OverdueAfter time.Duration
	// OverdueShare is the fraction of a lane's slots for overdue occurrences while others of the lane are due: greater
	// than zero and less than one.
	OverdueShare float64
}

// Validate checks the policy. The error names the wrong option and a valid value.
func (p *Policy) Validate() error {
	switch {
	case !(p.High > 0 && p.Normal > 0 && p.Low > 0) || math.IsInf(p.High+p.Normal+p.Low, 1):
		return fmt.Errorf("priority-shares are %v, %v and %v; each must be a number above 0", p.High, p.Normal, p.Low)
	case p.OverdueAfter <= 0:
		return fmt.Errorf("overdue-after is %s; it must be more than 0", p.OverdueAfter)
	case !(p.OverdueShare > 0 && p.OverdueShare < 1):
		return fmt.Errorf("overdue-share is %v; it must be more than 0 and less than 1", p.OverdueShare)
	}
	return nil
}

// Weight returns the weight of a priority; the default priority is normal.
func (p *Policy) Weight(of job.Priority) float64 {
	switch of {
	case job.PriorityHigh:
		return p.High
	case job.PriorityLow:
		return p.Low
	default:
		return p.Normal
	}
}

// Tenant has the settings of a tenant. The zero value has the defaults.
type Tenant struct {
	Weight      float64      // zero is 1
	Priority    job.Priority // of jobs without their own; the default is normal
	MaxInFlight int          // on this replica; zero is no limit
	Paused      bool         // nothing is claimed
}

// lane is the state of a lane.
type lane struct {
	job.Lane
	// next is at or before the due time of its first unclaimed occurrence; zero if none is known.
	next time.Time
	// Once next has come, oldest is the time since which that occurrence is known to be due.
	oldest time.Time
	// fresh is like next, for occurrences that are not overdue, while the lane is behind.
	fresh time.Time

	place   int     // in the heap of idle lanes; -1 if it is not there
	leaves  []*node // while it is active
	blocked bool    // neither idle nor active, since its tenant has no room
}

// New makes a queue. Tenant returns a tenant's present settings; it is called often.
func New(p Policy, tenant func(name string) Tenant) *Queue {
	return &Queue{
		policy: p, tenant: tenant, tree: newTree(),
		lanes: make(map[job.Lane]*lane), blocked: make(map[string][]*lane), inFlight: make(map[string]int),
	}
}

// Due notes that an occurrence of a lane becomes due at a time. The zero time is ignored.
func (q *Queue) Due(at job.Lane, when time.Time) {
	if when.IsZero() {
		return
	}
	l, known := q.lanes[at]
	if !known {
		l = &lane{Lane: at, place: -1}
		q.lanes[at] = l
	}
	if l.fresh.IsZero() || when.Before(l.fresh) {
		l.fresh = when
		if len(l.leaves) == 1 && l.leaves[0].part == overdue { // it needs a second leaf, now or soon
			q.deactivate(l)
			q.await(l)
		}
	}
	switch {
	case l.next.IsZero():
		l.next, l.oldest = when, when
		q.await(l)
	case when.Before(l.next):
		if !l.oldest.Before(l.next) || when.Before(l.oldest) { // else it is behind, and stays so
			l.oldest = when
		}
		l.next = when
		q.idle.moved(l)
	}
}

// Replace sets the lanes with due times to those of a scan of the whole store; other lanes are forgotten. It applies
// the tenants' settings as [Queue.ApplySettings] does.
func (q *Queue) Replace(found []store.LaneDue) {
	for _, l := range q.lanes {
		q.deactivate(l)
	}
	known := q.lanes
	q.lanes = make(map[job.Lane]*lane, len(found))
	for _, t := range found {
		l := known[t.Lane]
		if l == nil {
			l = &lane{Lane: t.Lane}
		}
		l.next, l.oldest, l.fresh = t.DueAt, t.DueAt, t.DueAt
		q.lanes[t.Lane] = l
	}
	q.ApplySettings()
}

// ApplySettings applies the tenants' present settings, also to active lanes. It forgets lanes without a due time.
func (q *Queue) ApplySettings() {
	q.idle, q.blocked = q.idle[:0], make(map[string][]*lane)
	for _, l := range q.lanes {
		q.deactivate(l)
		if l.place, l.blocked = -1, false; l.next.IsZero() {
			delete(q.lanes, l.Lane)
			continue
		}
		l.place = len(q.idle)
		q.idle = append(q.idle, l)
	}
	heap.Init(&q.idle)
	q.tree.forget(len(q.lanes))
}

// Tenants returns the tenants of the known lanes.
func (q *Queue) Tenants() map[string]bool {
	all := make(map[string]bool, len(q.lanes))
	for l := range q.lanes {
		all[l.Tenant] = true
	}
	return all
}

// await puts an inactive lane among the idle ones until its next due time.
func (q *Queue) await(l *lane) {
	if !l.blocked && l.place < 0 && !l.next.IsZero() {
		heap.Push(&q.idle, l)
	}
}

// deactivate takes a lane's leaves out of the competition for slots.
func (q *Queue) deactivate(l *lane) {
	if len(l.leaves) == 0 {
		return
	}
	for _, leaf := range l.leaves {
		leaf.leave()
	}
	q.active -= len(l.leaves)
	l.leaves = l.leaves[:0]
}

// block keeps a lane until its tenant has room.
func (q *Queue) block(l *lane) {
	q.deactivate(l)
	q.idle.remove(l)
	l.blocked = true
	q.blocked[l.Tenant] = append(q.blocked[l.Tenant], l)
}

// Next returns the earliest time at which there may be an occurrence to claim; zero if none is known.
func (q *Queue) Next() time.Time {
	for q.active > 0 {
		l := q.tree.root.least().lane
		if q.room(l.Tenant) > 0 {
			return l.next
		}
		q.block(l)
	}
	for len(q.idle) > 0 {
		l := q.idle[0]
		if q.room(l.Tenant) > 0 {
			return l.next
		}
		q.block(l)
	}
	return time.Time{}
}

// Room reports whether a tenant may have slots now: it is not paused, nor at its limit.
func (q *Queue) Room(tenant string) bool { return q.room(tenant) > 0 }

// room returns the number of slots that a tenant may still have.
func (q *Queue) room(name string) int {
	switch t := q.tenant(name); {
	case t.Paused:
		return 0
	case t.MaxInFlight > 0:
		return max(0, t.MaxInFlight-q.inFlight[name])
	default:
		return math.MaxInt
	}
}

// Allotment is the division of the slots of one claim.
type Allotment struct {
	Quotas []store.Quota
	leaves []*node // one for each quota
}

// Allot divides slots between the lanes with occurrences due by a time. It gives no more than the slots in all, and
// none if nothing is due.
func (q *Queue) Allot(due time.Time, slots int) (a Allotment) {
	for len(q.idle) > 0 && !q.idle[0].next.After(due) {
		q.activate(q.idle[0], due)
	}
	const quanta = 64 // bounds how finely one claim divides slots; later claims compensate
	quantum := max(1, slots/quanta)
	granted := make(map[string]int) // to tenants with limits
	for slots > 0 && q.active > 0 {
		leaf := q.tree.root.least()
		l := leaf.lane
		if leaf.part == whole && q.behind(l, due) { // the lane has fallen behind meanwhile
			q.activate(l, due)
			continue
		}
		n := min(quantum, slots)
		if q.active == 1 {
			n = slots
		}
		if room := q.room(l.Tenant); room < math.MaxInt {
			if n = min(n, room-granted[l.Tenant]); n <= 0 {
				q.block(l)
				continue
			}
			granted[l.Tenant] += n
		}
		if leaf.quota < 0 {
			leaf.quota = len(a.Quotas)
			a.Quotas, a.leaves = append(a.Quotas, leaf.newQuota(due.Add(-q.policy.OverdueAfter))), append(a.leaves, leaf)
		}
		leaf.serve(n)
		a.Quotas[leaf.quota].Limit += n
		slots -= n
	}
	for _, leaf := range a.leaves {
		leaf.quota = -1
	}
	return a
}

// behind reports whether a lane has an overdue occurrence.
func (q *Queue) behind(l *lane, due time.Time) bool {
	return l.oldest.Before(due.Add(-q.policy.OverdueAfter))
}

// activate lets a lane with due occurrences compete for slots: by one leaf for all of them or, if the lane is behind,
// by one for overdue occurrences and one for the others.
func (q *Queue) activate(l *lane, due time.Time) {
	q.idle.remove(l)
	q.deactivate(l)
	t := q.tenant(l.Tenant)
	priority := cmp.Or(l.Priority, t.Priority, job.PriorityNormal)
	at := q.tree.child(&q.tree.root, string(priority), q.policy.Weight(priority))
	at = q.tree.child(at, l.Tenant, cmp.Or(t.Weight, 1))
	at = q.tree.child(at, l.Priority.Code(), 1)
	if q.behind(l, due) {
		past := q.tree.child(at, "overdue", q.policy.OverdueShare)
		past.part = overdue
		l.leaves = append(l.leaves, past)
		if !l.fresh.IsZero() && !l.fresh.After(due) {
			now := q.tree.child(at, "fresh", 1-q.policy.OverdueShare)
			now.part = fresh
			l.leaves = append(l.leaves, now)
		}
	} else {
		l.leaves = append(l.leaves, at)
	}
	for _, leaf := range l.leaves {
		leaf.lane = l
		leaf.join(l.next)
	}
	q.active += len(l.leaves)
}

// Failed notes that the claim by an allotment failed.
func (q *Queue) Failed(a Allotment) {
	for i, leaf := range a.leaves {
		leaf.serve(-a.Quotas[i].Limit)
	}
	q.unblock(a)
}

// Claimed notes the result of a claim by an allotment, which claimed occurrences due up to a time.
func (q *Queue) Claimed(a Allotment, claim store.Claim, due time.Time) {
	first := 0
	for i, quota := range a.Quotas {
		left := claim.Quotas[i]
		q.inFlight[quota.Lane.Tenant] += left.Found
		a.leaves[i].serve(left.Found - quota.Limit)
		a.leaves[i].lane.claimed(quota, left, due, newest(claim.Occurrences[first:first+left.Found]))
		first += left.Found
	}
	for _, leaf := range a.leaves {
		l := leaf.lane
		if len(l.leaves) == 0 { // it is blocked, or its other leaf was handled first
			continue
		}
		q.deactivate(l)
		if q.await(l); l.place >= 0 && !l.next.After(due) {
			q.activate(l, due)
		}
	}
	q.unblock(a)
}

// unblock checks the tenants again that would have reached their limits with all slots of an allotment.
func (q *Queue) unblock(a Allotment) {
	for _, quota := range a.Quotas {
		q.Settled(quota.Lane.Tenant, 0)
	}
}

// newest returns the last time at which one of the claimed occurrences was due at first; zero if there are none. The
// oldest due are claimed first, so the other occurrences have not been due for longer.
func newest(claimed []store.Claimed) (at time.Time) {
	for i := range claimed {
		if due := claimed[i].Options.FiresAt(&claimed[i].Occurrence); due.After(at) {
			at = due
		}
	}
	return at
}

// claimed notes the result of a claim by a quota: the newest claimed instant, and the occurrences that are left.
func (l *lane) claimed(q store.Quota, left store.QuotaLeft, due, newest time.Time) {
	next := left.Next
	if left.More {
		next = due
	}
	switch {
	case !q.Until.IsZero() && left.More: // still behind
		l.next = due
	case !q.Until.IsZero(): // no longer behind; fresh is its next due time
		l.next, l.oldest = l.fresh, due
	case !q.After.IsZero():
		l.fresh = next
		if l.oldest.After(q.After) { // all overdue ones have been claimed
			l.next = next
		}
	default:
		l.next, l.fresh = next, next
		switch {
		case !left.More:
			l.oldest = next
		case newest.After(due): // it was claimed early
			l.oldest = due
		case newest.After(l.oldest):
			l.oldest = newest
		}
	}
}

// Settled notes that n claims of a tenant have ended.
func (q *Queue) Settled(tenant string, n int) {
	if q.inFlight[tenant] -= n; q.inFlight[tenant] <= 0 {
		delete(q.inFlight, tenant)
	}
	if lanes := q.blocked[tenant]; len(lanes) > 0 && q.room(tenant) > 0 {
		delete(q.blocked, tenant)
		for _, l := range lanes {
			l.blocked = false
			q.await(l)
		}
	}
}

// idleLanes is a heap of lanes, with the earliest due time on top.
type idleLanes []*lane

func (a idleLanes) Len() int           { return len(a) }
func (a idleLanes) Less(i, j int) bool { return a[i].next.Before(a[j].next) }
func (a idleLanes) Swap(i, j int) {
	a[i], a[j] = a[j], a[i]
	a[i].place, a[j].place = i, j
}

// Push implements [heap.Interface].
func (a *idleLanes) Push(x any) {
	l := x.(*lane)
	l.place = len(*a)
	*a = append(*a, l)
}

// Pop implements [heap.Interface].
func (a *idleLanes) Pop() any {
	last := len(*a) - 1
	l := (*a)[last]
	(*a)[last], *a = nil, (*a)[:last]
	l.place = -1
	return l
}

func (a *idleLanes) remove(l *lane) {
	if l.place >= 0 {
		heap.Remove(a, l.place)
	}
}

func (a *idleLanes) moved(l *lane) {
	if l.place >= 0 {
		heap.Fix(a, l.place)
	}
}
