package handlers_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// held is a connection whose requests have waited.
type held struct {
	net.Conn
	since time.Duration
}

func (h held) SinceReceived() time.Duration { return h.since }

// waiting makes each request of an API wait for a duration before it is handled.
func waiting(t *testing.T, a *api, since time.Duration, configure ...func(*handlers.Config)) *api {
	t.Helper()
	var config handlers.Config
	b := newAPI(t, append(configure, func(c *handlers.Config) {
		c.Store, c.Inspector, c.Records = a.store, a.store, a.store
		config = *c
	})...)
	server := httptest.NewUnstartedServer(handlers.New(config))
	server.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return handlers.KeepConn(ctx, held{c, since})
	}
	server.Start()
	t.Cleanup(server.Close)
	b.url = server.URL
	return b
}

// TestRequestsThatHaveWaitedTooLong: a request that has waited for longer than a change may take changes nothing, even
// without another change in between.
func TestRequestsThatHaveWaitedTooLong(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	late := waiting(t, a, store.Within+time.Second)
	a.call("PUT", "/v1/jobs/there", body("there", time.Hour)).want(201)
	a.call("PUT", "/v1/jobs/paused", body("paused", time.Hour)).want(201)
	a.call("POST", "/v1/jobs/paused/pause", "").want(200)
	bury(a, "dead")
	letter := deadLetters(a, "").Items[0].ID
	content := func() string {
		return string(a.call("GET", "/v1/jobs/there", "").body) + string(a.call("GET", "/v1/jobs/paused", "").body) +
			string(a.call("GET", "/v1/jobs", "").body) + string(a.call("GET", "/v1/dead-letters", "").body) +
			string(a.call("GET", "/v1/tenants", "").body)
	}
	before := content()
	for _, request := range []struct{ method, path, body string }{
		{"PUT", "/v1/jobs/new", body("new", time.Hour)},
		{"PUT", "/v1/jobs/new", body("new", -time.Hour)},
		{"POST", "/v1/jobs", body("new", time.Hour)},
		{"PUT", "/v1/jobs/there", body("there", 2*time.Hour)},
		{"PATCH", "/v1/jobs/there", `{"callback":{"data":7}}`},
		{"DELETE", "/v1/jobs/there", ""},
		{"DELETE", "/v1/jobs?prefix=t", ""},
		{"POST", "/v1/jobs/there/pause", ""},
		{"POST", "/v1/jobs/paused/resume", ""},
		{"POST", "/v1/jobs/there/trigger", ""},
		{"POST", "/v1/dead-letters/" + letter + "/redrive", ""},
		{"POST", "/v1/dead-letters/redrive?all=true", ""},
		{"DELETE", "/v1/dead-letters/" + letter, ""},
		{"DELETE", "/v1/dead-letters?all=true", ""},
		{"PUT", "/v1/tenants/acme", `{"weight":3}`},
	} {
		late.call(request.method, request.path, request.body).want(503)
		if after := content(); after != before {
			t.Errorf("%s %s changed something: %s, before %s", request.method, request.path, after, before)
		}
	}
	results := decode[[]struct{ Status int }](late.call("POST", "/v1/jobs/batch", "["+body("new", time.Hour)+"]").want(200))
	if len(results) != 1 || results[0].Status != 503 || content() != before {
		t.Errorf("the batch was answered %+v", results)
	}
}

// TestCancelByPrefixSparesWhatCameLater holds up a cancellation while another client puts.
func TestCancelByPrefixSparesWhatCameLater(t *testing.T) {
	t.Parallel()
	a := newAPI(t, ofStoresClock)
	a.call("PUT", "/v1/jobs/p1", body("p1", time.Hour)).want(201)
	time.Sleep(50 * time.Millisecond) // more than the clocks are known by, and than it takes to ask
	late := waiting(t, a, 20*time.Second, ofStoresClock)
	if got := string(late.call("DELETE", "/v1/jobs?prefix=p", "").want(200).body); got != `{"jobs":0,"cancelled":0,"inFlight":0}` {
		t.Errorf("%s", got)
	}
	a.call("GET", "/v1/jobs/p1", "").want(200)
	if got := string(a.call("DELETE", "/v1/jobs?prefix=p", "").want(200).body); got != `{"jobs":1,"cancelled":1,"inFlight":0}` {
		t.Errorf("%s", got)
	}
}

// TestOvertakenAmendmentsAreRefused: another client's request is accepted before the job is read, and has the very
// schedule that the first one submits, so that the first one would only change the callback.
func TestOvertakenAmendmentsAreRefused(t *testing.T) {
	t.Parallel()
	hourly := func(data int) string {
		return fmt.Sprintf(`{"callback":{"type":"http","data":%d},"crontab":"@hourly"}`, data)
	}
	for _, headers := range [][]string{nil, {"If-Match: *"}} {
		a := newAPI(t, ofStoresClock)
		a.call("PUT", "/v1/jobs/a", body("a", time.Hour)).want(201)
		overtaken := false
		a.store.onJob = func(job.Name) {
			if !overtaken {
				overtaken = true
				time.Sleep(20 * time.Millisecond) // more than the clocks are known by
				a.call("PUT", "/v1/jobs/a", hourly(2)).want(200)
			}
		}
		a.call("PUT", "/v1/jobs/a", hourly(1), headers...).want(409)
		if got := string(a.definition("a").data); !overtaken || got != "2" {
			t.Errorf("%v: the callback's data are %s, want 2", headers, got)
		}
	}
}

// TestBatchOvertakesNobodyButItself has a key several times in a batch, each item of which takes a while.
func TestBatchOvertakesNobodyButItself(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]func(hours int) string{
		"past":  func(hours int) string { return body("a", -time.Hour, time.Duration(hours)*time.Hour) },
		"later": func(hours int) string { return body("a", time.Duration(hours)*time.Hour) },
	} {
		a := newAPI(t, ofStoresClock)
		a.call("PUT", "/v1/jobs/a", of(1)).want(201)
		a.store.onPut = func([]store.Put) { time.Sleep(15 * time.Millisecond) } // more than the clocks are known by
		items := []string{body("x", time.Hour), of(2), of(3), body("y", -time.Hour), of(4)}
		got := a.call("POST", "/v1/jobs/batch", strings.Join(items, "\n"), "Content-Type: application/x-ndjson").want(200)
		for line := range strings.Lines(string(got.body)) {
			if !strings.Contains(line, `"status":20`) {
				t.Errorf("%s: %s", name, line)
			}
		}
		if left := a.definition("a").Schedules; left[len(left)-1] != at(4*time.Hour) {
			t.Errorf("%s: left is %v", name, left)
		}
	}
}

// TestEditOfACrontabKeepsTheTickOfTheMoment edits a crontab right after a tick, which is due, or held, or retried.
func TestEditOfACrontabKeepsTheTickOfTheMoment(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"PATCH", "PUT"} {
		for _, state := range []string{"due", "held", "fails"} {
			t.Run(fmt.Sprint(method, ", ", state), func(t *testing.T) {
				r := &receiver{newAPI(t), map[job.ID]int{}}
				crontab := `{"callback":{"type":"http","data":1},"crontab":"* * * * *"`
				r.call("PUT", "/v1/jobs/a", crontab+"}").want(201)
				r.advance(time.Minute + 3*time.Millisecond)
				var claimed []store.Claimed
				if state != "due" {
					claimed = r.claim()
				}
				if method == "PUT" {
					r.call("PUT", "/v1/jobs/a", crontab+`,"priority":"high"}`).want(http.StatusOK)
				} else {
					r.call("PATCH", "/v1/jobs/a", `{"priority":"high"}`).want(http.StatusOK)
				}
				if state == "fails" {
					r.fail(claimed...)
				} else {
					r.deliver(claimed...)
				}
				r.deliver(r.claim()...)
				r.advance(time.Minute - 10*time.Millisecond)
				r.deliver(r.claim()...) // a retry is due after an hour by these tests
				if state == "fails" {
					if got := r.definition("a"); len(got.Occurrences) == 0 || got.Occurrences[0].Timestamp != at(time.Minute) {
						t.Errorf("what failed is not retried: %+v", got.Occurrences)
					}
					return
				}
				if len(r.times) != 1 {
					t.Errorf("%d ticks are delivered, want the one", len(r.times))
				}
				for _, n := range r.times {
					if n != 1 {
						t.Errorf("it is delivered %d times", n)
					}
				}
			})
		}
	}
}
