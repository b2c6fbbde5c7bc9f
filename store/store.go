// Package store says what a Carillon store must do. Each implementation is a package below this one with an
// Open(ctx, url); all of them pass the suite in storetest.
//
// Every store keeps three kinds of documents: one per job, one per pending occurrence or dead letter, and records. Time
// is passed in and never read inside a store. Times are kept as whole milliseconds; callers pass times that are.
package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

var (
	// ErrNotFound is answered for a job that is unknown.
	ErrNotFound = errors.New("not found")
	// ErrPrecondition is answered by Put and Amend when their condition does not hold; nothing has changed then.
	ErrPrecondition = errors.New("precondition failed")
	// ErrConflict is answered by Import for a job that is there and is another.
	ErrConflict = errors.New("there is another job of the same name")
	// ErrTooLarge is answered by Put, Amend and Import for a job that exceeds what the store can keep of one job;
	// nothing has changed of it then, and it never will fit.
	ErrTooLarge = errors.New("it is larger than the store can keep")
	// ErrUnavailable wraps every fault that may go away by itself: the server is down, slow, failing over or full.
	ErrUnavailable = errors.New("the store is unavailable")
	// ErrNotDone is an [ErrUnavailable] of a mutation that has changed nothing and never will: it was not sent, or the
	// server itself refused it. Of any other ErrUnavailable of a mutation the outcome is unknown until the mutation's
	// time is over.
	ErrNotDone = fmt.Errorf("%w: nothing was changed", ErrUnavailable)
	// ErrSuperseded is answered for a mutation of a job whose version is in the mutation's [Span]; nothing has changed.
	ErrSuperseded = errors.New("a newer version of the job was accepted after this request was submitted")
	// ErrFormat is answered by Open for data that a newer version of Carillon has written.
	ErrFormat = errors.New("the store was written by a newer version of carillon")
)

// Store is a whole store. All methods are safe for concurrent use, by any number of processes. Every method may answer
// an error that wraps [ErrUnavailable]; what it was to do is then either done whole for each document or not at all,
// and doing it again is safe.
//
// A mutation takes effect before its context's deadline, or never: the store judges that by its own clock, in the same
// atomic step as the effect, so that a command that was held up on its way changes nothing when it arrives. A context
// without a deadline gets one of [Within]. An error is answered as soon as it is known: unless it is [ErrNotDone],
// whoever made the mutation waits for its deadline before telling a client that it failed.
type Store interface {
	Jobs
	Queue
	Inspector
	Records
	Transfer
	Close() error
}

// Jobs is the side of a store that the API uses.
type Jobs interface {
	// Put creates or replaces jobs, each atomically, and answers for each in order. Names may repeat: they are then put
	// one after the other. When Put returns without error for a job, it and its occurrences are as durable as the store
	// promises, and only they fire, besides what was held. Of racing Puts of one name exactly one is left, whole. A job
	// that the store has no room for is answered [ErrTooLarge], and those that are put with it are put all the same.
	//
	// The context must end within [Within] of the revisions being taken; a Put that can't finish by then fails with
	// ErrUnavailable and must never take effect later.
	Put(ctx context.Context, puts []Put) []PutResult

	// Cancel deletes jobs with all of their unclaimed occurrences, and answers for each in order. What a replica holds
	// at that moment is counted and never retried. Dead letters stay. A job whose version is newer than the request
	// stays too, with all that it has.
	Cancel(ctx context.Context, names []job.Name, asked Asked) ([]CancelResult, error)

	// Amend changes a job's callback and options and leaves its schedule alone, in one write of one document, whatever
	// it has of occurrences: they fire with the new callback from then on. It answers ErrPrecondition if the job's
	// version is not the one that the amendment is for, ErrNotFound if there is no job, and ErrTooLarge if the store
	// has no room for what the job would be.
	Amend(ctx context.Context, a Amendment) error

	// Pause stops a job from firing by its schedule, or answers ErrNotFound. Its occurrences stay; those that fall due
	// are put back, see [PutBackPaused], and a schedule that recurs is not expanded. What is held is not affected, nor
	// is what stands on its own. A job that is replaced stays paused. Of a job that is paused already, nothing changes.
	//
	// Version is the job's from then on.
	Pause(ctx context.Context, name job.Name, version job.Revision, now time.Time) error

	// Resume undoes a Pause, or answers ErrNotFound: all of its unclaimed occurrences that are due later than they were
	// meant for become due at their instants, or at now if those have passed; those too that a claim is putting back at
	// this moment. A schedule that recurs is to be expanded at now, or when the lease of an expansion ends that the
	// pause cut off, unless the schedule has ended. Doing it again completes one that broke off. A job that is not
	// paused keeps its version.
	Resume(ctx context.Context, name job.Name, version job.Revision, now time.Time) error

	// Trigger inserts an occurrence that stands on its own. It answers ErrNotFound if there is no job of its name. If
	// the job is cancelled at the same time, either the trigger comes first, and the occurrence is cancelled with it,
	// or it is not found; a replica may have claimed it in between.
	Trigger(ctx context.Context, o job.Occurrence) error

	// Jobs lists jobs ordered by the bytes of their keys. A job that exists throughout is on exactly one page.
	Jobs(ctx context.Context, filter JobFilter) ([]JobStatus, error)

	// Occurrences lists the pending occurrences of a job by id: those of the given revision, and those of the name that
	// stand on their own, without their callbacks. Total counts all of them if the filter asks for that; else it is 0.
	Occurrences(ctx context.Context, filter OccurrenceFilter) (page []job.Occurrence, total int, err error)

	// DeadLetters lists dead letters by id. Each has its own callback, its last error and FailedAt.
	DeadLetters(ctx context.Context, filter DeadLetterFilter) ([]job.Occurrence, error)

	// SettleDead redrives or deletes dead letters, and answers how many of the ids were dead letters of the tenant. The
	// other ids change nothing.
	SettleDead(ctx context.Context, settlement DeadSettlement) (int, error)
}

// Queue is the side of a store that the dispatcher uses.
type Queue interface {
	// Claim takes due occurrences, each for one lease: of each quota's lane up to its limit, the longest due first.
	// While its lease lasts, no other claim gets it. Each comes with its job's callback and options as they are now,
	// never from a cache. An occurrence whose job is gone or has another revision is not claimed but put back, see
	// [PutBack]; so is one whose job is paused, see [PutBackPaused], and one beyond its job's cursor, see
	// [PutBackUnexpanded].
	Claim(ctx context.Context, params ClaimParams) (Claim, error)

	// ClaimJobs takes up to Limit jobs that are to be expanded, the longest due first, each for one lease. While it
	// lasts, no other ClaimJobs gets them; if they are not advanced by then, another does. Paused jobs are not among
	// them. It is one cheap query if there are none, however many jobs there are.
	ClaimJobs(ctx context.Context, params ClaimJobsParams) (ClaimedJobs, error)

	// Advance ends claims of jobs: each job gets its next occurrences, cursor and expandAt. If the job has since been
	// claimed again, paused, cancelled or replaced, it changes nothing, and none of the occurrences fires by it. If it
	// breaks off, each job is advanced whole or not at all: no occurrence beyond a job's cursor fires. Doing it again
	// after it was done changes nothing.
	//
	// An advance without ExpandAt ends the job's schedule: the job has no cursor from then on.
	//
	// The context must end within half the lease of the jobs being claimed: an occurrence that is inserted later may
	// have been delivered, and would be again. A store without transactions may count instants as missed, if an advance
	// breaks off there, that it has inserted and that fire or are missed as such.
	Advance(ctx context.Context, advances []Advance) error

	// Settle ends claims. Each settlement names the claim's token: if the occurrence has since been claimed again,
	// cancelled or replaced, it changes nothing. Settling twice is the same as once.
	Settle(ctx context.Context, settlements []Settlement) error

	// Sweep removes expired jobs that have no pending occurrence, and old dead letters, a batch at a time.
	Sweep(ctx context.Context, params SweepParams) (Swept, error)

	// Now answers the time by the store's clock, or this machine's if the store has none. It asks the server anew each
	// time, so it also tells whether the store can be reached.
	Now(ctx context.Context) (time.Time, error)
}

// Transfer is the side of a store by which its documents are moved: what one store exports, any other imports.
type Transfer interface {
	// Export reads records, about Limit of them, and answers them with the place behind the last; an empty place is the
	// beginning, and an empty answer the end. A job comes before its occurrences. Records that nobody changes meanwhile
	// are exported exactly once, those which are inserted or deleted at most once, and orphans and what lies beyond its
	// job's cursor not at all. An occurrence that is buried meanwhile is exported as it was before or as a dead letter,
	// or as both, in this order. Records are whole: jobs with all of their fields, occurrences and dead letters
	// (FailedAt is set) with their claims and their own callbacks.
	Export(ctx context.Context, after Place, limit int) (records []Document, next Place, err error)

	// Import inserts records as they are, and answers how many there were not before. An occurrence that is there
	// already, by its id, stays as it is, pending or a dead letter; so does a job with the same revision and version. A
	// job of the same name that has others is [ErrConflict], and stays as it is too; one that is too large is
	// [ErrTooLarge]; both with its name in the error's text, and any of the other records may have been imported. The
	// job of an occurrence was imported before it, by the same call or an earlier one; one that does not match its job,
	// or lies beyond its cursor, fires nowhere.
	//
	// Nobody may claim from the store until all is imported: what was delivered and is imported again would be again.
	Import(ctx context.Context, records []Document) (inserted int, err error)
}

// Place is where an export goes on. It means something to the same store only, and has no control characters.
type Place string

// Document is one document: a job, or an occurrence. The other one is nil.
type Document struct {
	Job        *job.Job
	Occurrence *job.Occurrence
}

// Amendment is a change of a job that leaves its schedule alone.
type Amendment struct {
	Name job.Name
	// Of is the version of the job that it is for.
	Of job.Revision
	// Version is the job's from then on.
	Version  job.Revision
	Callback job.Callback
	Options  job.Options
	Now      time.Time
}

// Within is how long after it was submitted a mutation may still take effect: a Put after its revision was taken.
// [PutBack] relies on it.
const Within = 30 * time.Second

// Span are the versions that were taken after a request was submitted, and before its time is over. A job that has one
// of them was changed by somebody who came later, whose change the request must not undo. The zero value has none.
//
// Versions sort by the time they were taken at. Both ends are told by the store's clock as far as it is known, in
// favour of the request; the upper end is there lest a clock that was set back has every request refused.
type Span struct {
	After, Until job.Revision
}

// Has tells whether a job's version is in the span.
func (s Span) Has(version job.Revision) bool { return version > s.After && version <= s.Until }

// Asked is when a client asked for something.
type Asked struct {
	// Now is the time of the request.
	Now time.Time
	// Newer are the versions that came after it.
	Newer Span
}

// Put is a job to be created or replaced.
type Put struct {
	// Job has a fresh revision, used in no earlier Put, and the same as its version. Its PausedAt is not looked at: a
	// new job is not paused, and one that is replaced stays as it is, but for StartsOver.
	Job job.Job
	// Occurrences are all of that revision.
	Occurrences []job.Occurrence
	// If is the condition under which to put; the zero value always holds.
	If Condition
	// Newer are the versions that came after the submission: a job that has one of them is left as it is, and the Put
	// answers [ErrSuperseded].
	Newer Span
	// From, if it is not zero, is what the Put replaces, and nothing else: if there is no job, or one with another
	// version or cursor, the Put answers [ErrPrecondition]. If is to be zero then.
	From Replaced
	// Carried are occurrences of the job that is replaced which the new one has too. Each that is still pending when
	// the job is replaced becomes the new one's in that same step, so that it fires once, whatever happens to it at
	// that moment: it keeps its id, due time, attempts and, if it is held, its claim, so that the outcome counts, and a
	// retry is of the new job. One that is pending no more has been settled, and is not inserted again: it was the
	// replaced job's, and the new one's Planned does not count it, see [Put.Planned].
	Carried []Carried
	// StartsOver tells that a job which is replaced is as good as gone: it leaves neither its pause nor its creation
	// time.
	StartsOver bool
	// Now is the time of the submission.
	Now time.Time
}

// Judge answers why the put may not take the place of the present job, told by its version and cursor: [ErrSuperseded],
// [ErrPrecondition], or nil if it may. The version is empty if there is no such job.
func (p *Put) Judge(version job.Revision, cursor time.Time) error {
	switch {
	case p.Newer.Has(version):
		return ErrSuperseded
	case p.From != Replaced{} && (version != p.From.Version || !cursor.Equal(p.From.Cursor)), !p.If.Holds(version):
		return ErrPrecondition
	default:
		return nil
	}
}

// Planned is how many occurrences the job has been given, if that number of Carried become its own. A store without
// transactions may count among them what is settled while the put takes effect.
func (p *Put) Planned(carried int) int { return max(0, p.Job.Planned-(len(p.Carried)-carried)) }

// Replaced is the job that a Put is to replace, as it was read.
type Replaced struct {
	Version job.Revision
	// Cursor is that of a schedule that recurs; zero for others.
	Cursor time.Time
}

// Carried is a pending occurrence of a job that is replaced, and what it is to be of the new one: As has the new job's
// revision, position, part and, unless it is held, priority. The rest of As is not looked at.
type Carried = job.Carried

// Condition is what must be so of the job before it is put. At most one field is set.
type Condition struct {
	Absent   bool           // there must be no such job
	Present  bool           // there must be one
	Versions []job.Revision // there must be one with one of these versions
}

// Always tells whether the condition always holds.
func (c Condition) Always() bool { return !c.Absent && !c.Present && len(c.Versions) == 0 }

// Holds tells whether the condition holds of a job's present version; empty if there is no such job.
func (c Condition) Holds(present job.Revision) bool {
	switch {
	case c.Absent:
		return present == ""
	case c.Present:
		return present != ""
	case len(c.Versions) > 0:
		return present != "" && slices.Contains(c.Versions, present)
	default:
		return true
	}
}

// PutResult answers one Put.
type PutResult struct {
	// Replaced is the revision that was replaced; empty if the job was created.
	Replaced job.Revision
	// InFlight is how many occurrences of the replaced revision a replica held. They are never retried, but for those
	// that were carried over, which are among them.
	InFlight int
	// Carried is how many of the Put's Carried became the new job's.
	Carried int
	// Paused tells that the job is paused, as one that was replaced may be.
	Paused bool
	Err    error
}

// CancelResult answers the cancellation of one job.
type CancelResult struct {
	// Found is false if there was neither such a job nor an occurrence of its name that stood on its own.
	Found bool
	// Cancelled is how many occurrences will never fire.
	Cancelled int
	// InFlight is how many a replica held. They may be delivered; they are never retried.
	InFlight int
	// Superseded tells that the job was left alone since its version came after the request. Nothing else is set then.
	Superseded bool
}

// JobStatus is a job and what it has to fire next.
type JobStatus struct {
	job.Job
	// Next is the instant of the first pending occurrence of its revision, by the ids; zero if there is none.
	Next time.Time
}

// Live tells whether any occurrence of the job's revision is pending, or is still to be expanded: now, or once it is
// resumed.
func (s JobStatus) Live() bool {
	return !s.Next.IsZero() || !s.ExpandAt.IsZero() || !s.PausedAt.IsZero() && !s.Cursor.IsZero()
}

// Gone tells whether the job has finished and its retention has passed, so that it only waits to be swept.
func (s JobStatus) Gone(now time.Time) bool { return !s.Live() && !s.ExpiresAt.After(now) }

// JobFilter selects a page of jobs: the tenant's whose key sorts after After, if Key is set only that one, if Prefix is
// set only those whose key has it. At most one of Key and Prefix is set.
type JobFilter struct {
	Tenant string
	Key    string
	Prefix string
	After  string
	Limit  int
	// Whole reads schedules, options and callback data too, which may be large. Without it they are left out.
	Whole bool
	// Standalone also selects the keys without a job that have pending occurrences which stand on their own. Each is
	// listed as a status with a name and nothing else.
	Standalone bool
}

// ReadJob reads one job, whole, or answers [ErrNotFound].
func ReadJob(
	ctx context.Context, from interface {
		Jobs(context.Context, JobFilter) ([]JobStatus, error)
	}, name job.Name,
) (JobStatus, error) {
	if name.Key == "" {
		return JobStatus{}, ErrNotFound
	}
	found, err := from.Jobs(ctx, JobFilter{Tenant: name.Tenant, Key: name.Key, Limit: 1, Whole: true})
	if err != nil {
		return JobStatus{}, err
	}
	if len(found) == 0 {
		return JobStatus{}, ErrNotFound
	}
	return found[0], nil
}

// WithStandalone merges a page of jobs and a page of the keys that have occurrences which stand on their own, both in
// the order of their bytes and up to the limit, into the page that [JobFilter.Standalone] asks for.
func WithStandalone(jobs []JobStatus, keys []job.Name, limit int) []JobStatus {
	for _, name := range keys {
		i, found := slices.BinarySearchFunc(jobs, name.Key, func(s JobStatus, key string) int {
			return strings.Compare(s.Key, key)
		})
		if !found {
			jobs = slices.Insert(jobs, i, JobStatus{Job: job.Job{Name: name}})
		}
	}
	return jobs[:min(limit, len(jobs))]
}

// OccurrenceFilter selects a page of a job's pending occurrences: those whose id sorts after After.
type OccurrenceFilter struct {
	Name     job.Name
	Revision job.Revision
	After    job.ID
	Limit    int
	// Count asks for the total, which takes time in proportion to it.
	Count bool
}

// DeadLetterFilter selects a page of dead letters: the tenant's whose id sorts after After, if Key is set only those of
// that job, if Prefix is set only those of jobs whose key has it, if ID is set only that one.
type DeadLetterFilter struct {
	Tenant string
	Key    string
	Prefix string
	ID     job.ID
	After  job.ID
	Limit  int
	// Brief leaves out the callbacks' data.
	Brief bool
}

// DeadOutcome is how dead letters end.
type DeadOutcome int

// The outcomes of a dead letter.
const (
	// Redrive makes it due at the settlement's Now, with no attempt used.
	Redrive DeadOutcome = iota
	// Discard deletes it.
	Discard
)

// DeadSettlement ends dead letters of one tenant, all in the same way.
type DeadSettlement struct {
	Tenant  string
	IDs     []job.ID
	Outcome DeadOutcome
	Now     time.Time
}
