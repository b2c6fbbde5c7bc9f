package instrumented

import (
	"context"
	"slices"
	"time"

	"github.com/carillon-scheduler/carillon/job"
	"github.com/carillon-scheduler/carillon/store"
)

// The methods of [store.Store], each timed.

// Put implements [store.Jobs]. It counts as failed if any of its results failed.
func (s *measured) Put(ctx context.Context, puts []store.Put) []store.PutResult {
	start := time.Now()
	results := s.inner.Put(ctx, puts)
	var err error
	for i := range results {
		if isFault(ctx, results[i].Err) {
			err = results[i].Err
			break
		}
	}
	s.put.done(ctx, start, err)
	return results
}

// Cancel implements [store.Jobs].
func (s *measured) Cancel(ctx context.Context, names []job.Name, asked store.Asked) ([]store.CancelResult, error) {
	start := time.Now()
	answer, err := s.inner.Cancel(ctx, names, asked)
	s.cancel.done(ctx, start, err)
	return answer, err
}

// Amend implements [store.Jobs].
func (s *measured) Amend(ctx context.Context, a store.Amendment) error {
	start := time.Now()
	err := s.inner.Amend(ctx, a)
	s.amend.done(ctx, start, err)
	return err
}

// Pause implements [store.Jobs].
func (s *measured) Pause(ctx context.Context, name job.Name, version job.Revision, now time.Time) error {
	start := time.Now()
	err := s.inner.Pause(ctx, name, version, now)
	s.pause.done(ctx, start, err)
	return err
}

// Resume implements [store.Jobs].
func (s *measured) Resume(ctx context.Context, name job.Name, version job.Revision, now time.Time) error {
	start := time.Now()
	err := s.inner.Resume(ctx, name, version, now)
	s.resume.done(ctx, start, err)
	return err
}

// Trigger implements [store.Jobs].
func (s *measured) Trigger(ctx context.Context, o job.Occurrence) error {
	start := time.Now()
	err := s.inner.Trigger(ctx, o)
	s.trigger.done(ctx, start, err)
	return err
}

// Jobs implements [store.Jobs].
func (s *measured) Jobs(ctx context.Context, filter store.JobFilter) ([]store.JobStatus, error) {
	start := time.Now()
	answer, err := s.inner.Jobs(ctx, filter)
	s.jobs.done(ctx, start, err)
	return answer, err
}

// Occurrences implements [store.Jobs].
func (s *measured) Occurrences(
	ctx context.Context, filter store.OccurrenceFilter,
) (page []job.Occurrence, total int, err error) {
	start := time.Now()
	page, total, err = s.inner.Occurrences(ctx, filter)
	s.occurrences.done(ctx, start, err)
	return page, total, err
}

// DeadLetters implements [store.Jobs].
func (s *measured) DeadLetters(ctx context.Context, filter store.DeadLetterFilter) ([]job.Occurrence, error) {
	start := time.Now()
	answer, err := s.inner.DeadLetters(ctx, filter)
	s.deadLetters.done(ctx, start, err)
	return answer, err
}

// SettleDead implements [store.Jobs].
func (s *measured) SettleDead(ctx context.Context, settlement store.DeadSettlement) (int, error) {
	start := time.Now()
	answer, err := s.inner.SettleDead(ctx, settlement)
	s.settleDead.done(ctx, start, err)
	return answer, err
}

// Claim implements [store.Queue].
func (s *measured) Claim(ctx context.Context, params store.ClaimParams) (store.Claim, error) {
	start := time.Now()
	answer, err := s.inner.Claim(ctx, params)
	s.claim.done(ctx, start, err)
	return answer, err
}

// DueLanes implements [store.Inspector].
func (s *measured) DueLanes(ctx context.Context, params store.DueParams) (store.DuePage, error) {
	start := time.Now()
	answer, err := s.inner.DueLanes(ctx, params)
	s.dueLanes.done(ctx, start, err)
	return answer, err
}

// ClaimJobs implements [store.Queue].
func (s *measured) ClaimJobs(ctx context.Context, params store.ClaimJobsParams) (store.ClaimedJobs, error) {
	start := time.Now()
	answer, err := s.inner.ClaimJobs(ctx, params)
	s.claimJobs.done(ctx, start, err)
	return answer, err
}

// Advance implements [store.Queue].
func (s *measured) Advance(ctx context.Context, advances []store.Advance) error {
	start := time.Now()
	err := s.inner.Advance(ctx, advances)
	s.advance.done(ctx, start, err)
	return err
}

// Settle implements [store.Queue].
func (s *measured) Settle(ctx context.Context, settlements []store.Settlement) error {
	start := time.Now()
	err := s.inner.Settle(ctx, settlements)
	s.settle.done(ctx, start, err)
	return err
}

// Sweep implements [store.Queue].
func (s *measured) Sweep(ctx context.Context, params store.SweepParams) (store.Swept, error) {
	start := time.Now()
	answer, err := s.inner.Sweep(ctx, params)
	s.sweep.done(ctx, start, err)
	return answer, err
}

// Now implements [store.Queue].
func (s *measured) Now(ctx context.Context) (time.Time, error) {
	start := time.Now()
	answer, err := s.inner.Now(ctx)
	s.now.done(ctx, start, err)
	return answer, err
}

// Count implements [store.Inspector].
func (s *measured) Count(ctx context.Context, now time.Time, lanes []job.Lane, limit int) ([]store.Count, error) {
	start := time.Now()
	answer, err := s.inner.Count(ctx, now, lanes, limit)
	s.count.done(ctx, start, err)
	return answer, err
}

// Sample implements [store.Inspector].
func (s *measured) Sample(ctx context.Context, lane job.Lane, from time.Time, limit int) ([]store.Sampled, error) {
	start := time.Now()
	answer, err := s.inner.Sample(ctx, lane, from, limit)
	s.sample.done(ctx, start, err)
	return answer, err
}

// Records implements [store.Records].
func (s *measured) Records(ctx context.Context, filter store.RecordFilter) ([]store.Record, error) {
	start := time.Now()
	answer, err := s.inner.Records(ctx, filter)
	s.records.done(ctx, start, err)
	return answer, err
}

// WriteRecords implements [store.Records]. It counts as failed if any of its changes failed.
func (s *measured) WriteRecords(ctx context.Context, changes []store.RecordChange) []error {
	start := time.Now()
	answers := s.inner.WriteRecords(ctx, changes)
	var err error
	if i := slices.IndexFunc(answers, func(err error) bool { return isFault(ctx, err) }); i >= 0 {
		err = answers[i]
	}
	s.writeRecords.done(ctx, start, err)
	return answers
}

// Export implements [store.Transfer].
func (s *measured) Export(
	ctx context.Context, after store.Place, limit int,
) (records []store.Document, next store.Place, err error) {
	start := time.Now()
	records, next, err = s.inner.Export(ctx, after, limit)
	s.exports.done(ctx, start, err)
	return records, next, err
}

// Import implements [store.Transfer].
func (s *measured) Import(ctx context.Context, records []store.Document) (int, error) {
	start := time.Now()
	answer, err := s.inner.Import(ctx, records)
	s.imports.done(ctx, start, err)
	return answer, err
}
