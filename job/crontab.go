package job

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Crontab is a parsed crontab expression: five fields, six with leading seconds, a descriptor such as @daily, "@every
// <duration>" or "@at <unix seconds>". It is a value: comparable, and safe for concurrent use. The zero value never
// fires. docs/time.md has the rules, including those for daylight saving time.
type Crontab struct {
	expression string        // without H
	submitted  string        // with H; empty if it is the expression
	fields     fields        // of five or six fields, or a descriptor
	every      time.Duration // of @every, whole milliseconds
	at         int64         // of @at, Unix seconds
	kind       crontabKind
}

type crontabKind uint8

const (
	kindNone crontabKind = iota
	kindFields
	kindEvery
	kindAt
)

// minEvery is the shortest interval that @every takes.
const minEvery = time.Second

// maxCrontabBytes leaves room for six fields that list each of their values.
const maxCrontabBytes = 1000

// finalSecond is the last second of the year 9999, beyond which RFC 3339 has no instants.
const finalSecond = 253402300799

// descriptor returns the fields that a name such as @daily stands for.
func descriptor(name string) (fields string, known bool) {
	switch name {
	case "@yearly", "@annually":
		return "0 0 1 1 *", true
	case "@monthly":
		return "0 0 1 * *", true
	case "@weekly":
		return "0 0 * * 0", true
	case "@daily", "@midnight":
		return "0 0 * * *", true
	case "@hourly":
		return "0 * * * *", true
	default:
		return "", false
	}
}

// ParseCrontab reads a crontab expression. It refuses an expression that matches no date, such as the 30th of February.
// It refuses H too, which [CrontabOf] reads. The error names the wrong field and a correct form, in one line. It does
// not name the JSON member.
func ParseCrontab(expression string) (Crontab, error) {
	if len(expression) > maxCrontabBytes {
		return Crontab{}, fmt.Errorf("is %d bytes; at most %d are allowed", len(expression), maxCrontabBytes)
	}
	words := strings.Fields(expression)
	if len(words) == 0 {
		return Crontab{}, errors.New(
			`is empty; must be a crontab such as "30 9 * * 1-5", @daily, "@every 10m" or "@at 1798120800"`)
	}
	c := Crontab{expression: strings.Join(words, " ")}
	var err error
	switch first := words[0]; {
	case strings.Contains(first, "="): // TZ= and CRON_TZ=, which some crontabs have
		return Crontab{}, fmt.Errorf("must not begin with %q; a time zone is given as timezone", first)
	case first == "@every":
		c.kind = kindEvery
		c.every, err = parseEvery(words[1:])
	case first == "@at":
		c.kind = kindAt
		c.at, err = parseAt(words[1:])
	case first[0] == '@':
		named, known := descriptor(first)
		if !known || len(words) > 1 {
			return Crontab{}, fmt.Errorf("%q is not known; must be @yearly, @annually, @monthly, @weekly, @daily, "+
				"@midnight, @hourly, "+
				`"@every <duration>" or "@at <unix seconds>"`, c.expression)
		}
		words = strings.Fields(named)
		fallthrough
	default:
		c.kind = kindFields
		c.fields, err = parseFields(words)
	}
	if err != nil {
		return Crontab{}, err
	}
	return c, nil
}

func parseEvery(words []string) (time.Duration, error) {
	if len(words) != 1 {
		return 0, errors.New(`@every must be followed by one duration without blanks, such as "@every 1h30m" or "@every 2d"`)
	}
	d, err := ParseDuration(words[0])
	switch {
	case err != nil:
		return 0, fmt.Errorf("@every %w", err)
	case time.Duration(d) < minEvery:
		return 0, fmt.Errorf("@every must be at least %s, not %q", minEvery, words[0])
	case time.Duration(d)%time.Millisecond != 0:
		return 0, fmt.Errorf("@every must be whole milliseconds, not %q", words[0])
	}
	return time.Duration(d), nil
}

func parseAt(words []string) (int64, error) {
	bad := errors.New(
		`@at must be followed by Unix seconds from 0 to 253402300799 (the end of the year 9999), such as "@at 1798120800"`)
	if len(words) != 1 || !digits(words[0]) {
		return 0, bad
	}
	at, err := strconv.ParseInt(words[0], 10, 64)
	if err != nil || at > finalSecond {
		return 0, bad
	}
	return at, nil
}

func digits(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

// String returns the expression as it was given, with single blanks.
func (c Crontab) String() string { return cmp.Or(c.submitted, c.expression) }

// Resolved returns the expression with values in place of each H.
func (c Crontab) Resolved() string { return c.expression }

// Next returns the first instant strictly after a given one, in UTC; false if there is none. Wall times are those of
// the zone (nil for UTC). The anchor is the beginning of @every: its instants are the anchor plus 0, 1, 2... intervals.
// Other crontabs ignore the anchor. Instants are whole seconds; @every keeps the milliseconds of the anchor, rounded
// up. There are no instants after the year 9999, and none after a hundred years without an instant, which happens if
// all matching wall times lie in gaps.
func (c Crontab) Next(after time.Time, in *time.Location, anchor time.Time) (time.Time, bool) {
	switch c.kind {
	case kindFields:
		if at, ok := c.fields.next(after.Unix()+1, zoneOf(in)); ok {
			return time.Unix(at, 0).UTC(), true
		}
	case kindEvery:
		// A multiple of the interval, not a sum of intervals, so that it stays on its grid for as long as it runs.
		first, every := CeilMilli(anchor).UnixMilli(), c.every.Milliseconds()
		at := first
		if now := after.UnixMilli(); now >= first {
			at += ((now-first)/every + 1) * every
		}
		if at <= finalSecond*1000+999 {
			return time.UnixMilli(at).UTC(), true
		}
	case kindAt:
		if at := time.Unix(c.at, 0).UTC(); at.After(after) {
			return at, true
		}
	default: // the zero value
	}
	return time.Time{}, false
}

// Last returns the latest instant in (after, upTo]; false if there is none. It takes about as long as Next, however
// many instants lie in between.
func (c Crontab) Last(after, upTo time.Time, in *time.Location, anchor time.Time) (time.Time, bool) {
	var last time.Time
	switch c.kind {
	case kindFields:
		at, ok := c.fields.last(after.Unix()+1, min(upTo.Unix(), finalSecond), zoneOf(in))
		if !ok {
			return time.Time{}, false
		}
		last = time.Unix(at, 0).UTC()
	case kindEvery:
		first, now := CeilMilli(anchor).UnixMilli(), min(upTo.UnixMilli(), finalSecond*1000+999)
		if now < first {
			return time.Time{}, false
		}
		last = time.UnixMilli(now - (now-first)%c.every.Milliseconds()).UTC()
	case kindAt:
		last = time.Unix(c.at, 0).UTC()
	default:
		return time.Time{}, false
	}
	if !last.After(after) || last.After(upTo) {
		return time.Time{}, false
	}
	return last, true
}

// Newest returns the latest instants in (after, upTo], at most limit of them, ascending. A crontab catches up after an
// outage by it. Its cost depends on the limit only.
func (c Crontab) Newest(after, upTo time.Time, limit int, in *time.Location, anchor time.Time) []time.Time {
	var newest []time.Time
	for len(newest) < limit {
		at, ok := c.Last(after, upTo, in, anchor)
		if !ok {
			break
		}
		newest = append(newest, at)
		upTo = at.Add(-1)
	}
	slices.Reverse(newest)
	return newest
}

// count returns the number of instants in (after, upTo]. Instants of @every are computed; others are counted one by
// one, up to a limit.
func (c Crontab) count(after, upTo time.Time, limit int, in *time.Location, anchor time.Time) int {
	if c.kind == kindEvery {
		first := CeilMilli(anchor).UnixMilli()
		passed := func(t time.Time) int { // up to and including a time
			if t.UnixMilli() < first {
				return 0
			}
			return int((t.UnixMilli()-first)/c.every.Milliseconds()) + 1
		}
		return passed(upTo) - passed(after)
	}
	n := 0
	for n < limit {
		at, ok := c.Next(after, in, anchor)
		if !ok || at.After(upTo) {
			break
		}
		after = at
		n++
	}
	return n
}
