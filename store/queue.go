package store

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

// ClaimParams select the occurrences to claim.
type ClaimParams struct {
	Now time.Time
	// Early widens the due condition to dueAt ≤ Now + Early. It is shorter than Lease, and zero unless the operator
	// prefers early firing to late firing.
	Early time.Duration
	// Lease is the time from Now for which the claims are exclusive.
	Lease time.Duration
	// Quotas has at least one entry. The quotas of one lane do not overlap.
	Quotas []Quota
}

// Quota bounds the occurrences to claim from one lane.
type Quota struct {
	Lane job.Lane
	// After and Until narrow the due times to dueAt > After and dueAt ≤ Until. A zero time sets no bound.
	After, Until time.Time
	// Limit is the largest number of occurrences to claim; at least 1.
	Limit int
}

// Claim is the result of [Queue.Claim].
type Claim struct {
	// Occurrences has the claimed occurrences in the order of the quotas, and within one quota the longest due first.
	Occurrences []Claimed
	// Quotas reports the remainder of each requested quota, in the same order.
	Quotas []QuotaLeft
}

// QuotaLeft describes the occurrences that a claim has left in the range of one quota.
type QuotaLeft struct {
	// Found is the number of occurrences claimed.
	Found int
	// More reports that more may be due in this range: the claim reached the limit, or it lost some occurrences to
	// another replica or put them back.
	More bool
	// Next is the earliest due time among the lane's occurrences that were not due yet. Those that this claim took
	// count with their lease's end. It is zero if there are none, and it has no meaning while More is true.
	Next time.Time
}

// More reports whether more may be due in any quota.
func (c Claim) More() bool {
	return slices.ContainsFunc(c.Quotas, func(q QuotaLeft) bool { return q.More })
}

// Due returns the latest due time that may be claimed.
func (p ClaimParams) Due() time.Time { return p.Now.Add(p.Early) }

// Range returns the bounds of the due times that a quota may claim: later than the first, up to the second.
func (p ClaimParams) Range(q Quota) (after, until time.Time) {
	until = p.Due()
	if !q.Until.IsZero() && q.Until.Before(until) {
		until = q.Until
	}
	return q.After, until
}

// Claimed is an occurrence that the caller holds until DueAt, the end of its lease. Token and Attempt are those of this
// claim.
type Claimed struct {
	job.Occurrence
	job.Target
	// Hint is to be passed on to the settlement.
	Hint Hint
	// Reclaimed reports that an earlier claim of the occurrence was never settled.
	Reclaimed bool
	// Fault is set if the stored target of the occurrence can't be read. Such an occurrence can't be fired.
	Fault error
}

// Hint is where a store keeps a claimed occurrence. It has a meaning for that store alone, which finds the occurrence
// faster by it. A settlement may lack it, and a wrong one changes no outcome. Zero is none.
type Hint uint64

// ClaimJobsParams select the jobs to claim for expansion.
type ClaimJobsParams struct {
	Now time.Time
	// Lease is the time from Now for which the claims are exclusive.
	Lease time.Duration
	// Limit is the largest number of jobs to claim; at least 1.
	Limit int
}

// ClaimedJobs are jobs that the caller may advance until the lease ends.
type ClaimedJobs struct {
	// Jobs have all fields except their callbacks' data. Each is to be expanded from its Cursor.
	Jobs []job.Job
	// Unreadable has the names of jobs whose schedule or options can't be read by this version. They stay claimed for
	// one lease.
	Unreadable []job.Name
	// Token is the fencing token of all these claims.
	Token string
	// More reports that more jobs may be due: the claim reached the limit, or another replica was faster.
	More bool
}

// Advance is the next part of a job's schedule.
type Advance struct {
	Name job.Name
	// Revision, From and Token are the job's revision and cursor at the claim, and the claim's token.
	Revision job.Revision
	From     time.Time
	Token    string
	// Occurrences are those after From and up to Cursor that are to fire. All have the job's revision.
	Occurrences []job.Occurrence
	// Cursor and ExpandAt are the job's new values. ExpandAt is zero if the schedule has ended.
	Cursor   time.Time
	ExpandAt time.Time
	// ExpiresAt is set if the schedule has ended. The job does not expire before that time.
	ExpiresAt time.Time
	// Missed is the number of instants that were dropped besides Occurrences. Trouble describes the last of them.
	Missed  int
	Trouble job.Trouble
	// Left is set by [Queue.Advance]: so many of the missed instants have an occurrence, which an expansion has left
	// behind that was cut off. They end when they are claimed, so they are not missed yet.
	Left int
}

// Planned returns the number of occurrences that this advance adds to the job.
func (a *Advance) Planned() int { return len(a.Occurrences) + a.Missed }

// Outcome is the way in which a claim ends.
type Outcome int

// The outcomes of a claim.
const (
	// Ack deletes the occurrence: it was delivered.
	Ack Outcome = iota
	// Retry makes it due again at DueAt and records Error.
	Retry
	// Bury moves it to the dead letters with Target, Error and At. If its job still has that revision, or has carried
	// the occurrence over, the job counts one more failure. The job keeps the trouble, see [Settlement.Trouble], unless
	// it has one of a later instant. A store without transactions may count wrong if it fails during the settlement.
	Bury
	// Release gives it back unfired, due at DueAt. The attempt does not count. Error is recorded if it is set.
	Release
	// Miss deletes it unfired, because it was too late. Its present job counts one more missed instant and keeps the
	// trouble, as with Bury. For an occurrence that was carried over, that is the job that replaced the claimed one. A
	// store without transactions may count wrong if it fails during the settlement.
	Miss
)

// Settlement ends one claim.
type Settlement struct {
	ID      job.ID
	Token   string
	Hint    Hint // that of the claim, or none
	Outcome Outcome
	// DueAt is the new due time of a retried or released occurrence.
	DueAt time.Time
	// Error is the error of the attempt.
	Error string
	// Target is the callback and options with which a buried occurrence would be redriven.
	Target job.Target
	// At is the time at which it was buried or missed.
	At time.Time
	// Name, Priority and Revision are those of the occurrence at the claim; it may have been carried over to another
	// revision since. If the occurrence is made due again, its present job does not expire before KeepUntil. A store
	// without transactions may also extend the job's expiry for a settlement that changes nothing else.
	Name      job.Name
	Priority  job.Priority
	Revision  job.Revision
	KeepUntil time.Time
}

// Trouble returns the record that the job keeps of a buried or missed occurrence.
func (t *Settlement) Trouble() job.Trouble {
	trouble := job.Trouble{Missed: t.Outcome == Miss, Instant: job.InstantOf(t.ID), At: t.At}
	if t.Outcome == Bury {
		trouble.Error = t.Error
	}
	return trouble
}

// SweepParams bound one sweep.
type SweepParams struct {
	Now time.Time
	// Again is the delay after which an expired job that is still live is examined again; more than zero.
	Again time.Duration
	// FailedBefore selects the dead letters to delete: those that failed before it. Zero deletes none.
	FailedBefore time.Time
	// Limit bounds each of the numbers of jobs, dead letters and records that one sweep examines.
	Limit int
}

// Swept counts the documents that a sweep removed.
type Swept struct {
	Jobs        int
	DeadLetters int
	// Records counts expired records of all collections. It excludes those that the store had already removed when
	// their key was changed.
	Records int
	// More reports that the limit was reached.
	More bool
}

// PutBack decides about an orphan: a claimed occurrence whose job is gone or has another revision. The Put that
// inserted it may still be under way, so the orphan is put back, due again at dueAt. It is dropped only if its revision
// is so old that its Put must have ended, see [Within]; the bound leaves ample room for clocks that differ. The same
// claim must not find it again, however early.
func PutBack(revision job.Revision, p ClaimParams) (dueAt time.Time, drop bool) {
	age := revision.Age(p.Now)
	if age > time.Hour {
		return time.Time{}, true
	}
	return p.Due().Add(max(10*time.Millisecond, age)).Truncate(time.Millisecond), false
}

// PutBackPaused returns the time at which an occurrence of a paused job is examined again. The delay grows with the
// length of the pause, so that a large paused backlog costs little. The times are spread, so that the occurrences do
// not become due together. The occurrence gets back the state that it had before the claim.
//
// An occurrence that was claimed early, before its instant, is examined again right after its instant, because a resume
// before the instant does not bring it forward.
func PutBackPaused(timestamp, pausedAt time.Time, p ClaimParams) time.Time {
	if timestamp.After(p.Now) {
		return timestamp.Add(p.Early + time.Millisecond) // the same claim must not find it again
	}
	const longest = 10 * time.Minute
	after := max(p.Lease, p.Early+time.Millisecond, min(p.Now.Sub(pausedAt), longest))
	return p.Now.Add(after + time.Duration(rand.Float64()*float64(after)/2)).Truncate(time.Millisecond)
}

// PutBackUnexpanded returns the time at which an occurrence beyond its job's cursor is examined again. The expansion
// that inserted it is still under way, or was interrupted and will be repeated. So the occurrence must never be
// dropped.
func PutBackUnexpanded(p ClaimParams) time.Time { return p.Due().Add(250 * time.Millisecond) }
