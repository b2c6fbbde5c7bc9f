package handlers_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// patch sends a merge patch.
func (a *api) patch(key, patch string, headers ...string) answer {
	a.Helper()
	return a.call("PATCH", pathOf(key), patch, append(headers, "Content-Type: application/merge-patch+json")...)
}

// kinds has a job of each kind, with two occurrences or more in the store.
var kinds = map[string]string{
	"instants":  body("a", time.Hour, 2*time.Hour),
	"crontab":   recurring("a", "@every 1m", "endAt", "2031-01-01T00:00:00+01:00", "timezone", "Europe/Paris"),
	"sequence":  sequence("a", []any{wait(1.5, "hour"), fire(map[string]any{"a": "<é> 1.0"}), fire()}, "subscribers", []any{"x", map[string]any{"id": 1.50}}),
	"delay":     with(body("a"), "schedules", nil, "delay", "90m", "retry", map[string]any{"initial": "2s"}),
	"at":        recurring("a", "@at 1893510000", "deadline", "1d"),
	"a lot set": recurring("a", "0 0 1 * *", "startAt", "2030-02-01T00:00:00Z", "catchUp", "all", "deadline", "1h", "retry", map[string]any{"factor": 3, "max": "2h"}),
}

// TestPatchOfWhatIsNoScheduleKeepsTheInstants: such a patch changes one document, for each kind of job, however often,
// and whether or not the job is paused.
func TestPatchOfWhatIsNoScheduleKeepsTheInstants(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	t.Parallel()
	a := newAPI(t)
	for name, submitted := range kinds {
		for patch, check := range map[string]func(definition) bool{
			`{"callback":{"data":{"payload":2}}}`: func(d definition) bool { return string(d.data) == `{"payload":2}` },
			`{"callback":{"type":"rabbitmq"}}`:    func(d definition) bool { return d.Callback.Type == "rabbitmq" },
			`{"deadline":"3h"}`:                   func(d definition) bool { return d.Deadline == "3h" },
			`{"deadline":null}`:                   func(d definition) bool { return d.Deadline == "" },
			`{"retry":{"maxAttempts":7}}`:         func(d definition) bool { return d.Retry.MaxAttempts == 7 },
		} {
			t.Run(name+patch, func(t *testing.T) {
				put := decode[accepted](a.call("PUT", "/v1/jobs/a", submitted).want(201))
				paused := a.control("pause")
				before := a.definition("a")
				a.store.takePuts()
				a.advance(time.Second)

				answered := a.patch("a", patch).want(200)
				got := decode[accepted](answered)
				after := a.definition("a")
				unchanged := patch == `{"deadline":null}` && before.Deadline == ""
				if got.Revision != put.Revision || (got.Version == paused.Version) != unchanged || got.State != "paused" ||
					got.Occurrences != put.Occurrences || got.NextInstant != put.NextInstant || got.InFlight != nil {
					t.Errorf("answered %s", answered.body)
				}
				if answered.header.Get("ETag") != `"`+got.Version+`"` || after.Version != got.Version || !check(after) {
					t.Errorf("read %+v", after)
				}
				if encode(after.Occurrences) != encode(before.Occurrences) {
					t.Errorf("occurrences %v, then %v", before.Occurrences, after.Occurrences)
				}
				if puts := a.store.takePuts(); len(puts) > 0 || (a.store.takeAmends() != 1) != unchanged {
					t.Errorf("%d puts", len(puts))
				}
				a.advance(-time.Second)
				a.call("DELETE", "/v1/jobs/a", "").want(200)
			})
		}
	}
}

// definition reads a job.
func (a *api) definition(key string) definition {
	a.Helper()
	got := a.call("GET", pathOf(key), "").want(200)
	d := decode[definition](got)
	var raw struct {
		Callback struct{ Data json.RawMessage }
	}
	if err := json.Unmarshal(got.body, &raw); err != nil {
		a.Fatal(err)
	}
	d.data = raw.Callback.Data
	return d
}

func TestPatchedCallbackFiresWithTheOldInstants(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.call("PUT", "/v1/jobs/a", body("a", time.Hour)).want(201)
	a.patch("a", `{"callback":{"data":{"n":2}}}`).want(200)
	a.advance(time.Hour)
	if claimed := a.claim(); len(claimed) != 1 || string(claimed[0].Callback.Data) != `{"n":2}` {
		t.Errorf("claimed %+v", claimed)
	}
}

func TestPatchKeepsBytesThatItDoesNotName(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.call("PUT", "/v1/jobs/a", `{"schedules":["`+at(time.Hour)+`"],"callback":{"type":"http","data":{ "b" : 1.0,`+"\n"+` "a":{"x":[1E40, "\u00e9"]}, "c": 1 }}}`).want(201)
	a.patch("a", `{"callback":{"data":{"c":null,"a":{"y": 2.50}}}}`).want(200)
	if got, want := string(a.definition("a").data), `{"b":1.0,"a":{"x":[1E40, "\u00e9"],"y":2.50}}`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	a.call("PUT", "/v1/jobs/a", `{"schedules":["`+at(time.Hour)+`"],"callback":{"type":"http","data":{ "b" : 1.0 }}}`).want(200)
	a.patch("a", `{"deadline":"1h"}`).want(200)
	if got, want := string(a.definition("a").data), `{ "b" : 1.0 }`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestPatchOfTheScheduleReplaces gives the job a new revision, and only its instants fire.
func TestPatchOfTheScheduleReplaces(t *testing.T) {
	t.Parallel()
	later := at(5 * time.Hour)
	for name, test := range map[string]struct {
		submitted, patch string
		occurrences      int
		skipped          int
		next             string
	}{
		"instants":           {kinds["instants"], `{"schedules":["` + later + `"]}`, 1, 0, later},
		"to a past one":      {kinds["instants"], `{"schedules":["` + later + `","` + at(-time.Hour) + `"]}`, 1, 1, later},
		"to a past one, all": {kinds["instants"], `{"past":"fire","schedules":["` + later + `","` + at(-time.Hour) + `"]}`, 2, 0, at(-time.Hour)},
		"crontab":            {kinds["crontab"], `{"crontab":"30 17 * * *"}`, 1, 0, "2030-01-01T16:30:00.000Z"}, // the zone stays
		"zone":               {recurring("a", "0 0 * * *", "timezone", "Europe/Paris"), `{"timezone":null}`, 1, 0, "2030-01-02T00:00:00.000Z"},
		"metadata": {sequence("a", []any{wait(1, "hour"), fire(1)}),
			`{"steps":[` + encode(wait(2, "hour")) + `,{"type":"job","metadata":2}]}`, 1, 0, at(2 * time.Hour)}, // from where it began
		"subscribers":   {sequence("a", []any{wait(1, "hour"), fire()}, "subscribers", 2), `{"subscribers":3}`, 3, 0, at(time.Hour)},
		"other kind":    {kinds["instants"], `{"schedules":null,"delay":"2m"}`, 1, 0, at(3 * time.Minute)},
		"to a sequence": {recurring("a", "@hourly"), `{"crontab":null,"steps":[{"type":"job"}]}`, 1, 0, at(time.Minute)},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t)
			put := decode[accepted](a.call("PUT", "/v1/jobs/a", with(test.submitted, "deadline", "1w")).want(201))
			a.advance(time.Minute)
			a.takeWakes()
			got := decode[accepted](a.patch("a", test.patch).want(200))
			if got.Revision == put.Revision || got.Version != got.Revision || got.InFlight == nil ||
				got.Occurrences != test.occurrences || got.Skipped != test.skipped || got.NextInstant != test.next {
				t.Errorf("%+v", got)
			}
			d := a.definition("a")
			if d.Version != got.Version || d.Pending != test.occurrences || d.Deadline != "7d" || d.CreatedAt != at(0) {
				t.Errorf("read %+v", d)
			}
			if want, err := time.Parse(time.RFC3339, test.next); err != nil || !slices.ContainsFunc(a.takeWakes(), want.Equal) {
				t.Errorf("not woken for %s", test.next)
			}
		})
	}
}

// TestPatchedSequenceSendsNothingTwice: the steps that it keeps have the same instants and delivery ids, and past steps
// are skipped.
func TestPatchedSequenceSendsNothingTwice(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	steps := func(second string) []any { return []any{fire("welcome"), wait(1, "day"), fire(second)} }
	a.call("PUT", "/v1/jobs/a", sequence("a", steps("tipps"), "subscribers", []string{"ada"})).want(201)
	before := a.definition("a").Occurrences
	a.advance(time.Hour)
	for _, c := range a.claim() {
		a.settle(c, store.Ack, "")
	}
	got := decode[accepted](a.patch("a", `{"subscribers":["ada","grace"],"steps":`+encode(steps("tips"))+`}`).want(200))
	if got.Occurrences != 2 || got.Settled != 1 || got.Skipped != 1 || got.NextInstant != at(24*time.Hour) {
		t.Errorf("%+v", got)
	}
	after := a.definition("a").Occurrences
	if len(after) != 2 || !slices.ContainsFunc(after, func(o occurrence) bool { return o.DeliveryID == before[1].DeliveryID && o.Subscriber == "ada" }) {
		t.Errorf("%+v, before %+v", after, before)
	}
	// Where it begins is for the patch to say.
	if got := decode[accepted](a.patch("a", `{"startAt":"`+at(2*time.Hour)+`"}`).want(200)); got.NextInstant != at(2*time.Hour) || got.Occurrences != 4 {
		t.Errorf("with another start: %+v", got)
	}
}

func TestPatchOfAPausedJobsScheduleLeavesItPaused(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.call("PUT", "/v1/jobs/a", body("a", time.Hour)).want(201)
	a.control("pause")
	if got := decode[accepted](a.patch("a", `{"schedules":null,"crontab":"@every 1s"}`).want(200)); got.State != "paused" {
		t.Errorf("%+v", got)
	}
	a.advance(time.Minute)
	if n := len(a.claim()); n > 0 {
		t.Errorf("%d fire", n)
	}
}

func TestPatchesThatChangeNothing(t *testing.T) {
	t.Parallel()
	for name, submitted := range kinds {
		a := newAPI(t)
		tag := a.call("PUT", "/v1/jobs/a", submitted).want(201).header.Get("ETag")
		a.store.takePuts()
		for _, patch := range []string{
			`{}`, `{"key":"a"}`, `{"past":"skip"}`, `{"retry":{}}`, `{"callback":{}}`, `{"callback":{"data":1}}`,
			with(submitted), // all of it
		} {
			if name == "crontab" || name == "a lot set" {
				patch = strings.Replace(patch, `{"past":"skip"}`, `{}`, 1) // it has no past
			}
			if got := a.patch("a", patch).want(200).header.Get("ETag"); got != tag {
				t.Errorf("%s, %s: ETag %s, want %s", name, patch, got, tag)
			}
		}
		if puts := a.store.takePuts(); len(puts) > 0 || a.store.takeAmends() > 0 {
			t.Errorf("%s: it was written", name)
		}
	}
}

func TestPatchesThatAreRefused(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	for patch, test := range map[string]struct {
		status int
		named  []string
	}{
		`{`:                                     {400, nil},
		` `:                                     {400, nil},
		`{}{}`:                                  {400, nil},
		`[]`:                                    {422, []string{""}},
		`null`:                                  {422, []string{""}},
		` null `:                                {422, []string{""}},
		`5`:                                     {422, []string{""}},
		`{"key":"b"}`:                           {422, []string{"/key"}},
		`{"key":null}`:                          {422, []string{"/key"}},
		`{"colour":"red"}`:                      {422, []string{"/colour"}},
		`{"deadline":"1h","deadline":"2h"}`:     {422, []string{"/deadline"}},
		`{"callback":null}`:                     {422, []string{"/callback"}},
		`{"callback":{"data":null}}`:            {422, []string{"/callback/data"}},
		`{"callback":{"type":"fax"}}`:           {422, []string{"/callback/type"}},
		`{"callback":{"data":{"refuse":true}}}`: {422, []string{"/callback/data/refuse"}},
		`{"crontab":"@daily"}`:                  {422, []string{"/crontab"}},
		`{"schedules":null}`:                    {422, []string{"/schedules"}},
		`{"schedules":["tomorrow"]}`:            {422, []string{"/schedules/0"}},
		`{"retry":{"maxAttempts":0}}`:           {422, []string{"/retry/maxAttempts"}},
		`{"deadline":"x"}`:                      {422, []string{"/deadline"}},
		`{"priority":"","past":""}`:             {422, []string{"/past", "/priority"}},
		`{"past":"reject","schedules":["` + at(-time.Hour) + `"]}`:                          {422, []string{"/schedules"}},
		`{"callback":{"data":"` + strings.Repeat("x", 2000) + `"}}`:                         {422, []string{"/callback/data"}},
		`{"schedules":null,"crontab":"0 0 30 2 *","timezone":"Europe/Atlantis"}`:            {422, []string{"/timezone", "/crontab"}},
		`{"schedules":null,"crontab":"@hourly","endAt":"` + at(time.Minute) + `"}`:          {422, []string{"/endAt"}},
		`{"schedules":["` + strings.Repeat(at(0)+`","`, 10) + at(time.Hour) + `"],"key":1}`: {422, []string{"/key"}},
		`{"callback":{"data":"` + strings.Repeat("x", 4000) + `"}}`:                         {413, nil},
	} {
		tag := a.call("PUT", "/v1/jobs/a", body("a", time.Hour)).header.Get("ETag")
		if p := a.patch("a", patch).want(test.status).problem(); !slices.Equal(p.named(), test.named) {
			t.Errorf("%.80s names %q, want %q", patch, p.named(), test.named)
		}
		if got := a.call("GET", "/v1/jobs/a", "").versionTag(); got != tag {
			t.Errorf("%.80s changed the job", patch)
		}
	}
}

func TestPatchContentTypes(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.call("PUT", "/v1/jobs/a", body("a", time.Hour)).want(201)
	for header, status := range map[string]int{
		"Content-Type: application/merge-patch+json":                200,
		"Content-Type: application/merge-patch+json; charset=utf-8": 200,
		"Content-Type: application/json":                            200,
		"Content-Type: application/json-patch+json":                 415,
		"Content-Type: ":         415,
		"Content-Encoding: gzip": 415,
	} {
		got := a.call("PATCH", "/v1/jobs/a", "{}", header).want(status).header.Get("Accept-Patch")
		if want := map[int]string{415: "application/merge-patch+json, application/json"}[status]; got != want {
			t.Errorf("%s: Accept-Patch %q, want %q", header, got, want)
		}
	}
	if p := a.call("PATCH", "/v1/jobs/a?past=skip", "{}").want(422).problem(); !slices.Equal(p.named(), []string{"?past"}) {
		t.Errorf("%+v", p)
	}
	a.patch("a", "{}", "If-None-Match: *").want(400)
	a.patch("%00", "{}").want(404) // a key that there is not
	a.call("PATCH", "/v1/jobs/%00", "{}").want(422)
}

func TestThereMustBeAJobToPatch(t *testing.T) {
	t.Parallel()
	a := newAPI(t, func(c *handlers.Config) { c.Retain = 0 })
	a.patch("a", "{}").want(404)
	a.patch("a", "{}", "If-Match: *").want(404)
	a.call("PUT", "/v1/jobs/a", body("a", 0)).want(201)
	a.settle(a.claim()[0], store.Ack, "")
	a.patch("a", `{"schedules":["`+at(time.Hour)+`"]}`).want(404)
	a.patch("a", `{}`, `If-Match: *`).want(404)
}

func TestFinishedJobIsRevivedByAPatch(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.call("PUT", "/v1/jobs/a", body("a", 0)).want(201)
	a.settle(a.claim()[0], store.Ack, "")
	if got := decode[accepted](a.patch("a", `{"deadline":"1h"}`).want(200)); got.State != "finished" || got.Occurrences != 0 || got.NextInstant != "" {
		t.Errorf("%+v", got)
	}
	if got := decode[accepted](a.patch("a", `{"schedules":["`+at(time.Hour)+`"]}`).want(200)); got.State != "scheduled" || got.Occurrences != 1 {
		t.Errorf("%+v", got)
	}
}

// A patch of the callback, and one of the schedule.
var patches = []string{`{"callback":{"data":2}}`, `{"schedules":["2030-01-01T17:00:00.000Z"]}`}

func TestPatchConditions(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	for header, status := range map[string]int{
		`If-Match: current`:         200,
		`If-Match: "x", current`:    200,
		`If-Match: *`:               200,
		`If-Match: "x"`:             412,
		`If-Match: W/current`:       412,
		`If-Match: earlier`:         412,
		`If-Match: current-version`: 400,
	} {
		for _, patch := range append(patches, "{}") {
			earlier := a.call("PUT", "/v1/jobs/a", body("a", time.Hour)).header.Get("ETag")
			current := a.patch("a", `{"deadline":"1h"}`).want(200).header.Get("ETag")
			if status == 400 {
				a.patch("a", patch, header).want(400)
				continue
			}
			got := a.patch("a", patch, strings.NewReplacer("current", current, "earlier", earlier).Replace(header)).want(status)
			if status == 412 && !strings.Contains(got.problem().Detail, "If-Match") {
				t.Errorf("%s", got.body)
			}
			if after := a.call("GET", "/v1/jobs/a", "").versionTag(); (after != current) != (status == 200 && patch != "{}") {
				t.Errorf("%s, %s: ETag %s after %s", header, patch, after, current)
			}
		}
	}
}

// TestPatchThatLosesARace has another client change the job between this one's steps. Without If-Match, it is applied
// to the changed job.
func TestPatchThatLosesARace(t *testing.T) {
	t.Parallel()
	other := func(a *api) { // changes the version only
		version := job.NewRevision(a.clock())
		if err := a.store.Pause(a.Context(), name("a"), version, a.clock()); err != nil {
			a.Error(err)
		}
		if err := a.store.Resume(a.Context(), name("a"), version, a.clock()); err != nil {
			a.Error(err)
		}
	}
	for name, test := range map[string]struct {
		interfere func(*api)
		times     int
		condition bool
		status    int
	}{
		"once":                     {other, 1, false, 200},
		"once, with If-Match":      {other, 1, true, 412},
		"again and again":          {other, 100, false, 503},
		"deleted":                  {deleteDirectly, 1, false, 404},
		"deleted, with a If-Match": {deleteDirectly, 1, true, 404},
	} {
		for _, patch := range patches {
			t.Run(name+patch, func(t *testing.T) {
				a := newAPI(t)
				tag := a.call("PUT", "/v1/jobs/a", body("a", time.Hour)).want(201).header.Get("ETag")
				rounds := 0
				interfere := func() {
					if rounds++; rounds <= test.times {
						test.interfere(a)
					}
				}
				a.store.onAmend, a.store.onPut = interfere, func([]store.Put) { interfere() }
				var headers []string
				if test.condition {
					headers = []string{"If-Match: " + tag}
				}
				a.patch("a", patch, headers...).want(test.status)
				a.store.onAmend, a.store.onPut = nil, nil
				if test.status == 200 {
					d := a.definition("a")
					if patched := string(d.data) == "2" || slices.Equal(d.Schedules, []string{at(5 * time.Hour)}); !patched || rounds != 2 {
						t.Errorf("after %d rounds: %+v", rounds, d)
					}
				}
			})
		}
	}
}

func deleteDirectly(a *api) {
	if _, err := a.store.Store.Cancel(a.Context(), []job.Name{name("a")}, store.Asked{Now: a.clock()}); err != nil {
		a.Error(err)
	}
}
