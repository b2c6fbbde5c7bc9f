package forecast_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/dispatcher"
	"github.com/carillon-scheduler/carillon/forecast"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/memory"
)

// replica fires the due occurrences of a store, as a dispatcher does, on a clock that jumps from one due time to the
// next. It counts by the hour, and by the keys of a forecast.
type replica struct {
	*testing.T
	store store.Store
	now   time.Time
	from  time.Time // hours are counted from here; nothing is counted while it is zero
	got   map[string]int
}

// run fires all occurrences that are due before a time.
func (r *replica) run(until time.Time) {
	r.Helper()
	ctx := r.Context()
	for {
		jobs, err := r.store.ClaimJobs(ctx, store.ClaimJobsParams{Now: r.now, Lease: time.Hour, Limit: 1000})
		if err != nil {
			r.Fatal(err)
		}
		var advances []store.Advance
		for i := range jobs.Jobs {
			j := &jobs.Jobs[i]
			x, err := j.Expand(r.now, expansion)
			if err != nil {
				r.Fatal(err)
			}
			advances = append(advances, store.Advance{
				Name: j.Name, Revision: j.Revision, From: j.Cursor, Token: jobs.Token, Occurrences: x.Occurrences,
				Cursor: x.Cursor, ExpandAt: x.ExpandAt, Missed: x.Missed, Trouble: x.Trouble, ExpiresAt: r.now,
			})
		}
		if err := r.store.Advance(ctx, advances); err != nil {
			r.Fatal(err)
		}
		page, err := r.store.DueLanes(ctx, store.DueParams{Until: r.now, Limit: 1000})
		if err != nil {
			r.Fatal(err)
		}
		for _, l := range page.Lanes {
			r.fire(l.Lane)
		}
		// It expands each five minutes, as the replicas of a lease of an hour do.
		next := r.now.Truncate(5 * time.Minute).Add(5 * time.Minute)
		if page, err = r.store.DueLanes(ctx, store.DueParams{Until: next, Limit: 1}); err != nil {
			r.Fatal(err)
		}
		if len(page.Lanes) > 0 {
			next = page.Lanes[0].DueAt
		}
		if !next.Before(until) {
			r.now = until
			return
		}
		r.now = next
	}
}

func (r *replica) fire(lane job.Lane) {
	claim, err := r.store.Claim(r.Context(), store.ClaimParams{
		Now: r.now, Lease: time.Hour, Quotas: []store.Quota{{Lane: lane, Limit: 1000}},
	})
	if err != nil {
		r.Fatal(err)
	}
	var done []store.Settlement
	for _, o := range claim.Occurrences {
		done = append(done, store.Settlement{ID: o.ID, Token: o.Token, Outcome: store.Ack, Name: o.Name, Revision: o.Revision})
		if r.from.IsZero() || r.now.Before(r.from) {
			continue
		}
		hour := r.now.Sub(r.from) / time.Hour
		for _, what := range []string{"", "tenant " + o.Name.Tenant, "destination " + destination(o.Callback)} {
			r.got[fmt.Sprintf("hour %d %s", hour, what)]++
		}
	}
	if err := r.store.Settle(r.Context(), done); err != nil {
		r.Fatal(err)
	}
}

// destination names the destination of a test's callback.
func destination(c job.Callback) string { return string(c.Data) }

// submit stores a job as the API does.
func submit(t *testing.T, to store.Store, now time.Time, tenant, body string) {
	t.Helper()
	draft, err := job.Decode([]byte(body))
	if err != nil {
		t.Fatal(body, err)
	}
	j, err := draft.Job(tenant, job.Limits{Instants: 10_000, Payload: 10_000})
	if err != nil {
		t.Fatal(body, err)
	}
	j.Revision = job.NewRevision(now)
	j.Version, j.CreatedAt, j.UpdatedAt, j.ExpiresAt = j.Revision, now, now, now.Add(1000*time.Hour)
	begun, err := j.Begin(now, draft.PastOrDefault(), expansion)
	if err != nil {
		t.Fatal(body, err)
	}
	if r := to.Put(t.Context(), []store.Put{{Job: j, Occurrences: begun.Occurrences, Now: now}})[0]; r.Err != nil {
		t.Fatal(r.Err)
	}
}

// expansion configures the expansion by the test's replica.
var expansion = job.Expansion{Horizon: 2 * time.Hour, CatchUpLimit: job.DefaultCatchUpLimit}

// The forecast of a month equals the firings of that month, in each hour, by tenant and by destination: with crontabs
// around clock changes, sequences, lists, spreads, and jobs that are paused, are cancelled, or end.
func TestMonthIsForecastExactly(t *testing.T) {
	// Europe changes its clocks on 26 March, America on 2 April.
	memory := memory.New()
	r := &replica{T: t, store: memory, got: make(map[string]int), now: time.Date(2000, 3, 15, 9, 30, 1, 234e6, time.UTC)}
	put := func(tenant, key, schedule string) {
		submit(t, memory, r.now, tenant, `{"key":"`+key+`","callback":{"type":"test","data":"to `+key[:1]+`"},`+schedule+`}`)
	}
	for i, zone := range []string{"Europe/Paris", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "UTC"} {
		tenant := []string{"acme", "bolt"}[i%2]
		for k, crontab := range []string{"30 2 * * *", "40 */8 * * *", "15 1-3 * * 0", "0 9 * * 1-5", "H H * * *", "H */6 * * *"} {
			put(tenant, fmt.Sprintf("%d cron %s", k, zone), `"crontab":"`+crontab+`","timezone":"`+zone+`"`)
			put(tenant, fmt.Sprintf("%d spread %s", k, zone), `"crontab":"`+crontab+`","timezone":"`+zone+`","spread":"45m","priority":"low"`)
		}
		put(tenant, "steps "+zone, `"timezone":"`+zone+`","steps":[{"type":"wait_weekday","weekdays":["sunday"]},{"type":"job"},`+
			`{"type":"wait_certain_period","delay_period":5,"delay_unit":"day"},{"type":"job"}],"subscribers":["a","b","c"]`)
		put(tenant, "moved steps "+zone, `"spread":"3h","steps":[{"type":"wait_certain_period","delay_period":7,"delay_unit":"day"},`+
			`{"type":"job"},{"type":"job"}],"subscribers":40`)
	}
	put("acme", "every", `"crontab":"@every 5h7m"`)
	put("acme", "every again", `"crontab":"@every 5h7m","startAt":"2000-04-01T00:00:00.123Z"`)
	put("bolt", "twice", `"crontab":"*/30 0-2 * * *","startAt":"2000-03-20T00:00:00Z","endAt":"2000-04-10T12:00:00Z"`)
	put("bolt", "at", `"crontab":"@at 954547200"`)
	put("bolt", "list", `"schedules":["2000-03-14T00:00:00Z","2000-03-15T12:00:00Z","2000-04-02T02:30:00-05:00","2000-04-02T07:30:00Z"],"spread":"1h"`)
	put("acme", "delay", `"delay":"100h"`)
	put("acme", "paused", `"crontab":"0 * * * *"`)
	put("acme", "gone", `"crontab":"0 * * * *"`)

	r.run(r.now.Add(50 * time.Hour)) // the crontabs' cursors have moved
	now := r.now
	if err := memory.Pause(t.Context(), job.Name{Tenant: "acme", Key: "paused"}, "p", now); err != nil {
		t.Fatal(err)
	}
	if _, err := memory.Cancel(t.Context(), []job.Name{{Tenant: "acme", Key: "gone"}}, store.Asked{Now: now}); err != nil {
		t.Fatal(err)
	}

	reader := forecast.NewReader(memory, destination, forecast.DefaultBounds)
	plan, err := reader.Plan(t.Context(), now)
	if err != nil {
		t.Fatal(err)
	}
	const hours = 31 * 24
	from := now.Add(time.Hour).Truncate(time.Millisecond)
	r.from = from
	report := plan.Report(&forecast.Query{From: from, Step: time.Hour, Steps: hours, Top: 100, Capacity: plenty})
	if report.Incomplete || report.Unknown != 0 || report.Paused != hours {
		t.Errorf("incomplete %v, unknown %d, paused %d", report.Incomplete, report.Unknown, report.Paused)
	}
	want := map[string]int{}
	for i, s := range report.Steps {
		tell := func(what string, n int) {
			if n > 0 {
				want[fmt.Sprintf("hour %d %s", i, what)] = n
			}
		}
		tell("", s.Count)
		for _, p := range s.Tenants {
			tell("tenant "+p.Name, p.Count)
		}
		for _, p := range s.Destinations {
			tell("destination "+p.Name, p.Count)
		}
	}

	r.run(from.Add(hours * time.Hour))
	got := r.got
	if total := len(got); total < hours {
		t.Errorf("only %d numbers", total)
	}
	for _, what := range slices.Sorted(maps.Keys(want)) {
		if got[what] != want[what] {
			t.Errorf("%s: %d were forecast, %d have fired", what, want[what], got[what])
		}
	}
	for what, n := range got {
		if want[what] == 0 {
			t.Errorf("%s: none was forecast, %d have fired", what, n)
		}
	}
}

// plenty is a capacity that nothing has to wait for.
var plenty = forecast.Capacity{
	PerSecond: 1e9, Replicas: 1, Policy: dispatcher.Defaults.Policy, Destinations: dispatcher.Defaults.Destinations,
	Took:   func(string) time.Duration { return 0 },
	Tenant: func(string) forecast.Tenant { return forecast.Tenant{} },
}
