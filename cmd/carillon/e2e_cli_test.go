//go:build services

package main_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestCommandLine uses the built program as an operator does: with a key in a file and a context, jobs in files, bash's
// completion, and the manual page.
func TestCommandLine(t *testing.T) {
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	on(t, stores[:1], func(t *testing.T, c *cluster) {
		dir := t.TempDir()
		write := func(name, content string) {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write("key", c.keys("create", "--role=admin"))
		write("mail.yaml", "- key: mail:digest\n  crontab: '@daily'\n  callback: {type: http, data: {url: 'http://127.0.0.1:9/'}}\n"+
			"- key: news\n  crontab: '@daily'\n  callback: {type: http, data: {url: 'http://127.0.0.1:9/'}}\n")
		c.start(1, "--auth=keys")
		run := func(code int, program string, args ...string) string {
			t.Helper()
			cmd := exec.Command(program, args...)
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "CARILLON_CONFIG="+filepath.Join(dir, "contexts.json"), "PATH="+filepath.Dir(path)+":"+os.Getenv("PATH"))
			var out, errs bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &errs
			_ = cmd.Run()
			if got := cmd.ProcessState.ExitCode(); got != code {
				t.Fatalf("%s %q: exit code %d, want %d\n%s%s", program, args, got, code, &out, &errs)
			}
			return out.String()
		}
		run(1, path, "job", "list", "--url="+c.replicas[0].url) // without a key
		run(0, path, "context", "add", "prod", c.replicas[0].url, "--key-file=key")
		run(3, path, "diff", "-f", "mail.yaml")
		run(0, path, "apply", "-f", "mail.yaml", "--yes")
		run(0, path, "diff", "-f", "mail.yaml")
		if out := run(0, path, "job", "list"); !strings.HasPrefix(out, "KEY\tSTATE\t") || !strings.Contains(out, "\nmail:digest\tscheduled\t") {
			t.Errorf("the list is\n%s", out)
		}
		if out := run(0, path, "status"); !strings.Contains(out, "state\tready\n") {
			t.Errorf("the status is\n%s", out)
		}
		// A colon parts words in bash, which then wants the rest alone.
		for line, want := range map[string]string{
			path + " job get ma": "mail:digest", path + " job get mail:d": "digest", path + " job pau": "pause",
		} {
			script := `source <("$0" completion bash); COMP_LINE=$1 COMP_POINT=${#1}; _carillon; printf '%s\n' "${COMPREPLY[@]}"`
			if out := run(0, "bash", "-c", script, path, line); out != want+"\n" {
				t.Errorf("bash completes %q by %q, want %q", line, out, want)
			}
		}
		if page := run(0, path, "man"); !strings.Contains(page, `.SS carillon job put KEY`) {
			t.Errorf("the manual page is\n%s", page)
		}
	})
}
