package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/access/limits"
	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
	"github.com/carillon-scheduler/carillon/store"
)

// trailLine is a line of the audit trail about a command.
type trailLine struct {
	Time                                    time.Time
	Principal, From, Action, Target, Result string
	Changed                                 int
}

func trailOf(t *testing.T, path string) (lines []trailLine) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var l trailLine
		if err := json.Unmarshal([]byte(line), &l); err != nil || !strings.HasSuffix(line, "\n") || strings.Contains(line, `"status"`) {
			t.Fatalf("the trail has %q: %v", line, err)
		}
		lines = append(lines, l)
	}
	return lines
}

// TestCommandsAreAudited: each command that changes a store by itself writes a line, also if the change fails.
func TestCommandsAreAudited(t *testing.T) {
	dir := t.TempDir()
	trail, from := filepath.Join(dir, "audit.ndjson"), filled(t, 3)
	to := "sqlite:" + filepath.Join(dir, "to.db")
	audited := func(code int, args ...string) (stdout, stderr string) {
		t.Helper()
		return carillon(t, code, append(args, "--audit="+trail)...)
	}
	export := filepath.Join(dir, "export")
	carillon(t, 0, "export", "--store="+from, "--output="+export)
	carillon(t, 0, "secrets", "new-key", filepath.Join(dir, "key"))

	token, _ := audited(0, "keys", "create", "--store="+from, "--role=admin")
	id, _ := access.ParseToken(strings.TrimSuffix(token, "\n"))
	rotated, _ := audited(0, "keys", "rotate", id, "--store="+from)
	audited(0, "keys", "copy", "--store="+from, "--to="+to)
	audited(0, "keys", "revoke", id, "--store="+from)
	audited(cli.ExitFailure, "keys", "revoke", id, "--store="+from)
	audited(0, "import", "--store="+to, "--input="+export)
	audited(0, "secrets", "copy", "--store="+from, "--to="+to)
	audited(0, "secrets", "reencrypt", "--store="+from, "--encryption-key-file="+filepath.Join(dir, "key"))
	audited(0, "limits", "copy", "--store="+from, "--to="+to)
	audited(cli.ExitFailure, "import", "--store="+to, "--input="+os.DevNull)
	audited(cli.ExitUsage, "keys", "revoke", "nothing", "--store="+from) // it comes to no store

	lines := trailOf(t, trail)
	for i, want := range []trailLine{
		{Action: "carillon keys create", Target: id, Result: "done"},
		{Action: "carillon keys rotate", Target: id, Result: "done"},
		{Action: "carillon keys copy", Target: to, Result: "done", Changed: 1},
		{Action: "carillon keys revoke", Target: id, Result: "done"},
		{Action: "carillon keys revoke", Target: id, Result: "refused"},
		{Action: "carillon import", Target: to, Result: "done", Changed: 7},
		{Action: "carillon secrets copy", Target: to, Result: "done"},
		{Action: "carillon secrets reencrypt", Target: from, Result: "done"},
		{Action: "carillon limits copy", Target: to, Result: "done"},
		{Action: "carillon import", Target: to, Result: "failed"},
	} {
		if i >= len(lines) {
			t.Fatalf("the trail ends before %+v", want)
		}
		got := lines[i]
		if !strings.HasPrefix(got.Principal, "command:") || len(got.Principal) == len("command:") || got.From == "" || got.Time.IsZero() {
			t.Errorf("it is not told who or when: %+v", got)
		}
		got.Principal, got.From, got.Time = "", "", time.Time{}
		if got != want {
			t.Errorf("line %d is %+v, want %+v", i, got, want)
		}
	}
	if len(lines) != 10 {
		t.Errorf("the trail has %d lines", len(lines))
	}
	if text, _ := os.ReadFile(trail); strings.Contains(string(text), strings.TrimSpace(rotated)) || strings.Contains(string(text), strings.TrimSpace(token)) {
		t.Error("the trail has a key")
	}

	stdout, stderr := carillon(t, 0, "keys", "create", "--store="+from, "--role=viewer", "--audit=stdout")
	if _, ok := access.ParseToken(strings.TrimSuffix(stdout, "\n")); !ok || !strings.Contains(stderr, `"action":"carillon keys create"`) {
		t.Errorf("standard output has %q, standard error %q", stdout, stderr)
	}
}

// TestUnusableTrail: a command changes nothing if the trail can't be opened, and reports a line that can't be written.
func TestUnusableTrail(t *testing.T) {
	url := "sqlite:" + filepath.Join(t.TempDir(), "keys.db")
	keys := func() (n int) {
		onStore(t, url, func(s store.Store) {
			all, err := access.NewKeys(s).List(t.Context(), "", 10)
			if err != nil {
				t.Fatal(err)
			}
			n = len(all)
		})
		return n
	}
	carillon(t, 0, "keys", "create", "--store="+url, "--role=admin")
	_, stderr := carillon(t, cli.ExitUsage, "keys", "create", "--store="+url, "--role=admin", "--audit="+t.TempDir())
	if n := keys(); n != 1 || !strings.Contains(stderr, "--audit: ") {
		t.Errorf("there are %d keys: %s", n, stderr)
	}
	if _, err := os.Stat("/dev/full"); err != nil {
		return // not every system has such a file
	}
	stdout, stderr := carillon(t, cli.ExitFailure, "keys", "create", "--store="+url, "--role=admin", "--audit=/dev/full")
	if n := keys(); n != 2 || stdout == "" || !strings.Contains(stderr, `the trail has no line about this, whose result is "done"`) {
		t.Errorf("there are %d keys: %q, %q", n, stdout, stderr)
	}
}

// TestCopyOfLimits: tenants have the limits of their own in the other store too, except for those that have others there.
func TestCopyOfLimits(t *testing.T) {
	from, to := "sqlite:"+filepath.Join(t.TempDir(), "from.db"), "sqlite:"+filepath.Join(t.TempDir(), "to.db")
	one, two := 1, 2
	set := func(url, tenant string, jobs *int) {
		onStore(t, url, func(s store.Store) {
			own := limits.NewOwn(s, nil)
			defer own.Close()
			if err := own.Set(t.Context(), tenant, limits.TenantDraft{Draft: limits.Draft{MaxJobs: jobs}}); err != nil {
				t.Fatal(err)
			}
		})
	}
	carillon(t, 0, "keys", "create", "--store="+from, "--role=admin") // makes the store
	carillon(t, 0, "keys", "create", "--store="+to, "--role=admin")
	set(from, "acme", &one)
	set(from, "bolt", &one)
	set(to, "bolt", &two)
	for _, want := range []string{"copied: 1 limits; there already: 1", "copied: 0 limits; there already: 2"} {
		if _, stderr := carillon(t, 0, "limits", "copy", "--store="+from, "--to="+to); !strings.Contains(stderr, want) {
			t.Errorf("the copy says %s, want %s", stderr, want)
		}
	}
	onStore(t, to, func(s store.Store) {
		own := limits.NewOwn(s, nil)
		defer own.Close()
		for tenant, want := range map[string]int{"acme": 1, "bolt": 2} {
			if d, err := own.Get(t.Context(), tenant); err != nil || d.MaxJobs == nil || *d.MaxJobs != want {
				t.Errorf("%s has %+v, %v", tenant, d, err)
			}
		}
	})
}
