package handlers_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/history"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// recording configures an API to record changes. The function that it sets writes them to the store.
func recording(closeHistory *func()) func(*handlers.Config) {
	return func(c *handlers.Config) {
		w := history.NewWriter(history.Config{Records: c.Records, Policy: history.Policy{Keep: retain}, Now: c.Now})
		c.History, *closeHistory = w, func() { _ = w.Close() }
	}
}

// write writes entries of history, as dispatchers do.
func (a *api) write(entries ...history.Entry) {
	w := history.NewWriter(history.Config{Records: a.store, Policy: history.Policy{Keep: retain}, Now: a.clock})
	all := make([]*history.Entry, len(entries))
	for i := range entries {
		all[i] = &entries[i]
	}
	w.Record(all...)
	_ = w.Close()
}

// entryPage is a page as clients read it.
type entryPage struct {
	Items                                 []map[string]any
	Incomplete                            bool
	MissingFrom, MissingUntil, NextCursor string
}

func (a *api) history(path string, headers ...string) (page entryPage) {
	a.Helper()
	got := a.call("GET", path, "", headers...).want(200)
	if err := json.Unmarshal(got.body, &page); err != nil {
		a.Fatal(err)
	}
	return page
}

// delivery is an attempt, some time after start.
func delivered(key string, after time.Duration) history.Entry {
	n, at := name(key), start.Add(after).UTC()
	return history.Entry{
		Name: n, At: at.Add(2 * time.Millisecond), Instant: at, Attempt: 1, Claimed: at,
		Took: 1500 * time.Microsecond, Destination: "http example.com", Replica: "r1",
	}
}

// Every change of a job is in its history, with the principal, the request and the changed fields, also after the job's
// deletion.
func TestHistoryOfChanges(t *testing.T) {
	t.Parallel()
	var closeHistory func()
	a := newAPI(t, recording(&closeHistory))
	step := 0
	do := func(method, path, body string, headers ...string) answer {
		t.Helper()
		step++
		a.advance(time.Second)
		got := a.call(method, path, body, append(headers, fmt.Sprintf("X-Request-Id: request-%d", step))...)
		if got.status >= 300 {
			t.Fatalf("%s %s: %d %s", method, path, got.status, got.body)
		}
		return got
	}
	first := do("PUT", "/v1/jobs/k", body("k", time.Hour)).header.Get("ETag")
	do("PUT", "/v1/jobs/k", with(body("k", time.Hour), "callback", map[string]any{"type": "http", "data": map[string]any{"secret": "hunter2"}}))
	do("PATCH", "/v1/jobs/k", `{"deadline":"2h","callback":{"data":2}}`, "Content-Type: application/merge-patch+json")
	do("PATCH", "/v1/jobs/k", `{"deadline":"2h"}`, "Content-Type: application/merge-patch+json") // which changes nothing
	do("PATCH", "/v1/jobs/k", `{"delay":"3h","schedules":null,"priority":"high"}`, "Content-Type: application/merge-patch+json")
	do("POST", "/v1/jobs/k/pause", "")
	do("POST", "/v1/jobs/k/pause", "") // again
	do("POST", "/v1/jobs/k/resume", "")
	do("POST", "/v1/jobs/k/trigger", "")
	for _, claimed := range a.claim() {
		a.settle(claimed, store.Bury, "410 Gone")
	}
	do("POST", "/v1/dead-letters/redrive?key=k", "")
	for _, claimed := range a.claim() {
		a.settle(claimed, store.Bury, "410 Gone")
	}
	do("DELETE", "/v1/dead-letters?key=k", "")
	do("DELETE", "/v1/jobs/k", "")
	do("PUT", "/v1/jobs/k", body("k", 2*time.Hour))
	do("DELETE", "/v1/jobs?prefix=k", "")
	closeHistory()
	var got []string
	page := a.history("/v1/jobs/k/history")
	slices.Reverse(page.Items)
	for _, item := range page.Items {
		text := fmt.Sprint(item["change"], " ", item["requestId"], " by ", item["by"])
		if item["deliveryId"] != nil {
			text += " of a delivery"
		}
		if item["fields"] != nil {
			text += fmt.Sprint(" ", item["fields"])
		}
		got = append(got, text)
	}
	want := []string{
		"created request-1 by anyone", "replaced request-2 by anyone", "patched request-3 by anyone [callback deadline]",
		"replaced request-5 by anyone [priority schedule]", "paused request-6 by anyone", "resumed request-8 by anyone",
		"triggered request-9 by anyone of a delivery", "redriven request-10 by anyone of a delivery",
		"discarded request-11 by anyone of a delivery", "cancelled request-12 by anyone", "created request-13 by anyone",
		"cancelled request-14 by anyone",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if replaced := page.Items[1]["replaced"]; fmt.Sprintf("%q", replaced) != first {
		t.Errorf("the second put has replaced %v, not %s", replaced, first)
	}
	if text := fmt.Sprint(page.Items); strings.Contains(text, "hunter2") || strings.Contains(text, "example.com") {
		t.Errorf("a payload or a URL is in history: %s", text)
	}
}

// Pages and lines have the same entries, the newest first.
func TestHistoryIsListed(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	var all []history.Entry
	for i := range 50 {
		e := delivered(fmt.Sprintf("k%d", i%5), time.Duration(i)*time.Second)
		switch i % 10 {
		case 3:
			e.Kind, e.Status, e.Next = history.Retried, 503, e.At.Add(time.Second)
		case 4:
			e.Kind, e.Error, e.Destination = history.Buried, "no such queue", "rabbitmq orders"
		}
		all = append(all, e)
	}
	a.write(all...)
	a.advance(time.Minute)
	at := func(after time.Duration) string { return url.QueryEscape(job.FormatTime(start.Add(after))) }
	for query, want := range map[string]int{
		"/v1/history?":                                            50,
		"/v1/history?outcome=failed&":                             10,
		"/v1/history?outcome=delivered&":                          40,
		"/v1/history?outcome=buried&":                             5,
		"/v1/history?destination=rabbitmq+orders&":                5,
		"/v1/history?prefix=k3&":                                  10,
		"/v1/history?prefix=k&":                                   50,
		"/v1/history?prefix=x&":                                   0,
		"/v1/history?since=" + at(40*time.Second) + "&":           10,
		"/v1/history?until=" + at(40*time.Second) + "&prefix=k4&": 8,
		"/v1/jobs/k3/history?":                                    10,
		"/v1/jobs/k/history?":                                     0,
		"/v1/jobs/k3/history?outcome=failed&":                     5,
		"/v1/jobs/k3/history?since=" + at(20*time.Second) + "&until=" + at(40*time.Second) + "&": 4,
	} {
		var paged []string
		for cursor := ""; ; {
			page := a.history(query + "limit=7" + cursor)
			if page.Incomplete {
				t.Errorf("%s: it is said to be incomplete", query)
			}
			for _, item := range page.Items {
				paged = append(paged, fmt.Sprint(item))
			}
			if page.NextCursor == "" {
				break
			}
			cursor = "&cursor=" + page.NextCursor
		}
		if len(paged) != want {
			t.Errorf("%s: %d entries, want %d", query, len(paged), want)
		}
		got := a.call("GET", query[:len(query)-1], "", "Accept: application/x-ndjson").want(200)
		if media := got.header.Get("Content-Type"); media != "application/x-ndjson" {
			t.Errorf("%s: answered with %s", query, media)
		}
		var lines []string
		for scanner := bufio.NewScanner(bytes.NewReader(got.body)); scanner.Scan(); {
			var item map[string]any
			if err := json.Unmarshal(scanner.Bytes(), &item); err != nil {
				t.Fatal(err)
			}
			lines = append(lines, fmt.Sprint(item))
		}
		if !slices.Equal(lines, paged) {
			t.Errorf("%s: as lines\n%s\nas pages\n%s", query, strings.Join(lines, "\n"), strings.Join(paged, "\n"))
		}
	}
	got := a.history("/v1/jobs/k3/history?limit=1&until=" + at(45*time.Second)).Items[0]
	if text := encode(got); text != `{"at":"2030-01-01T12:00:43.002Z","attempt":1,"claimedAt":"2030-01-01T12:00:43.000Z","deliveryId":"`+
		all[43].DeliveryID().String()+`","destination":"http example.com","duration":"1.5ms","key":"k3","nextAttempt":"2030-01-01T12:00:44.002Z",`+
		`"outcome":"retried","replica":"r1","status":503,"timestamp":"2030-01-01T12:00:43.000Z"}` {
		t.Errorf("an entry is %s", text)
	}
	a.advance(2 * retain)
	if page := a.history("/v1/history"); len(page.Items) > 0 {
		t.Errorf("%d entries are kept too long", len(page.Items))
	}
}

// After a tenant's retention has become shorter, older entries are not returned, although they are still stored.
func TestHistoryIsToldAsLongAsTheTenantMayKeepIt(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.write(delivered("k", 0), delivered("k", time.Minute))
	a.advance(2 * time.Minute)
	for _, c := range []struct {
		keep string
		want int
	}{{"24h", 2}, {"90s", 1}, {"0", 0}, {"failures:119s", 1}, {"10000d", 2}} {
		a.call("PUT", "/v1/tenants/default/limits", fmt.Sprintf(`{"history":%q}`, c.keep)).want(200)
		for _, path := range []string{"/v1/history", "/v1/jobs/k/history"} {
			if got := len(a.history(path).Items); got != c.want {
				t.Errorf("%s, kept for %s: %d entries, want %d", path, c.keep, got, c.want)
			}
		}
	}
}

// An invalid parameter of a request for history is refused by name.
func TestHistoryRefusesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	for query, named := range map[string]string{
		"/v1/history?outcome=lost":            "outcome",
		"/v1/history?since=yesterday":         "since",
		"/v1/history?until=1":                 "until",
		"/v1/history?limit=0":                 "limit",
		"/v1/history?cursor=x":                "cursor",
		"/v1/history?cursor=e30":              "cursor",
		"/v1/history?key=k":                   "key",
		"/v1/jobs/k/history?prefix=k":         "prefix",
		"/v1/jobs/k/history?destination=http": "destination",
	} {
		got := a.call("GET", query, "")
		if got.status != 422 || !strings.Contains(string(got.body), named) {
			t.Errorf("%s: %d %s", query, got.status, got.body)
		}
	}
	a.store.mu.Lock()
	a.store.tenantFault = store.ErrUnavailable
	a.store.mu.Unlock()
	a.call("GET", "/v1/history", "").want(503)
	a.call("GET", "/v1/history", "", "Accept: application/x-ndjson").want(503)
}

// Answers report a gap in both forms, and only if it is within the requested time.
func TestHistoryTellsWhatIsMissing(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	many := make([]history.Entry, 40_000) // more than can wait
	for i := range many {
		many[i] = delivered("k", time.Duration(i)*time.Millisecond)
		many[i].Kind = history.Retried
	}
	a.write(many...)
	page := a.history("/v1/jobs/other/history")
	if !page.Incomplete || page.MissingFrom <= job.FormatTime(start) || page.MissingUntil != job.FormatTime(start.Add(40_001*time.Millisecond)) {
		t.Errorf("the page is %+v", page)
	}
	lines := string(a.call("GET", "/v1/jobs/other/history", "", "Accept: application/x-ndjson").want(200).body)
	if want := fmt.Sprintf(`{"incomplete":true,"missingFrom":%q,"missingUntil":%q}`+"\n", page.MissingFrom, page.MissingUntil); lines != want {
		t.Errorf("the lines are %s", lines)
	}
	if page := a.history("/v1/jobs/k/history?since=" + url.QueryEscape(job.FormatTime(start.Add(time.Minute)))); page.Incomplete {
		t.Errorf("later, the page is %+v", page)
	}
}

// A key with a prefix sees the history of its jobs and of no others.
func TestHistoryWithinAPrefix(t *testing.T) {
	t.Parallel()
	var keys *access.Keys
	a := newAPI(t, func(c *handlers.Config) {
		keys = access.NewKeys(c.Records)
		c.Auth, c.Keys = keys, keys
	})
	defer func() { _ = keys.Close() }()
	a.write(delivered("mail/a", 0), delivered("mail/b", time.Second), delivered("news/a", 2*time.Second))
	scope := access.Scope{Tenants: []string{job.DefaultTenant}, KeyPrefix: "mail/"}
	token, _, err := keys.Create(t.Context(), access.KeyParams{Role: access.Viewer, Scope: scope}, "anyone", start)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int{
		"/v1/history": 2, "/v1/history?prefix=mail%2Fa": 1, "/v1/history?prefix=news%2F": 0, "/v1/history?prefix=m": 2,
		"/v1/jobs/mail%2Fa/history": 1, "/v1/jobs/news%2Fa/history": 0,
	} {
		if page := a.history(path, "Authorization: Bearer "+token); len(page.Items) != want {
			t.Errorf("%s: %d entries, want %d", path, len(page.Items), want)
		}
	}
}
