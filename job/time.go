package job

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Past says what becomes of instants that have already passed when a job is submitted.
type Past string

// The treatments of past instants. The zero value stands for the default: fire when the submission creates the job,
// skip when it replaces one, so that an edited job does not resend what it has delivered.
const (
	PastDefault Past = ""
	PastFire    Past = "fire"
	PastSkip    Past = "skip"
	PastReject  Past = "reject"
)

// timeLayout is RFC 3339 in UTC to the millisecond, Carillon's resolution.
const timeLayout = "2006-01-02T15:04:05.000Z"

// FormatTime writes an instant the way the API, the logs and the callbacks do.
func FormatTime(t time.Time) string { return t.UTC().Format(timeLayout) }

// CeilMilli rounds up to the millisecond, so that a rounded instant is never early.
func CeilMilli(t time.Time) time.Time {
	if r := t.Truncate(time.Millisecond); !r.Equal(t) {
		return r.Add(time.Millisecond)
	}
	return t
}

var errInstant = errors.New("must be an RFC 3339 instant with an offset, such as 2026-12-24T14:00:00Z or 2026-12-24T15:00:00.250+01:00")

// ParseInstant reads an RFC 3339 instant with any offset and any number of fractional digits, rounded up to the
// millisecond, in UTC. Instants before 1970 are refused.
func ParseInstant(s string) (time.Time, error) {
	var t time.Time
	if err := t.UnmarshalText([]byte(strings.ToUpper(s))); err != nil || !strict(s) { // RFC 3339 allows "t" and "z"
		return time.Time{}, errInstant
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

// strict tells whether an instant that package time has read is one that RFC 3339 allows; it also reads an hour of one
// digit, a decimal comma and impossible offsets (https://go.dev/issue/54580).
func strict(s string) bool {
	if s[len("2006-01-02T15")] != ':' || strings.Contains(s, ",") {
		return false
	}
	if zone := s[len(s)-len("+01:00"):]; zone[len(zone)-1] <= '9' {
		return zone[1:3] <= "23" && zone[4:] <= "59"
	}
	return true // "Z"
}

// Duration is a length of time whose text form takes "d" (24 h) and "w" (7 d) besides the units of Go's
// [time.ParseDuration], as in "1d12h". Days and weeks are elapsed time, whatever clocks do.
type Duration time.Duration

// ParseDuration reads a duration's text form. It must not be negative.
func ParseDuration(s string) (Duration, error) {
	bad := fmt.Errorf("must be a duration such as 500ms, 30s, 5m, 1h30m, 2d or 1w, not %q", s)
	var total time.Duration
	rest := s
	for rest != "" {
		number := strings.TrimLeft(rest, "0123456789.")
		value := rest[:len(rest)-len(number)]
		after := strings.TrimLeft(number, "abcdefghijklmnopqrstuvwxyzµμ")
		unit := number[:len(number)-len(after)]
		rest = after

		part, err := parsePart(value, unit)
		if err != nil || unit == "" && s != "0" || total+part < total {
			return 0, bad
		}
		total += part
	}
	if s == "" {
		return 0, bad
	}
	return Duration(total), nil
}

// parsePart reads one number and its unit.
func parsePart(value, unit string) (time.Duration, error) {
	scale := time.Duration(1)
	switch unit {
	case "d":
		scale, unit = 24, "h"
	case "w":
		scale, unit = 7*24, "h"
	}
	if scale == 1 {
		return time.ParseDuration(value + unit)
	}
	n, err := strconv.ParseFloat(value, 64)
	if err != nil || n*float64(scale)*float64(time.Hour) > float64(1<<62) {
		return 0, errors.New("out of range")
	}
	return time.Duration(n * float64(scale) * float64(time.Hour)), nil
}

// String writes the duration so that [ParseDuration] reads it back.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText writes the duration so that [ParseDuration] reads it back.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads what [ParseDuration] does.
func (d *Duration) UnmarshalText(b []byte) (err error) {
	*d, err = ParseDuration(string(b))
	return err
}
