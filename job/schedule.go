package job

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Schedule is the schedule of a job. It is of one kind: instants, a delay, a crontab, or steps. Times are UTC and whole
// milliseconds.
type Schedule struct {
	// Instants are ascending and distinct. The instant of a delay is computed when the job begins.
	Instants []time.Time
	// Delay is the time from the submission to the one instant; nil if the schedule is of another kind.
	Delay *Duration
	// Crontab recurs in Zone until EndAt, which may be an instant itself. It begins at StartAt or, if that is zero or
	// past, at the submission. An "@at" has its one instant in Instants too.
	Crontab Crontab
	EndAt   time.Time
	// Steps are walked by a cursor that begins at StartAt or, if that is zero, at the submission.
	Steps       []Step
	Subscribers Subscribers
	// Zone is an IANA name; empty for UTC.
	Zone    string
	StartAt time.Time
	// Anchor is the beginning of a crontab or a sequence: StartAt or the submission. It is set when the job begins.
	Anchor time.Time
}

// Kind is the kind of a schedule.
type Kind string

// The kinds of schedules. A delay is of instants: it has one.
const (
	KindInstants Kind = "instants"
	KindCrontab  Kind = "crontab"
	KindSequence Kind = "sequence"
)

// Kind returns the schedule's kind.
func (s *Schedule) Kind() Kind {
	switch {
	case s.Crontab != (Crontab{}):
		return KindCrontab
	case len(s.Steps) > 0:
		return KindSequence
	default:
		return KindInstants
	}
}

// Recurs reports whether the schedule has instants without end, or nearly so. Such a schedule is expanded part by part.
func (s *Schedule) Recurs() bool { return s.Crontab != (Crontab{}) && s.Crontab.kind != kindAt }

// Same reports whether two schedules were submitted with the same meaning, at whatever times.
func (s *Schedule) Same(other *Schedule) bool {
	return bytes.Equal(s.submitted().Encode(), other.submitted().Encode())
}

// GoOn gives a schedule the beginning of the schedule that it replaces, unless it has a StartAt of its own. So instants
// that both have stay the same.
func (s *Schedule) GoOn(from *Schedule) {
	if s.Recurs() == from.Recurs() && (len(s.Steps) > 0) == (len(from.Steps) > 0) {
		s.Anchor = from.Anchor
	}
}

// submitted returns the schedule without the fields that were set at its beginning.
func (s *Schedule) submitted() Schedule {
	c := *s
	c.Anchor = time.Time{}
	if c.Zone == "UTC" { // as if it were left out
		c.Zone = ""
	}
	if c.Delay != nil || c.Crontab != (Crontab{}) {
		c.Instants = nil
	}
	return c
}

// location returns the zone of wall times. Names are checked at submission, so an error means that this machine lacks a
// zone that another machine has.
func location(name string) (*time.Location, error) {
	if name == "" {
		return time.UTC, nil
	}
	return LoadZone(name)
}

// Planned is an instant of a schedule.
type Planned struct {
	At time.Time
	// Step is the index of its job step; -1 if the schedule has no steps.
	Step int
	// Position counts the earlier job steps at the same instant.
	Position int

	effect ClockChange // of the wait for a weekday that led to the instant; none for a crontab
}

// plan lists all instants of a schedule that does not recur, in the order of its steps. A sequence's anchor must be
// set.
func (s *Schedule) plan() ([]Planned, error) {
	if len(s.Steps) > 0 {
		return walk(s.Steps, s.Anchor, s.Zone)
	}
	planned := make([]Planned, len(s.Instants))
	for i, at := range s.Instants {
		planned[i] = Planned{At: at, Step: -1}
	}
	return planned, nil
}

// Distinct returns the distinct instants of a schedule that does not recur and has begun, in order. The error means
// that this machine does not know the zone.
func (s *Schedule) Distinct() ([]time.Time, error) {
	planned, err := s.plan()
	if err != nil {
		return nil, err
	}
	all := make([]time.Time, len(planned))
	for i, p := range planned {
		all[i] = p.At
	}
	slices.SortFunc(all, time.Time.Compare)
	return slices.CompactFunc(all, time.Time.Equal), nil
}

// anchored returns the schedule with its beginning at now. A schedule that continues another, see [Schedule.GoOn], has
// its anchor already.
func (s *Schedule) anchored(now time.Time) Schedule {
	c := *s
	if c.Delay != nil {
		c.Instants = []time.Time{CeilMilli(now.Add(time.Duration(*c.Delay))).UTC()}
	}
	switch {
	case !c.Recurs() && len(c.Steps) == 0:
	case !c.StartAt.IsZero():
		c.Anchor = c.StartAt
	case c.Anchor.IsZero():
		c.Anchor = now
	}
	return c
}

// Reaches reports whether the schedule, begun at now, would have an instant at or before a time. It is true of a
// recurring schedule.
func (s Schedule) Reaches(until, now time.Time) bool {
	if s.Recurs() {
		return true
	}
	began := s.anchored(now.Truncate(time.Millisecond))
	planned, err := began.plan()
	return err == nil && slices.ContainsFunc(planned, func(p Planned) bool { return !p.At.After(until) })
}

// Weight returns roughly the number of occurrences that the schedule makes at once.
func (s *Schedule) Weight() int {
	if len(s.Steps) > 0 {
		return jobSteps(s.Steps) * s.Subscribers.Len()
	}
	if s.Recurs() {
		return 100 // a dense one has that many within the horizon
	}
	return max(1, len(s.Instants))
}

// scheduleDocument is a schedule as stores keep it. Times are Unix milliseconds.
type scheduleDocument struct {
	Instants    []int64        `json:"instants,omitempty"`
	Delay       *Duration      `json:"delay,omitzero"`
	Crontab     string         `json:"crontab,omitzero"`   // with values in place of each H
	Submitted   string         `json:"submitted,omitzero"` // the crontab with H, if it has any
	Steps       []Step         `json:"steps,omitempty"`
	Subscribers jsontext.Value `json:"subscribers,omitempty"`
	Zone        string         `json:"timezone,omitzero"`
	StartAt     *int64         `json:"startAt,omitzero"`
	EndAt       *int64         `json:"endAt,omitzero"`
	Anchor      *int64         `json:"anchor,omitzero"`
}

// Encode returns the schedule as stores keep it: compact JSON.
func (s Schedule) Encode() []byte {
	if s.listOnly() {
		return encodeInstants(s.Instants)
	}
	doc := scheduleDocument{
		Instants:    make([]int64, len(s.Instants)),
		Delay:       s.Delay,
		Crontab:     s.Crontab.expression,
		Submitted:   s.Crontab.submitted,
		Steps:       s.Steps,
		Subscribers: s.Subscribers.raw,
		Zone:        s.Zone,
		StartAt:     toMillis(s.StartAt),
		EndAt:       toMillis(s.EndAt),
		Anchor:      toMillis(s.Anchor),
	}
	for i, at := range s.Instants {
		doc.Instants[i] = at.UnixMilli()
	}
	return mustEncode(doc)
}

// listOnly reports whether the schedule has instants only, as most have.
func (s *Schedule) listOnly() bool {
	return len(s.Instants) > 0 && s.Delay == nil && s.Crontab == (Crontab{}) &&
		len(s.Steps) == 0 && len(s.Subscribers.raw) == 0 &&
		s.Zone == "" && s.StartAt.IsZero() && s.EndAt.IsZero() && s.Anchor.IsZero()
}

// encodeInstants writes the same scheduleDocument as the encoder, in a tenth of the time.
func encodeInstants(instants []time.Time) []byte {
	b := append(make([]byte, 0, 16+15*len(instants)), `{"instants":[`...)
	for i, at := range instants {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, at.UnixMilli(), 10)
	}
	return append(b, "]}"...)
}

// DecodeSchedule is the inverse of [Schedule.Encode].
func DecodeSchedule(b []byte) (s Schedule, err error) {
	var doc scheduleDocument
	if err := json.Unmarshal(b, &doc); err != nil {
		return Schedule{}, fmt.Errorf("decode schedule: %w", err)
	}
	if doc.Crontab != "" {
		if s.Crontab, err = ParseCrontab(doc.Crontab); err != nil {
			return Schedule{}, fmt.Errorf("decode schedule: crontab %w", err)
		}
		s.Crontab.submitted = doc.Submitted
	}
	if s.Subscribers, err = parseSubscribers(doc.Subscribers); err != nil {
		return Schedule{}, fmt.Errorf("decode schedule: subscribers: %w", err)
	}
	s.Delay, s.Steps, s.Zone = doc.Delay, doc.Steps, doc.Zone
	s.StartAt, s.EndAt, s.Anchor = fromMillis(doc.StartAt), fromMillis(doc.EndAt), fromMillis(doc.Anchor)
	s.Instants = make([]time.Time, len(doc.Instants))
	for i, ms := range doc.Instants {
		s.Instants[i] = time.UnixMilli(ms).UTC()
	}
	return s, nil
}

// toMillis returns a time as Unix milliseconds; nil for the zero time. The Unix epoch is a valid time: grids often
// begin there.
func toMillis(t time.Time) *int64 {
	if t.IsZero() {
		return nil
	}
	ms := t.UnixMilli()
	return &ms
}

func fromMillis(ms *int64) time.Time {
	if ms == nil {
		return time.Time{}
	}
	return time.UnixMilli(*ms).UTC()
}
