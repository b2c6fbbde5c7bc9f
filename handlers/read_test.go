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

func TestGetShowsTheDefinition(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	submitted := with(body("a"), "schedules", []string{"2030-01-01T15:00:00.0001+02:00", "2030-01-01T13:00:00.001Z", at(-time.Hour)},
		"retry", map[string]any{"maxAttempts": 3, "initial": "1d"})
	a.call("PUT", "/v1/jobs/a", submitted).want(201)
	got := decode[definition](a.call("GET", "/v1/jobs/a", "").want(200))
	if want := []string{at(-time.Hour), "2030-01-01T13:00:00.001Z"}; !slices.Equal(got.Schedules, want) {
		t.Errorf("schedules %v, want %v: ascending, rounded up, without duplicates", got.Schedules, want)
	}
	if r := got.Retry; r.MaxAttempts != 3 || r.Initial != "24h" || r.Factor != 2 || r.Max != "24h" {
		t.Errorf("retry %+v", r)
	}
	if got.State != "scheduled" || got.Pending != 2 || got.Callback.Type != "http" || got.CreatedAt != at(0) {
		t.Errorf("%+v", got)
	}
}

func TestGetShowsStates(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.call("PUT", "/v1/jobs/a", body("a", 0, time.Second, time.Hour)).want(201)
	a.settle(a.claim()[0], store.Retry, "receiver said no")
	a.advance(time.Second)
	held := a.claim()[0]
	got := decode[definition](a.call("GET", "/v1/jobs/a", "").want(200))
	if len(got.Occurrences) != 3 || got.Pending != 3 {
		t.Fatalf("%+v", got)
	}
	retrying, claimed, scheduled := got.Occurrences[0], got.Occurrences[1], got.Occurrences[2]
	if retrying.State != "retrying" || retrying.Attempt != 1 || retrying.LastError != "receiver said no" ||
		retrying.Timestamp != at(0) || retrying.DueAt != at(time.Hour) || retrying.ScheduledAt != "" {
		t.Errorf("retrying: %+v", retrying)
	}
	if claimed.State != "claimed" || claimed.Attempt != 1 || claimed.ScheduledAt != at(time.Second) ||
		claimed.DueAt != at(time.Second+time.Minute) || claimed.DeliveryID != held.DeliveryID().String() {
		t.Errorf("claimed: %+v", claimed)
	}
	if scheduled.State != "scheduled" || scheduled.Attempt != 0 || scheduled.DueAt != at(time.Hour) {
		t.Errorf("scheduled: %+v", scheduled)
	}
	a.advance(time.Minute) // the lease runs out unsettled
	if got := decode[definition](a.call("GET", "/v1/jobs/a", "")).Occurrences[1]; got.State != "retrying" {
		t.Errorf("after its lease: %+v", got)
	}
}

func TestGetPagesOccurrences(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.call("PUT", "/v1/jobs/a", body("a", 5*time.Hour, time.Hour, 2*time.Hour, 3*time.Hour, 4*time.Hour)).want(201)
	var seen []string
	cursor := ""
	for page := 0; ; page++ {
		got := decode[definition](a.call("GET", "/v1/jobs/a?limit=2"+cursor, "").want(200))
		if got.Pending != 5-min(page, 1) {
			t.Errorf("page %d: pending %d", page, got.Pending)
		}
		for _, o := range got.Occurrences {
			seen = append(seen, o.Timestamp)
		}
		if page == 0 { // the first is delivered while we read on
			a.advance(time.Hour)
			a.settle(a.claim()[0], store.Ack, "")
		}
		if cursor = "&cursor=" + got.NextCursor; got.NextCursor == "" {
			break
		}
	}
	if want := []string{at(time.Hour), at(2 * time.Hour), at(3 * time.Hour), at(4 * time.Hour), at(5 * time.Hour)}; !slices.Equal(seen, want) {
		t.Errorf("saw %v", seen)
	}
}

func TestGetByEntityTag(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	version := a.call("PUT", "/v1/jobs/a", body("a", time.Hour)).want(201).header.Get("ETag")
	tag := a.call("GET", "/v1/jobs/a", "").want(200).header.Get("ETag")
	for condition, status := range map[string]int{
		tag: 304, "W/" + tag: 304, "*": 304, `"x", ` + tag: 304, `"x"`: 200, "x": 200, strings.Trim(tag, `"`): 200, version: 200,
	} {
		if got := a.call("GET", "/v1/jobs/a", "", "If-None-Match: "+condition).want(status); got.header.Get("ETag") != tag {
			t.Errorf("%s: ETag %s, want %s", condition, got.header.Get("ETag"), tag)
		}
	}
	a.call("GET", "/v1/jobs/b", "", "If-None-Match: *").want(404)
}

// TestEntityTagStandsForWhatIsShown: it changes with the body, also when the version does not, and only then.
func TestEntityTagStandsForWhatIsShown(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.call("PUT", "/v1/jobs/a", body("a", 0, time.Hour)).want(201)
	before := a.call("GET", "/v1/jobs/a", "").want(200)
	show := func(what string, changed bool) {
		t.Helper()
		status := map[bool]int{true: 200, false: 304}[changed]
		a.call("GET", "/v1/jobs/a", "", "If-None-Match: "+before.header.Get("ETag")).want(status)
		after := a.call("GET", "/v1/jobs/a", "").want(200)
		if (string(after.body) != string(before.body)) != changed || after.versionTag() != before.versionTag() {
			t.Errorf("%s: shown under %s, before under %s:\n%s", what, after.header.Get("ETag"), before.header.Get("ETag"), after.body)
		}
		before = after
	}
	show("nothing", false)
	a.claim()
	show("a claim", true)
	a.advance(time.Minute) // the lease runs out, and nothing was written
	show("the end of its lease", true)
	a.advance(time.Second)
	show("time alone", false)
	a.settle(a.claim()[0], store.Ack, "")
	show("a delivery", true)
	a.advance(time.Hour)
	a.settle(a.claim()[0], store.Ack, "")
	show("the end", true)
	show("nothing more", false)
}

// TestTagThatWasReadIsForIfMatch: only the version in a tag is compared.
func TestTagThatWasReadIsForIfMatch(t *testing.T) {
	t.Parallel()
	put := func(a *api, headers ...string) answer {
		return a.call("PUT", "/v1/jobs/a", body("a", time.Hour), headers...)
	}
	for name, change := range map[string]func(a *api, headers ...string) answer{
		"put": put,
		"post": func(a *api, headers ...string) answer {
			return a.call("POST", "/v1/jobs", body("a", time.Hour), headers...)
		},
		"patch": func(a *api, headers ...string) answer { return a.patch("a", `{"deadline":"1h"}`, headers...) },
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t)
			a.call("PUT", "/v1/jobs/a", body("a", 0, time.Hour)).want(201)
			read := a.call("GET", "/v1/jobs/a", "").header.Get("ETag")
			a.settle(a.claim()[0], store.Ack, "") // shown otherwise now, and the same version
			change(a, "If-Match: W/"+read).want(412)
			change(a, `If-Match: "x", `+read).want(200)
			change(a, "If-Match: "+read).want(412)
			change(a, "If-Match: "+put(a).header.Get("ETag")).want(200) // that of a change does too
		})
	}
}

func TestFinishedJobStaysForItsRetention(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.call("PUT", "/v1/jobs/a", body("a", 0)).want(201)
	a.settle(a.claim()[0], store.Ack, "")
	a.advance(retain - time.Millisecond)
	if got := decode[definition](a.call("GET", "/v1/jobs/a", "").want(200)); got.State != "finished" || got.Pending != 0 {
		t.Errorf("%+v", got)
	}
	if got := list(a, "").items; !slices.Equal(got, []string{"a finished"}) {
		t.Errorf("listed: %v", got)
	}
	a.advance(time.Millisecond)
	a.call("GET", "/v1/jobs/a", "").want(404)
	if got := list(a, "").items; len(got) > 0 {
		t.Errorf("listed: %v", got)
	}
	a.call("DELETE", "/v1/jobs/a", "").want(404)
}

type page struct {
	items      []string // "key state"
	nextCursor string
}

func list(a *api, query string) page {
	a.Helper()
	got := decode[struct {
		Items []struct {
			Key, State, CallbackType string
		}
		NextCursor string
	}](a.call("GET", "/v1/jobs"+query, "").want(200))
	p := page{nextCursor: got.NextCursor}
	for _, j := range got.Items {
		if j.CallbackType != "http" {
			a.Errorf("callbackType %q", j.CallbackType)
		}
		p.items = append(p.items, j.Key+" "+j.State)
	}
	return p
}

func TestListIsByBytesAndPrefix(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	for _, key := range []string{"b", "B", "é", "a%", "a_", "a", "a/b", "ab", "😀"} {
		a.call("PUT", pathOf(key), body(key, time.Hour)).want(201)
	}
	all := []string{"B", "a", "a%", "a/b", "a_", "ab", "b", "é", "😀"}
	for query, want := range map[string][]string{
		"": all, "?prefix=": all, "?prefix=a": {"a", "a%", "a/b", "a_", "ab"}, "?prefix=a%25": {"a%"}, "?prefix=a_": {"a_"},
		"?prefix=%F0%9F%98%80": {"😀"}, "?prefix=zz": nil,
	} {
		got := list(a, query)
		for i := range want {
			want[i] = strings.TrimSuffix(want[i], " scheduled") + " scheduled"
		}
		if !slices.Equal(got.items, want) || got.nextCursor != "" {
			t.Errorf("%q: %v, want %v", query, got, want)
		}
	}
}

// TestListUnderChange creates and deletes jobs on both sides of the cursor while it reads.
func TestListTellsWhatIsNext(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.call("PUT", "/v1/jobs/a", body("a", time.Hour, time.Minute)).want(201)
	a.call("PUT", "/v1/jobs/b", body("b", 0)).want(201)
	a.call("PUT", "/v1/jobs/c", body("c", 0, 2*time.Hour)).want(201)
	for _, c := range a.claim() {
		a.settle(c, store.Ack, "")
	}
	a.call("POST", "/v1/jobs/c/pause", "").want(200)
	got := decode[struct {
		Items []struct{ Key, NextInstant string }
	}](a.call("GET", "/v1/jobs", "").want(200))
	if text := fmt.Sprint(got.Items); text != fmt.Sprintf("[{a %s} {b } {c %s}]", at(time.Minute), at(2*time.Hour)) {
		t.Errorf("%s", text)
	}
}

// TestListByState: whatever lies between, each job of a state is on exactly one page.
func TestListByState(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	t.Parallel()
	a := newAPI(t)
	var lines []string
	for i := range 2*1000 + 500 { // more than are looked at once
		line := body(fmt.Sprintf("k%05d", i), time.Hour)
		if i%2 == 0 {
			line = with(body(fmt.Sprintf("k%05d", i), -time.Hour), "past", "skip")
		}
		lines = append(lines, line)
	}
	a.call("POST", "/v1/jobs/batch", strings.Join(lines, "\n"), "Content-Type: application/x-ndjson").want(200)
	paused := []string{"k00001", "k00999", "k01001", "k02499"}
	for _, key := range paused {
		a.call("POST", "/v1/jobs/"+key+"/pause", "").want(200)
	}
	for state, want := range map[string]int{"scheduled": 1250 - len(paused), "paused": len(paused), "finished": 1250, "": 2500} {
		seen := map[string]bool{}
		for cursor, first := "", true; first || cursor != ""; first = false {
			p := list(a, strings.TrimSuffix("?limit=700"+cursor+"&state="+state, "&state="))
			for _, item := range p.items {
				if seen[item] || !strings.HasSuffix(item, " "+state) && state != "" {
					t.Fatalf("%q: %s, seen before: %v", state, item, seen[item])
				}
				seen[item] = true
			}
			if cursor = p.nextCursor; cursor != "" {
				cursor = "&cursor=" + cursor
			}
		}
		if len(seen) != want {
			t.Errorf("%q: listed %d, want %d", state, len(seen), want)
		}
	}
	if got := list(a, "?state=paused&limit=2"); !slices.Equal(got.items, []string{"k00001 paused", "k00999 paused"}) || got.nextCursor == "" {
		t.Errorf("the first two: %v", got)
	}
	for _, state := range []string{"running", ""} {
		a.call("GET", "/v1/jobs?state="+state, "").want(422)
	}
}

// TestListByKind: a page of a kind has all jobs of that kind, whatever their state, across the pages that are read.
func TestListByKind(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	var lines []string
	want := map[string][]string{}
	for i := range 450 { // more than are looked at once
		key := fmt.Sprintf("k%05d", i)
		line, kind := body(key, time.Hour), "instants"
		switch i % 150 {
		case 1:
			line = with(body(key), "schedules", nil, "delay", "1h")
		case 2:
			line, kind = recurring(key, "0 9 * * *"), "crontab"
		case 3: // in the past
			line, kind = recurring(key, "@at 1893495600", "past", "skip"), "crontab"
		case 4:
			line, kind = sequence(key, []any{fire()}, "startAt", at(time.Hour)), "sequence"
		}
		lines, want[kind] = append(lines, line), append(want[kind], key)
	}
	got := a.call("POST", "/v1/jobs/batch", strings.Join(lines, "\n"), "Content-Type: application/x-ndjson").want(200)
	if n := strings.Count(string(got.body), `"status":201`); n != len(lines) {
		t.Fatalf("%d of %d are accepted: %s", n, len(lines), got.body[:300])
	}
	for kind, keys := range want {
		var listed []string
		for cursor, first := "", true; first || cursor != ""; first = false {
			p := list(a, "?limit=4&kind="+kind+cursor)
			for _, item := range p.items {
				key, _, _ := strings.Cut(item, " ")
				listed = append(listed, key)
			}
			if cursor = p.nextCursor; cursor != "" {
				cursor = "&cursor=" + cursor
			}
		}
		if !slices.Equal(listed, keys) {
			t.Errorf("%s: %v, want %v", kind, listed, keys)
		}
	}
	if got := list(a, "?kind=crontab&state=finished"); !slices.Equal(got.items, []string{"k00003 finished", "k00153 finished", "k00303 finished"}) {
		t.Errorf("finished crontabs: %v", got)
	}
	for _, kind := range []string{"steps", ""} {
		if got := a.call("GET", "/v1/jobs?kind="+kind, "").want(422).problem().named(); !slices.Equal(got, []string{"?kind"}) {
			t.Errorf("%q: %v", kind, got)
		}
	}
}

// TestListOfAStateLooksNoFurther: a list reads a bounded number of jobs. The page is then short, and has a cursor to
// continue.
func TestListOfAStateLooksNoFurther(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	t.Parallel()
	a := newAPI(t)
	const many = 10_000
	var lines []string
	for i := range many {
		lines = append(lines, body(fmt.Sprintf("k%05d", i), time.Hour))
	}
	lines = append(lines, with(body("z", -time.Hour), "past", "skip"))
	a.call("POST", "/v1/jobs/batch", strings.Join(lines, "\n"), "Content-Type: application/x-ndjson").want(200)
	p := list(a, "?state=finished")
	for ; len(p.items) == 0 && p.nextCursor != ""; p = list(a, "?state=finished&cursor="+p.nextCursor) {
		lines = nil // it was short at least once
	}
	if lines != nil || !slices.Equal(p.items, []string{"z finished"}) {
		t.Errorf("%v, was short: %v", p, lines == nil)
	}
}

func TestListUnderChange(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	for i := range 9 {
		key := fmt.Sprintf("k%d", i)
		a.call("PUT", pathOf(key), body(key, time.Hour)).want(201)
	}
	var seen []string
	cursor := ""
	for round := range 10 {
		p := list(a, "?limit=2"+cursor)
		seen = append(seen, p.items...)
		if p.nextCursor == "" {
			break
		}
		cursor = "&cursor=" + p.nextCursor
		switch round {
		case 0:
			a.call("DELETE", "/v1/jobs/k1", "").want(200) // the cursor's own
			a.call("PUT", "/v1/jobs/j", body("j", time.Hour)).want(201)
			a.call("DELETE", "/v1/jobs/k2", "").want(200)
		case 1:
			a.call("PUT", "/v1/jobs/k45", body("k45", time.Hour)).want(201)
		}
	}
	want := []string{"k0", "k1", "k3", "k4", "k45", "k5", "k6", "k7", "k8"}
	for i := range want {
		want[i] += " scheduled"
	}
	if !slices.Equal(seen, want) {
		t.Errorf("saw %v, want %v", seen, want)
	}
}

func TestListGoesPastJobsThatAreGone(t *testing.T) {
	t.Parallel()
	a := newAPI(t, func(c *handlers.Config) { c.Retain = 0 })
	for _, key := range []string{"a", "b", "c"} {
		a.call("PUT", pathOf(key), body(key, -time.Hour)).want(201)
	}
	a.call("PUT", "/v1/jobs/d", body("d", time.Hour)).want(201)
	for _, c := range a.claim() {
		a.settle(c, store.Ack, "")
	}
	first := list(a, "?limit=2")
	if len(first.items) != 0 || first.nextCursor == "" {
		t.Fatalf("first page: %+v", first)
	}
	if second := list(a, "?limit=2&cursor="+first.nextCursor); !slices.Equal(second.items, []string{"d scheduled"}) || second.nextCursor != "" {
		t.Errorf("second page: %+v", second)
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.call("DELETE", "/v1/jobs/a", "").want(404)
	a.call("PUT", "/v1/jobs/a", body("a", 0, time.Hour, 2*time.Hour)).want(201)
	held := a.claim()
	if got := string(a.call("DELETE", "/v1/jobs/a", "").want(200).body); got != `{"cancelled":2,"inFlight":1}` {
		t.Errorf("%s", got)
	}
	a.call("GET", "/v1/jobs/a", "").want(404)
	a.call("DELETE", "/v1/jobs/a", "").want(404)
	a.settle(held[0], store.Retry, "no")
	a.advance(3 * time.Hour)
	if n := len(a.claim()); n > 0 {
		t.Errorf("%d fire after the cancellation", n)
	}
}

func TestCancelConditions(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.call("DELETE", "/v1/jobs/a", "", "If-Match: *").want(404)
	for header, status := range map[string]int{
		`If-Match: current`:      200,
		`If-Match: read`:         200,
		`If-Match: "x", current`: 200,
		`If-Match: *`:            200,
		`If-Match: "x"`:          412,
		`If-Match: W/current`:    412,
		`If-Match: earlier`:      412,
		`If-Match: abc`:          400,
	} {
		earlier := a.call("PUT", "/v1/jobs/a", body("a", time.Hour)).header.Get("ETag")
		current := a.patch("a", `{"deadline":"1h"}`).want(200).header.Get("ETag")
		read := a.call("GET", "/v1/jobs/a", "").header.Get("ETag")
		header = strings.NewReplacer("current", current, "read", read, "earlier", earlier).Replace(header)
		got := a.call("DELETE", "/v1/jobs/a", "", header).want(status)
		if status == 200 {
			a.call("DELETE", "/v1/jobs/a", "", header).want(404)
			continue
		}
		if status == 412 && !strings.Contains(got.problem().Detail, "If-Match") {
			t.Errorf("%s", got.body)
		}
		if tag := a.call("GET", "/v1/jobs/a", "").want(200).versionTag(); tag != current {
			t.Errorf("%s: the version is %s, want %s", header, tag, current)
		}
	}
}

// TestCancelIfLeavesWhatCameMeanwhile has another client change the job between the steps of the cancellation.
func TestCancelIfLeavesWhatCameMeanwhile(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(a *api)
		status int
	}{
		"replaced":  {func(a *api) { a.call("PUT", "/v1/jobs/a", body("a", 2*time.Hour)).want(200) }, 412},
		"patched":   {func(a *api) { a.patch("a", `{"deadline":"1h"}`).want(200) }, 412},
		"paused":    {func(a *api) { a.call("POST", "/v1/jobs/a/pause", "").want(200) }, 412},
		"triggered": {func(a *api) { a.call("POST", "/v1/jobs/a/trigger", "").want(202) }, 200},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAPI(t)
			tag := a.call("PUT", "/v1/jobs/a", body("a", time.Hour)).want(201).header.Get("ETag")
			changed := false
			a.store.onJob = func(job.Name) {
				if !changed {
					changed = true
					c.change(a)
				}
			}
			a.call("DELETE", "/v1/jobs/a", "", "If-Match: "+tag).want(c.status)
			if want := map[int]int{200: 404, 412: 200}[c.status]; !changed {
				t.Error("nothing came in between")
			} else {
				a.call("GET", "/v1/jobs/a", "").want(want)
			}
		})
	}
}

// TestCancelIfIsForJobsOnly: with a condition, redriven occurrences of a key without a job stay, and so does a job that
// clients no longer see.
func TestCancelIfIsForJobsOnly(t *testing.T) {
	t.Parallel()
	a := newAPI(t, func(c *handlers.Config) { c.Retain = 0 })
	bury(a, "gone")
	a.call("DELETE", "/v1/jobs/gone", "").want(404) // its retention has ended
	a.call("POST", "/v1/dead-letters/redrive?key=gone", "").want(200)
	a.call("DELETE", "/v1/jobs/gone", "", "If-Match: *").want(404)
	if got := string(a.call("DELETE", "/v1/jobs/gone", "").want(200).body); got != `{"cancelled":1,"inFlight":0}` {
		t.Errorf("%s", got)
	}
}

func TestCancelFinished(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.call("PUT", "/v1/jobs/a", with(body("a", -time.Hour), "past", "skip")).want(201)
	if got := string(a.call("DELETE", "/v1/jobs/a", "").want(200).body); got != `{"cancelled":0,"inFlight":0}` {
		t.Errorf("%s", got)
	}
	a.call("DELETE", "/v1/jobs/a", "").want(404)
}

func TestCancelByPrefix(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	var lines []string
	const many = 1201 // more than two slices
	for i := range many {
		lines = append(lines, body(fmt.Sprintf("p/%d", i), time.Hour))
	}
	a.call("POST", "/v1/jobs/batch", strings.Join(lines, "\n"), "Content-Type: application/x-ndjson").want(200)
	a.call("PUT", "/v1/jobs/p%2Fheld", body("p/held", 0, time.Hour)).want(201)
	a.call("PUT", "/v1/jobs/p", body("p", time.Hour)).want(201)
	a.claim()
	want := fmt.Sprintf(`{"jobs":%d,"cancelled":%d,"inFlight":1}`, many+1, many+1)
	if got := string(a.call("DELETE", "/v1/jobs?prefix=p%2F", "").want(200).body); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got := list(a, "").items; !slices.Equal(got, []string{"p scheduled"}) {
		t.Errorf("left: %v", got)
	}
	if got := string(a.call("DELETE", "/v1/jobs?prefix=p%2F", "").want(200).body); got != `{"jobs":0,"cancelled":0,"inFlight":0}` {
		t.Errorf("again: %s", got)
	}
}
