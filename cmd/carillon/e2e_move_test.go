//go:build services

package main_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// The jobs of a service are moved from store to store, over all kinds and back to the first, while they fire. None is
// lost, and none is delivered twice.
func TestRing(t *testing.T) {
	t.Parallel()
	const hop = 5 * time.Second // about how long the service runs on each store
	ring := slices.Concat(stores, stores[:1])
	length := time.Duration(len(ring)+1) * hop
	ticks := int(length / time.Second)

	var mended atomic.Bool
	var redriven atomic.Int32
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !mended.Load() {
			w.WriteHeader(http.StatusGone)
			return
		}
		redriven.Add(1)
	}))
	t.Cleanup(broken.Close)

	c := ring[0].cluster(t)
	receiver := c.receiver
	c.start(2)
	start := soon()
	put := func(key string, body map[string]any) {
		t.Helper()
		c.call(c.replicas[0], http.MethodPut, "/v1/jobs/"+key, body, http.StatusCreated)
	}
	wait := func(d time.Duration) map[string]any {
		return map[string]any{"type": "wait_certain_period", "delay_period": d.Seconds(), "delay_unit": "second"}
	}
	step := func(metadata any) map[string]any { return map[string]any{"type": "job", "metadata": metadata} }
	put("tick", c.everySecond(start, ticks))
	c.put(c.replicas[1], "list", 60, length, c.webhook(), http.StatusCreated)
	put("steps", map[string]any{
		"steps":       []any{step("first"), wait(length / 2), step("second"), wait(length / 3), step("third")},
		"subscribers": []any{"ada", map[string]any{"id": 7}, "grace"}, "callback": c.webhook(),
	})
	put("dead", map[string]any{"delay": "0s", "callback": map[string]any{"type": "http", "data": map[string]any{"url": broken.URL}}})
	put("paused", map[string]any{"delay": "2s", "callback": c.webhook()})
	c.call(c.replicas[0], http.MethodPost, "/v1/jobs/paused/pause", struct{}{}, http.StatusOK)
	put("far", map[string]any{"crontab": "@yearly", "timezone": "Europe/Paris", "deadline": "2h", "callback": c.webhook()})
	far := c.call(c.replicas[0], http.MethodGet, "/v1/jobs/far", nil, http.StatusOK)

	for i := 1; i < len(ring); i++ {
		seen, _ := receiver.counts()
		// On a slow machine, all that is to fire before the end may have fired on the stores before.
		c.until("deliveries come", func() bool { n, _ := receiver.counts(); return n > seen || n == ticks+60+9 })
		time.Sleep(hop)
		if out := c.run(1, "export", "--store="+c.url); !strings.Contains(out, "Stop them first") {
			t.Errorf("an export while the service runs answers %s", out)
		}
		c.stop()
		next := ring[i].cluster(t)
		next.receiver = receiver
		file := filepath.Join(t.TempDir(), fmt.Sprint("export", i))
		c.run(0, "export", "--store="+c.url, "--output="+file)
		next.run(0, "import", "--store="+next.url, "--input="+file)
		if out := next.run(0, "import", "--store="+next.url, "--input="+file); !strings.Contains(out, "already") {
			t.Errorf("a second import answers %s", out)
		}
		c = next
		c.start(2)
	}

	moved := c.call(c.replicas[0], http.MethodGet, "/v1/jobs/far", nil, http.StatusOK)
	for _, field := range []string{"revision", "version", "createdAt", "nextInstant", "state"} {
		if fmt.Sprint(moved[field]) != fmt.Sprint(far[field]) {
			t.Errorf("the %s of a job that waits was %v and is %v", field, far[field], moved[field])
		}
	}
	for _, a := range receiver.of("paused") {
		t.Errorf("the job that is paused was delivered for %s", a.instant)
	}
	c.call(c.replicas[0], http.MethodPost, "/v1/jobs/paused/resume", struct{}{}, http.StatusOK)
	mended.Store(true)
	dead := c.call(c.replicas[1], http.MethodGet, "/v1/dead-letters", nil, http.StatusOK)["items"].([]any)
	if len(dead) != 1 {
		t.Fatalf("%d dead letters were moved, want 1", len(dead))
	}
	id := dead[0].(map[string]any)["id"].(string)
	c.call(c.replicas[1], http.MethodPost, "/v1/dead-letters/"+id+"/redrive", struct{}{}, http.StatusOK)
	for _, key := range []string{"list", "steps", "paused"} {
		c.finished(key)
	}
	c.ticks("tick", start, ticks)
	c.until("the dead letter is delivered", func() bool { return redriven.Load() > 0 })
	c.expectDeliveries(ticks + 60 + 9 + 1)
}

// stop ends all replicas in good order.
func (c *cluster) stop() {
	c.Helper()
	for _, r := range c.replicas {
		r.signal(c.T, syscall.SIGTERM)
	}
	for _, r := range c.replicas {
		<-r.exited
		if r.err != nil {
			c.Errorf("a replica ended with %v", r.err)
		}
	}
}

// run runs a command of the program, expects its exit code, and answers all that it prints.
func (c *cluster) run(want int, args ...string) string {
	c.Helper()
	path, err := binary()
	if err != nil {
		c.Fatal(err)
	}
	cmd := exec.Command(path, args...)
	out, _ := cmd.CombinedOutput() // a failure shows in the exit code
	if code := cmd.ProcessState.ExitCode(); code != want {
		c.Fatalf("%s exits with %d, want %d\n%s", args, code, want, out)
	}
	return string(out)
}
