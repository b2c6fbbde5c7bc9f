//go:build services

package main_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestEventsEndToEnd: a dead letter and each missing check-in become one event each, although a replica is killed at
// the moment at which the check-ins are missing.
func TestEventsEndToEnd(t *testing.T) {
	onEachStore(t, func(t *testing.T, c *cluster) {
		const watched = 6
		var lock sync.Mutex
		told := map[string]map[string]bool{} // the ids of events, by type and subject
		var victim *replica
		receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var event struct{ ID, Type, Subject string }
			if r.URL.Path != "/events" || json.NewDecoder(r.Body).Decode(&event) != nil || event.ID != r.Header.Get("Webhook-Id") {
				w.WriteHeader(http.StatusGone)
				return
			}
			lock.Lock()
			defer lock.Unlock()
			if victim != nil && event.Type == "carillon.expectation.missed" {
				_ = victim.cmd.Process.Signal(syscall.SIGKILL)
				victim = nil
			}
			what := event.Type + " " + event.Subject
			if told[what] == nil {
				told[what] = map[string]bool{}
			}
			told[what][event.ID] = true
		}))
		defer receiver.Close()
		c.start(1)
		c.call(c.replicas[0], "PUT", "/v1/tenants/default", map[string]any{"events": map[string]any{
			"callback": map[string]any{"type": "http", "data": map[string]any{"url": receiver.URL + "/events"}},
			"types":    []string{"carillon.deadletter.created", "carillon.expectation.missed"},
		}}, 201)
		c.start(1, "--history=0")

		// At that time, all replicas have the settings, and even a slow machine has submitted all jobs.
		at := time.Now().Add(20 * time.Second).UTC().Truncate(time.Millisecond)
		submit := func(key, path string, more map[string]any) {
			t.Helper()
			job := map[string]any{
				"schedules": []string{at.Format(time.RFC3339Nano)},
				"callback":  map[string]any{"type": "http", "data": map[string]any{"url": c.receiver.server.URL + path}},
			}
			for name, value := range more {
				job[name] = value
			}
			c.call(c.replicas[len(key)%2], "PUT", "/v1/jobs/"+key, job, 201)
		}
		gone := map[string]any{"callback": map[string]any{"type": "http", "data": map[string]any{"url": receiver.URL + "/gone"}}}
		submit("gone", "", gone)
		for i := range watched {
			submit(fmt.Sprint("watched-", i), "", map[string]any{"expectBy": "10s"})
			submit(fmt.Sprint("checked-in-", i), "", map[string]any{"expectBy": "10s"})
		}
		for i := range watched {
			path := fmt.Sprint("/v1/jobs/checked-in-", i, "/check-in")
			if answer := c.call(c.replicas[i%2], "POST", path, map[string]any{"at": at}, 200); answer["cancelled"] != true {
				t.Errorf("the check-in is answered with %v", answer)
			}
		}
		lock.Lock()
		victim = c.replicas[1]
		lock.Unlock()
		want := map[string]bool{"carillon.deadletter.created gone": true}
		for i := range watched {
			want[fmt.Sprint("carillon.expectation.missed watched-", i)] = true
		}
		c.until("all events come", func() bool {
			lock.Lock()
			defer lock.Unlock()
			for what := range want {
				if len(told[what]) == 0 {
					return false
				}
			}
			return true
		})
		<-c.replicas[1].exited
		lock.Lock()
		defer lock.Unlock()
		for what, ids := range told {
			if !want[what] || len(ids) != 1 {
				t.Errorf("%s was told %d times", what, len(ids))
			}
		}
	})
}
