package job

import "time"

// Surroundings describe a time by the instants of a schedule.
type Surroundings struct {
	// Is reports that the time is an instant of the schedule.
	Is bool
	// Count is the number of occurrences at the instant: one for each step and subscriber. It is zero if Is is false.
	Count int
	// Before and After are the nearest other instants; zero if there are none.
	Before, After time.Time
	// ClockChange is the effect of a change of the clocks on the instant. If Is is false, it is the reason why the time
	// is no instant although a clock seems to show a matching time then; its At is the instant that fires instead, or
	// the instant right after the gap.
	ClockChange ClockChange
}

// Around returns the surroundings of a time in a schedule that has begun. Its cost does not depend on the distance from
// the present. The error means that this machine does not know the zone.
func (s Schedule) Around(at time.Time) (around Surroundings, err error) {
	in, err := location(s.Zone)
	if err != nil {
		return around, err
	}
	if s.Recurs() {
		s.aroundCrontab(&around, at, in)
		return around, nil
	}
	planned, err := s.plan()
	if err != nil {
		return around, err
	}
	for _, p := range planned {
		switch {
		case p.At.Equal(at):
			around.Is, around.ClockChange = true, p.effect
			around.Count += s.Subscribers.Len()
		case p.At.Before(at) && p.At.After(around.Before):
			around.Before = p.At
		case p.At.After(at) && (around.After.IsZero() || p.At.Before(around.After)):
			around.After = p.At
		}
	}
	return around, nil
}

func (s *Schedule) aroundCrontab(around *Surroundings, at time.Time, in *time.Location) {
	from, upTo := s.beginsAfter(s.Anchor), at
	if s.ended(upTo) {
		upTo = s.EndAt
	}
	last, ok := s.Crontab.Last(from, upTo, in, s.Anchor)
	if around.Is = ok && last.Equal(at); around.Is {
		around.Count, around.ClockChange = 1, s.Crontab.ClockChange(at, in)
		last, ok = s.Crontab.Last(from, at.Add(-time.Millisecond), in, s.Anchor)
	} else {
		around.ClockChange = s.Crontab.displaced(at, in)
	}
	if ok {
		around.Before = last
	}
	after := at
	if after.Before(from) {
		after = from
	}
	if next, ok := s.next(after, in); ok && !s.ended(next) {
		around.After = next
	}
}

// displaced returns the clock change that makes a time no instant: the time is a matching wall time, read with the
// offset of the other side of a gap, or it is the second showing of a fixed time.
func (c Crontab) displaced(at time.Time, in *time.Location) (effect ClockChange) {
	if c.kind != kindFields || at.Nanosecond() != 0 {
		return effect
	}
	instant, z := at.Unix(), zoneOf(in)
	p := z.at(instant)
	// One of a crontab's wall times in the gap before a period, as a clock with another offset would show it.
	missing := func(p period, offset int64) bool {
		g, wall := z.before(p), instant+offset
		if wall < g.from || wall >= g.to || !c.shows(wall) {
			return false
		}
		effect = ClockChange{Kind: LeftOut, Wall: reading(wall), At: time.Unix(p.start, 0).UTC()}
		if _, moved := c.fields.moved(g); moved {
			effect.Kind = Moved
		}
		return true
	}
	if p.start > instant-far {
		if missing(p, z.at(p.start-1).offset) {
			return effect
		}
		if wall := instant + p.offset; wall < z.before(p).from && c.shows(wall) {
			first, _ := z.shows(wall)
			return ClockChange{Kind: OnlyFirst, Wall: reading(wall), At: time.Unix(first, 0).UTC()}
		}
	}
	if p.end < instant+far {
		next := z.at(p.end)
		missing(next, next.offset)
	}
	return effect
}

// shows reports whether the crontab's fields match a wall time.
func (c Crontab) shows(wall int64) bool {
	match, ok := c.fields.nextWall(wall)
	return ok && match == wall
}

// Size returns the number of occurrences of a schedule that does not recur and has begun; zero if it is unknown.
func (s *Schedule) Size() int {
	planned, err := s.plan()
	if err != nil {
		return 0
	}
	return len(planned) * s.Subscribers.Len()
}

// Nominal returns the instant that a job's spread moves to a time; the time itself if there is none. It examines a
// bounded number of the instants before the time.
func (j *Job) Nominal(at time.Time) time.Time {
	const most = 1000
	if j.Options.Spread == 0 || j.Schedule.Subscribers.Raw() != nil || len(j.Schedule.Steps) > 0 {
		return at
	}
	first := at.Add(-time.Duration(j.Options.Spread))
	instant := at
	for range most {
		around, err := j.Schedule.Around(instant)
		if err != nil {
			return at
		}
		moved := Occurrence{Name: j.Name, Timestamp: instant}
		if around.Is && j.Options.FiresAt(&moved).Equal(at) {
			return instant
		}
		if instant = around.Before; !instant.After(first) {
			return at
		}
	}
	return at
}
