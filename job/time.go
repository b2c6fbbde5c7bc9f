package job

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Past is the treatment of instants that have already passed when a job is submitted.
type Past string

// The treatments of past instants. The zero value stands for the default: fire when the submission creates the job;
// skip when it replaces one, so that an edited job does not repeat its deliveries.
const (
	PastDefault Past = ""
	PastFire    Past = "fire"
	PastSkip    Past = "skip"
	PastReject  Past = "reject"
)

// timeLayout is RFC 3339 in UTC to the millisecond, Carillon's resolution.
const timeLayout = "2006-01-02T15:04:05.000Z"

// FormatTime writes an instant as the API, the logs and the callbacks show it.
func FormatTime(t time.Time) string { return t.UTC().Format(timeLayout) }

// CeilMilli rounds up to the millisecond, so that a rounded instant is never early.
func CeilMilli(t time.Time) time.Time {
	if r := t.Truncate(time.Millisecond); !r.Equal(t) {
		return r.Add(time.Millisecond)
	}
	return t
}

var errInstant = errors.New(
	"must be an RFC 3339 instant with an offset, such as 2026-12-24T14:00:00Z or 2026-12-24T15:00:00.250+01:00")

// ParseInstant reads an RFC 3339 instant with any offset and any number of fractional digits, rounded up to the
// millisecond, in UTC. Instants before 1970 are refused.
func ParseInstant(s string) (time.Time, error) {
	t, ok := readInstant(s)
	if !ok {
		return time.Time{}, misread(s)
	}
	if t.Unix() < 0 { // before it is rounded
		return time.Time{}, errors.New("must not lie before 1970-01-01T00:00:00Z")
	}
	t = CeilMilli(t).UTC()
	if t.Year() > 9999 {
		return time.Time{}, errors.New("must not lie after the year 9999, in UTC")
	}
	return t, nil
}

// readInstant reads an instant; ok is false if the text is not one.
func readInstant(s string) (t time.Time, ok bool) {
	err := t.UnmarshalText([]byte(strings.ToUpper(s))) // RFC 3339 allows "t" and "z"
	return t, err == nil && strict(s)
}

// misread returns the error for a text that is no instant. It names the number that is out of range, if the rest of the
// text is right.
func misread(s string) error {
	with := func(number string, at int) (time.Time, bool) {
		if len(s) < at+len(number) {
			return time.Time{}, false
		}
		return readInstant(s[:at] + number + s[at+len(number):])
	}
	if first, ok := with("01", len("2026-12-")); ok {
		last := first.AddDate(0, 1, -1)
		return fmt.Errorf("must be a day that there is: %s has the days 01 to %d", last.Format("January 2006"), last.Day())
	}
	if _, ok := with("01", len("2026-")); ok {
		return errors.New("must have a month from 01 to 12")
	}
	if _, ok := with("00:00:00", len("2026-12-24T")); ok {
		return errors.New("must have a time of day from 00:00:00 to 23:59:59")
	}
	return errInstant
}

// strict reports whether RFC 3339 allows a text that package time has read as an instant. That package also accepts an
// hour of one digit, a decimal comma and impossible offsets (https://go.dev/issue/54580).
func strict(s string) bool {
	if s[len("2006-01-02T15")] != ':' || strings.Contains(s, ",") {
		return false
	}
	if zone := s[len(s)-len("+01:00"):]; zone[len(zone)-1] <= '9' {
		return zone[1:3] <= "23" && zone[4:] <= "59"
	}
	return true // "Z"
}

// Duration is a length of time. Its text form has the units "d" (24 h) and "w" (7 d) besides those of
// [time.ParseDuration], as in "1d12h". Days and weeks are elapsed time, also when clocks change.
type Duration time.Duration

// longest is the longest duration that a field can have.
const longest = 5200 * 7 * 24 * time.Hour

// ParseDuration reads a duration's text form. It must be neither negative nor longer than 5200w, a hundred years.
func ParseDuration(s string) (Duration, error) {
	bad := fmt.Errorf("must be a duration such as 500ms, 30s, 5m, 1h30m, 2d or 1w, not %q", s)
	if digits, negative := strings.CutPrefix(s, "-"); negative {
		if _, err := ParseDuration(digits); err == nil {
			return 0, fmt.Errorf("must not be negative; %q is", s)
		}
	}
	if s == "0" {
		return 0, nil
	}
	var total time.Duration
	rest := s
	for rest != "" {
		number := strings.TrimLeft(rest, "0123456789.")
		value := rest[:len(rest)-len(number)]
		after := strings.TrimLeft(number, "abcdefghijklmnopqrstuvwxyzµμ")
		unit := number[:len(number)-len(after)]
		rest = after

		part, err := parsePart(value, unit)
		if err != nil {
			return 0, bad
		}
		total = min(total+part, longest+1)
	}
	switch {
	case s == "":
		return 0, bad
	case total > longest:
		return 0, fmt.Errorf("must be at most 5200w, a hundred years, not %q", s)
	}
	return Duration(total), nil
}

// parsePart reads one number and its unit. A value above longest is returned as a little more than longest.
func parsePart(value, unit string) (time.Duration, error) {
	scale := 1.0
	switch unit {
	case "d":
		scale, unit = 24, "h"
	case "w":
		scale, unit = 7*24, "h"
	}
	one, err := time.ParseDuration("1" + unit)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseFloat(value, 64) // infinity, if there are too many digits
	switch exact := n * scale * float64(one); {
	case exact > float64(longest):
		return longest + 1, nil
	case err != nil:
		return 0, err
	case scale == 1:
		return time.ParseDuration(value + unit) // this is exact
	default:
		return time.Duration(exact), nil
	}
}

// String writes the duration as people do, so that [ParseDuration] reads it back: 6h and not 6h0m0s, and whole days of
// more than one as 30d.
func (d Duration) String() string {
	const day = Duration(24 * time.Hour)
	if d > day && d%day == 0 {
		return strconv.FormatInt(int64(d/day), 10) + "d"
	}
	text := time.Duration(d).String()
	for _, nothing := range []string{"m0s", "h0m"} { // without the zeros
		if strings.HasSuffix(text, nothing) {
			text = text[:len(text)-2]
		}
	}
	return text
}

// MarshalText writes the duration so that [ParseDuration] reads it back.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads the text form, see [ParseDuration].
func (d *Duration) UnmarshalText(b []byte) (err error) {
	*d, err = ParseDuration(string(b))
	return err
}
