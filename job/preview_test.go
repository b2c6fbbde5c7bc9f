package job_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

func TestPreview(t *testing.T) {
	const now = "2030-01-01T12:00:00.0009Z"
	for _, test := range []struct {
		name, members string
		begun         string // when the job was submitted; empty if it is not
		from          string
		count         int
		want          string // instant/step/position/count each
		passed        int
	}{
		{"instants", `"schedules":["2030-01-02T00:00:00Z","2030-01-01T12:00:00Z","2030-01-01T11:59:59.999Z"]`, "", now, 10,
			"2030-01-01T12:00:00.000Z/-1/0/1 2030-01-02T00:00:00.000Z/-1/0/1 ", 1},
		{"a count", `"schedules":["2030-01-02T00:00:00Z","2030-01-03T00:00:00Z","2030-01-04T00:00:00Z"]`, "", now, 2,
			"2030-01-02T00:00:00.000Z/-1/0/1 2030-01-03T00:00:00.000Z/-1/0/1 ", 0},
		{"a delay to come", `"delay":"1h"`, "", now, 10, "2030-01-01T13:00:00.000Z/-1/0/1 ", 0},
		{"a delay that runs", `"delay":"1h"`, "2030-01-01T11:30:00Z", now, 10, "2030-01-01T12:30:00.000Z/-1/0/1 ", 0},
		{"a delay that has passed", `"delay":"1h"`, "2030-01-01T10:30:00Z", now, 10, "", 1},
		{"@at", `"crontab":"@at 1893499200"`, "", now, 10, "2030-01-01T12:00:00.000Z/-1/0/1 ", 0},
		{"@at, passed", `"crontab":"@at 1893499199"`, "", now, 10, "", 1},
		{"@every, never at once", `"crontab":"@every 1h"`, "", now, 2, "2030-01-01T13:00:00.000Z/-1/0/1 2030-01-01T14:00:00.000Z/-1/0/1 ", 0},
		{"@every that runs", `"crontab":"@every 1h"`, "2030-01-01T10:30:00Z", now, 2, "2030-01-01T12:30:00.000Z/-1/0/1 2030-01-01T13:30:00.000Z/-1/0/1 ", 0},
		{"@every, right after it was submitted", `"crontab":"@every 1h"`, "2030-01-01T12:00:00Z", now, 1, "2030-01-01T13:00:00.000Z/-1/0/1 ", 0},
		{"@every on its grid", `"crontab":"@every 1h"`, "2030-01-01T11:00:00Z", now, 1, "2030-01-01T12:00:00.000Z/-1/0/1 ", 0},
		{"a start to come", `"crontab":"@every 1h","startAt":"2030-02-01T00:00:00.5Z"`, "", now, 2, "2030-02-01T00:00:00.500Z/-1/0/1 2030-02-01T01:00:00.500Z/-1/0/1 ", 0},
		{"a past start", `"crontab":"@every 7m","startAt":"2030-01-01T11:58:00Z"`, "", now, 1, "2030-01-01T12:05:00.000Z/-1/0/1 ", 0},
		{"a past start, on the grid now", `"crontab":"@every 1h","startAt":"2030-01-01T10:00:00Z"`, "", now, 1, "2030-01-01T13:00:00.000Z/-1/0/1 ", 0},
		{"up to the end", `"crontab":"0 * * * *","endAt":"2030-01-01T14:00:00Z"`, "", now, 10, "2030-01-01T13:00:00.000Z/-1/0/1 2030-01-01T14:00:00.000Z/-1/0/1 ", 0},
		{"after the end", `"crontab":"0 * * * *","endAt":"2030-01-01T14:00:00Z"`, "2030-01-01T12:00:00Z", "2030-01-01T14:00:00.001Z", 10, "", 0},
		{"none", `"crontab":"* * * * *"`, "", now, 0, "", 0},
		{"steps, in order", `"steps":[{"type":"wait_specific_date","date":"2030-03-01T00:00:00Z"},{"type":"job"},{"type":"job"},` +
			`{"type":"wait_specific_date","date":"2030-01-31T00:00:00Z"},{"type":"job"},{"type":"wait_specific_date","date":"2029-01-31T00:00:00Z"},{"type":"job"}],"subscribers":30`,
			"", now, 10, "2030-01-31T00:00:00.000Z/4/0/30 2030-03-01T00:00:00.000Z/1/0/30 2030-03-01T00:00:00.000Z/2/1/30 ", 1},
		{"steps that run", `"steps":[{"type":"job"}` + hour + `,{"type":"job"}` + hour + `,{"type":"job"}]`, "2030-01-01T11:00:00Z", now, 10,
			"2030-01-01T12:00:00.000Z/2/0/1 2030-01-01T13:00:00.000Z/4/0/1 ", 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			j := parsed(t, body(test.members))
			if test.begun != "" {
				j, _ = begun(t, body(test.members), moment(t, test.begun))
				j.Schedule = restored(t, j.Schedule)
			}
			p, err := j.Schedule.Preview(moment(t, test.from), test.count)
			if err != nil || p.Passed != test.passed || p.Zone != time.UTC {
				t.Errorf("%d have passed, in %v, %v", p.Passed, p.Zone, err)
			}
			if got := preview(t, j.Schedule, moment(t, test.from), test.count); got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
			for _, u := range p.Upcoming {
				if u.ClockChange.Kind != job.Unaffected || !u.ClockChange.At.Equal(u.At) || u.At.Location() != time.UTC {
					t.Errorf("%+v", u)
				}
			}
		})
	}
}

// A preview shows the effects of changes of the clocks beside the instants, and the wall times that they leave out.
func TestPreviewOfEffects(t *testing.T) {
	for _, test := range []struct {
		name, crontab, from string
		count               int
		effects, leftOut    string
	}{
		{"a gap", "30 2 * * *", "2026-03-28T12:00:00+01:00", 2, "02:30 does not exist on 2026-03-29: fires right after the gap|", ""},
		{"an overlap, fixed", "30 2 * * *", "2026-10-24T12:00:00+02:00", 2, "02:30 comes twice: fires the first time only|", ""},
		{"an overlap, recurring", "30 * * * *", "2026-10-25T02:00:00+02:00", 3, "02:30 comes twice: the first|02:30 comes twice: the second|", ""},
		{"left out", "*/40 2 * * *", "2026-03-28T02:30:00+01:00", 2, "|", "02:00 does not exist on 2026-03-29: left out"},
		{"left out beyond the last", "*/40 2 * * *", "2026-03-28T02:30:00+01:00", 1, "", ""},
		{"left out before the first", "*/40 2 * * *", "2026-03-28T12:00:00+01:00", 1, "", "02:00 does not exist on 2026-03-29: left out"},
		{"left out in two years", "*/40 2 25-31 3 *", "2026-03-28T12:00:00+01:00", 11, "||||||||||",
			"02:00 does not exist on 2026-03-29: left out|02:00 does not exist on 2027-03-28: left out"},
	} {
		for _, began := range []bool{false, true} {
			from := moment(t, test.from)
			j := parsed(t, body(`"crontab":"`+test.crontab+`","timezone":"Europe/Paris"`))
			if began {
				j, _ = begun(t, body(`"crontab":"`+test.crontab+`","timezone":"Europe/Paris"`), from.AddDate(-1, 0, 0))
			}
			p, err := j.Schedule.Preview(from, test.count)
			if err != nil || p.Zone.String() != "Europe/Paris" || len(p.Upcoming) != test.count {
				t.Fatalf("%s: %+v, %v", test.name, p, err)
			}
			var effects, leftOut []string
			for _, u := range p.Upcoming {
				effects = append(effects, u.ClockChange.String())
			}
			for _, e := range p.LeftOut {
				leftOut = append(leftOut, e.String())
			}
			if strings.Join(effects, "|") != test.effects || strings.Join(leftOut, "|") != test.leftOut {
				t.Errorf("%s: %q, left out %q, want %s and %s", test.name, effects, leftOut, test.effects, test.leftOut)
			}
		}
	}
}

func TestPreviewOfAnEndlessSequence(t *testing.T) {
	j := parsed(t, body(`"steps":[{"type":"job"}`+strings.Repeat(century, 100)+`]`))
	_, err := j.Schedule.Preview(start, 10)
	if _, ok := errors.AsType[*job.Invalid](err); !ok {
		t.Errorf("a cursor beyond the year 9999 is previewed: %v", err)
	}
}

// The preview of a job with very many instants begins with the first future one.
func TestPreviewOfManyInstants(t *testing.T) {
	all := make([]string, 100_000)
	for i := range all {
		all[i] = fmt.Sprintf("%q", job.FormatTime(start.Add(time.Duration(i-50_000)*time.Second)))
	}
	slices.Reverse(all)
	j, b := begun(t, body(`"schedules":[`+strings.Join(all, ",")+`]`), start)
	p, err := j.Schedule.Preview(start, 1000)
	if err != nil || len(p.Upcoming) != 1000 || p.Passed != 50_000 || !p.Upcoming[0].At.Equal(start) || len(b.Occurrences) != len(all) {
		t.Errorf("%d upcoming, %d passed, of %d; %v", len(p.Upcoming), p.Passed, len(b.Occurrences), err)
	}
}
