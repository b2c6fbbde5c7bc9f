package job_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

func TestCrontabNext(t *testing.T) {
	for _, test := range []struct {
		name, zone, crontab, after, want string // want: wall times with offsets; empty for none, an end if it ends with a dot
	}{
		{"workdays", "UTC", "30 9 * * 1-5", "2026-10-02T09:30:00Z",
			"2026-10-05T09:30:00Z 2026-10-06T09:30:00Z 2026-10-07T09:30:00Z"},
		{"strictly later, by less than a second", "UTC", "30 9 * * *", "2026-10-02T09:29:59.999Z", "2026-10-02T09:30:00Z"},
		{"seconds", "UTC", "*/20 59 23 * * *", "2026-12-31T23:59:20.001Z",
			"2026-12-31T23:59:40Z 2027-01-01T23:59:00Z 2027-01-01T23:59:20Z"},
		{"end of year", "UTC", "0 0 1 1 *", "2026-12-31T23:59:59Z", "2027-01-01T00:00:00Z 2028-01-01T00:00:00Z"},
		{"last minute of the year", "Asia/Kathmandu", "59 23 31 12 *", "2026-12-31T18:13:00Z", "2026-12-31T23:59:00+05:45 2027-12-31T23:59:00+05:45"},
		{"leap years", "UTC", "0 12 29 2 *", "2026-01-01T00:00:00Z", "2028-02-29T12:00:00Z 2032-02-29T12:00:00Z"},
		{"2100 is no leap year", "UTC", "0 12 29 2 *", "2096-02-29T12:00:00Z", "2104-02-29T12:00:00Z"},
		{"2000 was", "UTC", "0 12 29 2 *", "1996-02-29T12:00:00Z", "2000-02-29T12:00:00Z"},
		{"a 29th of February on a Sunday", "UTC", "0 0 29 2 */7", "2060-01-01T00:00:00Z", "2060-02-29T00:00:00Z 2088-02-29T00:00:00Z 2128-02-29T00:00:00Z"},
		{"31st of the month", "UTC", "0 0 31 * *", "2026-01-31T00:00:00Z",
			"2026-03-31T00:00:00Z 2026-05-31T00:00:00Z 2026-07-31T00:00:00Z 2026-08-31T00:00:00Z 2026-10-31T00:00:00Z 2026-12-31T00:00:00Z 2027-01-31T00:00:00Z"},
		{"30th of the month", "UTC", "0 0 30 1-4 *", "2026-01-30T00:00:00Z", "2026-03-30T00:00:00Z 2026-04-30T00:00:00Z"},
		{"either day field", "UTC", "0 0 13 * 5", "2026-11-01T00:00:00Z",
			"2026-11-06T00:00:00Z 2026-11-13T00:00:00Z 2026-11-20T00:00:00Z 2026-11-27T00:00:00Z 2026-12-04T00:00:00Z 2026-12-11T00:00:00Z 2026-12-13T00:00:00Z"},
		{"both, as one begins with *", "UTC", "0 0 */10 * 5", "2026-11-01T00:00:00Z", "2026-12-11T00:00:00Z 2027-01-01T00:00:00Z"},
		{"both, as the other does", "UTC", "0 0 13 * */5", "2026-06-01T00:00:00Z", "2026-09-13T00:00:00Z 2026-11-13T00:00:00Z"},
		{"either, with no such date", "UTC", "0 0 30 2 1", "2026-01-01T00:00:00Z", "2026-02-02T00:00:00Z 2026-02-09T00:00:00Z"},
		{"before 1970", "UTC", "0 0 1 1 *", "1899-12-31T23:59:59.5Z", "1900-01-01T00:00:00Z 1901-01-01T00:00:00Z"},
		{"the last there is", "UTC", "@yearly", "9998-06-01T00:00:00Z", "9999-01-01T00:00:00Z ."},

		{"New York's gap, fixed", "America/New_York", "30 2 * * *", "2027-03-13T00:00:00-05:00",
			"2027-03-13T02:30:00-05:00 2027-03-14T03:00:00-04:00 2027-03-15T02:30:00-04:00"},
		{"several times in a gap are one", "America/New_York", "0,20,40 2 14 3 *", "2027-03-14T00:00:00-05:00",
			"2027-03-14T03:00:00-04:00 2028-03-14T02:00:00-04:00"},
		{"and so is the time that it falls onto", "America/New_York", "15 2,3 * * *", "2027-03-14T00:00:00-05:00",
			"2027-03-14T03:00:00-04:00 2027-03-14T03:15:00-04:00 2027-03-15T02:15:00-04:00"},
		{"the first and last minute of a gap", "America/New_York", "0 2 * * *", "2027-03-14T00:00:00-05:00", "2027-03-14T03:00:00-04:00 2027-03-15T02:00:00-04:00"},
		{"the end of a gap", "America/New_York", "0 3 * * *", "2027-03-14T00:00:00-05:00", "2027-03-14T03:00:00-04:00 2027-03-15T03:00:00-04:00"},
		{"from inside, after it fired", "America/New_York", "30 2 * * *", "2027-03-14T07:00:00Z", "2027-03-15T02:30:00-04:00"},
		{"New York's gap, every half hour", "America/New_York", "*/30 * * * *", "2027-03-14T01:00:00-05:00",
			"2027-03-14T01:30:00-05:00 2027-03-14T03:00:00-04:00 2027-03-14T03:30:00-04:00"},
		{"an hour that does not come", "America/New_York", "*/30 2 * * *", "2027-03-13T02:30:00-05:00",
			"2027-03-15T02:00:00-04:00 2027-03-15T02:30:00-04:00"},
		{"New York's overlap, fixed", "America/New_York", "30 1 * * *", "2026-10-31T12:00:00-04:00",
			"2026-11-01T01:30:00-04:00 2026-11-02T01:30:00-05:00"},
		{"from between the two", "America/New_York", "30 1 * * *", "2026-11-01T01:45:00-04:00", "2026-11-02T01:30:00-05:00"},
		{"New York's overlap, hourly", "America/New_York", "30 * * * *", "2026-11-01T00:30:00-04:00",
			"2026-11-01T01:30:00-04:00 2026-11-01T01:30:00-05:00 2026-11-01T02:30:00-05:00"},
		{"an hour that comes twice", "America/New_York", "*/30 1 * * *", "2026-11-01T00:30:00-04:00",
			"2026-11-01T01:00:00-04:00 2026-11-01T01:30:00-04:00 2026-11-01T01:00:00-05:00 2026-11-01T01:30:00-05:00 2026-11-02T01:00:00-05:00"},
		{"the hour that ends an overlap", "America/New_York", "0 2 * * *", "2026-11-01T00:00:00-04:00", "2026-11-01T02:00:00-05:00"},
		{"all hours, but fixed", "America/New_York", "0 0-23 * * *", "2026-11-01T00:00:00-04:00",
			"2026-11-01T01:00:00-04:00 2026-11-01T02:00:00-05:00"},
		{"fixed with seconds, gap", "America/New_York", "*/30 59 2 * * *", "2027-03-14T00:00:00-05:00",
			"2027-03-14T03:00:00-04:00 2027-03-15T02:59:00-04:00 2027-03-15T02:59:30-04:00"},
		{"fixed with seconds, overlap", "America/New_York", "15,45 59 1 * * *", "2026-11-01T00:00:00-04:00",
			"2026-11-01T01:59:15-04:00 2026-11-01T01:59:45-04:00 2026-11-02T01:59:15-05:00"},
		{"every second, overlap", "America/New_York", "* * * * * *", "2026-11-01T01:59:58-04:00",
			"2026-11-01T01:59:59-04:00 2026-11-01T01:00:00-05:00 2026-11-01T01:00:01-05:00"},

		{"Paris, gap", "Europe/Paris", "30 2 * * *", "2026-03-28T12:00:00+01:00", "2026-03-29T03:00:00+02:00 2026-03-30T02:30:00+02:00"},
		{"Paris, overlap", "Europe/Paris", "30 2 * * *", "2026-10-24T12:00:00+02:00", "2026-10-25T02:30:00+02:00 2026-10-26T02:30:00+01:00"},
		{"Paris, weekly into a gap", "Europe/Paris", "0 2 * * SUN", "2026-03-22T12:00:00+01:00", "2026-03-29T03:00:00+02:00 2026-04-05T02:00:00+02:00"},
		{"always in a gap", "Europe/Paris", "*/40 2 25-31 3 */7", "2026-01-01T00:00:00Z", "."},
		{"always in a gap, but fixed", "Europe/Paris", "0,40 2 25-31 3 */7", "2026-01-01T00:00:00Z", "2026-03-29T03:00:00+02:00 2027-03-28T03:00:00+02:00"},

		{"half an hour's gap", "Australia/Lord_Howe", "15 2 * * *", "2026-10-03T12:00:00+10:30", "2026-10-04T02:30:00+11:00 2026-10-05T02:15:00+11:00"},
		{"half an hour's gap, beside it", "Australia/Lord_Howe", "45 2 * * *", "2026-10-03T12:00:00+10:30", "2026-10-04T02:45:00+11:00"},
		{"half an hour's overlap", "Australia/Lord_Howe", "45 1 * * *", "2027-04-03T12:00:00+11:00", "2027-04-04T01:45:00+11:00 2027-04-05T01:45:00+10:30"},
		{"half an hour's overlap, hourly", "Australia/Lord_Howe", "45 * * * *", "2027-04-04T01:00:00+11:00",
			"2027-04-04T01:45:00+11:00 2027-04-04T01:45:00+10:30 2027-04-04T02:45:00+10:30"},
		{"half an hour's overlap, at the full hour", "Australia/Lord_Howe", "0 * * * *", "2027-04-04T01:00:00+11:00",
			"2027-04-04T02:00:00+10:30 2027-04-04T03:00:00+10:30"},

		{"before Ramadan", "Africa/Casablanca", "30 2 * * *", "2026-02-14T12:00:00Z", "2026-02-15T02:30:00+01:00 2026-02-16T02:30:00Z"},
		{"after Ramadan", "Africa/Casablanca", "30 2 * * *", "2026-03-21T12:00:00Z", "2026-03-22T03:00:00+01:00 2026-03-23T02:30:00+01:00"},
		{"before Ramadan, hourly", "Africa/Casablanca", "@hourly", "2026-02-15T01:00:00+01:00",
			"2026-02-15T02:00:00+01:00 2026-02-15T02:00:00Z 2026-02-15T03:00:00Z"},
		{"quarter hours", "Asia/Kathmandu", "0 0 * * *", "2026-11-01T00:00:00Z", "2026-11-02T00:00:00+05:45"},
		{"when Kathmandu's clocks were set", "Asia/Kathmandu", "5 0 * * *", "1985-12-31T12:00:00Z", "1986-01-01T00:15:00+05:45 1986-01-02T00:05:00+05:45"},

		{"a day that was skipped", "Pacific/Apia", "0 12 * * *", "2011-12-29T00:00:00-10:00",
			"2011-12-29T12:00:00-10:00 2011-12-31T12:00:00+14:00 2012-01-01T12:00:00+14:00"},
		{"on that day only", "Pacific/Apia", "0 12 30 12 *", "2011-01-01T00:00:00Z", "2012-12-30T12:00:00+14:00"},
		{"every minute over that day", "Pacific/Apia", "* * * * *", "2011-12-29T23:58:30-10:00",
			"2011-12-29T23:59:00-10:00 2011-12-31T00:00:00+14:00"},
		{"a gap of three hours", "Antarctica/Casey", "30 5 * * *", "2018-10-06T12:00:00+08:00", "2018-10-08T05:30:00+11:00"},
		{"a gap of two hours", "Antarctica/Troll", "30 1 * * *", "2026-03-28T12:00:00Z", "2026-03-29T03:00:00+02:00 2026-03-30T01:30:00+02:00"},
		{"an overlap of two hours", "Antarctica/Troll", "30 1,2 * * *", "2026-10-24T12:00:00Z",
			"2026-10-25T01:30:00+02:00 2026-10-25T02:30:00+02:00 2026-10-26T01:30:00Z"},
		{"a gap at midnight", "America/Sao_Paulo", "0 0 * * *", "2018-11-03T12:00:00-03:00", "2018-11-04T01:00:00-02:00 2018-11-05T00:00:00-02:00"},
		{"an overlap at midnight", "America/Sao_Paulo", "30 23 * * *", "2018-02-17T12:00:00-02:00", "2018-02-17T23:30:00-02:00 2018-02-18T23:30:00-03:00"},
		{"an overlap at midnight, by day", "America/Sao_Paulo", "30 * 17 2 *", "2018-02-17T22:30:00-02:00",
			"2018-02-17T23:30:00-02:00 2018-02-17T23:30:00-03:00 2019-02-17T00:30:00-03:00"},
		{"a gap into the next month", "America/Toronto", "45 23 30 3 *", "1919-03-30T12:00:00-05:00", "1919-03-31T00:30:00-04:00 1920-03-30T23:45:00-05:00"},
		{"clocks that were off by seconds", "Africa/Monrovia", "@hourly", "1972-01-06T23:30:00Z", "1972-01-06T23:00:00-00:44 1972-01-07T01:00:00Z"},
		{"the end of a leap year", "America/New_York", "@daily", "2028-12-30T12:00:00-05:00",
			"2028-12-31T00:00:00-05:00 2029-01-01T00:00:00-05:00 2029-01-02T00:00:00-05:00"},
		{"the end of a leap year in the south", "Pacific/Auckland", "@daily", "2028-12-30T12:00:00+13:00",
			"2028-12-31T00:00:00+13:00 2029-01-01T00:00:00+13:00 2029-01-02T00:00:00+13:00"},

		{"@every keeps its grid", "Europe/Paris", "@every 12h", "2026-10-24T20:00:00+02:00",
			"2026-10-24T20:00:00+02:00 2026-10-25T07:00:00+01:00 2026-10-25T19:00:00+01:00"},
		{"@at", "UTC", "@at 1798120800", "2026-12-24T13:59:59.999Z", "2026-12-24T14:00:00Z ."},
		{"@at, passed", "UTC", "@at 1798120800", "2026-12-24T14:00:00Z", "."},
		{"@at, at first", "UTC", "@at 0", "1969-12-31T23:59:59Z", "1970-01-01T00:00:00Z ."},
	} {
		want, ends := strings.CutSuffix(test.want, ".")
		limit := len(strings.Fields(want))
		if ends {
			limit++
		}
		in, after := zoned(t, test.zone), moment(t, test.after)
		c := crontab(t, test.crontab)
		got := upcoming(c, after, limit, in)
		if test.name == "@every keeps its grid" {
			at, _ := c.Next(after.Add(-1), in, after)
			got = append([]string{at.In(in).Format(time.RFC3339)}, got[:limit-1]...)
		}
		if !slices.Equal(got, strings.Fields(want)) {
			t.Errorf("%s: %q in %s after %s fires at\n %q, want\n %q", test.name, test.crontab, test.zone, test.after, got, strings.Fields(want))
		}
	}
}

// A nil zone is UTC, and instants are in UTC.
func TestCrontabZone(t *testing.T) {
	at, ok := crontab(t, "0 9 * * *").Next(moment(t, "2026-01-01T10:00:00+02:00"), nil, time.Time{})
	if !ok || !at.Equal(moment(t, "2026-01-01T09:00:00Z")) || at.Location() != time.UTC {
		t.Errorf("in no zone it fires at %v, %v", at, ok)
	}
	at, _ = crontab(t, "0 9 * * *").Next(at, zoned(t, "Asia/Tokyo"), time.Time{})
	if !at.Equal(moment(t, "2026-01-02T00:00:00Z")) || at.Location() != time.UTC {
		t.Errorf("in Tokyo it fires at %v", at)
	}
}

func TestEveryGrid(t *testing.T) {
	anchor := moment(t, "2026-03-01T00:00:00.1234Z") // rounded up to .124
	for _, test := range []struct{ crontab, after, want string }{
		{"@every 1s", "2026-02-01T00:00:00Z", "2026-03-01T00:00:00.124Z"}, // never before the anchor
		{"@every 1s", "2026-03-01T00:00:00.1239Z", "2026-03-01T00:00:00.124Z"},
		{"@every 1s", "2026-03-01T00:00:00.124Z", "2026-03-01T00:00:01.124Z"},
		{"@every 1s", "2026-03-01T00:00:00.125Z", "2026-03-01T00:00:01.124Z"},
		{"@every 1s", "2826-03-01T00:00:00Z", "2826-03-01T00:00:00.124Z"}, // longer than a time.Duration
		{"@every 1500ms", "2026-03-01T00:00:02Z", "2026-03-01T00:00:03.124Z"},
		{"@every 1h30m", "2026-03-02T00:00:00Z", "2026-03-02T00:00:00.124Z"},
		{"@every 1w", "2026-03-29T12:00:00Z", "2026-04-05T00:00:00.124Z"},
		{"@every 1d12h", "2026-03-01T01:00:00Z", "2026-03-02T12:00:00.124Z"},
		{"@every 7s", "9999-12-31T23:59:59.999Z", ""},
	} {
		at, ok := crontab(t, test.crontab).Next(moment(t, test.after), zoned(t, "Europe/Paris"), anchor)
		if ok != (test.want != "") || ok && job.FormatTime(at) != job.FormatTime(moment(t, test.want)) {
			t.Errorf("%s after %s fires at %v, %v, want %s", test.crontab, test.after, at, ok, test.want)
		}
	}
	// An interval stays exact, however long the crontab has run.
	c, at := crontab(t, "@every 1s"), anchor.Add(100*365*24*time.Hour)
	for range 1000 {
		next, ok := c.Next(at, nil, anchor)
		if !ok || next.Nanosecond() != 124e6 || next.Sub(at) > time.Second {
			t.Fatalf("after %v it fires at %v", at, next)
		}
		at = next
	}
}

func TestCrontabLast(t *testing.T) {
	for _, test := range []struct{ name, zone, crontab, after, upTo, want string }{
		{"inclusive", "UTC", "0 9 * * *", "2026-01-01T09:00:00Z", "2026-01-02T09:00:00Z", "2026-01-02T09:00:00Z"},
		{"exclusive", "UTC", "0 9 * * *", "2026-01-01T09:00:00Z", "2026-01-02T08:59:59.999Z", ""},
		{"long ago", "UTC", "* * * * * *", "1970-01-01T00:00:00Z", "2026-01-02T08:59:59.999Z", "2026-01-02T08:59:59Z"},
		{"long ago and rare", "UTC", "0 0 29 2 *", "1970-01-01T00:00:00Z", "2027-01-01T00:00:00Z", "2024-02-29T00:00:00Z"},
		{"none", "UTC", "0 0 29 2 *", "2025-01-01T00:00:00Z", "2027-01-01T00:00:00Z", ""},
		{"backwards", "UTC", "* * * * *", "2026-01-02T00:00:00Z", "2026-01-01T00:00:00Z", ""},
		{"moved by a gap", "Europe/Paris", "30 2 29 3 *", "2026-01-01T00:00:00Z", "2026-12-31T00:00:00Z", "2026-03-29T01:00:00Z"},
		{"the first of two", "Europe/Paris", "30 2 * * *", "2026-10-01T00:00:00Z", "2026-10-25T01:45:00Z", "2026-10-25T00:30:00Z"},
		{"the second of two", "Europe/Paris", "30 * * * *", "2026-10-01T00:00:00Z", "2026-10-25T01:45:00Z", "2026-10-25T01:30:00Z"},
		{"@at", "UTC", "@at 60", "1970-01-01T00:00:00Z", "2026-01-01T00:00:00Z", "1970-01-01T00:01:00Z"},
		{"@at, inclusive", "UTC", "@at 60", "1970-01-01T00:00:00Z", "1970-01-01T00:01:00Z", "1970-01-01T00:01:00Z"},
		{"@at, exclusive", "UTC", "@at 60", "1970-01-01T00:01:00Z", "2026-01-01T00:00:00Z", ""},
		{"@at, to come", "UTC", "@at 60", "1970-01-01T00:00:00Z", "1970-01-01T00:00:59Z", ""},
		{"@every", "UTC", "@every 7s", "1970-01-01T00:00:00Z", "1970-01-01T00:00:30Z", "1970-01-01T00:00:28Z"},
		{"@every, inclusive", "UTC", "@every 7s", "1970-01-01T00:00:21Z", "1970-01-01T00:00:28Z", "1970-01-01T00:00:28Z"},
		{"@every, exclusive", "UTC", "@every 7s", "1970-01-01T00:00:28Z", "1970-01-01T00:00:34.999Z", ""},
		{"@every, before the anchor", "UTC", "@every 7s", "1960-01-01T00:00:00Z", "1969-12-31T23:59:59Z", ""},
		{"the end of time", "UTC", "@every 1s", "1960-01-01T00:00:00Z", "12026-12-31T23:59:59Z", "9999-12-31T23:59:59Z"},
		{"the end of time, fields", "UTC", "* * * * *", "1960-01-01T00:00:00Z", "12026-12-31T23:59:59Z", "9999-12-31T23:59:00Z"},
	} {
		upTo := time.Date(12026, 12, 31, 0, 0, 0, 0, time.UTC)
		if !strings.HasPrefix(test.upTo, "12026") { // RFC 3339 has no such year
			upTo = moment(t, test.upTo)
		}
		at, ok := crontab(t, test.crontab).Last(moment(t, test.after), upTo, zoned(t, test.zone), time.Unix(0, 0))
		if ok != (test.want != "") || ok && !at.Equal(moment(t, test.want)) {
			t.Errorf("%s: the last is %v, %v, want %s", test.name, at, ok, test.want)
		}
	}
}

// Ticks missed for ten years are found from the end of the outage.
func TestCrontabNewest(t *testing.T) {
	after, upTo := moment(t, "2016-01-01T00:00:00Z"), moment(t, "2026-01-01T00:00:00.5Z")
	for _, expression := range []string{"* * * * * *", "@every 1s"} {
		newest := crontab(t, expression).Newest(after, upTo, 100, zoned(t, "Europe/Paris"), after)
		if len(newest) != 100 {
			t.Fatalf("%s: there are %d", expression, len(newest))
		}
		for i, at := range newest {
			if want := upTo.Truncate(time.Second).Add(time.Duration(i-99) * time.Second); !at.Equal(want) {
				t.Errorf("%s: number %d is %v, want %v", expression, i, at, want)
			}
		}
	}
	c := crontab(t, "@yearly")
	if newest := c.Newest(after, upTo, 100, nil, after); len(newest) != 10 || !newest[0].Equal(moment(t, "2017-01-01T00:00:00Z")) {
		t.Errorf("there are %v", newest)
	}
	if newest := c.Newest(after, upTo, 0, nil, after); len(newest) != 0 {
		t.Errorf("of none there are %v", newest)
	}
}

func TestCrontabEffect(t *testing.T) {
	for _, test := range []struct{ zone, crontab, at, want string }{
		{"Europe/Paris", "30 2 * * *", "2026-03-29T03:00:00+02:00", "02:30 does not exist on 2026-03-29: fires right after the gap"},
		{"Europe/Paris", "5 2,3 * * *", "2026-03-29T03:05:00+02:00", ""},
		{"Europe/Paris", "7 30 2 * * *", "2026-03-29T03:00:00+02:00", "02:30:07 does not exist on 2026-03-29: fires right after the gap"},
		{"Europe/Paris", "0 3 * * *", "2026-03-29T03:00:00+02:00", ""},
		{"Europe/Paris", "30 2 * * *", "2026-03-30T02:30:00+02:00", ""},
		{"Europe/Paris", "* * * * *", "2026-03-29T03:00:00+02:00", ""},
		{"Europe/Paris", "30 2 * * *", "2026-10-25T02:30:00+02:00", "02:30 comes twice: fires the first time only"},
		{"Europe/Paris", "30 3 * * *", "2026-10-25T03:30:00+01:00", ""},
		{"Europe/Paris", "0 3 * * *", "2026-10-25T03:00:00+01:00", ""},
		{"Europe/Paris", "59 1 * * *", "2026-10-25T01:59:00+02:00", ""},
		{"Europe/Paris", "30 * * * *", "2026-10-25T02:30:00+02:00", "02:30 comes twice: the first"},
		{"Europe/Paris", "30 * * * *", "2026-10-25T02:30:00+01:00", "02:30 comes twice: the second"},
		{"Europe/Paris", "0 * * * *", "2026-10-25T02:00:00+01:00", "02:00 comes twice: the second"},
		{"Europe/Paris", "30 * * * *", "2026-10-25T03:30:00+01:00", ""},
		{"Antarctica/Troll", "30 2 * * *", "2026-10-25T02:30:00+02:00", "02:30 comes twice: fires the first time only"},
		{"Europe/Paris", "@every 30m", "2026-10-25T02:30:00+02:00", ""},
		{"UTC", "30 2 * * *", "2026-10-25T02:30:00Z", ""},
	} {
		at := moment(t, test.at)
		effect := crontab(t, test.crontab).ClockChange(at, zoned(t, test.zone))
		if effect.String() != test.want || !effect.At.Equal(at) {
			t.Errorf("%q in %s at %s: %q, want %q", test.crontab, test.zone, test.at, effect, test.want)
		}
	}
}

func TestCrontabLeftOut(t *testing.T) {
	for _, test := range []struct {
		zone, crontab, after, upTo string
		want                       []string
	}{
		{"Europe/Paris", "*/30 2 * * *", "2026-01-01T00:00:00Z", "2027-12-31T00:00:00Z",
			[]string{"02:00 does not exist on 2026-03-29: left out", "02:00 does not exist on 2027-03-28: left out"}},
		{"Europe/Paris", "30 2 * * *", "2026-01-01T00:00:00Z", "2027-12-31T00:00:00Z", nil},
		{"Europe/Paris", "*/30 4 * * *", "2026-01-01T00:00:00Z", "2027-12-31T00:00:00Z", nil},
		{"Europe/Paris", "@every 1h", "2026-01-01T00:00:00Z", "2027-12-31T00:00:00Z", nil},
		{"Pacific/Apia", "0 12 * * *", "2011-12-29T00:00:00Z", "2012-01-02T00:00:00Z", []string{"12:00 does not exist on 2011-12-30: left out"}},
		{"Pacific/Apia", "0 12 * * *", "2011-12-29T00:00:00Z", "2011-12-30T10:00:00Z", []string{"12:00 does not exist on 2011-12-30: left out"}},
		{"Pacific/Apia", "0 12 * * *", "2011-12-29T00:00:00Z", "2011-12-30T09:59:59Z", nil},
		{"Pacific/Apia", "0 12 * * *", "2011-12-30T10:00:00Z", "2012-01-02T00:00:00Z", nil},
		{"Antarctica/Casey", "0 4 * * *", "2018-10-06T00:00:00Z", "2018-10-08T00:00:00Z", []string{"04:00 does not exist on 2018-10-07: left out"}},
		{"Antarctica/Troll", "0 2 * * *", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z", nil},
	} {
		var got []string
		for _, effect := range crontab(t, test.crontab).LeftOut(moment(t, test.after), moment(t, test.upTo), zoned(t, test.zone)) {
			got = append(got, effect.String())
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%q in %s: %q, want %q", test.crontab, test.zone, got, test.want)
		}
	}
}
