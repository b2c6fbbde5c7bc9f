package handlers_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/store"
)

type preview struct {
	Timezone string
	Crontab  string
	Items    []struct {
		Timestamp, Local, Note string
		FiresAt                string
		ClockChange            string `json:"effect"`
		Step                   *int
		Subscribers            int
	}
	LeftOut []struct{ Local, At, Note string }
	Passed  int
}

// lines writes each instant with all its fields.
func (p preview) lines() []string {
	var lines []string
	for _, i := range p.Items {
		line := i.Timestamp + " " + i.Local
		if i.FiresAt != "" {
			line += " fires at " + i.FiresAt
		}
		if i.Step != nil {
			line += fmt.Sprintf(" step %d", *i.Step)
		}
		if i.Subscribers > 0 {
			line += fmt.Sprintf(" for %d", i.Subscribers)
		}
		if i.ClockChange != "" {
			line += " " + i.ClockChange + ": " + i.Note
		}
		lines = append(lines, line)
	}
	for _, l := range p.LeftOut {
		lines = append(lines, "left out "+l.Local+" at "+l.At+": "+l.Note)
	}
	return lines
}

// TestPreview asks for the same of a job that is there and of one that is not.
func TestPreview(t *testing.T) {
	t.Parallel()
	paris := func(crontab, startAt string) string {
		return recurring("a", crontab, "timezone", "Europe/Paris", "startAt", startAt)
	}
	tests := map[string]struct {
		body   string
		count  int
		want   []string
		passed int
	}{
		"instants": {body("a", time.Hour, -time.Hour, 2*time.Hour), 10, []string{
			"2030-01-01T13:00:00.000Z 2030-01-01T13:00:00.000+00:00",
			"2030-01-01T14:00:00.000Z 2030-01-01T14:00:00.000+00:00",
		}, 1},
		"delay": {with(body("a"), "schedules", nil, "delay", "1d"), 10, []string{
			"2030-01-02T12:00:00.000Z 2030-01-02T12:00:00.000+00:00",
		}, 0},
		"once": {recurring("a", "@at 1893506400"), 10, []string{"2030-01-01T14:00:00.000Z 2030-01-01T14:00:00.000+00:00"}, 0},
		"every": {recurring("a", "@every 90s", "startAt", "2030-01-01T13:00:00.250+01:00"), 3, []string{
			"2030-01-01T12:00:00.250Z 2030-01-01T12:00:00.250+00:00",
			"2030-01-01T12:01:30.250Z 2030-01-01T12:01:30.250+00:00",
			"2030-01-01T12:03:00.250Z 2030-01-01T12:03:00.250+00:00",
		}, 0},
		"to the end": {recurring("a", "@hourly", "endAt", "2030-01-01T14:00:00Z"), 10, []string{
			"2030-01-01T13:00:00.000Z 2030-01-01T13:00:00.000+00:00",
			"2030-01-01T14:00:00.000Z 2030-01-01T14:00:00.000+00:00",
		}, 0},
		"moved": {paris("30 2 * * *", "2030-03-30T00:00:00Z"), 2, []string{
			"2030-03-30T01:30:00.000Z 2030-03-30T02:30:00.000+01:00",
			"2030-03-31T01:00:00.000Z 2030-03-31T03:00:00.000+02:00 moved: 02:30 does not exist on 2030-03-31: fires right after the gap",
		}, 0},
		"only the first": {paris("30 2 * * *", "2030-10-27T00:00:00Z"), 2, []string{
			"2030-10-27T00:30:00.000Z 2030-10-27T02:30:00.000+02:00 onlyFirst: 02:30 comes twice: fires the first time only",
			"2030-10-28T01:30:00.000Z 2030-10-28T02:30:00.000+01:00",
		}, 0},
		"both": {paris("*/30 2 * * *", "2030-10-27T00:10:00Z"), 3, []string{
			"2030-10-27T00:30:00.000Z 2030-10-27T02:30:00.000+02:00 firstOfTwo: 02:30 comes twice: the first",
			"2030-10-27T01:00:00.000Z 2030-10-27T02:00:00.000+01:00 secondOfTwo: 02:00 comes twice: the second",
			"2030-10-27T01:30:00.000Z 2030-10-27T02:30:00.000+01:00 secondOfTwo: 02:30 comes twice: the second",
		}, 0},
		"left out": {paris("*/40 2 * * *", "2030-03-30T01:30:00Z"), 2, []string{
			"2030-03-30T01:40:00.000Z 2030-03-30T02:40:00.000+01:00",
			"2030-04-01T00:00:00.000Z 2030-04-01T02:00:00.000+02:00",
			"left out 2030-03-31T02:00:00 at 2030-03-31T01:00:00.000Z: 02:00 does not exist on 2030-03-31: left out",
		}, 0},
		"sequence": {
			sequence("a", []any{fire(), wait(1, "hour"), fire(1), map[string]any{"type": "wait_weekday", "weekdays": []string{"Thu"}}, fire()},
				"timezone", "America/New_York", "startAt", at(-30*time.Minute), "subscribers", []any{"x", 2, map[string]any{"id": 3}}), 10, []string{
				"2030-01-01T12:30:00.000Z 2030-01-01T07:30:00.000-05:00 step 2 for 3",
				"2030-01-03T12:30:00.000Z 2030-01-03T07:30:00.000-05:00 step 4 for 3",
			}, 1},
		"sequence that goes back": {
			sequence("a", []any{wait(2, "hours"), fire(), map[string]any{"type": "wait_specific_date", "date": at(time.Hour)}, fire()}), 10, []string{
				"2030-01-01T13:00:00.000Z 2030-01-01T13:00:00.000+00:00 step 3",
				"2030-01-01T14:00:00.000Z 2030-01-01T14:00:00.000+00:00 step 1",
			}, 0},
		"fewer than there are": {body("a", -time.Hour, time.Hour, 2*time.Hour), 1, []string{
			"2030-01-01T13:00:00.000Z 2030-01-01T13:00:00.000+00:00",
		}, 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t)
			query := fmt.Sprintf("?count=%d", test.count)
			submitted := with(test.body, "key", nil, "callback", nil)
			if test.passed > 0 { // else they would come first
				submitted = with(submitted, "past", "skip")
			}
			draft := decode[preview](a.call("POST", "/v1/preview"+query, submitted).want(200))
			if puts := a.store.takePuts(); len(puts) > 0 {
				t.Error("it was stored")
			}
			a.call("PUT", "/v1/jobs/a", test.body).want(201)
			stored := decode[preview](a.call("GET", "/v1/jobs/a/preview"+query, "").want(200))
			for of, got := range map[string]preview{"draft": draft, "job": stored} {
				if !slices.Equal(got.lines(), test.want) || got.Passed != test.passed {
					t.Errorf("%s: %d passed, then\n%s\nwant %d, then\n%s", of, got.Passed, strings.Join(got.lines(), "\n"),
						test.passed, strings.Join(test.want, "\n"))
				}
			}
		})
	}
}

// TestPreviewOfWhatHasPassed shows the instants that a new job would fire at once.
func TestPreviewOfWhatHasPassed(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	for text, want := range map[string][]string{
		with(body("a", -2*time.Hour, -time.Hour, time.Hour), "deadline", "90m"): {
			"2030-01-01T10:00:00.000Z 2030-01-01T10:00:00.000+00:00 missed: has passed, and so has its deadline: missed",
			"2030-01-01T11:00:00.000Z 2030-01-01T11:00:00.000+00:00 past: has passed: fires at once",
			"2030-01-01T13:00:00.000Z 2030-01-01T13:00:00.000+00:00",
		},
		sequence("a", []any{fire()}, "startAt", at(-time.Hour), "subscribers", 2, "past", "fire"): {
			"2030-01-01T11:00:00.000Z 2030-01-01T11:00:00.000+00:00 step 0 for 2 past: has passed: fires at once",
		},
		with(body("a", -time.Minute, -time.Hour), "spread", "15m"): {
			"2030-01-01T11:00:00.000Z 2030-01-01T11:00:00.000+00:00 fires at 2030-01-01T11:01:52.704Z past: has passed: fires at once",
			"2030-01-01T11:59:00.000Z 2030-01-01T11:59:00.000+00:00 fires at 2030-01-01T12:13:26.470Z",
		},
		sequence("a", []any{fire()}, "startAt", at(-time.Minute), "subscribers", 2, "past", "fire", "spread", "15m"): {
			"2030-01-01T11:59:00.000Z 2030-01-01T11:59:00.000+00:00 step 0 for 2 past: " +
				"has passed: each fires at its own time within the spread, or at once",
		},
		recurring("a", "@at 1893495600"): {"2030-01-01T11:00:00.000Z 2030-01-01T11:00:00.000+00:00 past: has passed: fires at once"},
	} {
		got := decode[preview](a.call("POST", "/v1/preview", text).want(200))
		if !slices.Equal(got.lines(), want) || got.Passed != 0 {
			t.Errorf("%s: %d passed, then\n%s\nwant\n%s", text, got.Passed, strings.Join(got.lines(), "\n"), strings.Join(want, "\n"))
		}
	}
}

// TestPreviewByKey asks for times that follow from the key. A draft without it is refused.
func TestPreviewByKey(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		body, crontab string
		want          []string
	}{
		"spread": {with(body("a", time.Hour, 2*time.Hour), "spread", "15m"), "", []string{
			"2030-01-01T13:00:00.000Z 2030-01-01T13:00:00.000+00:00 fires at 2030-01-01T13:10:24.938Z",
			"2030-01-01T14:00:00.000Z 2030-01-01T14:00:00.000+00:00 fires at 2030-01-01T14:08:54.132Z",
		}},
		"steps": {sequence("a", []any{wait(1, "hour"), fire(), wait(1, "hour"), fire()}, "spread", "15m"), "", []string{
			"2030-01-01T13:00:00.000Z 2030-01-01T13:00:00.000+00:00 fires at 2030-01-01T13:09:34.462Z step 1",
			"2030-01-01T14:00:00.000Z 2030-01-01T14:00:00.000+00:00 fires at 2030-01-01T14:09:34.462Z step 3",
		}},
		"subscribers": {sequence("a", []any{wait(1, "hour"), fire()}, "subscribers", 3, "spread", "15m"), "", []string{
			"2030-01-01T13:00:00.000Z 2030-01-01T13:00:00.000+00:00 step 1 for 3",
		}},
		"hashed": {recurring("a", "H H(1-4) * * *"), "31 1 * * *", []string{
			"2030-01-02T01:31:00.000Z 2030-01-02T01:31:00.000+00:00",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t)
			if p := a.call("POST", "/v1/preview", with(test.body, "key", nil)).want(422).problem(); !slices.Equal(p.named(), []string{"/key"}) {
				t.Errorf("without a key it names %q", p.named())
			}
			draft := decode[preview](a.call("POST", "/v1/preview", with(test.body, "callback", nil)).want(200))
			a.call("PUT", "/v1/jobs/a", test.body).want(201)
			stored := decode[preview](a.call("GET", "/v1/jobs/a/preview", "").want(200))
			for of, got := range map[string]preview{"draft": draft, "job": stored} {
				if lines := got.lines()[:len(test.want)]; !slices.Equal(lines, test.want) || got.Crontab != test.crontab {
					t.Errorf("%s: %q at\n%s\nwant %q at\n%s", of, got.Crontab, strings.Join(lines, "\n"),
						test.crontab, strings.Join(test.want, "\n"))
				}
			}
			if due := a.definition("a").Occurrences[0].DueAt; stored.Items[0].FiresAt != "" && due != stored.Items[0].FiresAt {
				t.Errorf("it is due at %s, not at %s", due, stored.Items[0].FiresAt)
			}
		})
	}
}

// TestPreviewOfAJobGoesOn looks at jobs that began a while ago.
func TestPreviewOfAJobGoesOn(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		body   string
		want   string
		passed int
	}{
		"delay":    {with(body("a"), "schedules", nil, "delay", "2h"), at(2 * time.Hour), 0},
		"every":    {recurring("a", "@every 7m"), at(63 * time.Minute), 0}, // on the grid of its submission
		"sequence": {sequence("a", []any{wait(59, "minute"), fire(), wait(1, "minute"), fire()}), at(time.Hour), 1},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t)
			a.call("PUT", "/v1/jobs/a", test.body).want(201)
			a.advance(time.Hour)
			a.control("pause")
			got := decode[preview](a.call("GET", "/v1/jobs/a/preview?count=1", "").want(200))
			if len(got.Items) != 1 || got.Items[0].Timestamp != test.want || got.Passed != test.passed {
				t.Errorf("%+v, want %s after %d", got, test.want, test.passed)
			}
		})
	}
}

func TestPreviewCounts(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.call("PUT", "/v1/jobs/a", recurring("a", "@every 1s")).want(201)
	for query, want := range map[string]int{"": 10, "?count=1": 1, "?count=1000": 1000} {
		if got := decode[preview](a.call("GET", "/v1/jobs/a/preview"+query, "").want(200)); len(got.Items) != want {
			t.Errorf("%q: %d items, want %d", query, len(got.Items), want)
		}
		if got := decode[preview](a.call("POST", "/v1/preview"+query, `{"crontab":"@every 1s"}`).want(200)); len(got.Items) != want {
			t.Errorf("%q: %d items, want %d", query, len(got.Items), want)
		}
	}
}

func TestPreviewOfNoJob(t *testing.T) {
	t.Parallel()
	a := newAPI(t, func(c *handlers.Config) { c.Retain = 0 })
	a.call("GET", "/v1/jobs/a/preview", "").want(404)
	a.call("PUT", "/v1/jobs/a", body("a", 0)).want(201)
	a.settle(a.claim()[0], store.Ack, "")
	a.call("GET", "/v1/jobs/a/preview", "").want(404)
}

// TestPreviewRefusesWhatASubmissionWould, but not that there is neither key nor callback.
func TestPreviewRefusesWhatASubmissionWould(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	for sent, named := range map[string][]string{
		`{}`:                                  {"/schedules"},
		`{"colour":1}`:                        {"/colour"},
		`{"crontab":"0 0 30 2 *"}`:            {"/crontab"},
		`{"crontab":5,"key":""}`:              {"/crontab"},
		`{"key":"\u0000","crontab":"@daily"}`: {"/key"},
		`{"crontab":"@daily","callback":{}}`:  {"/callback/type", "/callback/data"},
		`{"crontab":"@daily","callback":5}`:   {"/callback"},
		`{"crontab":"@daily","callback":{"type":"fax","data":1}}`:              {"/callback/type"},
		`{"crontab":"@daily","callback":{"type":"http","data":{"refuse":1}}}`:  {"/callback/data/refuse"},
		`{"crontab":"@daily","endAt":"2030-01-01T13:00:00Z"}`:                  {"/endAt"},
		`{"schedules":["2029-01-01T00:00:00Z"],"past":"reject"}`:               {"/schedules"},
		`{"crontab":"H H * * *"}`:                                              {"/key"},
		`{"crontab":"@daily","spread":"5m"}`:                                   {"/key"},
		`{"crontab":"@daily","key":"a","spread":"5m","deadline":"5m"}`:         {"/deadline"},
		`{"steps":[{"type":"job"}],"subscribers":11}`:                          {"/subscribers"},
		`{"steps":[{"type":"wait_weekday","weekdays":["noday"]}]}`:             {"/steps/0/weekdays/0", "/steps"},
		`{"delay":"1h","retry":{"maxAttempts":0},"callback":null,"x":{"y":1}}`: {"/x", "/retry/maxAttempts"},
	} {
		if p := a.call("POST", "/v1/preview", sent).want(422).problem(); !slices.Equal(p.named(), named) {
			t.Errorf("%s names %q, want %q", sent, p.named(), named)
		}
	}
	a.call("POST", "/v1/preview", `{"crontab":"@daily","callback":{"type":"http","data":1},"key":"a"}`).want(200)
	a.call("POST", "/v1/preview", "{").want(400)
	a.call("POST", "/v1/preview", "").want(415)
	a.call("POST", "/v1/preview", "{}", "If-Match: *").want(400)
	a.call("POST", "/v1/preview", `{"key":"`+strings.Repeat("x", 4000)+`"}`).want(413)
	if puts := a.store.takePuts(); len(puts) > 0 {
		t.Errorf("%d were put", len(puts))
	}
}
