package transfer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/checkins"
	"github.com/carillon-scheduler/carillon/store/sqlite"
	"github.com/carillon-scheduler/carillon/store/transfer"
)

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 250_000_000, time.UTC)

func export(t *testing.T, from transfer.Store, o transfer.ExportOptions) string {
	t.Helper()
	var b bytes.Buffer
	if _, err := transfer.Export(t.Context(), from, &b, o); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func expectSame(t *testing.T, what string, got, want *memory) {
	t.Helper()
	expectRecords(t, what, got.records, want.records)
	if !slices.Equal(got.tenants, want.tenants) {
		t.Errorf("%s: the tenants are\n%+v\nwant\n%+v", what, got.tenants, want.tenants)
	}
}

func expectRecords(t *testing.T, what string, got, want []store.Document) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: there are %d records, want %d", what, len(got), len(want))
		return
	}
	for i := range got {
		if !reflect.DeepEqual(got[i], want[i]) {
			t.Errorf("%s: record %d is\n%#v %#v\nwant\n%#v %#v", what, i, got[i].Job, got[i].Occurrence, want[i].Job, want[i].Occurrence)
		}
	}
}

func TestLines(t *testing.T) {
	m := some(1)
	m.records[0].Job.PausedAt = epoch
	m.records[0].Job.Options.Deadline = job.Duration(time.Hour)
	m.records[1].Occurrence.Part = &job.Part{Step: 0, Subscriber: "é"}
	m.tenants = append(m.tenants, job.Tenant{Name: "u", FirstSeen: epoch, Settings: job.TenantSettings{Weight: 2.5, Priority: job.PriorityHigh, MaxInFlight: 7, Paused: true, Events: eventSettings()}})
	want := `{"export":{"format":3,"at":"2026-03-01T12:00:00.250Z","source":"sqlite:carillon.db"}}
{"tenant":{"name":"t00000","firstSeen":"2026-03-01T12:00:00.250Z"}}
{"tenant":{"name":"u","firstSeen":"2026-03-01T12:00:00.250Z","settings":{"weight":2.5,"priority":"high","maxInFlight":7,"paused":true,"events":{"callback":{"type":"http","data":{"url":"https://example.com"},"envelope":"cloudevents-binary","signing":"x"},"types":["carillon.job.finished"],"perMinute":7}}}}
{"job":{"tenant":"t","key":"k0","revision":"r","version":"v","callback":{"type":"http","data":"{ }"},"options":{"deadline":"1h"},"schedule":{"instants":[1772366400250]},"createdAt":"2026-03-01T12:00:00.250Z","updatedAt":"2026-03-01T12:00:00.250Z","expiresAt":"2026-03-01T12:00:00.250Z","pausedAt":"2026-03-01T12:00:00.250Z"}}
{"occurrence":{"id":"` + m.records[1].Occurrence.ID.String() + `","tenant":"t","key":"k0","revision":"r","step":0,"subscriber":"é","timestamp":"2026-03-01T12:00:00.250Z","dueAt":"2026-03-01T12:00:00.250Z"}}
{"occurrence":{"id":"` + m.records[2].Occurrence.ID.String() + `","tenant":"t","key":"dead","timestamp":"2026-03-01T12:00:00.250Z","failedAt":"2026-03-01T12:00:00.250Z","callback":{"type":"http","data":"1"}}}
{"place":{"after":"behind \"3","tenants":2,"jobs":1,"occurrences":1,"deadLetters":1}}
{"end":{"tenants":2,"jobs":1,"occurrences":1,"deadLetters":1}}
`
	if got := export(t, m, transfer.ExportOptions{Now: epoch, Source: "sqlite:carillon.db"}); got != want {
		t.Errorf("the export is\n%s\nwant\n%s", got, want)
	}
}

// TestExportOfTenants: the export of some tenants has all their records and no others, and can be resumed.
func TestExportOfTenants(t *testing.T) {
	m := some(4)
	m.tenants = []job.Tenant{{Name: "other", FirstSeen: epoch}, {Name: "t", FirstSeen: epoch}}
	of := func(tenant string) []store.Document {
		return slices.DeleteFunc(slices.Clone(m.records), func(r store.Document) bool {
			return r.Job != nil && r.Job.Tenant != tenant || r.Occurrence != nil && r.Occurrence.Name.Tenant != tenant
		})
	}
	for _, i := range []int{1, 5, 8} { // a job, its occurrence, and the dead letter
		if m.records[i].Job != nil {
			m.records[i].Job.Tenant = "other"
		} else {
			m.records[i].Occurrence.Name.Tenant = "other"
		}
	}
	for i, tenant := range []string{"other", "t"} {
		text := export(t, m, transfer.ExportOptions{Now: epoch, Tenants: []string{tenant}})
		to := &memory{}
		if _, err := transfer.Import(t.Context(), to, strings.NewReader(text), transfer.ImportOptions{}); err != nil {
			t.Fatal(err)
		}
		expectSame(t, tenant, to, &memory{records: of(tenant), tenants: m.tenants[i : i+1]})

		cut := text[:strings.LastIndex(text, `{"place":`)]
		found, err := transfer.Find(strings.NewReader(cut))
		if err != nil || !slices.Equal(found.Tenants, []string{tenant}) {
			t.Fatalf("found is %+v, %v", found, err)
		}
		again := cut[:found.Size] + export(t, m, transfer.ExportOptions{Now: epoch, Tenants: []string{tenant}, From: found})
		if again != text {
			t.Errorf("resumed, the export is\n%s\nwant\n%s", again, text)
		}
	}
}

func TestExportAndImport(t *testing.T) {
	for _, n := range []int{0, 1, 7, 1500} {
		from, to := some(n), &memory{}
		var exported transfer.Counts
		var b bytes.Buffer
		counts, err := transfer.Export(t.Context(), from, &b, transfer.ExportOptions{Now: epoch, Each: func(_ context.Context, so transfer.Counts) error {
			if so.Total() <= exported.Total() {
				t.Errorf("progress goes from %v to %v", exported, so)
			}
			exported = so
			return nil
		}})
		want := transfer.Counts{Tenants: n, Jobs: n, Occurrences: n, DeadLetters: 1}
		if err != nil || counts != want || exported != want {
			t.Errorf("exported %v, at last %v, %v; want %v", counts, exported, err, want)
		}
		for _, inserted := range []int{want.Total(), 0} {
			var last transfer.Imported
			imported, err := transfer.Import(t.Context(), to, bytes.NewReader(b.Bytes()), transfer.ImportOptions{
				Each: func(_ context.Context, so transfer.Imported) error { last = so; return nil },
			})
			if err != nil || imported.Counts != want || imported.Inserted != inserted || last != imported {
				t.Errorf("imported %+v, at last %+v, %v; want %+v, %d inserted", imported, last, err, want, inserted)
			}
			expectSame(t, "imported", to, from)
		}
		for _, size := range to.sizes {
			if size > 1000 {
				t.Errorf("%d records are imported at once", size)
			}
		}
	}
}

// An export that is interrupted anywhere, even within a line, is resumed at its last place, and then equals an
// uninterrupted one.
func TestContinue(t *testing.T) {
	m := some(4)
	options := transfer.ExportOptions{Now: epoch, Source: "here"}
	whole := export(t, m, options)
	step := 1
	if testing.Short() {
		step = 17 // the race detector sees nothing new at each byte
	}
	for cut := 0; cut < len(whole); cut += step {
		found, err := transfer.Find(strings.NewReader(whole[:cut]))
		if err != nil {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		kept := ""
		if found != nil {
			if found.Whole || found.Source != "here" {
				t.Fatalf("cut at %d: found %+v", cut, found)
			}
			kept = whole[:found.Size]
			last := 0 // the end of the last complete line that is a place or the header
			for end := 0; ; {
				next, _, complete := strings.Cut(whole[end:cut], "\n")
				if !complete {
					break
				}
				if end += len(next) + 1; strings.HasPrefix(next, `{"place"`) || last == 0 {
					last = end
				}
			}
			if len(kept) != last {
				t.Fatalf("cut at %d: it is continued at %d, not at %d", cut, len(kept), last)
			}
		} else if strings.Contains(whole[:cut], "\n") {
			t.Fatalf("cut at %d: nothing to continue is found", cut)
		}
		next := options
		next.From = found
		if got := kept + export(t, m, next); got != whole {
			t.Fatalf("cut at %d, it is continued to\n%s\nwant\n%s", cut, got, whole)
		}
	}
	found, err := transfer.Find(strings.NewReader(whole))
	if err != nil || !found.Whole || found.Size != int64(len(whole)) || found.Counts != (transfer.Counts{Tenants: 4, Jobs: 4, Occurrences: 4, DeadLetters: 1}) {
		t.Errorf("of a whole export, %+v is found, %v", found, err)
	}
	// The file may have been continued before.
	half, err := transfer.Find(strings.NewReader(whole[:len(whole)/2]))
	if err != nil || half.Jobs == 0 {
		t.Errorf("of half an export, %+v is found, %v", half, err)
	}
}

// TestOldFormats: an export by a program of each format is read, and exported again unchanged. Such programs wrote the
// files in testdata, and one is added when the format is raised.
func TestOldFormats(t *testing.T) {
	const present = 3
	for format := 1; format <= present; format++ {
		old, err := os.ReadFile(fmt.Sprintf("testdata/format-%d.jsonl", format))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.HasPrefix(old, fmt.Appendf(nil, `{"export":{"format":%d,`, format)) {
			t.Errorf("the export of format %d has another one", format)
		}
		to := &memory{page: 3}
		if _, err := transfer.Import(t.Context(), to, bytes.NewReader(old), transfer.ImportOptions{}); err != nil {
			t.Errorf("format %d: %v", format, err)
		}
		again := export(t, to, transfer.ExportOptions{Now: epoch})
		if !strings.HasPrefix(again, fmt.Sprintf(`{"export":{"format":%d,`, present)) {
			t.Errorf("there is no export of the present format: %.50s", again)
		}
		// Format 1 wrote durations at greater length.
		plain := strings.NewReplacer(`"1h0m0s"`, `"1h"`, `"720h0m0s"`, `"30d"`).Replace(string(old))
		if got, want := contents(again), contents(plain); !slices.Equal(got, want) {
			t.Errorf("format %d: it is exported as\n%s\nwant\n%s", format, strings.Join(got, ""), strings.Join(want, ""))
		}
	}
}

// contents returns the lines of an export about documents of the store.
func contents(export string) (lines []string) {
	for line := range strings.Lines(export) {
		if !slices.ContainsFunc([]string{"export", "place", "end"}, func(s string) bool { return strings.HasPrefix(line, `{"`+s+`"`) }) {
			lines = append(lines, line)
		}
	}
	return lines
}

// An export without tenants yet, as in format 1, can be read, and gets its tenants when it is resumed.
func TestFormatWithoutTenants(t *testing.T) {
	m := some(4)
	tenants := m.tenants
	m.tenants = nil
	old := strings.ReplaceAll(export(t, m, transfer.ExportOptions{Now: epoch}), `"tenants":0,`, ``)
	old = strings.Replace(old, `"format":3`, `"format":1`, 1)
	to := &memory{}
	if imported, err := transfer.Import(t.Context(), to, strings.NewReader(old), transfer.ImportOptions{}); err != nil || imported.Total() != len(m.records) {
		t.Errorf("imported %+v, %v", imported, err)
	}
	expectSame(t, "imported", to, m)

	m.tenants = tenants
	found, err := transfer.Find(strings.NewReader(old[:len(old)/2]))
	if err != nil || found.Jobs == 0 {
		t.Fatalf("found %+v, %v", found, err)
	}
	whole, to := old[:found.Size]+export(t, m, transfer.ExportOptions{Now: epoch, From: found}), &memory{}
	if _, err := transfer.Import(t.Context(), to, strings.NewReader(whole), transfer.ImportOptions{}); err != nil {
		t.Error(err)
	}
	expectSame(t, "continued", to, m)
}

// A tenant known to the store keeps its settings.
func TestImportLeavesTenants(t *testing.T) {
	known := job.Tenant{Name: "t00001", FirstSeen: epoch.Add(time.Hour), Settings: job.TenantSettings{Weight: 9}}
	from, to := some(3), &memory{tenants: []job.Tenant{known}}
	imported, err := transfer.Import(t.Context(), to, strings.NewReader(export(t, from, transfer.ExportOptions{Now: epoch})), transfer.ImportOptions{})
	if err != nil || imported.Inserted != imported.Total()-1 {
		t.Errorf("imported %+v, %v", imported, err)
	}
	from.tenants[1] = known
	expectSame(t, "imported", to, from)
}

// The records of an incomplete export are imported, and it is reported as incomplete.
func TestImportIncomplete(t *testing.T) {
	from := some(4)
	whole := export(t, from, transfer.ExportOptions{Now: epoch})
	header := strings.Index(whole, "\n") + 1
	step := 1
	if testing.Short() {
		step = 17 // the race detector sees nothing new at each byte
	}
	for cut := header; cut < len(whole); cut += step {
		to := &memory{}
		imported, err := transfer.Import(t.Context(), to, strings.NewReader(whole[:cut]), transfer.ImportOptions{})
		if !errors.Is(err, transfer.ErrIncomplete) {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		complete := whole[:strings.LastIndex(whole[:cut], "\n")+1]
		want := from.records[:strings.Count(complete, "\n{\"job\"")+strings.Count(complete, "\n{\"occurrence\"")]
		tenants := from.tenants[:strings.Count(complete, "\n{\"tenant\"")]
		expectSame(t, fmt.Sprint("cut at ", cut), to, &memory{records: want, tenants: tenants})
		if n := len(want) + len(tenants); imported.Total() != n || imported.Inserted != n {
			t.Errorf("cut at %d: imported %+v, want %d", cut, imported, n)
		}
	}
	if _, err := transfer.Import(t.Context(), &memory{}, strings.NewReader(""), transfer.ImportOptions{}); !errors.Is(err, transfer.ErrIncomplete) {
		t.Errorf("an empty export: %v", err)
	}
	// Lines are missing in the middle, though the last line is present.
	for _, cut := range []string{"\n{\"tenant\"", "\n{\"job\"", "\n{\"occurrence\""} {
		at := strings.Index(whole, cut) + 1
		lacking := whole[:at] + whole[at+strings.Index(whole[at:], "\n")+1:]
		if _, err := transfer.Import(t.Context(), &memory{}, strings.NewReader(lacking), transfer.ImportOptions{}); !errors.Is(err, transfer.ErrIncomplete) {
			t.Errorf("without one line: %v", err)
		}
	}
}

func TestImportRefuses(t *testing.T) {
	whole := export(t, some(1), transfer.ExportOptions{Now: epoch})
	lines := strings.SplitAfter(whole, "\n")
	header, tenant, jobLine, occurrence, dead := lines[0], lines[1], lines[2], lines[3], lines[4]
	replace := func(s, old, by string) string {
		if !strings.Contains(s, old) {
			t.Fatalf("%s has no %s", s, old)
		}
		return strings.Replace(s, old, by, 1)
	}
	for _, c := range []struct{ name, export, want string }{
		{"a newer format", `{"export":{"format":4,"more":true}}` + "\n", transfer.ErrFormat.Error()},
		{"a format that never was", `{"export":{"format":0}}` + "\n", "line 1: there is no format 0"},
		{"another file", "hello\n", "line 1: it is no export"},
		{"an export without its head", jobLine, "line 1: it is no export"},
		{"no JSON", header + jobLine + "nonsense\n", "line 3: "},
		{"an empty line", header + "\n", "line 2: "},
		{"nothing", header + "{}\n", "line 2: it must have exactly one"},
		{"two things", header + replace(jobLine, `{"job":`, `{"end":{"jobs":0,"occurrences":0,"deadLetters":0},"job":`), "line 2: it must have exactly one"},
		{"a name that no tenant has", header + replace(tenant, "t00000", "t!h"), `line 2: no tenant can have the name "t!h"`},
		{"a tenant that nobody has seen", header + replace(tenant, `,"firstSeen":"2026-03-01T12:00:00.250Z"`, ``), "line 2: firstSeen is required"},
		{"a tenant with other settings", header + replace(tenant, `"firstSeen"`, `"settings":{"share":1},"firstSeen"`), "line 2: "},
		{"events without a callback", header + replace(tenant, `"firstSeen"`, `"settings":{"events":{}},"firstSeen"`), "line 2: events/callback"},
		{"a negative weight", header + replace(tenant, `"firstSeen"`, `"settings":{"weight":-1},"firstSeen"`), "line 2: weight and maxInFlight"},
		{"a priority that is none", header + replace(tenant, `"firstSeen"`, `"settings":{"priority":"x"},"firstSeen"`), "line 2: priority must be"},
		{"a tenant that is a name", header + `{"tenant":"t"}` + "\n", "line 2: "},
		{"two exports", header + header, "line 2: another export begins"},
		{"something behind the end", whole + jobLine, "something follows the end"},
		{"an unknown field", header + replace(jobLine, `"version"`, `"colour":1,"version"`), "line 2: "},
		{"a repeated field", header + replace(jobLine, `"version"`, `"key":"x","version"`), "line 2: "},
		{"no key", header + replace(jobLine, `"key":"k0",`, ``), "line 2: tenant and key are required"},
		{"a control character", header + replace(jobLine, `"k0"`, `"k\u0000"`), "line 2: key must have no control characters"},
		{"no version", header + replace(jobLine, `"version":"v",`, ``), "line 2: revision and version are required"},
		{"no time", header + replace(jobLine, `"expiresAt"`, `"pausedAt"`), "line 2: createdAt, updatedAt and expiresAt are required"},
		{"no such time", header + replace(jobLine, `2026-03-01T12`, `2026-03-01T25`), "line 2: "},
		{"no schedule", header + replace(jobLine, `"schedule":{"instants":[1772366400250]},`, ``), "line 2: schedule is required"},
		{"a schedule that is none", header + replace(jobLine, `{"instants":[1772366400250]}`, `null`), "line 2: schedule must be an object"},
		{"a crontab that is none", header + replace(jobLine, `{"instants":[1772366400250]}`, `{"crontab":"never"}`), "line 2: decode schedule"},
		{"options that are none", header + replace(jobLine, `"schedule"`, `"options":[],"schedule"`), "line 2: options must be an object"},
		{"no callback", header + replace(jobLine, `"callback":{"type":"http","data":"{ }"},`, ``), "line 2: callback/type is required"},
		{"no data", header + replace(jobLine, `,"data":"{ }"`, ``), "line 2: either callback/data or callback/base64"},
		{"negative", header + replace(jobLine, `"schedule"`, `"missed":-1,"schedule"`), "line 2: planned, missed and failed must not be negative"},
		{"no id", header + replace(occurrence, `"id":"`, `"id":"x`), "line 2: id "},
		{"no timestamp", header + replace(occurrence, `"timestamp"`, `"scheduledAt"`), "line 2: timestamp is required"},
		{"never due", header + replace(occurrence, `"dueAt"`, `"scheduledAt"`), "line 2: either dueAt or"},
		{"dead and alive", header + replace(dead, `"failedAt"`, `"dueAt":"2026-03-01T12:00:00Z","failedAt"`), "line 2: either dueAt or"},
		{"a dead letter of a job", header + replace(occurrence, `"dueAt"`, `"failedAt"`), "line 2: callback is required"},
		{"of a job and on its own", header + replace(dead, `"timestamp"`, `"revision":"r","timestamp"`), "line 2: either revision or callback"},
		{"of nothing", header + replace(occurrence, `"revision":"r",`, ``), "line 2: either revision or callback"},
		{"a subscriber of no step", header + replace(occurrence, `"timestamp"`, `"subscriber":"a","timestamp"`), "line 2: step is required"},
		{"a negative attempt", header + replace(occurrence, `"timestamp"`, `"attempt":-1,"timestamp"`), "line 2: position, attempt and step"},
	} {
		to := &memory{}
		_, err := transfer.Import(t.Context(), to, strings.NewReader(c.export), transfer.ImportOptions{})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: the error is %v, want %q", c.name, err, c.want)
		}
		if c.name == "a newer format" != errors.Is(err, transfer.ErrFormat) {
			t.Errorf("%s: the error is %v", c.name, err)
		}
	}
	for _, c := range []struct{ name, export, want string }{
		{"a newer format", `{"export":{"format":4,"more":true}}` + "\n", transfer.ErrFormat.Error()},
		{"another file", "hello\n", "line 1: it is no export"},
		{"a place that is none", header + `{"place":7}` + "\n", "line 2: "},
	} {
		if found, err := transfer.Find(strings.NewReader(c.export)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: found %+v, %v; want %q", c.name, found, err, c.want)
		}
	}
}

// Errors of the store, the file or the caller's functions end a transfer and are returned.
func TestFailures(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	broken := errors.New("it is broken")
	for fail := 1; fail <= 3; fail++ {
		from := some(4)
		from.fail, from.failure = fail, broken
		var b bytes.Buffer
		if _, err := transfer.Export(t.Context(), from, &b, transfer.ExportOptions{Now: epoch}); !errors.Is(err, broken) {
			t.Errorf("export from a store that fails: %v", err)
		}
	}
	m := some(1500)
	m.tenants = nil
	whole := export(t, m, transfer.ExportOptions{Now: epoch})
	for fail := 1; fail <= 4; fail++ {
		to := &memory{fail: fail, failure: broken}
		imported, err := transfer.Import(t.Context(), to, strings.NewReader(whole), transfer.ImportOptions{})
		if !errors.Is(err, broken) || imported.Total() != (fail-1)*1000 || imported.Inserted != len(to.records) {
			t.Errorf("import into a store that fails at call %d: %+v, %v", fail, imported, err)
		}
	}
	whole = export(t, some(1500), transfer.ExportOptions{Now: epoch})
	for fail, want := range map[int]transfer.Counts{1: {}, 2: {Tenants: 1000}, 3: {Tenants: 1000}, 4: {Tenants: 1500, Jobs: 500}} {
		to := &memory{fail: fail, failure: broken}
		imported, err := transfer.Import(t.Context(), to, strings.NewReader(whole), transfer.ImportOptions{})
		if !errors.Is(err, broken) || imported.Counts != want || imported.Inserted != len(to.records)+len(to.tenants) {
			t.Errorf("import of tenants into a store that fails at call %d: %+v, %v", fail, imported, err)
		}
	}
	if _, err := transfer.Export(t.Context(), some(4), brokenFile{broken}, transfer.ExportOptions{Now: epoch}); !errors.Is(err, broken) {
		t.Errorf("export to a file that fails: %v", err)
	}
	if _, err := transfer.Import(t.Context(), &memory{}, io.MultiReader(strings.NewReader(whole[:1000]), brokenFile{broken}), transfer.ImportOptions{}); !errors.Is(err, broken) {
		t.Errorf("import of a file that fails: %v", err)
	}
	if _, err := transfer.Export(t.Context(), some(4), io.Discard, transfer.ExportOptions{
		Now: epoch, Each: func(context.Context, transfer.Counts) error { return broken },
	}); !errors.Is(err, broken) {
		t.Errorf("export that is told to end: %v", err)
	}
	if _, err := transfer.Import(t.Context(), &memory{}, strings.NewReader(whole), transfer.ImportOptions{
		Each: func(context.Context, transfer.Imported) error { return broken },
	}); !errors.Is(err, broken) {
		t.Errorf("import that is told to end: %v", err)
	}
}

type brokenFile struct{ error }

func (f brokenFile) Write([]byte) (int, error) { return 0, f.error }
func (f brokenFile) Read([]byte) (int, error)  { return 0, f.error }

// The memory of a transfer follows the batch size, not the size of the store.
func TestMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector sees the same in other tests")
	}
	const jobs, size, most = 1000, 100 << 10, 50 << 20
	from := &endless{jobs: jobs, data: bytes.Repeat([]byte("x"), size)}
	r, w := io.Pipe()
	go func() {
		_, err := transfer.Export(t.Context(), from, w, transfer.ExportOptions{Now: epoch})
		w.CloseWithError(err)
	}()
	batches := 0
	imported, err := transfer.Import(t.Context(), forgetful{}, r, transfer.ImportOptions{Each: func(context.Context, transfer.Imported) error {
		batches++
		runtime.GC()
		var m runtime.MemStats
		if runtime.ReadMemStats(&m); m.HeapAlloc > most {
			t.Errorf("%d MiB are in use after %d of %d MiB", m.HeapAlloc>>20, batches*8, jobs*size>>20)
		}
		return nil
	}})
	if err != nil || imported.Jobs != jobs || batches < 10 {
		t.Errorf("imported %+v in %d batches, %v", imported, batches, err)
	}
}

// eventSettings returns settings of events with all fields set.
func eventSettings() *job.EventSettings {
	most, envelope, signing := 7, job.EnvelopeBinary, "x"
	return &job.EventSettings{
		Callback: &job.CallbackDraft{Type: "http", Data: []byte(`{"url":"https://example.com"}`), Envelope: &envelope, Signing: &signing},
		Types:    []job.EventType{job.EventFinished}, PerMinute: &most,
	}
}

// Check-ins move with their jobs, so that the other store does not report them as missing.
func TestCheckInsMove(t *testing.T) {
	open := func(name string) store.Store {
		t.Helper()
		s, err := sqlite.Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	from, to := open("a.db"), open("b.db")
	now := time.Now().UTC().Truncate(time.Millisecond)
	var all []checkins.CheckIn
	for i := range 1001 {
		all = append(all, checkins.CheckIn{
			Name: job.Name{Tenant: "t", Key: fmt.Sprintf("a/%d/b", i)}, At: now.Add(time.Duration(i) * time.Second), ExpiresAt: now.Add(time.Hour),
		})
	}
	over := checkins.CheckIn{Name: job.Name{Tenant: "t", Key: "over"}, At: now, ExpiresAt: now.Add(-time.Second)}
	if added, err := checkins.Keep(t.Context(), from, append(all, over), now.Add(-time.Minute)); err != nil || added != 1002 {
		t.Fatalf("%d are kept, %v", added, err)
	}
	if added, err := checkins.Keep(t.Context(), from, all[:2], now); err != nil || added != 0 {
		t.Errorf("again, %d are kept, %v", added, err)
	}
	exported := export(t, from, transfer.ExportOptions{Now: now})
	for _, inserted := range []int{1001, 0} {
		imported, err := transfer.Import(t.Context(), to, strings.NewReader(exported), transfer.ImportOptions{})
		if want := (transfer.Counts{CheckIns: 1001}); err != nil || imported.Counts != want || imported.Inserted != inserted {
			t.Errorf("imported %+v, %v; want %+v, %d inserted", imported, err, want, inserted)
		}
	}
	for _, c := range []checkins.CheckIn{all[0], all[1000], over} {
		if has, err := checkins.Has(t.Context(), to, c.Name, c.At, now); err != nil || has != (c != over) {
			t.Errorf("the check-in of %s: %t, %v", c.Name, has, err)
		}
	}
	page, _, err := checkins.List(t.Context(), to, "", 1, now)
	if err != nil || len(page) != 1 || page[0] != all[0] {
		t.Errorf("%+v, %v; want %+v", page, err, all[0])
	}
	broken := strings.Replace(exported, `"key":"a/0/b"`, `"key":""`, 1)
	if _, err := transfer.Import(t.Context(), to, strings.NewReader(broken), transfer.ImportOptions{}); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("a check-in without a key: %v", err)
	}
}
