package job

import (
	"fmt"
	"math"
	"strings"
	"time"
	_ "time/tzdata" // the zones of machines that have none; those of the system take precedence
)

// LoadZone finds a time zone by its IANA name, such as Europe/Paris or UTC. Unlike [time.LoadLocation] it refuses the
// empty name, names that depend on the machine, such as Local, and zones that count leap seconds.
func LoadZone(name string) (*time.Location, error) {
	bad := fmt.Errorf(
		"%q is not a time zone; must be an IANA name, spelled as in Europe/Paris, America/New_York or UTC", name)
	area, _, _ := strings.Cut(name, "/")
	switch area {
	case "", "Local", "localtime", "posixrules", "posix", "right", "Factory":
		return nil, bad
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil, bad
	}
	return zone, nil
}

const (
	// correction is the length from which a gap counts as a correction of the clocks, not as a change to summer time.
	// Fixed times in such a gap do not fire. The value is ISC cron's.
	correction = 3 * perHour

	// horizon is the time without an instant after which the search ends: more than the 40 years of the rarest date and
	// the gaps in between.
	horizon = 100 * 366 * perDay

	// far bounds the difference between two clocks of one zone: no clock was ever 16 h off UTC.
	far = 32 * perHour
)

// next returns the first instant at or after a given one. Both are Unix seconds.
func (f fields) next(from int64, z zone) (int64, bool) {
	limit := min(from+horizon, finalSecond)
	for from <= limit {
		p := z.at(from)
		wall := from + p.offset
		if !f.real && p.start > from-far {
			gap := z.before(p)
			if _, moved := f.moved(gap); moved && from == p.start {
				return from, true
			}
			wall = max(wall, gap.from) // a wall time that was shown before does not count again
		}
		if match, ok := f.nextWall(wall); ok && match-p.offset < p.end {
			return match - p.offset, match-p.offset <= limit
		}
		from = p.end
	}
	return 0, false
}

// last returns the latest instant in [from, upTo]. All are Unix seconds.
func (f fields) last(from, upTo int64, z zone) (int64, bool) {
	for upTo >= from {
		p := z.at(upTo)
		match, ok := f.lastWall(upTo + p.offset)
		match -= p.offset
		if ok && match >= p.start && (f.real || match >= p.start+far || p.start == math.MinInt64) {
			return match, match >= from
		}
		if p.start == math.MinInt64 {
			return 0, false
		}
		if !f.real {
			gap := z.before(p)
			if ok && match >= max(p.start, gap.from-p.offset) {
				return match, match >= from
			}
			if _, moved := f.moved(gap); moved {
				return p.start, p.start >= from
			}
		}
		upTo = p.start - 1
	}
	return 0, false
}

// moved reports whether fixed times in a gap fire right after it, and which of them is the first.
func (f fields) moved(g gap) (wall int64, ok bool) {
	if f.real || g.to-g.from >= correction {
		return 0, false
	}
	return f.inside(g)
}

// inside returns the first matching wall time in a gap.
func (f fields) inside(g gap) (wall int64, ok bool) {
	if g.from >= g.to {
		return 0, false
	}
	wall, ok = f.nextWall(g.from)
	return wall, ok && wall < g.to
}

// zone is a time zone, as a sequence of periods with one offset from UTC each.
type zone struct{ *time.Location }

func zoneOf(in *time.Location) zone {
	if in == nil {
		in = time.UTC
	}
	return zone{in}
}

// period is one period of a zone: the instants from start to before end, in Unix seconds.
type period struct {
	start, end int64
	offset     int64 // how many seconds the clocks are ahead of UTC
}

// at returns the period of an instant. It may be only a part of the period, cut off where a year of UTC begins or ends:
// package time does that where a zone's table of changes has ended and its yearly rule applies.
func (z zone) at(instant int64) period {
	t := time.Unix(instant, 0).In(z.Location)
	_, offset := t.Zone()
	p := period{math.MinInt64, math.MaxInt64, int64(offset)}
	start, end := t.ZoneBounds()
	if !start.IsZero() {
		p.start = start.Unix()
	}
	if !end.IsZero() {
		p.end = end.Unix()
	}
	if p.end <= instant { // in package time, the yearly rule's periods end after 365 days, in leap years too
		p.end = instant + perDay - (instant%perDay+perDay)%perDay
	}
	return p
}

// gap is the wall times from one to before another that clocks skip when a period begins. If the clocks are set back
// then, the gap ends before it begins, and the wall times in between come again.
type gap struct{ from, to int64 }

// before returns the gap right before a period that has a start. The gap begins at the latest time that the clocks had
// shown. That is usually the time at the end of the period before, but a period may be shorter than the step back that
// began it.
func (z zone) before(p period) gap {
	g := gap{math.MinInt64, p.start + p.offset}
	for start := p.start; start > p.start-far; {
		earlier := z.at(start - 1)
		g.from = max(g.from, start+earlier.offset)
		start = earlier.start
	}
	return g
}

// shows returns the first instant at which the zone's clocks show a wall time. If they skip it, the result is the
// instant right after the gap, and exact is false.
func (z zone) shows(wall int64) (instant int64, exact bool) {
	p := z.at(wall - far)
	for wall-p.offset >= p.end {
		p = z.at(p.end)
	}
	return max(wall-p.offset, p.start), wall-p.offset >= p.start
}

// repeats reports whether the zone's clocks show the wall time of an instant again later.
func (z zone) repeats(instant int64) bool {
	p := z.at(instant)
	wall := instant + p.offset
	for next := p; next.end < instant+far; {
		next = z.at(next.end)
		if wall >= next.start+next.offset && wall-next.offset < next.end {
			return true
		}
	}
	return false
}
