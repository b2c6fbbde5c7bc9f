package transfer_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
	"github.com/carillon-scheduler/carillon/store/transfer"
)

// Any records are imported as they were exported.
func TestAnyRecords(t *testing.T) {
	seeds := uint64(100)
	switch {
	case os.Getenv("CARILLON_TEST_LONG") != "":
		seeds = 300
	case testing.Short():
		seeds = 20 // for the race detector
	}
	for seed := range seeds {
		g := &random{rand.New(rand.NewPCG(seed, 0))}
		from := &memory{page: 1 + g.IntN(20)}
		for i := range g.IntN(40) {
			from.records = append(from.records, g.record(i))
		}
		from.tenants = g.tenants()
		to := &memory{}
		whole := export(t, from, transfer.ExportOptions{Now: g.time(), Source: g.text()})
		imported, err := transfer.Import(t.Context(), to, strings.NewReader(whole), transfer.ImportOptions{})
		if err != nil || imported.Total() != len(from.records)+len(from.tenants) {
			t.Fatalf("seed %d: imported %+v of %d and %d, %v", seed, imported, len(from.records), len(from.tenants), err)
		}
		expectSame(t, fmt.Sprint("seed ", seed), to, from)
		if t.Failed() {
			return
		}
	}
}

// A job with instants in the last year that RFC 3339 can express may expire later than that. Its expiry is kept
// approximately.
func TestLatestTimes(t *testing.T) {
	from := some(1)
	from.records[0].Job.ExpiresAt = time.Date(10000, 1, 1, 12, 0, 0, 0, time.UTC)
	to := &memory{}
	if _, err := transfer.Import(t.Context(), to, strings.NewReader(export(t, from, transfer.ExportOptions{Now: epoch})), transfer.ImportOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := to.records[0].Job.ExpiresAt; job.FormatTime(got) != "9999-12-31T23:59:59.999Z" {
		t.Errorf("it expires at %s", got)
	}
}

// An error's text that is not valid UTF-8 is mended, so that the rest of the record is not lost.
func TestBrokenText(t *testing.T) {
	from := some(1)
	from.records[1].Occurrence.LastError = "a\xffb"
	to := &memory{}
	if _, err := transfer.Import(t.Context(), to, strings.NewReader(export(t, from, transfer.ExportOptions{Now: epoch})), transfer.ImportOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := to.records[1].Occurrence.LastError; got != "a\ufffdb" {
		t.Errorf("the error is %q", got)
	}
}

// Imported records can be exported again, and importing that export gives the same records.
func FuzzImport(f *testing.F) {
	whole := func(tenants []job.Tenant, records ...store.Document) []byte {
		var b bytes.Buffer
		if _, err := transfer.Export(f.Context(), &memory{tenants: tenants, records: records, page: 10}, &b, transfer.ExportOptions{Now: epoch}); err != nil {
			f.Fatal(err)
		}
		return b.Bytes()
	}
	f.Add(whole(some(2).tenants, some(2).records...))
	for seed := range uint64(20) {
		g := &random{rand.New(rand.NewPCG(seed, 1))}
		f.Add(whole(g.tenants(), g.record(0), g.record(1)))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = transfer.Find(bytes.NewReader(b)) // it does not panic
		first := &memory{page: 10}
		if _, err := transfer.Import(t.Context(), first, bytes.NewReader(b), transfer.ImportOptions{}); err != nil && !errors.Is(err, transfer.ErrIncomplete) {
			return
		}
		second := &memory{}
		again := export(t, first, transfer.ExportOptions{Now: epoch})
		if _, err := transfer.Import(t.Context(), second, strings.NewReader(again), transfer.ImportOptions{}); err != nil {
			t.Fatalf("%v\n%s", err, again)
		}
		expectSame(t, "imported again", second, first)
	})
}

// random makes records.
type random struct{ *rand.Rand }

func (g *random) maybe() bool { return g.IntN(2) == 0 }

func (g *random) time() time.Time {
	return time.UnixMilli(g.Int64N(time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC).UnixMilli())).UTC()
}

// some returns a time, or none.
func (g *random) some() time.Time {
	if g.maybe() {
		return time.Time{}
	}
	return g.time()
}

// text returns text without control characters.
func (g *random) text() string {
	parts := []string{"a", " ", `"`, `\`, "/", "<é>", "🔔", "\u2028", "%2F", "{", "'", "\ufffd", "\\u0000", "null"}
	var b strings.Builder
	for range 1 + g.IntN(8) {
		b.WriteString(parts[g.IntN(len(parts))])
	}
	return b.String()
}

func (g *random) callback() job.Callback {
	data := [][]byte{
		{}, []byte("1e2"), []byte("\"\\u00e9\u2028\""), []byte("{\r\n\t\"a\" : [1.0, 12345678901234567890 ] , \"a\":null}\n"),
		[]byte(g.text()), {0, 1, 2, 0x7f}, {0xff, 0xfe, 0}, bytes.Repeat([]byte("\"x"), 5000),
	}
	return job.Callback{Type: g.text(), Data: data[g.IntN(len(data))]}
}

func (g *random) options() (o job.Options) {
	if g.maybe() {
		o.Retry = job.Retry{MaxAttempts: g.IntN(9), Initial: job.Duration(g.Int64N(1e15)), Factor: g.Float64() * 100, Max: job.Duration(g.Int64N(1e15))}
	}
	if g.maybe() {
		o.Deadline, o.CatchUp = job.Duration(g.Int64N(1e15)), job.CatchUpAll
	}
	if g.maybe() {
		end := g.time().UnixMilli()
		o.Recurrence = &job.Recurrence{Crontab: "@every 1s", Timezone: "Europe/Paris", Anchor: g.time().UnixMilli(), EndAt: &end}
	}
	if g.maybe() {
		o.Payloads = map[int]jsontext.Value{g.IntN(5): jsontext.Value(`{"n":[1,"<é>",1e2]}`), 7: jsontext.Value(`null`)}
	}
	if g.maybe() {
		o.Trace = job.Trace(g.text())
	}
	return o
}

// schedule returns a schedule as submitted by a client, begun at some time.
func (g *random) schedule() job.Schedule {
	kinds := []string{
		`"schedules":["2030-01-01T12:00:00Z","1970-01-01T00:00:00Z","9999-12-31T23:59:59.999Z"]`,
		`"delay":"1w"`,
		`"crontab":"*/7 9 * * mon-fri","timezone":"Asia/Kathmandu","startAt":"1970-01-01T00:00:00Z","endAt":"9999-01-01T00:00:00Z"`,
		`"crontab":"@every 1h30m"`, `"crontab":"@at 0"`,
		`"steps":[{"type":"job"}]`,
		`"steps":[{"type":"wait_certain_period","delay_period":1.5,"delay_unit":"day"},{"type":"wait_weekday","weekdays":["mon","friday"]},
			{"type":"job","metadata":{"n": [1,"<é>\u2028",1e2]}},{"type":"wait_specific_date","date":"2030-01-01T12:00:00+02:00"},{"type":"job"}],
			"timezone":"Europe/Paris","subscribers":["a",7,{"id":7, "name":"<x>"},"b \"é"]`,
		`"steps":[{"type":"job","metadata":null}],"subscribers":3`,
	}
	draft, err := job.Decode([]byte(`{"key":"k","callback":{"type":"http","data":1},` + kinds[g.IntN(len(kinds))] + `}`))
	if err != nil {
		panic(err)
	}
	j, err := draft.Job("t", job.Limits{Instants: 1000, Payload: 1000})
	if err != nil {
		panic(err)
	}
	if _, err := j.Begin(epoch, job.PastFire, job.Expansion{}); err != nil {
		panic(err)
	}
	// A store would return this form.
	if j.Schedule, err = job.DecodeSchedule(j.Schedule.Encode()); err != nil {
		panic(err)
	}
	return j.Schedule
}

// tenants returns some tenants, by name.
func (g *random) tenants() (all []job.Tenant) {
	priorities := []job.Priority{job.PriorityDefault, job.PriorityHigh, job.PriorityNormal, job.PriorityLow}
	for i := range g.IntN(4) {
		t := job.Tenant{Name: fmt.Sprint(i, "_A.-"), FirstSeen: g.time()}
		if g.maybe() {
			t.Settings = job.TenantSettings{Weight: g.Float64() * 1000, Priority: priorities[g.IntN(4)], MaxInFlight: g.IntN(9), Paused: g.maybe()}
		}
		all = append(all, t)
	}
	return all
}

func (g *random) record(i int) store.Document {
	name := job.Name{Tenant: g.text(), Key: fmt.Sprint(i, g.text())}
	if g.maybe() {
		return store.Document{Job: &job.Job{
			Name: name, Revision: job.NewRevision(epoch), Version: job.Revision(g.text()), Callback: g.callback(), Options: g.options(),
			Schedule: g.schedule(), CreatedAt: g.time(), UpdatedAt: g.time(), ExpiresAt: g.time(), PausedAt: g.some(),
			Cursor: g.some(), ExpandAt: g.some(), Missed: g.IntN(3), Planned: g.IntN(9), Failed: g.IntN(3),
			Trouble: []job.Trouble{
				{}, {Missed: true, Instant: time.UnixMilli(1).UTC()}, {Instant: time.UnixMilli(1e12).UTC(), At: time.UnixMilli(2e12).UTC(), Error: "é\x00"},
			}[g.IntN(3)],
		}}
	}
	o := &job.Occurrence{
		Name: name, Revision: job.NewRevision(epoch), Position: g.IntN(3), Timestamp: g.time(), DueAt: g.time(), ScheduledAt: g.some(),
		Attempt: g.IntN(4),
	}
	o.ID = job.OccurrenceID(name, o.Revision, o.Timestamp, i, "")
	if g.maybe() {
		o.Token, o.LastError = job.NewToken(), "it failed:\n\x00\t"+g.text()
	}
	if g.maybe() {
		o.Part = &job.Part{Step: g.IntN(3)}
		if g.maybe() {
			o.Part.Subscriber = g.text()
		}
	}
	if g.maybe() {
		o.Revision, o.Own = "", &job.Target{Callback: g.callback(), Options: g.options()}
		if g.maybe() {
			o.DueAt, o.FailedAt = time.Time{}, g.time()
		}
	}
	return store.Document{Occurrence: o}
}
