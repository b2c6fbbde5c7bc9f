package store

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/job"
)

// ClaimParams say what to claim.
type ClaimParams struct {
	Now time.Time
	// Early widens what is due to dueAt ≤ Now + Early, and is shorter than Lease. It is zero unless the operator
	// prefers early to late.
	Early time.Duration
	// Lease is how long the claims are exclusive, from Now.
	Lease time.Duration
	// Quotas are what to claim of which lanes, at least one. Those of one lane do not overlap.
	Quotas []Quota
}

// Quota is how much to claim of a lane.
type Quota struct {
	Lane job.Lane
	// After and Until narrow what is due to dueAt > After and dueAt ≤ Until; zero does not.
	After, Until time.Time
	// Limit is how many occurrences to claim at most; at least 1.
	Limit int
}

// Claim is what was claimed.
type Claim struct {
	// Occurrences are in the order of the quotas, and of one quota the longest due first.
	Occurrences []Claimed
	// Quotas tell what is left, one for each that was asked for.
	Quotas []QuotaLeft
}

// QuotaLeft is what a claim has left of what a quota is about.
type QuotaLeft struct {
	// Found is how many it has claimed.
	Found int
	// More tells that more of it may be due: as many as the limit were found, or some that were found could not be had
	// because another replica was faster or they were put back.
	More bool
	// Next is when the next of the lane becomes due that was not due yet, with what this claim has taken at its lease's
	// end; zero if there is none. It means nothing while More is true.
	Next time.Time
}

// More tells whether more may be due of any quota.
func (c Claim) More() bool {
	return slices.ContainsFunc(c.Quotas, func(q QuotaLeft) bool { return q.More })
}

// Due is the time up to which what is due may be claimed.
func (p ClaimParams) Due() time.Time { return p.Now.Add(p.Early) }

// Range are the bounds of what a quota may claim: later than the first, up to the second.
func (p ClaimParams) Range(q Quota) (after, until time.Time) {
	until = p.Due()
	if !q.Until.IsZero() && q.Until.Before(until) {
		until = q.Until
	}
	return q.After, until
}

// Claimed is an occurrence that the caller holds until DueAt, its lease's end. Token and Attempt are those of this
// claim.
type Claimed struct {
	job.Occurrence
	job.Target
	// Reclaimed tells that an earlier claim of it was never settled.
	Reclaimed bool
	// Fault is set if what the store holds of its target can't be read. Such an occurrence can't be fired.
	Fault error
}

// ClaimJobsParams say what to claim for expansion.
type ClaimJobsParams struct {
	Now time.Time
	// Lease is how long the claims are exclusive, from Now.
	Lease time.Duration
	// Limit is how many jobs to claim at most; at least 1.
	Limit int
}

// ClaimedJobs are jobs that the caller may advance until their lease ends.
type ClaimedJobs struct {
	// Jobs are whole, but for their callbacks' data, with the Cursor that they are to be expanded from.
	Jobs []job.Job
	// Unreadable are those whose schedule or options can't be read here. They stay claimed for one lease.
	Unreadable []job.Name
	// Token is the fencing token of all of these claims.
	Token string
	// More tells that more jobs may be due: as many as the limit were found, or another replica was faster.
	More bool
}

// Advance is the next part of a job's schedule.
type Advance struct {
	Name job.Name
	// Revision, From and Token are the job's revision and cursor as it was claimed, and the claim's token.
	Revision job.Revision
	From     time.Time
	Token    string
	// Occurrences are those after From and up to Cursor that are to fire, all of the revision.
	Occurrences []job.Occurrence
	// Cursor is the job's from then on, and ExpandAt too; zero if its schedule has ended.
	Cursor   time.Time
	ExpandAt time.Time
	// ExpiresAt is set if the schedule has ended: the job does not expire before.
	ExpiresAt time.Time
	// Missed is how many more instants were dropped, and Trouble that of the last of them.
	Missed  int
	Trouble job.Trouble
}

// Planned is how many more occurrences the job has been given.
func (a *Advance) Planned() int { return len(a.Occurrences) + a.Missed }

// Outcome is how a claim ends.
type Outcome int

// The outcomes of a claim.
const (
	// Ack deletes the occurrence: it was delivered.
	Ack Outcome = iota
	// Retry makes it due again at DueAt, noting Error.
	Retry
	// Bury moves it to the dead letters with Target, Error and At. Its job, if it still has that revision or has
	// carried the occurrence over, counts one more failed, and keeps the trouble, see [Settlement.Trouble], if none of
	// a later instant is there. A store without transactions may count wrong if it fails meanwhile.
	Bury
	// Release gives it back unfired, due at DueAt: its attempt is not counted. Error is noted if it is set.
	Release
	// Miss deletes it unfired: it was too late. The job that it is of by then, which has replaced the one that it was
	// claimed for if it was carried over, counts one more missed instant and keeps the trouble, as with Bury. A store
	// without transactions may count wrong if it fails meanwhile.
	Miss
)

// Settlement ends one claim.
type Settlement struct {
	ID      job.ID
	Token   string
	Outcome Outcome
	// DueAt is when a retried or released occurrence is due again.
	DueAt time.Time
	// Error is what the attempt failed with.
	Error string
	// Target is what a buried occurrence will be redriven with.
	Target job.Target
	// At is when it was buried or missed.
	At time.Time
	// Name, Priority and Revision are the occurrence's as it was claimed; it may have been carried over to another
	// revision since. If it is made due again, the job that it is of then does not expire before KeepUntil. A store
	// without transactions may keep the job so long for a settlement that changes nothing else, too.
	Name      job.Name
	Priority  job.Priority
	Revision  job.Revision
	KeepUntil time.Time
}

// Trouble is what the job keeps of an occurrence that is buried or missed.
func (t *Settlement) Trouble() job.Trouble {
	trouble := job.Trouble{Missed: t.Outcome == Miss, Instant: job.InstantOf(t.ID), At: t.At}
	if t.Outcome == Bury {
		trouble.Error = t.Error
	}
	return trouble
}

// SweepParams say what to sweep.
type SweepParams struct {
	Now time.Time
	// Again is how much later to look again at a job that has expired but is still live; more than zero.
	Again time.Duration
	// FailedBefore bounds the dead letters to delete; zero deletes none.
	FailedBefore time.Time
	// Limit bounds the jobs, the dead letters and the records looked at in one sweep.
	Limit int
}

// Swept is what a sweep removed.
type Swept struct {
	Jobs        int
	DeadLetters int
	// Records that have expired, of any collection.
	Records int
	// More tells that the limit was reached.
	More bool
}

// PutBack says what becomes of an orphan: a claimed occurrence whose job is gone or has another revision. Its Put may
// not have finished yet, so it is put back, due again at the time answered; only a revision so old that its Put must
// have ended (see [Within], with ample room for clocks that differ) shows that nothing will ever want it.
func PutBack(revision job.Revision, now time.Time) (dueAt time.Time, drop bool) {
	age := revision.Age(now)
	if age > time.Hour {
		return time.Time{}, true
	}
	return now.Add(max(10*time.Millisecond, age)).Truncate(time.Millisecond), false
}

// PutBackPaused answers when an occurrence whose job is paused is looked at again. The longer the pause has lasted, the
// later that is, so that many of them cost little, and they are spread, so that they do not come in crowds. The
// occurrence gets back what it was before the claim.
//
// One that was claimed early, before its instant, is looked at again right after that: a resume before its instant does
// not bring it forward.
func PutBackPaused(timestamp, pausedAt time.Time, p ClaimParams) time.Time {
	if timestamp.After(p.Now) {
		return timestamp.Add(p.Early + time.Millisecond) // so that the same claim does not find it again
	}
	const longest = 10 * time.Minute
	after := max(p.Lease, p.Early+time.Millisecond, min(p.Now.Sub(pausedAt), longest))
	return p.Now.Add(after + time.Duration(rand.Float64()*float64(after)/2)).Truncate(time.Millisecond)
}

// PutBackUnexpanded answers when an occurrence beyond its job's cursor is looked at again: the expansion that inserted
// it has not ended, or has broken off and is about to be done again. It must never be dropped for that.
func PutBackUnexpanded(now time.Time) time.Time { return now.Add(250 * time.Millisecond) }
