//go:build services

package main_test

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

// previousBinary builds the release before, as docs/released/previous names it, or takes the one that was built before.
var previousBinary = sync.OnceValues(func() (string, error) {
	named, err := os.ReadFile(filepath.Join("..", "..", "docs", "released", "previous"))
	if err != nil {
		return "", err
	}
	name := strings.TrimSpace(string(named))
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		return "", err
	}
	path := filepath.Join(root, "bin", "previous", name, "carillon")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	source, err := os.MkdirTemp("", "carillon-previous-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(source)
	script := `git -C "$1" archive "$2" | tar -x -C "$3" && mkdir -p "$(dirname "$4")" "$3/built" && VERSION="$2" "$3"/.ci/build "$3/built/carillon" && mv "$3/built/carillon" "$4"`
	out, err := exec.Command("bash", "-o", "pipefail", "-c", script, "build", root, name, source, path).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("the release %s, which docs/released/previous names, can't be built. If this clone does not have it, "+
			"fetch the whole history, by git fetch --unshallow --tags: %w\n%s", name, err, out)
	}
	return path, nil
})

// TestRollingUpgrade: replicas are replaced one after the other, from the release before to the present, and back. They
// run side by side meanwhile, on a store that the release before has made. Each instant is delivered once. It runs in a
// long test only, since it builds the release before.
func TestRollingUpgrade(t *testing.T) {
	if os.Getenv("CARILLON_TEST_LONG") != "1" {
		return
	}
	t.Parallel()
	before, err := previousBinary()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range stores {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			rolls(t, s, before, present(t))
		})
	}
}

func rolls(t *testing.T, s freshStore, before, now string) {
	url := s.url(t, "e2e_"+strings.ToLower(job.NewToken()))
	made := &cluster{T: t, url: url}
	first := made.startProgram(before, longLease...)
	opened, err := s.open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	c := newCluster(t, url, opened)
	c.replicas = []*replica{first, c.startProgram(before, longLease...)}

	const perJob, ticks = 60, 20
	var keys []string
	start := time.Now().Add(2 * time.Second).Truncate(time.Second)
	c.call(c.replicas[0], http.MethodPut, "/v1/jobs/crontab", c.everySecond(start, ticks), http.StatusCreated)
	submit := func() {
		for i, r := range c.replicas {
			key := fmt.Sprintf("job-%d-%d", len(keys), i)
			c.put(r, key, perJob, 6*time.Second, c.webhook(), http.StatusCreated)
			keys = append(keys, key)
		}
	}
	submit()
	for _, program := range []string{now, now, before, before} {
		next := c.startProgram(program, longLease...)
		leaving := c.replicas[0]
		c.replicas = append(c.replicas[1:], next)
		// While both run, each changes jobs that the other one has submitted.
		submit()
		for i, r := range c.replicas {
			changed := keys[len(keys)-1-i]
			c.call(r, http.MethodPatch, "/v1/jobs/"+changed, map[string]any{"callback": c.webhook()}, http.StatusOK,
				"Content-Type", "application/merge-patch+json")
			c.call(r, http.MethodPost, "/v1/jobs/"+changed+"/pause", map[string]any{}, http.StatusOK)
			c.call(c.replicas[len(c.replicas)-1-i], http.MethodPost, "/v1/jobs/"+changed+"/resume", map[string]any{}, http.StatusOK)
		}
		leaving.signal(t, syscall.SIGTERM)
		select {
		case <-leaving.exited:
		case <-time.After(patience):
			t.Fatal("a replica does not end")
		}
		if leaving.err != nil {
			t.Errorf("a replica ended with %v\n%s", leaving.err, leaving.log)
		}
	}
	for _, key := range keys {
		c.finished(key)
	}
	c.finished("crontab")
	c.expectDeliveries(len(keys)*perJob + ticks)
}
