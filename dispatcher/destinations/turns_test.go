package destinations_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/dispatcher/destinations"
	"github.com/carillon-scheduler/carillon/job"
)

// crowd is callbacks of one that come to a destination, each of which comes again when it is told to.
type crowd struct {
	field
	limits destinations.Limits
	takes  time.Duration

	replicas []*destinations.Set  // that one comes to at random; nil for the field's
	random   func() time.Duration // instead of takes

	group sync.WaitGroup
	lock  sync.Mutex
	sent  []time.Time
	tries int
}

func (f field) crowd(tenant string, takes time.Duration, limits destinations.Limits) *crowd {
	limits.Of.Tenant = tenant
	return &crowd{field: f, limits: limits, takes: takes}
}

// submit has n come, one after each interval, until ctx ends.
func (c *crowd) submit(ctx context.Context, n int, interval time.Duration) {
	c.group.Go(func() {
		for range n {
			c.group.Go(func() { c.one(ctx) })
			time.Sleep(interval)
		}
	})
}

func (c *crowd) one(ctx context.Context) {
	limits := c.limits
	for ; ctx.Err() == nil; limits.Again = true {
		c.note(func() { c.tries++ })
		at := c.Set
		if len(c.replicas) > 0 {
			at = c.replicas[rand.IntN(len(c.replicas))]
		}
		pass, err := at.Enter(ctx, "d", limits)
		if after, busy := destinations.IsBusy(err); busy {
			select {
			case <-time.After(after + rand.N(5*time.Millisecond)): // no clock is exact
			case <-ctx.Done():
			}
		} else if err == nil {
			c.note(func() { c.sent = append(c.sent, time.Now()) })
			if c.random != nil {
				time.Sleep(c.random())
			} else {
				time.Sleep(c.takes)
			}
			pass.Done(false)
			return
		}
	}
}

func (c *crowd) note(what func()) {
	c.lock.Lock()
	defer c.lock.Unlock()
	what()
}

// since counts those that were sent since a time.
func (c *crowd) since(from time.Time) (n int) {
	c.lock.Lock()
	defer c.lock.Unlock()
	for _, at := range c.sent {
		if !at.Before(from) {
			n++
		}
	}
	return n
}

// Those that were given back come again when it is their turn: the destination is busy all the time, and hardly any comes in
// vain.
func TestTurns(t *testing.T) {
	for name, c := range map[string]struct {
		limits destinations.Limits
		takes  time.Duration
		n      int
		most   time.Duration
	}{
		"one at a time":  {destinations.Limits{InFlight: 1}, 10 * time.Millisecond, 500, 5200 * time.Millisecond},
		"some at a time": {destinations.Limits{InFlight: 5}, 50 * time.Millisecond, 500, 5200 * time.Millisecond},
		"slow":           {destinations.Limits{}, 300 * time.Millisecond, 60, 5200 * time.Millisecond},
		"a low rate":     {destinations.Limits{Rate: 10}, time.Millisecond, 50, 5200 * time.Millisecond},
		"a rate":         {destinations.Limits{Rate: 100}, time.Millisecond, 500, 5200 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			on(t, func(f field) {
				f.take("d", c.takes)
				time.Sleep(time.Second)
				start := time.Now()
				all := f.crowd("", c.takes, c.limits)
				all.submit(f.Context(), c.n, 0)
				all.group.Wait()
				if took := time.Since(start); took > c.most {
					t.Errorf("it took %s, want at most %s", took, c.most)
				}
				if all.tries > 3*c.n {
					t.Errorf("%d of them were tried %d times", c.n, all.tries)
				}
			})
		})
	}
}

// Whoever is given back is not overtaken for ever by those that come just when there is room: while a destination can do what comes,
// nobody waits for long.
func TestWaitingAtRandom(t *testing.T) {
	on(t, func(f field) {
		const takes, load, n = time.Second, 0.8, 1500
		f.take("d", takes)
		random := rand.New(rand.NewPCG(1, 2))
		var lock sync.Mutex
		var sum, most time.Duration
		var group sync.WaitGroup
		for range n {
			time.Sleep(time.Duration(random.ExpFloat64() * float64(takes) / load))
			group.Go(func() {
				came := time.Now()
				for again := false; ; again = true {
					pass, err := f.Enter(f.Context(), "d", destinations.Limits{InFlight: 1, Again: again})
					if after, busy := destinations.IsBusy(err); busy {
						time.Sleep(after + time.Millisecond)
						continue
					}
					lock.Lock()
					sum, most = sum+time.Since(came), max(most, time.Since(came))
					lock.Unlock()
					time.Sleep(takes)
					pass.Done(false)
					return
				}
			})
		}
		group.Wait()
		// In the order of their coming it would be two seconds, by Pollaczek and Khinchine.
		if mean := sum / n; mean > 10*time.Second || most > 3*time.Minute {
			t.Errorf("they wait %s on average and at most %s", mean, most)
		}
	})
}

// However many wait, each comes in vain only a few times.
func TestLongBacklog(t *testing.T) {
	on(t, func(f field) {
		const takes, n = time.Second, 2000
		f.take("d", takes)
		var lock sync.Mutex
		tries, most := 0, 0
		start := time.Now()
		var group sync.WaitGroup
		for range n {
			group.Go(func() {
				mine := 1
				for ; ; mine++ {
					pass, err := f.Enter(f.Context(), "d", destinations.Limits{InFlight: 1, Again: mine > 1})
					if after, busy := destinations.IsBusy(err); busy {
						time.Sleep(after + rand.N(10*time.Millisecond))
						continue
					}
					time.Sleep(takes)
					pass.Done(false)
					break
				}
				lock.Lock()
				defer lock.Unlock()
				tries, most = tries+mine, max(most, mine)
			})
		}
		group.Wait()
		if took := time.Since(start); tries > 12*n || most > 60 || took > n*takes*5/4 {
			t.Errorf("%d were tried %d times, one %d times, and it took %s", n, tries, most, took)
		}
	})
}

// Turns are shared as claims are: between priorities and tenants, however much of one waits already.
func TestTurnsAreShared(t *testing.T) {
	const takes, perSecond, n = 20 * time.Millisecond, 100, 150
	inFlight, paced := destinations.Limits{InFlight: 2}, destinations.Limits{Rate: perSecond}
	whose := func(tenant string, priority job.Priority, share, weight float64) destinations.Whose {
		return destinations.Whose{Tenant: tenant, Priority: priority, Share: share, Weight: weight}
	}
	for name, c := range map[string]struct {
		limits destinations.Limits
		crowd  destinations.Whose   // has many that wait
		others []destinations.Whose // come later with n each
		part   float64              // of all turns, that each of these has
	}{
		"tenants":          {inFlight, whose("a", "", 0, 0), []destinations.Whose{whose("b", "", 0, 0)}, 1. / 2},
		"a rate":           {paced, whose("a", "", 0, 0), []destinations.Whose{whose("b", "", 0, 0)}, 1. / 2},
		"heavy":            {inFlight, whose("a", "", 25, 0.5), []destinations.Whose{whose("b", "", 25, 4.5)}, 0.9},
		"heavy, at a rate": {paced, whose("a", "", 25, 0.5), []destinations.Whose{whose("b", "", 25, 4.5)}, 0.9},
		"light":            {inFlight, whose("a", "", 25, 4), []destinations.Whose{whose("b", "", 25, 1)}, 0.2},
		"three":            {inFlight, whose("a", "", 25, 1), []destinations.Whose{whose("b", "", 25, 1), whose("c", "", 25, 1)}, 1. / 3},
		"priorities":       {inFlight, whose("a", "high", 90, 1), []destinations.Whose{whose("a", "low", 10, 1)}, 0.1},
		"tenants of a priority": {inFlight, whose("a", "low", 10, 50),
			[]destinations.Whose{whose("b", "high", 90, 1), whose("c", "high", 90, 1)}, 0.45},
	} {
		t.Run(name, func(t *testing.T) {
			on(t, func(f field) {
				f.take("d", takes)
				ctx, cancel := context.WithCancel(f.Context())
				var all []*crowd
				submit := func(of destinations.Whose, n int) {
					limits := c.limits
					limits.Of = of
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

// Room that is kept for those that another replica claims is not lost, nor for those that take longer or shorter than usual.
func TestTurnsBesideOtherReplicas(t *testing.T) {
	for name, takes := range map[string]func() time.Duration{
		"all alike": func() time.Duration { return 100 * time.Millisecond },
		"random":    func() time.Duration { return time.Duration(rand.ExpFloat64() * float64(100*time.Millisecond)) },
	} {
		t.Run(name, func(t *testing.T) {
			on(t, func(f field) {
				const seconds, rate = 8, 10 * 8 // one replica's in a second, with eight under way
				replicas := []*destinations.Set{f.Set, destinations.New(policy), destinations.New(policy)}
				for _, replica := range replicas {
					field{t, replica}.take("d", 100*time.Millisecond)
				}
				ctx, cancel := context.WithCancel(f.Context())
				crowds := map[string]*crowd{}
				for tenant, weight := range map[string]float64{"light": 1, "heavy": 4} {
					c := f.crowd(tenant, 0, destinations.Limits{Of: destinations.Whose{Weight: weight}})
					c.replicas, c.random = replicas, takes
					c.submit(ctx, 10*rate*len(replicas), 0)
					crowds[tenant] = c
				}
				time.Sleep(2 * time.Second)
				start := time.Now()
				time.Sleep(seconds * time.Second)
				all := float64(seconds * rate * len(replicas))
				heavy, light := float64(crowds["heavy"].since(start)), float64(crowds["light"].since(start))
				if heavy+light < 0.9*all || heavy < 2.5*light || heavy > 6.5*light {
					t.Errorf("%v and %v of %v are sent, want all of them, and 4 to 1", heavy, light, all)
				}
				cancel()
				for _, c := range crowds {
					c.group.Wait()
				}
			})
		})
	}
}

// Turns of those that do not come delay nobody.
func TestTurnsThatAreNotTaken(t *testing.T) {
	on(t, func(f field) {
		f.take("d", time.Second)
		passes := []*destinations.Pass{}
		for range policy.SlowInFlight {
			passes = append(passes, f.enter("d"))
		}
		for range 50 {
			f.refused("d", destinations.Limits{}, "under way")
		}
		time.Sleep(time.Second)
		for _, pass := range passes {
			pass.Done(false)
		}
		time.Sleep(3 * time.Second)
		for range policy.SlowInFlight {
			f.enter("d")
		}
		if after := f.refused("d", destinations.Limits{}, "under way"); after > 2*time.Second {
			t.Errorf("it is tried again after %s, when each takes a second", after)
		}
	})
}

// What another's jobs ask for by themselves is not asked of all.
func TestLimitsOfOthers(t *testing.T) {
	for name, limits := range map[string]destinations.Limits{"a low rate": {Rate: 0.1}, "a rate": {Rate: 1}, "one at a time": {InFlight: 1}} {
		t.Run(name, func(t *testing.T) {
			on(t, func(f field) {
				const takes = 20 * time.Millisecond
				f.take("d", takes)
				ctx, cancel := context.WithCancel(f.Context())
				limited, other := f.crowd("limited", takes, limits), f.crowd("other", takes, destinations.Limits{})
				limited.submit(ctx, 700, 30*time.Millisecond)
				time.Sleep(time.Second)
				other.submit(ctx, 2000, 10*time.Millisecond)
				time.Sleep(10 * time.Second)
				if n := other.since(time.Now().Add(-8 * time.Second)); n < 790 {
					t.Errorf("%d of 800 of the other are sent", n)
				}
				cancel()
				limited.group.Wait()
				other.group.Wait()
			})
		})
	}
}

// All of a rate is used, whoever shares it.
func TestRateIsShared(t *testing.T) {
	for _, tenants := range []int{1, 2, 4} {
		on(t, func(f field) {
			const n, perSecond = 200, 10
			f.take("d", time.Millisecond)
			start, tries := time.Now(), 0
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
			if took := time.Since(start); took > n/perSecond*time.Second*23/20 || tries > 5*n {
				t.Errorf("%d of %d tenants took %s at %d a second, and %d tries", n, tenants, took, perSecond, tries)
			}
		})
	}
}

// A rate that leaves no room for waiting is shared by weights too.
func TestLowRateIsShared(t *testing.T) {
	on(t, func(f field) {
		const seconds, perSecond = 50, 4
		f.take("d", time.Millisecond)
		ctx, cancel := context.WithCancel(f.Context())
		crowds := map[string]*crowd{}
		for tenant, weight := range map[string]float64{"light": 1, "heavy": 4} {
			c := f.crowd(tenant, time.Millisecond, destinations.Limits{Rate: perSecond, Of: destinations.Whose{Weight: weight}})
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

// Many tenants with little each do not come all at once, again and again.
func TestTurnsOfManyTenants(t *testing.T) {
	for _, each := range []int{1, 4} {
		on(t, func(f field) {
			const tenants, takes = 300, 200 * time.Millisecond
			f.take("d", takes)
			start, tries := time.Now(), 0
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
			want := time.Duration(each*tenants/policy.InFlight) * takes
			if took := time.Since(start); took > want*3/2 || tries > 6*each*tenants {
				t.Errorf("%d each took %s, want %s, and %d tries", each, took, want, tries)
			}
		})
	}
}

// Room that is kept for many that never come, as they have been cancelled, is soon had by those that do.
func TestExpectedThatDoNotCome(t *testing.T) {
	for name, c := range map[string]struct {
		limits  destinations.Limits
		takes   time.Duration
		tenants int
		perStep time.Duration // between two that can be sent
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
					gone.Of.Tenant = fmt.Sprint(i)
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

// However many tenants wait, nobody is put off for longer than is documented.
func TestLongestPause(t *testing.T) {
	on(t, func(f field) {
		f.take("d", 10*time.Second)
		for range policy.SlowInFlight {
			f.enter("d")
		}
		for i := range 2000 {
			limits := destinations.Limits{Of: destinations.Whose{Tenant: fmt.Sprint(i)}, Again: i%2 == 1}
			if after := f.refused("d", limits, "under way"); after > 10*policy.LongestProbe {
				t.Fatalf("one of the tenant %d is put off for %s", i, after)
			}
		}
	})
}

// Those that are put off because of other slow destinations are not put off for longer because there are many of them.
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
			limits := destinations.Limits{Of: destinations.Whose{Tenant: fmt.Sprint(i)}}
			if after := f.refused("d", limits, "slow, like others"); after > 3*policy.Probe {
				t.Fatalf("one of the tenant %d is put off for %s", i, after)
			}
			time.Sleep(time.Second)
		}
	})
}

// A line whose turns are taken one by one stays: whoever comes later has the end of it.
func TestLineThatIsServed(t *testing.T) {
	on(t, func(f field) {
		const takes = time.Second
		f.take("d", takes)
		one := destinations.Limits{InFlight: 1}
		line := f.crowd("a", takes, one)
		line.submit(f.Context(), 25, 0)
		time.Sleep(10*time.Second + takes/2)
		one.Of.Tenant = "a"
		if after := f.refused("d", one, "under way"); after < 10*time.Second {
			t.Errorf("one that comes behind some fifteen comes again after %s", after)
		}
		line.group.Wait()
	})
}

// A line from which nobody comes any more leaves its part to others.
func TestLineThatIsCancelled(t *testing.T) {
	on(t, func(f field) {
		const takes = 100 * time.Millisecond
		f.take("d", takes)
		ctx, cancel := context.WithCancel(f.Context())
		paused, other := f.crowd("paused", takes, destinations.Limits{}), f.crowd("other", takes, destinations.Limits{})
		paused.submit(ctx, 5000, 0)
		time.Sleep(time.Second)
		cancel()
		paused.group.Wait()
		ctx, cancel = context.WithCancel(f.Context())
		other.submit(ctx, 5000, 14*time.Millisecond)
		time.Sleep(10 * time.Second)
		if n, most := other.since(time.Now().Add(-6*time.Second)), int(6*time.Second/(14*time.Millisecond)); n < most*9/10 {
			t.Errorf("%d of %d are sent", n, most)
		}
		cancel()
		other.group.Wait()
	})
}
