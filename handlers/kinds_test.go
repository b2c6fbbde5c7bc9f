package handlers_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// TestSubmissionsOfEachKind checks the answers, and the time after which the job may be swept.
func TestSubmissionsOfEachKind(t *testing.T) {
	t.Parallel()
	never := time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)
	back := map[string]any{"type": "wait_specific_date", "date": at(time.Hour)}
	past := map[string]any{"type": "wait_specific_date", "date": at(-time.Hour)}
	a := newAPI(t)
	for name, test := range map[string]struct {
		body    string
		want    accepted
		expires time.Time
	}{
		"delay": {with(body("a"), "schedules", nil, "delay", "1d12h"),
			accepted{NextInstant: at(36 * time.Hour), Occurrences: 1}, start.Add(36*time.Hour + retain)},
		"no delay":          {with(body("a"), "schedules", nil, "delay", "0s"), accepted{NextInstant: at(0), Occurrences: 1}, start.Add(retain)},
		"crontab":           {recurring("a", "@hourly"), accepted{NextInstant: at(time.Hour), Occurrences: 1}, never},
		"up to the horizon": {recurring("a", "*/10 * * * * *"), accepted{NextInstant: at(10 * time.Second), Occurrences: 12}, never},
		"from its start": {recurring("a", "@every 1m", "startAt", at(time.Hour)),
			accepted{NextInstant: at(time.Hour), Occurrences: 1}, never},
		"in its zone": {recurring("a", "0 9 * * *", "timezone", "Asia/Kathmandu"),
			accepted{NextInstant: at(15*time.Hour + 15*time.Minute), Occurrences: 1}, never},
		"with its end": {recurring("a", "@every 1m", "endAt", at(90*time.Second)),
			accepted{NextInstant: at(time.Minute), Occurrences: 1}, start.Add(time.Minute + retain)},
		"once": {recurring("a", "@at 1893510000"),
			accepted{NextInstant: at(3 * time.Hour), Occurrences: 1}, start.Add(3*time.Hour + retain)},
		"once, past": {recurring("a", "@at 1893495600"), accepted{NextInstant: at(-time.Hour), Occurrences: 1}, start.Add(retain)},
		"sequence": {sequence("a", []any{wait(1, "minute"), fire(), fire()}, "type", "sequence"),
			accepted{NextInstant: at(time.Minute), Occurrences: 2}, start.Add(time.Minute + retain)},
		"going back": {sequence("a", []any{wait(2, "weeks"), fire(), back, fire(), wait(1, "hour"), fire()}),
			accepted{NextInstant: at(time.Hour), Occurrences: 3}, start.Add(14*24*time.Hour + retain)},
		"numbered": {sequence("a", []any{fire(), fire()}, "subscribers", 5),
			accepted{NextInstant: at(0), Occurrences: 10}, start.Add(retain)},
		"listed": {sequence("a", []any{fire(), fire()}, "subscribers", []any{"x", 7, map[string]any{"id": "y"}}),
			accepted{NextInstant: at(0), Occurrences: 6}, start.Add(retain)},
		"partly past": {sequence("a", []any{past, fire(), back, fire()}, "subscribers", 2),
			accepted{NextInstant: at(-time.Hour), Occurrences: 4}, start.Add(time.Hour + retain)},
		"partly skipped": {sequence("a", []any{past, fire(), back, fire()}, "subscribers", 2, "past", "skip"),
			accepted{NextInstant: at(time.Hour), Occurrences: 2, Skipped: 2}, start.Add(time.Hour + retain)},
		"past the deadline": {with(body("a", -time.Hour, -time.Minute, time.Hour), "deadline", "2m"),
			accepted{NextInstant: at(-time.Minute), Occurrences: 2, Missed: 1}, start.Add(time.Hour + retain)},
		"all past it":      {with(body("a", -time.Hour), "deadline", "2m"), accepted{Missed: 1, State: "finished"}, start.Add(retain)},
		"null is left out": {recurring("a", "@hourly", "timezone", any(nil)), accepted{NextInstant: at(time.Hour), Occurrences: 1}, never},
		"for each, past": {sequence("a", []any{past, fire()}, "subscribers", 3, "deadline", "1m"),
			accepted{Missed: 3, State: "finished"}, start.Add(retain)},
		"same in both zones": {recurring("a", "0 13 * * *", "startAt", "2030-01-01T14:00:00+01:00"),
			accepted{NextInstant: at(time.Hour), Occurrences: 1}, never},
	} {
		t.Run(name, func(t *testing.T) {
			for _, batch := range []bool{false, true} {
				var got accepted
				if batch {
					answered := a.call("POST", "/v1/jobs/batch", test.body, "Content-Type: "+asLines).want(200)
					a.results(asLines, answered.body)
					got = decode[accepted](answered)
				} else {
					got = decode[accepted](a.call("POST", "/v1/jobs", test.body).want(201))
				}
				if got.Version != got.Revision || got.Revision == "" {
					t.Errorf("version %s of revision %s", got.Version, got.Revision)
				}
				want := test.want
				want.Key, want.Revision, want.Version = "a", got.Revision, got.Version
				if want.State == "" {
					want.State = "scheduled"
				}
				if got != want {
					t.Errorf("%+v, want %+v", got, want)
				}
				status, err := store.ReadJob(t.Context(), a.store.Store, job.Name{Tenant: job.DefaultTenant, Key: "a"})
				if err != nil || !status.ExpiresAt.Equal(test.expires) || status.Missed != want.Missed {
					t.Errorf("expires at %s, want %s; missed %d, %v", status.ExpiresAt, test.expires, status.Missed, err)
				}
				if !slices.ContainsFunc(a.takeWakes(), func(w time.Time) bool { return job.FormatTime(w) == want.NextInstant }) && want.NextInstant != "" {
					t.Error("no one was woken for the next instant")
				}
				if a.takeExpanding() > 0 {
					t.Error("the expander was woken, though all of the horizon is there")
				}
				a.call("DELETE", "/v1/jobs/a", "").want(200)
			}
		})
	}
}

// TestDefinitionsAreShownAsSubmitted: a job of each kind is shown as it was submitted, without derived fields.
func TestDefinitionsAreShownAsSubmitted(t *testing.T) {
	t.Parallel()
	shown := []string{"schedules", "delay", "crontab", "steps", "subscribers", "timezone", "startAt", "endAt", "deadline", "catchUp", "type", "past"}
	for name, test := range map[string]struct{ body, want string }{
		"instants": {body("a", time.Hour), `{"schedules":["2030-01-01T13:00:00.000Z"]}`},
		"delay":    {with(body("a"), "schedules", nil, "delay", "1d", "deadline", "90s"), `{"deadline":"1m30s","delay":"24h"}`},
		"crontab": {recurring("a", " 0  9 * *  MON-FRI ", "timezone", "Europe/Paris",
			"startAt", "2030-02-01T00:00:00+01:00", "endAt", "2031-01-01T00:00:00Z", "catchUp", "all"),
			`{"catchUp":"all","crontab":"0 9 * * MON-FRI","endAt":"2031-01-01T00:00:00.000Z","startAt":"2030-01-31T23:00:00.000Z","timezone":"Europe/Paris"}`},
		"at": {recurring("a", "@at 1893510000", "past", "reject"), `{"crontab":"@at 1893510000"}`},
		"sequence": {sequence("a", []any{wait(1.5, "hours"), fire(map[string]any{"b": nil, "a": []int{1}}),
			map[string]any{"type": "wait_weekday", "weekdays": []string{"Fri", "monday"}}, fire()},
			"type", "sequence", "subscribers", []any{"x", map[string]any{"id": 1}}),
			`{"steps":[{"delay_period":1.5,"delay_unit":"hours","type":"wait_certain_period"},{"metadata":{"a":[1],"b":null},"type":"job"},` +
				`{"type":"wait_weekday","weekdays":["Fri","monday"]},{"type":"job"}],"subscribers":["x",{"id":1}]}`},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t)
			a.call("PUT", "/v1/jobs/a", test.body).want(201)
			whole := decode[map[string]any](a.call("GET", "/v1/jobs/a", "").want(200))
			got := map[string]any{}
			for _, field := range shown {
				if v, ok := whole[field]; ok {
					got[field] = v
				}
			}
			if encode(got) != test.want {
				t.Errorf("%s, want %s", encode(got), test.want)
			}
			for _, absent := range []string{"pausedAt", "missed"} {
				if v, ok := whole[absent]; ok {
					t.Errorf("%s is %v", absent, v)
				}
			}
			// It can be submitted again as it is shown.
			again := with(encode(got), "key", "b", "callback", map[string]any{"type": "http", "data": 1})
			a.call("POST", "/v1/jobs", again).want(201)
		})
	}
}

func TestOccurrencesOfASequenceTellTheirPart(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.call("PUT", "/v1/jobs/a", sequence("a", []any{fire("welcome"), wait(1, "hour"), fire()}, "subscribers", []any{"x", map[string]any{"id": 2}})).want(201)
	a.call("PUT", "/v1/jobs/b", sequence("b", []any{wait(1, "hour"), fire()})).want(201)
	parts := func(key string) []string {
		var parts []string
		for _, o := range a.definition(key).Occurrences {
			parts = append(parts, fmt.Sprintf("%s step %d for %q", o.Timestamp, *o.Step, o.Subscriber))
		}
		slices.Sort(parts)
		return parts
	}
	want := []string{at(0) + ` step 0 for "x"`, at(0) + ` step 0 for "{\"id\":2}"`, at(time.Hour) + ` step 2 for "x"`, at(time.Hour) + ` step 2 for "{\"id\":2}"`}
	if got := parts("a"); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := parts("b"); !slices.Equal(got, []string{at(time.Hour) + ` step 1 for ""`}) {
		t.Errorf("%q", got)
	}
	for _, c := range a.claim() {
		if string(c.Payload(c.Options)) != `"welcome"` {
			t.Errorf("delivers %s", c.Payload(c.Options))
		}
		a.settle(c, store.Bury, "no")
	}
	subscribers := map[string]bool{}
	for _, letter := range decode[struct {
		Items []struct {
			Step       *int
			Subscriber string
		}
	}](a.call("GET", "/v1/dead-letters", "").want(200)).Items {
		if letter.Step == nil || *letter.Step != 0 {
			t.Errorf("dead letter %+v", letter)
		}
		subscribers[letter.Subscriber] = true
	}
	if len(subscribers) != 2 || !subscribers["x"] {
		t.Errorf("dead letters for %v", subscribers)
	}
}

func TestMissedInstantsAreShown(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.call("PUT", "/v1/jobs/a", with(body("a", 0, time.Hour), "deadline", "1m")).want(201)
	a.settle(a.claim()[0], store.Miss, "")
	if got := a.definition("a"); got.Missed != 1 || got.Pending != 1 {
		t.Errorf("%+v", got)
	}
	if got := decode[accepted](a.patch("a", `{"deadline":"2m"}`).want(200)); got.Missed != 1 {
		t.Errorf("patched: %+v", got)
	}
	if got := decode[accepted](a.call("PUT", "/v1/jobs/a", body("a", time.Hour)).want(200)); got.Missed != 0 {
		t.Errorf("replaced: %+v", got)
	}
}

// TestLargeSequence puts three job steps for 10,000 subscribers within the limits that there are by default, all or
// nothing.
func TestLargeSequence(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	t.Parallel()
	a := newAPI(t, func(c *handlers.Config) {
		c.Limits = job.Limits{Instants: 100_000, Payload: 256 << 10}
		c.MaxBody = 4 << 20
	})
	subscribers := make([]string, 3_000)
	for i := range subscribers {
		subscribers[i] = fmt.Sprintf("subscriber-%d@example.com", i)
	}
	submitted := sequence("a", []any{fire(1), wait(1, "day"), fire(2), wait(1, "week"), fire(3)}, "subscribers", subscribers)
	a.store.setFault(store.ErrUnavailable)
	a.call("POST", "/v1/jobs", submitted).want(503)
	a.store.setFault(nil)
	a.call("GET", "/v1/jobs/a", "").want(404)
	if got := decode[accepted](a.call("POST", "/v1/jobs", submitted).want(201)); got.Occurrences != 9_000 || got.NextInstant != at(0) {
		t.Errorf("%+v", got)
	}
	if d := a.definition("a"); d.Pending != 9_000 || len(d.Occurrences) != 100 {
		t.Errorf("%d pending", d.Pending)
	}
	numbered := sequence("b", []any{fire(), wait(1, "day"), fire()}, "subscribers", 50_001)
	if p := a.call("POST", "/v1/jobs", numbered).want(422).problem(); !slices.Equal(p.named(), []string{"/subscribers"}) || !strings.Contains(p.Errors[0].Message, "--max-instants") {
		t.Errorf("%+v", p)
	}
}

// A priority and the limits of a destination are shown as they were submitted, and patches change them.
func TestPriorityAndDestination(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	type shown struct {
		Priority    string
		Destination *struct {
			MaxInFlight   int
			RatePerSecond float64
		}
	}
	get := func() shown { t.Helper(); return decode[shown](a.call("GET", "/v1/jobs/k", "").want(200)) }
	submitted := with(body("k", time.Hour), "priority", "low", "destination", map[string]any{"maxInFlight": 20, "ratePerSecond": 0.5})
	a.call("POST", "/v1/preview", submitted).want(200)
	a.call("PUT", "/v1/jobs/k", submitted).want(201)
	if got := get(); got.Priority != "low" || got.Destination == nil || got.Destination.MaxInFlight != 20 || got.Destination.RatePerSecond != 0.5 {
		t.Errorf("it is shown as %+v", got)
	}
	a.patch("k", `{"priority":"high","destination":{"maxInFlight":null}}`).want(200)
	if got := get(); got.Priority != "high" || got.Destination == nil || got.Destination.MaxInFlight != 0 || got.Destination.RatePerSecond != 0.5 {
		t.Errorf("after a patch it is shown as %+v", got)
	}
	a.patch("k", `{"priority":null,"destination":null}`).want(200)
	if got := get(); got.Priority != "" || got.Destination != nil {
		t.Errorf("without them it is shown as %+v", got)
	}
	bad := with(body("k", time.Hour), "priority", "urgent", "destination", map[string]any{"maxInFlight": 0, "ratePerSecond": 1e6, "burst": 1})
	for _, got := range []answer{a.call("PUT", "/v1/jobs/k", bad), a.patch("k", bad)} {
		want := []string{"/destination/burst", "/priority", "/destination/maxInFlight", "/destination/ratePerSecond"}
		if named := got.want(422).problem().named(); !slices.Equal(named, want) {
			t.Errorf("they are refused with %q, want %q: %s", named, want, got.body)
		}
	}
}

// A schedule begins when it is submitted. If the store takes its time, no tick that fell due meanwhile is left out.
func TestBeginsWhenSubmitted(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.call("PUT", "/v1/jobs/a", body("a", time.Hour)).want(201)
	a.store.onPut = func([]store.Put) { a.advance(2 * time.Second) } // the first fails, since there is a job
	ticks := with(body("a"), "schedules", nil, "crontab", "@every 1m", "startAt", at(time.Second))
	if got := decode[accepted](a.call("PUT", "/v1/jobs/a", ticks).want(200)); got.NextInstant != at(time.Second) || got.Occurrences != 2 {
		t.Errorf("the answer is %+v", got)
	}
}
