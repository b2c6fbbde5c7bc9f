package handlers_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/history"
	"github.com/carillon-scheduler/carillon/job"
)

// heard keeps the entries that it gets.
type heard struct{ all []*history.Entry }

func (h *heard) Record(entries ...*history.Entry) { h.all = append(h.all, entries...) }

// Instants that were submitted after their deadline are missed like others: history, events and explanations report
// them.
func TestMissedAtSubmission(t *testing.T) {
	t.Parallel()
	var closeHistory func()
	var told heard
	a := newAPI(t, recording(&closeHistory), func(c *handlers.Config) {
		c.Events, c.Limits.Instants, c.MaxBody = &told, 1000, 1<<20
	})
	a.call("PUT", "/v1/jobs/k", with(body("k", -2*time.Hour, -time.Hour, time.Hour), "deadline", "10m")).want(201)
	a.call("PUT", "/v1/jobs/skips", with(body("skips", -time.Hour, time.Hour), "past", "skip", "deadline", "10m")).want(201)
	var long []time.Duration
	for i := range 120 {
		long = append(long, -time.Hour-time.Duration(i)*time.Second)
	}
	a.call("PUT", "/v1/jobs/long", with(body("long", long...), "deadline", "10m")).want(201)
	closeHistory()

	var events []string
	counted := 0
	for _, e := range told.all {
		if e.Name.Key == "k" {
			events = append(events, fmt.Sprint(e.Kind, " ", e.Instant.Sub(start), " ", e.DeliveryID() == job.DeliveryID(e.Name, e.Instant, 0, "")))
		}
		if e.Name.Key == "long" {
			counted += max(1, e.Count)
		}
	}
	if want := []string{"missed -2h0m0s true", "missed -1h0m0s true"}; !slices.Equal(events, want) {
		t.Errorf("events are made of %q, want %q", events, want)
	}
	if len(told.all) != 102 || counted != 120 {
		t.Errorf("of 120 instants, %d entries stand for %d", len(told.all)-2, counted)
	}
	items := a.history("/v1/jobs/k/history?outcome=missed").Items
	if len(items) != 2 || items[0]["timestamp"] != at(-time.Hour) || items[0]["error"] != "it was submitted after its deadline" || items[0]["by"] != nil {
		t.Errorf("history has %v", items)
	}
	if items := a.history("/v1/jobs/skips/history?outcome=missed").Items; len(items) != 0 {
		t.Errorf("what was skipped as asked for is missed: %v", items)
	}
	for _, ago := range []time.Duration{time.Hour, 2 * time.Hour} {
		got := string(a.call("GET", "/v1/jobs/k/explain?at="+at(-ago), "").want(200).body)
		if !strings.Contains(got, `"code":"missed"`) || !strings.Contains(got, "its deadline") {
			t.Errorf("%s ago is explained as %s", ago, got)
		}
	}
}
