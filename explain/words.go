package explain

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/history"
	"github.com/carillon-scheduler/carillon/job"
)

// moment writes a time for a sentence: in UTC, with milliseconds only if there are any.
func moment(t time.Time) string {
	return strings.Replace(job.FormatTime(t), ".000Z", "Z", 1)
}

// span writes a duration in its two largest units, as in "2 h 5 min". Negative durations lose their sign.
func span(d time.Duration) string {
	d = d.Abs()
	if d < time.Second {
		return strconv.FormatInt(d.Milliseconds(), 10) + " ms"
	}
	units := []struct {
		length    time.Duration
		one, many string
	}{
		{24 * time.Hour, " day", " days"}, {time.Hour, " h", " h"}, {time.Minute, " min", " min"}, {time.Second, " s", " s"},
	}
	for i, u := range units {
		n := d / u.length
		if n == 0 {
			continue
		}
		name := u.many
		if n == 1 {
			name = u.one
		}
		text := strconv.FormatInt(int64(n), 10) + name
		if i+1 < len(units) {
			if rest := d % u.length / units[i+1].length; rest > 0 {
				text += " " + strconv.FormatInt(int64(rest), 10) + units[i+1].many
			}
		}
		return text
	}
	return "0 s"
}

// number writes a count with commas, as in "1,234,567".
func number(n int) string {
	text := strconv.Itoa(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// ordinal writes "first" for 1.
func ordinal(n int) string {
	small := []string{"", "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"}
	if 0 < n && n < len(small) {
		return small[n]
	}
	end := "th"
	if n/10%10 != 1 {
		switch n % 10 {
		case 1:
			end = "st"
		case 2:
			end = "nd"
		case 3:
			end = "rd"
		}
	}
	return number(n) + end
}

// times writes "once" for 1.
func times(n int) string {
	switch n {
	case 1:
		return "once"
	case 2:
		return "twice"
	default:
		return number(n) + " times"
	}
}

// list joins parts as in "a, b and c".
func list(parts []string) string {
	if len(parts) < 2 {
		return strings.Join(parts, "")
	}
	last := len(parts) - 1
	return strings.Join(parts[:last], ", ") + " and " + parts[last]
}

// by writes who made a change, if that is known and keys are asked for.
func by(entry *history.Entry) string {
	if entry == nil || entry.By == "" || entry.By == "anyone" {
		return ""
	}
	return " by " + entry.By
}

// ago writes the distance of a time from the present.
func ago(t, now time.Time) string {
	if d := now.Sub(t).Abs(); d < time.Millisecond {
		return "just now"
	}
	if t.After(now) {
		return "in " + span(t.Sub(now))
	}
	return span(now.Sub(t)) + " ago"
}

// deviation writes the difference between the time of an attempt and the time for which it was meant.
func deviation(d time.Duration, than string) string {
	switch {
	case d == 0:
		return "at " + than
	case d < 0:
		return span(d) + " before " + than
	default:
		return span(d) + " after " + than
	}
}

// refusal writes why an attempt failed.
func refusal(status int, failure string) string {
	switch {
	case status != 0:
		return fmt.Sprintf("was refused with status %d", status)
	case failure != "":
		return "failed: " + strings.TrimRight(failure, ". ")
	default:
		return "failed"
	}
}

// of writes the state of some occurrences after their number.
func (c Code) of(n int) string {
	is, was, has := "is", "was", "has"
	if n != 1 {
		is, was, has = "are", "were", "have"
	}
	switch c {
	case Delivered:
		return was + " delivered"
	case Missed:
		return was + " missed"
	case Dead:
		return was + " given up"
	case Discarded:
		return was + " discarded"
	case Cancelled:
		return was + " cancelled"
	case Replaced:
		return was + " replaced"
	case Held:
		return is + " being sent"
	case Retrying, Released:
		return is + " being retried"
	case TenantPaused, JobPaused:
		return is + " paused"
	case DestinationDown, DestinationLimited:
		return map[bool]string{true: "waits", false: "wait"}[n == 1] + " for the destination"
	case Unknown, NotKept:
		return has + " an outcome that is not known"
	case Due, Backlog, LeaseOver:
		return is + " due"
	default:
		return map[bool]string{true: "waits", false: "wait"}[n == 1]
	}
}
