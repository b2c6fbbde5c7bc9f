package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"

	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
)

func TestNext(t *testing.T) {
	t.Setenv("CARILLON_COUNT", "1") // the environment does not matter
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"a gap", []string{"30 2 * * *", "--timezone=Europe/Paris", "--count=3", "--start-at=2026-03-28T00:00:00Z"}, `
UTC                       Europe/Paris
2026-03-28T01:30:00.000Z  Sat 2026-03-28 02:30:00 +01:00
2026-03-29T01:00:00.000Z  Sun 2026-03-29 03:00:00 +02:00  02:30 does not exist on 2026-03-29: fires right after the gap
2026-03-30T00:30:00.000Z  Mon 2026-03-30 02:30:00 +02:00
`},
		{"left out in a gap", []string{"*/40 2 * * *", "--timezone=Europe/Paris", "--count=2", "--start-at=2026-03-28T01:30:00Z"}, `
UTC                       Europe/Paris
2026-03-28T01:40:00.000Z  Sat 2026-03-28 02:40:00 +01:00
-                         -                               02:00 does not exist on 2026-03-29: left out
2026-03-30T00:00:00.000Z  Mon 2026-03-30 02:00:00 +02:00
`},
		{"an overlap", []string{"30 2 * * *", "--timezone=Europe/Paris", "--count=2", "--start-at=2026-10-25T00:00:00Z"}, `
UTC                       Europe/Paris
2026-10-25T00:30:00.000Z  Sun 2026-10-25 02:30:00 +02:00  02:30 comes twice: fires the first time only
2026-10-26T01:30:00.000Z  Mon 2026-10-26 02:30:00 +01:00
`},
		{"both of an overlap", []string{"@hourly", "--timezone=Europe/Paris", "--count=3", "--start-at=2026-10-25T00:00:00Z"}, `
UTC                       Europe/Paris
2026-10-25T00:00:00.000Z  Sun 2026-10-25 02:00:00 +02:00  02:00 comes twice: the first
2026-10-25T01:00:00.000Z  Sun 2026-10-25 02:00:00 +01:00  02:00 comes twice: the second
2026-10-25T02:00:00.000Z  Sun 2026-10-25 03:00:00 +01:00
`},
		{"an interval from its start", []string{"@every 36h", "--count=2", "--start-at=2026-10-25T00:00:00.25Z"}, `
UTC                       UTC
2026-10-25T00:00:00.250Z  Sun 2026-10-25 00:00:00.25 +00:00
2026-10-26T12:00:00.250Z  Mon 2026-10-26 12:00:00.25 +00:00
`},
		{"one instant", []string{"@at 1798120800", "--start-at=2026-10-25T00:00:00Z"}, `
UTC                       UTC
2026-12-24T14:00:00.000Z  Thu 2026-12-24 14:00:00 +00:00
none after that
`},
		{"by key", []string{"H H(0-2) * * *", "--key=backup-1234", "--count=1", "--start-at=2026-10-25T00:00:00Z"}, `
UTC                       UTC
2026-10-25T01:47:00.000Z  Sun 2026-10-25 01:47:00 +00:00
`},
		{"by key and tenant", []string{"H H(0-2) * * *", "--key=backup-1234", "--tenant=acme", "--count=1", "--start-at=2026-10-25T00:00:00Z"}, `
UTC                       UTC
2026-10-25T01:46:00.000Z  Sun 2026-10-25 01:46:00 +00:00
`},
	} {
		var stdout, stderr bytes.Buffer
		if code := run(append([]string{"next"}, c.args...), &stdout, &stderr); code != 0 {
			t.Errorf("%s: exit code %d: %s", c.name, code, &stderr)
		}
		if got := "\n" + stdout.String(); got != c.want {
			t.Errorf("%s: it prints%s\nwant%s", c.name, got, c.want)
		}
	}
}

// Without a start, it is now, and ten instants are shown.
func TestNextFromNow(t *testing.T) {
	var stdout, stderr bytes.Buffer
	begin := time.Now()
	if code := run([]string{"next", "@every 1h"}, &stdout, &stderr); code != 0 {
		t.Fatalf("exit code %d: %s", code, &stderr)
	}
	end := time.Now()
	lines := strings.Split(strings.TrimSpace(stdout.String()), "\n")
	if len(lines) != 11 {
		t.Fatalf("it prints\n%s", &stdout)
	}
	first, err := job.ParseInstant(strings.Fields(lines[1])[0])
	if err != nil || first.Before(begin.Add(time.Hour-time.Millisecond)) || first.After(end.Add(time.Hour)) {
		t.Errorf("an hour from %v it prints %v, %v", begin, first, err)
	}
}

func TestNextUsage(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"no crontab", nil, "crontab"},
		{"not quoted", []string{"0", "9", "*", "*", "*"}, "quote it, so that it is one: carillon next '0 9 * * *'"},
		{"not quoted, with options", []string{"--count=3", "@every", "36h"}, "carillon next '@every 36h'"},
		{"its stars taken for files", []string{"0", "9", "LICENSE", "go.mod", "LICENSE", "go.mod", "mon-fri"}, "carillon next '30 9 * * mon-fri'"},
		{"bad crontab", []string{"0 25 * * *"}, `crontab: hour "25"`},
		{"by key, without one", []string{"H H * * *"}, "--key: is required"},
		{"never", []string{"0 0 30 2 *"}, "crontab: never fires"},
		{"bad zone", []string{"@daily", "--timezone=Europe/Atlantis"}, "--timezone"},
		{"the machine's zone", []string{"@daily", "--timezone=Local"}, "--timezone"},
		{"bad count", []string{"@daily", "--count=0"}, "--count"},
		{"bad start", []string{"@daily", "--start-at=tomorrow"}, `--start-at: "tomorrow" must be`},
		{"30 February", []string{"@daily", "--start-at=2026-02-30T00:00:00Z"}, "--start-at: \"2026-02-30T00:00:00Z\" must be a day that there is"},
	} {
		var stdout, stderr bytes.Buffer
		if code := run(append([]string{"next"}, c.args...), &stdout, &stderr); code != cli.ExitUsage {
			t.Errorf("%s: exit code %d, want %d", c.name, code, cli.ExitUsage)
		}
		if !strings.Contains(stderr.String(), c.want) {
			t.Errorf("%s: the message does not name %s: %s", c.name, c.want, &stderr)
		}
	}
}
