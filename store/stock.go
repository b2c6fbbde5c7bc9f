package store

import (
	"context"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

// Stock is the side of a store that tells how much there is to fire. It changes nothing and holds up nobody.
type Stock interface {
	// Lanes answers the lanes that have pending occurrences, each with the earliest time at which one becomes due, in no
	// particular order. It costs about as much as there are lanes, however many occurrences there are. Of a store that is in several
	// parts, of which some can't be reached, it answers the others' lanes, and the error.
	Lanes(ctx context.Context) ([]LaneDue, error)

	// CountLanes counts what lanes have at now, and answers for each in order. It reads nothing but an index, and of each lane
	// no more than the limit, which is at least 1.
	CountLanes(ctx context.Context, now time.Time, lanes []job.Lane, limit int) ([]LaneCount, error)

	// Sample reads the first pending occurrences of a lane that become due at from or later, up to a limit, which is at least 1, in
	// the order of their due times; fewer only if there are no more. They are among those that CountLanes counts: also what is held,
	// due when its lease ends, and what paused jobs have. It reads by the same index as a claim does, and nothing of an occurrence but
	// where it goes; callbacks may be large, so the limit should be small.
	Sample(ctx context.Context, lane job.Lane, from time.Time, limit int) ([]Sampled, error)

	// Backlog counts what the store has to fire at now. It may read as much as there is of it, though nothing but indexes:
	// whoever asks again and again takes care not to ask too often.
	Backlog(ctx context.Context, now time.Time) (Backlog, error)
}

// LaneDue is when a lane's next occurrence becomes due.
type LaneDue struct {
	Lane  job.Lane
	DueAt time.Time
}

// LaneCount is how much a lane has.
type LaneCount struct {
	// Pending is how many occurrences are to fire, now or later, or are held; the limit, if there are more.
	Pending int
	// Due is how many of them are due, and so not held; the limit, if there are more.
	Due int
}

// Sampled is when a pending occurrence becomes due, and what it calls.
type Sampled struct {
	DueAt time.Time
	// Callback is what a claim of it would answer now; zero if that can't be told, as of what a change that broke off has left
	// behind. Several may share the bytes of its data.
	Callback job.Callback
}

// Backlog is how much a store has to fire. Due and OldestDue are exact as of some moment during the call, though not of the
// same one. Pending and DeadLetters may be estimates, by a few per cent off, where there are so many that to count them would
// be long; up to 100,000 they are exact too. What is left behind by a change that broke off counts until it is removed.
type Backlog struct {
	// Pending is how many occurrences are to fire, now or later, or are held.
	Pending int
	// Due is how many of them are due at now, and so not held. Those of paused jobs are among them until a claim puts them
	// back.
	Due int
	// OldestDue is the earliest time since when one has been due; zero if none is.
	OldestDue time.Time
	// DeadLetters is how many dead letters there are, of all tenants.
	DeadLetters int
}
