package store

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

// Inspector is the side of a store that tells how much there is to fire. It changes nothing and holds up nobody.
type Inspector interface {
	// DueLanes lists the lanes that have occurrences due in a span of time, a page at a time, the longest due first. Its
	// cost follows the number of occurrences due in that span, not the number of lanes.
	//
	// A lane is a tenant's pending occurrences of one priority, see [job.Lane]. Each lane whose first occurrence is due
	// later than After and not later than Until is on one of the pages from After to the one without Next, with that
	// due time, unless it changes meanwhile. A lane whose first occurrence is due before After may be listed too, with
	// the due time of a later one. A store with several shards, some of which can't be reached, answers the lanes of the
	// others together with the error.
	DueLanes(ctx context.Context, params DueParams) (DuePage, error)

	// Count counts at now the occurrences of each lane, in order, or, if no lane is named, of the whole store. It reads
	// nothing but indexes: of each lane up to the limit, which is at least 1; of the whole store possibly everything, so
	// whoever counts that repeatedly limits how often.
	Count(ctx context.Context, now time.Time, lanes []job.Lane, limit int) ([]Count, error)

	// Sample reads the first pending occurrences of a lane that are due at from or later, up to a limit, which is at
	// least 1, in the order of their due times; fewer only if there are no more. They are among those that Count
	// counts: also what is held, due when its lease ends, and what paused jobs have. It reads by the same index as a
	// claim does, and nothing of an occurrence but where it goes; callbacks may be large, so the limit should be small.
	Sample(ctx context.Context, lane job.Lane, from time.Time, limit int) ([]Sampled, error)
}

// LaneDue is when a lane's next occurrence becomes due.
type LaneDue struct {
	Lane  job.Lane
	DueAt time.Time
}

// Compare orders by due times, and of one time by the bytes of the lanes' texts.
func (l LaneDue) Compare(other LaneDue) int {
	return cmp.Or(l.DueAt.Compare(other.DueAt), job.CompareLanes(l.Lane, other.Lane))
}

// DueParams say where to look for what becomes due.
type DueParams struct {
	// After is where to begin: with what becomes due at its time in a lane that sorts after its lane, or later. Without
	// a lane that is all that becomes due at its time or later; the zero value is the beginning.
	After LaneDue
	// Until is up to when to look.
	Until time.Time
	// Limit bounds what is read for one page, and the lanes on it; at least 1. A store may have a smaller one of its
	// own.
	Limit int
}

// DuePage is what was found.
type DuePage struct {
	// Lanes are told once each, in the order of their times.
	Lanes []LaneDue
	// Next is where the next page begins: all up to there is told. It is zero if that is all up to Until.
	Next LaneDue
}

// Count is how much a lane, or the whole store, has.
//
// Of a lane, a count that exceeds the limit is told as the limit. Of the whole store, Due is exact as of some moment
// during the call. Pending and DeadLetters, of possibly different moments, are exact up to 100,000; beyond, they may be
// estimates, off by a few per cent. Occurrences that an interrupted change has left behind count until they are
// removed.
type Count struct {
	// Pending is how many occurrences are to fire, now or later, or are held.
	Pending int
	// Due is how many of them are due, and so not held. Those of paused jobs are among them until a claim puts them
	// back.
	Due int
	// DeadLetters is how many dead letters there are, of all tenants. They are in no lane.
	DeadLetters int
}

// CountAll counts what the whole store has.
func CountAll(ctx context.Context, of interface {
	Count(context.Context, time.Time, []job.Lane, int) ([]Count, error)
}, now time.Time,
) (Count, error) {
	all, err := of.Count(ctx, now, nil, 1)
	if err != nil {
		return Count{}, err
	}
	return all[0], nil
}

// Sampled is when a pending occurrence becomes due, and what it calls.
type Sampled struct {
	DueAt time.Time
	// Callback is what a claim of it would answer now; zero if that can't be told, as of what a change that broke off
	// has left behind. Several may share the bytes of its data.
	Callback job.Callback
}

// DueEntries are some of one lane in a part of an index by due times: when the first and the last become due, and how
// many there are.
type DueEntries struct {
	Lane        job.Lane
	First, Last time.Time
	N           int
}

// DuePageOf makes a page of what was read of such an index from a place on, up to a limit in all. Lanes may repeat.
func DuePageOf(read []DueEntries, limit int) (page DuePage) {
	n, all := 0, make([]LaneDue, len(read))
	for i, e := range read {
		all[i] = LaneDue{e.Lane, e.First}
		if last := (LaneDue{e.Lane, e.Last}); n == 0 || last.Compare(page.Next) > 0 {
			page.Next = last
		}
		n += e.N
	}
	if n < limit {
		page.Next = LaneDue{}
	}
	slices.SortFunc(all, LaneDue.Compare)
	page.Lanes = FirstOfEach(all)
	return page
}

// FirstOfEach has each lane once, with the first of its times, of lanes that are in the order of these.
func FirstOfEach(lanes []LaneDue) (first []LaneDue) {
	known := make(map[job.Lane]bool, len(lanes))
	for _, l := range lanes {
		if !known[l.Lane] {
			known[l.Lane] = true
			first = append(first, l)
		}
	}
	return first
}
