package handlers_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/handlers"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/clock"
)

// receiver counts deliveries by id.
type receiver struct {
	*api
	times map[job.ID]int
}

// deliver delivers claims, and settles them as a replica does.
func (r *receiver) deliver(claims ...store.Claimed) {
	for _, c := range claims {
		r.times[c.DeliveryID()]++
		r.settle(c, store.Ack, "")
	}
}

// fail settles claims whose attempts have failed.
func (r *receiver) fail(claims ...store.Claimed) {
	for _, c := range claims {
		r.settle(c, store.Retry, "no answer")
	}
}

// TestEditFiresOnceWhatBothHave edits jobs while they fire. An instant that both definitions have is delivered once,
// whatever happens to its occurrence between the edit's steps.
func TestEditFiresOnceWhatBothHave(t *testing.T) {
	t.Parallel()
	// Each of the kinds has an instant a second, up to now, and one more in an hour.
	lists := func(extra string) string {
		return `"schedules":["` + at(-3*time.Second) + `","` + at(-2*time.Second) + `","` + at(-time.Second) + `","` + extra + `"]`
	}
	step := `{"type":"job"},{"type":"wait_certain_period","delay_period":1,"delay_unit":"second"},`
	sequences := func(metadata string) string {
		return `"startAt":"` + at(-3*time.Second) + `","steps":[` + strings.Repeat(step, 3) + `{"type":"job","metadata":"` + metadata + `"}]`
	}
	callback := `"callback":{"type":"http","data":1}`
	for kind, edit := range map[string][2]string{
		"list":     {lists(at(time.Hour)), lists(at(2 * time.Hour))},
		"sequence": {sequences("one"), sequences("two")},
		"priority": {lists(at(time.Hour)), `"priority":"high",` + lists(at(time.Hour))},
	} {
		for _, past := range []string{"", `"past":"skip",`} {
			for _, when := range []string{"before", "between", "after"} {
				for _, fails := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s, %s settled %s, fails %t", kind, past, when, fails), func(t *testing.T) {
						r := &receiver{newAPI(t), map[job.ID]int{}}
						r.call("PUT", "/v1/jobs/a", "{"+callback+`,"past":"fire",`+edit[0]+"}").want(201)
						r.now = start.Add(-2 * time.Second)
						due := r.claim()
						if len(due) < 2 {
							t.Fatalf("%d are due", len(due))
						}
						r.now = start
						r.deliver(due[0])
						held := due[1:] // later occurrences are pending
						settle := func() {
							if fails {
								r.fail(held...)
							} else {
								r.deliver(held...)
							}
							held = nil
						}
						if when == "before" {
							settle()
						}
						edited := false
						r.store.onPut = func(puts []store.Put) {
							if puts[0].From.Version == "" || edited {
								return
							}
							if edited = true; when == "between" {
								settle()
								r.deliver(r.claim()...)
							}
						}
						got := decode[accepted](r.call("PUT", "/v1/jobs/a", "{"+callback+","+past+edit[1]+"}").want(200))
						if got.Skipped != 0 {
							t.Errorf("%d are skipped: both have them all", got.Skipped)
						}
						if when == "after" && *got.InFlight != len(held) {
							t.Errorf("%d are in flight, want %d", *got.InFlight, len(held))
						}
						settle()
						for range 3 {
							r.deliver(r.claim()...)
							r.advance(2 * time.Hour)
						}
						for _, n := range r.times {
							if n != 1 {
								t.Errorf("delivered %v times, want once each", slices.Collect(maps.Values(r.times)))
								break
							}
						}
						if want := 4; len(r.times) != want {
							t.Errorf("%d instants are delivered, want %d", len(r.times), want)
						}
						if got.Occurrences+got.Settled != 4 {
							t.Errorf("the answer has %d to fire and %d settled, want 4 in all", got.Occurrences, got.Settled)
						}
					})
				}
			}
		}
	}
}

// TestEditOfACrontabRepeatsNoTick replaces a crontab by another one that has some of its ticks, by a replica whose
// clock is right or behind.
func TestEditOfACrontabRepeatsNoTick(t *testing.T) {
	t.Parallel()
	for _, behind := range []time.Duration{0, 4 * time.Second} {
		for _, second := range []string{`"crontab":"@every 2s"`, `"crontab":"@every 1s","priority":"high"`, `"schedules":["` + at(2*time.Second) + `","` + at(4*time.Second) + `","` + at(time.Hour) + `"]`} {
			r := &receiver{newAPI(t), map[job.ID]int{}}
			begin := `"startAt":"` + at(0) + `",`
			r.call("PUT", "/v1/jobs/a", `{"callback":{"type":"http","data":1},`+begin+`"crontab":"@every 1s"}`).want(201)
			r.advance(3 * time.Second)
			r.deliver(r.claim()...)
			r.advance(time.Second)
			held := r.claim() // the tick of the fourth second
			r.advance(-behind)
			if strings.Contains(second, "schedules") {
				begin = ""
			}
			r.call("PUT", "/v1/jobs/a", `{"callback":{"type":"http","data":1},`+begin+second+`}`).want(200)
			r.advance(behind)
			r.deliver(held...)
			r.advance(6 * time.Second)
			r.deliver(r.claim()...)
			for id, n := range r.times {
				if n != 1 {
					t.Errorf("%s, clock behind by %s: %s was delivered %d times", second, behind, id, n)
				}
			}
		}
	}
}

// TestEditOfALargeJobCountsNothing: an edit reads the due instants page by page, and counts them at none: the time of an
// edit would else grow with their number squared.
func TestEditOfALargeJobCountsNothing(t *testing.T) {
	t.Parallel()
	a := newAPI(t, func(c *handlers.Config) { c.Limits.Instants, c.MaxBody = 5000, 1<<20 })
	offsets := make([]time.Duration, 3500)
	for i := range offsets {
		offsets[i] = -time.Duration(i) * time.Second
	}
	a.call("PUT", "/v1/jobs/a", body("a", offsets...)).want(201)
	a.store.takeListed()
	got := decode[accepted](a.call("PUT", "/v1/jobs/a", body("a", append(offsets, time.Hour)...)).want(200))
	if got.Occurrences != len(offsets)+1 {
		t.Errorf("%d are to fire, want %d", got.Occurrences, len(offsets)+1)
	}
	listed := a.store.takeListed()
	if len(listed) != 4 {
		t.Errorf("%d pages were read, want 4", len(listed))
	}
	for _, f := range listed {
		if f.Count {
			t.Errorf("a page is read with a count: %+v", f)
		}
	}
}

// TestFireSendsAgainWhatHasPassed: the option asks for that.
func TestFireSendsAgainWhatHasPassed(t *testing.T) {
	t.Parallel()
	r := &receiver{newAPI(t), map[job.ID]int{}}
	submitted := with(body("a", -time.Second, time.Hour), "past", "fire")
	r.call("PUT", "/v1/jobs/a", submitted).want(201)
	r.deliver(r.claim()...)
	got := decode[accepted](r.call("PUT", "/v1/jobs/a", submitted).want(200))
	r.deliver(r.claim()...)
	for _, n := range r.times {
		if n != 2 {
			t.Errorf("delivered %d times, want 2", n)
		}
	}
	if got.Occurrences != 2 || got.Settled != 0 {
		t.Errorf("%+v", got)
	}
}

// ofStoresClock gives the API an estimate of the store's clock.
func ofStoresClock(c *handlers.Config) {
	c.Clock = &clock.Clock{}
	now := time.Now()
	c.Clock.Note(now, now.Truncate(time.Millisecond), now)
}

// TestOvertakenRequestsAreRefused has another client's request accepted while one is on its way to the store.
func TestOvertakenRequestsAreRefused(t *testing.T) {
	t.Parallel()
	for name, submitted := range map[string]string{
		"later": body("a", time.Hour), "past": body("a", -time.Hour, time.Hour), "crontab": `{"callback":{"type":"http","data":2},"crontab":"@hourly"}`,
	} {
		t.Run(name, func(t *testing.T) {
			a := newAPI(t, ofStoresClock)
			a.call("PUT", "/v1/jobs/a", body("a", 3*time.Hour)).want(201)
			overtaken := false
			a.store.onPut = func([]store.Put) {
				if !overtaken {
					overtaken = true
					time.Sleep(20 * time.Millisecond) // more than the clocks are known by
					a.call("PUT", "/v1/jobs/a", body("a", 9*time.Hour)).want(200)
				}
			}
			a.call("PUT", "/v1/jobs/a", submitted).want(409)
			if got := a.definition("a").Schedules; !slices.Equal(got, []string{at(9 * time.Hour)}) {
				t.Errorf("left is %v", got)
			}
		})
	}
}

// TestRequestsInTurnAreNeverRefused sends one after another's answer.
func TestRequestsInTurnAreNeverRefused(t *testing.T) {
	t.Parallel()
	a := newAPI(t, ofStoresClock)
	b := newAPI(t, ofStoresClock, func(c *handlers.Config) { c.Store, c.Inspector, c.Records = a.store, a.store, a.store })
	a.call("PUT", "/v1/jobs/a", body("a", time.Hour)).want(201)
	for i := range 50 {
		of := []*api{a, b}[i%2]
		of.call("PUT", "/v1/jobs/a", body("a", -time.Hour, time.Duration(i+2)*time.Hour)).want(200)
		of.call("PATCH", "/v1/jobs/a", fmt.Sprintf(`{"callback":{"data":%d}}`, i)).want(200)
	}
	a.call("DELETE", "/v1/jobs/a", "").want(200)
}
