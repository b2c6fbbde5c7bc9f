package destinations_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/dispatcher/destinations"
	"github.com/carillon-scheduler/carillon/job"
)

// times is the number of runs of tests whose single runs differ by chance. The tests judge all runs together.
const times = 8

// Turns are shared between priorities and tenants as claims are, however many callbacks of one flow wait already.
func TestTurnsAreShared(t *testing.T) {
	const takes, perSecond, n = 20 * time.Millisecond, 100, 150
	inFlight, paced := destinations.Limits{InFlight: 2}, destinations.Limits{Rate: perSecond}
	whose := func(tenant string, priority job.Priority, share, weight float64) destinations.Flow {
		return destinations.Flow{Tenant: tenant, Priority: priority, PriorityWeight: share, TenantWeight: weight}
	}
	for name, c := range map[string]struct {
		limits destinations.Limits
		crowd  destinations.Flow   // many of it wait
		others []destinations.Flow // they come later, with n each
		part   float64             // the part of all turns that each of these has
	}{
		"tenants":          {inFlight, whose("a", "", 0, 0), []destinations.Flow{whose("b", "", 0, 0)}, 1. / 2},
		"a rate":           {paced, whose("a", "", 0, 0), []destinations.Flow{whose("b", "", 0, 0)}, 1. / 2},
		"heavy":            {inFlight, whose("a", "", 25, 0.5), []destinations.Flow{whose("b", "", 25, 4.5)}, 0.9},
		"heavy, at a rate": {paced, whose("a", "", 25, 0.5), []destinations.Flow{whose("b", "", 25, 4.5)}, 0.9},
		"light":            {inFlight, whose("a", "", 25, 4), []destinations.Flow{whose("b", "", 25, 1)}, 0.2},
		"three":            {inFlight, whose("a", "", 25, 1), []destinations.Flow{whose("b", "", 25, 1), whose("c", "", 25, 1)}, 1. / 3},
		"priorities":       {inFlight, whose("a", "high", 90, 1), []destinations.Flow{whose("a", "low", 10, 1)}, 0.1},
		"tenants of a priority": {inFlight, whose("a", "low", 10, 50),
			[]destinations.Flow{whose("b", "high", 90, 1), whose("c", "high", 90, 1)}, 0.45},
	} {
		t.Run(name, func(t *testing.T) {
			on(t, func(f field) {
				f.take("d", takes)
				ctx, cancel := context.WithCancel(f.Context())
				var all []*crowd
				submit := func(of destinations.Flow, n int) {
					limits := c.limits
					limits.Flow = of
					one := f.crowd(of.Tenant, takes, limits)
					one.submit(ctx, n, 0)
					all = append(all, one)
				}
				submit(c.crowd, 20*perSecond)
				time.Sleep(2 * time.Second)
				start := time.Now()
				for _, of := range c.others {
					submit(of, n)
				}
				for _, other := range all[1:] {
					other.group.Wait()
				}
				took := time.Since(start).Seconds()
				cancel()
				all[0].group.Wait()
				if fair := n / (perSecond * c.part); took < 0.9*fair || took > 1.25*fair {
					t.Errorf("what came later was sent within %.2f s, want %.2f", took, fair)
				}
			})
		})
	}
}

// Room kept for callbacks that another replica claims is not lost, nor room for those that take longer or shorter than
// usual.
func TestTurnsBesideOtherReplicas(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	for name, takes := range map[string]func() time.Duration{
		"all alike": func() time.Duration { return 100 * time.Millisecond },
		"random":    func() time.Duration { return time.Duration(rand.ExpFloat64() * float64(100*time.Millisecond)) },
	} {
		t.Run(name, func(t *testing.T) {
			const seconds, rate = 8, 10 * 8 // one replica's in a second, with eight under way
			var all, heavy, light float64
			for range times {
				on(t, func(f field) {
					replicas := []*destinations.Set{f.Set, destinations.New(policy, time.Now), destinations.New(policy, time.Now)}
					for _, replica := range replicas {
						field{t, replica}.take("d", 100*time.Millisecond)
					}
					ctx, cancel := context.WithCancel(f.Context())
					crowds := map[string]*crowd{}
					for tenant, weight := range map[string]float64{"light": 1, "heavy": 4} {
						c := f.crowd(tenant, 0, destinations.Limits{Flow: destinations.Flow{TenantWeight: weight}})
						c.replicas, c.random = replicas, takes
						c.submit(ctx, 10*rate*len(replicas), 0)
						crowds[tenant] = c
					}
					time.Sleep(2 * time.Second)
					start := time.Now()
					time.Sleep(seconds * time.Second)
					all += float64(seconds * rate * len(replicas))
					heavy += float64(crowds["heavy"].since(start))
					light += float64(crowds["light"].since(start))
					cancel()
					for _, c := range crowds {
						c.group.Wait()
					}
				})
			}
			if heavy+light < 0.9*all || heavy < 2.5*light || heavy > 6.5*light {
				t.Errorf("%v and %v of %v are sent, want all of them, and 4 to 1", heavy, light, all)
			}
		})
	}
}

// The whole rate is used, however the flows share it.
func TestRateIsShared(t *testing.T) {
	for _, tenants := range []int{1, 2, 4} {
		const n, perSecond = 200, 10
		var took time.Duration
		tries := 0
		for range times {
			on(t, func(f field) {
				f.take("d", time.Millisecond)
				start := time.Now()
				var all []*crowd
				for i := range tenants {
					c := f.crowd(fmt.Sprint(i), time.Millisecond, destinations.Limits{Rate: perSecond})
					c.submit(f.Context(), n/tenants, 0)
					all = append(all, c)
				}
				for _, c := range all {
					c.group.Wait()
					tries += c.tries
				}
				took += time.Since(start)
			})
		}
		if took > times*n/perSecond*time.Second*23/20 || tries > 5*times*n {
			t.Errorf("%d times %d of %d tenants took %s at %d a second, and %d tries", times, n, tenants, took, perSecond, tries)
		}
	}
}

// A rate too high for waiting is shared by weights too.
func TestLowRateIsShared(t *testing.T) {
	on(t, func(f field) {
		const seconds, perSecond = 50, 4
		f.take("d", time.Millisecond)
		ctx, cancel := context.WithCancel(f.Context())
		crowds := map[string]*crowd{}
		for tenant, weight := range map[string]float64{"light": 1, "heavy": 4} {
			c := f.crowd(tenant, time.Millisecond, destinations.Limits{Rate: perSecond, Flow: destinations.Flow{TenantWeight: weight}})
			c.submit(ctx, seconds*perSecond, 0)
			crowds[tenant] = c
		}
		start := time.Now()
		time.Sleep(seconds * time.Second)
		if heavy, light := crowds["heavy"].since(start), crowds["light"].since(start); heavy+light < seconds*perSecond*9/10 || heavy < 3*light || heavy > 6*light {
			t.Errorf("%d and %d of %d are sent, want all of them, and 4 to 1", heavy, light, seconds*perSecond)
		}
		cancel()
		for _, c := range crowds {
			c.group.Wait()
		}
	})
}

// The callbacks of many tenants with little each do not return all at once, again and again.
func TestTurnsOfManyTenants(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	for _, each := range []int{1, 4} {
		const tenants, takes = 300, 200 * time.Millisecond
		var took time.Duration
		tries := 0
		for range times {
			on(t, func(f field) {
				f.take("d", takes)
				start := time.Now()
				var all []*crowd
				for i := range tenants {
					c := f.crowd(fmt.Sprint(i), takes, destinations.Limits{})
					c.submit(f.Context(), each, 0)
					all = append(all, c)
				}
				for _, c := range all {
					c.group.Wait()
					tries += c.tries
				}
				took += time.Since(start)
			})
		}
		want := time.Duration(times*each*tenants/policy.InFlight) * takes
		if took > want*3/2 || tries > 6*times*each*tenants {
			t.Errorf("%d times %d each took %s, want %s, and %d tries", times, each, took, want, tries)
		}
	}
}

// Room kept for cancelled callbacks, which never come, soon goes to others.
func TestExpectedThatDoNotCome(t *testing.T) {
	for name, c := range map[string]struct {
		limits  destinations.Limits
		takes   time.Duration
		tenants int
		perStep time.Duration // the time between two admissions
	}{
		"slow":          {destinations.Limits{}, 2 * time.Second, 200, 2 * time.Second / 4},
		"fast":          {destinations.Limits{}, 80 * time.Millisecond, 2000, 10 * time.Millisecond},
		"one at a time": {destinations.Limits{InFlight: 1}, time.Second, 50, time.Second},
		"a low rate":    {destinations.Limits{Rate: 1}, time.Millisecond, 50, time.Second},
		"a rate":        {destinations.Limits{Rate: 10}, time.Millisecond, 500, 100 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			on(t, func(f field) {
				f.take("d", c.takes)
				ctx, cancel := context.WithCancel(f.Context())
				const could = 100
				left := f.crowd("left", c.takes, c.limits)
				left.submit(ctx, 2*could, 0)
				time.Sleep(5 * c.perStep)
				for i := range c.tenants {
					gone := c.limits
					gone.Flow.Tenant = fmt.Sprint(i)
					short, end := context.WithTimeout(f.Context(), time.Nanosecond)
					if pass, err := f.Enter(short, "d", gone); err == nil {
						pass.Cancel()
					}
					end()
				}
				start := time.Now()
				time.Sleep(could * c.perStep)
				if n := left.since(start); n < could*6/10 {
					t.Errorf("%d of %d are sent", n, could)
				}
				cancel()
				left.group.Wait()
			})
		})
	}
}

// Room reserved for callbacks with limits of their own is not kept from those without.
func TestNothingIsKeptForLimitsOfOthers(t *testing.T) {
	on(t, func(f field) {
		const takes = 200 * time.Millisecond // too long to wait for, and not slow
		f.take("d", takes)
		limited := destinations.Limits{InFlight: 1, Flow: destinations.Flow{Tenant: "limited"}}
		if _, err := f.Enter(f.Context(), "d", limited); err != nil {
			t.Fatal(err)
		}
		limited.Again = true
		f.refused("d", limited, "under way")
		for i := range policy.InFlight - 1 {
			if _, err := f.Enter(f.Context(), "d", destinations.Limits{Flow: destinations.Flow{Tenant: "other"}}); err != nil {
				t.Errorf("with %d under way: %v", i+1, err)
			}
		}
	})
}

// However many tenants wait, no pause is longer than documented.
func TestLongestPause(t *testing.T) {
	on(t, func(f field) {
		f.take("d", 10*time.Second)
		for range policy.SlowInFlight {
			f.enter("d")
		}
		for i := range 2000 {
			limits := destinations.Limits{Flow: destinations.Flow{Tenant: fmt.Sprint(i)}, Again: i%2 == 1}
			if after := f.refused("d", limits, "under way"); after > 10*policy.LongestProbe {
				t.Fatalf("one of the tenant %d is put off for %s", i, after)
			}
		}
	})
}

// The number of callbacks deferred because of other slow destinations does not make their pauses longer.
func TestManyThatAreCrowdedOut(t *testing.T) {
	on(t, func(f field) {
		for _, name := range []string{"a", "b", "d"} {
			f.take(name, time.Second)
		}
		for range policy.SlowInFlight {
			f.enter("a")
			f.enter("b")
		}
		f.enter("d")
		for i := range 500 {
			limits := destinations.Limits{Flow: destinations.Flow{Tenant: fmt.Sprint(i)}}
			if after := f.refused("d", limits, "slow, like others"); after > 3*policy.Probe {
				t.Fatalf("one of the tenant %d is put off for %s", i, after)
			}
			time.Sleep(time.Second)
		}
	})
}
