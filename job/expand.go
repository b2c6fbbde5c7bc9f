package job

import (
	"fmt"
	"time"
)

// CatchUp is a recurring schedule's rule for instants that fell due while nothing ran.
type CatchUp string

// The ways to catch up. The zero value stands for the default, the latest.
const (
	CatchUpLatest CatchUp = "latest" // only the latest of them fires
	CatchUpAll    CatchUp = "all"    // all fire, or the newest up to a limit
	CatchUpNone   CatchUp = "none"   // none fires
)

// Expansion has the bounds of an expansion.
type Expansion struct {
	// Horizon is the time ahead for which occurrences are kept in the store. The next one is kept however far ahead it
	// is.
	Horizon time.Duration
	// CatchUpLimit is the largest number of late instants that [CatchUpAll] fires.
	CatchUpLimit int
}

// DefaultCatchUpLimit is the default CatchUpLimit.
const DefaultCatchUpLimit = 1000

// Lead returns the time by which the next expansion is due ahead of the first instant beyond the horizon. It leaves
// time for another replica to take over the expansion of a replica that died.
func (e Expansion) Lead() time.Duration { return e.Horizon / 4 * 3 }

// Beginning is the result of beginning a schedule.
type Beginning struct {
	// Occurrences are the first occurrences, or all if the schedule does not recur. They are in the order of their
	// instants, except for steps that go back.
	Occurrences []Occurrence
	// Carried are the pending occurrences that a predecessor has too. They are not in Occurrences.
	Carried []Carried
	// Settled counts the occurrences that a predecessor has delivered, given up or dropped, and that do not fire again.
	Settled int
	// Skipped counts the other occurrences that are left out because they are past.
	Skipped int
	// Missed are the occurrences that are past their deadline, and so do not fire.
	Missed []Occurrence
}

// Begin begins the job's schedule at now: it sets the fields that depend on the time, and returns the first
// occurrences. Past is the treatment of instants before now; with [PastReject], such an instant is an [*Invalid]. A
// crontab without instants is an [*Invalid] too.
func (j *Job) Begin(now time.Time, past Past, e Expansion) (Beginning, error) {
	return j.begin(nil, now, past, e)
}

func (j *Job) begin(s *fates, now time.Time, past Past, e Expansion) (Beginning, error) {
	now = now.Truncate(time.Millisecond)
	j.Schedule = j.Schedule.anchored(now)
	j.Options.Recurrence = j.Schedule.recurrence()
	var b Beginning
	if j.Schedule.Recurs() {
		first, err := j.beginRecurring(now, e)
		if err != nil {
			return Beginning{}, err
		}
		b.Carried = j.carryEarlier(s, now)
		b.keep(first, func(o *Occurrence) bool { return b.fires(s, o, false) })
		j.count(&b)
		return b, nil
	}
	planned, err := j.Schedule.plan()
	if err != nil {
		return Beginning{}, err
	}
	var invalid Invalid
	j.Trouble = Trouble{}
	b.Occurrences = make([]Occurrence, 0, len(planned)*j.Schedule.Subscribers.Len())
	for _, p := range planned {
		late := p.At.Before(now)
		if late && past == PastReject {
			invalid.Add(j.Schedule.pointer(p), fmt.Sprintf(
				`%s is in the past; give later instants, or set past to "fire" or "skip"`, FormatTime(p.At)))
			continue
		}
		b.keep(j.append(b.Occurrences[len(b.Occurrences):], p), func(o *Occurrence) bool {
			switch {
			case !b.fires(s, o, late && past == PastFire):
				return false
			case late && past == PastSkip:
				b.Skipped++
				return false
			case late && j.Options.Overdue(o.Timestamp, now):
				b.Missed = append(b.Missed, *o)
				if o.Timestamp.After(j.Trouble.Instant) {
					j.Trouble = Trouble{Missed: true, Instant: o.Timestamp, At: now}
				}
				return false
			default:
				return true
			}
		})
	}
	j.count(&b)
	return b, invalid.Err()
}

// count sets the job's counts at its beginning.
func (j *Job) count(b *Beginning) {
	missed := len(b.Missed)
	j.Missed, j.Failed, j.Planned = missed, 0, len(b.Occurrences)+len(b.Carried)+missed
}

// keep appends the occurrences for which inserted returns true. The occurrences may lie in the spare capacity of
// b.Occurrences.
func (b *Beginning) keep(some []Occurrence, inserted func(*Occurrence) bool) {
	for i := range some {
		if inserted(&some[i]) {
			b.Occurrences = append(b.Occurrences, some[i])
		}
	}
}

// fires reports whether to insert an occurrence, given its fate under a predecessor. With again, a settled occurrence
// fires once more.
func (b *Beginning) fires(s *fates, o *Occurrence, again bool) bool {
	switch fate, id := s.fate(o); fate {
	case pending:
		b.Carried = append(b.Carried, Carried{id, *o})
		return false
	case settled:
		if !again {
			b.Settled++
		}
		return again
	default:
		return true
	}
}

// pointer names the field that an instant comes from.
func (s *Schedule) pointer(p Planned) string {
	switch {
	case p.Step >= 0:
		return Pointer("steps", p.Step)
	case s.Crontab != (Crontab{}):
		return "/crontab"
	default:
		return "/schedules"
	}
}

// append adds the occurrences of one instant.
func (j *Job) append(to []Occurrence, p Planned) []Occurrence {
	for i := range j.Schedule.Subscribers.Len() {
		o := Occurrence{
			Name: j.Name, Priority: j.Options.Priority, Revision: j.Revision, Position: p.Position,
			Timestamp: p.At,
		}
		if p.Step >= 0 {
			o.Part = &Part{Step: p.Step, Subscriber: j.Schedule.Subscribers.Name(i)}
		}
		o.DueAt = j.Options.FiresAt(&o)
		o.ID = OccurrenceID(j.Name, j.Revision, p.At, p.Position, o.subscriber())
		to = append(to, o)
	}
	return to
}

// beginRecurring returns the first occurrences of a schedule that recurs.
func (j *Job) beginRecurring(now time.Time, e Expansion) ([]Occurrence, error) {
	in, err := location(j.Schedule.Zone)
	if err != nil {
		return nil, InvalidField("/timezone", err.Error())
	}
	x := Expanded{Cursor: j.Schedule.beginsAfter(now)}
	j.lookAhead(&x, now, e, in)
	if len(x.Occurrences) == 0 {
		if first, ok := j.Schedule.next(x.Cursor, in); ok {
			return nil, InvalidField("/endAt",
				fmt.Sprintf("lies before the crontab's first instant, which is %s", FormatTime(first)))
		}
		if _, ok := j.Schedule.next(now, in); ok {
			return nil, InvalidField("/startAt", "lies after the crontab's last instant before the year 10000")
		}
		return nil, InvalidField("/crontab", "never fires: all of its times are skipped when clocks change")
	}
	if j.ExpandAt = x.ExpandAt; !j.ExpandAt.IsZero() {
		j.Cursor = x.Cursor
	}
	return x.Occurrences, nil
}

// beginsAfter returns the time after which the instants of a crontab submitted at now begin.
func (s *Schedule) beginsAfter(now time.Time) time.Time {
	if s.StartAt.Before(now) {
		return now
	}
	return s.StartAt.Add(-time.Millisecond) // the start itself may be an instant
}

// next returns a crontab's first instant after a time. It ignores the end of the schedule.
func (s *Schedule) next(after time.Time, in *time.Location) (time.Time, bool) {
	return s.Crontab.Next(after, in, s.Anchor)
}

// Expanded is the next part of a schedule that recurs.
type Expanded struct {
	Occurrences []Occurrence
	// Cursor and ExpandAt are the job's new ones; ExpandAt is zero if there are no more instants.
	Cursor   time.Time
	ExpandAt time.Time
	// Missed counts the dropped instants up to now, which fell due while nothing ran. Except for "@every" it is at most
	// 100,000.
	Missed int
	// Trouble is that of the last missed instant.
	Trouble Trouble
}

// The bounds of one expansion. If it reaches them, the next one is due at once.
const (
	mostExpanded = 1000
	mostCounted  = 100_000
)

// Expand continues a schedule that recurs from its job's cursor. Instants up to now fell due while nothing ran;
// catch-up and deadline decide which of them fire. The error means that this machine does not know the zone.
func (j *Job) Expand(now time.Time, e Expansion) (Expanded, error) {
	in, err := location(j.Schedule.Zone)
	if err != nil {
		return Expanded{}, err
	}
	x := Expanded{Cursor: j.Cursor}
	j.catchUp(&x, now, e.CatchUpLimit, in)
	j.lookAhead(&x, now, e, in)
	return x, nil
}

// catchUp adds the instants up to now that fire late, and counts the others. An instant is not late while it may still
// be moved ahead.
func (j *Job) catchUp(x *Expanded, now time.Time, limit int, in *time.Location) {
	s := &j.Schedule
	upTo := now.Add(-j.Options.ahead())
	if s.ended(upTo) {
		upTo = s.EndAt
	}
	last, ok := s.Crontab.Last(x.Cursor, upTo, in, s.Anchor)
	if !ok {
		return
	}
	keep := j.Options.keep(limit)
	newest := s.Crontab.Newest(x.Cursor, upTo, keep+1, in, s.Anchor)
	for i, at := range newest {
		if i < len(newest)-keep || j.Options.Overdue(at, now) {
			x.Trouble = Trouble{Missed: true, Instant: at, At: now}
		} else {
			x.Occurrences = j.append(x.Occurrences, Planned{At: at, Step: -1})
		}
	}
	passed := s.Crontab.count(x.Cursor, upTo, mostCounted, in, s.Anchor)
	x.Missed = max(0, passed-len(x.Occurrences)) // more may be kept than counted
	x.Cursor = last
}

// lookAhead adds the instants within the horizon, and at least one ahead, and sets the time of the next expansion.
func (j *Job) lookAhead(x *Expanded, now time.Time, e Expansion, in *time.Location) {
	oneAhead := j.Cursor.After(now) // at the beginning there is no cursor
	for added := 0; ; added++ {
		at, ok := j.Schedule.next(x.Cursor, in)
		if !ok || j.Schedule.ended(at) {
			x.ExpandAt = time.Time{}
			return
		}
		if oneAhead && at.After(now.Add(e.Horizon)) || added == mostExpanded {
			// In time for that instant, and no later than the last stored one, so that there always is a next one.
			if x.ExpandAt = at.Add(-e.Lead()); x.Cursor.Before(x.ExpandAt) {
				x.ExpandAt = x.Cursor
			}
			return
		}
		x.Occurrences = j.append(x.Occurrences, Planned{At: at, Step: -1})
		x.Cursor = at
		oneAhead = true
	}
}

// ended reports whether a time lies after a crontab's end.
func (s *Schedule) ended(at time.Time) bool { return !s.EndAt.IsZero() && at.After(s.EndAt) }

// keep returns the largest number of instants to catch up on.
func (o *Options) keep(limit int) int {
	switch o.CatchUp {
	case CatchUpAll:
		return limit
	case CatchUpNone:
		return 0
	default:
		return 1
	}
}

// ahead returns the longest time by which occurrences are moved ahead of their instants.
func (o *Options) ahead() time.Duration { return time.Duration(o.After + o.Spread) }

// Overdue reports whether an instant's deadline has passed at now.
func (o *Options) Overdue(at, now time.Time) bool {
	return o.Deadline != 0 && now.Sub(at) > time.Duration(o.Deadline)
}

// Recurrence is the part of a recurring schedule that decides, at firing, which instants are caught up.
type Recurrence struct {
	Crontab  string `json:"crontab"`
	Timezone string `json:"timezone,omitzero"`
	Anchor   int64  `json:"anchor"`         // Unix milliseconds
	EndAt    *int64 `json:"endAt,omitzero"` // Unix milliseconds; nil if there is no end
}

// recurrence returns the schedule's recurrence; nil if it does not recur.
func (s *Schedule) recurrence() *Recurrence {
	if !s.Recurs() {
		return nil
	}
	return &Recurrence{
		Crontab: s.Crontab.expression, Timezone: s.Zone, Anchor: s.Anchor.UnixMilli(), EndAt: toMillis(s.EndAt),
	}
}

// CatchUpFrom returns the time of the earliest of a recurrence's instants that catch-up lets fire late at now; ok is
// false if it lets none. An instant before it was missed.
func (o *Options) CatchUpFrom(now time.Time, limit int) (from time.Time, ok bool, err error) {
	r := o.Recurrence
	crontab, err := ParseCrontab(r.Crontab)
	if err != nil {
		return time.Time{}, false, fmt.Errorf("crontab %q: %w", r.Crontab, err)
	}
	in, err := location(r.Timezone)
	if err != nil {
		return time.Time{}, false, err
	}
	keep, upTo, anchor := o.keep(limit), now.Add(-o.ahead()), time.UnixMilli(r.Anchor)
	from = upTo // if none is late yet
	if end := fromMillis(r.EndAt); !end.IsZero() && upTo.After(end) {
		upTo = end
	}
	if newest := crontab.Newest(anchor.Add(-1), upTo, keep, in, anchor); len(newest) > 0 {
		from = newest[0]
	}
	return from, keep > 0, nil
}
