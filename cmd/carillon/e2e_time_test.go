//go:build services

package main_test

import (
	"fmt"
	"net/http"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store/storetest"
)

// shortLease makes a dead replica's claims be taken over soon.
var shortLease = []string{"--lease=3s", "--callback-timeout=2s"}

// longLease makes nothing be delivered twice, though the machine stalls for some seconds.
var longLease = []string{"--lease=60s", "--callback-timeout=40s"}

// everySecond returns a job that ticks n times from start on. It catches up on all ticks, since a test on a busy
// machine may stall for longer than so short a lease.
func (c *cluster) everySecond(start time.Time, n int) map[string]any {
	return map[string]any{
		"crontab":  "@every 1s",
		"startAt":  job.FormatTime(start),
		"endAt":    job.FormatTime(start.Add(time.Duration(n-1) * time.Second)),
		"catchUp":  "all",
		"callback": c.webhook(),
	}
}

// soon returns an instant that is not past when a job is submitted with it.
func soon() time.Time { return time.Now().Add(5 * time.Second).Truncate(time.Millisecond) }

// ticks waits until a job has finished, and checks that each of its n ticks was delivered, on the grid, none early, and
// none twice but with the same delivery id.
func (c *cluster) ticks(key string, start time.Time, n int) {
	c.Helper()
	c.finished(key)
	ids := map[time.Time]map[string]bool{}
	for _, a := range c.receiver.of(key) {
		if ids[a.instant] == nil {
			ids[a.instant] = map[string]bool{}
		}
		ids[a.instant][a.id] = true
	}
	for k := range n {
		at := start.Add(time.Duration(k) * time.Second).UTC()
		if len(ids[at]) != 1 {
			c.Errorf("tick %d, at %s, came with %d delivery ids, want one", k, job.FormatTime(at), len(ids[at]))
		}
		delete(ids, at)
	}
	for at := range ids {
		c.Errorf("a delivery for %s, which is off the grid from %s on", job.FormatTime(at), job.FormatTime(start))
	}
	if c.receiver.early > 0 {
		c.Errorf("%d deliveries were early", c.receiver.early)
	}
	if missed := c.call(c.replicas[len(c.replicas)-1], http.MethodGet, "/v1/jobs/"+key, nil, http.StatusOK)["missed"]; missed != nil {
		c.Errorf("%v ticks were missed", missed)
	}
	c.noDeadLetters()
}

// onArrival sets a function that is called for each request before it is answered.
func (r *receiver) onArrival(do func(a arrival)) {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.arrived = do
}

// of returns the deliveries of a job that have arrived.
func (r *receiver) of(key string) (all []arrival) {
	r.lock.Lock()
	defer r.lock.Unlock()
	for _, a := range r.arrivals {
		if a.key == key {
			all = append(all, a)
		}
	}
	return all
}

// A crontab ticks on through the death of a replica; the tick that it was delivering comes again, under the same id.
func TestTicksThroughAKill(t *testing.T) {
	onEachStore(t, func(t *testing.T, c *cluster) {
		const n = 20
		c.start(3, shortLease...)
		start := soon()
		c.call(c.replicas[0], http.MethodPut, "/v1/jobs/tick", c.everySecond(start, n), http.StatusCreated)
		c.until("half of the ticks have come", func() bool { return len(c.receiver.of("tick")) >= n/2 })

		// With the others stopped for a moment, the next tick is the victim's.
		victim, others := c.replicas[0], c.replicas[1:]
		for _, r := range others {
			c.stall(r)
		}
		stopped, delivers := time.Now(), make(chan arrival, 1)
		c.receiver.onArrival(func(a arrival) {
			if a.instant.After(stopped) {
				victim.kill() // before it is answered
				select {
				case delivers <- a:
				default:
				}
			}
		})
		var held arrival
		select {
		case held = <-delivers:
		case <-time.After(patience):
			t.Fatal("the victim delivers no tick")
		}
		c.receiver.onArrival(nil)
		for _, r := range others {
			r.signal(t, syscall.SIGCONT)
		}
		c.ticks("tick", start, n)
		times := 0
		for _, a := range c.receiver.of("tick") {
			if a.id == held.id {
				times++
			}
		}
		if times < 2 {
			t.Errorf("the tick of %s, which the replica that was killed held, was not delivered again", job.FormatTime(held.instant))
		}
	})
}

// A crontab continues after all replicas have been down for longer than a lease, however they ended.
func TestTicksThroughARestart(t *testing.T) {
	onEachStore(t, func(t *testing.T, c *cluster) {
		const n = 18
		c.start(2, shortLease...)
		start := soon()
		c.call(c.replicas[0], http.MethodPut, "/v1/jobs/tick", c.everySecond(start, n), http.StatusCreated)
		c.until("some ticks have come", func() bool { return len(c.receiver.of("tick")) >= 5 })
		c.replicas[0].kill()
		c.replicas[1].signal(t, syscall.SIGTERM)
		<-c.replicas[1].exited
		down := time.Now()
		time.Sleep(8 * time.Second) // longer than the ticks that are in the store last
		all := c.receiver.of("tick")
		if len(all) >= n || slices.ContainsFunc(all, func(a arrival) bool { return a.instant.After(down) }) {
			t.Fatalf("%d deliveries, though nothing ran from %s on: the test shows nothing", len(all), job.FormatTime(down))
		}
		c.start(2, shortLease...)
		c.ticks("tick", start, n)
	})
}

// A sequence for many is accepted whole, by one request; each subscriber gets each step once.
func TestSequence(t *testing.T) {
	onEachStore(t, func(t *testing.T, c *cluster) {
		n := 1000
		switch t.Name() {
		case "TestSequence/sqlite":
			n = 3000
			if storetest.Long() {
				n = 10_000
			}
		case "TestSequence/mongodb":
			n = 100 // the server of these tests reads all occurrences for every one that it claims
		}
		c.start(2, append(longLease, "--concurrency=64")...)
		subscribers := make([]string, n)
		for i := range subscribers {
			subscribers[i] = fmt.Sprintf("user %d", i)
		}
		wait := func(period float64, unit string) map[string]any {
			return map[string]any{"type": "wait_certain_period", "delay_period": period, "delay_unit": unit}
		}
		step := func(metadata any) map[string]any { return map[string]any{"type": "job", "metadata": metadata} }
		answer := c.call(c.replicas[0], http.MethodPut, "/v1/jobs/campaign", map[string]any{
			"type":        "sequence",
			"steps":       []any{wait(1.5, "seconds"), step("first"), wait(1, "hour"), step("second"), wait(1, "week"), step("third")},
			"subscribers": subscribers,
			"callback":    c.webhook(),
		}, http.StatusCreated)
		if answer["occurrences"] != float64(3*n) {
			t.Fatalf("the answer is %v, want %d occurrences", answer, 3*n)
		}
		pending := func() any {
			return c.call(c.replicas[1], http.MethodGet, "/v1/jobs/campaign?limit=1", nil, http.StatusOK)["pending"]
		}
		c.until("the first step is delivered", func() bool { return pending() == float64(2*n) })
		seen := map[string]string{}
		for _, a := range c.receiver.of("campaign") {
			if a.step != "1" || a.body != `"first"` {
				t.Fatalf("a delivery is %+v", a)
			}
			seen[a.subscriber] = a.id
		}
		if len(seen) != n || seen["user%200"] == "" {
			t.Errorf("%d of %d subscribers were named in deliveries", len(seen), n)
		}
		c.expectDeliveries(n)
		answer = c.call(c.replicas[0], http.MethodDelete, "/v1/jobs/campaign", nil, http.StatusOK)
		if answer["cancelled"] != float64(2*n) {
			t.Errorf("the cancellation answers %v, want %d cancelled", answer, 2*n)
		}
	})
}

// A job is paused, triggered, patched and resumed; none of its ticks is lost.
func TestLivingWithAJob(t *testing.T) {
	onEachStore(t, func(t *testing.T, c *cluster) {
		c.start(2, shortLease...)
		post := func(r *replica, action string, status int) map[string]any {
			return c.call(r, http.MethodPost, "/v1/jobs/tick/"+action, struct{}{}, status)
		}
		start := soon()
		body := c.everySecond(start, 3600)
		put := c.call(c.replicas[0], http.MethodPut, "/v1/jobs/tick", body, http.StatusCreated)
		preview := c.call(c.replicas[1], http.MethodPost, "/v1/preview?count=3", body, http.StatusOK)["items"].([]any)
		if third := preview[2].(map[string]any)["timestamp"]; third != job.FormatTime(start.Add(2*time.Second)) {
			t.Errorf("the preview's third instant is %v, and the job begins at %v", third, start)
		}
		c.until("some ticks have come", func() bool { return len(c.receiver.of("tick")) >= 2 })

		if state := post(c.replicas[1], "pause", http.StatusOK)["state"]; state != "paused" {
			t.Errorf("the pause answers state %v", state)
		}
		paused := time.Now()
		triggered := post(c.replicas[0], "trigger", http.StatusAccepted)["deliveryId"]
		isTriggered := func(a arrival) bool { return a.id == triggered }
		c.until("the trigger is delivered", func() bool { return slices.ContainsFunc(c.receiver.of("tick"), isTriggered) })

		// The callback's data alone: the instants stay.
		replaced := map[string]any{"callback": map[string]any{"data": map[string]any{"payload": "patched"}}}
		version := c.call(c.replicas[0], http.MethodGet, "/v1/jobs/tick", nil, http.StatusOK)["version"]
		patched := c.call(c.replicas[1], http.MethodPatch, "/v1/jobs/tick", replaced, http.StatusOK, "If-Match", fmt.Sprintf("%q", version))
		if patched["revision"] != put["revision"] || patched["version"] == version {
			t.Errorf("the job of revision %v and version %v is patched to %v", put["revision"], version, patched)
		}
		c.call(c.replicas[0], http.MethodPatch, "/v1/jobs/tick", replaced, http.StatusPreconditionFailed, "If-Match", fmt.Sprintf("%q", version))

		time.Sleep(time.Until(paused.Add(4 * time.Second))) // longer than a lease
		for _, a := range c.receiver.of("tick") {
			if a.instant.After(paused) && !isTriggered(a) {
				t.Errorf("the tick of %s was delivered though the job was paused at %s", job.FormatTime(a.instant), job.FormatTime(paused))
			}
		}
		resumed := time.Now()
		post(c.replicas[0], "resume", http.StatusOK)
		next := start.Add(resumed.Sub(start).Truncate(time.Second) + 2*time.Second)
		reached := func() bool {
			return slices.ContainsFunc(c.receiver.of("tick"), func(a arrival) bool { return a.instant.Equal(next) })
		}
		c.until("it ticks again", reached)
		arrived := map[time.Time]arrival{}
		c.until("all ticks have come", func() bool {
			for _, a := range c.receiver.of("tick") {
				arrived[a.instant] = a
			}
			for at := start.UTC(); at.Before(next); at = at.Add(time.Second) {
				if _, ok := arrived[at]; !ok {
					return false
				}
			}
			return true
		})
		for at, a := range arrived {
			if at.After(paused) && a.body != `"patched"` && !isTriggered(a) {
				t.Errorf("the tick of %s came with the payload %s, and not with the new one", job.FormatTime(at), a.body)
			}
		}

		// Another kind of schedule: only the new instant is left to fire.
		patched = c.call(c.replicas[1], http.MethodPatch, "/v1/jobs/tick", map[string]any{
			"crontab": nil, "startAt": nil, "endAt": nil, "catchUp": nil, "delay": "100ms",
		}, http.StatusOK)
		if patched["revision"] == put["revision"] || patched["occurrences"] != 1.0 {
			t.Errorf("the job of revision %v is patched to %v", put["revision"], patched)
		}
		c.finished("tick")
		delayed := patched["nextInstant"]
		if !slices.ContainsFunc(c.receiver.of("tick"), func(a arrival) bool { return job.FormatTime(a.instant) == delayed && a.body == `"patched"` }) {
			t.Errorf("the delayed instant %v was not delivered", delayed)
		}
		c.noDeadLetters()
	})
}
