package job_test

import (
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

func TestCrontabsBegin(t *testing.T) {
	now := start.Add(900 * time.Microsecond) // instants are whole milliseconds: start itself is not past
	for _, test := range []struct {
		name, members string
		want          string // the first occurrences
		expandAt      string // empty if there are no more
		refused       string // the error, instead
	}{
		{"fields", `"crontab":"0 * * * *"`, "2030-01-01T13:00:00.000Z", "2030-01-01T13:00:00.000Z", ""},
		{"those of the horizon", `"crontab":"*/50 * * * * *"`, "2030-01-01T12:00:50.000Z 2030-01-01T12:01:00.000Z 2030-01-01T12:01:50.000Z 2030-01-01T12:02:00.000Z",
			"2030-01-01T12:01:20.000Z", ""},
		{"by a zone", `"crontab":"30 9 * * *","timezone":"Asia/Kathmandu"`, "2030-01-02T03:45:00.000Z", "2030-01-02T03:45:00.000Z", ""},
		{"@every, from the submission", `"crontab":"@every 40s"`, "2030-01-01T12:00:40.000Z 2030-01-01T12:01:20.000Z 2030-01-01T12:02:00.000Z", "2030-01-01T12:01:10.000Z", ""},
		{"from a start to come", `"crontab":"@every 1m","startAt":"2030-01-01T13:00:00.5Z"`, "2030-01-01T13:00:00.500Z", "2030-01-01T12:59:30.500Z", ""},
		{"from a start to come, fields", `"crontab":"0 * * * *","startAt":"2030-06-01T15:00:00+02:00"`, "2030-06-01T13:00:00.000Z", "2030-06-01T13:00:00.000Z", ""},
		{"from within a second", `"crontab":"* * * * * *","startAt":"2030-06-01T13:00:00.001Z"`, "2030-06-01T13:00:01.000Z", "2030-06-01T12:58:32.000Z", ""},
		{"from just now", `"crontab":"@every 1h","startAt":"2030-01-01T12:00:00Z"`, "2030-01-01T12:00:00.000Z", "2030-01-01T12:00:00.000Z", ""},
		{"from just now, and never late", `"crontab":"@every 1h","startAt":"2030-01-01T12:00:00Z","catchUp":"none"`, "2030-01-01T12:00:00.000Z", "2030-01-01T12:00:00.000Z", ""},
		{"from a past start", `"crontab":"@every 7m","startAt":"2030-01-01T11:58:00Z"`, "2030-01-01T12:05:00.000Z", "2030-01-01T12:05:00.000Z", ""},
		{"from a past start, on the grid now", `"crontab":"@every 7m","startAt":"2030-01-01T11:53:00Z"`, "2030-01-01T12:07:00.000Z", "2030-01-01T12:07:00.000Z", ""},
		{"from the epoch", `"crontab":"@every 7s","startAt":"1970-01-01T00:00:00Z","endAt":"2030-01-01T12:00:08Z"`, "2030-01-01T12:00:02.000Z", "", ""},
		{"none is made up for", `"crontab":"@daily","startAt":"2029-01-01T00:00:00Z","catchUp":"all"`, "2030-01-02T00:00:00.000Z", "2030-01-02T00:00:00.000Z", ""},
		{"the end counts", `"crontab":"0 * * * *","endAt":"2030-01-01T13:00:00Z"`, "2030-01-01T13:00:00.000Z", "", ""},
		{"after the end", `"crontab":"0 * * * *","endAt":"2030-01-01T13:59:59.999Z"`, "2030-01-01T13:00:00.000Z", "", ""},
		{"the start is the end", `"crontab":"@every 1h","startAt":"2030-01-02T00:00:00Z","endAt":"2030-01-02T00:00:00Z"`, "2030-01-02T00:00:00.000Z", "", ""},
		{"the end of the year 9999", `"crontab":"@every 1h","startAt":"9999-12-31T23:59:59.999Z"`, "9999-12-31T23:59:59.999Z", "", ""},

		{"it ends before", `"crontab":"0 * * * *","endAt":"2030-01-01T12:59:59.999Z"`, "", "", "/endAt: lies before the crontab's first instant, which is 2030-01-01T13:00:00.000Z"},
		{"it has ended", `"crontab":"* * * * *","endAt":"2029-01-01T00:00:00Z"`, "", "", "/endAt: lies before the crontab's first instant, which is 2030-01-01T12:01:00.000Z"},
		{"it ends before, in its zone", `"crontab":"0 9 * * *","timezone":"Europe/Paris","endAt":"2030-01-02T07:59:00Z"`, "", "",
			"/endAt: lies before the crontab's first instant, which is 2030-01-02T08:00:00.000Z"},
		{"always in a gap", `"crontab":"*/40 2 25-31 3 */7","timezone":"Europe/Paris"`, "", "", "/crontab: never fires: all of its times are skipped when clocks change"},
		{"always in a gap, with an end", `"crontab":"*/40 2 25-31 3 */7","timezone":"Europe/Paris","endAt":"2040-01-01T00:00:00Z"`, "", "", "/crontab: never fires"},
		{"beyond the year 9999", `"crontab":"* * * * *","startAt":"9999-12-31T23:59:01Z"`, "", "", "/startAt: lies after the crontab's last instant"},
	} {
		t.Run(test.name, func(t *testing.T) {
			j := parsed(t, body(test.members))
			b, err := j.Begin(now, job.PastFire, expansion)
			if test.refused != "" {
				if err == nil || !strings.HasPrefix(err.Error(), test.refused) {
					t.Fatalf("%v, want %s", err, test.refused)
				}
				return
			}
			if got := instantsOf(b.Occurrences); err != nil || got != test.want || b.Skipped+len(b.Missed)+j.Missed != 0 {
				t.Fatalf("%s, %v, want %s", got, err, test.want)
			}
			if last := b.Occurrences[len(b.Occurrences)-1].Timestamp; !j.Cursor.Equal(last) && !j.ExpandAt.IsZero() || j.Cursor.IsZero() != j.ExpandAt.IsZero() {
				t.Errorf("the cursor is %v, the last instant %v, to be expanded at %v", j.Cursor, last, j.ExpandAt)
			}
			if got := job.FormatTime(j.ExpandAt); got != test.expandAt && (!j.ExpandAt.IsZero() || test.expandAt != "") {
				t.Errorf("to be expanded at %s, want %q", got, test.expandAt)
			}
		})
	}
}

// An @at is an instant: if it is past at the submission, past and deadline apply.
func TestAtBegins(t *testing.T) {
	const past, due = `"crontab":"@at 1893499199"`, `"crontab":"@at 1893499200"`
	for _, test := range []struct {
		members         string
		past            job.Past
		fire            int
		skipped, missed int
		refused         string
	}{
		{past, job.PastFire, 1, 0, 0, ""}, {past, job.PastSkip, 0, 1, 0, ""}, {past, job.PastReject, 0, 0, 0, "/crontab"},
		{due, job.PastFire, 1, 0, 0, ""}, {due, job.PastSkip, 1, 0, 0, ""}, {due, job.PastReject, 1, 0, 0, ""},
		{past + `,"deadline":"999ms"`, job.PastFire, 0, 0, 1, ""}, {past + `,"deadline":"1s"`, job.PastFire, 1, 0, 0, ""},
	} {
		j := parsed(t, body(test.members+`,"startAt":"2030-01-01T11:59:59Z","endAt":"2030-01-01T12:00:00Z"`))
		b, err := j.Begin(start.Add(time.Microsecond), test.past, expansion)
		if test.refused != "" {
			if got := pointers(err); got != test.refused {
				t.Errorf("%+v: %v", test, err)
			}
			continue
		}
		if err != nil || len(b.Occurrences) != test.fire || b.Skipped != test.skipped || len(b.Missed) != test.missed {
			t.Errorf("%+v: %+v, %v", test, b, err)
		}
		if !j.Cursor.IsZero() || !j.ExpandAt.IsZero() || j.Options.Recurrence != nil {
			t.Errorf("%+v: it is to be expanded: %+v", test, j)
		}
	}
}

func TestOnlyCrontabsAreExpanded(t *testing.T) {
	for name, text := range allKinds() {
		j, _ := begun(t, text, start)
		recurs := strings.Contains(text, `"crontab"`) && !strings.Contains(text, "@at")
		if j.Schedule.Recurs() != recurs || !j.Cursor.IsZero() != recurs || !j.ExpandAt.IsZero() != recurs || (j.Options.Recurrence != nil) != recurs {
			t.Errorf("%s: recurs %t, cursor %v, to be expanded at %v, %v", name, j.Schedule.Recurs(), j.Cursor, j.ExpandAt, j.Options.Recurrence)
		}
	}
}

func TestDelaysBegin(t *testing.T) {
	for delay, want := range map[string]string{
		"0s": "2030-01-01T12:00:00.000Z", "1ms": "2030-01-01T12:00:00.001Z", "1us": "2030-01-01T12:00:00.001Z", "1d": "2030-01-02T12:00:00.000Z",
		"5200w": "2129-08-30T12:00:00.000Z",
	} {
		j := parsed(t, body(`"delay":"`+delay+`"`))
		b, err := j.Begin(start.Add(900*time.Microsecond), job.PastReject, expansion)
		if got := instantsOf(b.Occurrences); err != nil || got != want || instantsOf(b.Occurrences) != job.FormatTime(j.Schedule.Instants[0]) {
			t.Errorf("%s: %s, %v, want %s", delay, got, err, want)
		}
	}
}

// A crontab ticks at 12:10, 12:20 and so on. The first tick is in the store when all replicas stop, until 13:05 or so.
func TestExpandAfterAnOutage(t *testing.T) {
	for _, test := range []struct {
		name, members, now string
		limit              int
		want               string // wall times
		missed             int
	}{
		{"latest, by default", ``, "13:05:00", 10, "13:00 13:10", 4},
		{"latest", `,"catchUp":"latest"`, "13:05:00", 10, "13:00 13:10", 4},
		{"latest, whatever the limit", `,"catchUp":"latest"`, "13:05:00", 0, "13:00 13:10", 4},
		{"all", `,"catchUp":"all"`, "13:05:00", 10, "12:20 12:30 12:40 12:50 13:00 13:10", 0},
		{"as many as the limit", `,"catchUp":"all"`, "13:05:00", 5, "12:20 12:30 12:40 12:50 13:00 13:10", 0},
		{"more than the limit", `,"catchUp":"all"`, "13:05:00", 2, "12:50 13:00 13:10", 3},
		{"none", `,"catchUp":"none"`, "13:05:00", 10, "13:10", 5},
		{"at a tick", ``, "13:00:00", 10, "13:00 13:10", 4},
		{"just before a tick", ``, "12:59:59.999", 10, "12:50 13:00", 3},
		{"within a deadline", `,"catchUp":"all","deadline":"15m"`, "13:05:00", 10, "12:50 13:00 13:10", 3},
		{"just within", `,"deadline":"5m"`, "13:05:00", 10, "13:00 13:10", 4},
		{"just not within", `,"deadline":"5m"`, "13:05:00.001", 10, "13:10", 5},
		{"a deadline and a limit", `,"catchUp":"all","deadline":"30m"`, "13:05:00", 2, "12:50 13:00 13:10", 3},
		{"no tick passed", `,"catchUp":"none"`, "12:19:59.999", 10, "12:20", 0},
		{"early", `,"catchUp":"none"`, "12:01:00", 10, "", 0},
		{"ended meanwhile, latest", `,"endAt":"2030-01-01T12:45:00Z"`, "13:05:00", 10, "12:40", 2},
		{"ended meanwhile, all", `,"catchUp":"all","endAt":"2030-01-01T12:40:00Z"`, "13:05:00", 10, "12:20 12:30 12:40", 0},
		{"ended meanwhile, none", `,"catchUp":"none","endAt":"2030-01-01T12:45:00Z"`, "13:05:00", 10, "", 3},
		{"ended, overdue", `,"deadline":"1m","endAt":"2030-01-01T12:45:00Z"`, "13:05:00", 10, "", 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			j, _ := begun(t, body(`"crontab":"@every 10m"`+test.members), start)
			j.Schedule = restored(t, j.Schedule)
			e := expansion
			e.CatchUpLimit = test.limit
			now := moment(t, "2030-01-01T"+test.now+"Z")
			x, err := j.Expand(now, e)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, o := range x.Occurrences {
				got = append(got, o.Timestamp.Format("15:04"))
				if o.ID != job.OccurrenceID(j.Name, j.Revision, o.Timestamp, 0, "") || o.Revision != j.Revision || o.Name != j.Name || !o.DueAt.Equal(o.Timestamp) || o.Part != nil {
					t.Errorf("%+v", o)
				}
			}
			if strings.Join(got, " ") != test.want || x.Missed != test.missed {
				t.Errorf("%v and %d missed, want %s and %d", got, x.Missed, test.want, test.missed)
			}
			// Expanding again adds nothing.
			j.Cursor = x.Cursor
			again, err := j.Expand(now, e)
			if ended := x.ExpandAt.IsZero(); err != nil || again.Missed != 0 || ended != strings.Contains(test.members, "endAt") || ended && len(again.Occurrences) > 0 ||
				len(again.Occurrences) > 0 && !again.Occurrences[0].Timestamp.After(j.Cursor) {
				t.Errorf("then to be expanded at %v: %+v, %v", x.ExpandAt, again, err)
			}
		})
	}
}

// Ten years of a tick a second are caught up with as quickly as an hour.
func TestExpandAfterTenYears(t *testing.T) {
	passed := int(start.AddDate(10, 0, 0).Sub(start)/time.Second) - 120 // the others were expanded at the beginning
	for _, test := range []struct {
		catchUp             string
		limit, kept, missed int
	}{
		{"latest", 1000, 1, passed - 1}, {"none", 1000, 0, passed}, {"all", 1000, 1000, passed - 1000}, {"all", 200_000, 200_000, passed - 200_000},
	} {
		j, _ := begun(t, body(`"crontab":"@every 1s","catchUp":"`+test.catchUp+`"`), start)
		now := start.AddDate(10, 0, 0)
		x, err := j.Expand(now, job.Expansion{Horizon: time.Minute, CatchUpLimit: test.limit})
		if err != nil || len(x.Occurrences) != test.kept+60 || x.Missed != test.missed || !x.Cursor.Equal(now.Add(time.Minute)) {
			t.Errorf("%+v: %d occurrences and %d missed, cursor %v, %v", test, len(x.Occurrences), x.Missed, x.Cursor, err)
			continue
		}
		if first := x.Occurrences[0].Timestamp; !first.Equal(now.Add(time.Duration(1-test.kept) * time.Second)) {
			t.Errorf("%+v: the first is %v", test, first)
		}
	}
}

// Missed ticks of a crontab with fields are counted one by one, up to a bound; more may be kept than counted.
func TestExpandCountsNoMoreThan(t *testing.T) {
	const counted = 100_000
	for _, test := range []struct{ limit, missed int }{{1000, counted - 1000}, {2 * counted, 0}} {
		j, _ := begun(t, body(`"crontab":"* * * * * *","catchUp":"all"`), start)
		x, err := j.Expand(start.AddDate(0, 1, 0), job.Expansion{Horizon: time.Minute, CatchUpLimit: test.limit})
		if err != nil || x.Missed != test.missed {
			t.Errorf("%+v: %d missed, %v", test, x.Missed, err)
		}
	}
}

// A horizon with very many instants is filled part by part; each part is due at once.
func TestExpandBitByBit(t *testing.T) {
	e := job.Expansion{Horizon: time.Hour, CatchUpLimit: 1000}
	j := parsed(t, body(`"crontab":"@every 1s"`))
	b, err := j.Begin(start, job.PastFire, e)
	if err != nil {
		t.Fatal(err)
	}
	all := b.Occurrences
	// The third part reaches the lead, so the fourth has time.
	for i, now := range []time.Time{start, start, start.Add(3001*time.Second - 45*time.Minute)} {
		if len(all) != 1000*(i+1) || j.ExpandAt.After(now) {
			t.Fatalf("after %d occurrences it is to be expanded at %v", len(all), j.ExpandAt)
		}
		x, err := j.Expand(now, e)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, x.Occurrences...)
		j.Cursor, j.ExpandAt = x.Cursor, x.ExpandAt
	}
	if want := start.Add(3902*time.Second - 45*time.Minute); len(all) != 3901 || !j.ExpandAt.Equal(want) {
		t.Errorf("%d occurrences, then to be expanded at %v", len(all), j.ExpandAt)
	}
	for i, o := range all {
		if want := start.Add(time.Duration(i+1) * time.Second); !o.Timestamp.Equal(want) {
			t.Fatalf("occurrence %d is at %v", i, o.Timestamp)
		}
	}
}

// A replica whose machine does not know the zone can't expand, and says so.
func TestExpandInAnUnknownZone(t *testing.T) {
	j, _ := begun(t, body(`"crontab":"0 9 * * *","timezone":"Europe/Paris"`), start)
	j.Schedule.Zone, j.Options.Recurrence.Timezone = "Europe/Atlantis", "Europe/Atlantis"
	if x, err := j.Expand(start.AddDate(0, 0, 7), expansion); err == nil || !strings.Contains(err.Error(), "Europe/Atlantis") {
		t.Errorf("it expands to %+v, %v", x, err)
	}
	if _, err := j.Schedule.Preview(start, 1); err == nil {
		t.Error("it is previewed")
	}
	if from, ok, err := j.Options.CatchUpFrom(start, 1); err == nil {
		t.Errorf("it catches up from %v, %v", from, ok)
	}
	if _, err := j.Begin(start, job.PastFire, expansion); pointers(err) != "/timezone" {
		t.Errorf("it begins: %v", err)
	}
	j.Options.Recurrence = &job.Recurrence{Crontab: "0 9 * *"}
	if from, ok, err := j.Options.CatchUpFrom(start, 1); err == nil {
		t.Errorf("half a crontab catches up from %v, %v", from, ok)
	}
}

func TestCatchUpFrom(t *testing.T) {
	for _, test := range []struct {
		members, now string
		limit        int
		want         string // empty for none
	}{
		{`"crontab":"@every 10m"`, "2030-01-01T13:05:00Z", 10, "2030-01-01T13:00:00.000Z"},
		{`"crontab":"@every 10m"`, "2030-01-01T13:00:00Z", 10, "2030-01-01T13:00:00.000Z"},
		{`"crontab":"@every 10m","catchUp":"all"`, "2030-01-01T13:05:00Z", 3, "2030-01-01T12:40:00.000Z"},
		{`"crontab":"@every 10m","catchUp":"none"`, "2030-01-01T13:05:00Z", 3, ""},
		{`"crontab":"@every 10m","endAt":"2030-01-01T12:45:00Z"`, "2030-01-01T13:05:00Z", 3, "2030-01-01T12:40:00.000Z"},
		{`"crontab":"@every 7s","startAt":"1970-01-01T00:00:00Z"`, "2030-01-01T12:00:05Z", 3, "2030-01-01T12:00:02.000Z"},
		{`"crontab":"30 2 * * *","timezone":"Europe/Paris"`, "2030-03-31T12:00:00Z", 3, "2030-03-31T01:00:00.000Z"},
		{`"crontab":"@yearly","catchUp":"all","startAt":"2031-01-01T00:00:00Z"`, "2033-06-01T00:00:00Z", 3, "2031-01-01T00:00:00.000Z"},
		{`"crontab":"@yearly","catchUp":"all","startAt":"2031-01-01T00:00:00Z"`, "2030-06-01T00:00:00Z", 3, "2030-06-01T00:00:00.000Z"},
		// Ticks after 12:50 may still be moved ahead.
		{`"crontab":"@every 10m","spread":"15m"`, "2030-01-01T13:05:00Z", 10, "2030-01-01T12:50:00.000Z"},
		{`"crontab":"@every 10m","spread":"15m","catchUp":"all"`, "2030-01-01T13:05:00Z", 3, "2030-01-01T12:30:00.000Z"},
		{`"crontab":"@every 10m","spread":"15m","catchUp":"none"`, "2030-01-01T13:05:00Z", 3, ""},
		{`"crontab":"@every 10m","spread":"15m"`, "2030-01-01T12:11:00Z", 3, "2030-01-01T11:56:00.000Z"},
	} {
		j, _ := begun(t, body(test.members), start)
		options, err := job.DecodeOptions(j.Options.Encode())
		if err != nil {
			t.Fatal(err)
		}
		from, ok, err := options.CatchUpFrom(moment(t, test.now), test.limit)
		if err != nil || ok != (test.want != "") || ok && job.FormatTime(from) != test.want {
			t.Errorf("%s at %s with a limit of %d: %v, %t, %v, want %s", test.members, test.now, test.limit, from, ok, err, test.want)
		}
	}
}

func BenchmarkExpand(b *testing.B) {
	for _, test := range []struct {
		name, crontab string
		outage        time.Duration
	}{
		{"sparse", "30 9 * * 1-5", 0}, {"dense", "* * * * * *", 0}, {"every second", "@every 1s", 0},
		{"sparse, ten years late", "30 9 * * 1-5", 87600 * time.Hour}, {"dense, ten years late", "* * * * * *", 87600 * time.Hour},
	} {
		j, _ := begun(b, body(`"crontab":"`+test.crontab+`","catchUp":"all","timezone":"Europe/Paris"`), start)
		b.Run(test.name, func(b *testing.B) {
			for b.Loop() {
				if _, err := j.Expand(j.ExpandAt.Add(test.outage), expansion); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("catch up from, "+test.name, func(b *testing.B) {
			for b.Loop() {
				if _, _, err := j.Options.CatchUpFrom(j.ExpandAt.Add(test.outage), 1000); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
