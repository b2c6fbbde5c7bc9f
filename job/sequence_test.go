package job_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

func TestSequenceOfTheKnownCase(t *testing.T) {
	for name, days := range map[string]string{
		"without Thursday": `"monday","tuesday","wednesday","friday"`, "in other words": `"FRI","Mon","TUESDAY"`,
	} {
		now := moment(t, "2023-12-28T12:00:00Z")
		_, b := begun(t, body(`"steps":[{"type":"wait_certain_period","delay_period":1,"delay_unit":"minute"},{"type":"job","metadata":"1"},`+
			`{"type":"wait_weekday","weekdays":[`+days+`]},{"type":"job"},{"type":"wait_specific_date","date":"2023-12-29T18:48:34.200Z"},{"type":"job"}]`), now)
		if got, want := instantsOf(b.Occurrences), "2023-12-28T12:01:00.000Z 2023-12-29T12:01:00.000Z 2023-12-29T18:48:34.200Z"; got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// A campaign: each job step fires once for each of 20 subscribers, with the step's own payload.
func TestMarketingSequence(t *testing.T) {
	file, err := os.ReadFile("testdata/marketing-sequence.json")
	if err != nil {
		t.Fatal(err)
	}
	for now, want := range map[string]string{
		// A Thursday is one of the days, so the third step does not wait.
		"2023-12-28T12:00:00Z": "2023-12-28T12:01:00.000Z 2023-12-28T12:01:00.000Z 2023-12-29T18:48:34.200Z",
		// A Saturday; the date is past.
		"2024-01-06T23:59:30Z": "2024-01-07T00:00:30.000Z 2024-01-08T00:00:30.000Z 2023-12-29T18:48:34.200Z",
	} {
		j, b := begun(t, string(file), moment(t, now))
		if len(b.Occurrences) != 60 || j.Key != "campaign-spring" {
			t.Fatalf("%s: %d occurrences of %s", now, len(b.Occurrences), j.Key)
		}
		payloads := []string{`"{ 'any': 'thing' }"`, `"job 2"`, `"job 3"`}
		for i, at := range strings.Fields(want) {
			for subscriber := range 20 {
				o := b.Occurrences[20*i+subscriber]
				if job.FormatTime(o.Timestamp) != at || *o.Part != (job.Part{Step: 2*i + 1, Subscriber: fmt.Sprint(subscriber + 1)}) {
					t.Errorf("%s: %d is at %v for %+v", now, 20*i+subscriber, o.Timestamp, o.Part)
				}
				if got := string(o.Payload(j.Options)); got != payloads[i] {
					t.Errorf("%s: step %d delivers %s", now, o.Part.Step, got)
				}
			}
		}
	}
}

func TestPayloadsOfSteps(t *testing.T) {
	j, b := begun(t, body(steps), start)
	options, err := job.DecodeOptions(j.Options.Encode())
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"", `{"a":[1.0,null,"é"]}`, "null", `"x"`} { // numbers keep their spelling
		got := b.Occurrences[i].Payload(options)
		if string(got) != want || (got == nil) != (want == "") {
			t.Errorf("job step %d delivers %q, want %q", i, got, want)
		}
	}
	if got := (job.Occurrence{}).Payload(options); got != nil {
		t.Errorf("what is of no sequence has the payload %s", got)
	}
}

func TestPeriods(t *testing.T) {
	for _, test := range []struct {
		period, unit string
		want         time.Duration
	}{
		{"0", "week", 0}, {"-0", "minute", 0}, {"1", "second", time.Second}, {"90", "seconds", 90 * time.Second}, {"1", "minute", time.Minute},
		{"1.5", "hours", 90 * time.Minute}, {"2", "day", 48 * time.Hour}, {"2", "weeks", 14 * 24 * time.Hour}, {"1e1", "days", 240 * time.Hour},
		{"0.1", "second", 100 * time.Millisecond}, {"0.0001", "second", time.Millisecond}, {"1.0001", "second", 1001 * time.Millisecond},
		{"1e-300", "day", time.Millisecond}, {"0.3333333333", "second", 334 * time.Millisecond}, {"1.07", "second", 1070 * time.Millisecond},
		{"36600", "days", 36600 * 24 * time.Hour}, {"3162240000", "second", 36600 * 24 * time.Hour}, {"36599.999999999", "day", 36600 * 24 * time.Hour},
	} {
		_, b := begun(t, body(`"steps":[{"type":"wait_certain_period","delay_period":`+test.period+`,"delay_unit":"`+test.unit+`"},{"type":"job"}]`), start)
		if got := b.Occurrences[0].Timestamp.Sub(start); got != test.want {
			t.Errorf("%s %s are %v, want %v", test.period, test.unit, got, test.want)
		}
	}
}

// A decimal fraction that is a whole number of milliseconds is not rounded, although most have no exact binary form.
func TestPeriodsInHundredths(t *testing.T) {
	for unit, length := range map[string]time.Duration{
		"second": time.Second, "minute": time.Minute, "hour": time.Hour, "day": 24 * time.Hour, "week": 7 * 24 * time.Hour,
	} {
		var b strings.Builder
		const most = 2000
		for i := range most {
			fmt.Fprintf(&b, `{"type":"wait_certain_period","delay_period":%d.%02d,"delay_unit":"%s"},{"type":"job"},`, i/100, i%100, unit)
		}
		_, all := begun(t, body(`"steps":[`+strings.TrimSuffix(b.String(), ",")+`]`), start)
		last := start
		for i, o := range all.Occurrences {
			if got, want := o.Timestamp.Sub(last), time.Duration(i)*length/100; got != want {
				t.Errorf("%d.%02d %s are %v, want %v", i/100, i%100, unit, got, want)
			}
			last = o.Timestamp
		}
	}
}

func TestWaitForWeekdays(t *testing.T) {
	for _, test := range []struct{ name, zone, from, days, want, effect string }{
		{"today counts", "UTC", "2023-12-28T12:01:00.25Z", "thursday", "2023-12-28T12:01:00.25Z", ""},
		{"today counts beside others", "UTC", "2023-12-28T12:01:00Z", "friday thursday", "2023-12-28T12:01:00Z", ""},
		{"Friday", "UTC", "2023-12-28T12:01:00.25Z", "friday", "2023-12-29T12:01:00.25Z", ""},
		{"Saturday", "UTC", "2023-12-28T12:01:00Z", "Saturday", "2023-12-30T12:01:00Z", ""},
		{"Sunday", "UTC", "2023-12-28T12:01:00Z", "SUN", "2023-12-31T12:01:00Z", ""},
		{"Monday", "UTC", "2023-12-28T12:01:00Z", "mon", "2024-01-01T12:01:00Z", ""},
		{"Tuesday", "UTC", "2023-12-28T12:01:00Z", "TueSday", "2024-01-02T12:01:00Z", ""},
		{"Wednesday", "UTC", "2023-12-28T12:01:00Z", "wed", "2024-01-03T12:01:00Z", ""},
		{"the nearest", "UTC", "2023-12-28T12:01:00Z", "wednesday sunday monday", "2023-12-31T12:01:00Z", ""},
		{"a leap day", "UTC", "2028-02-28T00:00:00Z", "tuesday", "2028-02-29T00:00:00Z", ""},
		{"midnight", "UTC", "2023-12-28T00:00:00Z", "wednesday", "2024-01-03T00:00:00Z", ""},
		{"the last millisecond", "UTC", "2023-12-28T23:59:59.999Z", "friday", "2023-12-29T23:59:59.999Z", ""},

		{"already Friday in Tokyo", "Asia/Tokyo", "2023-12-28T23:30:00Z", "friday", "2023-12-28T23:30:00Z", ""},
		{"no longer Thursday in Tokyo", "Asia/Tokyo", "2023-12-28T23:30:00Z", "thursday", "2024-01-04T08:30:00+09:00", ""},
		{"still Thursday in New York", "America/New_York", "2023-12-29T03:00:00Z", "thursday", "2023-12-29T03:00:00Z", ""},
		{"not yet Friday in New York", "America/New_York", "2023-12-29T03:00:00Z", "friday", "2023-12-29T22:00:00-05:00", ""},
		{"a quarter of an hour", "Asia/Kathmandu", "2023-12-28T18:14:00Z", "friday", "2023-12-29T23:59:00+05:45", ""},

		{"over a change forward", "Europe/Paris", "2026-03-27T09:00:00+01:00", "monday", "2026-03-30T09:00:00+02:00", ""},
		{"over a change back", "America/New_York", "2026-10-30T09:00:00-04:00", "monday", "2026-11-02T09:00:00-05:00", ""},
		{"in a gap", "Europe/Paris", "2026-03-28T02:30:15.25+01:00", "sunday", "2026-03-29T03:00:00+02:00",
			"02:30:15 does not exist on 2026-03-29: fires right after the gap"},
		{"where a gap begins", "Europe/Paris", "2026-03-28T02:00:00+01:00", "sunday", "2026-03-29T03:00:00+02:00",
			"02:00 does not exist on 2026-03-29: fires right after the gap"},
		{"where a gap ends", "Europe/Paris", "2026-03-28T03:00:00+01:00", "sunday", "2026-03-29T03:00:00+02:00", ""},
		{"just before a gap", "Europe/Paris", "2026-03-28T01:59:59.999+01:00", "sunday", "2026-03-29T01:59:59.999+01:00", ""},
		{"in an overlap", "Europe/Paris", "2026-10-24T02:30:15.25+02:00", "sunday", "2026-10-25T02:30:15.25+02:00",
			"02:30:15 comes twice: fires the first time only"},
		{"from an overlap's second hour", "Europe/Paris", "2026-10-25T02:30:00+01:00", "sunday", "2026-10-25T02:30:00+01:00", ""},
		{"from there on", "Europe/Paris", "2026-10-25T02:30:00+01:00", "monday", "2026-10-26T02:30:00+01:00", ""},
		{"New York's gap", "America/New_York", "2027-03-12T02:59:00-05:00", "sun", "2027-03-14T03:00:00-04:00",
			"02:59 does not exist on 2027-03-14: fires right after the gap"},
		{"half an hour's gap", "Australia/Lord_Howe", "2026-10-03T02:15:00+10:30", "sunday", "2026-10-04T02:30:00+11:00",
			"02:15 does not exist on 2026-10-04: fires right after the gap"},
		{"beside half an hour's gap", "Australia/Lord_Howe", "2026-10-03T02:45:00+10:30", "sunday", "2026-10-04T02:45:00+11:00", ""},
		{"half an hour's overlap", "Australia/Lord_Howe", "2027-04-03T01:45:00+11:00", "sunday", "2027-04-04T01:45:00+11:00",
			"01:45 comes twice: fires the first time only"},
		{"Ramadan's end", "Africa/Casablanca", "2027-03-13T02:30:00Z", "sunday", "2027-03-14T03:00:00+01:00",
			"02:30 does not exist on 2027-03-14: fires right after the gap"},
		{"a gap at midnight", "America/Sao_Paulo", "2018-11-03T00:00:00-03:00", "sunday", "2018-11-04T01:00:00-02:00",
			"00:00 does not exist on 2018-11-04: fires right after the gap"},
		{"a gap up to midnight", "America/Nuuk", "2025-03-28T23:30:00-02:00", "saturday", "2025-03-30T00:00:00-01:00",
			"23:30 does not exist on 2025-03-29: fires right after the gap"},
		{"a skipped day is none", "Pacific/Apia", "2011-12-29T12:00:00-10:00", "friday", "2012-01-06T12:00:00+14:00", ""},
		{"the day after a skipped one", "Pacific/Apia", "2011-12-29T12:00:00-10:00", "saturday", "2011-12-31T12:00:00+14:00", ""},
		{"the day after, though the skipped one was wanted too", "Pacific/Apia", "2011-12-29T12:00:00-10:00", "friday saturday", "2011-12-31T12:00:00+14:00", ""},
	} {
		j, b := begun(t, body(`"steps":[{"type":"wait_weekday","weekdays":["`+strings.ReplaceAll(test.days, " ", `","`)+`"]},{"type":"job"}],`+
			`"timezone":"`+test.zone+`","startAt":"`+test.from+`"`), start)
		if want := job.FormatTime(moment(t, test.want)); instantsOf(b.Occurrences) != want {
			t.Errorf("%s: %s, want %s", test.name, instantsOf(b.Occurrences), want)
		}
		p, err := j.Schedule.Preview(time.Unix(0, 0), 10)
		if err != nil || len(p.Upcoming) != 1 {
			t.Fatalf("%s: %+v, %v", test.name, p, err)
		}
		if e := p.Upcoming[0].ClockChange; e.String() != test.effect || !e.At.Equal(b.Occurrences[0].Timestamp) {
			t.Errorf("%s: the effect is %q at %v, want %q", test.name, e, e.At, test.effect)
		}
	}
}

// The effect of the clocks on a wait is shown at the job steps at that instant, and not at later ones.
func TestEffectsEndWithTheNextWait(t *testing.T) {
	const wait = `{"type":"wait_weekday","weekdays":["sunday"]}`
	j := parsed(t, body(`"steps":[`+wait+`,{"type":"job"},{"type":"job"},`+wait+`,{"type":"job"}`+hour+`,{"type":"job"},`+
		`{"type":"wait_specific_date","date":"2026-10-24T02:30:00+02:00"},`+wait+`,{"type":"job"},{"type":"wait_specific_date","date":"2026-11-01T00:00:00Z"},{"type":"job"}],`+
		`"timezone":"Europe/Paris","startAt":"2026-03-28T02:30:00+01:00"`))
	p, err := j.Schedule.Preview(moment(t, "2026-03-01T00:00:00Z"), 10)
	if err != nil {
		t.Fatal(err)
	}
	var kinds []job.ClockChangeKind
	for _, u := range p.Upcoming {
		kinds = append(kinds, u.ClockChange.Kind)
	}
	want := []job.ClockChangeKind{job.Moved, job.Moved, job.Moved, job.Unaffected, job.OnlyFirst, job.Unaffected}
	if fmt.Sprint(kinds) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", kinds, want)
	}
}

// Steps can move the cursor back, and occurrences of one instant differ by position.
func TestSequencesThatGoBack(t *testing.T) {
	const noon, eve = `{"type":"wait_specific_date","date":"2030-01-02T12:00:00Z"}`, `{"type":"wait_specific_date","date":"2030-01-01T23:59:59.9991Z"}`
	_, b := begun(t, body(`"steps":[{"type":"job"},{"type":"job"},`+noon+`,{"type":"job"},`+eve+`,{"type":"job"},`+noon+`,{"type":"job"}],"subscribers":["a","b"]`), start)
	var got strings.Builder
	ids, deliveries := map[job.ID]bool{}, map[job.ID]bool{}
	for _, o := range b.Occurrences {
		fmt.Fprintf(&got, "%s %d.%s #%d\n", o.Timestamp.Format("02T15:04:05.999"), o.Part.Step, o.Part.Subscriber, o.Position)
		ids[o.ID], deliveries[o.DeliveryID()] = true, true
		if o.DueAt != o.Timestamp || o.Timestamp.Location() != time.UTC {
			t.Errorf("%+v", o)
		}
	}
	if want := strings.ReplaceAll("01T12:00:00 0.a #0,01T12:00:00 0.b #0,01T12:00:00 1.a #1,01T12:00:00 1.b #1,02T12:00:00 3.a #0,02T12:00:00 3.b #0,"+
		"02T00:00:00 5.a #0,02T00:00:00 5.b #0,02T12:00:00 7.a #1,02T12:00:00 7.b #1,", ",", "\n"); got.String() != want {
		t.Errorf("got\n%swant\n%s", got.String(), want)
	}
	if len(ids) != len(b.Occurrences) || len(deliveries) != len(b.Occurrences) {
		t.Errorf("%d ids and %d delivery ids of %d occurrences", len(ids), len(deliveries), len(b.Occurrences))
	}
}

// A cursor that leaves the allowed years is refused at the step that does it.
func TestSequencesEndWithTheYear9999(t *testing.T) {
	for _, test := range []struct{ members, pointer string }{
		{`"steps":[{"type":"job"}` + hour + `],"startAt":"9999-12-31T22:59:59.999Z"`, ""},
		{`"steps":[{"type":"job"}` + hour + `],"startAt":"9999-12-31T23:00:00Z"`, "/steps/1"},
		{`"steps":[{"type":"job"}` + hour + `,{"type":"wait_specific_date","date":"2030-01-01T00:00:00Z"}],"startAt":"9999-12-31T23:00:00Z"`, "/steps/1"},
		{`"steps":[{"type":"wait_weekday","weekdays":["friday"]},{"type":"job"}],"startAt":"9999-12-31T23:00:00Z"`, ""},
		{`"steps":[{"type":"wait_weekday","weekdays":["saturday"]},{"type":"job"}],"startAt":"9999-12-31T23:00:00Z"`, "/steps/0"},
		{`"steps":[{"type":"job"}` + strings.Repeat(century, 100) + `]`, "/steps/80"},
	} {
		j := parsed(t, body(test.members))
		_, err := j.Begin(start, job.PastFire, expansion)
		invalid, ok := errors.AsType[*job.Invalid](err)
		switch {
		case test.pointer == "" && err != nil:
			t.Errorf("%s: %v", test.members, err)
		case test.pointer != "" && (!ok || len(invalid.Fields) != 1 || invalid.Fields[0].Pointer != test.pointer || !strings.Contains(err.Error(), "year 9999")):
			t.Errorf("%s: %v, want one of %s", test.members, err, test.pointer)
		}
	}
}

func TestPastStepsAndDeadlines(t *testing.T) {
	// Job steps at 11:00, 11:59:59.999, 12:00 and 13:00, for two subscribers each; it is 12:00 and a fraction of a
	// millisecond.
	const members = `"steps":[{"type":"job"},{"type":"wait_specific_date","date":"2030-01-01T11:59:59.999Z"},{"type":"job"},` +
		`{"type":"wait_specific_date","date":"2030-01-01T12:00:00Z"},{"type":"job"}` + hour + `,{"type":"job"}],"startAt":"2030-01-01T11:00:00Z","subscribers":2`
	for _, test := range []struct {
		past, deadline        string
		fire, skipped, missed int
		refused               string
	}{
		{"", "", 8, 0, 0, ""}, {"fire", "", 8, 0, 0, ""}, {"skip", "", 4, 4, 0, ""}, {"reject", "", 0, 0, 0, "/steps/0 /steps/2"},
		{"fire", "1h", 8, 0, 0, ""}, {"fire", "59m59s", 6, 0, 2, ""}, {"fire", "1ms", 6, 0, 2, ""}, {"skip", "1ms", 4, 4, 0, ""},
		{"reject", "1ms", 0, 0, 0, "/steps/0 /steps/2"},
	} {
		options := ""
		if test.deadline != "" {
			options = `,"deadline":"` + test.deadline + `"`
		}
		j := parsed(t, body(members+options))
		b, err := j.Begin(start.Add(700*time.Microsecond), job.Past(test.past), expansion)
		if test.refused != "" {
			if got := pointers(err); got != test.refused || !strings.Contains(err.Error(), "2030-01-01T11:00:00.000Z is in the past") {
				t.Errorf("%+v: %v", test, err)
			}
			continue
		}
		if err != nil || len(b.Occurrences) != test.fire || b.Skipped != test.skipped || len(b.Missed) != test.missed || j.Missed != test.missed {
			t.Errorf("%+v: %d occurrences, %d skipped, %d missed (the job: %d), %v", test, len(b.Occurrences), b.Skipped, len(b.Missed), j.Missed, err)
		}
	}
}

// pointers returns the pointers of the fields that an error names.
func pointers(err error) string {
	invalid, ok := errors.AsType[*job.Invalid](err)
	if !ok {
		return fmt.Sprint("not a job.Invalid: ", err)
	}
	var all []string
	for _, f := range invalid.Fields {
		all = append(all, f.Pointer)
	}
	return strings.Join(all, " ")
}
