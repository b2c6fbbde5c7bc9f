package job

import "time"

// Predecessor is a job that another one replaces, with the occurrences that may be claimed before the replacement.
type Predecessor struct {
	Job *Job
	// Pending are its occurrences that are neither delivered nor given up, at least those up to Until.
	Pending []Occurrence
	// Until is the latest instant that may be claimed before the replacement takes effect. A later instant of both jobs is
	// certainly pending: it is deleted with the predecessor, and inserted again.
	Until time.Time
}

// Carried is a predecessor's pending occurrence that its successor has too.
type Carried struct {
	// ID is the occurrence's id, which it keeps.
	ID ID
	// As has the successor's values for the occurrence: revision, priority, position and part.
	As Occurrence
}

// SameTimes reports whether a job's occurrences can stay unchanged when the other replaces it: both have the same
// schedule, their occurrences have the same due times and wait in the same lanes, and they expect the same check-ins.
func (j *Job) SameTimes(other *Job) bool {
	return j.Schedule.Same(&other.Schedule) && j.Options.Priority == other.Options.Priority &&
		j.Options.Spread == other.Options.Spread && j.Options.After == other.Options.After &&
		j.Options.ExpectBy == other.Options.ExpectBy
}

// BeginInstead is [Job.Begin] for a job that replaces another. An instant of both fires once: its pending occurrences
// are carried over. Its settled ones do not fire again, unless past is [PastFire] and the instant has passed at now.
// The error may also mean that this machine lacks the predecessor's zone.
func (j *Job) BeginInstead(of Predecessor, now time.Time, past Past, e Expansion) (Beginning, error) {
	s, err := of.fates()
	if err != nil {
		return Beginning{}, err
	}
	return j.begin(s, now, past, e)
}

// fate is the state of an occurrence under a job's predecessor.
type fate int

const (
	unknown fate = iota // the predecessor has not had it
	pending
	settled
)

// fates knows the fates of occurrences under a predecessor. Nil means that there is none.
type fates struct {
	until   time.Time
	all     []Occurrence // the pending ones
	pending map[ID]ID    // their own ids, by delivery id
	had     func(*Occurrence) bool
}

func (p *Predecessor) fates() (*fates, error) {
	s := &fates{until: p.Until, all: p.Pending, pending: make(map[ID]ID, len(p.Pending))}
	for i := range p.Pending {
		if o := &p.Pending[i]; o.Revision != "" { // else it stands on its own
			s.pending[o.DeliveryID()] = o.ID
		}
	}
	var err error
	s.had, err = p.Job.had(p.Until)
	return s, err
}

// fate returns the fate of an occurrence, and the id of the pending one.
func (s *fates) fate(o *Occurrence) (fate, ID) {
	if s == nil || o.Timestamp.After(s.until) {
		return unknown, ID{}
	}
	if id, ok := s.pending[o.DeliveryID()]; ok {
		return pending, id
	}
	if s.had(o) {
		return settled, ID{}
	}
	return unknown, ID{}
}

// carryEarlier carries over the predecessor's pending ticks that are ticks of this job too, but lie before its
// beginning.
func (j *Job) carryEarlier(s *fates, now time.Time) (carried []Carried) {
	if s == nil {
		return nil
	}
	in, err := location(j.Schedule.Zone)
	if err != nil {
		return nil // the ticks are unknown, so nothing has begun
	}
	for i := range s.all {
		o := &s.all[i]
		if o.Revision == "" || o.Part != nil || o.Position != 0 || o.Timestamp.After(now) ||
			!j.Schedule.ticks(o.Timestamp, in) {
			continue
		}
		carried = append(carried, Carried{o.ID, j.append(nil, Planned{At: o.Timestamp, Step: -1})[0]})
	}
	return carried
}

// ticks reports whether an instant is a tick of a recurring schedule. Only StartAt and EndAt bound it, not the anchor.
func (s *Schedule) ticks(at time.Time, in *time.Location) bool {
	if s.ended(at) || at.Before(s.StartAt) {
		return false
	}
	next, ok := s.next(at.Add(-time.Millisecond), in)
	return ok && next.Equal(at)
}

// had returns a function that reports whether the job has put an occurrence of that instant, position and subscriber
// into the store, or has dropped it. It holds for instants up to a time.
func (j *Job) had(until time.Time) (func(*Occurrence) bool, error) {
	if j.Schedule.Recurs() {
		in, err := location(j.Schedule.Zone)
		return func(o *Occurrence) bool { // a step of a sequence has the same delivery id as a tick
			return o.subscriber() == "" && o.Position == 0 && j.ticked(o.Timestamp, in)
		}, err
	}
	planned, err := j.Schedule.plan()
	if err != nil {
		return nil, err
	}
	all := make(map[ID]bool)
	for _, p := range planned {
		if p.At.After(until) {
			continue
		}
		for i := range j.Schedule.Subscribers.Len() {
			all[DeliveryID(j.Name, p.At, p.Position, j.subscriberOf(p, i))] = true
		}
	}
	return func(o *Occurrence) bool { return all[o.DeliveryID()] }, nil
}

// subscriberOf returns the subscriber of an instant's i-th occurrence.
func (j *Job) subscriberOf(p Planned, i int) string {
	if p.Step < 0 {
		return ""
	}
	return j.Schedule.Subscribers.Name(i)
}

// ticked reports whether a recurring job has expanded an instant: it is a tick of the job, at or before the cursor.
func (j *Job) ticked(at time.Time, in *time.Location) bool {
	s := &j.Schedule
	return (j.Cursor.IsZero() || !at.After(j.Cursor)) && !at.Before(s.Anchor) && s.ticks(at, in)
}
