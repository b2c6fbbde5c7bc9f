// Package checker decides whether a history keeps Carillon's guarantees. It knows nothing of Carillon's code: it judges
// by what clients sent and were told, by what receivers saw, and by the faults that there were.
package checker

import (
	"slices"
	"time"
)

// History is what was observed of a run. All times are true ones, except where a field says otherwise.
type History struct {
	Ops        []Op
	Deliveries []Delivery
	Troubles   []Trouble
	Final      Final

	Begun time.Time
	// Calm is the time from which there were no more faults; Ended that of the final reading.
	Calm, Ended time.Time

	// Lease and CallbackTimeout are the service's options. Within is the time in which a change takes effect, or never.
	Lease, CallbackTimeout, Within time.Duration
	// Link is the longest time that a request was under way between a client and a replica.
	Link time.Duration
	// Late is the time before the end in which instants need not be done yet; 0 is that of the constant.
	Late time.Duration
}

// Kind is the kind of an operation.
type Kind string

// The kinds of operations.
const (
	Put     Kind = "put"    // the whole job; N is its payload
	Create  Kind = "create" // a put under the condition that there is no such job
	Amend   Kind = "amend"  // a patch that changes the payload to N
	Cancel  Kind = "cancel"
	Pause   Kind = "pause"
	Resume  Kind = "resume"
	Trigger Kind = "trigger"
	Get     Kind = "get"
	Redrive Kind = "redrive" // all dead letters of the key
)

// Op is an operation of a client, with what it was told.
type Op struct {
	ID      int
	Kind    Kind
	Key     string
	Replica int
	// N is the payload of a put or an amendment: no two operations have the same.
	N        int
	Schedule Schedule
	// Retries is the number of further attempts at a failed delivery; Deadline is zero for none.
	Deadline time.Duration

	Invoked, Returned time.Time
	// Ahead is how far the replica's clock was ahead of the true time, at most.
	Ahead time.Duration
	// Status is that of the answer; 0 if there was none.
	Status int
	// Unchanged is set if a failure said that nothing was changed.
	Unchanged bool

	// Of the answer, if it has them.
	Cancelled, InFlight, Skipped int
	Shown                        Job    // of a get
	DeliveryID                   string // of a trigger
}

// Schedule is when a job fires: at instants, or every so often.
type Schedule struct {
	Instants []time.Time
	// Every is more than zero for a recurring schedule, which fires at its multiples, up to End.
	Every time.Duration
	End   time.Time
}

// Has reports whether an instant belongs to a schedule.
func (s Schedule) Has(at time.Time) bool {
	if s.Every == 0 {
		return slices.ContainsFunc(s.Instants, at.Equal)
	}
	return at.UnixNano()%int64(s.Every) == 0 && !at.After(s.End)
}

// Between returns the instants later than from and up to until.
func (s Schedule) Between(from, until time.Time) (all []time.Time) {
	if s.Every == 0 {
		for _, at := range s.Instants {
			if at.After(from) && !at.After(until) {
				all = append(all, at)
			}
		}
		return all
	}
	for at := from.Truncate(s.Every).Add(s.Every); !at.After(until) && !at.After(s.End); at = at.Add(s.Every) {
		all = append(all, at)
	}
	return all
}

// Job is a job as a client was shown it.
type Job struct {
	N                                  int
	State                              string
	Pending, Delivered, Failed, Missed int
	Counted                            bool // Delivered, Failed and Missed are known
	Held                               int  // of the occurrences shown
}

// Delivery is one attempt as a receiver saw it.
type Delivery struct {
	Replica int
	ID      string
	Key     string
	Instant time.Time
	Attempt int
	N       int
	// Begun and Ended bound it. Local is Begun by the replica's clock.
	Begun, Ended, Local time.Time
	// Took is set if the receiver took responsibility for it, and Told if the replica got to know that.
	Took, Told bool
}

// Trouble is a fault of the world around the service.
type Trouble struct {
	What string
	// Replica is -1 if all replicas were concerned.
	Replica  int
	From, To time.Time
}

// Final is the state that clients read at the end.
type Final struct {
	Jobs    map[string]Job
	Dead    map[string][]Dead // by key
	Unready []string          // the reasons of replicas that are not ready
	Unread  []string          // readings that failed
	// Recorded are the attempts of which the service's history tells; nil if it was not asked.
	Recorded []Recorded
}

// Dead is a dead letter.
type Dead struct {
	ID, DeliveryID string
	Instant        time.Time
}

// Recorded is an attempt of which the service's history tells.
type Recorded struct {
	Key, DeliveryID string
	Attempt         int
}
