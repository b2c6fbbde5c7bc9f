package status_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/status"
)

func TestParseObjective(t *testing.T) {
	for text, want := range map[string]status.Objective{
		"99.9%<1s":           {Target: .999, Within: time.Second},
		"acme:99%<500ms":     {Tenant: "acme", Target: .99, Within: 500 * time.Millisecond},
		"a.b-c_1:50%<1m":     {Tenant: "a.b-c_1", Target: .5, Within: time.Minute},
		"99.999%<2h":         {Target: .99999, Within: 2 * time.Hour},
		"":                   {},
		"99.9%":              {},
		"99.9<1s":            {},
		"100%<1s":            {},
		"0%<1s":              {},
		"NaN%<1s":            {},
		"99%<0":              {},
		"99%<1us":            {},
		"99%<soon":           {},
		"a b:99%<1s":         {},
		":99%<1s":            {},
		"acme:other:99%<10s": {},
	} {
		got, err := status.ParseObjective(text)
		if (err != nil) != (want == status.Objective{}) || err == nil && got != want {
			t.Errorf("%q is %+v, %v", text, got, err)
		}
		if err == nil && got.Tenant == "" {
			if again, err := status.ParseObjective(got.String()); again != got {
				t.Errorf("%q is %+v as %q, %v", text, again, got.String(), err)
			}
		}
	}
}

// clock is a clock that a test sets.
type clock struct{ now time.Time }

func (c *clock) Now() time.Time { return c.now }

// Each objective counts the jobs of its scope, and windows forget.
func TestObjectives(t *testing.T) {
	c := &clock{time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
	all, acme := status.Objective{Target: .9, Within: time.Second}, status.Objective{Tenant: "acme", Target: .5, Within: time.Millisecond}
	registry := prometheus.NewRegistry()
	w, err := status.NewWatch([]status.Objective{all, acme}, c.Now, registry)
	if err != nil {
		t.Fatal(err)
	}
	for range 8 {
		w.Fired(job.Name{Tenant: "bolt", Key: "k"}, time.Second) // just in time
	}
	w.Fired(job.Name{Tenant: "acme", Key: "k"}, time.Second+1)
	w.Missed(job.Name{Tenant: "acme", Key: "k"}, 1)
	w.Fired(job.Name{Tenant: "acme", Key: job.ReservedPrefix + "event:x"}, time.Hour) // of the service itself
	w.Missed(job.Name{Tenant: "acme", Key: job.ReservedPrefix + "event:x"}, 1)
	expect := func(when string, of status.Objective, want ...status.Window) {
		t.Helper()
		for _, met := range w.Counts().Objectives {
			for i := range want {
				if met.Objective == of && met.Windows[i] != want[i] {
					t.Errorf("%s: %s of %q: in %s %+v, want %+v", when, of, of.Tenant, status.Windows[i], met.Windows[i], want[i])
				}
			}
		}
	}
	first, none := status.Window{Fired: 10, Late: 2}, status.Window{}
	expect("at once", all, first, first, first, first)
	expect("at once", acme, status.Window{Fired: 2, Late: 2})
	if part, ok := first.Met(); !ok || part != .8 || first.BurnRate(all) < 1.999 || first.BurnRate(all) > 2.001 {
		t.Errorf("%v was met, with a burn rate of %v", part, first.BurnRate(all))
	}
	if _, ok := none.Met(); ok || none.BurnRate(all) != 0 {
		t.Error("an objective was met without firings")
	}
	c.now = c.now.Add(10 * time.Minute)
	w.Fired(job.Name{Tenant: "acme", Key: "k"}, 0)
	second := status.Window{Fired: 1}
	expect("ten minutes later", all, second, status.Window{Fired: 11, Late: 2})
	c.now = c.now.Add(40 * time.Minute)
	expect("fifty minutes later", all, none, none, status.Window{Fired: 11, Late: 2})
	c.now = c.now.Add(24 * time.Hour)
	expect("a day later", all, none, none, none, none)

	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			values[f.GetName()+" "+m.GetLabel()[1].GetValue()+" "+m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	for name, want := range map[string]float64{
		"carillon_objective_occurrences_total (all) 90%<1s": 11, "carillon_objective_late_total (all) 90%<1s": 2,
		"carillon_objective_occurrences_total acme 50%<1ms": 3, "carillon_objective_late_total acme 50%<1ms": 2,
		"carillon_objective_target (all) 90%<1s": .9, "carillon_objective_target acme 50%<1ms": .5,
	} {
		if values[name] != want {
			t.Errorf("%s is %v, want %v: %v", name, values[name], want, values)
		}
	}
}

// Lateness covers five minutes, and several replicas together, also by their heartbeats.
func TestLateness(t *testing.T) {
	c := &clock{time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
	var replicas [2]*status.Watch
	objective := status.Objective{Target: .9, Within: time.Second}
	for i := range replicas {
		replicas[i], _ = status.NewWatch([]status.Objective{objective}, c.Now, nil)
	}
	if _, ok := new(status.Counts).Quantile(.5); ok {
		t.Error("there is a lateness without firings")
	}
	for range 98 {
		replicas[0].Fired(job.Name{Tenant: "a", Key: "k"}, 4*time.Millisecond)
	}
	replicas[1].Fired(job.Name{Tenant: "a", Key: "k"}, 400*time.Millisecond)
	replicas[1].Fired(job.Name{Tenant: "a", Key: "k"}, 48*time.Hour)
	both := func() status.Counts {
		var all status.Counts
		for _, w := range replicas {
			h, ok := status.DecodeHeartbeat(status.Heartbeat{Counts: w.Counts()}.Encode())
			if !ok {
				t.Fatal("the heartbeat can't be read")
			}
			all.Add(h.Counts)
		}
		return all
	}
	all := both()
	for part, want := range map[float64]time.Duration{.5: 5 * time.Millisecond, .98: 5 * time.Millisecond, .99: 500 * time.Millisecond, 1: 48 * time.Hour} {
		if got, ok := all.Quantile(part); !ok || got != want {
			t.Errorf("%v of them are at most %s late, want %s", part, got, want)
		}
	}
	if w := all.Objectives[0].Windows[0]; len(all.Objectives) != 1 || w != (status.Window{Fired: 100, Late: 1}) {
		t.Errorf("%+v", all.Objectives)
	}
	c.now = c.now.Add(4 * time.Minute)
	replicas[0].Fired(job.Name{Tenant: "a", Key: "k"}, 4*time.Millisecond)
	c.now = c.now.Add(2 * time.Minute)
	all = both()
	if got, _ := all.Quantile(1); got != 4*time.Millisecond {
		t.Errorf("six minutes later, all are at most %s late", got)
	}
	if _, ok := status.DecodeHeartbeat(nil); ok {
		t.Error("an empty heartbeat tells something")
	}
	var nothing *status.Watch
	nothing.Fired(job.Name{Tenant: "a", Key: "k"}, 0)
	nothing.Missed(job.Name{Tenant: "a", Key: "k"}, 1)
	if got := nothing.Counts(); got.Max != 0 || len(got.Objectives) != 0 {
		t.Errorf("%+v", got)
	}
}

// The lateness of a day is reported hour by hour: this replica's at present, and that of others as they have stored it.
func TestDay(t *testing.T) {
	start := time.Date(2030, 1, 1, 0, 30, 0, 0, time.UTC)
	c := &clock{start}
	fire := func(w *status.Watch, late time.Duration) { w.Fired(job.Name{Tenant: "a", Key: "k"}, late) }
	own, _ := status.NewWatch(nil, c.Now, nil)
	other, _ := status.NewWatch(nil, c.Now, nil)
	fire(own, 4*time.Millisecond)
	fire(other, time.Minute)
	stored := func() (all []status.Hour) {
		for _, h := range other.Unstored() {
			again, ok := status.DecodeHour(h.From, h.Encode())
			if !ok {
				t.Fatal("an hour can't be read")
			}
			all = append(all, again)
		}
		return all
	}
	reads := 0
	var failing error
	day := status.Day{Own: own, Others: func(_ context.Context, since, now time.Time) ([]status.Hour, error) {
		if reads++; !since.Equal(c.now.Truncate(time.Hour).Add(-23*time.Hour)) || !now.Equal(c.now) {
			t.Errorf("at %s, hours since %s are read", now, since)
		}
		return stored(), failing
	}}
	expect := func(when string, ago, fired int, most time.Duration) {
		t.Helper()
		hours, err := day.Hours(t.Context(), c.now)
		if err != nil || len(hours) != status.DayHours {
			t.Fatalf("%s: %d hours, %v", when, len(hours), err)
		}
		for i := range hours {
			h := &hours[status.DayHours-1-i]
			if !h.From.Equal(c.now.Truncate(time.Hour).Add(-time.Duration(i) * time.Hour)) {
				t.Errorf("%s: an hour begins at %s", when, h.From)
			}
			if i == ago && (h.Fired() != fired || h.Max != most) || i > ago && h.Fired() != 0 {
				t.Errorf("%s: %d hours ago, %d were fired, at most %s late; want %d, %s", when, i, h.Fired(), h.Max, fired, most)
			}
		}
	}
	expect("at once", 0, 2, time.Minute)
	fire(own, 2*time.Minute)
	fire(other, 2*time.Minute)
	expect("before the others are read again", 0, 3, 2*time.Minute)
	c.now = start.Add(3 * time.Hour)
	fire(own, time.Second)
	expect("three hours later", 3, 4, 2*time.Minute)
	if n := len(own.Unstored()); n != 2 || reads != 2 {
		t.Errorf("%d hours are to be stored, after %d readings", n, reads)
	}
	all := own.Unstored()
	fire(own, time.Second) // after Unstored, and before Stored
	own.Stored(all)
	if left := own.Unstored(); len(left) != 1 || left[0].Fired() != 2 {
		t.Errorf("%+v is to be stored", left)
	}
	c.now = start.Add(24 * time.Hour)
	expect("a day later", 21, 2, time.Second)
	c.now, failing = start.Add(25*time.Hour), errors.New("away")
	if _, err := day.Hours(t.Context(), c.now); !errors.Is(err, failing) {
		t.Errorf("while the others can't be read: %v", err)
	}
	if _, ok := status.DecodeHour(start, []byte("x")); ok {
		t.Error("nonsense is an hour")
	}
}
