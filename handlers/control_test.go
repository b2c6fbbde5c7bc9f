package handlers_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

type controlled struct{ Key, Version, State, PausedAt string }

// control pauses or resumes the job "a".
func (a *api) control(verb string) controlled {
	a.Helper()
	got := a.call("POST", "/v1/jobs/a/"+verb, "").want(200)
	c := decode[controlled](got)
	if tag := got.header.Get("ETag"); tag != `"`+c.Version+`"` {
		a.Errorf("%s: ETag %s for version %s", verb, tag, c.Version)
	}
	return c
}

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	put := decode[accepted](a.call("PUT", "/v1/jobs/a", body("a", time.Hour, 3*time.Hour)).want(201))
	a.advance(time.Minute)
	paused := a.control("pause")
	if paused.State != "paused" || paused.PausedAt != at(time.Minute) || paused.Version == put.Version || paused.Key != "a" {
		t.Errorf("paused: %+v", paused)
	}
	got := decode[definition](a.call("GET", "/v1/jobs/a", "").want(200))
	if got.State != "paused" || got.PausedAt != at(time.Minute) || got.Version != paused.Version || got.Revision != put.Revision || got.Pending != 2 {
		t.Errorf("read: %+v", got)
	}
	if got := list(a, "").items; !slices.Equal(got, []string{"a paused"}) {
		t.Errorf("listed: %v", got)
	}
	a.advance(time.Hour)
	if again := a.control("pause"); again != paused {
		t.Errorf("paused again: %+v, want %+v", again, paused)
	}
	if n := len(a.claim()); n > 0 {
		t.Fatalf("%d fire while it is paused", n)
	}
	a.takeWakes()

	resumed := a.control("resume")
	if resumed.State != "scheduled" || resumed.PausedAt != "" || resumed.Version == paused.Version {
		t.Errorf("resumed: %+v", resumed)
	}
	if got := a.takeWakes(); !slices.Equal(got, []time.Time{start.Add(time.Hour + time.Minute)}) {
		t.Errorf("woken for %v", got)
	}
	if again := a.control("resume"); again != resumed {
		t.Errorf("resumed again: %+v, want %+v", again, resumed)
	}
	if due := a.claim(); len(due) != 1 || !due[0].Timestamp.Equal(start.Add(time.Hour)) {
		t.Errorf("due are %+v, want what passed meanwhile", due)
	}
}

func TestPausingChangesTheEntityTag(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"pause", "resume"} {
		a := newAPI(t)
		old := a.call("PUT", "/v1/jobs/a", body("a", time.Hour)).want(201).header.Get("ETag")
		if verb == "resume" {
			old = `"` + a.control("pause").Version + `"`
		}
		fresh := `"` + a.control(verb).Version + `"`
		if got := a.call("GET", "/v1/jobs/a", "").want(200).versionTag(); got != fresh {
			t.Errorf("%s: the job's entity tag is for %s, not %s", verb, got, fresh)
		}
		a.call("PUT", "/v1/jobs/a", body("a", time.Hour), "If-Match: "+old).want(412)
		a.call("PUT", "/v1/jobs/a", body("a", time.Hour), "If-Match: "+fresh).want(200)
	}
}

func TestPausedJobStaysPausedWhenItIsReplaced(t *testing.T) {
	t.Parallel()
	for name, replacement := range map[string]string{
		"by instants":   body("a", 0, 2*time.Hour),
		"by a crontab":  recurring("a", "@every 1s"),
		"by a sequence": sequence("a", []any{fire(), wait(2, "hour"), fire()}),
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t)
			a.call("PUT", "/v1/jobs/a", body("a", time.Hour)).want(201)
			a.control("pause")
			if got := decode[accepted](a.call("PUT", "/v1/jobs/a", replacement).want(200)); got.State != "paused" {
				t.Errorf("put: %+v", got)
			}
			if got := a.batch(asLines, replacement); got[0].State != "paused" {
				t.Errorf("put in a batch: %+v", got)
			}
			a.advance(time.Minute)
			if got := decode[definition](a.call("GET", "/v1/jobs/a", "")); got.State != "paused" || len(a.claim()) > 0 {
				t.Errorf("read: %+v", got)
			}
			a.control("resume")
			if len(a.claim()) == 0 {
				t.Error("nothing is due after it is resumed")
			}
		})
	}
}

func TestRecurringJobIsExpandedAfterItsPause(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.call("PUT", "/v1/jobs/a", recurring("a", "@every 1s")).want(201)
	if got := a.control("pause"); got.State != "paused" {
		t.Errorf("%+v", got)
	}
	a.advance(time.Hour)
	if jobs := a.claimJobs(); len(jobs) > 0 {
		t.Errorf("%d jobs are to be expanded while it is paused", len(jobs))
	}
	a.takeExpanding()
	a.control("resume")
	if jobs := a.claimJobs(); len(jobs) != 1 || a.takeExpanding() == 0 {
		t.Errorf("%d jobs are to be expanded, want 1, and the expander woken", len(jobs))
	}
}

// claimJobs takes the jobs that are to be expanded.
func (a *api) claimJobs() []job.Job {
	a.Helper()
	c, err := a.store.ClaimJobs(a.Context(), store.ClaimJobsParams{Now: a.clock(), Lease: time.Minute, Limit: 100})
	if err != nil {
		a.Fatal(err)
	}
	return c.Jobs
}

type triggered struct{ ID, DeliveryID, Timestamp string }

func TestTrigger(t *testing.T) {
	t.Parallel()
	for name, submitted := range map[string]string{
		"instants": body("a", time.Hour),
		"finished": with(body("a", -time.Hour), "past", "skip"),
		"crontab":  recurring("a", "@hourly", "catchUp", "none", "deadline", "1s"),
		"sequence": sequence("a", []any{wait(1, "hour"), fire("own payload")}, "subscribers", 2),
	} {
		for _, paused := range []bool{false, true} {
			t.Run(name+map[bool]string{true: ", paused"}[paused], func(t *testing.T) {
				a := newAPI(t)
				a.call("PUT", "/v1/jobs/a", with(submitted, "retry", map[string]any{"maxAttempts": 3},
					"destination", map[string]any{"maxInFlight": 2, "ratePerSecond": 0.5})).want(201)
				if paused {
					a.control("pause")
				}
				a.advance(time.Second)
				before := decode[definition](a.call("GET", "/v1/jobs/a", "").want(200))
				a.takeWakes()

				first := decode[triggered](a.call("POST", "/v1/jobs/a/trigger", "").want(202))
				second := decode[triggered](a.call("POST", "/v1/jobs/a/trigger", "").want(202))
				if first.Timestamp != at(time.Second) || first.ID == second.ID || first.DeliveryID == second.DeliveryID {
					t.Errorf("at one time: %+v, %+v", first, second)
				}
				if got := a.takeWakes(); !slices.Contains(got, start.Add(time.Second)) {
					t.Errorf("woken for %v", got)
				}
				a.advance(10 * time.Second) // beyond the deadline, which is not the trigger's
				after := decode[definition](a.call("GET", "/v1/jobs/a", "").want(200))
				if after.Version != before.Version || after.State != before.State || after.Pending != before.Pending+2 {
					t.Errorf("before %+v, after %+v", before, after)
				}
				var ids []string
				for _, c := range a.claim() {
					ids = append(ids, c.ID.String())
					if string(c.Callback.Data) != "1" || c.Options.Retry.MaxAttempts != 3 || c.Options.Deadline != 0 ||
						c.Options.Recurrence != nil || c.Payload(c.Options) != nil ||
						c.Options.Destination != (job.DestinationLimits{MaxInFlight: 2, RatePerSecond: 0.5}) {
						t.Errorf("claimed %+v", c)
					}
				}
				want := []string{first.ID, second.ID}
				slices.Sort(ids)
				slices.Sort(want)
				if !slices.Equal(ids, want) {
					t.Errorf("claimed %v, want %v", ids, want)
				}
			})
		}
	}
}

func TestTriggeredOutlivesAReplacementButNoCancellation(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.call("PUT", "/v1/jobs/a", body("a", time.Hour)).want(201)
	id := decode[triggered](a.call("POST", "/v1/jobs/a/trigger", "").want(202)).ID
	a.call("PUT", "/v1/jobs/a", with(body("a", 2*time.Hour), "callback", map[string]any{"type": "http", "data": 2})).want(200)
	if claimed := a.claim(); len(claimed) != 1 || claimed[0].ID.String() != id || string(claimed[0].Callback.Data) != "1" {
		t.Errorf("claimed %+v", claimed)
	}
	a.call("POST", "/v1/jobs/a/trigger", "").want(202)
	if got := string(a.call("DELETE", "/v1/jobs/a", "").want(200).body); got != `{"cancelled":2,"inFlight":1}` {
		t.Errorf("%s", got)
	}
}

var verbs = []string{"pause", "resume", "trigger"}

func TestThereMustBeAJobToControl(t *testing.T) {
	t.Parallel()
	for _, verb := range verbs {
		t.Run(verb, func(t *testing.T) {
			a := newAPI(t, func(c *handlers.Config) { c.Retain = 0 })
			a.call("POST", "/v1/jobs/a/"+verb, "").want(404)
			a.call("PUT", "/v1/jobs/a", body("a", 0)).want(201)
			a.settle(a.claim()[0], store.Ack, "")
			a.call("POST", "/v1/jobs/a/"+verb, "").want(404) // it has lost its retention
			if n := len(a.claim()); n > 0 {
				t.Errorf("%d fire", n)
			}
		})
	}
}

func TestControlTakesNoBody(t *testing.T) {
	t.Parallel()
	for _, verb := range verbs {
		a := newAPI(t)
		a.call("PUT", "/v1/jobs/a", body("a", time.Hour)).want(201)
		path := "/v1/jobs/a/" + verb
		good := map[string]int{"pause": 200, "resume": 200, "trigger": 202}[verb]
		for _, sent := range []string{"", "{}", " {\n} "} {
			for _, media := range []string{"application/json", ""} {
				a.call("POST", path, sent, "Content-Type: "+media).want(good)
			}
		}
		tag := a.call("GET", "/v1/jobs/a", "").header.Get("ETag")
		for _, sent := range []string{`{"at":1}`, "null", "[]", "{", "x", "{}{}"} {
			a.call("POST", path, sent).want(400)
		}
		a.call("POST", path, strings.Repeat(" ", 4001)).want(413)
		if p := a.call("POST", path+"?force=1", "").want(422).problem(); !slices.Equal(p.named(), []string{"?force"}) {
			t.Errorf("%+v", p)
		}
		if got := a.call("GET", "/v1/jobs/a", "").header.Get("ETag"); got != tag {
			t.Errorf("%s: the version changed although it was refused", verb)
		}
	}
}

// TestKeysThatAreWordsOfPaths has jobs whose keys stand elsewhere in the API's paths.
func TestKeysThatAreWordsOfPaths(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	for path, key := range map[string]string{
		pathOf("batch"): "batch", pathOf("preview"): "preview", pathOf("pause"): "pause", pathOf("a/pause"): "a/pause",
		"/v1/jobs/%2E%2E": "..", "/v1/jobs/%2E": ".", // which browsers resolve, so that there are other spellings:
		"/v1/jobs/$carillon:..": "..", "/v1/jobs/%24carillon%3A.": ".",
	} {
		a.call("PUT", path, with(body("", time.Hour), "key", nil)).want(201)
		for _, verb := range []string{"pause", "resume"} {
			if got := decode[controlled](a.call("POST", path+"/"+verb, "").want(200)); got.Key != key {
				t.Errorf("%s of %q did %q", verb, key, got.Key)
			}
		}
		a.call("POST", path+"/trigger", "").want(202)
		a.call("GET", path+"/preview", "").want(200)
		if got := decode[accepted](a.call("PATCH", path, `{"deadline":"1h"}`).want(200)); got.Key != key {
			t.Errorf("patch of %q did %q", key, got.Key)
		}
		a.call("DELETE", path, "").want(200)
	}
}

// TestControlThatFails: a change that fails is answered with its failure, and wakes no loop.
func TestControlThatFails(t *testing.T) {
	t.Parallel()
	for _, verb := range verbs {
		a := newAPI(t, func(c *handlers.Config) { c.Store = failsControl{c.Store} })
		a.call("PUT", "/v1/jobs/a", body("a", time.Hour)).want(201)
		a.takeWakes()
		a.call("POST", "/v1/jobs/a/"+verb, "").want(503)
		if got := a.takeWakes(); len(got) > 0 || a.takeExpanding() > 0 {
			t.Errorf("%s: woken for %v", verb, got)
		}
	}
}

type jobStore interface{ store.Jobs }

// cancelledSince is a store in which a job is cancelled as soon as it is paused or resumed, if cancels is set.
type cancelledSince struct {
	jobStore
	cancels bool
}

func (s *cancelledSince) Pause(ctx context.Context, name job.Name, version job.Revision, now time.Time) error {
	return s.after(ctx, s.jobStore.Pause(ctx, name, version, now), name, now)
}

func (s *cancelledSince) Resume(ctx context.Context, name job.Name, version job.Revision, now time.Time) error {
	return s.after(ctx, s.jobStore.Resume(ctx, name, version, now), name, now)
}

func (s *cancelledSince) after(ctx context.Context, err error, name job.Name, now time.Time) error {
	if err != nil || !s.cancels {
		return err
	}
	_, err = s.Cancel(ctx, []job.Name{name}, store.Asked{Now: now})
	return err
}

// TestCancelledSinceItChanged: a pause or resume that was made is answered so, even if the job is cancelled before the
// answer. A 404 would say that nothing was changed, though occurrences may have fired since.
func TestCancelledSinceItChanged(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		verb, state, pausedAt string
		paused, same          bool // before; whether it keeps its version
	}{
		{verb: "pause", state: "paused", pausedAt: at(time.Minute)},
		{verb: "pause", state: "paused", pausedAt: at(0), paused: true, same: true},
		{verb: "resume", state: "scheduled", paused: true},
		{verb: "resume", state: "scheduled", same: true},
	} {
		s := &cancelledSince{}
		a := newAPI(t, func(c *handlers.Config) { s.jobStore, c.Store = c.Store, s })
		version := decode[accepted](a.call("PUT", "/v1/jobs/a", body("a", time.Hour)).want(201)).Version
		if test.paused {
			version = a.control("pause").Version
		}
		a.advance(time.Minute)
		s.cancels = true
		got := a.control(test.verb)
		if got.State != test.state || got.PausedAt != test.pausedAt || (got.Version == version) != test.same {
			t.Errorf("%s, paused before: %t: %+v", test.verb, test.paused, got)
		}
		a.call("POST", "/v1/jobs/a/"+test.verb, "").want(404)
	}
}
