package mongosim_test

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carillon-scheduler/carillon/history/historytest"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/sim/mongosim"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/mongodb"
	"github.com/carillon-scheduler/carillon/store/storetest"
)

// calm is a network without faults.
type calm struct{}

func (calm) Dial(context.Context, string) error           { return nil }
func (calm) Command(string, string, string) mongosim.Fate { return mongosim.Fate{} }

// restless lets other commands come in between the steps of each. It delays some commands, and few of them for so long that
// other calls begin and end meanwhile. So the steps of calls interleave in many ways in tests of races.
type restless struct{ calm }

func (restless) Command(string, string, string) mongosim.Fate {
	met := 0
	fate := mongosim.Fate{Yield: func() {
		// Yields of a large command are few: each may last as long as everything else that waits for a processor.
		if met++; met < 50 || met%50 == 0 {
			runtime.Gosched()
		}
	}}
	if n := rand.IntN(64); n <= 8 {
		most := time.Millisecond
		if n == 0 {
			most *= 8
		}
		fate.Request = func() bool { time.Sleep(rand.N(most)); return true }
	}
	return fate
}

// slow is a network in which writes take a minute.
type slow struct{ calm }

func (slow) Command(_, name, _ string) mongosim.Fate {
	if name != "update" {
		return mongosim.Fate{}
	}
	return mongosim.Fate{Request: func() bool { time.Sleep(time.Minute); return true }}
}

// TestOpenInVain: when a store can't be opened in time, the call ends at once, though a command is still under way, and
// does not keep a processor busy meanwhile: no virtual time would pass then.
func TestOpenInVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 50 { // whether a connection is still in use is chance
			begun := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			_, err := mongodb.OpenThrough(ctx, mongosim.URL, mongosim.New(slow{}).Dialer("test"))
			if cancel(); err == nil || time.Since(begun) > 3*time.Second {
				t.Fatalf("after %s: %v", time.Since(begun), err)
			}
			time.Sleep(2 * time.Minute) // the command is over
		}
	})
}

// deaf is a network that loses the answer to the first deletion of occurrences.
type deaf struct {
	calm
	lost atomic.Bool
}

func (d *deaf) Command(_, name, collection string) mongosim.Fate {
	if name != "delete" || collection != "occurrences" {
		return mongosim.Fate{}
	}
	return mongosim.Fate{Answer: func() bool { return d.lost.Swap(true) }}
}

// TestMissIsCountedOnce: a missed occurrence is counted, and once, though the answer to its deletion is lost.
func TestMissIsCountedOnce(t *testing.T) {
	network := &deaf{}
	s, err := mongodb.OpenThrough(t.Context(), mongosim.URL, mongosim.New(network).Dialer("test"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	j := job.Job{
		Name: job.Name{Tenant: job.DefaultTenant, Key: "k"}, Revision: job.NewRevision(now), CreatedAt: now, ExpiresAt: now,
		Callback: job.Callback{Type: "http"}, Schedule: job.Schedule{Instants: []time.Time{now}},
	}
	j.Version = j.Revision
	begun, err := j.Begin(now, job.PastFire, job.Expansion{})
	if err != nil {
		t.Fatal(err)
	}
	put := store.Put{Job: j, Occurrences: begun.Occurrences, Now: now}
	if err := s.Put(t.Context(), []store.Put{put})[0].Err; err != nil {
		t.Fatal(err)
	}
	claim, err := s.Claim(t.Context(), store.ClaimParams{
		Now: now, Lease: time.Minute, Quotas: []store.Quota{{Lane: job.DefaultLane, Limit: 1}},
	})
	if err != nil || len(claim.Occurrences) != 1 {
		t.Fatal(claim, err)
	}
	c := claim.Occurrences[0]
	missed := store.Settlement{
		Outcome: store.Miss, ID: c.ID, Token: c.Token, Name: c.Name, Revision: c.Revision, Target: c.Target, At: now,
	}
	for range 2 {
		if err := s.Settle(t.Context(), []store.Settlement{missed}); err != nil {
			t.Fatal(err)
		}
	}
	if status, err := store.ReadJob(t.Context(), s, j.Name); err != nil || status.Missed != 1 || !network.lost.Load() {
		t.Fatalf("missed are %d, %v; the answer was lost: %v", status.Missed, err, network.lost.Load())
	}
}

// TestOneServer: a server that is no router answers in the same way. TestStore runs the suite of package storetest in CI.
func TestOneServer(t *testing.T) {
	newStore := func(t *testing.T) storetest.Opener {
		server := mongosim.New(restless{})
		return func() (store.Store, error) {
			return mongodb.OpenThrough(t.Context(), mongosim.URL, server.Dialer("test"))
		}
	}
	switch {
	case storetest.Long():
		storetest.Run(t, newStore)
	case testing.Short():
		storetest.Races(t, newStore)
	}
	historytest.Run(t, newStore)
}
