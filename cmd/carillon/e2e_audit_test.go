//go:build services

package main_test

import (
	"bufio"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestAuditOutlivesItsReader: the service continues when the program that reads its trail from a pipe has ended.
func TestAuditOutlivesItsReader(t *testing.T) {
	t.Parallel()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	trail, stdout, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "serve", "--listen=127.0.0.1:0", "--store=memory:", "--audit=stdout", "--log-format=json")
	cmd.Stdout = stdout
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	stdout.Close()
	log := bufio.NewScanner(stderr)
	until := func(text string) string {
		for log.Scan() {
			if strings.Contains(log.Text(), text) {
				return log.Text()
			}
		}
		t.Fatalf("it ended without %q in its log", text)
		return ""
	}
	var serving struct{ Address string }
	if err := json.Unmarshal([]byte(until(`"msg":"serving"`)), &serving); err != nil {
		t.Fatal(err)
	}
	cancel := func() {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, "http://"+serving.Address+"/v1/jobs/k", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != http.StatusNotFound {
			t.Fatal(response.Status)
		}
	}
	cancel()
	line, err := bufio.NewReader(trail).ReadString('\n')
	if err != nil || !strings.Contains(line, `"action":"DELETE /v1/jobs/:key"`) {
		t.Fatalf("%q, %v", line, err)
	}
	trail.Close()
	for range 3 {
		cancel()
	}
	until("the audit trail can't be written")
	cancel()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for log.Scan() { // to the end
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ends with %v", err)
	}
}

// auditFile returns a place for the audit trail of all replicas of a test.
func auditFile(t *testing.T) string { return filepath.Join(t.TempDir(), "audit.ndjson") }

// audited returns the lines of a trail by principal, action and result, and its text.
func audited(t *testing.T, path string) (lines map[string]int, text string) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines = make(map[string]int)
	for line := range strings.Lines(string(content)) {
		var l struct{ Principal, Action, Result string }
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		lines[l.Principal+" "+l.Action+" "+l.Result]++
	}
	return lines, string(content)
}
