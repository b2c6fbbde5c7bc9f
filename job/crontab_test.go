package job_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

// zoned loads a time zone that a test needs.
func zoned(t testing.TB, name string) *time.Location {
	t.Helper()
	zone, err := job.LoadZone(name)
	if err != nil {
		t.Fatal(err)
	}
	return zone
}

// crontab parses an expression that a test needs.
func crontab(t testing.TB, expression string) job.Crontab {
	t.Helper()
	c, err := job.ParseCrontab(expression)
	if err != nil {
		t.Fatalf("%q: %v", expression, err)
	}
	return c
}

// moment reads an RFC 3339 instant that a test needs.
func moment(t testing.TB, s string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// upcoming returns the next instants after a time, at most limit, in the zone.
func upcoming(c job.Crontab, after time.Time, limit int, in *time.Location) []string {
	var all []string
	for len(all) < limit {
		at, ok := c.Next(after, in, after)
		if !ok {
			break
		}
		all, after = append(all, at.In(in).Format(time.RFC3339)), at
	}
	return all
}

// Two spellings of each line mean the same; the right one is plain.
func TestCrontabSpellings(t *testing.T) {
	for _, same := range [][2]string{
		{"0 0 * * 7", "0 0 * * 0"},
		{"0 0 * * sun", "0 0 * * 0"},
		{"0 0 * * SUN", "0 0 * * 0"},
		{"0 0 * * 5-7", "0 0 * * 0,5,6"},
		{"0 0 * * FRI-SUN", "0 0 * * 0,5,6"},
		{"0 0 * * fri-7", "0 0 * * 0,5,6"},
		{"0 0 * * Sun-Tue", "0 0 * * 0,1,2"},
		{"0 0 * * SUN-SUN", "0 0 * * 0"},
		{"0 0 * * 7-7", "0 0 * * 0"},
		{"0 0 * * 7-sun", "0 0 * * 0"},
		{"0 0 * * 0-7", "0 0 * * 0,1,2,3,4,5,6"},
		{"0 0 * * 1-7/2", "0 0 * * 0,1,3,5"},
		{"0 0 * * 0-7/2", "0 0 * * 0,2,4,6"},
		{"0 0 * * 2/3", "0 0 * * 2,5"},
		{"0 0 * * 1/2", "0 0 * * 0,1,3,5"},
		{"0 0 * * 7/2", "0 0 * * 0"},
		{"0 0 * * mon-wed/2", "0 0 * * 1,3"},
		{"0 0 * * 1,3,sat", "0 0 * * 1,3,6"},
		{"0 0 * * WED", "0 0 * * 3"},
		{"0 0 1 JAN *", "0 0 1 1 *"},
		{"0 0 1 mar-May,dec *", "0 0 1 3,4,5,12 *"},
		{"0 0 1 jul *", "0 0 1 7 *"},
		{"5/15 0 * * *", "5,20,35,50 0 * * *"},
		{"10-40/15 0 * * *", "10,25,40 0 * * *"},
		{"  0\t0  *   * * ", "0 0 * * *"},
		{"00 007 01 02 *", "0 7 1 2 *"},
		{"*/60 * * * *", "0 * * * *"},
		{"0 30 9 * * 1", "30 9 * * 1"},
		{"@yearly", "0 0 1 1 *"},
		{"@annually", "0 0 1 1 *"},
		{"@monthly", "0 0 1 * *"},
		{"@weekly", "0 0 * * 0"},
		{"@daily", "0 0 * * *"},
		{"@midnight", "0 0 * * *"},
		{"@hourly", "0 * * * *"},
		{" @hourly ", "0 * * * *"},
	} {
		after := moment(t, "2026-01-15T10:07:30Z")
		got := upcoming(crontab(t, same[0]), after, 20, time.UTC)
		want := upcoming(crontab(t, same[1]), after, 20, time.UTC)
		if len(got) != 20 || !slices.Equal(got, want) {
			t.Errorf("%q gives %q, and %q gives %q", same[0], got, same[1], want)
		}
	}
}

func TestCrontabRefused(t *testing.T) {
	for expression, want := range map[string]string{ // the message
		"":                                      "empty",
		"   ":                                   "empty",
		"* * * *":                               "has 4 fields; must have five",
		"0 0 0 1 1 * 2027":                      "has 7 fields",
		"TZ=UTC 0 0 * * *":                      "given as timezone",
		"CRON_TZ=UTC 0 0 * * *":                 "given as timezone",
		"TZ=UTC":                                "given as timezone",
		"60 * * * *":                            `minute "60" must be *, or values from 0 to 59, ranges such as 1-3, steps such as */2, or a list of them with commas`,
		"-1 * * * *":                            "minute",
		"+5 * * * *":                            "minute",
		"5+ * * * *":                            "minute",
		"1.5 * * * *":                           "minute",
		"1,,2 * * * *":                          "minute",
		", * * * *":                             "minute",
		"1, * * * *":                            "minute",
		"* 24 * * *":                            `hour "24" must be *, or values from 0 to 23`,
		"* 5-25 * * *":                          "hour",
		"* 22-4 * * *":                          `hour "22-4" ends before it begins; write it as two: 22-23,0-4`,
		"0 0 0 * *":                             `day of month "0" must be *, or values from 1 to 31`,
		"0 0 32 * *":                            "day of month",
		"0 0 L * *":                             "L for the last day",
		"0 0 LW * *":                            "W for the nearest workday",
		"0 0 15W * *":                           "W for the nearest workday",
		"0 0 ? * *":                             "write * instead",
		"? 0 1 * *":                             "write * instead",
		"0 0 1 0 *":                             `month "0" must be *, or values from 1 to 12 (or JAN to DEC)`,
		"0 0 1 13 *":                            "month",
		"0 0 1 janu *":                          "month",
		"0 0 1 NOV-FEB *":                       "write it as two: NOV-12,1-FEB",
		"0 0 1 mon *":                           "month",
		"0 0 * * 8":                             `day of week "8" must be *, or values from 0 to 7 (or SUN to SAT`,
		"0 0 * * 5L":                            "L for the last day",
		"0 0 * * WEDNESDAY":                     `day of week "WEDNESDAY" must be *`,
		"5,61 * * * *":                          `minute "61" must be`,
		"0 0 * * 1#2":                           "n-th weekday",
		"0 0 * * FRI-MON":                       "write it as two: FRI-6,0-MON",
		"0 0 * * 7-2":                           "write it as 0-2",
		"0 0 * * 1-8":                           "day of week",
		"0 0 * * 8-7":                           "day of week",
		"0 0 * * 8/2":                           "day of week",
		"0 0 * * Monday":                        "day of week",
		"0 0 * * ?":                             "write * instead",
		"60 0 0 * * *":                          "second \"60\"",
		"*/0 * * * *":                           "step",
		"*/-1 * * * *":                          "step",
		"*/ * * * *":                            "step",
		"*/a * * * *":                           "step",
		"*/5/5 * * * *":                         "step",
		"*/99999999999999999999 * * * *":        "step",
		"0 0 * * 1/0":                           "step",
		"1-2-3 * * * *":                         "minute",
		"*-5 * * * *":                           "minute",
		"5-* * * * *":                           "minute",
		"- * * * *":                             "minute",
		"** * * * *":                            "minute",
		"0 0 30 2 *":                            "never fires",
		"0 0 30,31 FEB *":                       "never fires",
		"0 0 31 2,4,6,9,11 *":                   "never fires",
		"0 0 31 4 */2":                          "never fires",
		"@reboot":                               "@reboot",
		"@Daily":                                "must be @yearly",
		"@daily 5":                              "@daily 5",
		"@":                                     "must be @yearly",
		"@every":                                "must be followed by one duration",
		"@every 1 h":                            "must be followed by one duration",
		"@every1h":                              "must be @yearly",
		"@every soon":                           "must be a duration",
		"@every -1h":                            "must not be negative",
		"@every 0":                              "at least 1s",
		"@every 999ms":                          "at least 1s",
		"@every 1s500us":                        "whole milliseconds",
		"@at":                                   "Unix seconds",
		"@at soon":                              "Unix seconds",
		"@at -1":                                "Unix seconds",
		"@at 1.5":                               "Unix seconds",
		"@at 1 2":                               "Unix seconds",
		"@at 253402300800":                      "Unix seconds",
		"@at 99999999999999999999":              "Unix seconds",
		"0 0 1 1 *\x00":                         "day of week",
		strings.Repeat("1,", 500) + "1 * * * *": "at most 1000",
	} {
		c, err := job.ParseCrontab(expression)
		switch {
		case err == nil:
			t.Errorf("%q is taken", expression)
		case !strings.Contains(err.Error(), want):
			t.Errorf("%q: the message lacks %q: %v", expression, want, err)
		case c != (job.Crontab{}):
			t.Errorf("%q is refused, yet a crontab is given", expression)
		}
	}
}

func TestCrontabText(t *testing.T) {
	c := crontab(t, " 0  9 *\t* mon-fri ")
	if c.String() != "0 9 * * mon-fri" {
		t.Errorf("it is written as %q", c)
	}
	if again := crontab(t, c.String()); again != c {
		t.Errorf("it is read back as %q", again)
	}
	if _, ok := (job.Crontab{}).Next(time.Unix(0, 0), time.UTC, time.Unix(0, 0)); ok {
		t.Error("the zero crontab fires")
	}
	if _, ok := (job.Crontab{}).Last(time.Unix(0, 0), time.Unix(1e9, 0), time.UTC, time.Unix(0, 0)); ok {
		t.Error("the zero crontab has fired")
	}
}

func TestLoadZone(t *testing.T) {
	for _, name := range []string{"UTC", "Europe/Paris", "America/Argentina/Buenos_Aires", "Etc/GMT+5", "Asia/Kathmandu", "EST5EDT"} {
		if zone, err := job.LoadZone(name); err != nil || zone.String() != name {
			t.Errorf("%q: %v, %v", name, zone, err)
		}
	}
	for _, name := range []string{
		"", "Local", "localtime", "posixrules", "right/Europe/Paris", "posix/Europe/Paris", "Europe/Atlantis", "Europe", "+01:00", "../UTC",
		"/etc/localtime", "Factory", "europe/paris", " UTC", "zone.tab",
	} {
		if zone, err := job.LoadZone(name); err == nil {
			t.Errorf("%q is taken for %v", name, zone)
		} else if !strings.Contains(err.Error(), "Europe/Paris") {
			t.Errorf("%q: the message does not say what would be right: %v", name, err)
		}
	}
}
