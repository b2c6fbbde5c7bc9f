package fairqueue_test

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/dispatcher/fairqueue"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

var policy = fairqueue.Policy{High: 70, Normal: 25, Low: 5, OverdueAfter: 10 * time.Second, OverdueShare: 0.5}

// world is a store with due times only, and one replica's queue of it.
type world struct {
	*testing.T
	*fairqueue.Queue
	now     time.Time
	waiting map[job.Lane][]time.Time // in order
	tenants map[string]fairqueue.Tenant
	claimed map[job.Lane]int
	keep    bool // claims are not settled
}

func newWorld(t *testing.T) *world {
	w := &world{
		T: t, now: start, waiting: map[job.Lane][]time.Time{}, tenants: map[string]fairqueue.Tenant{},
		claimed: map[job.Lane]int{},
	}
	w.Queue = fairqueue.New(policy, func(name string) fairqueue.Tenant { return w.tenants[name] })
	return w
}

// add makes n more occurrences of a lane due at a time.
func (w *world) add(l job.Lane, n int, at time.Time) {
	for range n {
		w.waiting[l] = append(w.waiting[l], at)
	}
	slices.SortStableFunc(w.waiting[l], time.Time.Compare)
	w.Due(l, at)
}

// claim claims with a number of slots, and returns the number of claimed occurrences.
func (w *world) claim(slots int) (taken int) {
	w.Helper()
	a := w.Allot(w.now, slots)
	params, claim := store.ClaimParams{Now: w.now}, store.Claim{}
	of := map[string]int{}
	for _, q := range a.Quotas {
		if q.Limit < 1 {
			w.Fatalf("a quota of %d", q.Limit)
		}
		after, until := params.Range(q)
		all := w.waiting[q.Lane]
		from, to := firstAfter(all, after), firstAfter(all, until)
		to = max(from, min(to, from+q.Limit))
		for _, at := range all[from:to] {
			claim.Occurrences = append(claim.Occurrences, store.Claimed{Occurrence: job.Occurrence{Timestamp: at}})
		}
		left := store.QuotaLeft{Found: to - from, More: to-from == q.Limit}
		if next := firstAfter(all, w.now); next < len(all) {
			left.Next = all[next]
		}
		if from == 0 { // nearly always so, and far cheaper
			w.waiting[q.Lane] = all[to:]
		} else {
			w.waiting[q.Lane] = slices.Delete(all, from, to)
		}
		claim.Quotas = append(claim.Quotas, left)
		w.claimed[q.Lane] += left.Found
		of[q.Lane.Tenant] += left.Found
		taken += left.Found
	}
	if taken > slots {
		w.Fatalf("%d were claimed with %d slots", taken, slots)
	}
	w.Claimed(a, claim, w.now)
	for tenant, n := range of {
		if !w.keep {
			w.Settled(tenant, n)
		}
	}
	return taken
}

// firstAfter returns the index of the first time after another.
func firstAfter(all []time.Time, at time.Time) int {
	return sort.Search(len(all), func(i int) bool { return all[i].After(at) })
}

// fire claims again and again, with a number of slots each time, until n occurrences were claimed or nothing is due.
// Claims may find nothing, but not for ever.
func (w *world) fire(n, slots int) {
	w.Helper()
	for idle := 0; n > 0; {
		taken := w.claim(min(n, slots))
		n -= taken
		if taken > 0 {
			idle = 0
		} else if idle++; idle > 4*len(w.waiting) {
			if next := w.Next(); !next.IsZero() && !next.After(w.now) {
				w.Fatalf("nothing is claimed, though something is due")
			}
			return
		}
	}
}

// share returns a lane's part of all claimed occurrences.
func (w *world) share(l job.Lane) float64 {
	all := 0
	for _, n := range w.claimed {
		all += n
	}
	return float64(w.claimed[l]) / float64(all)
}

func (w *world) expectShare(what string, l job.Lane, want float64) {
	w.Helper()
	if got := w.share(l); math.Abs(got-want) > 0.02 {
		w.Errorf("%s: lane %s has had %.3f of all, want %.3f", what, l, got, want)
	}
}

func tenant(name string) job.Lane { return job.Lane{Tenant: name} }

// slots are numbers of free slots at a claim.
var slots = []int{1, 3, 64, 450, 1000}

func each(t *testing.T, f func(w *world, slots int)) {
	for _, n := range slots {
		t.Run(fmt.Sprint(n), func(t *testing.T) { f(newWorld(t), n) })
	}
}

func TestNothingIsDue(t *testing.T) {
	w := newWorld(t)
	if n := w.claim(10); n != 0 || !w.Next().IsZero() {
		t.Errorf("%d claimed, next at %s", n, w.Next())
	}
	w.add(tenant("a"), 1, start.Add(time.Minute))
	w.add(tenant("b"), 1, start.Add(time.Second))
	if n := w.claim(10); n != 0 || !w.Next().Equal(start.Add(time.Second)) {
		t.Errorf("%d claimed, next at %s", n, w.Next())
	}
	w.now = start.Add(time.Second)
	if n := w.claim(10); n != 1 || !w.Next().Equal(start.Add(time.Minute)) {
		t.Errorf("%d claimed, next at %s", n, w.Next())
	}
}

// While there is no backlog, one claim takes all due occurrences of a lane, and a few claims take those of many lanes.
func TestNoBacklog(t *testing.T) {
	w := newWorld(t)
	w.add(tenant("a"), 1000, start)
	if n := w.claim(1000); n != 1000 {
		t.Errorf("one lane: %d claimed of 1000", n)
	}
	for i := range 30 {
		w.add(job.Lane{Tenant: fmt.Sprint(i), Priority: job.PriorityLow}, 3, start)
	}
	w.add(job.Lane{Tenant: "x", Priority: job.PriorityHigh}, 5, start)
	taken, claims := 0, 0
	for ; taken < 95; claims++ {
		taken += w.claim(256)
	}
	if claims > 3 {
		t.Errorf("many lanes: it took %d claims", claims)
	}
}

// Tenants have equal shares, whatever their backlogs, until they have nothing left.
func TestEqualTenants(t *testing.T) {
	each(t, func(w *world, slots int) {
		const tenants = 100
		for i := range tenants {
			w.add(tenant(fmt.Sprint(i)), 100*(1+i*i/50), start.Add(time.Duration(-i)*time.Millisecond))
		}
		for window := range min(slots, 5) {
			var lasting []job.Lane
			for l, left := range w.waiting {
				if len(left) >= 400 {
					lasting = append(lasting, l)
				}
			}
			if len(lasting) < 2 {
				return
			}
			clear(w.claimed)
			w.fire(200*len(lasting), slots)
			var sum, squares float64
			for _, l := range lasting {
				n := float64(w.claimed[l])
				sum, squares = sum+n, squares+n*n
				if n < 170 || n > 230 {
					w.Errorf("window %d: of 200 each, tenant %s has had %v", window, l, n)
				}
			}
			if jain := sum * sum / (float64(len(lasting)) * squares); jain < 0.95 {
				w.Fatalf("window %d: Jain's index is %.3f", window, jain)
			}
			for l, left := range w.waiting { // a lane that is nearly empty would only disturb the count
				if len(left) < 400 {
					w.claimed[l] -= len(left)
					w.waiting[l] = nil
				}
			}
		}
	})
}

func TestWeights(t *testing.T) {
	each(t, func(w *world, slots int) {
		w.tenants["a"], w.tenants["b"] = fairqueue.Tenant{Weight: 3}, fairqueue.Tenant{Weight: 0.5}
		for _, name := range []string{"a", "b", "c"} {
			w.add(tenant(name), 20000, start)
		}
		w.fire(9000, slots)
		w.expectShare("of weight 3", tenant("a"), 3/4.5)
		w.expectShare("of weight 0.5", tenant("b"), 0.5/4.5)
		w.expectShare("of no weight", tenant("c"), 1/4.5)
	})
}

// However much of high priority is due, the others get their slots, and the slots that one of them does not use.
func TestPriorities(t *testing.T) {
	each(t, func(w *world, slots int) {
		high, normal, low := job.Lane{Tenant: "a", Priority: job.PriorityHigh}, tenant("a"), job.Lane{Tenant: "b", Priority: job.PriorityLow}
		w.add(high, 50000, start)
		w.add(low, 50000, start.Add(time.Second))
		w.now = start.Add(2 * time.Second)
		w.fire(10000, slots)
		w.expectShare("beside low", high, 70.0/75)
		w.expectShare("beside high", low, 5.0/75)
		clear(w.claimed)
		w.add(normal, 50000, w.now)
		w.fire(10000, slots)
		w.expectShare("of three", high, 0.70)
		w.expectShare("of three", normal, 0.25)
		w.expectShare("of three", low, 0.05)
	})
}

// A tenant's own priority applies to its jobs without one. A tenant with jobs in several lanes has no larger part of a
// priority.
func TestTenantsPriority(t *testing.T) {
	each(t, func(w *world, slots int) {
		w.tenants["a"] = fairqueue.Tenant{Priority: job.PriorityHigh}
		explicit := job.Lane{Tenant: "a", Priority: job.PriorityHigh}
		w.add(tenant("a"), 20000, start)
		w.add(explicit, 20000, start)
		w.add(job.Lane{Tenant: "b", Priority: job.PriorityHigh}, 20000, start)
		w.fire(8000, slots)
		w.expectShare("one of two lanes", tenant("a"), 0.25)
		w.expectShare("one of two lanes", explicit, 0.25)
		w.expectShare("one lane", job.Lane{Tenant: "b", Priority: job.PriorityHigh}, 0.5)
	})
}

// A lane that had nothing due has no claim to the slots that it left to others. A new lane gets its slots at once.
func TestComingBack(t *testing.T) {
	each(t, func(w *world, slots int) {
		w.add(tenant("a"), 200000, start)
		w.add(tenant("b"), 10, start)
		w.fire(50000, slots)
		clear(w.claimed)
		w.add(tenant("b"), 20000, start)
		w.add(tenant("c"), 20000, start)
		w.fire(3000, slots)
		for _, name := range []string{"a", "b", "c"} {
			w.expectShare("after a while", tenant(name), 1.0/3)
		}
	})
}

// Occurrences that fall due now are on time while overdue ones are fired, as long as there are slots for both.
func TestOverdue(t *testing.T) {
	w := newWorld(t)
	l := tenant("a")
	w.add(l, 3000, start.Add(-time.Hour))
	w.Replace([]store.LaneDue{{Lane: l, DueAt: start.Add(-time.Hour)}})
	for step := range 200 {
		w.now = start.Add(time.Duration(step) * 100 * time.Millisecond)
		w.add(l, 10, w.now)
		overdue := w.overdue(l)
		w.fire(30, 30)
		if overdue > 0 && w.overdue(l) > overdue-15 {
			t.Fatalf("step %d: %d are overdue, before %d", step, w.overdue(l), overdue)
		}
		if fresh := len(w.waiting[l]) - w.overdue(l); fresh > 0 {
			t.Fatalf("step %d: %d that are due now wait", step, fresh)
		}
		if overdue == 0 {
			return
		}
	}
	t.Errorf("%d are overdue in the end", w.overdue(l))
}

// A lane that is behind stays so when it learns of an occurrence that became due before its last claim.
func TestOverdueHearsOfNow(t *testing.T) {
	for _, slots := range []int{8, 30} {
		w := newWorld(t)
		l := tenant("a")
		w.add(l, 3000, start.Add(-time.Hour))
		w.Replace([]store.LaneDue{{Lane: l, DueAt: start.Add(-time.Hour)}})
		for step := range 100 {
			w.now = start.Add(time.Duration(step) * 10 * time.Millisecond)
			w.add(l, 3, w.now.Add(-time.Duration(step%7)*time.Millisecond*5))
			overdue := w.overdue(l)
			w.fire(slots, slots)
			if overdue > 0 && w.overdue(l) > overdue-slots/2 {
				t.Fatalf("%d slots, step %d: %d are overdue, before %d", slots, step, w.overdue(l), overdue)
			}
			if fresh := len(w.waiting[l]) - w.overdue(l); fresh > 0 {
				t.Fatalf("%d slots, step %d: %d that are due now wait", slots, step, fresh)
			}
		}
	}
}

// Once all overdue occurrences have been claimed, the rest get all slots, even if they have been due for a while.
func TestNoMoreOverdue(t *testing.T) {
	for _, slots := range slots {
		w := newWorld(t)
		l := tenant("a")
		w.add(l, 20, start.Add(-time.Hour))
		w.add(l, 4000, start.Add(-policy.OverdueAfter/2))
		w.Replace([]store.LaneDue{{Lane: l, DueAt: start.Add(-time.Hour)}})
		claims := 0
		for left := 4020; left > 0; claims++ {
			w.now = w.now.Add(5 * time.Millisecond)
			left -= w.claim(slots)
			if claims > 4020/slots+20 {
				t.Fatalf("with %d slots %d are left after %d claims", slots, left, claims)
			}
		}
	}
}

// Slots for which a claim found no occurrence are free again without a settlement.
func TestRoomThatIsLeft(t *testing.T) {
	for name, end := range map[string]func(w *world, a fairqueue.Allotment){
		"nothing is found": func(w *world, a fairqueue.Allotment) {
			w.Claimed(a, store.Claim{Quotas: []store.QuotaLeft{{}}}, w.now)
		},
		"the claim fails": func(w *world, a fairqueue.Allotment) { w.Failed(a) },
	} {
		w := newWorld(t)
		w.tenants["a"] = fairqueue.Tenant{MaxInFlight: 2}
		w.add(tenant("a"), 1, start)
		a := w.Allot(w.now, 10)
		if len(a.Quotas) != 1 || a.Quotas[0].Limit != 2 {
			t.Fatalf("%s: quotas %v", name, a.Quotas)
		}
		end(w, a)
		w.Due(tenant("a"), start)
		if w.Next().IsZero() {
			t.Errorf("%s: what is due then is not noticed", name)
		}
	}
}

// overdue counts a lane's occurrences that are overdue by the policy.
func (w *world) overdue(l job.Lane) (n int) {
	for _, at := range w.waiting[l] {
		if at.Before(w.now.Add(-policy.OverdueAfter)) {
			n++
		}
	}
	return n
}

// If nothing is due now, overdue occurrences get all slots, in the order of their due times.
func TestOnlyOverdue(t *testing.T) {
	each(t, func(w *world, slots int) {
		w.add(tenant("a"), 5000, start.Add(-time.Hour))
		w.add(tenant("a"), 1, start.Add(-time.Minute))
		w.fire(5001, slots)
		if n := w.claim(slots); n != 0 || !w.Next().IsZero() {
			w.Errorf("%d claimed of nothing, next at %s", n, w.Next())
		}
	})
}

func TestTenantIsPaused(t *testing.T) {
	w := newWorld(t)
	w.add(tenant("a"), 10, start)
	w.add(job.Lane{Tenant: "a", Priority: job.PriorityHigh}, 10, start)
	w.tenants["a"] = fairqueue.Tenant{Paused: true}
	if n := w.claim(100); n != 0 || !w.Next().IsZero() {
		t.Errorf("%d claimed of a tenant that is paused, next at %s", n, w.Next())
	}
	delete(w.tenants, "a")
	w.Replace([]store.LaneDue{{Lane: tenant("a"), DueAt: start}, {Lane: job.Lane{Tenant: "a", Priority: job.PriorityHigh}, DueAt: start}})
	if w.Next().IsZero() {
		t.Error("nothing is to be claimed when it goes on")
	}
	w.fire(20, 100)
}

// A tenant has no more slots than its limit, and leaves the rest to others.
func TestMaxInFlight(t *testing.T) {
	each(t, func(w *world, slots int) {
		w.keep = true
		w.tenants["a"] = fairqueue.Tenant{MaxInFlight: 7}
		w.add(tenant("a"), 100, start)
		w.add(job.Lane{Tenant: "a", Priority: job.PriorityHigh}, 100, start)
		w.add(tenant("b"), 1000, start.Add(time.Millisecond))
		w.now = start.Add(time.Second)
		w.fire(1007, slots)
		if n := w.claimed[tenant("a")] + w.claimed[job.Lane{Tenant: "a", Priority: job.PriorityHigh}]; n != 7 {
			w.Errorf("%d of 7 are in flight", n)
		}
		if n := w.claim(slots); n != 0 || !w.Next().IsZero() {
			w.Errorf("%d claimed beyond the limit, next at %s", n, w.Next())
		}
		w.Settled("a", 3)
		if w.Next().IsZero() {
			w.Error("nothing is to be claimed though there is room again")
		}
		w.fire(min(3, slots), slots)
	})
}

// A failed claim costs no lane its share.
func TestFailedClaims(t *testing.T) {
	w := newWorld(t)
	w.add(tenant("a"), 5000, start)
	w.add(tenant("b"), 5000, start)
	for range 100 {
		w.Failed(w.Allot(start, 1)) // of the next lane
	}
	w.fire(1000, 10)
	w.expectShare("after failures", tenant("a"), 0.5)
}

// The lanes of a complete scan replace the known ones; the counts of slots stay.
func TestRefresh(t *testing.T) {
	w := newWorld(t)
	w.add(tenant("gone"), 1, start)
	w.Replace([]store.LaneDue{{Lane: tenant("a"), DueAt: start.Add(time.Hour)}})
	if next := w.Next(); !next.Equal(start.Add(time.Hour)) {
		t.Errorf("next is %s", next)
	}
	if a := w.Allot(start.Add(time.Minute), 10); len(a.Quotas) != 0 {
		t.Errorf("to be claimed: %+v", a.Quotas)
	}
}

// Lanes found page by page stay known; the tenants' present settings apply; lanes without a known due time are
// forgotten.
func TestRenew(t *testing.T) {
	w := newWorld(t)
	w.add(tenant("a"), 10, start)
	w.add(tenant("b"), 1, start.Add(-time.Second))
	w.tenants["a"] = fairqueue.Tenant{Paused: true}
	if n := w.claim(100); n != 1 {
		t.Errorf("%d claimed", n)
	}
	delete(w.tenants, "a")
	w.ApplySettings()
	if n := w.claim(100); n != 10 {
		t.Errorf("%d claimed when the tenant goes on", n)
	}
	w.ApplySettings()
	if all := w.Tenants(); len(all) != 0 {
		t.Errorf("there is nothing due, but known are %v", all)
	}
}

// A lane that falls behind shows it in its claims.
func TestFallsBehind(t *testing.T) {
	w := newWorld(t)
	l := tenant("a")
	for step := range 600 { // twice as much falls due as can be fired
		w.now = start.Add(time.Duration(step) * 100 * time.Millisecond)
		w.add(l, 4, w.now)
		w.fire(2, 2)
	}
	if a := w.Allot(w.now, 2); len(a.Quotas) != 2 || a.Quotas[0].Until.IsZero() == a.Quotas[1].Until.IsZero() {
		t.Errorf("a lane that is behind by far has the quotas %+v", a.Quotas)
	}
}

// The slots that tenants had are remembered as long as they matter, however many other tenants come and go.
func TestFairWhileOthersComeAndGo(t *testing.T) {
	w := newWorld(t)
	w.tenants["a"] = fairqueue.Tenant{Weight: 0.1}
	w.add(tenant("a"), 5000, start)
	w.add(tenant("b"), 5000, start)
	const steps, guests = 400, 60
	for step := range steps {
		for i := range guests {
			w.add(tenant(fmt.Sprint("guest", step, "-", i)), 1, start.Add(time.Second))
		}
		w.now = start.Add(time.Second)
		w.fire(guests+2, 1)
		w.ApplySettings()
	}
	if a, b := w.claimed[tenant("a")], w.claimed[tenant("b")]; a+b > 3*steps || a == 0 || b < 8*a {
		t.Errorf("of weights 0.1 and 1, they have had %d and %d", a, b)
	}
}
