// Package store defines the contract of a Carillon store. Each implementation is a package below this one with an
// Open(ctx, url). All of them pass the suite in storetest.
//
// Every store keeps three kinds of documents: jobs, occurrences (pending ones and dead letters), and records. The
// caller passes the time in; a store reads its own clock only for Now and for the deadlines of mutations. Stores keep
// times as whole milliseconds, and callers pass such times.
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
	// ErrNotFound is returned for an unknown job.
	ErrNotFound = errors.New("not found")
	// ErrPrecondition is returned by Put, Cancel and Amend if their condition does not hold. Nothing has changed then.
	ErrPrecondition = errors.New("precondition failed")
	// ErrConflict is returned by Import if the store has a different job of the same name.
	ErrConflict = errors.New("there is another job of the same name")
	// ErrTooLarge is returned by Put, Amend and Import for a job that exceeds the size that the store can keep. Nothing
	// of the job has changed then, and repeating the call can't succeed.
	ErrTooLarge = errors.New("it is larger than the store can keep")
	// ErrUnavailable wraps every fault that may go away by itself: the server is down, slow, failing over or full.
	ErrUnavailable = errors.New("the store is unavailable")
	// ErrNotDone is an [ErrUnavailable] of a mutation that has changed nothing and never will: it was not sent, or the
	// server refused it. After any other ErrUnavailable, the outcome of a mutation is unknown until its deadline has
	// passed.
	ErrNotDone = fmt.Errorf("%w: nothing was changed", ErrUnavailable)
	// ErrSuperseded is returned for a mutation of a job whose version is in the mutation's [Span]. Nothing has changed
	// then.
	ErrSuperseded = errors.New("a newer version of the job was accepted after this request was submitted")
	// ErrFormat is returned by Open for data written by a newer version of Carillon.
	ErrFormat = errors.New("the store was written by a newer version of carillon")
)

// Store is a whole store. All methods are safe for concurrent use, by any number of processes. Every method may return
// an error that wraps [ErrUnavailable]. Each document is then either changed completely or not at all, and repeating
// the call is safe.
//
// A mutation takes effect before its context's deadline, or never. The store judges that by its own clock, in the same
// atomic step as the effect, so that a delayed command changes nothing when it arrives. A context without a deadline
// gets one of [Within]. An error is returned as soon as it is known. Unless it is [ErrNotDone], the caller must wait
// for the deadline before it reports the failure to a client.
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
	// Put creates or replaces jobs, each atomically, and returns one result for each, in order. Names may repeat: they
	// are then put in order. When Put returns without error for a job, the job and its occurrences have the durability
	// that the store promises. Then only these occurrences fire, besides those that were held. Of racing Puts of one
	// name, exactly one remains, complete. A job that exceeds the store's limits gets [ErrTooLarge]; the other jobs of
	// the call are put regardless.
	//
	// The context must end within [Within] of the time at which the revisions were taken. A Put that can't finish within
	// that time fails with ErrUnavailable and must never take effect later.
	Put(ctx context.Context, puts []Put) []PutResult

	// Cancel deletes jobs with all their unclaimed occurrences, and returns one result for each, in order. Occurrences
	// that a replica holds at that moment are counted and never retried. Dead letters stay. A job whose version is
	// newer than the request also stays, with all its occurrences, and so does one that does not meet the condition.
	// The condition is judged in the same atomic step as the job is deleted.
	Cancel(ctx context.Context, names []job.Name, asked Asked) ([]CancelResult, error)

	// Amend changes a job's callback and options and leaves its schedule alone. It writes one document, however many
	// occurrences the job has; they fire with the new callback from then on. It returns ErrPrecondition if the job does
	// not have the version that the amendment names, ErrNotFound if there is no job, and ErrTooLarge if the amended job
	// would exceed the store's limits.
	Amend(ctx context.Context, a Amendment) error

	// Pause stops the schedule of a job from firing, or returns ErrNotFound. The job's occurrences stay. Those that
	// become due are put back, see [PutBackPaused], and a recurring schedule is not expanded. Held occurrences and
	// standalone ones are not affected. A paused job that is replaced stays paused. Pausing a paused job changes
	// nothing.
	//
	// Version becomes the job's version.
	Pause(ctx context.Context, name job.Name, version job.Revision, now time.Time) error

	// Resume undoes a Pause, or returns ErrNotFound. Unclaimed occurrences whose due time is later than their instant
	// become due at their instant, or at now if that has passed; those whose instant is more than ten minutes ahead may
	// stay as they are. The dispatcher puts back an occurrence that its spread moves further ahead. This includes
	// occurrences that a claim is putting back at that moment. A recurring schedule that has not ended is to be expanded
	// at now, or at the end of the lease of an expansion that the pause interrupted. Repeating Resume completes an
	// interrupted one. A job that is not paused keeps its version.
	Resume(ctx context.Context, name job.Name, version job.Revision, now time.Time) error

	// Trigger inserts a standalone occurrence. If that occurrence is there already, it stays as it is, even if it is held
	// or a dead letter, and Trigger returns nil. It returns ErrNotFound if there is no job of its name. If the job is
	// cancelled concurrently, either the trigger comes first and the occurrence is cancelled with the job, or Trigger
	// returns ErrNotFound. A replica may have claimed the occurrence in between.
	Trigger(ctx context.Context, o job.Occurrence) error

	// Jobs lists jobs ordered by the bytes of their keys. A job that exists throughout the listing is on exactly one
	// page.
	Jobs(ctx context.Context, filter JobFilter) ([]JobStatus, error)

	// Occurrences lists a job's pending occurrences by id, without their callbacks: those of the given revision, and
	// the standalone ones of the name. Total counts all of them if the filter asks for the count; otherwise it is 0.
	Occurrences(ctx context.Context, filter OccurrenceFilter) (page []job.Occurrence, total int, err error)

	// DeadLetters lists dead letters by id. Each has its own callback, its last error and FailedAt.
	DeadLetters(ctx context.Context, filter DeadLetterFilter) ([]job.Occurrence, error)

	// SettleDead redrives or deletes dead letters, and returns how many of the ids were dead letters of the tenant. The
	// other ids change nothing.
	SettleDead(ctx context.Context, settlement DeadSettlement) (int, error)
}

// Queue is the side of a store that the dispatcher uses.
type Queue interface {
	// Claim takes due occurrences, each for one lease: from each quota's lane up to its limit, the longest due first.
	// During its lease, no other claim gets the occurrence. Each comes with the present callback and options of its
	// job, never with cached ones. An occurrence whose job is gone or has another revision is put back instead, see
	// [PutBack]. So is an occurrence of a paused job, see [PutBackPaused], and one beyond its job's cursor, see
	// [PutBackUnexpanded].
	Claim(ctx context.Context, params ClaimParams) (Claim, error)

	// ClaimJobs takes up to Limit jobs that are to be expanded, the longest due first, each for one lease. During the
	// lease, no other ClaimJobs gets the job. After it, another call does, if the job was not advanced. Paused jobs are
	// left out. If no job is due, the call is one cheap query, however many jobs the store has.
	ClaimJobs(ctx context.Context, params ClaimJobsParams) (ClaimedJobs, error)

	// Advance ends claims of jobs: each job gets its next occurrences, cursor and expandAt. If the job has since been
	// claimed again, paused, cancelled or replaced, nothing changes, and none of the occurrences fires through this
	// call. If the call is interrupted, each job is advanced completely or not at all, since no occurrence beyond a
	// job's cursor fires. Repeating a completed advance changes nothing.
	//
	// An advance without ExpandAt ends the job's schedule and clears its cursor.
	//
	// The context must end within half the lease from the claim of the jobs. An occurrence inserted later may already
	// have been delivered, and would be delivered again. If an advance was interrupted, a store without transactions may
	// have occurrences of instants that a later one counts as missed. That one keeps them, and sets [Advance.Left].
	Advance(ctx context.Context, advances []Advance) error

	// Settle ends claims. Each settlement names the claim's token: if the occurrence has since been claimed again,
	// cancelled or replaced, the settlement changes nothing. Settling twice has the same effect as settling once.
	Settle(ctx context.Context, settlements []Settlement) error

	// Sweep removes expired jobs that have no pending occurrence, old dead letters and expired records, in bounded
	// batches.
	Sweep(ctx context.Context, params SweepParams) (Swept, error)

	// Now returns the time of the store's clock, or of this machine's clock if the store has none. Each call asks the
	// server, so it also tests whether the store can be reached.
	Now(ctx context.Context) (time.Time, error)
}

// Transfer is the side of a store that exports and imports documents. Every store can import the documents that any
// other store exports.
type Transfer interface {
	// Export returns about limit records after a place, and the place behind the last of them. An empty place is the
	// beginning; no records means the end. All jobs come before all occurrences. Records that are not changed during the
	// export are exported exactly once, and records that are inserted or deleted at most once. Orphans and occurrences
	// beyond their job's cursor are left out. An occurrence that is buried during the export is exported as pending, as a
	// dead letter, or as both in this order. Records are complete: jobs with all fields; occurrences and dead letters
	// (with FailedAt) with their claims and their own callbacks.
	Export(ctx context.Context, after Place, limit int) (records []Document, next Place, err error)

	// Import inserts records unchanged, and returns how many were not in the store before. An occurrence whose id is
	// already in the store stays as it is, pending or a dead letter. So does a job with the same revision and version.
	// An existing job of the same name with another revision or version stays too; Import then returns [ErrConflict]. A
	// job that exceeds the store's limits gets [ErrTooLarge]. Both errors name the job, and any of the other records
	// may have been imported. A job must be imported before its occurrences, in the same call or an earlier one. An
	// occurrence that does not match its job or lies beyond the job's cursor never fires.
	//
	// No replica may claim from the store until the import is complete: an occurrence that was delivered and then imported
	// again would be delivered twice.
	Import(ctx context.Context, records []Document) (inserted int, err error)
}

// Place is a position in an export. It is valid for the same store only, and has no control characters.
type Place string

// Document is either a job or an occurrence; the other field is nil.
type Document struct {
	Job        *job.Job
	Occurrence *job.Occurrence
}

// Amendment is a change of a job that leaves its schedule alone.
type Amendment struct {
	Name job.Name
	// Of is the version that the job must have.
	Of job.Revision
	// Version becomes the job's version.
	Version  job.Revision
	Callback job.Callback
	Options  job.Options
	Now      time.Time
}

// Within is the time after its submission in which a mutation may take effect. For a Put it begins when its revision is
// taken. [PutBack] relies on it.
const Within = 30 * time.Second

// Span is the range of versions that were taken after a request was submitted and before its deadline. A job with such
// a version was changed by a later request, and the earlier one must not undo that. The zero value is the empty range.
//
// Versions sort by the time at which they were taken. Both ends are times of the store's clock as far as it is known,
// chosen in favour of the request. The upper end prevents a clock that was set back from causing the refusal of every
// request.
type Span struct {
	After, Until job.Revision
}

// Has reports whether a job's version is in the span.
func (s Span) Has(version job.Revision) bool { return version > s.After && version <= s.Until }

// Asked describes a client's request: its time, and its condition.
type Asked struct {
	// Now is the time of the request.
	Now time.Time
	// Newer is the span of versions that came after it.
	Newer Span
	// If is the condition for each of the jobs; the zero value always holds. Versions are never used twice, so those of
	// several jobs may be named together.
	If Condition
}

// Judge returns the reason why the request may not change a job of the given version: [ErrSuperseded],
// [ErrPrecondition], or nil if it may. The version is empty if there is no such job.
func (a *Asked) Judge(version job.Revision) error {
	switch {
	case a.Newer.Has(version):
		return ErrSuperseded
	case !a.If.Holds(version):
		return ErrPrecondition
	default:
		return nil
	}
}

// Put is a job to be created or replaced.
type Put struct {
	// Job has a fresh revision, used in no earlier Put, and an equal version. Its PausedAt is ignored: a new job is not
	// paused, and a replaced job keeps its pause unless StartsOver is set.
	Job job.Job
	// Occurrences all have that revision.
	Occurrences []job.Occurrence
	// If is the condition for the put; the zero value always holds.
	If Condition
	// Newer is the span of versions that came after the submission. A job with such a version stays as it is, and the
	// Put returns [ErrSuperseded].
	Newer Span
	// From, if it is not zero, identifies the only job that the Put may replace. If there is no job, or its version or
	// cursor differs, the Put returns [ErrPrecondition]. If must be zero then.
	From Replaced
	// Carried are occurrences of the replaced job that the new job has too. The replacement transfers each one that is
	// still pending to the new job in the same atomic step, so that it fires once even if it is claimed or settled at
	// that moment. The occurrence keeps its id, due time and attempts. A held one also keeps its claim, so that its
	// outcome counts and a retry belongs to the new job. An occurrence that is no longer pending was settled as the old
	// job's: it is not inserted again, and the new job's Planned does not count it, see [Put.Planned].
	Carried []Carried
	// StartsOver reports that the replaced job has finished and passed its retention. The new job then inherits neither
	// its pause nor its creation time.
	StartsOver bool
	// Now is the time of the submission.
	Now time.Time
}

// Judge returns the reason why the put may not replace the present job, given that job's version and cursor:
// [ErrSuperseded], [ErrPrecondition], or nil if it may. The version is empty if there is no such job.
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

// Planned returns the number of occurrences that the job has been given, if carried of the Carried became its own. A
// store without transactions may include occurrences that are settled while the put takes effect.
func (p *Put) Planned(carried int) int { return max(0, p.Job.Planned-(len(p.Carried)-carried)) }

// Replaced identifies the job that a Put is to replace, as the caller read it.
type Replaced struct {
	Version job.Revision
	// Cursor is that of a recurring schedule; zero for others.
	Cursor time.Time
}

// Carried is a pending occurrence of a replaced job together with its new form. As has the new job's revision, position
// and part and, unless the occurrence is held, its priority. The other fields of As are ignored.
type Carried = job.Carried

// Condition is a condition on the present job. At most one field is set.
type Condition struct {
	Absent   bool           // there must be no such job
	Present  bool           // there must be one
	Versions []job.Revision // there must be one with one of these versions
}

// Always reports whether the condition holds for every job and for none.
func (c Condition) Always() bool { return !c.Absent && !c.Present && len(c.Versions) == 0 }

// Holds reports whether the condition holds for a job with the given version, which is empty if there is no such job.
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

// PutResult is the result of one Put.
type PutResult struct {
	// Replaced is the revision that was replaced; empty if the job was created.
	Replaced job.Revision
	// InFlight is the number of held occurrences of the replaced revision. They are never retried, except the
	// carried-over ones among them.
	InFlight int
	// Carried is the number of the Put's Carried that became the new job's.
	Carried int
	// Paused reports that the job is paused, which a replaced job may be.
	Paused bool
	Err    error
}

// CancelResult is the result of one cancellation.
type CancelResult struct {
	// Found is false if there was neither such a job nor a standalone occurrence of its name.
	Found bool
	// Cancelled is the number of occurrences that will never fire.
	Cancelled int
	// InFlight is the number of held occurrences. They may be delivered; they are never retried.
	InFlight int
	// Err is the reason why the job was left unchanged: [ErrSuperseded] if its version is newer than the request, or
	// [ErrPrecondition] if the condition does not hold. Nothing else is set then.
	Err error
}

// JobStatus is a job with its next instant.
type JobStatus struct {
	job.Job
	// Next is the instant of the first pending occurrence of its revision, in the order of the ids; zero if there is
	// none.
	Next time.Time
}

// Live reports whether an occurrence of the job's revision is pending or is still to be expanded, now or after a
// resume.
func (s JobStatus) Live() bool {
	return !s.Next.IsZero() || !s.ExpandAt.IsZero() || !s.PausedAt.IsZero() && !s.Cursor.IsZero()
}

// Gone reports whether the job has finished and its retention has passed, so that the next sweep removes it.
func (s JobStatus) Gone(now time.Time) bool { return !s.Live() && !s.ExpiresAt.After(now) }

// JobFilter selects a page of a tenant's jobs whose keys sort after After. Key selects only the job with that key, and
// Prefix only jobs whose key has that prefix. At most one of Key and Prefix is set.
type JobFilter struct {
	Tenant string
	Key    string
	Prefix string
	After  string
	Limit  int
	// Whole also reads schedules, options and callback data, which may be large. Without it they are left out.
	Whole bool
	// Standalone also selects keys without a job that have pending standalone occurrences. Each is listed as a status
	// with a name and nothing else.
	Standalone bool
}

// ReadJob returns one job with all its fields, or [ErrNotFound].
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

// WithStandalone merges a page of jobs and a page of keys with standalone occurrences into the page that
// [JobFilter.Standalone] selects. Both pages are in the order of their bytes and have up to limit entries.
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

// OccurrenceFilter selects a page of a job's pending occurrences whose ids sort after After.
type OccurrenceFilter struct {
	Name     job.Name
	Revision job.Revision
	After    job.ID
	Limit    int
	// Count requests the total. Counting takes time in proportion to it.
	Count bool
}

// DeadLetterFilter selects a page of a tenant's dead letters whose ids sort after After. Key selects those of one job,
// Prefix those of jobs whose key has that prefix, and ID one dead letter.
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

// DeadOutcome is the way in which dead letters end.
type DeadOutcome int

// The outcomes of a dead letter.
const (
	// Redrive makes it due at the settlement's Now. Its attempts start again at zero.
	Redrive DeadOutcome = iota
	// Discard deletes it.
	Discard
)

// DeadSettlement ends dead letters of one tenant, all with the same outcome.
type DeadSettlement struct {
	Tenant  string
	IDs     []job.ID
	Outcome DeadOutcome
	Now     time.Time
}
