package destinations_test

import (
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/dispatcher/destinations"
	"github.com/carillon-scheduler/carillon/job"
)

// part admits a callback to a part of the destination, with a verdict.
func (f field) part(part string, shows destinations.Verdict) *destinations.Pass {
	f.Helper()
	pass, err := f.Enter(f.Context(), "d", destinations.Limits{Part: part})
	if err != nil {
		f.Fatalf("%s: %v", part, err)
	}
	pass.Done(shows)
	return pass
}

// refusedPart expects a callback to be deferred at once.
func (f field) refusedPart(part, says string) {
	f.Helper()
	f.refused("d", destinations.Limits{Part: part}, says)
}

// Error answers of one part, however many, open the circuit of that part and delay no other.
func TestPartFails(t *testing.T) {
	on(t, func(f field) {
		for range policy.Failures {
			f.part("/bad", destinations.PartFailed)
		}
		f.refusedPart("/bad", "the called part of d has failed 3 times in a row; it is tried again every 5s")
		for range 10 {
			f.part("/good", destinations.PartFailed)
			f.part("/good", destinations.Well)
		}
		since, whole := f.OpenSince("d")
		if s := f.States()[0]; f.Open() != 1 || !s.Open.IsZero() || s.PartsOpen != 1 || !s.PartOpen.Equal(since) || whole {
			t.Errorf("%d are open, %+v, since %s", f.Open(), f.States(), since)
		}
		for _, probe := range []time.Duration{policy.Probe, 2 * policy.Probe, 4 * policy.Probe, policy.LongestProbe, policy.LongestProbe} {
			time.Sleep(probe - time.Second)
			f.refusedPart("/bad", "the called part of d")
			time.Sleep(time.Second)
			f.part("/bad", destinations.PartFailed)
		}
		time.Sleep(policy.LongestProbe)
		f.part("/bad", destinations.Well)
		f.part("/bad", destinations.Well)
		if f.Open() != 0 {
			t.Error("it is open when it is well again")
		}
	})
}

// Error answers of several parts, with no success in between, count for the destination.
func TestPartsFail(t *testing.T) {
	on(t, func(f field) {
		f.part("/1", destinations.PartFailed)
		f.part("/1", destinations.PartFailed) // it does not count any more
		f.part("/2", destinations.PartFailed)
		f.part("/3", destinations.Well)
		f.part("/1", destinations.PartFailed)
		f.part("/2", destinations.PartFailed)
		f.part("/3", destinations.PartFailed)
		f.refusedPart("/4", "d has failed 3 times in a row")
		time.Sleep(policy.Probe)
		f.part("/4", destinations.PartFailed)
		time.Sleep(policy.Probe)
		f.refusedPart("/5", "it is tried again every 10s")
		time.Sleep(policy.Probe)
		f.part("/5", destinations.Well)
		f.part("/4", destinations.Well)
	})
}

// If nothing comes back, one part stands for all of them. An error answer counts as an answer.
func TestNothingComesBack(t *testing.T) {
	on(t, func(f field) {
		for range policy.Failures {
			f.part("/1", destinations.Failed)
		}
		f.refusedPart("/2", "d has failed 3 times in a row")
		time.Sleep(policy.Probe)
		f.part("/2", destinations.PartFailed)
		f.part("/1", destinations.Well)
	})
}

// Parts that failed once are forgotten after a while.
func TestForgetParts(t *testing.T) {
	on(t, func(f field) {
		f.part("/1", destinations.PartFailed)
		f.part("/1", destinations.PartFailed)
		time.Sleep(time.Minute)
		f.part("/2", destinations.Well)
		f.Forget(time.Now().Add(-30 * time.Second))
		f.part("/1", destinations.PartFailed)
		f.part("/1", destinations.PartFailed)
		if f.Open() != 0 {
			t.Error("what was long ago is not forgotten")
		}
	})
}

// The callback that opens a circuit, or whose probe fails, makes the next probe, which costs no attempt before its own
// time.
func TestWhoProbes(t *testing.T) {
	for _, shows := range []destinations.Verdict{destinations.PartFailed, destinations.Failed} {
		on(t, func(f field) {
			first, second := job.ID{1}, job.ID{2}
			expect := func(what string, pass *destinations.Pass, id job.ID, want time.Duration, free bool) {
				t.Helper()
				if after, is := pass.Again(id, time.Hour); after != want || is != free {
					t.Errorf("%s comes again after %s, free: %v; want %s, %v", what, after, is, want, free)
				}
			}
			under, err := f.Enter(f.Context(), "d", destinations.Limits{Part: "/"})
			if err != nil {
				t.Fatal(err)
			}
			expect("one of few failures", f.part("/", shows), second, time.Hour, false)
			f.part("/", shows)
			expect("the one that opens it", f.part("/", shows), first, policy.Probe, false)
			under.Done(shows)
			expect("one that was under way", under, second, time.Hour, false)
			begun := time.Now()
			for probe := policy.Probe; time.Since(begun)+probe < time.Hour; probe = min(2*probe, policy.LongestProbe) {
				time.Sleep(probe - time.Millisecond) // no clock is exact
				expect("a probe", f.part("/", shows), first, min(2*probe, policy.LongestProbe), true)
			}
			time.Sleep(policy.LongestProbe)
			expect("the first at its own time", f.part("/", shows), first, policy.LongestProbe, false)
			time.Sleep(policy.LongestProbe)
			expect("another that has come before it", f.part("/", shows), second, policy.LongestProbe, false)
			time.Sleep(policy.LongestProbe)
			expect("that one again", f.part("/", shows), second, policy.LongestProbe, true)
			time.Sleep(policy.LongestProbe)
			expect("one that is delivered", f.part("/", destinations.Well), second, time.Hour, false)
		})
	}
}
