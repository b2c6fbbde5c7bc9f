package forecast_test

import (
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/forecast"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/memory"
)

// monday is the instant of the tests' jobs.
var monday = time.Date(2030, 1, 7, 9, 0, 0, 0, time.UTC)

// at puts jobs of a tenant that all fire at once.
func at(t *testing.T, s store.Store, tenant, destination string, when time.Time, n int, change func(*job.Job)) {
	t.Helper()
	j := job.Job{
		Name: job.Name{Tenant: tenant, Key: destination + when.String()}, Revision: job.NewRevision(monday.Add(-time.Hour)),
		Callback: job.Callback{Type: "test", Data: []byte(destination)},
	}
	j.Version = j.Revision
	for range n {
		j.Schedule.Instants = append(j.Schedule.Instants, when)
	}
	if change != nil {
		change(&j)
	}
	if r := s.Put(t.Context(), []store.Put{{Job: j, Now: monday.Add(-time.Hour)}})[0]; r.Err != nil {
		t.Fatal(r.Err)
	}
}

// tenPerSecond returns a capacity.
func tenPerSecond() forecast.Capacity {
	c := plenty
	c.PerSecond, c.Destinations = 10, forecast.DestinationPolicy{InFlight: 100, SlowInFlight: 50, SlowAfter: time.Second}
	return c
}

func report(t *testing.T, s store.Store, q forecast.Query) forecast.Report {
	t.Helper()
	plan, err := forecast.Read(t.Context(), s, destination, monday.Add(-time.Hour), forecast.DefaultBounds)
	if err != nil {
		t.Fatal(err)
	}
	return plan.Report(&q)
}

// TestDrain checks when a burst has been fired, at ten occurrences per second, and with limits.
func TestDrain(t *testing.T) {
	const burst = 12_000 // 20 minutes at ten per second
	down := func(from, until time.Duration) []forecast.Down {
		return []forecast.Down{{Destination: "a", From: monday.Add(from), Until: monday.Add(until)}}
	}
	for name, c := range map[string]struct {
		put    func(t *testing.T, s store.Store)
		change func(*forecast.Query)
		// after 09:00, and the rest an hour later
		drained, drainedOfA time.Duration
		left                int
	}{
		"by the rate":        {drained: 20 * time.Minute, drainedOfA: 20 * time.Minute},
		"by half of it":      {change: func(q *forecast.Query) { q.PerSecond = 5 }, drained: 40 * time.Minute, drainedOfA: 40 * time.Minute},
		"not within an hour": {change: func(q *forecast.Query) { q.PerSecond = 2.5 }, drained: 80 * time.Minute, drainedOfA: 80 * time.Minute, left: 3000},
		"never":              {change: func(q *forecast.Query) { q.PerSecond = 1 }, left: 8400},
		"by a given limit": {
			change:  func(q *forecast.Query) { q.Limits = map[string]float64{"a": 4} },
			drained: 50 * time.Minute, drainedOfA: 50 * time.Minute,
		},
		"by a job's limit, on two replicas": {
			put: func(t *testing.T, s store.Store) {
				at(t, s, "acme", "a", monday, burst, func(j *job.Job) { j.Options.Destination.RatePerSecond = 2 })
			},
			change:  func(q *forecast.Query) { q.Replicas = 2 },
			drained: 50 * time.Minute, drainedOfA: 50 * time.Minute,
		},
		"by slow callbacks": {
			change:  func(q *forecast.Query) { q.Took = func(string) time.Duration { return 10 * time.Second } }, // 50 under way
			drained: 40 * time.Minute, drainedOfA: 40 * time.Minute,
		},
		"after an outage": {
			change:  func(q *forecast.Query) { q.Down = down(0, 30*time.Minute) },
			drained: 50 * time.Minute, drainedOfA: 50 * time.Minute,
		},
		"an outage of one delays no other": {
			put: func(t *testing.T, s store.Store) {
				at(t, s, "acme", "a", monday, burst/2, nil)
				at(t, s, "acme", "b", monday, burst/2, nil)
			},
			change:  func(q *forecast.Query) { q.Down = down(0, 20*time.Minute) },
			drained: 30 * time.Minute, drainedOfA: 30 * time.Minute,
		},
		"behind a backlog": {
			change: func(q *forecast.Query) {
				flow := forecast.Flow{Lane: job.Lane{Tenant: "acme"}, Destination: "b"}
				q.Waiting = []forecast.Waiting{{Flow: flow, N: 6000}}
			},
			drained: 30 * time.Minute, drainedOfA: 30 * time.Minute,
		},
		"a high priority first": {
			put: func(t *testing.T, s store.Store) {
				at(t, s, "acme", "a", monday, burst/4, func(j *job.Job) { j.Options.Priority = job.PriorityHigh })
				at(t, s, "acme", "b", monday, burst*3/4, func(j *job.Job) { j.Options.Priority = job.PriorityLow })
			},
			drained: 20 * time.Minute, drainedOfA: 6 * time.Minute, // 5.36, of 70 to 5 shares
		},
		"paused": {
			put: func(t *testing.T, s store.Store) { at(t, s, "off", "a", monday, burst, nil) },
		},
		"nothing to wait for": {put: func(t *testing.T, s store.Store) { at(t, s, "acme", "a", monday, 600, nil) }},
	} {
		t.Run(name, func(t *testing.T) {
			s := memory.New()
			if c.put == nil {
				c.put = func(t *testing.T, s store.Store) { at(t, s, "acme", "a", monday, burst, nil) }
			}
			c.put(t, s)
			q := forecast.Query{From: monday, Step: time.Hour, Steps: 1, Top: 10, Capacity: tenPerSecond()}
			q.Tenant = func(name string) forecast.Tenant { return forecast.Tenant{Paused: name == "off"} }
			if c.change != nil {
				c.change(&q)
			}
			r := report(t, s, q)
			want := func(after time.Duration) time.Time {
				if after == 0 {
					return time.Time{}
				}
				return monday.Add(after)
			}
			got := r.Steps[0]
			if !got.DrainedAt.Equal(want(c.drained)) || got.Left != c.left {
				t.Errorf("drained at %s with %d left, want %s with %d", got.DrainedAt, got.Left, want(c.drained), c.left)
			}
			for _, d := range got.Destinations {
				if d.Name == "a" && !d.DrainedAt.Equal(want(c.drainedOfA)) {
					t.Errorf("a is drained at %s, want %s", d.DrainedAt, want(c.drainedOfA))
				}
			}
		})
	}
}

// The report says that a bound was reached.
func TestBounds(t *testing.T) {
	s := memory.New()
	for _, destination := range []string{"a", "b", "c"} {
		at(t, s, "acme", destination, monday, 10, nil)
	}
	for most, want := range map[forecast.Bounds]bool{
		{Jobs: 3, Instants: 30}: false, {Jobs: 2, Instants: 30}: true, {Jobs: 3, Instants: 19}: true,
	} {
		plan, err := forecast.Read(t.Context(), s, destination, monday, most)
		if err != nil {
			t.Fatal(err)
		}
		r := plan.Report(&forecast.Query{From: monday, Step: time.Hour, Steps: 1, Top: 1, Capacity: plenty})
		if r.Incomplete != want || !want && r.Total != 30 || len(r.Steps[0].Destinations) != 1 {
			t.Errorf("%+v: %+v", most, r)
		}
	}
}
