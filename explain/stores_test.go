package explain_test

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/callbacks"
	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/replicas"
	"github.com/carillon-scheduler/carillon/store/sqlite"
)

func TestSQLite(t *testing.T) {
	t.Parallel()
	s, err := sqlite.Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "carillon.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	liveSituations(t, s)
}

// liveSituations makes situations on a store in real time, all at once, and awaits the explanation of each.
func liveSituations(t *testing.T, s store.Store) {
	t.Helper()
	w := newWorld(t, s, keeps{})
	w.tick, w.callbackTimeout, w.failures = 100*time.Millisecond, 5*time.Minute, 1000
	release := make(chan struct{})
	var redriven atomic.Bool
	w.answers(func(ctx context.Context, d callbacks.Delivery) error {
		switch {
		case d.Name.Key == "held":
			select {
			case <-release:
			case <-ctx.Done():
			}
		case d.Name.Key == "retrying", d.Name.Key == "redriven" && redriven.Load():
			return callbacks.RetryAfter(refusal(503), time.Hour)
		case d.Name.Key == "dead" || d.Name.Key == "discarded" || d.Name.Key == "redriven",
			d.Part != nil && d.Part.Subscriber == "c":
			return callbacks.Refused(refusal(410))
		}
		return nil
	})
	defer w.close()
	defer close(release)
	w.beforeAnyReplica()

	w.replica()
	soon := w.now() + 300*time.Millisecond
	for _, key := range []string{"held", "delivered", "retrying", "dead", "discarded", "redriven"} {
		w.put(key, w.at(soon))
	}
	w.put("waiting", w.at(time.Hour))
	w.put("moved", w.at(time.Hour)+`,"spread":"10m"`)
	w.put("crontab", `"crontab":"0 9 1 * *"`)
	w.put("sequence", fmt.Sprintf(`"startAt":%q,"steps":[{"type":"job"}],"subscribers":["a","b","c"]`, w.after(soon)))
	w.put("rate", w.at(soon)+`,"destination":{"ratePerSecond":0.001}`)
	w.put("late", w.at(-time.Hour)+`,"past":"fire","deadline":"15m"`)
	w.put("skipped", fmt.Sprintf(`"past":"skip","schedules":[%q,%q]`, w.after(-time.Hour), w.after(time.Hour)))
	for _, key := range []string{"paused", "cancelled", "replaced", "triggered"} {
		w.put(key, w.at(time.Hour))
	}
	w.do("PUT", "/v1/tenants/acme", `{"paused":true}`)
	w.put("tenant", w.at(time.Hour), "Carillon-Tenant: acme")
	w.do("POST", "/v1/jobs/paused/pause", "")
	w.do("DELETE", "/v1/jobs/cancelled", "")
	w.put("replaced", w.at(2*time.Hour))
	var triggered struct{ Timestamp string }
	if err := json.Unmarshal(w.do("POST", "/v1/jobs/triggered/trigger", ""), &triggered); err != nil {
		t.Fatal(err)
	}

	instant := w.after(soon)
	w.await("rate", instant, "delivered") // that is all that its rate allows
	w.put("limited", w.at(w.now())+`,"destination":{"ratePerSecond":0.001}`)
	for _, c := range []struct{ key, at, codes string }{
		{"held", "next", "held"},
		{"retrying", "next", "retrying"},
		{"retrying", instant, "retrying"},
		{"dead", instant, "dead"},
		{"delivered", instant, "delivered"},
		{"delivered", "last", "delivered"},
		{"delivered", "next", "finished delivered"},
		{"sequence", instant, "dead delivered"},
		{"waiting", "next", "waiting"},
		{"waiting", w.after(30 * time.Minute), "no_such_instant"},
		{"moved", "next", "waiting moved"},
		{"crontab", "next", "waiting"},
		{"limited", "next", "destination_limited"},
		{"late", w.after(-time.Hour), "missed"},
		{"skipped", w.after(-time.Hour), "skipped_as_past"},
		{"paused", "next", "job_paused waiting"},
		{"cancelled", "next", "cancelled"},
		{"cancelled", w.after(time.Hour), "cancelled"},
		{"replaced", "next", "waiting"},
		{"triggered", triggered.Timestamp, "delivered triggered"},
		{"nobody", "next", "unknown"},
	} {
		w.await(c.key, c.at, c.codes)
	}
	w.await("tenant", "next", "tenant_paused waiting", "Carillon-Tenant: acme")

	w.await("discarded", instant, "dead")
	w.await("redriven", instant, "dead")
	w.do("DELETE", "/v1/dead-letters?key=discarded", "")
	redriven.Store(true)
	w.do("POST", "/v1/dead-letters/redrive?key=redriven", "")
	w.await("discarded", instant, "discarded dead")
	w.await("redriven", instant, "retrying redriven")
}

// beforeAnyReplica makes the situations of a service without replicas that fire.
func (w *world) beforeAnyReplica() {
	w.Helper()
	w.put("alone", w.at(0), "Carillon-Tenant: alone")
	w.await("alone", "next", "no_replica", "Carillon-Tenant: alone")
	now := time.Now().Truncate(time.Millisecond)
	if err := replicas.Beat(w.Context(), w.store, "somebody", nil, now, now.Add(time.Minute)); err != nil {
		w.Fatal(err)
	}
	w.await("alone", "next", "due", "Carillon-Tenant: alone")
	w.put("before", w.at(-time.Minute)+`,"past":"fire"`, "Carillon-Tenant: queue")
	w.put("behind", w.at(0)+`,"past":"fire"`, "Carillon-Tenant: queue")
	w.await("behind", "next", "backlog", "Carillon-Tenant: queue")
	w.claimOf(job.Lane{Tenant: "alone"}, 100*time.Millisecond)
	w.await("alone", "next", "lease_over", "Carillon-Tenant: alone")
	if err := replicas.Stop(w.Context(), w.store, "somebody", now.Add(time.Second)); err != nil {
		w.Fatal(err)
	}
}

// now returns the time since the world's start.
func (w *world) now() time.Duration { return time.Since(w.start) }

// await asks about an instant until the codes of the answer are these.
func (w *world) await(key, at, codes string, headers ...string) {
	w.Helper()
	var got answer
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if got = w.explain(key, at, headers...); got.codes() == codes {
			return
		}
	}
	w.Fatalf("%s at %s: want %q, got\n%s", key, at, codes, got.text())
}
