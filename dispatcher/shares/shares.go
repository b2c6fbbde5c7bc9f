// Package shares decides how much a replica claims of which lanes.
//
// While there are slots for all that is due, each lane gets what it has. While there are not, the priorities share them by
// their weights, the tenants of one priority by theirs, whatever the backlogs, and a lane that has fallen behind shares its own
// between what is overdue and what is due now.
//
// It is start-time fair queueing (Goyal, Vin, Cheng 1996) on each level: whoever has had the least for its weight is served
// next, and one that had nothing to do comes back as if it had had as much as the others, without a claim to what it left to
// them. The package does no I/O and reads no clock.
package shares

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Shares are those of one replica. One goroutine uses them.
type Shares struct {
	policy   Policy
	tenant   func(name string) Tenant
	lanes    map[job.Lane]*lane
	inFlight map[string]int // by tenant: claimed, and not settled yet
	tree     tree
}

// Policy is what shares are decided by.
type Policy struct {
	// High, Normal and Low are the weights of the priorities, each more than zero.
	High, Normal, Low float64
	// OverdueAfter is how long something must have been due to be overdue, more than zero.
	OverdueAfter time.Duration
	// OverdueShare is how much of a lane's slots goes to what is overdue while something else of it is due: more than zero and
	// less than one.
	OverdueShare float64
}

// Validate checks the policy. The error names the option at fault and what would be right.
func (p *Policy) Validate() error {
	switch {
	case !(p.High > 0 && p.Normal > 0 && p.Low > 0):
		return fmt.Errorf("priority-shares are %v, %v and %v; each must be more than 0", p.High, p.Normal, p.Low)
	case p.OverdueAfter <= 0:
		return fmt.Errorf("overdue-after is %s; it must be more than 0", p.OverdueAfter)
	case !(p.OverdueShare > 0 && p.OverdueShare < 1):
		return fmt.Errorf("overdue-share is %v; it must be more than 0 and less than 1", p.OverdueShare)
	}
	return nil
}

func (p *Policy) weight(of job.Priority) float64 {
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
}

// New makes them. Tenant answers how a tenant is treated now; it is called often.
func New(p Policy, tenant func(name string) Tenant) *Shares {
	return &Shares{policy: p, tenant: tenant, lanes: make(map[job.Lane]*lane), inFlight: make(map[string]int), tree: newTree()}
}

// Due notes that something of a lane becomes due at a time. Zero is no time.
func (s *Shares) Due(at job.Lane, when time.Time) {
	if when.IsZero() {
		return
	}
	l, known := s.lanes[at]
	if !known {
		l = &lane{Lane: at}
		s.lanes[at] = l
	}
	if l.next.IsZero() || when.Before(l.next) {
		l.next, l.oldest = when, when
	}
	if l.fresh.IsZero() || when.Before(l.fresh) {
		l.fresh = when
	}
}

// Refresh notes what the store has told of all its lanes.
func (s *Shares) Refresh(told []store.LaneDue) {
	s.lanes = make(map[job.Lane]*lane, len(told))
	for _, t := range told {
		s.lanes[t.Lane] = &lane{Lane: t.Lane, next: t.DueAt, oldest: t.DueAt, fresh: t.DueAt}
	}
	s.tree.forget(len(s.lanes))
}

// Next is when there may be something to claim; zero if that is not known.
func (s *Shares) Next() (at time.Time) {
	for _, l := range s.lanes {
		if !l.next.IsZero() && (at.IsZero() || l.next.Before(at)) && s.room(l.Tenant) > 0 {
			at = l.next
		}
	}
	return at
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

// Allot shares slots out among the lanes that have something due at a time: no more than the slots in all, and none if nothing
// is due.
func (s *Shares) Allot(due time.Time, slots int) (a Allotment) {
	leaves, room := s.grow(due)
	quantum := slots // of one leaf, all at once
	if len(leaves) > 1 {
		const quanta = 64 // bounds how finely slots are shared out by one claim; the next ones make up for it
		quantum = max(1, slots/quanta)
	}
	for slots > 0 && s.tree.root.active() {
		leaf := s.tree.root.least()
		of := leaf.quota.Lane.Tenant
		n := min(quantum, slots, room[of])
		if n == 0 {
			leaf.close()
			continue
		}
		leaf.serve(n)
		leaf.quota.Limit += n
		slots -= n
		room[of] -= n
	}
	for _, leaf := range leaves {
		if leaf.quota.Limit > 0 {
			a.Quotas, a.leaves = append(a.Quotas, leaf.quota), append(a.leaves, leaf)
		}
	}
	return a
}

// grow makes the tree of the lanes that have something due and whose tenants have room. The lane that has waited longest comes
// first, which decides between those that have had as much as each other.
func (s *Shares) grow(due time.Time) (leaves []*node, room map[string]int) {
	var waiting []*lane
	room = make(map[string]int)
	for _, l := range s.lanes {
		if l.next.IsZero() || l.next.After(due) {
			continue
		}
		n, asked := room[l.Tenant]
		if !asked {
			n = s.room(l.Tenant)
			room[l.Tenant] = n
		}
		if n > 0 {
			waiting = append(waiting, l)
		}
	}
	slices.SortFunc(waiting, func(a, b *lane) int {
		return cmp.Or(a.next.Compare(b.next), job.CompareLanes(a.Lane, b.Lane))
	})
	s.tree.begin()
	for _, l := range waiting {
		leaves = append(leaves, s.plant(l, due, s.tenant(l.Tenant))...)
	}
	return leaves, room
}

// plant makes the leaves of a lane: one for all of it or, if it is behind, one for what is overdue and one for the rest.
func (s *Shares) plant(l *lane, due time.Time, t Tenant) []*node {
	priority := cmp.Or(l.Priority, t.Priority, job.PriorityNormal)
	at := s.tree.child(&s.tree.root, string(priority), s.policy.weight(priority))
	at = s.tree.child(at, l.Tenant, cmp.Or(t.Weight, 1))
	at = s.tree.child(at, l.Priority.Code(), 1)
	overdue := due.Add(-s.policy.OverdueAfter)
	if !l.oldest.Before(overdue) {
		at.quota = store.Quota{Lane: l.Lane}
		return []*node{at}
	}
	past := s.tree.child(at, "overdue", s.policy.OverdueShare)
	past.quota = store.Quota{Lane: l.Lane, Until: overdue}
	if l.fresh.IsZero() || l.fresh.After(due) {
		return []*node{past}
	}
	now := s.tree.child(at, "fresh", 1-s.policy.OverdueShare)
	now.quota = store.Quota{Lane: l.Lane, After: overdue}
	return []*node{past, now}
}

// Failed notes that nothing was claimed by an allotment.
func (a Allotment) Failed() {
	for i, leaf := range a.leaves {
		leaf.serve(-a.Quotas[i].Limit)
	}
}

// Claimed notes what a claim by an allotment has found, and left. Due is up to when it has claimed what was due.
func (s *Shares) Claimed(a Allotment, claim store.Claim, due time.Time) {
	found := claim.Occurrences
	for i, q := range a.Quotas {
		left := claim.Quotas[i]
		s.inFlight[q.Lane.Tenant] += left.Found
		a.leaves[i].serve(left.Found - q.Limit)
		l := s.lanes[q.Lane]
		mine := found[:left.Found]
		found = found[left.Found:]
		next := left.Next
		if left.More {
			next = due
		}
		switch {
		case !q.Until.IsZero() && left.More: // still behind, by about as much as the last that was found
			l.next, l.oldest = due, latest(mine, l.oldest)
		case !q.Until.IsZero(): // no more behind, and fresh tells when to go on
			l.next, l.oldest = l.fresh, q.Until.Add(time.Millisecond)
		case !q.After.IsZero():
			l.fresh = next
			if l.oldest.After(q.After) { // what was overdue has been claimed
				l.next = next
			}
		default:
			l.next, l.fresh, l.oldest = next, next, next
			if left.More {
				l.oldest = latest(mine, due)
			}
		}
	}
}

// latest is the instant of the last of what was found: what is left is mostly no older.
func latest(found []store.Claimed, otherwise time.Time) time.Time {
	if len(found) == 0 {
		return otherwise
	}
	return found[len(found)-1].Timestamp
}

// Settled notes that claims of a tenant have ended.
func (s *Shares) Settled(tenant string, n int) {
	if s.inFlight[tenant] -= n; s.inFlight[tenant] <= 0 {
		delete(s.inFlight, tenant)
	}
}
