package forecast

import (
	"math"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/dispatcher/destinations"
	"github.com/carillon-scheduler/carillon/dispatcher/fairqueue"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// Capacity is the capacity of all replicas.
type Capacity struct {
	// PerSecond is the number of occurrences that all replicas together fire in a second; more than zero.
	PerSecond float64
	// Replicas is the number of replicas, at least 1. Each keeps the limits of jobs for destinations on its own.
	Replicas int
	// Took is the duration of a callback to a destination; zero if unknown.
	Took func(destination string) time.Duration
	// Destinations has the limits of each destination on one replica.
	Destinations destinations.Policy
	// Limits are the occurrences per second that single destinations take from all replicas together, instead of the
	// limits of their jobs.
	Limits map[string]float64
	// Down are the times in which destinations take nothing.
	Down []Down
	// Policy divides the slots between lanes, as the dispatcher does.
	Policy fairqueue.Policy
	// Tenant returns the settings of a tenant.
	Tenant func(name string) fairqueue.Tenant
}

// Policy is the dispatcher's policy for lanes.
type Policy = fairqueue.Policy

// Tenant has the settings of a tenant that a [Policy] regards.
type Tenant = fairqueue.Tenant

// DestinationPolicy has the limits of destinations on one replica.
type DestinationPolicy = destinations.Policy

// Down is a time in which a destination takes nothing.
type Down struct {
	Destination string
	From, Until time.Time
}

// Firing is the result of a simulation.
type Firing struct {
	// Left has the occurrences that wait at the end of each period.
	Left []int
	// Drained has, for each period, the time from which no occurrence waits; zero if none waits at the period's end, or if
	// some wait until the end of the simulation.
	Drained []time.Time
	// DrainedOf is Drained for each destination that something waits for.
	DrainedOf map[string][]time.Time
}

// slotsAtOnce is the number of slots that the policy divides at once.
const slotsAtOnce = 1000

// mostClaims bounds the claims of one simulation, and so its cost to some seconds. The remaining occurrences then count
// as waiting.
const mostClaims = 200_000

// Simulate fires the counted occurrences. Periods beyond the counted ones have no arrivals; they only show when the
// rest is drained. Each period's arrivals come at its beginning. Before are occurrences that were due before the first
// period.
//
// The slots of each period are divided between lanes by the dispatcher's policy. If its destination takes no more, an
// occurrence is parked, as by the dispatcher: it waits without a slot, and is among the first when the destination
// takes some again. Retries and limits of tenants are left out.
func Simulate(c *Counts, before []Arrivals, with Capacity, beyond int) Firing {
	s := simulation{
		Counts: c, Capacity: with, lanes: make(map[job.Lane]*waiting), destinations: make(map[string]int),
		queue: fairqueue.New(with.Policy, func(name string) fairqueue.Tenant {
			t := with.Tenant(name)
			t.MaxInFlight = 0 // the simulation has no callbacks under way
			return t
		}),
		scratch: make([]store.Claimed, slotsAtOnce),
	}
	s.connect()
	total := len(c.Periods) + beyond
	left := make([]int, total)
	leftOf := make([][]int, len(s.names)) // by destination, by period; nil if nothing waits
	s.arrive(before, c.From.Add(-c.Width))
	for period := range total {
		now := c.From.Add(time.Duration(period) * c.Width)
		if period < len(c.Periods) {
			s.arrive(c.Periods[period], now)
		} else if s.left == 0 {
			break
		}
		s.fire(now)
		left[period] = s.left
		for d, n := range s.leftOf {
			if n > 0 && leftOf[d] == nil {
				leftOf[d] = make([]int, total)
			}
			if leftOf[d] != nil {
				leftOf[d][period] = n
			}
		}
	}
	f := Firing{
		Left: left[:len(c.Periods)], Drained: s.drained(left), DrainedOf: make(map[string][]time.Time),
	}
	for d, of := range leftOf {
		if of != nil {
			f.DrainedOf[s.names[d]] = s.drained(of)
		}
	}
	return f
}

// simulation is the state of a simulation.
type simulation struct {
	*Counts
	Capacity
	queue        *fairqueue.Queue
	lanes        map[job.Lane]*waiting
	limiters     []*limiter // by flow
	all          []*limiter // each once
	destinations map[string]int
	names        []string // of destinations
	left         int
	leftOf       []int   // by destination
	slots        float64 // of this period
	claims       int
	scratch      []store.Claimed
}

// cohort are occurrences of one flow that fell due at one time.
type cohort struct {
	at   time.Time
	flow int
	n    int
}

// waiting are the occurrences of a lane that wait for slots, the oldest first.
type waiting struct {
	cohorts []cohort
}

// limiter is the limit of a destination, or of jobs with the same limits for it.
type limiter struct {
	destination string
	perSecond   float64 // infinite without a limit
	takes       float64 // in this period
	parked      []cohort
}

// connect finds the destination and the limiter of each flow.
func (s *simulation) connect() {
	type limits struct {
		destination string
		own         job.DestinationLimits
	}
	known := make(map[limits]*limiter)
	for i := range s.Flows {
		f := &s.Flows[i]
		if _, ok := s.destinations[f.Destination]; !ok {
			s.destinations[f.Destination] = len(s.names)
			s.names = append(s.names, f.Destination)
		}
		key := limits{f.Destination, f.Limits}
		perSecond, given := s.Limits[f.Destination]
		if given {
			key.own = job.DestinationLimits{}
		}
		l := known[key]
		if l == nil {
			l = &limiter{destination: f.Destination, perSecond: perSecond}
			if !given {
				l.perSecond = s.ownLimit(f)
			}
			known[key] = l
			s.all = append(s.all, l)
		}
		s.limiters = append(s.limiters, l)
	}
	s.leftOf = make([]int, len(s.names))
}

// ownLimit returns the occurrences per second that the limits of a flow's jobs allow on all replicas together.
func (s *simulation) ownLimit(f *Flow) float64 {
	each := math.Inf(1)
	if f.Limits.RatePerSecond > 0 {
		each = f.Limits.RatePerSecond
	}
	if took := s.Took(f.Destination); took > 0 {
		inFlight := s.Destinations.InFlight
		if took > s.Destinations.SlowAfter {
			inFlight = min(inFlight, s.Destinations.SlowInFlight)
		}
		if f.Limits.MaxInFlight > 0 {
			inFlight = min(inFlight, f.Limits.MaxInFlight)
		}
		each = min(each, float64(inFlight)/took.Seconds())
	}
	return each * float64(s.Replicas)
}

// arrive adds occurrences that fall due at a time. Those of paused jobs and tenants are left out.
func (s *simulation) arrive(some []Arrivals, at time.Time) {
	for _, a := range some {
		f := &s.Flows[a.Flow]
		if f.Paused || s.Tenant(f.Tenant).Paused {
			continue
		}
		s.wait(cohort{at, a.Flow, a.N})
		s.left += a.N
		s.leftOf[s.destinations[f.Destination]] += a.N
	}
}

// wait adds a cohort to its lane, in the order of the due times.
func (s *simulation) wait(c cohort) {
	lane := s.Flows[c.flow].Lane
	w := s.lanes[lane]
	if w == nil {
		w = &waiting{}
		s.lanes[lane] = w
	}
	place, _ := slices.BinarySearchFunc(w.cohorts, c, func(a, b cohort) int {
		if a.at.After(b.at) {
			return 1
		}
		return -1 // behind those of the same time
	})
	w.cohorts = slices.Insert(w.cohorts, place, c)
	s.queue.Due(lane, c.at)
}

// fire fires as many occurrences as one period has slots for.
func (s *simulation) fire(now time.Time) {
	s.slots = min(s.slots, 1) + s.PerSecond*s.Width.Seconds() // a part of a slot is kept
	for _, l := range s.all {
		if open := s.open(l.destination, now); open > 0 {
			l.takes = min(l.takes, 1) + l.perSecond*open.Seconds()
		} else {
			l.takes = 0
		}
		if l.takes < 1 {
			continue
		}
		for _, c := range l.parked {
			s.wait(c)
		}
		l.parked = nil
	}
	for s.slots >= 1 && s.claims < mostClaims {
		allotment := s.queue.Allot(now, int(min(s.slots, slotsAtOnce)))
		if len(allotment.Quotas) == 0 {
			return
		}
		s.claims++
		var claim store.Claim
		claim.Occurrences = s.scratch[:0]
		for _, quota := range allotment.Quotas {
			claim.Quotas = append(claim.Quotas, s.claim(&claim, quota))
		}
		s.queue.Claimed(allotment, claim, now)
		for i, quota := range allotment.Quotas {
			s.queue.Settled(quota.Lane.Tenant, claim.Quotas[i].Found)
		}
		s.slots -= float64(len(claim.Occurrences))
	}
}

// open returns the part of the period from now on in which a destination is not down.
func (s *simulation) open(destination string, now time.Time) time.Duration {
	open, end := s.Width, now.Add(s.Width)
	for _, d := range s.Down {
		if d.Destination != destination {
			continue
		}
		from, until := now, end
		if d.From.After(from) {
			from = d.From
		}
		if d.Until.Before(until) {
			until = d.Until
		}
		open -= max(0, until.Sub(from))
	}
	return max(0, open)
}

// claim fires occurrences of one quota, the oldest first, and parks those whose destinations take no more.
func (s *simulation) claim(claim *store.Claim, quota store.Quota) (left store.QuotaLeft) {
	w := s.lanes[quota.Lane]
	kept := w.cohorts[:0]
	var newest time.Time
	for i, c := range w.cohorts {
		if left.Found == quota.Limit {
			kept = append(kept, w.cohorts[i:]...)
			break
		}
		if !has(quota, c.at) {
			kept = append(kept, c)
			continue
		}
		l := s.limiters[c.flow]
		n := min(c.n, quota.Limit-left.Found)
		if float64(n) > l.takes {
			n = int(l.takes)
		}
		if n > 0 {
			l.takes -= float64(n)
			left.Found += n
			newest = c.at
			s.left -= n
			s.leftOf[s.destinations[l.destination]] -= n
		}
		switch c.n -= n; {
		case c.n == 0:
		case l.takes < 1:
			l.parked = append(l.parked, c)
		default:
			kept = append(kept, c)
		}
	}
	w.cohorts = kept
	left.More = slices.ContainsFunc(kept, func(c cohort) bool { return has(quota, c.at) })
	first := len(claim.Occurrences)
	claim.Occurrences = claim.Occurrences[:first+left.Found]
	for i := range claim.Occurrences[first:] {
		claim.Occurrences[first+i].Timestamp = time.Time{}
	}
	if left.Found > 0 {
		claim.Occurrences[len(claim.Occurrences)-1].Timestamp = newest
	}
	return left
}

// has reports whether a quota has occurrences of a due time.
func has(q store.Quota, at time.Time) bool {
	return (q.After.IsZero() || at.After(q.After)) && (q.Until.IsZero() || !at.After(q.Until))
}

// drained returns, for each counted period at whose end occurrences wait, the time from which none wait. Its precision
// is a period: it is the end of one.
func (s *simulation) drained(left []int) []time.Time {
	all := make([]time.Time, len(s.Periods))
	var next time.Time // the end of the first later period that leaves nothing
	for period := len(left) - 1; period >= 0; period-- {
		if left[period] == 0 {
			next = s.From.Add(time.Duration(period+1) * s.Width)
		} else if period < len(all) {
			all[period] = next
		}
	}
	return all
}
