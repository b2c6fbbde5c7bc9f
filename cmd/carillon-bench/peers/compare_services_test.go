//go:build services

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// TestMain also runs the worker that a test kills.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "worker" {
		if err := command(context.Background(), os.Args[1:], io.Discard, os.Stderr); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// serverURL returns the URL of a server from the environment.
func serverURL(t *testing.T, name string) string {
	t.Helper()
	url := os.Getenv(name)
	if url == "" {
		t.Fatalf("%s is not set: run the tests inside .ci/with-services", name)
	}
	return url
}

// small returns the options of a run that takes some seconds.
func small(t *testing.T, subject string) options {
	t.Helper()
	return options{
		postgres: serverURL(t, "CARILLON_TEST_POSTGRES_URL"), redis: serverURL(t, "CARILLON_TEST_REDIS_URL"),
		modes: allModes, subjects: []string{subject}, count: 200, limit: time.Minute, rate: 200, duration: time.Second,
		idle: time.Second, waiting: 200, payload: 200, rounds: 1, lead: time.Second, settle: 100 * time.Millisecond,
	}
}

// places are the schemas of the subjects, or the patterns of their keys.
var places = map[string]string{
	"carillon-postgres": carillonPlace, "river": riverSchema, "table": tableSchema,
	"carillon-redis": carillonPlace + ":*", "asynq": asynqKeys + "*", "zset": zsetKeys + "*",
}

// checkPlace returns errNotEmpty if the subject has anything on the server.
func checkPlace(t *testing.T, o options, subject string) error {
	t.Helper()
	ctx := context.Background()
	if place := places[subject]; strings.HasSuffix(place, "*") {
		client, err := openRedis(o.redis)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		return takeKeys(ctx, client, place, false)
	}
	conn, err := pgx.Connect(ctx, o.postgres)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	return takeSchema(ctx, conn, places[subject], false)
}

func TestEachIsMeasured(t *testing.T) {
	carillon := filepath.Join(t.TempDir(), "carillon-bench")
	if out, err := exec.Command("../../../.ci/build", carillon).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, subject := range allSubjects {
		t.Run(subject, func(t *testing.T) {
			t.Parallel()
			o := small(t, subject)
			o.carillon = carillon
			reports, err := compare(t.Context(), o, io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			want := 0
			for _, mode := range allModes {
				want += len(settingsFor(mode, subject))
			}
			if len(reports) != want {
				t.Errorf("%d reports, want %d", len(reports), want)
			}
			for _, r := range reports {
				checkReport(t, &r)
			}
			var table bytes.Buffer
			if err := writeTables(&table, reports); err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(table.String(), "\n| "+reports[0].Subject+" "); n != want {
				t.Errorf("%d rows in the tables, want %d:\n%s", n, want, &table)
			}
			if strings.Contains(table.String(), "?") {
				t.Errorf("a figure is missing in the tables:\n%s", &table)
			}
			if err := checkPlace(t, o, subject); err != nil {
				t.Errorf("afterwards: %v", err)
			}
		})
	}
}

// checkReport checks that all figures are there, and the figures that are the same for every subject.
func checkReport(t *testing.T, r *Report) {
	t.Helper()
	if r.Version == "" || strings.Contains(r.Version, "unknown") || r.Server == "" || r.How == "" || r.Store == "" || r.Callback == "" {
		t.Errorf("%s, %s: not all is told: %+v", r.Mode, r.Settings, r)
	}
	figures := map[string]float64{}
	for _, f := range r.Figures {
		if len(f.Rounds) != 1 || f.Rounds[0] != f.Median {
			t.Errorf("%s, %s: %s has the rounds %v and the median %v", r.Mode, r.Settings, f.Name, f.Rounds, f.Median)
		}
		figures[f.Name] = f.Median
	}
	for _, c := range columnsOf[r.Mode] {
		if _, ok := figures[c.figure]; !ok {
			t.Errorf("%s, %s: there is no %q", r.Mode, r.Settings, c.figure)
		}
	}
	switch r.Mode {
	case "drain":
		if figures["drained"] <= 0 {
			t.Errorf("drained %v", figures["drained"])
		}
	case "steady":
		if figures["lost"] != 0 || figures["doubled"] != 0 {
			t.Errorf("steady, %s: %v lost, %v doubled", r.Settings, figures["lost"], figures["doubled"])
		}
		if r.Subject != "asynq" && figures["early"] != 0 { // asynq stores whole seconds
			t.Errorf("steady, %s: %v early", r.Settings, figures["early"])
		}
		spread := []float64{figures["deviation p50"], figures["deviation p95"], figures["deviation p99"], figures["deviation p99.9"], figures["deviation max"]}
		if !slices.IsSorted(spread) || spread[4] == 0 {
			t.Errorf("steady, %s: deviations %v", r.Settings, spread)
		}
	case "idle":
		if r.Settings == tuned && figures["queries of the store"] <= 0 {
			t.Errorf("idle, tuned: no queries")
		}
	}
}

func TestWhatIsThereIsLeftAlone(t *testing.T) {
	for _, subject := range []string{"river", "table", "asynq", "zset"} {
		o := small(t, subject)
		o.modes = []string{"drain"}
		p, err := newPeer(t.Context(), &o, subject, byDefault)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.prepare(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		if err := p.insert(t.Context(), &work{count: 1, payload: 200, start: time.Now()}); err != nil {
			t.Fatal(err)
		}
		if _, err := compare(t.Context(), o, io.Discard); !errors.Is(err, errNotEmpty) {
			t.Errorf("%s, on top of another run: %v", subject, err)
		}
		if err := checkPlace(t, o, subject); !errors.Is(err, errNotEmpty) {
			t.Errorf("%s: what was there has gone (%v)", subject, err)
		}
		o.force = true
		if _, err := compare(t.Context(), o, io.Discard); err != nil {
			t.Errorf("%s, by force: %v", subject, err)
		}
		if err := checkPlace(t, o, subject); err != nil {
			t.Errorf("%s, by force, afterwards: %v", subject, err)
		}
		if err := p.remove(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// TestConduct: a killed worker loses no jobs of a queue that takes them back, and loses jobs of the loop that does not;
// cancellations are answered; and the instants in the nights of clock changes are listed.
func TestConduct(t *testing.T) {
	service := filepath.Join(t.TempDir(), "carillon")
	if out, err := exec.Command("../../../.ci/build", service).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	o := small(t, "")
	o.subjects = []string{"carillon-postgres", "river", "table", "carillon-redis", "zset"} // asynq waits a minute longer
	o.service, o.killed, o.patience, o.conduct = service, 100, 2*time.Minute, true
	o.modes = nil
	all, err := observeAll(t.Context(), &o, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all {
		t.Logf("%+v", c)
		if c.ranWaiting || c.waiting == "" || c.running == "" || len(c.nights) != len(nights) {
			t.Errorf("%s: %+v", c.subject, c)
		}
		switch {
		case strings.HasPrefix(c.subject, "carillon"):
			if c.lost > 0 || c.waiting != "cancelled 1, in flight 0" || c.running != "cancelled 0, in flight 1" {
				t.Errorf("%s: %+v", c.subject, c)
			}
			if !strings.HasPrefix(c.nights[0], "29 Mar 03:00 CEST") || strings.Count(c.nights[1], "25 Oct") != 1 {
				t.Errorf("%s: %q", c.subject, c.nights)
			}
		case c.subject == "table" && c.lost > 0, c.subject == "zset" && c.lost == 0:
			t.Errorf("%s: %d jobs lost", c.subject, c.lost)
		}
	}
	var table bytes.Buffer
	if err := writeSummary(&table, nil, all, &o); err != nil || strings.Contains(table.String(), "?") {
		t.Errorf("%v\n%s", err, &table)
	}
}

// The command line also restores Redis' settings.
func TestCommandLine(t *testing.T) {
	o := small(t, "asynq")
	var out bytes.Buffer
	err := run(t.Context(), []string{"--postgres", o.postgres, "--redis", o.redis, "--subjects", "zset", "--modes", "drain",
		"--count", "100", "--rounds", "2", "--redis-fsync", "everysec", "--json"}, &out, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var reports []Report
	if err := json.Unmarshal(out.Bytes(), &reports); err != nil {
		t.Fatal(err)
	}
	if len(reports) != 1 || len(reports[0].Figures[0].Rounds) != 2 || !strings.Contains(reports[0].Server, "fsync everysec") {
		t.Errorf("reports: %+v", reports)
	}
	client, err := openRedis(o.redis)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if server, err := versionOfRedis(t.Context(), client); err != nil || !strings.Contains(server, "fsync always") {
		t.Errorf("afterwards: %s, %v", server, err)
	}
	for _, wrong := range [][]string{{"--modes", "drain,sprint"}, {"--subjects", "celery"}, {"--rounds", "0"}, {"--rate", "0.1", "--duration", "1s"}, {"more"}} {
		if err := run(t.Context(), wrong, io.Discard, io.Discard); err == nil {
			t.Errorf("%v is taken", wrong)
		}
	}
}
