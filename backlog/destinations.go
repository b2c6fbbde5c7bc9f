package backlog

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/access"
	"github.com/carillon-scheduler/carillon/job"
)

// DestinationState is the state of one destination of callbacks, as one replica sees it.
type DestinationState struct {
	// Name is the name by [callbacks.Registry].
	Name string
	// InFlight is the number of callbacks to it under way. Parked is the number of occurrences that the replica has
	// released, which wait in the store.
	InFlight, Parked int
	// Failures is the number of failures since the last success.
	Failures int
	// OpenSince is the time at which its circuit opened: since then only probes are sent. It is zero if the circuit is
	// closed.
	OpenSince time.Time
	// PartsOpen is the number of its parts, such as paths, with an open circuit of their own, the first since
	// PartOpenSince.
	PartsOpen     int
	PartOpenSince time.Time
	// Duration is the approximate duration of a callback; zero if unknown.
	Duration time.Duration
}

// OfDestination is the backlog of one destination.
type OfDestination struct {
	Name string `json:"name"`
	Share
	// Estimated reports that due and pending were estimated from a sample.
	Estimated bool `json:"estimated,omitzero"`
	*Doing         // nil for a caller that may not see all tenants: it concerns other tenants' callbacks too
}

// Doing is the state of a destination, in the form of the answer.
type Doing struct {
	InFlight  int          `json:"inFlight"`
	Parked    int          `json:"parked"`
	Failures  int          `json:"failures"`
	OpenSince string       `json:"openSince,omitzero"`
	Duration  job.Duration `json:"duration,omitzero"`
}

// destinations splits the occurrences of lanes by destination; the destinations with the most come first. If
// lanes of the scope are missing, a destination may have more.
func (r *Reader) destinations(
	ctx context.Context, now time.Time, lanes []lane, whole bool, scope access.Scope,
) ([]OfDestination, error) {
	shares, exact, err := r.shareByDestination(ctx, now, lanes)
	if err != nil {
		return nil, err
	}
	for _, has := range shares {
		has.AtLeast = has.AtLeast || !whole
	}
	exact = exact && whole
	states := map[string]DestinationState{}
	if scope.All() {
		for _, s := range r.Destinations() {
			states[s.Name] = s
			shares.of(s.Name)
		}
	}
	all := make([]OfDestination, 0, len(shares))
	for name, has := range shares {
		d := OfDestination{Name: name, Share: *has, Estimated: !exact}
		if s := states[name]; scope.All() {
			d.Doing = &Doing{
				s.InFlight, s.Parked, s.Failures, timeText(s.OpenSince), job.Duration(s.Duration.Round(time.Millisecond)),
			}
		}
		all = append(all, d)
	}
	slices.SortFunc(all, func(a, b OfDestination) int {
		x, y := states[a.Name], states[b.Name]
		return cmp.Or(cmp.Compare(b.Due, a.Due), cmp.Compare(b.Pending, a.Pending), cmp.Compare(y.Parked, x.Parked),
			cmp.Compare(y.InFlight, x.InFlight), cmp.Compare(y.Failures, x.Failures), cmp.Compare(a.Name, b.Name))
	})
	return all, nil
}

// Bounds of the sample: occurrences and lanes in all; reads of a lane that is not read whole; and occurrences per such
// read, as their callbacks may be large.
const (
	mostSampled      = 1000
	mostLanesSampled = 50
	looks            = 5
	mostRead         = 100
	leastRead        = 10
)

// shareByDestination splits the occurrences of lanes by destination, in the proportions of a sample of the largest
// lanes. It is exact if the sample has all occurrences. The shares add up to the counted occurrences, except those
// whose job is gone.
func (r *Reader) shareByDestination(
	ctx context.Context, now time.Time, lanes []lane,
) (shares destinationShares, exact bool, err error) {
	lanes = slices.DeleteFunc(slices.Clone(lanes), func(l lane) bool { return l.Pending == 0 })
	slices.SortFunc(lanes, func(a, b lane) int {
		return cmp.Or(cmp.Compare(a.Due, b.Due), cmp.Compare(a.Pending, b.Pending), job.CompareLanes(a.Lane, b.Lane))
	})
	unseen := max(0, len(lanes)-mostLanesSampled)
	var others Share
	for i := range lanes[:unseen] {
		others.add(lanes[i].Share)
	}
	lanes = lanes[unseen:]
	size := 0
	for i := range lanes {
		size += lanes[i].Pending
	}
	shares, exact = destinationShares{}, unseen == 0
	// The smallest lane comes first and leaves the unused part of its share to larger lanes. Half of the sample is shared
	// evenly, half by size.
	left := mostSampled
	for i := range lanes {
		l := &lanes[i]
		samples, seen, err := r.sampleLane(ctx, now, l, (left/(len(lanes)-i)+left*l.Pending/size)/2)
		if err != nil {
			return nil, false, err
		}
		left, size = left-seen, size-l.Pending
		exact = exact && !l.AtLeast && seen >= l.Pending
		if seen == 0 { // the lane is empty now
			others.add(l.Share)
			continue
		}
		for k, s := range samples {
			until := l.Pending
			if k+1 < len(samples) {
				until = samples[k+1].before
			}
			due := min(max(l.Due, s.before), until) - s.before
			s.spread(Share{due, until - s.before, l.AtLeast}, shares)
		}
	}
	// Lanes without a sample get the proportions of all sampled lanes together.
	shares.sample().spread(others, shares)
	delete(shares, "")
	return shares, exact, nil
}

// sampleLane reads up to n occurrences of a lane, and returns the number read. If the lane has more, it samples at
// several points in time: first among the due occurrences, from the earliest to now, then among later ones, each time
// twice as far ahead. Each sample represents the occurrences up to the next sample, which are counted: due occurrences
// come in bursts, and without the counts all samples would have the same weight.
func (r *Reader) sampleLane(
	ctx context.Context, now time.Time, l *lane, n int,
) (samples []sample, seen int, err error) {
	all := !l.AtLeast && l.Pending <= n
	read := l.Pending
	if all {
		n = l.Pending
	} else {
		read = min(mostRead, max(leastRead, n/looks))
		n = min(n, looks*read)
	}
	nDue := n * l.Due / l.Pending // the same part of the sample as of the lane
	var from time.Time
	for seen < n {
		limit := min(read, n-seen)
		found, err := r.Inspector.Sample(ctx, l.Lane, from, limit)
		if err != nil {
			return nil, 0, err
		}
		if len(found) == 0 {
			break
		}
		if rest := n - seen; rest > limit && len(found) == limit && found[limit-1].DueAt.Equal(found[0].DueAt) {
			// They are all due at the same time, so the next read would skip all others of that time.
			limit = rest
			if found, err = r.Inspector.Sample(ctx, l.Lane, from, limit); err != nil {
				return nil, 0, err
			}
		}
		switch {
		case seen == 0:
			samples = append(samples, sample{due: Tally{}, later: Tally{}})
		case !all:
			counts, err := r.Inspector.Count(ctx, from.Add(-time.Millisecond), []job.Lane{l.Lane}, l.Pending)
			if err != nil {
				return nil, 0, err
			}
			samples = append(samples, sample{Tally{}, Tally{}, max(counts[0].Due, samples[len(samples)-1].before)})
		}
		s := samples[len(samples)-1]
		for _, o := range found {
			of := s.later
			if !o.DueAt.After(now) {
				of = s.due
			}
			name := "" // the name for an occurrence whose job is gone
			if o.Callback.Type != "" {
				name = r.DestinationOf(o.Callback)
			}
			of[name]++
		}
		if seen += len(found); len(found) < limit {
			break
		}
		// It never reads a time twice, or it would count an occurrence twice.
		last := found[len(found)-1].DueAt
		from = last.Add(time.Millisecond)
		switch reads := (nDue - seen) / read; {
		case all:
		case last.After(now):
			from = from.Add(last.Sub(now))
		case reads > 0:
			from = from.Add(now.Sub(last) / time.Duration(reads+1)).Truncate(time.Millisecond)
		default:
			from = now.Add(time.Millisecond)
		}
	}
	return samples, seen, nil
}

// sample counts the destinations of the occurrences that were read, separately for due and later ones. Before is the
// number of occurrences in the lane before those that the sample represents.
type sample struct {
	due, later Tally
	before     int
}

// spread adds a share to the shares of destinations, in the proportions of the sample. If the sample has only due
// occurrences, or only later ones, their proportions hold for both.
func (s sample) spread(there Share, shares destinationShares) {
	due, later := s.due, s.later
	if due.sum() == 0 {
		due = s.later
	}
	if later.sum() == 0 {
		later = s.due
	}
	due.Divide(there.Due, func(name string, n int) { shares.of(name).add(Share{n, n, there.AtLeast}) })
	later.Divide(there.Pending-there.Due, func(name string, n int) { shares.of(name).add(Share{0, n, there.AtLeast}) })
}

// Tally counts by destination.
type Tally map[string]int

func (t Tally) sum() (n int) {
	for _, of := range t {
		n += of
	}
	return n
}

// Divide splits n in the proportions of the tally, into whole numbers that add up to n. It returns nothing for an empty
// tally.
func (t Tally) Divide(n int, give func(name string, n int)) {
	all, counted, given := t.sum(), 0, 0
	for _, name := range slices.Sorted(maps.Keys(t)) {
		if t[name] == 0 {
			continue
		}
		counted += t[name]
		part := n*counted/all - given
		given += part
		give(name, part)
	}
}

// destinationShares are the shares of destinations, by name.
type destinationShares map[string]*Share

func (d destinationShares) of(name string) *Share {
	if d[name] == nil {
		d[name] = &Share{}
	}
	return d[name]
}

// sample makes a sample of the shares themselves.
func (d destinationShares) sample() sample {
	s := sample{due: Tally{}, later: Tally{}}
	for name, has := range d {
		s.due[name], s.later[name] = has.Due, has.Pending-has.Due
	}
	return s
}
