package destinations

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// Forget drops destinations that have not been used since a time, which must be longer ago than the longest pause
// between two probes.
func (s *Set) Forget(before time.Time) {
	s.lock.Lock()
	defer s.lock.Unlock()
	for name, d := range s.all {
		if d.underWay.Len() == 0 && len(d.waiting) == 0 && d.used.Before(before) {
			delete(s.all, name)
			continue
		}
		maps.DeleteFunc(d.parts, func(_ string, c *circuit) bool { return c.used.Before(before) })
	}
}

// State is the state of a destination.
type State struct {
	Name string
	// InFlight counts the callbacks under way; Waiting counts those that are claimed and wait for a moment.
	InFlight, Waiting int
	// Parked counts the parked callbacks, which wait in the store for their turns.
	Parked int
	// Failures counts failures in a row that concern the whole destination. Open is the time at which its circuit opened,
	// zero while it is closed.
	Failures int
	Open     time.Time
	// PartsOpen counts the parts with an open circuit of their own, and PartOpen is the time at which the first of these
	// opened; zero if there is none.
	PartsOpen int
	PartOpen  time.Time
	// Took is the average duration of a callback; zero until one has ended.
	Took time.Duration
}

// States returns the states of all destinations in use, by name.
func (s *Set) States() (all []State) {
	now := s.now()
	s.lock.Lock()
	defer s.lock.Unlock()
	for _, d := range s.all {
		parts, first := d.openParts()
		all = append(all, State{
			d.name, d.underWay.Len(), len(d.waiting), d.parked.count(now), d.circuit.failures, d.circuit.opened,
			parts, first, d.took,
		})
	}
	slices.SortFunc(all, func(a, b State) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// OpenSince returns the time at which the first of the open circuits of a destination opened, its own or that of a
// part; zero if none is open. It is whole if the destination's own circuit is open.
func (s *Set) OpenSince(name string) (since time.Time, whole bool) {
	s.lock.Lock()
	defer s.lock.Unlock()
	d := s.all[name]
	if d == nil {
		return since, false
	}
	since, whole = d.circuit.opened, d.circuit.open()
	if _, first := d.openParts(); !first.IsZero() && (since.IsZero() || first.Before(since)) {
		since = first
	}
	return since, whole
}

// openParts counts the parts with an open circuit; first is the time at which the first of these opened.
func (d *destination) openParts() (n int, first time.Time) {
	for _, part := range d.parts {
		if !part.open() {
			continue
		}
		if n++; first.IsZero() || part.opened.Before(first) {
			first = part.opened
		}
	}
	return n, first
}

// Open counts the destinations with an open circuit, of their own or of a part.
func (s *Set) Open() (n int) {
	s.lock.Lock()
	defer s.lock.Unlock()
	for _, d := range s.all {
		if parts, _ := d.openParts(); d.circuit.open() || parts > 0 {
			n++
		}
	}
	return n
}
