package job

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// Step is one step of a sequence. A cursor walks the steps: a wait moves the cursor, and a job step fires at the
// cursor.
type Step struct {
	Type string `json:"type"`
	// Of StepPeriod: the length of the wait.
	DelayPeriod *float64 `json:"delay_period,omitzero"`
	DelayUnit   *string  `json:"delay_unit,omitzero"`
	// Of StepWeekday: the days on which the cursor may stay. From any other day it moves to the nearest of them, at the
	// same time of day.
	Weekdays []string `json:"weekdays,omitzero"`
	// Of StepDate: the new place of the cursor, which may be earlier.
	Date *string `json:"date,omitzero"`
	// Of StepJob: the payload that replaces the callback's, if there is one.
	Metadata jsontext.Value `json:"metadata,omitzero"`
}

// The types of steps.
const (
	StepPeriod  = "wait_certain_period"
	StepWeekday = "wait_weekday"
	StepDate    = "wait_specific_date"
	StepJob     = "job"
)

// units are the units of periods. A day is 24 hours, also when clocks change.
var units = []struct {
	name   string
	length time.Duration
}{
	{"second", time.Second}, {"minute", time.Minute}, {"hour", time.Hour},
	{"day", 24 * time.Hour}, {"week", 7 * 24 * time.Hour},
}

// longestPeriod keeps cursors within the allowed years, and periods within a [time.Duration].
const longestPeriod = 100 * 366 * 24 * time.Hour

// check notes the errors of a step, under its pointer.
func (s *Step) check(at string, invalid *Invalid) {
	given := map[string]bool{
		"delay_period": s.DelayPeriod != nil, "delay_unit": s.DelayUnit != nil, "weekdays": s.Weekdays != nil,
		"date": s.Date != nil, "metadata": s.Metadata != nil,
	}
	var fields []string
	switch s.Type {
	case StepPeriod:
		fields = []string{"delay_period", "delay_unit"}
		s.checkPeriod(at, invalid)
	case StepWeekday:
		fields = []string{"weekdays"}
		if len(s.Weekdays) == 0 {
			invalid.Add(at+"/weekdays", `is required: at least one day, as in ["monday", "friday"]`)
		}
		for i, name := range s.Weekdays {
			if _, ok := weekday(name); !ok {
				invalid.Add(at+Pointer("weekdays", i), fmt.Sprintf(
					"must be monday, tuesday, wednesday, thursday, friday, saturday or sunday, not %q", name))
			}
		}
	case StepDate:
		fields = []string{"date"}
		if s.Date == nil {
			invalid.Add(at+"/date", required)
		}
		checkInstant(at+"/date", s.Date, invalid)
	case StepJob:
		fields = []string{"metadata"}
	case "":
		invalid.Add(at+"/type", "is required: one of "+stepTypes)
		return
	default:
		invalid.Add(at+"/type", fmt.Sprintf("must be one of %s, not %q", stepTypes, s.Type))
		return
	}
	for _, name := range []string{"delay_period", "delay_unit", "weekdays", "date", "metadata"} {
		if given[name] && !slices.Contains(fields, name) {
			invalid.Add(at+"/"+name,
				fmt.Sprintf("does not belong to a step of type %s, which has %s", s.Type, strings.Join(fields, ", ")))
		}
	}
}

const stepTypes = StepPeriod + ", " + StepWeekday + ", " + StepDate + ", " + StepJob

func (s *Step) checkPeriod(at string, invalid *Invalid) {
	unit, known := unit(value(s.DelayUnit))
	switch {
	case s.DelayUnit == nil:
		invalid.Add(at+"/delay_unit", "is required: one of second, minute, hour, day, week")
	case !known:
		invalid.Add(at+"/delay_unit", fmt.Sprintf("must be one of second, minute, hour, day, week, not %q", *s.DelayUnit))
	}
	switch p := s.DelayPeriod; {
	case p == nil:
		invalid.Add(at+"/delay_period", "is required")
	case *p < 0:
		invalid.Add(at+"/delay_period", "must not be negative")
	case known && *p*float64(unit) > float64(longestPeriod):
		invalid.Add(at+"/delay_period", "must be at most 100 years")
	}
}

// unit returns the length of a unit, in the singular or the plural.
func unit(name string) (time.Duration, bool) {
	for _, u := range units {
		if strings.EqualFold(name, u.name) || strings.EqualFold(name, u.name+"s") {
			return u.length, true
		}
	}
	return 0, false
}

// weekday reads a day's English name, or its first three letters, in any case.
func weekday(name string) (time.Weekday, bool) {
	for d := time.Sunday; d <= time.Saturday; d++ {
		if full := d.String(); strings.EqualFold(name, full) || strings.EqualFold(name, full[:3]) {
			return d, true
		}
	}
	return 0, false
}

func jobSteps(steps []Step) (n int) {
	for i := range steps {
		if steps[i].Type == StepJob {
			n++
		}
	}
	return n
}

// walk lists the instants of a sequence with checked steps, from the beginning of its cursor. The error is an
// [*Invalid].
func walk(steps []Step, cursor time.Time, zoneName string) ([]Planned, error) {
	in, err := location(zoneName)
	if err != nil {
		return nil, InvalidField("/timezone", err.Error())
	}
	planned := make([]Planned, 0, jobSteps(steps))
	positions := make(map[int64]int)
	var effect ClockChange // of the clocks on the cursor
	for i := range steps {
		switch s := &steps[i]; s.Type {
		case StepPeriod:
			cursor, effect = cursor.Add(s.period()), ClockChange{}
		case StepWeekday:
			cursor, effect = onWeekday(cursor, effect, s.Weekdays, in)
		case StepDate:
			effect = ClockChange{}
			if cursor, err = ParseInstant(*s.Date); err != nil {
				return nil, InvalidField(Pointer("steps", i, "date"), err.Error())
			}
		case StepJob:
			at := cursor.UTC()
			planned = append(planned, Planned{At: at, Step: i, Position: positions[at.UnixMilli()], effect: effect})
			positions[at.UnixMilli()]++
		}
		if cursor.Unix() > finalSecond {
			return nil, InvalidField(Pointer("steps", i), "leads beyond the year 9999")
		}
	}
	return planned, nil
}

// period returns the length of a [StepPeriod]: exact for whole periods, rounded up to the millisecond for a fraction.
func (s *Step) period() time.Duration {
	length, _ := unit(*s.DelayUnit)
	ms := *s.DelayPeriod * float64(length/time.Millisecond)
	// One step down: a binary fraction is not exactly 1.07, say, so a product may lie just above a whole number.
	return time.Duration(math.Ceil(math.Nextafter(ms, 0))) * time.Millisecond
}

// onWeekday returns the cursor if it lies on one of the days by the zone's clocks, else the same time of day on the
// nearest later one, with the effect of the clocks on it. A skipped time becomes the moment right after the gap; a time
// that comes twice is the first of the two; a day that was skipped whole does not count.
func onWeekday(cursor time.Time, effect ClockChange, names []string, in *time.Location) (time.Time, ClockChange) {
	var wanted [7]bool
	for _, name := range names {
		day, _ := weekday(name)
		wanted[day] = true
	}
	local := cursor.In(in)
	if wanted[local.Weekday()] {
		return cursor, effect
	}
	z := zoneOf(in)
	year, month, day := local.Date()
	hour, minute, second := local.Clock()
	for ahead := 1; ahead <= 14; ahead++ {
		date := time.Date(year, month, day+ahead, 0, 0, 0, 0, time.UTC)
		if begins, _ := z.shows(date.Unix()); !wanted[date.Weekday()] || time.Unix(begins, 0).In(in).Day() != date.Day() {
			continue
		}
		wall := date.Add(
			time.Duration(hour)*time.Hour + time.Duration(minute)*time.Minute + time.Duration(second)*time.Second)
		instant, exact := z.shows(wall.Unix())
		at := time.Unix(instant, 0).UTC()
		if !exact {
			return at, ClockChange{Kind: Moved, Wall: wall, At: at}
		}
		at = at.Add(time.Duration(local.Nanosecond()))
		if z.repeats(instant) {
			return at, ClockChange{Kind: OnlyFirst, Wall: wall, At: at}
		}
		return at, ClockChange{}
	}
	return cursor, effect // can't happen: no zone skips the same weekday twice in a row
}
