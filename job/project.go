package job

import "time"

// Recurring identifies the instants of a recurring schedule from a time on: schedules with equal values have the same
// instants. It is comparable.
type Recurring struct {
	crontab Crontab
	zone    string
	anchor  int64 // Unix milliseconds; of @every
	// begin is the time after which the instants begin, in Unix milliseconds; zero if that is past.
	begin int64
	// end is the last possible instant, in Unix milliseconds; zero if there is none.
	end int64
}

// Recurring returns the identity of a recurring schedule's instants at from or later; ok is false if the schedule does
// not recur.
func (s *Schedule) Recurring(from time.Time) (r Recurring, ok bool) {
	if !s.Recurs() {
		return r, false
	}
	r = Recurring{crontab: s.Crontab, zone: s.Zone}
	r.crontab.expression, r.crontab.submitted = "", "" // the instants follow from the other fields
	begins := !s.Anchor.Before(from)
	if begins {
		r.begin = s.beginsAfter(s.Anchor).UnixMilli()
	}
	if s.Crontab.kind == kindEvery {
		r.anchor, r.zone = CeilMilli(s.Anchor).UnixMilli(), ""
		if every := s.Crontab.every.Milliseconds(); !begins && r.anchor <= from.UnixMilli() {
			r.anchor %= every // the same grid
		}
	}
	if !s.EndAt.IsZero() {
		r.end = s.EndAt.UnixMilli()
	}
	return r, true
}

// Tally counts the instants at from or later and before until in periods of one width. The first period begins at from.
// Tally calls add for each period that has any, maybe several times. Work is roughly the number of its steps. The error
// means that this machine does not know the time zone.
func (r Recurring) Tally(from, until time.Time, width time.Duration, add func(period, n int)) (work int, err error) {
	after := from.UnixMilli() - 1
	until = until.Add(-time.Millisecond)
	if r.end != 0 && r.end < until.UnixMilli() {
		until = time.UnixMilli(r.end)
	}
	if r.crontab.kind == kindEvery && r.crontab.every < width {
		anchor := time.UnixMilli(r.anchor)
		for period := 0; after < until.UnixMilli(); period++ {
			begin := max(after, r.begin)
			after += width.Milliseconds()
			upTo := min(after, until.UnixMilli())
			if begin < upTo {
				if n := r.crontab.count(time.UnixMilli(begin), time.UnixMilli(upTo), 0, nil, anchor); n > 0 {
					add(period, n)
				}
			}
			work++
		}
		return work, nil
	}
	err = r.Each(from, until.Add(time.Millisecond), func(at time.Time) bool {
		add(int(at.Sub(from)/width), 1)
		work++
		return true
	})
	return work + 1, err
}

// Each calls yield for the instants at from or later and before until, in their order, while it returns true. The error
// means that this machine does not know the zone.
func (r Recurring) Each(from, until time.Time, yield func(time.Time) bool) error {
	in, err := location(r.zone)
	if err != nil {
		return err
	}
	at, anchor := time.UnixMilli(max(from.UnixMilli()-1, r.begin)), time.UnixMilli(r.anchor)
	for {
		next, ok := r.crontab.Next(at, in, anchor)
		if !ok || !next.Before(until) || r.end != 0 && next.UnixMilli() > r.end || !yield(next) {
			return nil
		}
		at = next
	}
}

// PlannedFrom calls yield for the due times, at from or later, of the occurrences of a job whose schedule does not
// recur, with the number of occurrences that are due then. The times are in no order. A recurring schedule has none
// here. The error means that this machine does not know the zone.
func (j *Job) PlannedFrom(from time.Time, yield func(at time.Time, n int)) error {
	if j.Schedule.Recurs() {
		return nil
	}
	planned, err := j.Schedule.plan()
	if err != nil {
		return err
	}
	spread := time.Duration(j.Options.Spread)
	for _, p := range planned {
		switch {
		case !p.At.Add(spread).After(from) && p.At.Before(from):
		case spread == 0:
			yield(p.At, j.Schedule.Subscribers.Len())
		default:
			o := Occurrence{Name: j.Name, Timestamp: p.At}
			for i := range j.Schedule.Subscribers.Len() {
				if p.Step >= 0 {
					o.Part = &Part{Step: p.Step, Subscriber: j.Schedule.Subscribers.Name(i)}
				}
				if at := j.Options.FiresAt(&o); !at.Before(from) {
					yield(at, 1)
				}
			}
		}
	}
	return nil
}
