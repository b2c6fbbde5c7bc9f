// Package explain explains in sentences why an occurrence fired or did not fire, or why it waits. It is pure: package
// facts gathers the facts from the store and from history, and [Explain] turns them into an answer. If a fact is
// unknown, the answer says so.
package explain

import (
	"cmp"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/history"
	"github.com/carillon-scheduler/carillon/job"
)

// Code is the kind of a fact, for programs.
type Code string

// The codes of outcomes: the occurrence fires no more.
const (
	Delivered Code = "delivered" // its receiver has taken it
	Missed    Code = "missed"    // it was too late by its job's deadline or catch-up rule, and was dropped
	Dead      Code = "dead"      // it was given up and is a dead letter, or was one
	Discarded Code = "discarded" // its dead letter was deleted by a client
	Cancelled Code = "cancelled" // its job was cancelled before it fired
	Replaced  Code = "replaced"  // its job was replaced by a definition that does not have it
)

// The codes of states: the occurrence is still to fire.
const (
	Waiting            Code = "waiting"             // its time has not come
	NotExpandedYet     Code = "not_expanded_yet"    // the same, and it is not in the store yet
	Due                Code = "due"                 // its time has come, and a replica is about to claim it
	Backlog            Code = "backlog"             // the same, and others are before it
	Held               Code = "held"                // a replica is sending it
	LeaseOver          Code = "lease_over"          // a replica claimed it and has not recorded its outcome in time
	Retrying           Code = "retrying"            // an attempt failed, and another follows
	Released           Code = "released"            // the same, but the attempt does not count
	DestinationDown    Code = "destination_down"    // its destination fails again and again
	DestinationLimited Code = "destination_limited" // its destination takes no more at the moment
	TenantLimited      Code = "tenant_limited"      // its tenant has a limit of callbacks under way
	TenantPaused       Code = "tenant_paused"
	JobPaused          Code = "job_paused"
	NoReplica          Code = "no_replica" // no replica fires anything
)

// The other codes.
const (
	NoSuchInstant        Code = "no_such_instant"
	SkippedByClockChange Code = "skipped_by_clock_change"
	SkippedAsPast        Code = "skipped_as_past" // it had passed when its job was submitted
	Finished             Code = "finished"        // the job has nothing left to fire
	NotKept              Code = "not_kept"        // history is not kept, or no longer, or was dropped
	Unknown              Code = "unknown"
	Triggered            Code = "triggered" // a client asked for it beside the schedule
	Redriven             Code = "redriven"  // a client made its dead letter due again
	Moved                Code = "moved"     // a spread, or a change of the clocks, moved it
)

// Question is a question about an instant, with all known facts. Times are whole milliseconds, in UTC.
type Question struct {
	Name job.Name
	// At is the instant. It is zero if no instant was named and none was found.
	At  time.Time
	Now time.Time
	// Job is the job; nil if there is none.
	Job *job.Job
	// Finished reports that the next instant was asked for and that the job has none left. At is its last one then.
	Finished bool
	// Pending and Dead are the pending occurrences and the dead letters of the instant.
	Pending, Dead []job.Occurrence
	// Entries are the changes of the job and the history of the instant's occurrences, the newest first.
	Entries []history.Entry
	// More reports that there are more occurrences or entries than were read.
	More bool
	// Kept says which history there is.
	Kept Kept
	// Tenant has the settings of the job's tenant.
	Tenant job.TenantSettings
	// Destination is the state of the callback's destination; zero if it is unknown.
	Destination Destination
	// Queue is the queue before the first occurrence that is due; nil if none is.
	Queue *Queue
	// Replicas is the number of replicas that may be claiming.
	Replicas int
	// Retain is the least time for which a job stays after its submission and its last instant, unless it is cancelled.
	Retain time.Duration
}

// Kept says which history is kept.
type Kept struct {
	// On reports that history is kept.
	On bool
	// For is the time for which it is kept; zero if that is unknown.
	For time.Duration
	// Failures reports that deliveries are left out.
	Failures bool
	// Gap is a time within which entries were dropped; nil if none were.
	Gap *history.Gap
}

// from returns the time from which on history is kept.
func (k Kept) from(now time.Time) time.Time {
	if k.For == 0 {
		return time.Time{}
	}
	return now.Add(-k.For)
}

// Destination is the state of a destination.
type Destination struct {
	Name string
	// Failures is the number of failures in a row.
	Failures int
	// DownSince is the time at which its circuit opened; zero if it is closed.
	DownSince time.Time
}

// Queue is the queue before an occurrence that is due.
type Queue struct {
	// Known reports that the answer may contain Ahead and Share.
	Known bool
	// Ahead is the number of occurrences of the same lane that became due before. AtLeast reports that there are more.
	Ahead   int
	AtLeast bool
	// Share is the part of all slots that the lane gets while others are due too; 1 for all of them.
	Share float64
	// PerSecond is the number of occurrences that all replicas have lately settled per second; zero if it is unknown.
	PerSecond float64
}

// start estimates the time at which the occurrence behind the queue starts; zero if there is no estimate.
func (q *Queue) start(now time.Time) time.Time {
	if q.PerSecond*q.Share <= 0 || q.AtLeast {
		return time.Time{}
	}
	seconds := float64(q.Ahead) / (q.PerSecond * q.Share)
	return now.Add(time.Duration(min(seconds, 1e9) * float64(time.Second))).Round(time.Second)
}

// Waiter is a lane with due occurrences.
type Waiter struct {
	Lane job.Lane
	// Priority is the lane's effective one, and PriorityWeight the weight of that priority.
	Priority       job.Priority
	PriorityWeight float64
	// TenantWeight is the weight of the lane's tenant.
	TenantWeight float64
}

// Share returns the part of all slots that a lane gets while other lanes have due occurrences too. The lane itself
// need not be among the others.
func Share(own Waiter, others []Waiter) float64 {
	priorities := map[job.Priority]float64{own.Priority: own.PriorityWeight}
	tenants := map[string]float64{own.Lane.Tenant: own.TenantWeight}
	for _, w := range others {
		priorities[w.Priority] = w.PriorityWeight
		if w.Priority == own.Priority {
			tenants[w.Lane.Tenant] = w.TenantWeight
		}
	}
	part := func(of float64, sum float64) float64 {
		if sum <= 0 {
			return 1
		}
		return of / sum
	}
	return part(own.PriorityWeight, sum(priorities)) * part(own.TenantWeight, sum(tenants))
}

func sum[K comparable](of map[K]float64) (all float64) {
	for _, v := range of {
		all += v
	}
	return all
}

// Answer explains an instant.
type Answer struct {
	// Code is that of the first fact.
	Code Code
	// Summary is one sentence.
	Summary string
	// Facts are the reasons, the most important first; at least one.
	Facts []Fact
	// Occurrence is the one that the first fact is about; nil if there is none in the store. State is its state.
	Occurrence *job.Occurrence
	State      State
	// At is the instant; zero if there is none.
	At time.Time
	// FiresAt is the time at which it is due at first if the job has a spread and the instant one occurrence, else zero.
	FiresAt time.Time
	// Nearest are the instants of the schedule before and after the time, as far as there are any.
	Nearest []time.Time
}

// State is the place of an occurrence in the store.
type State string

// The states.
const (
	PendingState State = "pending"
	HeldState    State = "held"
	DeadState    State = "dead"
)

// Fact is one reason. A field that does not apply is zero.
type Fact struct {
	Code Code
	Text string
	// At is the time of an event, and Since the beginning of a state. Until is its end, and Next the time at which
	// something is expected to happen.
	At, Since, Until, Next time.Time
	// By and Request identify the principal and the request of a change.
	By, Request string
	// Attempt, Status, Error, Destination and Replica are of an attempt.
	Attempt, Status             int
	Error, Destination, Replica string
	// Count is the number of occurrences that the fact is about.
	Count int
	// headline is the summary if this is the first fact.
	headline string
}

// Explain answers a question.
func Explain(q *Question) Answer {
	e := explainer{Question: q}
	if q.Job != nil {
		e.around, e.err = q.Job.Schedule.Around(orNow(q.At, q.Now))
		for _, at := range []time.Time{e.around.Before, e.around.After} {
			if !at.IsZero() {
				e.answer.Nearest = append(e.answer.Nearest, at)
			}
		}
	}
	all := e.subjects()
	switch {
	case len(all) == 1:
		e.one(all[0])
	case len(all) > 1:
		e.several(all)
	case q.Job == nil:
		e.gone()
	default:
		e.absent()
	}
	if q.Finished {
		e.finished()
	}
	e.context()
	a := &e.answer
	a.At, a.Code, a.Summary = q.At, a.Facts[0].Code, a.Facts[0].headline
	if q.Job != nil && q.Job.Options.Spread != 0 && len(all) < 2 && (len(all) == 1 || e.around.Is) {
		if moved := e.firesAt(nil); !moved.Equal(q.At) {
			a.FiresAt = moved
		}
	}
	return *a
}

// explainer makes one answer.
type explainer struct {
	*Question
	around job.Surroundings // of At; zero if there is no job
	err    error            // of computing them
	answer Answer
}

// add appends facts.
func (e *explainer) add(facts ...Fact) { e.answer.Facts = append(e.answer.Facts, facts...) }

// subject is one occurrence of the instant.
type subject struct {
	position   int
	subscriber string
	pending    *job.Occurrence // nil if it is not pending
	dead       *job.Occurrence // nil if it is no dead letter
	entries    []history.Entry // the newest first
}

// subjects lists the instant's occurrences in the store or in history, by step and subscriber.
func (e *explainer) subjects() (all []*subject) {
	of := func(position int, subscriber string) *subject {
		i := slices.IndexFunc(all, func(s *subject) bool {
			return s.position == position && s.subscriber == subscriber
		})
		if i < 0 {
			i, all = len(all), append(all, &subject{position: position, subscriber: subscriber})
		}
		return all[i]
	}
	if e.At.IsZero() {
		return nil
	}
	for i := range e.Pending {
		o := &e.Pending[i]
		of(o.Position, subscriberOf(o)).pending = o
	}
	for i := range e.Dead {
		o := &e.Dead[i]
		of(o.Position, subscriberOf(o)).dead = o
	}
	for _, entry := range e.Entries {
		if entry.Instant.Equal(e.At) {
			s := of(entry.Position, entry.Subscriber)
			s.entries = append(s.entries, entry)
		}
	}
	slices.SortFunc(all, func(a, b *subject) int {
		return cmp.Or(cmp.Compare(a.position, b.position), cmp.Compare(a.subscriber, b.subscriber))
	})
	return all
}

func subscriberOf(o *job.Occurrence) string {
	if o.Part == nil {
		return ""
	}
	return o.Part.Subscriber
}

// firesAt returns the time at which an occurrence of the instant is due at first; nil stands for that of a schedule
// without subscribers.
func (e *explainer) firesAt(o *job.Occurrence) time.Time {
	if e.Job == nil {
		return e.At
	}
	if o == nil {
		o = &job.Occurrence{Timestamp: e.At, Revision: e.Job.Revision}
	}
	if o.Revision == "" {
		return e.At
	}
	plain := job.Occurrence{Name: e.Job.Name, Timestamp: e.At, Part: o.Part}
	return e.Job.Options.FiresAt(&plain)
}

// change returns the newest change of one of some kinds, not before a time; nil if there is none.
func (e *explainer) change(since time.Time, kinds ...history.Kind) *history.Entry {
	for i := range e.Entries {
		entry := &e.Entries[i]
		if entry.Instant.IsZero() && slices.Contains(kinds, entry.Kind) && !entry.At.Before(since) {
			return entry
		}
	}
	return nil
}

// firstChange returns the oldest change of one of some kinds that is not before a time; nil if there is none.
func (e *explainer) firstChange(since time.Time, kinds ...history.Kind) (first *history.Entry) {
	for i := range e.Entries {
		entry := &e.Entries[i]
		if entry.At.Before(since) {
			break
		}
		if entry.Instant.IsZero() && slices.Contains(kinds, entry.Kind) {
			first = entry
		}
	}
	return first
}

// several answers for an instant with more than one occurrence: a fact for each code, the worst first.
func (e *explainer) several(all []*subject) {
	type group struct {
		fact  Fact
		of    *subject
		count int
	}
	var groups []*group
	for _, s := range all {
		apart := explainer{Question: e.Question, around: e.around, err: e.err}
		apart.one(s)
		fact := apart.answer.Facts[0]
		i := slices.IndexFunc(groups, func(g *group) bool { return g.fact.Code == fact.Code })
		if i < 0 {
			i, groups = len(groups), append(groups, &group{fact: fact, of: s})
		}
		groups[i].count++
	}
	slices.SortStableFunc(groups, func(a, b *group) int { return severity(a.fact.Code) - severity(b.fact.Code) })
	headline := "Of the " + number(len(all)) + " occurrences of " + moment(e.At) + ", "
	if e.More {
		headline = "Of the first " + number(len(all)) + " occurrences of " + moment(e.At) + " that were read, "
	}
	var parts []string
	for _, g := range groups {
		parts = append(parts, number(g.count)+" "+g.fact.Code.of(g.count))
	}
	for i, g := range groups {
		fact := g.fact
		fact.Count, fact.headline = g.count, headline+list(parts)+"."
		if name := g.of.subscriber; name != "" {
			fact.Text = "For subscriber " + name + ": " + fact.Text
		}
		if g.count > 1 {
			fact.Text += " The same holds for " + number(g.count-1) + " more."
		}
		e.add(fact)
		if i == 0 {
			e.place(g.of)
		}
	}
}

// place sets the state of the first fact's occurrence.
func (e *explainer) place(s *subject) {
	switch {
	case s.pending != nil && s.pending.Held(e.Now):
		e.answer.Occurrence, e.answer.State = s.pending, HeldState
	case s.pending != nil:
		e.answer.Occurrence, e.answer.State = s.pending, PendingState
	case s.dead != nil:
		e.answer.Occurrence, e.answer.State = s.dead, DeadState
	}
}

// severities orders the codes of occurrences: those that need attention come first.
var severities = []Code{
	Dead, Missed, DestinationDown, Retrying, Released, LeaseOver, TenantPaused, JobPaused, DestinationLimited, Backlog,
	Due, Held, Waiting, Cancelled, Replaced, Discarded, Unknown, NotKept, Delivered,
}

func severity(c Code) int { return slices.Index(severities, c) }

// orNow returns a time, or the present time if it is zero.
func orNow(t, now time.Time) time.Time {
	if t.IsZero() {
		return now
	}
	return t
}
