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
	// Moved: it stands for a fixed time in a gap, and fires right after it.
	Moved
	// OnlyFirst: the wall time comes twice, and a fixed time fires the first time only.
	OnlyFirst
	// FirstOfTwo: the wall time comes twice, it fires both times, and this is the first.
	FirstOfTwo
	// SecondOfTwo is the other.
	SecondOfTwo
	// LeftOut: a matching wall time lies in a gap, and nothing fires in its stead.
	LeftOut
)

// ClockChange is the effect of a change of the clocks on one instant of a crontab. It is meant for people to read.
type ClockChange struct {
	Kind ClockChangeKind
	// Wall is the wall time concerned, as a time in UTC with the same reading. Of several in one gap it is the first.
	Wall time.Time
	// At is the instant that fires; if it is left out, the one right after the gap.
	At time.Time
}

// String says it in a few words; it is empty for no effect.
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

// ClockChange returns the effect of a change of the zone's clocks on an instant that Next has returned. There is none
// on @every and @at, which don't go by clocks.
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

// LeftOut returns the times of the crontab that lie in gaps and fire nowhere, between two times, one entry for each
// gap. It looks at every change of the clocks between the two.
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
