package audit_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/carillon-scheduler/carillon/audit"
)

// trail is one that a test reads.
type trail struct {
	*audit.Log
	t        *testing.T
	registry *prometheus.Registry
	log      bytes.Buffer
}

func newTrail(t *testing.T, w io.Writer) *trail {
	tr := &trail{t: t, registry: prometheus.NewRegistry()}
	tr.Log = audit.New(w, slog.New(slog.NewTextHandler(&tr.log, nil)), tr.registry)
	return tr
}

func openTrail(t *testing.T, path string) *trail {
	t.Helper()
	tr := &trail{t: t, registry: prometheus.NewRegistry()}
	var err error
	if tr.Log, err = audit.Open(path, slog.New(slog.NewTextHandler(&tr.log, nil)), tr.registry); err != nil {
		t.Fatal(err)
	}
	return tr
}

// counted answers how many lines were written and dropped.
func (tr *trail) counted() (written, dropped int) {
	tr.t.Helper()
	families, err := tr.registry.Gather()
	if err != nil {
		tr.t.Fatal(err)
	}
	of := func(m *dto.Metric, result string) int {
		if m.GetLabel()[0].GetValue() == result {
			return int(m.GetCounter().GetValue())
		}
		return 0
	}
	for _, m := range families[0].GetMetric() {
		written, dropped = written+of(m, "written"), dropped+of(m, "dropped")
	}
	return written, dropped
}

// line is an entry as readers of the trail see it.
type line struct {
	Time                                            time.Time
	RequestID, Principal, From, Action, Tenant, Key string
	Target, Query, Result, Version                  string
	Status, Changed, Failed, Count, Missing         int
}

func linesOf(t *testing.T, text []byte) (all []line) {
	t.Helper()
	for text := range strings.Lines(string(text)) {
		decoder := json.NewDecoder(strings.NewReader(text))
		decoder.DisallowUnknownFields()
		var l line
		if err := decoder.Decode(&l); err != nil || !strings.HasSuffix(text, "}\n") {
			t.Fatalf("%v: %q", err, text)
		}
		all = append(all, l)
	}
	return all
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// within waits until something is so.
func within(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it never comes: ", what)
		}
	}
}

func entry(key string) audit.Entry {
	return audit.Entry{Time: time.Date(2026, 3, 1, 12, 0, 0, 5e6, time.UTC), Action: "PUT /v1/jobs/:key", Key: key, Status: 201, Result: audit.ResultOf(201)}
}

// TestLines: each entry is one line of JSON with its fields, whatever characters its texts contain.
func TestLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.ndjson")
	tr := openTrail(t, path)
	tr.Write(entry("k"))
	tr.Write(audit.Entry{
		Time: time.Unix(1, 0).UTC(), RequestID: "r", Principal: "p", From: "127.0.0.1:1", Action: "a", Tenant: "t", Key: "k", Target: "x",
		Query: "prefix=a", Status: 503, Result: audit.ResultOf(503), Version: "v", Changed: 1, Failed: 2,
	})
	hostile := "\"}\n{\"principal\":\"admin\"}\r\x00\u2028\x7f\xff\\"
	tr.Write(audit.Entry{Time: time.Unix(1, 0), Principal: hostile, Key: hostile, Query: strings.Repeat("é", audit.MaxText), Status: 403, Result: audit.ResultOf(403)})
	if err := tr.Close(); err != nil {
		t.Fatal(err)
	}
	text := read(t, path)
	if want := `{"time":"2026-03-01T12:00:00.005Z","action":"PUT /v1/jobs/:key","key":"k","status":201,"result":"done"}` + "\n"; !strings.HasPrefix(string(text), want) {
		t.Errorf("the first line is not\n%s:\n%s", want, text)
	}
	lines := linesOf(t, text)
	if len(lines) != 3 {
		t.Fatalf("there are %d lines:\n%s", len(lines), text)
	}
	if want := (line{time.Unix(1, 0).UTC(), "r", "p", "127.0.0.1:1", "a", "t", "k", "x", "prefix=a", "failed", "v", 503, 1, 2, 0, 0}); lines[1] != want {
		t.Errorf("the second is %+v", lines[1])
	}
	if l := lines[2]; l.Key != strings.ToValidUTF8(hostile, "\uFFFD") || l.Result != "refused" || len(l.Query) > audit.MaxText {
		t.Errorf("the third is %+v", l)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("others may read it: %v, %v", info.Mode(), err)
	}
	if written, dropped := tr.counted(); written != 3 || dropped != 0 {
		t.Errorf("%d are counted as written, %d as dropped", written, dropped)
	}
}

// TestRotation: as logrotate does it, by create, by copytruncate, and by a move alone. Each line is in one of the files.
func TestRotation(t *testing.T) {
	dir := t.TempDir()
	path, old := filepath.Join(dir, "audit"), filepath.Join(dir, "audit.1")
	if err := os.WriteFile(path, []byte("{\"action\":\"before\"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tr := openTrail(t, path)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	holds := func(path string, keys ...string) {
		t.Helper()
		within(t, fmt.Sprint(path, " with ", keys), func() bool {
			text, err := os.ReadFile(path)
			return err == nil && bytes.Count(text, []byte("\n")) >= len(keys)
		})
		var got []string
		for _, l := range linesOf(t, read(t, path)) {
			got = append(got, l.Key)
		}
		if fmt.Sprint(got) != fmt.Sprint(keys) {
			t.Errorf("%s has %q, want %q", path, got, keys)
		}
	}
	tr.Write(entry("a"))
	holds(path, "", "a")

	must(os.Rename(path, old)) // create
	must(os.WriteFile(path, nil, 0o640))
	tr.Write(entry("b"))
	holds(path, "b")
	holds(old, "", "a")
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("its mode was changed to %v, %v", info.Mode(), err)
	}

	must(os.WriteFile(old, read(t, path), 0o600)) // copytruncate
	must(os.Truncate(path, 0))
	tr.Write(entry("c"))
	holds(path, "c")
	holds(old, "b")

	must(os.Rename(path, old)) // moved, and nothing made in its place
	tr.Write(entry("d"))
	holds(path, "d")
	holds(old, "c")

	must(os.Remove(old))
	must(os.Rename(path, filepath.Join(t.TempDir(), "elsewhere")))
	must(os.Remove(dir)) // no new file can be made: the moved one stays in use
	tr.Write(entry("e"))
	must(tr.Close())
	if written, dropped := tr.counted(); written != 5 || dropped != 0 {
		t.Errorf("%d are counted as written, %d as dropped", written, dropped)
	}
}

// gate is a writer that is blocked until it is opened, like a pipe without a reader.
type gate struct {
	opened  chan struct{}
	blocked chan struct{}
	once    sync.Once
	got     bytes.Buffer
}

func newGate() *gate { return &gate{opened: make(chan struct{}), blocked: make(chan struct{})} }

func (g *gate) Write(b []byte) (int, error) {
	g.once.Do(func() { close(g.blocked) })
	<-g.opened
	return g.got.Write(b)
}

// TestBlockedPipe: no request waits while the pipe is not read. Lines that do not fit are counted, and the trail
// reports their number at their place.
func TestBlockedPipe(t *testing.T) {
	g := newGate()
	tr := newTrail(t, g)
	tr.Write(entry("first"))
	<-g.blocked
	const many = 30_000 // more than the queue has room for
	for range many {
		tr.Write(entry("k"))
	}
	_, dropped := tr.counted()
	if dropped == 0 || dropped >= many {
		t.Fatalf("%d were dropped", dropped)
	}
	close(g.opened)
	if err := tr.Close(); err != nil {
		t.Fatal(err)
	}
	lines, missing := linesOf(t, g.got.Bytes()), 0
	for _, l := range lines {
		missing += l.Missing
	}
	written, _ := tr.counted()
	if missing != dropped || len(lines) != 1+many-dropped+1 || written != len(lines) || lines[1].Missing != dropped {
		t.Errorf("%d lines, of which %d are counted, tell of %d missing; %d were dropped", len(lines), written, missing, dropped)
	}
}

// TestRefusalsLeaveRoom: any client that reaches the port can cause refusals, which must not displace changes.
func TestRefusalsLeaveRoom(t *testing.T) {
	g := newGate()
	tr := newTrail(t, g)
	tr.Write(entry("first"))
	<-g.blocked
	refusal := entry("k")
	refusal.Status, refusal.Result = 401, audit.ResultOf(401)
	refusal.Principal = "somebody" // else they are counted together
	for range 30_000 {             // more than the queue has room for
		tr.Write(refusal)
	}
	for range 1000 {
		tr.Write(entry("change"))
	}
	close(g.opened)
	if err := tr.Close(); err != nil {
		t.Fatal(err)
	}
	changes, refusals := 0, 0
	for _, l := range linesOf(t, g.got.Bytes()) {
		if l.Key == "change" {
			changes++
		} else if l.Status == 401 {
			refusals++
		}
	}
	if changes != 1000 || refusals == 0 {
		t.Errorf("the trail has %d of 1000 changes, and %d refusals", changes, refusals)
	}
}

// TestRefusalsOfUnknownCallers: of one address and status there are two lines in a second, which together stand for all.
func TestRefusalsOfUnknownCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got lockedBuffer
		tr := newTrail(t, &got)
		write := func(n, status int, from, principal string) {
			for i := range n {
				tr.Write(audit.Entry{Time: time.Now().UTC(), Action: fmt.Sprint("GET ", i), From: from, Principal: principal, Status: status, Result: audit.ResultOf(status)})
			}
		}
		expect := func(want ...string) {
			t.Helper()
			time.Sleep(time.Second)
			synctest.Wait()
			var all []string
			for _, l := range linesOf(t, got.take()) {
				all = append(all, fmt.Sprintf("%d %s %s %d", l.Status, l.From, l.Action, l.Count))
			}
			if slices.Sort(all); !slices.Equal(all, want) {
				t.Errorf("the trail has %q, want %q", all, want)
			}
		}
		write(1, 401, "a:1", "")
		expect("401 a:1 GET 0 0")
		write(2, 401, "a:1", "")
		expect("401 a:1 GET 0 0", "401 a:1 GET 1 0")
		write(5, 401, "a:1", "")
		write(5, 401, "a:2", "") // the same host
		write(3, 429, "a:2", "")
		write(1, 401, "[::1]:1", "")
		write(2, 403, "a:1", "somebody") // a caller that is known, which ends the count
		write(2, 503, "a:1", "")         // which may have been made
		expect("401 [::1]:1 GET 0 0", "401 a:1 GET 0 0", "401 a:1 GET 1 9", "403 a:1 GET 0 0", "403 a:1 GET 1 0", "429 a:2 GET 0 0", "429 a:2 GET 1 2",
			"503 a:1 GET 0 0", "503 a:1 GET 1 0")
		for i := range 3000 {
			write(1, 401, fmt.Sprintf("host%d:1", i), "")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		lines := linesOf(t, got.take())
		if last := lines[len(lines)-1]; len(lines) != 1001 || last.From != "" || last.Count != 2000 {
			t.Errorf("of 3,000 addresses there are %d lines, at last %+v", len(lines), last)
		}
		write(3, 401, "a:1", "") // at the end
		if err := tr.Close(); err != nil {
			t.Fatal(err)
		}
		expect("401 a:1 GET 0 0", "401 a:1 GET 1 2")
	})
}

// lockedBuffer is written to and read by several goroutines.
type lockedBuffer struct {
	mu  sync.Mutex
	got bytes.Buffer
}

func (b *lockedBuffer) Write(text []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.got.Write(text)
}

// take returns the text that was written since the last call.
func (b *lockedBuffer) take() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	text := bytes.Clone(b.got.Bytes())
	b.got.Reset()
	return text
}

// TestCloseOfBlockedPipe: the service ends all the same, and says that lines are lost.
func TestCloseOfBlockedPipe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		tr := newTrail(t, g)
		tr.Write(entry("k"))
		start := time.Now()
		if err := tr.Close(); err == nil || !strings.Contains(err.Error(), "are lost") {
			t.Errorf("it says %v", err)
		}
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("it took %v", took)
		}
		tr.Write(entry("late")) // which changes nothing
		close(g.opened)
	})
}

// disk is a writer with room for a number of bytes.
type disk struct {
	room int
	got  bytes.Buffer
}

func (d *disk) Write(b []byte) (int, error) {
	n := min(len(b), d.room)
	d.got.Write(b[:n])
	if d.room -= n; n < len(b) {
		return n, errors.New("no space left on device")
	}
	return n, nil
}

// TestFullDisk: lines are lost while there is no room, and reported when there is room again. A torn line spoils no
// other. The log has the failure once a minute.
func TestFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{room: 150} // of each line about 100
		tr := newTrail(t, d)
		for range 5 {
			tr.Write(entry("k"))
			synctest.Wait()
		}
		time.Sleep(2 * time.Minute)
		tr.Write(entry("k"))
		synctest.Wait()
		d.room = 1 << 20
		tr.Write(entry("last"))
		if err := tr.Close(); err != nil {
			t.Fatal(err)
		}
		texts := strings.Split(strings.TrimSuffix(d.got.String(), "\n"), "\n")
		if len(texts) != 4 || !strings.HasPrefix(texts[0], `{"time"`) || !strings.HasPrefix(texts[0], texts[1]) {
			t.Fatalf("it has\n%s", &d.got)
		}
		lines := linesOf(t, []byte(texts[2]+"\n"+texts[3]+"\n"))
		if lines[0].Missing != 5 || lines[1].Key != "last" {
			t.Errorf("it goes on with %+v", lines)
		}
		if written, dropped := tr.counted(); written != 3 || dropped != 5 {
			t.Errorf("%d are counted as written, %d as dropped", written, dropped)
		}
		if n := strings.Count(tr.log.String(), "no space left"); n != 2 {
			t.Errorf("the log was told %d times: %s", n, &tr.log)
		}
	})
}

// TestDevFull is a full disk of the system's.
func TestDevFull(t *testing.T) {
	tr := openTrail(t, "/dev/full")
	tr.Write(entry("k"))
	if err := tr.Close(); err != nil {
		t.Error(err)
	}
	if written, dropped := tr.counted(); written != 0 || dropped != 1 || !strings.Contains(tr.log.String(), "no space left on device") {
		t.Errorf("%d are counted as written, %d as dropped: %s", written, dropped, &tr.log)
	}
}

func TestTargets(t *testing.T) {
	off, err := audit.Open("", slog.Default(), nil)
	if err != nil || off != nil {
		t.Errorf("without a target there is %v, %v", off, err)
	}
	off.Write(entry("k"))
	if err := off.Close(); err != nil {
		t.Error(err)
	}
	for target, want := range map[string]string{
		t.TempDir():       "is a directory",
		"/nowhere/at/all": "no such file or directory",
	} {
		if _, err := audit.Open(target, slog.Default(), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", target, err, want)
		}
	}
}

func BenchmarkWrite(b *testing.B) {
	l := audit.New(io.Discard, slog.Default(), nil)
	e := entry("some-key-of-a-job-01KBX2Q7ZJ7Q1H8Z5V0T9W3M4N")
	e.RequestID, e.Principal, e.From, e.Tenant = "01KBX2Q7ZJ7Q1H8Z5V0T9W3M4N", "4fzzzxjylrx", "127.0.0.1:54321", "default"
	b.ReportAllocs()
	for b.Loop() {
		l.Write(e)
	}
	if err := l.Close(); err != nil {
		b.Error(err)
	}
}
