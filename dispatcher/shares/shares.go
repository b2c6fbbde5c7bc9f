// Package shares decides how much a replica claims of which lanes.
//
// While there are slots for all that is due, each lane gets what it has. While there are not, the priorities share them
// by their weights, the tenants of one priority by theirs, whatever the backlogs, and a lane that has fallen behind
// shares its own between what is overdue and what is due now.
//
// It is start-time fair queueing (Goyal, Vin, Cheng 1996) on each level: whoever has had the least for its weight is
// served next, and one that had nothing to do comes back as if it had had as much as the others, without a claim to
// what it left to them. The package does no I/O and reads no clock.
package shares

import (
	"cmp"
	"container/heap"
	"fmt"
	"math"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Shares are those of one replica. One goroutine uses them. What they cost hardly depends on how many lanes there are,
// whether anything is due there or not.
type Shares struct {
	policy   Policy
	tenant   func(name string) Tenant
	lanes    map[job.Lane]*lane
	asleep   asleep             // the lanes of which nothing is known to be due
	awake    int                // how many others share what there is
	blocked  map[string][]*lane // by tenant: those that would be one or the other, if the tenant had room
	inFlight map[string]int     // by tenant: claimed, and not settled yet
	tree     tree
}

// Policy is what shares are decided by.
type Policy struct {
	// High, Normal and Low are the weights of the priorities, each more than zero.
	High, Normal, Low float64
	// OverdueAfter is how long something must have been due to be overdue, more than zero.
	OverdueAfter time.Duration
	// OverdueShare is how much of a lane's slots goes to what is overdue while something else of it is due: more than
	// zero and less than one.
	OverdueShare float64
}

// Validate checks the policy. The error names the option at fault and what would be right.
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

// Weight is that of a priority; the default is normal.
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

// Tenant is how a tenant's lanes are treated. The zero value is that of a tenant without settings.
type Tenant struct {
	Weight      float64      // zero is 1
	Priority    job.Priority // of jobs that have none of their own; the default is normal
	MaxInFlight int          // of this replica; zero is no limit
	Paused      bool         // nothing is claimed
}

// lane is what is known of a lane.
type lane struct {
	job.Lane
	// next is no later than when something of it becomes due that nobody holds; zero if nothing is known to.
	next time.Time
	// oldest is since when what is due first has been due, as far as is known, once next has come.
	oldest time.Time
	// fresh is as next, of what is not overdue, while the lane is behind.
	fresh time.Time

	place   int     // among those asleep; -1 if it is not one of them
	leaves  []*node // while it is awake
	blocked bool    // neither the one nor the other, since its tenant has no room
}

// New makes them. Tenant answers how a tenant is treated now; it is called often.
func New(p Policy, tenant func(name string) Tenant) *Shares {
	return &Shares{
		policy: p, tenant: tenant, tree: newTree(),
		lanes: make(map[job.Lane]*lane), blocked: make(map[string][]*lane), inFlight: make(map[string]int),
	}
}

// Due notes that something of a lane becomes due at a time. Zero is no time.
func (s *Shares) Due(at job.Lane, when time.Time) {
	if when.IsZero() {
		return
	}
	l, known := s.lanes[at]
	if !known {
		l = &lane{Lane: at, place: -1}
		s.lanes[at] = l
	}
	if l.fresh.IsZero() || when.Before(l.fresh) {
		l.fresh = when
		if len(l.leaves) == 1 && l.leaves[0].part == overdue { // it has two now, or soon
			s.rest(l)
			s.sleep(l)
		}
	}
	switch {
	case l.next.IsZero():
		l.next, l.oldest = when, when
		s.sleep(l)
	case when.Before(l.next):
		if !l.oldest.Before(l.next) || when.Before(l.oldest) { // else it is behind, and stays so
			l.oldest = when
		}
		l.next = when
		s.asleep.moved(l)
	}
}

// Refresh notes what the store has told of all lanes in which something becomes due: of others, nothing is known any
// more. How tenants are treated is heeded from then on, see [Shares.Renew].
func (s *Shares) Refresh(told []store.LaneDue) {
	for _, l := range s.lanes {
		s.rest(l)
	}
	known := s.lanes
	s.lanes = make(map[job.Lane]*lane, len(told))
	for _, t := range told {
		l := known[t.Lane]
		if l == nil {
			l = &lane{Lane: t.Lane}
		}
		l.next, l.oldest, l.fresh = t.DueAt, t.DueAt, t.DueAt
		s.lanes[t.Lane] = l
	}
	s.Renew()
}

// Renew heeds how tenants are treated from then on, of those too that are being served. It forgets lanes of which
// nothing is known to become due.
func (s *Shares) Renew() {
	s.asleep, s.blocked = s.asleep[:0], make(map[string][]*lane)
	for _, l := range s.lanes {
		s.rest(l)
		if l.place, l.blocked = -1, false; l.next.IsZero() {
			delete(s.lanes, l.Lane)
			continue
		}
		l.place = len(s.asleep)
		s.asleep = append(s.asleep, l)
	}
	heap.Init(&s.asleep)
	s.tree.forget(len(s.lanes))
}

// Tenants are those of which a lane is known in which something becomes due.
func (s *Shares) Tenants() map[string]bool {
	all := make(map[string]bool, len(s.lanes))
	for l := range s.lanes {
		all[l.Tenant] = true
	}
	return all
}

// sleep puts a lane, which is not awake, to sleep until something becomes due.
func (s *Shares) sleep(l *lane) {
	if !l.blocked && l.place < 0 && !l.next.IsZero() {
		heap.Push(&s.asleep, l)
	}
}

// rest ends a lane's share.
func (s *Shares) rest(l *lane) {
	if len(l.leaves) == 0 {
		return
	}
	for _, leaf := range l.leaves {
		leaf.leave()
	}
	s.awake -= len(l.leaves)
	l.leaves = l.leaves[:0]
}

// block keeps a lane for when its tenant has room.
func (s *Shares) block(l *lane) {
	s.rest(l)
	s.asleep.remove(l)
	l.blocked = true
	s.blocked[l.Tenant] = append(s.blocked[l.Tenant], l)
}

// Next is when there may be something to claim; zero if that is not known.
func (s *Shares) Next() time.Time {
	for s.awake > 0 {
		l := s.tree.root.least().lane
		if s.room(l.Tenant) > 0 {
			return l.next
		}
		s.block(l)
	}
	for len(s.asleep) > 0 {
		l := s.asleep[0]
		if s.room(l.Tenant) > 0 {
			return l.next
		}
		s.block(l)
	}
	return time.Time{}
}

// room is how many more slots a tenant may take.
func (s *Shares) room(name string) int {
	switch t := s.tenant(name); {
	case t.Paused:
		return 0
	case t.MaxInFlight > 0:
		return max(0, t.MaxInFlight-s.inFlight[name])
	default:
		return math.MaxInt
	}
}

// Allotment is what to claim.
type Allotment struct {
	Quotas []store.Quota
	leaves []*node // one for each quota
}

// Allot shares slots out among the lanes that have something due at a time: no more than the slots in all, and none if
// nothing is due.
func (s *Shares) Allot(due time.Time, slots int) (a Allotment) {
	for len(s.asleep) > 0 && !s.asleep[0].next.After(due) {
		s.plant(s.asleep[0], due)
	}
	const quanta = 64 // bounds how finely slots are shared out by one claim; the next ones make up for it
	quantum := max(1, slots/quanta)
	granted := make(map[string]int) // to tenants that have limits
	for slots > 0 && s.awake > 0 {
		leaf := s.tree.root.least()
		l := leaf.lane
		if leaf.part == whole && s.behind(l, due) { // it has become so while it waited
			s.plant(l, due)
			continue
		}
		n := min(quantum, slots)
		if s.awake == 1 {
			n = slots
		}
		if room := s.room(l.Tenant); room < math.MaxInt {
			if n = min(n, room-granted[l.Tenant]); n <= 0 {
				s.block(l)
				continue
			}
			granted[l.Tenant] += n
		}
		if leaf.quota < 0 {
			leaf.quota = len(a.Quotas)
			a.Quotas, a.leaves = append(a.Quotas, leaf.about(due.Add(-s.policy.OverdueAfter))), append(a.leaves, leaf)
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

// behind tells whether something of a lane is overdue.
func (s *Shares) behind(l *lane, due time.Time) bool {
	return l.oldest.Before(due.Add(-s.policy.OverdueAfter))
}

// plant gives a lane that has something due its share: one for all of it or, if it is behind, one for what is overdue
// and one for the rest.
func (s *Shares) plant(l *lane, due time.Time) {
	s.asleep.remove(l)
	s.rest(l)
	t := s.tenant(l.Tenant)
	priority := cmp.Or(l.Priority, t.Priority, job.PriorityNormal)
	at := s.tree.child(&s.tree.root, string(priority), s.policy.Weight(priority))
	at = s.tree.child(at, l.Tenant, cmp.Or(t.Weight, 1))
	at = s.tree.child(at, l.Priority.Code(), 1)
	if s.behind(l, due) {
		past := s.tree.child(at, "overdue", s.policy.OverdueShare)
		past.part = overdue
		l.leaves = append(l.leaves, past)
		if !l.fresh.IsZero() && !l.fresh.After(due) {
			now := s.tree.child(at, "fresh", 1-s.policy.OverdueShare)
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
	s.awake += len(l.leaves)
}

// Failed notes that nothing was claimed by an allotment.
func (s *Shares) Failed(a Allotment) {
	for i, leaf := range a.leaves {
		leaf.serve(-a.Quotas[i].Limit)
	}
	s.unblock(a)
}

// Claimed notes what a claim by an allotment has found, and left. Due is up to when it has claimed what was due.
func (s *Shares) Claimed(a Allotment, claim store.Claim, due time.Time) {
	first := 0
	for i, q := range a.Quotas {
		left := claim.Quotas[i]
		s.inFlight[q.Lane.Tenant] += left.Found
		a.leaves[i].serve(left.Found - q.Limit)
		a.leaves[i].lane.claimed(q, left, due, newest(claim.Occurrences[first:first+left.Found]))
		first += left.Found
	}
	for _, leaf := range a.leaves {
		l := leaf.lane
		if len(l.leaves) == 0 { // it is blocked, or was the other leaf's too
			continue
		}
		s.rest(l)
		if s.sleep(l); l.place >= 0 && !l.next.After(due) {
			s.plant(l, due)
		}
	}
	s.unblock(a)
}

// unblock looks again at tenants that were at their limits, had they got all that an allotment gave them.
func (s *Shares) unblock(a Allotment) {
	for _, q := range a.Quotas {
		s.Settled(q.Lane.Tenant, 0)
	}
}

// newest is the last of the instants of what was claimed; zero if that is nothing. The longest due come first, and are
// due no sooner than at their instants: so what is left has not been due for longer.
func newest(claimed []store.Claimed) (at time.Time) {
	for i := range claimed {
		if claimed[i].Timestamp.After(at) {
			at = claimed[i].Timestamp
		}
	}
	return at
}

// claimed notes what a claim by a quota has found, up to the newest instant, and left.
func (l *lane) claimed(q store.Quota, left store.QuotaLeft, due, newest time.Time) {
	next := left.Next
	if left.More {
		next = due
	}
	switch {
	case !q.Until.IsZero() && left.More: // still behind
		l.next = due
	case !q.Until.IsZero(): // no more behind, and fresh tells when to go on
		l.next, l.oldest = l.fresh, due
	case !q.After.IsZero():
		l.fresh = next
		if l.oldest.After(q.After) { // what was overdue has been claimed
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

// Settled notes that claims of a tenant have ended.
func (s *Shares) Settled(tenant string, n int) {
	if s.inFlight[tenant] -= n; s.inFlight[tenant] <= 0 {
		delete(s.inFlight, tenant)
	}
	if lanes := s.blocked[tenant]; len(lanes) > 0 && s.room(tenant) > 0 {
		delete(s.blocked, tenant)
		for _, l := range lanes {
			l.blocked = false
			s.sleep(l)
		}
	}
}

// asleep is a heap of lanes, with that on top of which something becomes due first.
type asleep []*lane

func (a asleep) Len() int           { return len(a) }
func (a asleep) Less(i, j int) bool { return a[i].next.Before(a[j].next) }
func (a asleep) Swap(i, j int) {
	a[i], a[j] = a[j], a[i]
	a[i].place, a[j].place = i, j
}

// Push implements [heap.Interface].
func (a *asleep) Push(x any) {
	l := x.(*lane)
	l.place = len(*a)
	*a = append(*a, l)
}

// Pop implements [heap.Interface].
func (a *asleep) Pop() any {
	last := len(*a) - 1
	l := (*a)[last]
	(*a)[last], *a = nil, (*a)[:last]
	l.place = -1
	return l
}

func (a *asleep) remove(l *lane) {
	if l.place >= 0 {
		heap.Remove(a, l.place)
	}
}

func (a *asleep) moved(l *lane) {
	if l.place >= 0 {
		heap.Fix(a, l.place)
	}
}
