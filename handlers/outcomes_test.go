package handlers_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/store"
)

// ended returns the shown outcomes of a job's occurrences.
func (a *api) ended(key, query string) string {
	a.Helper()
	d := decode[definition](a.call("GET", pathOf(key)+query, "").want(200))
	text := "not known"
	if o := d.Outcomes; o != nil {
		text = fmt.Sprintf("%d delivered, %d failed, %d missed", o.Delivered, o.Failed, o.Missed)
	}
	if l := d.LastOutcome; l.Outcome != "" {
		text += fmt.Sprintf("; last %s of %s", l.Outcome, l.Instant)
		if l.At != "" {
			text += fmt.Sprintf(" at %s: %s", l.At, l.Error)
		}
	}
	return text
}

// nextCursor returns the cursor of the second page of a job's occurrences, if there is one.
func (a *api) nextCursor(key string) string {
	a.Helper()
	return decode[definition](a.call("GET", pathOf(key)+"?limit=1", "").want(200)).NextCursor
}

// TestOutcomes: a job that was refused does not look like one that was delivered.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	expect := func(key, want string) {
		t.Helper()
		if got := a.ended(key, ""); got != want {
			t.Errorf("%s: %s\nwant %s", key, got, want)
		}
	}
	for _, key := range []string{"delivered", "refused"} {
		a.call("PUT", pathOf(key), body(key, 0)).want(201)
		expect(key, "0 delivered, 0 failed, 0 missed")
		c := a.claim()[0]
		expect(key, "0 delivered, 0 failed, 0 missed") // it is held
		a.settle(c, map[string]store.Outcome{"delivered": store.Ack, "refused": store.Bury}[key], "no such page")
	}
	expect("delivered", "1 delivered, 0 failed, 0 missed; last delivered of "+at(0))
	refused := "0 delivered, 1 failed, 0 missed; last failed of " + at(0) + " at " + at(0) + ": no such page"
	expect("refused", refused)
	a.call("POST", "/v1/jobs/refused/trigger", "").want(202)
	expect("refused", refused)
	a.settle(a.claim()[0], store.Ack, "")
	expect("refused", refused)

	a.call("PUT", "/v1/jobs/many", body("many", 0, time.Minute, 2*time.Minute, time.Hour)).want(201)
	a.settle(a.claim()[0], store.Retry, "busy")
	a.advance(time.Minute)
	a.settle(a.claim()[0], store.Bury, "refused")
	a.advance(time.Minute)
	failed := "; last failed of " + at(time.Minute) + " at " + at(time.Minute) + ": refused"
	expect("many", "0 delivered, 1 failed, 0 missed"+failed)
	a.settle(a.claim()[0], store.Ack, "")
	expect("many", "1 delivered, 1 failed, 0 missed; last delivered of "+at(2*time.Minute))
	for query, want := range map[string]string{
		"?limit=1":                                "1 delivered, 1 failed, 0 missed; last delivered of " + at(2*time.Minute),
		"?cursor=00000000000000000000000000":      "1 delivered, 1 failed, 0 missed; last delivered of " + at(2*time.Minute),
		"?limit=1&cursor=" + a.nextCursor("many"): "1 delivered, 1 failed, 0 missed",
	} {
		if got := a.ended("many", query); got != want {
			t.Errorf("many%s: %s, want %s", query, got, want)
		}
	}
	a.call("POST", "/v1/jobs/many/pause", "").want(200)
	a.patch("many", `{"deadline":"1d"}`).want(200)
	expect("many", "1 delivered, 1 failed, 0 missed; last delivered of "+at(2*time.Minute))
	a.call("PUT", "/v1/jobs/many", body("many", 2*time.Hour)).want(200)
	expect("many", "0 delivered, 0 failed, 0 missed")
}

// TestOutcomesOfWhatWasLeftOut: skipped instants do not count as delivered.
func TestOutcomesOfWhatWasLeftOut(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	missed := "0 delivered, 0 failed, 1 missed; last missed of " + at(-time.Hour) + " at " + at(0) + ": "
	for _, c := range []struct{ key, job, before, after string }{
		{"skipped", with(body("skipped", -time.Hour), "past", "skip"), "not known", "not known"},
		{"some", with(body("some", -time.Hour, 0), "past", "skip"), "0 delivered, 0 failed, 0 missed",
			"1 delivered, 0 failed, 0 missed; last delivered of " + at(0)},
		{"late", body("late", -time.Hour), "0 delivered, 0 failed, 0 missed",
			"1 delivered, 0 failed, 0 missed; last delivered of " + at(-time.Hour)},
		{"overdue", with(body("overdue", -time.Hour), "deadline", "1m"), missed, missed},
		{"crontab", recurring("crontab", "* * * * *"), "0 delivered, 0 failed, 0 missed", ""},
	} {
		a.call("PUT", pathOf(c.key), c.job).want(201)
		if got := a.ended(c.key, ""); got != c.before {
			t.Errorf("%s: %s, want %s", c.key, got, c.before)
		}
		for _, claimed := range a.claim() {
			a.settle(claimed, store.Ack, "")
		}
		if got := a.ended(c.key, ""); c.after != "" && got != c.after {
			t.Errorf("%s: %s, want %s", c.key, got, c.after)
		}
	}
	a.advance(time.Minute)
	next := a.definition("crontab").Occurrences[0].Timestamp
	n := 0
	for _, claimed := range a.claim() {
		a.settle(claimed, store.Ack, "")
		n++
	}
	want := "1 delivered, 0 failed, 0 missed; last delivered of " + next
	if got := a.ended("crontab", ""); got != want || n != 1 {
		t.Errorf("crontab: %s, want %s", got, want)
	}
}

// TestRetrying: while an instant is retried, the job shows the error of the last attempt and the time of the next one,
// which comes in the early window.
func TestRetrying(t *testing.T) {
	t.Parallel()
	const early = 3 * time.Second
	a := newAPI(t, func(c *handlers.Config) { c.Early = early })
	expect := func(query, want string) {
		t.Helper()
		r := decode[struct {
			Retrying *struct {
				Instant, Error, NextAttempt string
				Attempt                     int
			}
		}](a.call("GET", pathOf("k")+query, "").want(200)).Retrying
		got := "none"
		if r != nil {
			got = fmt.Sprintf("%s #%d %s, next %s", r.Instant, r.Attempt, r.Error, r.NextAttempt)
		}
		if got != want {
			t.Errorf("k%s: %s, want %s", query, got, want)
		}
	}
	a.call("PUT", "/v1/jobs/k", body("k", 0, time.Second, time.Hour)).want(201)
	expect("", "none")
	c := a.claim()[0]
	expect("", "none") // it is held
	a.settle(c, store.Retry, "busy")
	expect("", at(0)+" #1 busy, next "+at(time.Hour-early))
	a.advance(time.Second)
	a.settle(a.claim()[0], store.Retry, "full")
	expect("", at(time.Second)+" #1 full, next "+at(time.Hour+time.Second-early))
	expect("?limit=1", at(0)+" #1 busy, next "+at(time.Hour-early))
	a.advance(2 * time.Hour)
	again := a.claim()
	expect("", at(time.Second)+" #1 full, next ")
	for _, c := range again {
		a.settle(c, store.Ack, "")
	}
	expect("", "none")
}
