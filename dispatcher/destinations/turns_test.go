package destinations_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/dispatcher/destinations"
)

// Deferred callbacks return at their turns: the destination is always busy, and hardly any callback is deferred again.
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

// A deferred callback is in the state that the queue's diagram shows, and its error names the state.
func TestStatesOfDeferred(t *testing.T) {
	const inTurn, reserved, unordered = "waits for its turn", "a slot is reserved", "too long for turns"
	on(t, func(f field) {
		f.take("d", 10*time.Second)
		var passes []*destinations.Pass
		for range policy.SlowInFlight {
			passes = append(passes, f.enter("d"))
		}
		one := destinations.Limits{}
		again := destinations.Limits{Again: true}
		for _, c := range []struct {
			limits destinations.Limits
			n      int
			says   string
		}{
			{one, 1, reserved},   // no other is before it, and a place is free in ten seconds
			{one, 4, inTurn},     // four are sent every ten seconds
			{again, 3, reserved}, // as many as are sent while one is under way
			{again, 4, inTurn},   // up to the longest pause
			{again, 5, unordered},
			{one, 5, unordered},
		} {
			for range c.n {
				f.refused("d", c.limits, c.says)
			}
		}
		time.Sleep(10 * time.Second) // the first reservation's time has come
		other := destinations.Limits{Flow: destinations.Flow{Tenant: "other"}}
		passes[0].Done(destinations.Well)
		if _, err := f.Enter(f.Context(), "d", other); err != nil {
			t.Errorf("one whose tenant has had no more: %v", err)
		}
		passes[1].Done(destinations.Well)
		f.refused("d", other, "keeps room for others")
		time.Sleep(20 * time.Second) // all reservations have expired
		if _, err := f.Enter(f.Context(), "d", other); err != nil {
			t.Errorf("when nobody has come for the reserved slots: %v", err)
		}
	})
}

// A deferred callback is not overtaken for ever by callbacks that arrive just when there is room. While a destination
// can serve all arrivals, none waits for long.
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
					if after, deferred := destinations.IsDeferral(err); deferred {
						time.Sleep(after + time.Millisecond)
						continue
					}
					lock.Lock()
					sum, most = sum+time.Since(came), max(most, time.Since(came))
					lock.Unlock()
					time.Sleep(takes)
					pass.Done(destinations.Well)
					return
				}
			})
		}
		group.Wait()
		// In order of arrival it would be two seconds, by the formula of Pollaczek and Khinchine.
		if mean := sum / n; mean > 10*time.Second || most > 3*time.Minute {
			t.Errorf("they wait %s on average and at most %s", mean, most)
		}
	})
}

// However many callbacks wait, each is deferred only a few times.
func TestLongBacklog(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
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
					if after, deferred := destinations.IsDeferral(err); deferred {
						time.Sleep(after + rand.N(10*time.Millisecond))
						continue
					}
					time.Sleep(takes)
					pass.Done(destinations.Well)
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

// Turns of callbacks that never return delay no other.
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
			pass.Done(destinations.Well)
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

// The limits of one tenant's jobs do not apply to another's.
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

// A flow whose turns are taken one by one keeps its order: a later callback gets the last turn.
func TestLineThatIsServed(t *testing.T) {
	on(t, func(f field) {
		const takes = time.Second
		f.take("d", takes)
		one := destinations.Limits{InFlight: 1}
		line := f.crowd("a", takes, one)
		line.submit(f.Context(), 25, 0)
		time.Sleep(10*time.Second + takes/2)
		one.Flow.Tenant = "a"
		if after := f.refused("d", one, "under way"); after < 10*time.Second {
			t.Errorf("one that comes behind some fifteen comes again after %s", after)
		}
		line.group.Wait()
	})
}

// A flow whose callbacks do not return any more leaves its part to others.
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
