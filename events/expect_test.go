package events_test

import (
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/carillon-scheduler/carillon/events"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/tenants"
)

func unmarshal(t *testing.T, data []byte, to any) {
	t.Helper()
	if err := json.Unmarshal(data, to); err != nil {
		t.Error(err)
	}
}

// reset takes the tenant's settings away.
func (w *world) reset() {
	w.Helper()
	if err := tenants.New(w.store).Set(w.Context(), tenant, job.TenantSettings{}, time.Now()); err != nil {
		w.Fatal(err)
	}
}

// checkIn checks in for an instant.
func (w *world) checkIn(j job.Job, at time.Time) {
	w.Helper()
	now := time.Now().UTC().Truncate(time.Millisecond)
	if err := events.CheckIn(w.Context(), w.store, j.Name, at, at.Add(time.Duration(j.Options.ExpectBy)), now); err != nil {
		w.Fatal(err)
	}
}

// TestCheckInsPreventEvents: each check-in prevents the event of its instant, also of a crontab. A paused or cancelled
// job expects none.
func TestCheckInsPreventEvents(t *testing.T) {
	inWorld(t, job.EventSettings{Types: []job.EventType{job.EventExpectationMissed}}, func(w *world) {
		w.replica(w.store)
		begin := time.Now()
		j := w.expect("a", 30*time.Second, crontab("@every 1m"))
		await := func(after time.Duration) { time.Sleep(after - time.Since(begin)) }
		tick := func(n int) time.Time { return begin.Add(time.Duration(n) * time.Minute) }
		await(70 * time.Second)
		w.checkIn(j, tick(1))
		await(2*time.Minute + 40*time.Second) // none for the second
		w.checkIn(j, tick(2))                 // which is too late
		w.hasTold("expectation.missed a")
		await(3*time.Minute + 29*time.Second)
		w.checkIn(j, tick(3))
		await(4*time.Minute + 10*time.Second)
		if err := w.store.Pause(t.Context(), j.Name, job.NewRevision(time.Now()), time.Now()); err != nil {
			t.Fatal(err)
		}
		await(10*time.Minute + 40*time.Second)
		w.hasTold("expectation.missed a")
		if err := w.store.Resume(t.Context(), j.Name, job.NewRevision(time.Now()), time.Now()); err != nil {
			t.Fatal(err)
		}
		await(11*time.Minute + 40*time.Second)
		w.hasTold("expectation.missed a", "expectation.missed a")
		if _, err := w.store.Cancel(t.Context(), []job.Name{j.Name}, store.Asked{Now: time.Now()}); err != nil {
			t.Fatal(err)
		}
		await(20 * time.Minute)
		w.hasTold("expectation.missed a", "expectation.missed a")
		left, err := w.store.Jobs(t.Context(), store.JobFilter{Tenant: tenant, Prefix: job.ReservedPrefix + "expect:", Limit: 10})
		if err != nil || len(left) != 0 {
			t.Errorf("of a job that is gone, %d watches are left: %v", len(left), err)
		}
	})
}

// TestMissedWhileNothingRan: a check-in that was missed while no replica ran becomes an event when one runs again.
func TestMissedWhileNothingRan(t *testing.T) {
	inWorld(t, only(job.EventExpectationMissed), func(w *world) {
		w.expect("once", time.Minute, nil)
		w.expect("often", time.Minute, crontab("@every 1m"))
		time.Sleep(time.Hour)
		w.replica(w.store)
		time.Sleep(20 * time.Second)
		w.hasTold("expectation.missed once", "expectation.missed often") // of the crontab, the latest
	})
}

// TestKillBetween: the event is sent once, also if the replica dies before it, or between it and the end of the watch.
func TestKillBetween(t *testing.T) {
	for what, faults := range map[string][2]error{
		"after the event":  {nil, errAway},
		"before the event": {errAway, errAway},
	} {
		t.Run(what, func(t *testing.T) {
			inWorld(t, only(job.EventExpectationMissed), func(w *world) {
				first := &brittle{Store: w.store.Store}
				dies := w.replica(first)
				w.expect("a", time.Minute, nil)
				time.Sleep(30 * time.Second)
				first.set(faults[0], faults[1])
				time.Sleep(31 * time.Second)
				go dies.stop() // it takes long, since it can settle nothing
				w.replica(w.store)
				time.Sleep(30 * time.Minute)
				w.hasTold("expectation.missed a")
			})
		})
	}
}

// TestWatchesOfLongKeys have keys that stores can keep.
func TestWatchesOfLongKeys(t *testing.T) {
	long := make([]byte, job.MaxKeyBytes)
	for i := range long {
		long[i] = 'k'
	}
	a, b := events.WatchName(job.Name{Tenant: tenant, Key: string(long)}), events.WatchName(job.Name{Tenant: tenant, Key: string(long[1:])})
	if len(a.Key) > job.MaxKeyBytes || a == b || !job.Reserved(a.Key) {
		t.Errorf("they are %q and %q", a, b)
	}
	inWorld(t, only(job.EventExpectationMissed), func(w *world) {
		w.replica(w.store)
		w.expect(string(long), time.Minute, nil)
		time.Sleep(2 * time.Minute)
		w.hasTold("expectation.missed " + string(long))
	})
}
