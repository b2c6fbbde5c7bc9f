package handlers_test

import (
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// TestRecurringScheduleSubmittedAgain: the same crontab keeps its grid and its instants, those due at this moment too,
// whichever way it is submitted; another one does not.
func TestRecurringScheduleSubmittedAgain(t *testing.T) {
	t.Parallel()
	every := recurring("a", "@every 10m", "timezone", "Europe/Paris")
	changed := recurring("a", "@every 10m", "timezone", "Europe/Paris", "deadline", "5m")
	post := func(headers ...string) func(*api, string) accepted {
		return func(a *api, body string) accepted {
			return decode[accepted](a.call("POST", "/v1/jobs", body, headers...).want(200))
		}
	}
	ifMatch := func(a *api, body string) accepted {
		return post(`If-Match: "`+string(a.status().Version)+`"`)(a, body)
	}
	batch := func(a *api, body string) accepted {
		return decode[accepted](a.call("POST", "/v1/jobs/batch", body, "Content-Type: "+asLines).want(200))
	}
	for name, submit := range map[string]func(*api, string) accepted{
		"post": post(), "if it exists": post("If-Match: *"), "if it is that version": ifMatch, "batch": batch,
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t)
			first := decode[accepted](a.call("POST", "/v1/jobs", every).want(201))
			a.advance(10*time.Minute + time.Second) // an instant is due, and was not claimed yet

			if again := submit(a, every); again.Version != first.Version || again.Revision != first.Revision || again.InFlight != nil ||
				again.NextInstant != at(10*time.Minute) || again.State != "scheduled" {
				t.Errorf("the same again: %+v, at first %+v", again, first)
			}
			got := submit(a, changed)
			status := a.status()
			if got.Version == first.Version || got.Version != string(status.Version) || got.Revision != first.Revision || string(status.Revision) != first.Revision {
				t.Errorf("with a deadline: %+v, at first %+v", got, first)
			}
			if status.Options.Deadline != job.Duration(5*time.Minute) || !status.Schedule.Anchor.Equal(start) || status.Options.Recurrence == nil {
				t.Errorf("with a deadline: %+v", status.Job)
			}
			if claimed := a.claim(); len(claimed) != 1 || job.FormatTime(claimed[0].Timestamp) != at(10*time.Minute) {
				t.Errorf("claimed %+v, want the instant that was due", claimed)
			}

			other := submit(a, recurring("a", "@every 10m", "timezone", "Asia/Tokyo"))
			if other.Revision == first.Revision || other.InFlight == nil || *other.InFlight != 1 || !a.status().Schedule.Anchor.After(start) {
				t.Errorf("another zone: %+v", other)
			}
		})
	}
}

// TestRecurringScheduleThatHasEnded is not kept: it has nothing left to fire.
func TestRecurringScheduleThatHasEnded(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	body := recurring("a", "@every 1m", "endAt", at(time.Minute))
	a.call("POST", "/v1/jobs", body).want(201)
	a.advance(time.Minute)
	for _, c := range a.claim() {
		a.settle(c, store.Ack, "")
	}
	a.advance(time.Minute)
	if p := a.call("POST", "/v1/jobs", body).want(422).problem(); len(p.Errors) != 1 || p.Errors[0].Pointer == nil || *p.Errors[0].Pointer != "/endAt" {
		t.Errorf("%+v", p)
	}
}

// TestRecurringScheduleMustNotExist: a condition that the job must be new is heeded, whatever its schedule.
func TestRecurringScheduleMustNotExist(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	a.call("POST", "/v1/jobs", recurring("a", "@hourly"), "If-None-Match: *").want(201)
	a.call("POST", "/v1/jobs", recurring("a", "@hourly"), "If-None-Match: *").want(412)
	a.call("POST", "/v1/jobs", recurring("a", "@hourly"), `If-Match: "01KBX2Q7ZJ7Q1H8Z5V0T9W3M4N"`).want(412)
	a.call("POST", "/v1/jobs", recurring("b", "@hourly"), "If-Match: *").want(412)
}

// status reads the job "a", which must exist, from the store.
func (a *api) status() store.JobStatus {
	a.Helper()
	status, err := store.ReadJob(a.Context(), a.store.Store, name("a"))
	if err != nil {
		a.Fatal(err)
	}
	return status
}

// TestKeptScheduleThatLosesARace: another client's change between the look and the write costs neither grid nor
// instants.
func TestKeptScheduleThatLosesARace(t *testing.T) {
	t.Parallel()
	for name, headers := range map[string][]string{"if it exists": {"If-Match: *"}, "without a condition": nil} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t)
			first := decode[accepted](a.call("POST", "/v1/jobs", recurring("a", "@every 10m")).want(201))
			a.advance(time.Minute)
			raced := false
			a.store.onAmend = func() {
				if !raced {
					raced = true
					a.control("pause")
				}
			}
			got := decode[accepted](a.call("POST", "/v1/jobs", recurring("a", "@every 10m", "deadline", "5m"), headers...).want(200))
			if !raced || got.Revision != first.Revision || got.InFlight != nil || got.State != "paused" {
				t.Errorf("raced: %t; %+v, at first %+v", raced, got, first)
			}
			if status := a.status(); !status.Schedule.Anchor.Equal(start) || status.Options.Deadline != job.Duration(5*time.Minute) {
				t.Errorf("%+v", status.Job)
			}
		})
	}
}
