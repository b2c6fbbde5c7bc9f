// Package checker decides whether a history keeps Carillon's guarantees. It knows nothing of Carillon's code: it judges
// by the requests of clients and their answers, by the deliveries that receivers saw, and by the faults.
package checker

import (
	"slices"
	"time"
)

// History has the observations of a run. All times are true ones, except where a field says otherwise.
type History struct {
	Ops        []Op
	Deliveries []Delivery
	Troubles   []Trouble
	Final      Final

	Begun time.Time
	// Calm is the time from which there were no more faults; Ended that of the final reading.
	Calm, Ended time.Time
	// Due is the time up to which all instants must be accounted for at the end.
	Due time.Time

	// Lease and CallbackTimeout are the service's options. Within is the time in which a change takes effect, or never.
	Lease, CallbackTimeout, Within time.Duration
	// Settles is the time within which a replica writes outcomes once the store is well again, and ClockBound how far a
	// clock may be wrong before its replica stops claiming. Zero is unknown, and then nothing is judged by it.
	Settles, ClockBound time.Duration
	// Early is the window before their instants in which occurrences may fire.
	Early time.Duration
	// CountsApart is set if the store counts the instants that are dropped as too late by a write of its own, which a
	// replica may not come to make.
	CountsApart bool
	// Slots is the number of deliveries that one replica has under way at most. Prompt is the time within which it begins
	// one for which it has a slot; zero is unknown.
	Slots  int
	Prompt time.Duration
	// Replicas is their number. TakesOver is the time within which another replica claims in the place of one that is
	// gone, and Counted how long after its beginning a replica may come to stand still; zero is unknown.
	Replicas           int
	TakesOver, Counted time.Duration
	// Permissions are those of callers' keys; a caller without them may do everything. Rules are those of the operator, by
	// the receivers' names in jobs, and by their own.
	Permissions map[string]Permissions
	Rules       map[string]Rule
	// Link is the longest time that a request was under way between a client and a replica.
	Link time.Duration
	// Patience is the real time after which the search for an order of a key's operations is given up; zero is 10 s.
	Patience time.Duration
}

// Kind is the kind of an operation.
type Kind string

// The kinds of operations.
const (
	Put     Kind = "put"     // the whole job; N is its payload
	Create  Kind = "create"  // a put under the condition that there is no such job
	Replace Kind = "replace" // a put under the condition that there is such a job: a patch of all members
	Amend   Kind = "amend"   // a patch that changes the payload to N
	Cancel  Kind = "cancel"
	Pause   Kind = "pause"
	Resume  Kind = "resume"
	Trigger Kind = "trigger"
	Get     Kind = "get"
	Redrive Kind = "redrive" // all dead letters of the key
	Discard Kind = "discard" // the same: they are deleted
	Batch   Kind = "batch"   // some puts in one request; each of them is an operation
	List    Kind = "list"    // the jobs of a tenant
	Preview Kind = "preview" // the instants of a job that is not submitted

	Settings Kind = "settings" // an operator pauses or limits a tenant, or lets it go on
	Quota    Kind = "quota"    // an operator sets the most jobs of a tenant
	Revoke   Kind = "revoke"   // the key of a caller
	Rotate   Kind = "rotate"   // the key of a caller gets another secret
)

// Op is an operation of a client, with its answer.
type Op struct {
	ID      int
	Kind    Kind
	Key     string
	Replica int
	// Tenant is the job's, or the one that an operator's change is about. Caller is who asks, or whose key is revoked or
	// rotated; empty for an operator.
	Tenant, Caller string
	// Paused and Most are values of settings: no deliveries, or no more at a time; 0 is any number. Jobs is the quota.
	Paused     bool
	Most, Jobs int
	// Secret is the number of the secret by which the caller asks, or that a rotation has given: a key begins with 0.
	// Overlap is the time for which the secret before a rotation stays valid.
	Secret  int
	Overlap time.Duration
	// To is the receiver that a put or an amendment names; empty if it has no rule.
	To string
	// N is the payload of a put or an amendment: no two operations have the same.
	N        int
	Schedule Schedule
	// Match is the payload of the version that the operation is conditional on; 0 for none. Without that version, nothing
	// changes.
	Match int
	// Prefix is that of a cancellation of all jobs whose keys begin with it, which is one operation for each key. Part is
	// the number of this one; their IDs follow each other. The counts of each are those of the whole answer.
	Prefix string
	Part   int
	// Deadline is the time after their instants at which occurrences are dropped; zero for none. CatchUp is the rule for
	// ticks that no replica could claim within a lease. Attempts is the most of an occurrence, and Retry bounds the pauses
	// between them; an amendment that changes neither has none.
	Deadline time.Duration
	CatchUp  string
	Attempts int
	Retry    Retry
	// Past is the treatment of instants that have passed when the job is put: fire, skip or reject; empty for the default.
	Past string

	Invoked, Returned time.Time
	// Several is set if the request asks for several changes, which are made one after the other, each within its time.
	Several bool
	// Arrived is when the request came to the replica; zero if that is unknown.
	Arrived time.Time
	// Ahead is how far the replica's clock was ahead of the true time, at most; Behind is how far it was behind, at most.
	Ahead, Behind time.Duration
	// Status is that of the answer; 0 if there was none.
	Status int
	// Body is that of the answer.
	Body []byte
	// Unchanged is set if a failure said that nothing was changed.
	Unchanged bool

	// Of the answer, if it has them.
	Cancelled, InFlight, Skipped, Settled int
	Redriven, Deleted                     int    // dead letters
	Found                                 int    // jobs, of a cancellation by prefix
	Shown                                 Job    // of a get
	DeliveryID                            string // of a trigger
	Listed                                []string
	// Moved are the due times of occurrences that were not attempted, of a get, or of instants, of a preview.
	Moved []Moved
}

// Schedule is when a job fires: at instants, or every so often.
type Schedule struct {
	Instants []time.Time
	// Every is more than zero for a recurring schedule, which fires at its multiples, up to End.
	Every time.Duration
	End   time.Time
	// Spread is the window over which occurrences are moved ahead of their instants. Those of Steps are all moved by the
	// same time.
	Spread time.Duration
	Steps  bool
	// From and To bound the one instant of a job with a delay whose instant the client was not told; else they are zero.
	From, To time.Time
}

// Has reports whether an instant belongs to a schedule.
func (s Schedule) Has(at time.Time) bool {
	if s.Every == 0 {
		return slices.ContainsFunc(s.Instants, at.Equal) || !s.To.IsZero() && !at.Before(s.From) && !at.After(s.To)
	}
	return at.UnixNano()%int64(s.Every) == 0 && !at.After(s.End)
}

// same reports whether two schedules have the same instants, for certain.
func (s Schedule) same(other Schedule) bool {
	return s.Every == other.Every && s.Spread == other.Spread && s.End.Equal(other.End) &&
		s.To.IsZero() && other.To.IsZero() &&
		slices.EqualFunc(s.Instants, other.Instants, time.Time.Equal)
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

// before returns the instants before a time; of a recurring schedule, which has no past, none.
func (s Schedule) before(at time.Time) (all []time.Time) {
	for _, instant := range s.Instants {
		if instant.Before(at) {
			all = append(all, instant)
		}
	}
	return all
}

// next returns the next tick of a recurring schedule after one of them, if there is one.
func (s Schedule) next(tick time.Time) (at time.Time, more bool) {
	if s.Every == 0 {
		return at, false
	}
	at = tick.Truncate(s.Every).Add(s.Every)
	return at, !at.After(s.End)
}

// Job is a job as a client was shown it.
type Job struct {
	N                                  int
	State, Version                     string
	Pending, Delivered, Failed, Missed int
	Counted                            bool // Delivered, Failed and Missed are known
	Held                               int  // of the occurrences shown
	Last                               Outcome
}

// Outcome is the outcome of a job's latest instant that has ended; empty if none is shown.
type Outcome struct {
	Outcome string
	Instant time.Time
}

// Delivery is one attempt as a receiver saw it.
type Delivery struct {
	Replica int
	ID      string
	Key     string
	Tenant  string
	// To is the receiver, as itself knows it.
	To      string
	Instant time.Time
	Attempt int
	N       int
	// Begun and Ended bound it. Local is Begun by the replica's clock.
	Begun, Ended, Local time.Time
	// Took is set if the receiver took responsibility for it, and Told if the replica got to know that. Refused is set if
	// the receiver refused it for good.
	Took, Told, Refused bool
	// Asked is the pause that the receiver asked for.
	Asked time.Duration
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
	// Missing are the times in which the service says that entries of a key's history may be missing.
	Missing map[string]Missing
}

// Dead is a dead letter.
type Dead struct {
	ID, DeliveryID string
	Instant        time.Time
	Attempt        int
}

// Recorded is an attempt of which the service's history tells.
type Recorded struct {
	Key, DeliveryID, Outcome string
	Attempt                  int
	At                       time.Time // by its replica's clock
}

// Missing is a time in which entries of history may be missing.
type Missing struct{ From, Until time.Time }
