package job

import (
	"slices"
	"time"
)

// Upcoming is one of the next instants of a schedule, for people to read.
type Upcoming struct {
	Planned
	// Count is the number of occurrences of the step at the instant: one for each subscriber.
	Count int
	// ClockChange is the effect of a change of the clocks on the instant.
	ClockChange ClockChange
}

// Preview is the future of a schedule.
type Preview struct {
	// Zone is the schedule's zone.
	Zone     *time.Location
	Upcoming []Upcoming
	// LeftOut are the wall times that changes of the clocks leave out, up to the last of the instants.
	LeftOut []ClockChange
	// Passed counts the earlier instants of a schedule that does not recur.
	Passed int
}

// Preview lists the first instants at or after a time, up to count. A schedule that has not begun is previewed as if it
// began at that time.
func (s Schedule) Preview(from time.Time, count int) (Preview, error) {
	from = from.Truncate(time.Millisecond)
	after := from.Add(-time.Millisecond)
	if begun := !s.Anchor.IsZero() || len(s.Instants) > 0; !begun { // a delay has its instant once it has begun
		s = s.anchored(from)
		after = s.beginsAfter(from)
	}
	in, err := location(s.Zone)
	if err != nil {
		return Preview{}, err
	}
	p := Preview{Zone: in}
	if s.Recurs() {
		s.previewCrontab(&p, after, count)
		return p, nil
	}
	planned, err := s.plan()
	if err != nil {
		return Preview{}, err
	}
	slices.SortStableFunc(planned, func(a, b Planned) int { return a.At.Compare(b.At) })
	for _, at := range planned {
		switch {
		case at.At.Before(from):
			p.Passed++
		case len(p.Upcoming) < count:
			at.effect.At = at.At
			p.Upcoming = append(p.Upcoming, Upcoming{Planned: at, Count: s.Subscribers.Len(), ClockChange: at.effect})
		}
	}
	return p, nil
}

func (s *Schedule) previewCrontab(p *Preview, after time.Time, count int) {
	if began := s.beginsAfter(s.Anchor); after.Before(began) {
		after = began
	}
	first := after
	for len(p.Upcoming) < count {
		at, ok := s.next(after, p.Zone)
		if !ok || s.ended(at) {
			break
		}
		p.Upcoming = append(p.Upcoming, Upcoming{
			Planned: Planned{At: at, Step: -1}, Count: 1, ClockChange: s.Crontab.ClockChange(at, p.Zone),
		})
		after = at
	}
	p.LeftOut = s.Crontab.LeftOut(first, after, p.Zone)
}
