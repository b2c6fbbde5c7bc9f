package job

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Trouble is the outcome of an occurrence that was not delivered. A job keeps that of its latest instant.
type Trouble struct {
	// Missed is set if the occurrence was dropped by deadline or catch-up; otherwise it was given up and is a dead letter.
	Missed bool
	// Instant is the occurrence's instant.
	Instant time.Time
	// At is the time of the outcome; zero if it is unknown.
	At time.Time
	// Error is that of the last attempt, if it failed.
	Error string
}

// mostTroubleError bounds the error kept by a job, in bytes.
const mostTroubleError = 1000

// IsZero reports whether there is no trouble.
func (t Trouble) IsZero() bool { return t.Instant.IsZero() }

// Encode returns the trouble as stores keep it, or nothing if there is none: text of letters, digits, ".", "-" and "_".
// Such texts sort by their instants, and the empty one sorts first.
func (t Trouble) Encode() string {
	if t.IsZero() {
		return ""
	}
	kind, at := "failed", int64(0)
	if t.Missed {
		kind = "missed"
	}
	if !t.At.IsZero() {
		at = t.At.UnixMilli()
	}
	text := t.Error[:min(len(t.Error), mostTroubleError)]
	return fmt.Sprintf("%015d.%d.%s.%s",
		t.Instant.UnixMilli(), at, kind, base64.RawURLEncoding.EncodeToString([]byte(text)))
}

// DecodeTrouble is the inverse of [Trouble.Encode].
func DecodeTrouble(text string) (t Trouble, err error) {
	if text == "" {
		return t, nil
	}
	fields := strings.Split(text, ".")
	if len(fields) != 4 {
		return t, fmt.Errorf("decode trouble: %.40q", text)
	}
	instant, instantErr := strconv.ParseInt(fields[0], 10, 64)
	at, atErr := strconv.ParseInt(fields[1], 10, 64)
	failure, errorErr := base64.RawURLEncoding.DecodeString(fields[3])
	if instantErr != nil || atErr != nil || errorErr != nil {
		return t, fmt.Errorf("decode trouble: %.40q", text)
	}
	t = Trouble{Missed: fields[2] == "missed", Instant: time.UnixMilli(instant).UTC()}
	t.Error = strings.ToValidUTF8(string(failure), "") // the cut may lie within a character
	if at != 0 {
		t.At = time.UnixMilli(at).UTC()
	}
	return t, nil
}

// Settled returns the latest instant up to now at which the job's present revision had occurrences and no longer has
// pending ones; ok is false if there is none. Pending are the schedule's pending instants up to now.
//
// For a schedule that does not recur, instants that had passed when the revision was made count only if the whole
// schedule was planned. Otherwise some of them were skipped, or settled before.
func (j *Job) Settled(now time.Time, pending []time.Time) (at time.Time, ok bool) {
	waits := make(map[int64]bool, len(pending))
	for _, p := range pending {
		waits[p.UnixMilli()] = true
	}
	if j.Schedule.Recurs() {
		return j.settledTick(now, waits)
	}
	planned, err := j.Schedule.plan()
	if err != nil {
		return time.Time{}, false
	}
	whole := len(planned)*j.Schedule.Subscribers.Len() == j.Planned
	for _, p := range planned {
		late := j.Revision.Age(p.At) < 0
		if !p.At.After(now) && p.At.After(at) && !waits[p.At.UnixMilli()] && (whole || !late) {
			at, ok = p.At, true
		}
	}
	return at, ok
}

// settledTick is [Job.Settled] for a schedule that recurs.
func (j *Job) settledTick(now time.Time, waits map[int64]bool) (at time.Time, ok bool) {
	in, err := location(j.Schedule.Zone)
	if err != nil {
		return time.Time{}, false
	}
	for _, end := range []time.Time{j.Cursor, j.Schedule.EndAt} {
		if !end.IsZero() && end.Before(now) {
			now = end
		}
	}
	from := j.Schedule.beginsAfter(now.Add(-j.Revision.Age(now)))
	for range len(waits) + 1 {
		at, ok = j.Schedule.Crontab.Last(from, now, in, j.Schedule.Anchor)
		if !ok || !waits[at.UnixMilli()] {
			return at, ok
		}
		now = at.Add(-time.Millisecond)
	}
	return time.Time{}, false
}
