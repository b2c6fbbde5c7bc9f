package destinations_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/dispatcher/destinations"
	"github.com/carillon-scheduler/carillon/job"
)

var policy = destinations.Policy{
	InFlight: 8, SlowInFlight: 4, FirstInFlight: 1, SlowAfter: 250 * time.Millisecond, Patience: 100 * time.Millisecond,
	Failures: 3, Probe: 5 * time.Second, LongestProbe: 30 * time.Second,
}

// field is a set on a virtual clock.
type field struct {
	*testing.T
	*destinations.Set
}

func on(t *testing.T, f func(f field)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(field{t, destinations.New(policy, time.Now)}) })
}

// enter expects a callback to be admitted at once.
func (f field) enter(name string) *destinations.Pass {
	f.Helper()
	before := time.Now()
	pass, err := f.Enter(f.Context(), name, destinations.Limits{})
	if err != nil || !time.Now().Equal(before) {
		f.Fatalf("after %s: %v", time.Since(before), err)
	}
	return pass
}

// refused expects a callback to be deferred at once, and returns its pause.
func (f field) refused(name string, limits destinations.Limits, says string) time.Duration {
	f.Helper()
	before := time.Now()
	_, err := f.Enter(f.Context(), name, limits)
	after, deferred := destinations.IsDeferral(err)
	if !deferred || !strings.Contains(err.Error(), says) || !time.Now().Equal(before) {
		f.Fatalf("after %s: %v, want it refused for %q", time.Since(before), err, says)
	}
	return after
}

// take admits many callbacks, one after the other, each of which takes some time.
func (f field) take(name string, takes time.Duration) {
	f.Helper()
	for range 50 {
		pass := f.enter(name)
		time.Sleep(takes)
		pass.Done(destinations.Well)
	}
}

// fail admits n callbacks that fail.
func (f field) fail(name string, n int) {
	f.Helper()
	for range n {
		f.enter(name).Done(destinations.Failed)
	}
}

// A slow destination has fewer callbacks under way. The others are deferred, and delay no other destination.
func TestSlow(t *testing.T) {
	on(t, func(f field) {
		f.take("slow", 10*time.Second)
		var passes []*destinations.Pass
		for range policy.SlowInFlight {
			passes = append(passes, f.enter("slow"))
		}
		var turns []time.Duration
		for range 4 {
			turns = append(turns, f.refused("slow", destinations.Limits{}, "slow has 4 callbacks under way"))
		}
		if want := []time.Duration{10 * time.Second, 12500 * time.Millisecond, 15 * time.Second, 17500 * time.Millisecond}; !slices.Equal(turns, want) {
			t.Errorf("they are tried again after %s, want %s: a turn for each that ends", turns, want)
		}
		for range 4 {
			f.refused("slow", destinations.Limits{}, "under way")
		}
		for range 16 {
			after := f.refused("slow", destinations.Limits{}, "under way")
			if after < policy.LongestProbe/2 || after > time.Minute { // four are sent each ten seconds
				t.Errorf("with many that wait it is tried again after %s", after)
			}
		}
		if states := f.States(); len(states) != 1 || states[0].Parked != 24 || states[0].InFlight != policy.SlowInFlight {
			t.Errorf("%+v", states)
		}
		time.Sleep(time.Minute + time.Second)
		if states := f.States(); states[0].Parked != 0 {
			t.Errorf("%d are parked that may come again", states[0].Parked)
		}
		f.enter("another").Done(destinations.Well)
		passes[0].Done(destinations.Well)
		f.enter("slow").Done(destinations.Well)
	})
}

// A callback counts as parked until it returns, and for less than a second longer.
func TestParked(t *testing.T) {
	on(t, func(f field) {
		f.take("slow", 10*time.Second)
		for range policy.SlowInFlight {
			f.enter("slow")
		}
		began := time.Now()
		for range 4 {
			f.refused("slow", destinations.Limits{}, "slow has 4 callbacks under way") // until 10, 12.5, 15 and 17.5 s
		}
		for _, c := range []struct {
			millis time.Duration
			parked int
		}{{9900, 4}, {11000, 3}, {12400, 3}, {13500, 2}, {14900, 2}, {16000, 1}, {17400, 1}, {18500, 0}} {
			time.Sleep(time.Until(began.Add(c.millis * time.Millisecond)))
			if states := f.States(); states[0].Parked != c.parked {
				t.Errorf("after %d ms, %d are parked, want %d", c.millis, states[0].Parked, c.parked)
			}
		}
	})
}

// All slow destinations together have no more under way than one fast one, which is not delayed.
func TestManySlow(t *testing.T) {
	on(t, func(f field) {
		f.take("fast", time.Millisecond)
		var passes []*destinations.Pass
		for _, name := range []string{"a", "b", "c"} {
			f.take(name, time.Second)
		}
		for range policy.SlowInFlight {
			passes = append(passes, f.enter("a"), f.enter("b"))
		}
		first := f.enter("c") // nothing else is under way to it
		if after := f.refused("c", destinations.Limits{}, "c is slow, like others, which have 8 callbacks"); after < policy.Probe {
			t.Errorf("it is tried again after %s", after)
		}
		f.refused("new", destinations.Limits{}, "new is slow, like others")
		first.Done(destinations.Well)
		for range policy.InFlight {
			defer f.enter("fast").Done(destinations.Well)
		}
		f.enter("new").Done(destinations.Well)
		passes[0].Done(destinations.Well)
		f.enter("c").Done(destinations.Well)
	})
}

// A destination that has not answered yet does not count as fast. Once it does, it has more callbacks under way. Until
// then, no more wait for it than may be under way.
func TestUnknown(t *testing.T) {
	on(t, func(f field) {
		var passes []*destinations.Pass
		for range policy.SlowInFlight {
			passes = append(passes, f.enter("new"))
		}
		const waiting = 4 // the others that a fast destination could have
		waits := make(chan *destinations.Pass, waiting)
		for range waiting {
			go func() {
				pass, err := f.Enter(f.Context(), "new", destinations.Limits{})
				if err != nil {
					t.Error(err)
				}
				waits <- pass
			}()
		}
		synctest.Wait()
		if len(waits) != 0 {
			t.Fatalf("%d more have begun before anything was answered", len(waits))
		}
		if after := f.refused("new", destinations.Limits{}, "new has 4 callbacks under way"); after > policy.SlowAfter+policy.Patience {
			t.Errorf("it is tried again after %s", after)
		}
		time.Sleep(10 * time.Millisecond)
		passes[0].Done(destinations.Well)
		synctest.Wait()
		if len(waits) != waiting {
			t.Errorf("%d have begun once one was answered", len(waits))
		}
		f.enter("new")
		if states := f.States(); states[0].InFlight != policy.InFlight || states[0].Took != 10*time.Millisecond {
			t.Errorf("%+v", states)
		}
	})
}

// A destination that stops answering counts as slow, however fast it was.
func TestHangs(t *testing.T) {
	on(t, func(f field) {
		f.take("d", time.Millisecond)
		for range policy.SlowInFlight {
			f.enter("d")
		}
		time.Sleep(policy.SlowAfter)
		f.enter("d").Done(destinations.Well) // so it has answered
		time.Sleep(policy.SlowAfter)
		f.enter("d")
		time.Sleep(time.Second)
		f.refused("d", destinations.Limits{}, "d has 5 callbacks under way, and may have 4")
	})
}

// A destination that hangs with all callbacks under way counts as slow, however fast it was when they began.
func TestManyHang(t *testing.T) {
	on(t, func(f field) {
		f.take("fast", time.Millisecond)
		f.take("slow", time.Second)
		for range policy.InFlight {
			f.enter("fast")
		}
		f.enter("slow").Cancel()
		time.Sleep(policy.SlowAfter + time.Millisecond)
		f.enter("slow") // nothing else is under way to it
		f.refused("slow", destinations.Limits{}, "slow is slow, like others")
	})
}

// Callbacks that wait when the circuit opens are not admitted.
func TestWaitingWhenItOpens(t *testing.T) {
	on(t, func(f field) {
		f.take("d", time.Millisecond)
		var passes []*destinations.Pass
		for range policy.InFlight {
			passes = append(passes, f.enter("d"))
		}
		var lock sync.Mutex
		var errs []error
		var group sync.WaitGroup
		for range policy.Failures {
			group.Go(func() {
				_, err := f.Enter(f.Context(), "d", destinations.Limits{})
				lock.Lock()
				defer lock.Unlock()
				errs = append(errs, err)
			})
		}
		synctest.Wait()
		for _, pass := range passes[:policy.Failures] {
			pass.Done(destinations.Failed)
		}
		group.Wait()
		if last := errs[policy.Failures-1]; errs[policy.Failures-2] != nil || last == nil || !strings.Contains(last.Error(), "d has failed 3 times") {
			t.Errorf("they are let in but for %v", errs)
		}
	})
}

// Callbacks wait for a fast destination in turn, and it never exceeds its limit.
func TestQuick(t *testing.T) {
	on(t, func(f field) {
		f.take("quick", time.Millisecond)
		var lock sync.Mutex
		var order []int
		underWay, most := 0, 0
		var group sync.WaitGroup
		for i := range 100 {
			group.Go(func() {
				pass, err := f.Enter(f.Context(), "quick", destinations.Limits{})
				if err != nil {
					t.Errorf("%d: %v", i, err)
					return
				}
				lock.Lock()
				order = append(order, i)
				underWay++
				most = max(most, underWay)
				lock.Unlock()
				time.Sleep(time.Millisecond)
				lock.Lock()
				underWay--
				lock.Unlock()
				pass.Done(destinations.Well)
			})
			synctest.Wait()
		}
		group.Wait()
		turns := func(a, b int) int { return a/policy.InFlight - b/policy.InFlight } // callbacks of one turn enter together
		if most != policy.InFlight || !slices.IsSortedFunc(order, turns) || len(order) != 100 {
			t.Errorf("%d at once, in the order %v", most, order)
		}
	})
}

// A job's own limit applies to it, and delays no other job.
func TestLimitsOfJobs(t *testing.T) {
	on(t, func(f field) {
		f.take("d", time.Second)
		one := f.enter("d")
		if after := f.refused("d", destinations.Limits{InFlight: 1}, "d has 1 callbacks under way"); after != time.Second {
			t.Errorf("the next is tried again after %s, when each takes a second", after)
		}
		two := f.enter("d")
		one.Done(destinations.Well)
		two.Done(destinations.Well)
		pass, err := f.Enter(f.Context(), "d", destinations.Limits{InFlight: 100})
		if err != nil {
			t.Fatal(err)
		}
		pass.Done(destinations.Well)
	})
}

// A waiting callback is admitted, or ends with its context, or is deferred when its patience ends.
func TestWaitingEnds(t *testing.T) {
	on(t, func(f field) {
		f.take("d", time.Millisecond)
		for range policy.InFlight {
			f.enter("d") // they take much longer than expected
		}
		start := time.Now()
		_, err := f.Enter(f.Context(), "d", destinations.Limits{})
		if _, deferred := destinations.IsDeferral(err); !deferred || time.Since(start) != policy.Patience {
			t.Errorf("after %s: %v", time.Since(start), err)
		}
		ctx, cancel := context.WithTimeout(f.Context(), 10*time.Millisecond)
		defer cancel()
		start = time.Now()
		if _, err := f.Enter(ctx, "d", destinations.Limits{}); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 10*time.Millisecond {
			t.Errorf("after %s: %v", time.Since(start), err)
		}
		if states := f.States(); len(states) != 1 || states[0].InFlight != policy.InFlight || states[0].Parked != 1 {
			t.Errorf("%+v", states)
		}
	})
}

func TestRate(t *testing.T) {
	on(t, func(f field) {
		limits := destinations.Limits{Rate: 50}
		begun := 0
		start := time.Now()
		for time.Since(start) < 10*time.Second {
			pass, err := f.Enter(f.Context(), "d", limits)
			if err == nil {
				begun++
				pass.Done(destinations.Well)
			}
			time.Sleep(time.Millisecond)
		}
		if begun < 500 || begun > 511 {
			t.Errorf("%d have begun in ten seconds, at 50 a second", begun)
		}
		for range 50 / 10 { // the rest of a tenth of a second
			_, _ = f.Enter(f.Context(), "d", limits)
		}
		if after := f.refused("d", limits, "d is at its rate of 50/s"); after < policy.Patience {
			t.Errorf("it is tried again after %s", after)
		}
		f.enter("another").Done(destinations.Well)
		f.enter("d").Done(destinations.Well) // of a job without a rate
	})
}

// The circuit opens after failures in a row, admits one callback at a time, ever more rarely, and closes with the first
// success.
func TestCircuit(t *testing.T) {
	on(t, func(f field) {
		f.fail("d", policy.Failures-1)
		f.enter("d").Done(destinations.Well)
		f.fail("d", policy.Failures)
		if states := f.States(); states[0].Open.IsZero() || states[0].Failures != policy.Failures {
			t.Fatalf("%+v", states)
		}
		start := time.Now()
		var probes []string
		for len(probes) < 5 {
			pass, err := f.Enter(f.Context(), "d", destinations.Limits{})
			if err == nil {
				probes = append(probes, fmt.Sprint(time.Since(start)))
				f.refused("d", destinations.Limits{}, "d has failed")
				pass.Done(destinations.Failed)
			} else if after, deferred := destinations.IsDeferral(err); !deferred || after < policy.Probe {
				t.Fatalf("%v, after %s", err, after)
			}
			time.Sleep(time.Second)
		}
		if want := []string{"5s", "15s", "35s", "1m5s", "1m35s"}; !slices.Equal(probes, want) {
			t.Errorf("probes after %v, want %v", probes, want)
		}
		time.Sleep(policy.LongestProbe)
		probe := f.enter("d")
		f.refused("d", destinations.Limits{}, "d has failed")
		probe.Done(destinations.Well)
		for range policy.InFlight {
			defer f.enter("d").Done(destinations.Well)
		}
	})
}

// A callback that was not sent after all has no verdict, and makes room for another.
func TestCancel(t *testing.T) {
	on(t, func(f field) {
		for range 2 * policy.InFlight {
			f.enter("d").Cancel()
		}
		if states := f.States(); states[0].InFlight != 0 || states[0].Took != 0 {
			t.Errorf("%+v", states)
		}
		f.fail("d", policy.Failures)
		time.Sleep(policy.Probe)
		f.enter("d").Cancel()
		if states := f.States(); states[0].Open.IsZero() {
			t.Error("a probe that was not sent closes the circuit")
		}
		probe := f.enter("d")
		f.refused("d", destinations.Limits{}, "d has failed")
		probe.Done(destinations.Well)
	})
}

// Callbacks that were under way when the circuit opened neither open it again nor delay the next probe.
func TestLateFailures(t *testing.T) {
	on(t, func(f field) {
		under := f.enter("d")
		f.fail("d", policy.Failures)
		time.Sleep(policy.Probe - time.Second)
		under.Done(destinations.Failed)
		time.Sleep(time.Second)
		f.enter("d").Done(destinations.Well)
		f.enter("d").Done(destinations.Well)
	})
}

func TestForget(t *testing.T) {
	on(t, func(f field) {
		f.enter("idle").Done(destinations.Well)
		f.enter("busy")
		f.fail("open", policy.Failures)
		time.Sleep(time.Minute)
		f.enter("late").Done(destinations.Well)
		f.Forget(time.Now().Add(-30 * time.Second))
		var names []string
		for _, s := range f.States() {
			names = append(names, s.Name)
		}
		if want := []string{"busy", "late"}; !slices.Equal(names, want) {
			t.Errorf("known are %v, want %v", names, want)
		}
	})
}

// TestClockThatStandsStill: a callback holds up no other while it reads the clock, though its replica may stand still in
// that moment.
func TestClockThatStandsStill(t *testing.T) {
	var set *destinations.Set
	var stands sync.Mutex
	set = destinations.New(policy, func() time.Time {
		if !stands.TryLock() { // this is another one's look at the clock
			return time.Now()
		}
		defer stands.Unlock()
		seen := make(chan struct{})
		go func() {
			defer close(seen)
			set.States()
		}()
		select {
		case <-seen:
		case <-time.After(10 * time.Second):
			t.Error("the clock is read while all others wait")
		}
		return time.Now()
	})
	one := destinations.Limits{InFlight: 1}
	enter := func() *destinations.Pass {
		pass, err := set.Enter(t.Context(), "d", one)
		if err != nil {
			t.Fatal(err)
		}
		return pass
	}
	enter().Done(destinations.Well) // so it is quick, and the next ones wait for it
	pass := enter()
	if _, err := set.Enter(t.Context(), "d", one); err == nil {
		t.Error("two are under way")
	}
	pass.Done(destinations.Failed)
	pass.Again(job.ID{}, time.Second)
	enter().Cancel()
}
