package handlers_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/access"
	watches "github.com/carillon-scheduler/carillon/events"
	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// expecting returns a submission with an expectBy.
func expecting(submitted, by string) string { return with(submitted, "expectBy", by) }

// watched returns the instants of a job's pending watches, and the due times of these, as times after the start.
func (a *api) watched(key string) (all []string) {
	a.Helper()
	watch, err := store.ReadJob(a.Context(), a.store, watches.WatchName(name(key)))
	if err != nil {
		return nil
	}
	page, _, err := a.store.Occurrences(a.Context(), store.OccurrenceFilter{Name: watch.Name, Revision: watch.Revision, Limit: 1000})
	if err != nil {
		a.Fatal(err)
	}
	for _, o := range page {
		all = append(all, fmt.Sprintf("%s+%s", o.Timestamp.Sub(start), o.DueAt.Sub(o.Timestamp)))
	}
	return all
}

func (a *api) isWatched(key string, want ...string) {
	a.Helper()
	if got := a.watched(key); !slices.Equal(got, want) {
		a.Errorf("%s is watched at %q, want %q", key, got, want)
	}
}

// checkIn sends a check-in, and answers whether it was expected, and the instant as a time after the start.
func (a *api) checkIn(key, sent string) (at string, cancelled bool) {
	a.Helper()
	var headers []string
	if sent != "" {
		headers = []string{"Content-Type: application/json"}
	}
	var got struct {
		Key, At   string
		Cancelled bool
	}
	if err := json.Unmarshal(a.call("POST", "/v1/jobs/"+key+"/check-in", sent, headers...).want(200).body, &got); err != nil {
		a.Fatal(err)
	}
	if got.Key != key {
		a.Errorf("the answer is about %q", got.Key)
	}
	if got.At != "" {
		instant, err := time.Parse(time.RFC3339, got.At)
		if err != nil {
			a.Fatal(err)
		}
		at = instant.Sub(start).String()
	}
	return at, got.Cancelled
}

// TestJobsAreWatched: the watch of a job has its instants, whatever is done to the job.
func TestJobsAreWatched(t *testing.T) {
	t.Parallel()
	const minutes = "@every 1m"
	for what, test := range map[string]struct {
		do   func(a *api)
		want []string
	}{
		"instants": {func(a *api) {
			a.call("PUT", "/v1/jobs/a", expecting(body("a", time.Minute, time.Hour), "15m")).want(201)
		}, []string{"1m0s+15m0s", "1h0m0s+15m0s"}},
		"an instant that has just passed, and one that is long past": {func(a *api) {
			a.call("PUT", "/v1/jobs/a", expecting(body("a", -time.Second, -time.Hour), "15m")).want(201)
		}, []string{"-1s+15m0s"}},
		"only instants that are long past": {func(a *api) {
			a.call("PUT", "/v1/jobs/a", expecting(body("a", time.Minute), "15m")).want(201)
			a.call("PUT", "/v1/jobs/a", expecting(body("a", -time.Hour), "15m")).want(200)
		}, nil},
		"a delay": {func(a *api) {
			a.call("PUT", "/v1/jobs/a", `{"delay":"90s","expectBy":"1h","callback":{"type":"http","data":1}}`).want(201)
		}, []string{"1m30s+1h0m0s"}},
		"a crontab": {func(a *api) {
			a.call("PUT", "/v1/jobs/a", recurring("a", minutes, "expectBy", "10s")).want(201)
		}, []string{"1m0s+10s", "2m0s+10s"}},
		"a crontab that is submitted again keeps its grid": {func(a *api) {
			a.call("PUT", "/v1/jobs/a", recurring("a", minutes, "expectBy", "10s")).want(201)
			a.advance(10 * time.Second)
			a.call("PUT", "/v1/jobs/a", recurring("a", minutes, "expectBy", "10s")).want(200)
		}, []string{"1m0s+10s", "2m0s+10s"}},
		"another time": {func(a *api) {
			a.call("PUT", "/v1/jobs/a", recurring("a", minutes, "expectBy", "10s")).want(201)
			a.call("PUT", "/v1/jobs/a", recurring("a", "@every 90s", "expectBy", "10s")).want(200)
		}, []string{"1m30s+10s"}},
		"another expectBy": {func(a *api) {
			a.call("PUT", "/v1/jobs/a", expecting(body("a", time.Hour), "15m")).want(201)
			a.patch("a", `{"expectBy":"20m"}`).want(200)
		}, []string{"1h0m0s+20m0s"}},
		"an expectBy by a patch": {func(a *api) {
			a.call("PUT", "/v1/jobs/a", body("a", time.Minute)).want(201)
			a.patch("a", `{"expectBy":"20m"}`).want(200)
		}, []string{"1m0s+20m0s"}},
		"cancelled": {func(a *api) {
			a.call("PUT", "/v1/jobs/a", expecting(body("a", time.Minute), "15m")).want(201)
			a.call("DELETE", "/v1/jobs/a", "").want(200)
		}, nil},
		"cancelled by a prefix": {func(a *api) {
			a.call("PUT", "/v1/jobs/a", expecting(body("a", time.Minute), "15m")).want(201)
			a.call("PUT", "/v1/jobs/ab", expecting(body("ab", time.Minute), "15m")).want(201)
			a.call("PUT", "/v1/jobs/b", expecting(body("b", time.Minute), "15m")).want(201)
			if got := string(a.call("DELETE", "/v1/jobs?prefix=a", "").want(200).body); !strings.Contains(got, `"jobs":2,"cancelled":2`) {
				a.Errorf("it is answered with %s", got)
			}
			a.isWatched("ab")
			a.isWatched("b", "1m0s+15m0s")
		}, nil},
		"in a batch": {func(a *api) {
			a.call("POST", "/v1/jobs/batch", "["+expecting(body("a", time.Minute), "15m")+","+expecting(body("b", time.Minute), "15m")+"]").want(200)
		}, []string{"1m0s+15m0s"}},
		"a sequence: each instant once, however many steps and subscribers it has": {func(a *api) {
			a.call("PUT", "/v1/jobs/a", with(expecting(sequence("a", []any{
				wait(1, "minute"), fire("x"), fire("y"), wait(1, "hour"), fire("z"),
			}), "15m"), "subscribers", []string{"ann", "bob"})).want(201)
		}, []string{"1m0s+15m0s", "1h1m0s+15m0s"}},
		"not expected": {func(a *api) { a.call("PUT", "/v1/jobs/a", body("a", time.Minute)).want(201) }, nil},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			a := newAPI(t)
			test.do(a)
			a.isWatched("a", test.want...)
		})
	}
}

// TestJobsThatAreExpectedStay: a job can be read as long as check-ins for it are expected.
func TestJobsThatAreExpectedStay(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.call("PUT", "/v1/jobs/a", expecting(body("a", time.Minute), "30d")).want(201)
	if at := a.status().ExpiresAt; at.Before(start.Add(30 * 24 * time.Hour)) {
		t.Errorf("it may be removed at %s", at)
	}
}

// TestCheckIns are counted for the right instant, until the last moment.
func TestCheckIns(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.call("PUT", "/v1/jobs/a", expecting(body("a", time.Minute, 2*time.Minute, time.Hour), "10m")).want(201)
	expect := func(sent, wantAt string, want bool) {
		t.Helper()
		if at, cancelled := a.checkIn("a", sent); at != wantAt || cancelled != want {
			t.Errorf("after %s the check-in %s is about %q: %t, want %q: %t", a.clock().Sub(start), sent, at, cancelled, wantAt, want)
		}
	}
	given := func(after time.Duration) string { return fmt.Sprintf(`{"at":%q}`, job.FormatTime(start.Add(after))) }
	expect("", "", false) // nothing has fired
	expect(given(time.Minute), "1m0s", true)
	a.advance(time.Minute)
	expect("", "1m0s", true)
	expect("{}", "1m0s", true)
	a.advance(time.Minute)
	expect("", "2m0s", true)
	expect(given(time.Minute), "1m0s", true)
	refused := a.call("POST", "/v1/jobs/a/check-in", given(90*time.Second), "Content-Type: application/json").want(409)
	if want := "2030-01-01T12:01:30.000Z is no instant of this job; the nearest ones are 2030-01-01T12:01:00.000Z and 2030-01-01T12:02:00.000Z"; !strings.Contains(string(refused.body), want) {
		t.Errorf("a check-in for no instant is refused with %s, want %s", refused.body, want)
	}
	expect(`{"at":null}`, "2m0s", true)
	a.advance(9 * time.Minute)
	expect(given(time.Minute), "1m0s", true) // at the last moment
	a.advance(time.Millisecond)
	expect(given(time.Minute), "1m0s", false)
	a.call("PUT", "/v1/jobs/a", expecting(body("a", 2*time.Hour), "10m")).want(200)
	expect(given(time.Minute), "1m0s", false) // again, though the job has that instant no more

	a.call("PUT", "/v1/jobs/b", body("b", time.Hour)).want(201)
	a.call("POST", "/v1/jobs/b/check-in", "").want(409)
	a.call("POST", "/v1/jobs/none/check-in", "").want(404)
	a.call("POST", "/v1/jobs/a/check-in", `{"at":"soon"}`, "Content-Type: application/json").want(422)
	a.call("POST", "/v1/jobs/a/check-in", `{"when":"2030-01-01T00:00:00Z"}`, "Content-Type: application/json").want(422)
	a.call("POST", "/v1/jobs/a/check-in", `{}`, "Content-Type: text/plain").want(415)
}

// TestCheckInsWithAPrefix: a key with a prefix has its jobs watched, and checks in, though the watches are beyond it.
func TestCheckInsWithAPrefix(t *testing.T) {
	t.Parallel()
	a := newAPI(t, func(c *handlers.Config) {
		by := access.Principal{ID: "p", Role: access.Submitter, Scope: access.Scope{Tenants: []string{job.DefaultTenant}, KeyPrefix: "mail/"}}
		c.Auth = always{by}
	})
	a.call("PUT", "/v1/jobs/mail%2Fa", expecting(body("mail/a", time.Minute), "15m"), "Authorization: Bearer x").want(201)
	a.isWatched("mail/a", "1m0s+15m0s")
	a.advance(time.Minute)
	a.call("POST", "/v1/jobs/mail%2Fa/check-in", "", "Authorization: Bearer x").want(200)
	own := url.PathEscape(watches.WatchName(name("mail/a")).Key)
	a.call("GET", "/v1/jobs/"+own, "", "Authorization: Bearer x").want(404)
	a.call("DELETE", "/v1/jobs/mail%2Fa", "", "Authorization: Bearer x").want(200)
	a.isWatched("mail/a")

	// It cancels no watches of others.
	others := newAPI(t)
	others.call("PUT", "/v1/jobs/main", expecting(body("main", time.Minute), "15m")).want(201)
	others.call("PUT", "/v1/jobs/mail%2Fb", expecting(body("mail/b", time.Minute), "15m")).want(201)
	limited := newAPI(t, func(c *handlers.Config) {
		by := access.Principal{ID: "p", Role: access.Submitter, Scope: access.Scope{Tenants: []string{job.DefaultTenant}, KeyPrefix: "mail/"}}
		c.Store, c.Inspector, c.Records, c.Auth = others.store, others.store, others.store, always{by}
	})
	limited.call("DELETE", "/v1/jobs?prefix=ma", "", "Authorization: Bearer x").want(200)
	others.isWatched("main", "1m0s+15m0s")
	others.isWatched("mail/b")
}

// TestWatchesThatCanNotBeStored fail the submission, which takes effect when it is repeated.
func TestWatchesThatCanNotBeStored(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.store.onPut = func(puts []store.Put) {
		if !job.Reserved(puts[0].Job.Key) { // the next put is that of the watch
			a.store.setFault(store.ErrNotDone)
		}
	}
	a.call("PUT", "/v1/jobs/a", expecting(body("a", time.Minute), "15m")).want(503)
	a.store.onPut = nil
	a.store.setFault(nil)
	a.isWatched("a")
	a.call("PUT", "/v1/jobs/a", expecting(body("a", time.Minute), "15m")).want(200)
	a.isWatched("a", "1m0s+15m0s")
}

func TestExpectationsThatAreRefused(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	for submitted, pointer := range map[string]string{
		expecting(body("a", time.Minute), "soon"):                       "/expectBy",
		expecting(body("a", time.Minute), "31d"):                        "/expectBy",
		with(expecting(body("a", time.Minute), "10m"), "spread", "10m"): "/expectBy",
		body("$carillon:event:mine", time.Minute):                       "/key",
	} {
		if got := a.call("POST", "/v1/jobs", submitted).want(422); !strings.Contains(string(got.body), `"pointer":"`+pointer+`"`) {
			t.Errorf("%s is refused with %s", submitted, got.body)
		}
	}
}

// TestListsLeaveOutTheServicesJobs unless they are asked for.
func TestListsLeaveOutTheServicesJobs(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	var want []string
	for i := range 12 {
		key := fmt.Sprintf("%c%d", "!$%aZé"[i%6], i)
		if i%6 == 5 {
			key = fmt.Sprint("é", i)
		}
		want = append(want, key)
		a.call("POST", "/v1/jobs", expecting(body(key, time.Minute), "15m")).want(201)
	}
	slices.Sort(want)
	list := func(query string) (keys []string, pages int) {
		for cursor := ""; ; {
			pages++
			var page struct {
				Items      []struct{ Key string }
				NextCursor string
			}
			if err := json.Unmarshal(a.call("GET", "/v1/jobs?"+query+cursor, "").want(200).body, &page); err != nil {
				t.Fatal(err)
			}
			for _, item := range page.Items {
				keys = append(keys, item.Key)
			}
			if cursor = "&cursor=" + page.NextCursor; page.NextCursor == "" {
				return keys, pages
			}
		}
	}
	for _, query := range []string{"", "limit=1", "limit=2", "limit=3", "limit=5", "limit=12", "limit=1000", "state=scheduled", "state=scheduled&limit=1"} {
		if got, _ := list(query); !slices.Equal(got, want) {
			t.Errorf("?%s lists %q, want %q", query, got, want)
		}
	}
	if _, pages := list("limit=3"); pages > 5 {
		t.Errorf("there are %d pages of 3", pages)
	}
	if got, _ := list("prefix=" + url.QueryEscape("$carillon:expect:a")); len(got) != 2 {
		t.Errorf("asked for them, it lists %q", got)
	}
	if got, _ := list("prefix=" + url.QueryEscape("$")); len(got) != 2 {
		t.Errorf("with a shorter prefix it lists %q", got)
	}
}

func TestSettingsOfEvents(t *testing.T) {
	t.Parallel()
	a := newAPI(t, withEvents)
	put := func(status int, events string) string {
		t.Helper()
		return string(a.call("PUT", "/v1/tenants/acme", `{"events":`+events+`}`).want(status).body)
	}
	const callback = `"callback":{"type":"kafka","data":{"x":1}}`
	const whole = `{"callback":{"type":"kafka","data":{"x":1},"envelope":"cloudevents","signing":"none"},"types":["carillon.job.failing"],"perMinute":3}`
	put(201, `{`+callback+`}`)
	if got := put(200, whole); !strings.Contains(got, `"events":`+whole) {
		t.Errorf("they are shown as %s", got)
	}
	if got := string(a.call("GET", "/v1/tenants/acme", "").want(200).body); !strings.Contains(got, `"events":`+whole) {
		t.Errorf("they are shown as %s", got)
	}
	for sent, pointer := range map[string]string{
		`{}`:                                     "/events/callback",
		`{"callback":{"type":"smoke","data":1}}`: "/events/callback/type",
		`{"callback":{"type":"kafka"}}`:          "/events/callback/data",
		`{"callback":{"type":"kafka","data":1,"envelope":"none"}}`:                   "/events/callback/envelope",
		`{` + callback + `,"types":["carillon.job.failing","x"]}`:                    "/events/types/1",
		`{` + callback + `,"types":[]}`:                                              "/events/types",
		`{` + callback + `,"perMinute":0}`:                                           "/events/perMinute",
		`{` + callback + `,"sometimes":0}`:                                           "/events/sometimes",
		`{"callback":{"type":"carillon-watch","data":{"key":"x"}}}`:                  "/events/callback/type",
		`{"callback":{"type":"kafka","data":"` + strings.Repeat("x", 33<<10) + `"}}`: "",
	} {
		status := 422
		if pointer == "" { // larger than the body may be here
			status = 413
		}
		if got := put(status, sent); pointer != "" && !strings.Contains(got, `"pointer":"`+pointer+`"`) {
			t.Errorf("%s is refused with %s", sent, got)
		}
	}
	a.call("PUT", "/v1/tenants/acme", `{}`).want(200)
	if got := string(a.call("GET", "/v1/tenants/acme", "").want(200).body); strings.Contains(got, "events") {
		t.Errorf("without any, it shows %s", got)
	}
}
