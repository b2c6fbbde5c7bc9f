package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/replicas"
	"github.com/carillon-scheduler/carillon/store/sqlite"
	"github.com/carillon-scheduler/carillon/store/tenants"

	"github.com/carillon-scheduler/carillon/cmd/internal/cli"
)

// filled makes an SQLite store of a tenant with settings and of n jobs with an instant each, and answers its URL.
func filled(t *testing.T, n int) string {
	t.Helper()
	url := "sqlite:" + filepath.Join(t.TempDir(), "from.db")
	onStore(t, url, func(s store.Store) {
		now := time.Now().Truncate(time.Millisecond)
		tenant := job.Tenant{Name: job.DefaultTenant, FirstSeen: now, Settings: job.TenantSettings{Weight: 2}}
		if _, err := tenants.New(s).Meet(t.Context(), []job.Tenant{tenant}); err != nil {
			t.Fatal(err)
		}
		puts := make([]store.Put, n)
		for i := range puts {
			revision := job.NewRevision(now)
			j := job.Job{
				Name: job.Name{Tenant: job.DefaultTenant, Key: fmt.Sprintf("k%05d", i)}, Revision: revision, Version: revision,
				CreatedAt: now, UpdatedAt: now, ExpiresAt: now.Add(time.Hour),
				Callback: job.Callback{Type: "http", Data: []byte(`{"url":"http://127.0.0.1/"}`)},
				Schedule: job.Schedule{Instants: []time.Time{now.Add(time.Hour)}},
			}
			begun, err := j.Begin(now, job.PastFire, job.Expansion{})
			if err != nil {
				t.Fatal(err)
			}
			puts[i] = store.Put{Job: j, Occurrences: begun.Occurrences, Now: now}
		}
		for _, r := range s.Put(t.Context(), puts) {
			if r.Err != nil {
				t.Fatal(r.Err)
			}
		}
	})
	return url
}

func onStore(t *testing.T, url string, f func(s store.Store)) {
	t.Helper()
	s, err := sqlite.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	f(s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// carillon runs a command and expects an exit code.
func carillon(t *testing.T, want int, args ...string) (stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	if code := run(args, &out, &errs); code != want {
		t.Fatalf("%q: exit code %d, want %d: %s", args, code, want, &errs)
	}
	return out.String(), errs.String()
}

func expectContains(t *testing.T, what, got string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(got, w) {
			t.Errorf("%s has no %q:\n%s", what, w, got)
		}
	}
}

func TestMove(t *testing.T) {
	from := filled(t, 3)
	dir := t.TempDir()
	file, to := filepath.Join(dir, "export"), "sqlite:"+filepath.Join(dir, "to.db")
	_, stderr := carillon(t, 0, "export", "--store="+from, "--output="+file)
	expectContains(t, "the export", stderr, "exported in ", ": 1 tenant, 3 jobs, 3 occurrences and 0 dead letters")
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file has mode %v, %v; others must not read what may have secrets", info.Mode(), err)
	}
	_, stderr = carillon(t, 0, "import", "--store="+to, "--input="+file)
	expectContains(t, "the import", stderr, "imported in ", ": 1 tenant, 3 jobs, 3 occurrences and 0 dead letters")
	if strings.Contains(stderr, "already") {
		t.Errorf("a first import finds records: %s", stderr)
	}
	_, stderr = carillon(t, 0, "import", "--store="+to, "--input="+file)
	expectContains(t, "the second import", stderr, "7 of these records were in the store already")

	// The environment names the store, and standard output is a file as any other.
	t.Setenv("CARILLON_STORE", to)
	stdout, _ := carillon(t, 0, "export")
	expectContains(t, "the export of what was imported", stdout, `"key":"k00000"`, `"key":"k00002"`, `"settings":{"weight":2}`,
		`{"end":{"tenants":1,"jobs":3,"occurrences":3,"deadLetters":0}}`)
	if strings.Contains(stdout, "so far") {
		t.Errorf("progress is on standard output:\n%s", stdout)
	}
}

// An export of other tenants than the store has is empty, and says so. One is resumed with the same tenants only.
func TestMoveOfTenants(t *testing.T) {
	from, file := filled(t, 2), filepath.Join(t.TempDir(), "export")
	stdout, stderr := carillon(t, 0, "export", "--store="+from, "--only-tenant=acme,globex")
	expectContains(t, "the export of others", stderr, ": 0 tenants, 0 jobs", "Are --store and --only-tenant right?")
	expectContains(t, "the export of others", stdout, `"tenants":["acme","globex"]`)
	_, stderr = carillon(t, 0, "export", "--store="+from, "--only-tenant=default", "--output="+file)
	expectContains(t, "the export", stderr, ": 1 tenant, 2 jobs, 2 occurrences and 0 dead letters")
	_, stderr = carillon(t, 2, "export", "--store="+from, "--output="+file, "--resume")
	expectContains(t, "the export of all", stderr, "it is an export with --only-tenant=default: resume it with that")
}

func TestMoveNothing(t *testing.T) {
	url := "sqlite:" + filepath.Join(t.TempDir(), "new.db")
	onStore(t, url, func(store.Store) {})
	_, stderr := carillon(t, 0, "export", "--store="+url)
	expectContains(t, "the export", stderr, "0 jobs", "Is --store right?")
}

// A file that is not there, or in which nothing is, is no store to export from, and none is made of it.
func TestExportMistyped(t *testing.T) {
	dir := t.TempDir()
	typo, empty := filepath.Join(dir, "typo.db"), filepath.Join(dir, "empty.db")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{typo: "there is no SQLite file " + typo, empty: "the SQLite file " + empty + " is empty"} {
		output := filepath.Join(dir, "export")
		stdout, stderr := carillon(t, cli.ExitUsage, "export", "--store=sqlite:"+file, "--output="+output)
		expectContains(t, "the export", stderr, "--store: "+want)
		if stdout != "" {
			t.Errorf("it exports %s", stdout)
		}
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 {
		t.Errorf("there are %v, %v; want the empty file alone", left, err)
	}
	if info, err := os.Stat(empty); err != nil || info.Size() > 0 {
		t.Errorf("the empty file is %v, %v", info, err)
	}
}

// While replicas may be claiming, neither an export nor an import begins, unless an option asks for it.
func TestMoveWhileClaiming(t *testing.T) {
	from := filled(t, 1)
	file := filepath.Join(t.TempDir(), "export")
	carillon(t, 0, "export", "--store="+from, "--output="+file)
	to := "sqlite:" + filepath.Join(t.TempDir(), "to.db")
	for url, until := range map[string]time.Time{from: time.Now().Add(time.Hour), to: time.Now().Add(time.Hour)} {
		onStore(t, url, func(s store.Store) {
			for _, replica := range []string{"a", "b"} {
				if err := replicas.Beat(t.Context(), s, replica, nil, time.Now(), until); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
	again := filepath.Join(t.TempDir(), "again")
	for _, args := range [][]string{{"export", "--store=" + from, "--output=" + again}, {"import", "--store=" + to, "--input=" + file}} {
		_, stderr := carillon(t, cli.ExitFailure, args...)
		expectContains(t, args[0], stderr, "replicas that may be claiming from this store: 2. Stop them first", "--while-claiming")
		if _, err := os.Stat(again); err == nil {
			t.Error("an export that is refused makes a file")
		}
	}
	stdout, _ := carillon(t, 0, "export", "--store="+to, "--while-claiming")
	expectContains(t, "the store that nothing was imported into", stdout, `{"end":{"tenants":0,"jobs":0,`)
	carillon(t, 0, "export", "--store="+from, "--output="+again, "--while-claiming")
	_, stderr := carillon(t, 0, "import", "--store="+to, "--input="+again, "--while-claiming")
	expectContains(t, "the import", stderr, "1 job, 1 occurrence")
}

// Replicas that are started in the middle end an export, and an import, with an error.
func TestMoveInterferes(t *testing.T) {
	const jobs = 1100
	from := filled(t, jobs)
	beat := func(s store.Store) {
		t.Helper()
		if err := replicas.Beat(t.Context(), s, "a", nil, time.Now(), time.Now().Add(time.Hour)); err != nil {
			t.Error(err)
		}
	}
	file := filepath.Join(t.TempDir(), "export")
	carillon(t, 0, "export", "--store="+from, "--output="+file)
	onStore(t, from, func(s store.Store) {
		var stderr bytes.Buffer
		code := run([]string{"export", "--store=" + from}, writerFunc(func(b []byte) (int, error) {
			beat(s)
			return len(b), nil
		}), &stderr)
		if code != cli.ExitFailure {
			t.Errorf("the export's exit code is %d", code)
		}
		expectContains(t, "the export", stderr.String(), "do not use this export", "Stop them first")
	})

	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pipe, to := filepath.Join(t.TempDir(), "pipe"), "sqlite:"+filepath.Join(t.TempDir(), "to.db")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	onStore(t, to, func(s store.Store) {
		var group sync.WaitGroup
		group.Go(func() {
			writer, err := os.OpenFile(pipe, os.O_WRONLY, 0)
			if err != nil {
				t.Error(err)
				return
			}
			defer writer.Close()
			half := bytes.Index(content, []byte(`{"occurrence"`)) // and so more than the first batch
			if _, err := writer.Write(content[:half]); err != nil {
				t.Error(err)
			}
			for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) { // until it has begun to import
				if _, err := store.ReadJob(t.Context(), s, job.Name{Tenant: job.DefaultTenant, Key: "k00000"}); err == nil {
					break
				} else if time.Now().After(end) {
					t.Errorf("nothing is imported: %v", err)
					break
				}
			}
			beat(s)
			_, _ = writer.Write(content[half:]) // it fails if the import has ended already
		})
		_, stderr := carillon(t, cli.ExitFailure, "import", "--store="+to, "--input="+pipe)
		expectContains(t, "the import", stderr, "replicas", "Stop them first")
		group.Wait()
	})
}

// writerFunc is a function that is written to.
type writerFunc func(b []byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// An existing export is never overwritten. An interrupted one is resumed.
func TestResumeExport(t *testing.T) {
	t.Parallel()
	const jobs = 1100
	from := filled(t, jobs)
	whole := filepath.Join(t.TempDir(), "whole")
	_, stderr := carillon(t, 0, "export", "--store="+from, "--output="+whole, "--resume") // there is no such file yet
	expectContains(t, "the export", stderr, fmt.Sprintf("%d jobs, %d occurrences", jobs, jobs))
	content, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	_, stderr = carillon(t, cli.ExitUsage, "export", "--store="+from, "--output="+whole)
	expectContains(t, "an export over another", stderr, "exists already", "--resume")
	_, stderr = carillon(t, 0, "export", "--store="+from, "--output="+whole, "--resume")
	expectContains(t, "an export of which nothing is left", stderr, "is complete: it has 1 tenant, 1100 jobs")

	lines := func(b []byte) string { // all but the header, which has the time
		_, rest, _ := strings.Cut(string(b), "\n")
		return rest
	}
	broken := filepath.Join(t.TempDir(), "broken")
	for _, keep := range []int{0, 10, len(content) / 2, len(content) - 1} {
		if err := os.WriteFile(broken, content[:keep], 0o600); err != nil {
			t.Fatal(err)
		}
		if keep > 100 {
			_, stderr := carillon(t, cli.ExitFailure, "import", "--store=sqlite:"+filepath.Join(t.TempDir(), "x.db"), "--input="+broken)
			expectContains(t, "an import of what broke off", stderr, "incomplete", "--resume")
		}
		_, stderr := carillon(t, 0, "export", "--store="+from, "--output="+broken, "--resume")
		expectContains(t, "the export that is gone on with", stderr, fmt.Sprintf("%d jobs, %d occurrences", jobs, jobs))
		got, err := os.ReadFile(broken)
		if err != nil {
			t.Fatal(err)
		}
		if lines(got) != lines(content) {
			t.Errorf("an export of which %d bytes were there is not what it is at once", keep)
		}
	}
	_, stderr = carillon(t, 0, "import", "--store=sqlite:"+filepath.Join(t.TempDir(), "y.db"), "--input="+broken)
	expectContains(t, "the import", stderr, fmt.Sprintf("%d jobs, %d occurrences", jobs, jobs))

	// The text behind the last place is cut off, even if little is left to write.
	second := bytes.LastIndex(content, []byte(`{"place"`))
	if err := os.WriteFile(broken, content[:second], 0o600); err != nil {
		t.Fatal(err)
	}
	onStore(t, from, func(s store.Store) {
		var names []job.Name
		for i := range jobs {
			names = append(names, job.Name{Tenant: job.DefaultTenant, Key: fmt.Sprintf("k%05d", i)})
		}
		if _, err := s.Cancel(t.Context(), names, store.Asked{Now: time.Now()}); err != nil {
			t.Fatal(err)
		}
	})
	carillon(t, 0, "export", "--store="+from, "--output="+broken, "--resume")
	_, stderr = carillon(t, 0, "import", "--store=sqlite:"+filepath.Join(t.TempDir(), "z.db"), "--input="+broken)
	expectContains(t, "the import of what was cut off", stderr, "1100 jobs, 1000 occurrences")

	if err := os.WriteFile(broken, content[:len(content)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	_, stderr = carillon(t, cli.ExitUsage, "export", "--store="+filled(t, 1), "--output="+broken, "--resume")
	expectContains(t, "an export of another store", stderr, "it is an export of "+from)
	if err := os.WriteFile(broken, []byte("my diary\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, stderr = carillon(t, cli.ExitUsage, "export", "--store="+from, "--output="+broken, "--resume")
	expectContains(t, "an export into another file", stderr, "it is no export")
	if left, err := os.ReadFile(broken); string(left) != "my diary\n" {
		t.Errorf("that file has become %q, %v", left, err)
	}
}

func TestImportErrors(t *testing.T) {
	from := filled(t, 1)
	dir := t.TempDir()
	file := filepath.Join(dir, "export")
	carillon(t, 0, "export", "--store="+from, "--output="+file)
	_, stderr := carillon(t, cli.ExitFailure, "import", "--store="+filled(t, 1), "--input="+file)
	expectContains(t, "an import of another job of the same name", stderr, "k00000", "Cancel it")

	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ content, want string }{
		"a newer format":  {`{"export":{"format":7}}` + "\n", "newer version of carillon"},
		"another file":    {"my diary\n", "it is no export"},
		"a line too much": {string(content) + "more\n", "line 8: something follows the end"},
	} {
		if err := os.WriteFile(file, []byte(c.content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, stderr := carillon(t, cli.ExitFailure, "import", "--store=sqlite:"+filepath.Join(dir, "to.db"), "--input="+file)
		expectContains(t, name, stderr, c.want)
	}
}
