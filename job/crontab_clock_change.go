package job

import (
	"fmt"
	"time"
)

// ClockChangeKind is the kind of effect that a change of the clocks has on a crontab.
type ClockChangeKind int

// The effects of a change of the clocks.
const (
	// Unaffected: the wall time comes once.
	Unaffected ClockChangeKind = iota
	// Moved: a fixed time lies in a gap, and this instant, right after the gap, fires for it.
	Moved
	// OnlyFirst: the wall time comes twice, and a fixed time fires only the first time.
	OnlyFirst
	// FirstOfTwo: the wall time comes twice and fires both times; this is the first.
	FirstOfTwo
	// SecondOfTwo: the same; this is the second.
	SecondOfTwo
	// LeftOut: a matching wall time lies in a gap, and nothing fires for it.
	LeftOut
)

// ClockChange is the effect of a change of the clocks on one instant of a crontab, for people to read.
type ClockChange struct {
	Kind ClockChangeKind
	// Wall is the wall time, as a time in UTC with the same reading. Of several in one gap it is the first.
	Wall time.Time
	// At is the instant that fires; if nothing fires, the instant right after the gap.
	At time.Time
}

// String describes the effect in a few words; it is empty if there is none.
func (e ClockChange) String() string {
	clock := e.Wall.Format("15:04")
	if e.Wall.Second() != 0 {
		clock = e.Wall.Format(time.TimeOnly)
	}
	switch e.Kind {
	case Moved:
		return fmt.Sprintf("%s does not exist on %s: fires right after the gap", clock, e.Wall.Format(time.DateOnly))
	case OnlyFirst:
		return clock + " comes twice: fires the first time only"
	case FirstOfTwo:
		return clock + " comes twice: the first"
	case SecondOfTwo:
		return clock + " comes twice: the second"
	case LeftOut:
		return fmt.Sprintf("%s does not exist on %s: left out", clock, e.Wall.Format(time.DateOnly))
	default:
		return ""
	}
}

// ClockChange returns the effect of a change of the zone's clocks on an instant that Next has returned. @every and @at
// do not use wall clocks, so there is none on them.
func (c Crontab) ClockChange(at time.Time, in *time.Location) ClockChange {
	effect := ClockChange{At: at}
	if c.kind != kindFields {
		return effect
	}
	instant, z := at.Unix(), zoneOf(in)
	p := z.at(instant)
	wall := instant + p.offset
	if p.start > instant-far {
		g := z.before(p)
		if missed, moved := c.fields.moved(g); moved && instant == p.start {
			effect.Kind, effect.Wall = Moved, reading(missed)
			return effect
		}
		if wall < g.from {
			effect.Kind, effect.Wall = SecondOfTwo, reading(wall)
			return effect
		}
	}
	if z.repeats(instant) {
		effect.Kind, effect.Wall = OnlyFirst, reading(wall)
		if c.fields.real {
			effect.Kind = FirstOfTwo
		}
	}
	return effect
}

// LeftOut returns the crontab's wall times in (after, upTo] that lie in gaps and do not fire, one entry for each gap.
// It visits every change of the clocks in that time.
func (c Crontab) LeftOut(after, upTo time.Time, in *time.Location) []ClockChange {
	var effects []ClockChange
	if c.kind != kindFields {
		return nil
	}
	z := zoneOf(in)
	for p := z.at(after.Unix()); p.end <= upTo.Unix(); {
		p = z.at(p.end)
		g := z.before(p)
		if wall, ok := c.fields.inside(g); ok && (c.fields.real || g.to-g.from >= correction) {
			effects = append(effects, ClockChange{Kind: LeftOut, Wall: reading(wall), At: time.Unix(p.start, 0).UTC()})
		}
	}
	return effects
}

func reading(wall int64) time.Time { return time.Unix(wall, 0).UTC() }
