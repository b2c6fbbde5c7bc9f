package job_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

func TestParseInstant(t *testing.T) {
	tests := map[string]string{ // the instant that is read; empty if it is refused
		"2026-12-24T14:00:00Z":              "2026-12-24T14:00:00.000Z",
		"2026-12-24t14:00:00z":              "2026-12-24T14:00:00.000Z",
		"2026-12-24T15:00:00.25+01:00":      "2026-12-24T14:00:00.250Z",
		"2026-12-24T00:00:00-12:00":         "2026-12-24T12:00:00.000Z",
		"2026-12-24T14:00:00.000000001Z":    "2026-12-24T14:00:00.001Z",
		"2026-12-24T14:00:00.001000000000Z": "2026-12-24T14:00:00.001Z",
		"2026-12-24T14:00:00.0010000001Z":   "2026-12-24T14:00:00.001Z", // digits beyond the nanosecond are ignored
		"2026-12-31T23:59:59.9991Z":         "2027-01-01T00:00:00.000Z",
		"2028-02-29T00:00:00Z":              "2028-02-29T00:00:00.000Z",
		"1970-01-01T00:00:00Z":              "1970-01-01T00:00:00.000Z",
		"1970-01-01T01:00:00+01:00":         "1970-01-01T00:00:00.000Z",
		"9999-12-31T23:59:59.999Z":          "9999-12-31T23:59:59.999Z",
		"9999-12-31T23:59:59.9991Z":         "",
		"9999-12-31T23:59:59-00:01":         "",
		"1970-01-01T00:00:00+00:01":         "",
		"1969-12-31T23:59:59.9999Z":         "",
		"0000-01-01T00:00:00Z":              "",
		"2027-02-29T00:00:00Z":              "",
		"2026-12-24T24:00:00Z":              "",
		"2026-12-24T14:00:00":               "",
		"2026-12-24 14:00:00Z":              "",
		"2026-12-24T14:00Z":                 "",
		"2026-12-24":                        "",
		"2026-12-24T14:00:00,5Z":            "",
		"2026-12-24T14:00:00+0100":          "",
		"2026-12-24T14:00:00+23:59":         "2026-12-23T14:01:00.000Z",
		"2026-12-24T14:00:00+24:00":         "",
		"2026-12-24T14:00:00+01:60":         "",
		"2026-12-24T4:00:00Z":               "",
		"2026-12-24T14:00:60Z":              "",
		"2026-12-24T14:00:00.Z":             "",
		"2026-12-24T14:00:00+25:00":         "",
		" 2026-12-24T14:00:00Z":             "",
		"+2026-12-24T14:00:00Z":             "",
		"1798120800":                        "",
		"":                                  "",
	}
	for s, want := range tests {
		got, err := job.ParseInstant(s)
		switch {
		case want == "" && err == nil:
			t.Errorf("%q is read as %v, want an error", s, got)
		case want != "" && (err != nil || job.FormatTime(got) != want || got.Location() != time.UTC):
			t.Errorf("%q is read as %v, %v, want %s", s, got, err, want)
		}
	}
}

// Durations are written as people write them.
func TestDurationText(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 6 * time.Hour: "6h", 90 * time.Minute: "1h30m", 5 * time.Minute: "5m", time.Hour + time.Second: "1h0m1s",
		24 * time.Hour: "24h", 36 * time.Hour: "36h", 30 * 24 * time.Hour: "30d", 7500 * time.Microsecond: "7.5ms",
		10 * time.Second: "10s", 49 * time.Hour: "49h",
	} {
		if got := job.Duration(d).String(); got != want {
			t.Errorf("%s is written %q, want %q", d, got, want)
		}
	}
}

func TestParseDuration(t *testing.T) {
	day := 24 * time.Hour
	tests := map[string]time.Duration{ // -1 if it is refused
		"0": 0, "0s": 0, "500ms": 500 * time.Millisecond, "30s": 30 * time.Second, "1h30m": 90 * time.Minute, "1.5h": 90 * time.Minute,
		"2d": 2 * day, "1w": 7 * day, "1w2d3h": 9*day + 3*time.Hour, "0.5d": 12 * time.Hour, "1d500ms": day + 500*time.Millisecond,
		"3us": 3 * time.Microsecond, "3\u00b5s": 3 * time.Microsecond, "3\u03bcs": 3 * time.Microsecond, "1ns": 1, "1h1h": 2 * time.Hour,
		"5200w": 36400 * day, "3144960000s": 36400 * day,

		"": -1, "5": -1, "1h0": -1, "00": -1, "s": -1, "d": -1, ".d": -1, "-5s": -1, "+5s": -1, " 5s": -1, "5 s": -1, "5s ": -1, "1e3s": -1,
		"1.2.3d": -1, "1y": -1, "1D": -1, "1S": -1, "1dd": -1, "5201w": -1, "15250w100w": -1, "200000d200000d": -1, "99999999999999999999w": -1,
		"9223372036854775807ns1ns": -1, "3144960000000000000ns": 36400 * day, "3144960000000000001ns": -1, "NaNd": -1, "Infd": -1,
	}
	for s, want := range tests {
		got, err := job.ParseDuration(s)
		switch {
		case want < 0 && err == nil:
			t.Errorf("%q is read as %v, want an error", s, got)
		case want >= 0 && (err != nil || time.Duration(got) != want):
			t.Errorf("%q is read as %v, %v, want %v", s, got, err, want)
		}
		if err == nil {
			if again, err := job.ParseDuration(got.String()); err != nil || again != got {
				t.Errorf("%q is written as %s and read back as %v, %v", s, got, again, err)
			}
		}
	}
}

func TestCeilMilli(t *testing.T) {
	whole := time.UnixMilli(1_900_000_000_123)
	for _, test := range []struct{ add, want time.Duration }{
		{0, 0}, {1, time.Millisecond}, {time.Millisecond - 1, time.Millisecond}, {time.Millisecond, time.Millisecond},
	} {
		if got := job.CeilMilli(whole.Add(test.add)); !got.Equal(whole.Add(test.want)) {
			t.Errorf("%v more is %v, want %v", test.add, got, whole.Add(test.want))
		}
	}
}

// TestTimesThatAreRefused: the message names a correct form.
func TestTimesThatAreRefused(t *testing.T) {
	for s, want := range map[string]string{
		"2026-02-30T09:00:00Z":                "must be a day that there is: February 2026 has the days 01 to 28",
		"2028-02-30t09:00:00.5+01:00":         "must be a day that there is: February 2028 has the days 01 to 29",
		"2026-04-31T09:00:00Z":                "must be a day that there is: April 2026 has the days 01 to 30",
		"2026-12-00T09:00:00Z":                "must be a day that there is: December 2026 has the days 01 to 31",
		"2026-13-01T09:00:00Z":                "must have a month from 01 to 12",
		"2026-12-24T24:00:00Z":                "must have a time of day from 00:00:00 to 23:59:59",
		"2026-12-24T23:59:60.25+01:00":        "must have a time of day from 00:00:00 to 23:59:59",
		"2026-02-30T24:00:00Z":                "must be an RFC 3339 instant",
		"2026-12-24T09:00:00":                 "must be an RFC 3339 instant",
		"2026-12-24":                          "must be an RFC 3339 instant",
		"tomorrow":                            "must be an RFC 3339 instant",
		"":                                    "must be an RFC 3339 instant",
		"\xff\xff\xff\xff-\xff\xff-\xff\xffT": "must be an RFC 3339 instant",
	} {
		if _, err := job.ParseInstant(s); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("of %q it says %v, want %s", s, err, want)
		}
	}
	for s, want := range map[string]string{
		"36401d":                       "must be at most 5200w",
		"99999999999999999999w":        "must be at most 5200w",
		"9999999999h":                  "must be at most 5200w",
		"5200w1ns":                     "must be at most 5200w",
		strings.Repeat("9", 400) + "s": "must be at most 5200w",
		"-5s":                          "must not be negative",
		"-1w":                          "must not be negative",
		"--5s":                         "must be a duration such as",
		"99999999999999999999y":        "must be a duration such as",
		"5":                            "must be a duration such as",
		"soon":                         "must be a duration such as",
	} {
		_, err := job.ParseDuration(s)
		if err == nil || !strings.HasPrefix(err.Error(), want) || !strings.Contains(err.Error(), strconv.Quote(s)) {
			t.Errorf("of %q it says %v, want %s", s, err, want)
		}
	}
}
