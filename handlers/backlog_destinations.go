package handlers

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

// DestinationState is how one of the destinations of callbacks is doing, as one replica sees it.
type DestinationState struct {
	// Name is what [callbacks.Registry] names it.
	Name string
	// InFlight is how many callbacks to it are under way, and Parked how many the replica has given back that wait in
	// the store.
	InFlight, Parked int
	// Failures are those in a row, since the last success.
	Failures int
	// OpenSince is since when nothing is sent to it, but for probes, because it fails; zero if it is not so.
	OpenSince time.Time
	// Duration is about how long a callback takes; zero if that is not known.
	Duration time.Duration
}

// destinationBacklog is what there is for one of the destinations, in the whole store, and how it is doing.
type destinationBacklog struct {
	Name string `json:"name"`
	share
	// Estimated tells that what is due and pending was taken from a sample.
	Estimated bool         `json:"estimated,omitzero"`
	InFlight  int          `json:"inFlight"`
	Parked    int          `json:"parked"`
	Failures  int          `json:"failures"`
	OpenSince string       `json:"openSince,omitzero"`
	Duration  job.Duration `json:"duration,omitzero"`
}

// destinationBacklogs tells how much of what the lanes have is for which destination, those with the most first. Unless
// these are all lanes, there may be more for each.
func (a *api) destinationBacklogs(ctx context.Context, now time.Time, lanes []laneBacklog, whole bool) ([]destinationBacklog, error) {
	shares, exact, err := a.shareByDestination(ctx, now, lanes)
	if err != nil {
		return nil, err
	}
	for _, has := range shares {
		has.AtLeast = has.AtLeast || !whole
	}
	exact = exact && whole
	states := map[string]DestinationState{}
	for _, s := range a.Destinations() {
		states[s.Name] = s
		shares.of(s.Name)
	}
	all := make([]destinationBacklog, 0, len(shares))
	for name, has := range shares {
		s := states[name]
		all = append(all, destinationBacklog{
			name, *has, !exact, s.InFlight, s.Parked, s.Failures, instantText(s.OpenSince), job.Duration(s.Duration.Round(time.Millisecond)),
		})
	}
	slices.SortFunc(all, func(a, b destinationBacklog) int {
		return cmp.Or(cmp.Compare(b.Due, a.Due), cmp.Compare(b.Pending, a.Pending), cmp.Compare(b.Parked, a.Parked),
			cmp.Compare(b.InFlight, a.InFlight), cmp.Compare(b.Failures, a.Failures), cmp.Compare(a.Name, b.Name))
	})
	return all, nil
}

// How many occurrences are sampled, and of how many lanes, in all; how often a lane is looked at of which not all is
// read; and how many are read at a time then, as their callbacks may be large.
const (
	mostSampled      = 1000
	mostLanesSampled = 50
	looks            = 5
	mostRead         = 100
	leastRead        = 10
)

// shareByDestination tells how much of what the lanes have is for which destination, going by a sample of those that
// have the most. It is exact if the sample is all that there is. The shares add up to what was counted, but for what
// goes nowhere since its job is gone.
func (a *api) shareByDestination(ctx context.Context, now time.Time, lanes []laneBacklog) (shares destinationShares, exact bool, err error) {
	lanes = slices.DeleteFunc(slices.Clone(lanes), func(l laneBacklog) bool { return l.Pending == 0 })
	slices.SortFunc(lanes, func(a, b laneBacklog) int {
		return cmp.Or(cmp.Compare(a.Due, b.Due), cmp.Compare(a.Pending, b.Pending), job.CompareLanes(a.Lane, b.Lane))
	})
	unseen := max(0, len(lanes)-mostLanesSampled)
	var others share
	for i := range lanes[:unseen] {
		others.add(lanes[i].share)
	}
	lanes = lanes[unseen:]
	size := 0
	for i := range lanes {
		size += lanes[i].Pending
	}
	shares, exact = destinationShares{}, unseen == 0
	// The smallest comes first, so that what it has no need of is for the larger ones. Each gets something, and the
	// rest is by size.
	left := mostSampled
	for i := range lanes {
		l := &lanes[i]
		samples, seen, err := a.sampleLane(ctx, now, l, (left/(len(lanes)-i)+left*l.Pending/size)/2)
		if err != nil {
			return nil, false, err
		}
		left, size = left-seen, size-l.Pending
		exact = exact && !l.AtLeast && seen >= l.Pending
		if seen == 0 { // it is gone
			others.add(l.share)
			continue
		}
		for k, s := range samples {
			until := l.Pending
			if k+1 < len(samples) {
				until = samples[k+1].before
			}
			due := min(max(l.Due, s.before), until) - s.before
			s.spread(share{due, until - s.before, l.AtLeast}, shares)
		}
	}
	// The lanes of which nothing was seen are taken to be as the others are together.
	shares.sample().spread(others, shares)
	delete(shares, "")
	return shares, exact, nil
}

// sampleLane looks at up to n of what a lane has, and tells how many it has seen. If that is not all, it looks here and
// there: at what is due, from the time that the first has been due to now, and then at what is due later, each time
// twice as far ahead. Each look stands for what there is up to the next one, which is counted: what is due comes in
// bursts, and a look at each would make them alike.
func (a *api) sampleLane(ctx context.Context, now time.Time, l *laneBacklog, n int) (samples []sample, seen int, err error) {
	all := !l.AtLeast && l.Pending <= n
	read := l.Pending
	if all {
		n = l.Pending
	} else {
		read = min(mostRead, max(leastRead, n/looks))
		n = min(n, looks*read)
	}
	nDue := n * l.Due / l.Pending // as much of the sample as of the lane
	var from time.Time
	for seen < n {
		limit := min(read, n-seen)
		found, err := a.Inspector.Sample(ctx, l.Lane, from, limit)
		if err != nil {
			return nil, 0, err
		}
		if len(found) == 0 {
			break
		}
		if rest := n - seen; rest > limit && len(found) == limit && found[limit-1].DueAt.Equal(found[0].DueAt) {
			// They are all due at once, so the next look would pass over all others that are.
			limit = rest
			if found, err = a.Inspector.Sample(ctx, l.Lane, from, limit); err != nil {
				return nil, 0, err
			}
		}
		switch {
		case seen == 0:
			samples = append(samples, sample{due: tally{}, later: tally{}})
		case !all:
			counts, err := a.Inspector.Count(ctx, from.Add(-time.Millisecond), []job.Lane{l.Lane}, l.Pending)
			if err != nil {
				return nil, 0, err
			}
			samples = append(samples, sample{tally{}, tally{}, max(counts[0].Due, samples[len(samples)-1].before)})
		}
		s := samples[len(samples)-1]
		for _, o := range found {
			of := s.later
			if !o.DueAt.After(now) {
				of = s.due
			}
			name := "" // of what goes nowhere
			if o.Callback.Type != "" {
				name = a.Callbacks.Destination(o.Callback)
			}
			of[name]++
		}
		if seen += len(found); len(found) < limit {
			break
		}
		// It never comes back to a time where it has been, lest it count something twice.
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

// sample is how many of what was looked at go to which destination, of what is due and of what is due later. Before is
// how many of the lane come before what it stands for.
type sample struct {
	due, later tally
	before     int
}

// spread adds to shares what there is, divided in the proportions of the sample. If there is nothing in it of the one
// kind, those of the other do for both.
func (s sample) spread(there share, shares destinationShares) {
	due, later := s.due, s.later
	if due.sum() == 0 {
		due = s.later
	}
	if later.sum() == 0 {
		later = s.due
	}
	due.divide(there.Due, func(name string, n int) { shares.of(name).add(share{n, n, there.AtLeast}) })
	later.divide(there.Pending-there.Due, func(name string, n int) { shares.of(name).add(share{0, n, there.AtLeast}) })
}

// tally counts by destination.
type tally map[string]int

func (t tally) sum() (n int) {
	for _, of := range t {
		n += of
	}
	return n
}

// divide gives n out in the proportions of what was counted, in whole numbers that add up to it. Of nothing, nothing is
// given.
func (t tally) divide(n int, give func(name string, n int)) {
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

// destinationShares are what there is for destinations.
type destinationShares map[string]*share

func (d destinationShares) of(name string) *share {
	if d[name] == nil {
		d[name] = &share{}
	}
	return d[name]
}

// sample takes the shares themselves for one.
func (d destinationShares) sample() sample {
	s := sample{due: tally{}, later: tally{}}
	for name, has := range d {
		s.due[name], s.later[name] = has.Due, has.Pending-has.Due
	}
	return s
}
