package store

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

// Inspector is the side of a store that counts and samples pending occurrences. Its methods change nothing and block no
// other call.
type Inspector interface {
	// DueLanes lists the lanes that have occurrences due in a span of time, in pages, the longest due first. Its cost
	// follows the number of occurrences due in that span, not the number of lanes.
	//
	// A lane is a tenant's pending occurrences of one priority, see [job.Lane]. Consider the pages from a given After
	// up to the page without Next. They list each lane whose first occurrence is due later than After and not later
	// than Until, with that due time, unless the lane changes meanwhile. They may also list a lane whose first
	// occurrence is due before After; its due time is then that of a later occurrence. If some shards of a store can't
	// be reached, DueLanes returns the lanes of the other shards together with the error.
	DueLanes(ctx context.Context, params DueParams) (DuePage, error)

	// Count counts the occurrences of each lane at now, in the order of lanes. Without lanes it counts the whole store.
	// It reads indexes only. Of each lane it reads at most limit entries (at least 1); of the whole store it may read
	// all. So a caller that counts the whole store repeatedly must limit the frequency.
	Count(ctx context.Context, now time.Time, lanes []job.Lane, limit int) ([]Count, error)

	// Sample returns the first pending occurrences of a lane that are due at from or later, in the order of their due
	// times. It returns limit occurrences (at least 1), or fewer if there are no more. It covers the same occurrences
	// as Count, including held ones, which are due when their lease ends, and those of paused jobs. It uses the index
	// of claims, and reads nothing of an occurrence but its callback. Callbacks may be large, so limit should be small.
	Sample(ctx context.Context, lane job.Lane, from time.Time, limit int) ([]Sampled, error)
}

// LaneDue is a lane and the time at which its next occurrence becomes due.
type LaneDue struct {
	Lane  job.Lane
	DueAt time.Time
}

// Compare orders by due time. Lanes with the same due time sort by the bytes of their texts.
func (l LaneDue) Compare(other LaneDue) int {
	return cmp.Or(l.DueAt.Compare(other.DueAt), job.CompareLanes(l.Lane, other.Lane))
}

// DueParams select the lanes that [Inspector.DueLanes] lists.
type DueParams struct {
	// After is the position at which the page begins. With a lane, the page begins behind that lane at that time.
	// Without a lane, it begins with everything due at that time or later. The zero value is the beginning.
	After LaneDue
	// Until is the latest due time to list.
	Until time.Time
	// Limit bounds the entries read for one page and the lanes on it; at least 1. A store may have a smaller limit.
	Limit int
}

// DuePage is one page of [Inspector.DueLanes].
type DuePage struct {
	// Lanes has each lane once, in the order of the due times.
	Lanes []LaneDue
	// Next is the After of the next page. It is zero if this page is the last.
	Next LaneDue
}

// Count is the number of occurrences and dead letters of a lane, or of the whole store.
//
// A lane's count that exceeds the limit is reported as the limit. For the whole store, Due is exact at some moment
// during the call. Pending and DeadLetters may belong to other moments. They are exact up to 100,000; larger numbers
// may be estimates with an error of a few per cent. Occurrences left behind by an interrupted change count until they
// are removed.
type Count struct {
	// Pending counts the occurrences that are to fire, now or later, and the held ones.
	Pending int
	// Due counts the pending occurrences that are due, and therefore not held. It includes those of paused jobs until a
	// claim puts them back.
	Due int
	// DeadLetters counts the dead letters of all tenants. They belong to no lane.
	DeadLetters int
}

// CountAll returns the counts of the whole store.
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

// Sampled is a pending occurrence's due time and callback.
type Sampled struct {
	DueAt time.Time
	// Callback is the callback that a claim of the occurrence would return now. It is zero if it can't be determined,
	// for example for an occurrence left behind by an interrupted change. Several Sampled may share the bytes of its
	// data.
	Callback job.Callback
}

// DueEntries summarizes some entries of one lane in an index by due time: the first and the last due time, and the
// number of entries.
type DueEntries struct {
	Lane        job.Lane
	First, Last time.Time
	N           int
}

// DuePageOf makes a page of index entries that were read from a position on, up to a limit in all. Lanes may repeat.
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

// FirstOfEach returns each lane once, with the first of its times. The lanes are given in their order.
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
