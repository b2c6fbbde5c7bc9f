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
	CatchUpAll    CatchUp = "all"    // all fire, up to a limit the newest ones
	CatchUpNone   CatchUp = "none"   // none fires
)

// Expansion bounds how a schedule that recurs is expanded.
type Expansion struct {
	// Horizon is how far ahead its occurrences are kept in the store. The next one is, however far it is.
	Horizon time.Duration
	// CatchUpLimit is how many instants fire at most that [CatchUpAll] catches up on.
	CatchUpLimit int
}

// DefaultCatchUpLimit is the CatchUpLimit unless the operator says otherwise.
const DefaultCatchUpLimit = 1000

// Lead is how long before the first instant beyond the horizon the next expansion is due. It leaves time for another
// replica to take over an expansion that one has died in.
func (e Expansion) Lead() time.Duration { return e.Horizon / 4 * 3 }

// Beginning is the result of beginning a schedule.
type Beginning struct {
	// Occurrences are the first ones, or all if the schedule does not recur, in the order of their instants but for
	// steps that go back.
	Occurrences []Occurrence
	// Carried are those which a predecessor has too, and which are pending; Occurrences does not have them.
	Carried []Carried
	// Settled is how many a predecessor has delivered, given up or dropped, and which do not fire again.
	Settled int
	// Skipped is how many more were left out because they are past.
	Skipped int
	// Missed is how many were past their deadline.
	Missed int
}

// Begin begins the job's schedule at now: it sets the fields that depend on that, and returns the first occurrences.
// Past decides about instants before now; with [PastReject], one is an [*Invalid]. So is a crontab without instants.
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
		b.Carried = j.late(s, now)
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
				b.Missed++
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
	j.Missed, j.Failed, j.Planned = b.Missed, 0, len(b.Occurrences)+len(b.Carried)+b.Missed
}

// keep adds those of some occurrences that are to be inserted. They may lie in the same memory, behind those that are
// there.
func (b *Beginning) keep(some []Occurrence, inserted func(*Occurrence) bool) {
	for i := range some {
		if inserted(&some[i]) {
			b.Occurrences = append(b.Occurrences, some[i])
		}
	}
}

// fires reports whether an occurrence is still to be inserted, given its fate under a predecessor. With again, one that
// was settled fires once more.
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

// pointer names the field that an instant is of.
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
			Timestamp: p.At, DueAt: p.At,
		}
		if p.Step >= 0 {
			o.Part = &Part{Step: p.Step, Subscriber: j.Schedule.Subscribers.Name(i)}
		}
		o.ID = OccurrenceID(j.Name, j.Revision, p.At, p.Position, o.subscriber())
		to = append(to, o)
	}
	return to
}

// beginRecurring answers the first occurrences of a schedule that recurs.
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

// beginsAfter is the time after which the first instant of a crontab that is submitted at now comes.
func (s *Schedule) beginsAfter(now time.Time) time.Time {
	if s.StartAt.Before(now) {
		return now
	}
	return s.StartAt.Add(-time.Millisecond) // the start itself may be an instant
}

// next is the first instant of a crontab after a time, whatever its end.
func (s *Schedule) next(after time.Time, in *time.Location) (time.Time, bool) {
	return s.Crontab.Next(after, in, s.Anchor)
}

// Expanded is the next part of a schedule that recurs.
type Expanded struct {
	Occurrences []Occurrence
	// Cursor and ExpandAt are the job's from then on; ExpandAt is zero if there are no more instants.
	Cursor   time.Time
	ExpandAt time.Time
	// Missed is how many instants up to now are dropped, because nothing ran when they fell due. Of a crontab that is
	// not "@every" it is no more than 100,000.
	Missed int
	// Trouble is that of the last of them.
	Trouble Trouble
}

// The bounds of one expansion. The rest is left to the next one, which is due at once.
const (
	mostExpanded = 1000
	mostCounted  = 100_000
)

// Expand continues a schedule that recurs from its job's cursor. Instants up to now are those that fell due while
// nothing ran: which of them fire is for catch-up and deadline to say. The error is that the zone is no longer known
// here.
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

// catchUp adds those of the instants up to now that fire late, and counts the others.
func (j *Job) catchUp(x *Expanded, now time.Time, limit int, in *time.Location) {
	s := &j.Schedule
	upTo := now
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
	x.Missed = max(0, passed-len(x.Occurrences)) // more may be kept than are counted
	x.Cursor = last
}

// lookAhead adds the instants that the horizon reaches, and one if otherwise there is none ahead, and sets when to look
// again.
func (j *Job) lookAhead(x *Expanded, now time.Time, e Expansion, in *time.Location) {
	oneAhead := j.Cursor.After(now) // when it begins, it has no cursor
	for added := 0; ; added++ {
		at, ok := j.Schedule.next(x.Cursor, in)
		if !ok || j.Schedule.ended(at) {
			x.ExpandAt = time.Time{}
			return
		}
		if oneAhead && at.After(now.Add(e.Horizon)) || added == mostExpanded {
			// In time for that instant, and in any case when the last one that is there passes, so that one always is.
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

// keep is how many instants are caught up on.
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

// Overdue reports whether an instant is past its deadline.
func (o *Options) Overdue(at, now time.Time) bool {
	return o.Deadline != 0 && now.Sub(at) > time.Duration(o.Deadline)
}

// Recurrence is the part of a recurring schedule by which firing decides which instants are caught up.
type Recurrence struct {
	Crontab  string `json:"crontab"`
	Timezone string `json:"timezone,omitzero"`
	Anchor   int64  `json:"anchor"`         // Unix milliseconds
	EndAt    *int64 `json:"endAt,omitzero"` // Unix milliseconds; nil if there is no end
}

// recurrence is the schedule's; nil if it does not recur.
func (s *Schedule) recurrence() *Recurrence {
	if !s.Recurs() {
		return nil
	}
	return &Recurrence{
		Crontab: s.Crontab.String(), Timezone: s.Zone, Anchor: s.Anchor.UnixMilli(), EndAt: toMillis(s.EndAt),
	}
}

// CatchUpFrom is the earliest of a recurrence's instants up to now that catch-up lets fire late; ok is false if it lets
// none. An instant before it was missed.
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
	if end := fromMillis(r.EndAt); !end.IsZero() && now.After(end) {
		now = end
	}
	anchor := time.UnixMilli(r.Anchor)
	newest := crontab.Newest(anchor.Add(-1), now, o.keep(limit), in, anchor)
	if len(newest) == 0 {
		return time.Time{}, false, nil
	}
	return newest[0], true, nil
}
